from dataclasses import replace
from functools import partial

import pytest

from holdfast.commitlog.errors import (
    DiskFull,
    DiskLow,
    LogError,
    LogOverloaded,
    LogPoisoned,
    MemoryLow,
)
from holdfast.consumequeue.errors import TopicFull
from holdfast.consumequeue.publishing import PublishAdmission, TopicRoom
from holdfast.consumequeue.topics import Topic, TopicConfig

LIMIT = 1000


@pytest.mark.parametrize(("size", "is_refused"), [(599, False), (600, False), (601, True)])
def test_the_bytes_in_flight_are_limited(size: int, is_refused: bool) -> None:
    admission = PublishAdmission(LIMIT, {})
    admission.enter(400)
    if is_refused:
        with pytest.raises(LogOverloaded) as raised:
            admission.enter(size)
        assert raised.value.limit_name == "max_in_flight_bytes"
        assert admission.in_flight_bytes == 400
        admission.in_flight_bytes -= 400
    admission.enter(size)


def test_a_single_publish_of_any_size_is_admitted() -> None:
    admission = PublishAdmission(LIMIT, {})
    admission.enter(10 * LIMIT)
    with pytest.raises(LogOverloaded):
        admission.enter(1)


def test_a_raised_alarm_refuses_publishes() -> None:
    raised: LogError | None = DiskLow("/d", 1, 2)
    admission = PublishAdmission(LIMIT, {"memory": lambda: None, "disk": lambda: raised})
    with pytest.raises(DiskLow):
        admission.enter(1)
    assert admission.in_flight_bytes == 0
    raised = None
    admission.enter(1)


def test_the_error_of_an_alarm_keeps_no_frames() -> None:
    error = DiskFull(1)
    admission = PublishAdmission(LIMIT, {"disk": lambda: error})
    for _ in range(3):
        with pytest.raises(DiskFull) as refused:
            admission.enter(1)
        assert str(refused.value) == str(error)
    assert error.__traceback__ is None


def test_listeners_hear_when_the_first_alarm_begins_and_when_the_last_one_ends() -> None:
    # A48
    raised: dict[str, LogError] = {}
    names = ("memory", "disk")
    admission = PublishAdmission(LIMIT, {each: partial(raised.get, each) for each in names})
    heard: list[LogError | None] = []
    admission.alarm_listeners.append(heard.append)
    admission.check()
    admission.update()
    assert heard == []
    raised["disk"] = full = DiskFull(1)
    with pytest.raises(DiskFull):  # at once: no measurement is needed
        admission.check()
    assert (heard, admission.refusal) == ([full], full)
    raised["memory"] = MemoryLow(2, 1)
    admission.update()
    del raised["disk"]
    admission.update()
    assert heard == [full]
    assert isinstance(admission.refusal, MemoryLow)
    del raised["memory"]
    admission.update()
    admission.update()
    assert heard == [full, None]


def test_listeners_hear_when_the_log_becomes_read_only() -> None:
    admission = PublishAdmission(LIMIT, {"disk": lambda: None})
    heard: list[LogError | None] = []
    admission.alarm_listeners.append(heard.append)
    admission.fail(poisoned := LogPoisoned("a sync failed"))
    admission.update()  # it does not end
    assert (heard, admission.refusal) == ([poisoned], poisoned)


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
def test_max_bytes_limits_a_topic(size: int, is_let_in: bool) -> None:
    world = World()
    world.stored = 600
    if is_let_in:
        assert world.room.enter(topic(), size) == size
        return
    with pytest.raises(TopicFull, match="max_bytes") as raised:
        world.room.enter(topic(), size)
    assert (raised.value.stored_bytes, raised.value.limit) == (600, LIMIT)


def test_publishes_in_progress_count() -> None:
    world = World()
    first = world.room.enter(topic(), 600)
    with pytest.raises(TopicFull):
        world.room.enter(topic(), 401)
    world.room.leave(topic(), first)  # it failed: the topic is empty
    assert world.room.enter(topic(), 1000) == 1000


def test_deleted_messages_make_room() -> None:
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


def test_a_topic_of_many_queues_is_measured_once_a_second() -> None:
    world, large = World(), topic(queues=65)
    for _ in range(10):
        world.room.leave(large, world.room.enter(large, 100))
    assert world.measured == 1
    with pytest.raises(TopicFull):
        world.room.enter(large, 1)
    world.now_s += 1.0
    assert world.room.enter(large, 1) == 1
    assert world.measured == 2


def test_a_deleted_topic_is_forgotten() -> None:
    world = World()
    world.room.enter(topic(), LIMIT)
    world.room.forget(1)
    assert world.room.enter(replace(topic(), topic_id=2), LIMIT) == LIMIT
    assert world.room.enter(topic(), LIMIT) == LIMIT
