"""The number of bytes that a topic with `max_bytes` accepts."""

from dataclasses import replace

import pytest

from holdfast.consumequeue.errors import TopicFull
from holdfast.consumequeue.publishing import TopicRoom
from holdfast.consumequeue.topics import Topic, TopicConfig

LIMIT = 1000


def topic(max_bytes: int | None = LIMIT, queues: int = 4) -> Topic:
    return Topic("t", 1, queues, TopicConfig("fsync", None, None, 4096, max_bytes), 0)


class World:
    """The stored bytes, and a clock."""

    def __init__(self) -> None:
        self.stored = 0
        self.now_s = 100.0
        self.measured = 0
        self.room = TopicRoom(self._measure, lambda: self.now_s)

    def _measure(self, _: Topic) -> int:
        self.measured += 1
        return self.stored


@pytest.mark.parametrize(("size", "is_let_in"), [(399, True), (400, True), (401, False)])
def test_a_topic_takes_as_much_as_its_limit_and_not_a_byte_more(size: int, is_let_in: bool) -> None:
    world = World()
    world.stored = 600
    if is_let_in:
        assert world.room.enter(topic(), size) == size
        return
    with pytest.raises(TopicFull, match="max_bytes") as raised:
        world.room.enter(topic(), size)
    assert (raised.value.stored_bytes, raised.value.limit) == (600, LIMIT)


def test_what_is_being_stored_counts_until_it_is() -> None:
    world = World()
    first = world.room.enter(topic(), 600)
    with pytest.raises(TopicFull):
        world.room.enter(topic(), 401)
    world.room.leave(topic(), first)  # it failed: the topic is empty
    assert world.room.enter(topic(), 1000) == 1000


def test_what_retention_deletes_makes_room() -> None:
    world = World()
    world.stored = LIMIT
    with pytest.raises(TopicFull):
        world.room.enter(topic(), 1)
    world.stored = 0
    assert world.room.enter(topic(), LIMIT) == LIMIT


def test_a_topic_without_the_limit_is_not_measured() -> None:
    world = World()
    counted = world.room.enter(topic(max_bytes=None), 10**15)
    world.room.leave(topic(), counted)  # the topic got a limit meanwhile
    assert (counted, world.measured) == (0, 0)
    assert world.room.enter(topic(), LIMIT) == LIMIT


def test_a_topic_of_many_queues_is_measured_once_a_second_and_counts_between() -> None:
    world, large = World(), topic(queues=65)
    for _ in range(10):
        world.room.leave(large, world.room.enter(large, 100))
    assert world.measured == 1
    with pytest.raises(TopicFull):
        world.room.enter(large, 1)
    world.now_s += 1.0
    assert world.room.enter(large, 1) == 1
    assert world.measured == 2


def test_a_topic_that_is_gone_is_forgotten() -> None:
    world = World()
    world.room.enter(topic(), LIMIT)
    world.room.forget(1)
    assert world.room.enter(replace(topic(), topic_id=2), LIMIT) == LIMIT
    assert world.room.enter(topic(), LIMIT) == LIMIT
