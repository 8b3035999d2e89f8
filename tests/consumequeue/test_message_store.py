"""The store over a real log, index and state: all functions that the layers above use."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import pytest

from holdfast.commitlog.errors import LogClosed, LogOverloaded, ProducerFenced, SequenceGap
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.message_id import format_message_id
from holdfast.config import Config
from holdfast.consumequeue.config import TopicsConfig
from holdfast.consumequeue.errors import (
    InvalidName,
    InvalidTopicChange,
    LimitReached,
    OffsetBeyondEnd,
    OffsetsChanged,
    OffsetTrimmed,
    QueueCorrupt,
    StateUnavailable,
    TopicConflict,
    UnknownGroup,
    UnknownMessage,
    UnknownQueue,
    UnknownTopic,
)
from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.reading.fetched import Fetched
from holdfast.consumequeue.reading.queue_reading import QueueReader
from holdfast.consumequeue.reading.splits import Split
from holdfast.consumequeue.slices import ITEMS_A_TURN
from holdfast.consumequeue.state.changes import StateChanges
from holdfast.consumequeue.state.group_offsets import GroupOffsets
from holdfast.consumequeue.state.records import StoredOffsets
from holdfast.consumequeue.state.store import StateStore
from holdfast.consumequeue.topics import QueueState, Topic, TopicConfig
from holdfast.storage.storage import Storage
from tests.support.event_loop.calls_a_turn import calls_a_turn
from tests.support.storage.small_log import flip_bit
from tests.support.storage.stored import (
    MIB,
    batch,
    bodies,
    fill_segment,
    forget_newest_blocks,
    open_storage,
    read_queue,
    settled,
    small_config,
    until,
)

ALL: dict[str, Any] = {"max_messages": 1000, "max_bytes": MIB}


@pytest.fixture(params=[True, False], ids=["eager tail", "reput thread"])
async def storage(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Storage]:
    async with open_storage(small_config(tmp_path, eager_tail=request.param)) as storage:
        yield storage


@pytest.fixture
def store(storage: Storage) -> MessageStore:
    return storage.store


@pytest.fixture
async def topic(store: MessageStore) -> Topic:
    topic, _ = await store.topics.create("t", queues=2)
    return topic


def limited(data_dir: Path, **limits: Any) -> Config:
    config = small_config(data_dir)
    return replace(config, topics=replace(config.topics, **limits))


def fail_with_full_map(*_: object) -> None:
    raise lmdb.MapFullError("mdb_put: MDB_MAP_FULL")


class Tagged:
    """A filter on one tag."""

    def __init__(self, tag: str, message_us: float = 0.1) -> None:
        self.tag = tag
        self.message_us = message_us

    def may_match(self, tag_summary: int) -> bool:
        return tag_summary != 0

    def cost_us(self, messages: int, text_bytes: int) -> float:
        return messages * self.message_us

    def matching_rows(self, batch: Batch, start_row: int, end_row: int) -> Sequence[int]:
        return [row for row in range(start_row, end_row) if batch.tag(row) == self.tag]


# -- topics --------------------------------------------------------------------------------


async def test_a_new_topic_has_the_given_settings_and_defaults(store: MessageStore) -> None:
    topic, is_new = await store.topics.create(
        "orders", queues=8, fields={"durability": "written", "retention_ms": 5}
    )
    assert is_new
    assert (topic.name, topic.queue_count) == ("orders", 8)
    assert topic.config == TopicConfig("written", 5, None, 4 * MIB)
    assert store.table.get("orders") == store.table.by_id(topic.topic_id) == topic
    other, _ = await store.topics.create("bills")
    assert other.queue_count == 4
    assert store.table.all() == [other, topic]


async def test_creating_again_compares_only_given_settings(store: MessageStore) -> None:
    topic, _ = await store.topics.create("t", queues=2, fields={"retention_ms": 5})
    for queues, fields in (
        (None, {}),
        (2, {}),
        (None, {"retention_ms": 5}),
        (2, {"durability": "fsync"}),
    ):
        assert await store.topics.create("t", queues=queues, fields=fields) == (topic, False)


@pytest.mark.parametrize(
    ("queues", "fields", "field", "existing"),
    [
        (3, {}, "queues", 2),
        (None, {"durability": "written"}, "durability", "fsync"),
        (2, {"retention_ms": 1}, "retention_ms", None),
        (2, {"max_message_bytes": 1}, "max_message_bytes", 4 * MIB),
    ],
)
async def test_a_field_that_differs_is_a_conflict(
    store: MessageStore,
    topic: Topic,
    queues: int | None,
    fields: Mapping[str, object],
    field: str,
    existing: object,
) -> None:
    with pytest.raises(TopicConflict) as caught:
        await store.topics.create("t", queues=queues, fields=fields)
    assert (caught.value.field, caught.value.existing) == (field, existing)
    assert store.table.get("t") == topic


async def test_a_topic_is_created_when_it_is_first_used(store: MessageStore) -> None:
    # Q2: one queue keeps one order
    planned = store.topics.find_or_plan("orders", queues=1)
    assert (planned.topic_id, planned.queue_count) == (0, 1)
    topic, is_new = await store.topics.ensure("orders", queues=1)
    assert is_new
    assert replace(topic, topic_id=0, created_timestamp_ms=0) == planned
    assert store.topics.find_or_plan("orders", queues=3) == topic
    by_default, _ = await store.topics.ensure("other")
    assert by_default.queue_count == TopicsConfig().default_queues
    with pytest.raises(InvalidName):
        await store.topics.ensure("a b")


async def test_callers_that_create_a_topic_at_once_get_the_same_topic(store: MessageStore) -> None:
    created = await asyncio.gather(*(store.topics.ensure("t", queues=count) for count in (1, 4, 2)))
    assert [(topic.queue_count, is_new) for topic, is_new in created] == [
        (1, True),
        (1, False),
        (1, False),
    ]


async def test_first_use_creates_no_topic_if_that_is_off(tmp_path: Path) -> None:
    async with open_storage(limited(tmp_path, auto_create_topics=False)) as storage:
        topics = storage.store.topics
        with pytest.raises(UnknownTopic):
            topics.find_or_plan("t")
        with pytest.raises(UnknownTopic):
            await topics.ensure("t", queues=1)
        existing, _ = await topics.create("t")
        assert await topics.ensure("t", queues=1) == (existing, False)


async def test_a_limit_of_0_means_no_limit(store: MessageStore) -> None:
    topic, _ = await store.topics.create("t", fields={"retention_ms": 0, "retention_bytes": None})
    assert (topic.config.retention_ms, topic.config.retention_bytes) == (None, None)
    assert await store.topics.create("t", fields={"retention_bytes": 0}) == (topic, False)


@pytest.mark.parametrize("name", ["", "..", "a/b", "__state", "x" * 128, "a\0"])
async def test_a_bad_name_is_refused_everywhere(store: MessageStore, name: str) -> None:
    for refused in (
        store.topics.create(name),
        store.topics.change(name, fields={}),
        store.topics.delete(name),
    ):
        with pytest.raises(InvalidName):
            await refused
    with pytest.raises(InvalidName):
        store.table.get(name)


async def test_an_unknown_topic_cannot_be_changed_or_deleted(store: MessageStore) -> None:
    with pytest.raises(UnknownTopic):
        await store.topics.change("unknown", fields={})
    with pytest.raises(UnknownTopic):
        await store.topics.delete("unknown")


async def test_a_topic_can_get_more_queues_never_fewer(store: MessageStore, topic: Topic) -> None:
    await store.publishing.publish(topic, [batch("a", 1)])
    changed = await store.topics.change("t", queues=3, fields={"retention_bytes": 7})
    assert (changed.topic_id, changed.queue_count) == (topic.topic_id, 3)
    assert changed.config == replace(topic.config, retention_bytes=7)
    assert store.table.get("t") == changed
    await store.publishing.publish(changed, [batch("b", 2)])
    assert [state.max_offset for state in store.reading.queue_states(changed)] == [0, 1, 1]
    with pytest.raises(InvalidTopicChange):
        await store.topics.change("t", queues=2, fields={})
    assert (await store.topics.change("t", fields={"retention_bytes": None})).config == topic.config


async def test_a_topic_keeps_its_former_queue_counts(store: MessageStore) -> None:
    await store.topics.create("t", queues=1)
    for count in range(1, 12):
        topic = await store.topics.change("t", queues=count, fields={})
    assert topic.former_queue_counts == (10, 9, 8, 7, 6, 5, 4, 3)
    assert await store.topics.change("t", queues=11, fields={}) == topic


async def test_a_topic_has_all_queues_at_each_priority_level(store: MessageStore) -> None:
    topic, _ = await store.topics.create("t", queues=2, priority_levels=3)
    assert (topic.queue_count, topic.queues_per_level, topic.priority_levels) == (6, 2, 3)
    assert await store.topics.create("t", queues=2, priority_levels=3) == (topic, False)
    for queues, levels, field in ((6, None, "queues"), (None, 1, "priority_levels")):
        with pytest.raises(TopicConflict) as caught:
            await store.topics.create("t", queues=queues, priority_levels=levels)
        assert caught.value.field == field
    changed = await store.topics.change("t", queues=3, priority_levels=3, fields={})
    assert (changed.queue_count, changed.priority_levels) == (9, 3)
    for queues, levels in ((2, None), (None, 2)):
        with pytest.raises(InvalidTopicChange):
            await store.topics.change("t", queues=queues, priority_levels=levels, fields={})
    default, _ = await store.topics.create("d", priority_levels=10)
    assert default.queue_count == 40


@pytest.mark.parametrize("wrong", [{"priority_levels": 0}, {"priority_levels": 11}, {"queues": 0}])
async def test_invalid_numbers_are_refused(store: MessageStore, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidTopicChange):
        await store.topics.create("t", **wrong)


async def test_there_are_limits_to_topics_queues_and_groups(tmp_path: Path) -> None:
    config = limited(tmp_path, max_topics=2, max_queues_per_topic=3, max_groups=1)
    async with open_storage(config) as storage:
        store = storage.store
        with pytest.raises(LimitReached, match="max_queues_per_topic"):
            await store.topics.create("a", queues=4)
        topic, _ = await store.topics.create("a", queues=3)
        with pytest.raises(LimitReached, match="max_queues_per_topic"):
            await store.topics.change("a", queues=4, fields={})
        await store.topics.create("b", queues=1)
        with pytest.raises(LimitReached, match="max_topics"):
            await store.topics.create("c", queues=1)
        await store.topics.create("b")
        await store.offsets.store_offsets("g", topic, {0: 0})
        with pytest.raises(LimitReached, match="max_groups"):
            await store.offsets.store_offsets("h", topic, {0: 0})
        await store.offsets.store_offsets("g", topic, {0: 0})
        await store.topics.delete("b")
        await store.topics.create("c", queues=1)


async def test_the_queues_of_all_levels_count(tmp_path: Path) -> None:
    config = limited(tmp_path, max_queues_per_topic=6)
    async with open_storage(config) as storage:
        for queues, levels in ((1, 7), (3, 3)):
            with pytest.raises(LimitReached, match="max_queues_per_topic"):
                await storage.store.topics.create("t", queues=queues, priority_levels=levels)
        await storage.store.topics.create("t", queues=2, priority_levels=3)
        with pytest.raises(LimitReached, match="max_queues_per_topic"):
            await storage.store.topics.change("t", queues=3, fields={})
    async with open_storage(config) as storage:
        topic = storage.store.table.get("t")
        assert (topic.queue_count, topic.priority_levels) == (6, 3)


async def test_all_topics_share_a_limit_of_queues(tmp_path: Path) -> None:
    config = limited(tmp_path, max_queues=10, default_queues=4)
    async with open_storage(config) as storage:
        store = storage.store
        await store.topics.create("a", queues=5)
        await store.topics.create("b")  # 9 of 10
        with pytest.raises(LimitReached, match=r"max_queues\b"):
            await store.topics.create("c", queues=2)
        with pytest.raises(LimitReached, match=r"max_queues\b"):
            await store.topics.create("c")
        with pytest.raises(LimitReached, match=r"max_queues\b"):
            await store.topics.change("a", queues=7, fields={})
        await store.topics.change("a", queues=6, fields={})
        await store.topics.change("a", queues=6, fields={"retention_ms": 1000})
        await store.topics.delete("b")
        await store.topics.create("c", queues=4)
    async with open_storage(config) as storage:
        with pytest.raises(LimitReached, match=r"max_queues\b"):
            await storage.store.topics.create("d", queues=1)


async def test_a_topic_created_again_is_a_new_topic(storage: Storage, topic: Topic) -> None:
    store = storage.store
    deleted: list[int] = []
    store.topics.deleted_listeners.append(deleted.append)
    await store.publishing.publish(topic, [batch("old")])
    await store.offsets.store_offsets("g", topic, {0: 1})
    message_id = format_message_id(topic.topic_id, 0, 0)
    await store.topics.delete("t")
    assert deleted == [topic.topic_id]
    with pytest.raises(UnknownTopic):
        store.table.get("t")
    with pytest.raises(UnknownGroup):
        store.offsets.group_topics("g")
    again, is_new = await store.topics.create("t", queues=2)
    assert is_new
    assert again.topic_id > topic.topic_id
    assert store.reading.queue_state(again, 0) == QueueState(0, 0, 0, 0, None)
    with pytest.raises(UnknownMessage):
        await store.lookups.message(message_id)
    await store.publishing.publish(again, [batch("new")])
    assert await read_queue(store, again) == [(0, b"new")]


async def test_publishing_to_a_deleted_topic_is_refused(store: MessageStore, topic: Topic) -> None:
    """A caller that calls the topic up before must not get an acknowledgement."""
    await store.topics.delete("t")
    await store.topics.create("t", queues=2)
    with pytest.raises(UnknownTopic):
        await store.publishing.publish(topic, [batch("lost")])
    with pytest.raises(UnknownTopic):
        await store.offsets.store_offsets("g", topic, {0: 0})


async def test_limits_of_messages_come_from_topic_and_configuration(store: MessageStore) -> None:
    topic, _ = await store.topics.create("t", fields={"max_message_bytes": 10})
    limits = store.publishing.limits(topic)
    assert (limits.max_message_bytes, limits.max_key_bytes) == (10, 4096)


# -- publishing ----------------------------------------------------------------------------


async def test_a_publish_returns_the_place_of_each_batch(store: MessageStore, topic: Topic) -> None:
    first, second, third = await store.publishing.publish(
        topic, [batch(["a", "b"], 1), batch("c", 0), batch("d", 1)]
    )
    assert [(p.queue_id, p.base_offset, p.message_count) for p in (first, second, third)] == [
        (1, 0, 2),
        (0, 0, 1),
        (1, 2, 1),
    ]
    assert first.durable
    assert not first.duplicate
    assert first.store_timestamp_us <= third.store_timestamp_us
    assert await read_queue(store, topic, 1) == [(0, b"a"), (1, b"b"), (2, b"d")]


@pytest.mark.parametrize("of_topic", ["fsync", "written"])
@pytest.mark.parametrize("requested", [None, "fsync", "written"])
async def test_a_publish_may_override_the_durability(
    storage: Storage, of_topic: str, requested: str | None
) -> None:
    topic, _ = await storage.store.topics.create("t", fields={"durability": of_topic})
    (published,) = await storage.store.publishing.publish(topic, [batch("a")], durability=requested)
    wanted = (requested or of_topic) == "fsync"
    assert published.durable is wanted
    if wanted:
        assert storage.syncer.durable_offset > 4096


@pytest.mark.parametrize("durability", ["fsync", "written"])
async def test_an_acknowledged_offset_can_be_read(
    store: MessageStore, topic: Topic, durability: str
) -> None:
    topic = await store.topics.change("t", fields={"durability": durability})
    for number in range(50):
        (published,) = await store.publishing.publish(topic, [batch(str(number))])
        assert published.base_offset == number
        assert bodies(await store.reading.read(topic, 0, number, **ALL)) == [str(number).encode()]
        assert bodies(await store.reading.read(topic, 0, number + 1, **ALL)) == []


async def test_an_unknown_queue_stores_nothing(store: MessageStore, topic: Topic) -> None:
    for queue in (2, 0xFFFFFFFF):
        with pytest.raises(UnknownQueue) as caught:
            await store.publishing.publish(topic, [batch("a", 0), batch("b", queue)])
        assert caught.value.queue_count == 2
    await store.publishing.publish(topic, [batch("c", 0)])
    assert await read_queue(store, topic) == [(0, b"c")]


async def test_parallel_publishes_keep_their_order(store: MessageStore, topic: Topic) -> None:
    async def publisher(name: int) -> None:
        for number in range(20):
            await store.publishing.publish(topic, [batch(f"{name}/{number}", 0)])

    await asyncio.gather(*(publisher(name) for name in range(10)))
    found = [body.decode().split("/") for _, body in await read_queue(store, topic)]
    for name in range(10):
        assert [int(n) for who, n in found if who == str(name)] == list(range(20))


async def test_a_cancelled_publish_affects_no_other(store: MessageStore, topic: Topic) -> None:
    tasks = [
        asyncio.create_task(store.publishing.publish(topic, [batch(str(n))])) for n in range(20)
    ]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in ended[::2])
    assert all(isinstance(each, list) for each in ended[1::2])
    await store.publishing.publish(topic, [batch("after")])
    found = dict(await read_queue(store, topic))
    for number, each in enumerate(ended):
        if isinstance(each, list):
            assert found[each[0].base_offset] == str(number).encode()


async def test_a_duplicate_gets_the_original_place(store: MessageStore, topic: Topic) -> None:
    def attempt(sequence: int, **fields: Any) -> list[Batch]:
        return [batch(str(sequence), 1, producer_id=7, sequence=sequence, **fields)]

    (first,) = await store.publishing.publish(topic, attempt(0))
    (second,) = await store.publishing.publish(topic, attempt(1))
    (again,) = await store.publishing.publish(topic, attempt(0))
    assert msgspec.structs.replace(again, duplicate=False) == first
    assert again.duplicate
    assert second.base_offset == 1
    with pytest.raises(SequenceGap) as caught:
        await store.publishing.publish(topic, attempt(3))
    assert caught.value.expected == 2
    await store.publishing.publish(topic, attempt(0, producer_epoch=1))
    with pytest.raises(ProducerFenced):
        await store.publishing.publish(topic, attempt(2))
    assert store.reading.queue_state(topic, 1).max_offset == 3


async def test_publishes_above_the_limit_are_refused(tmp_path: Path) -> None:
    config = small_config(tmp_path, max_waiting_bytes=MIB)
    async with open_storage(config) as storage:
        topic, _ = await storage.store.topics.create("t")
        large = [batch(b"x" * 400_000, 0)]
        tasks = [
            asyncio.create_task(storage.store.publishing.publish(topic, large)) for _ in range(50)
        ]
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [each for each in ended if isinstance(each, LogOverloaded)]
        stored = [each for each in ended if isinstance(each, list)]
        assert refused
        assert len(stored) + len(refused) == 50
        await storage.store.publishing.publish(topic, large)
        assert storage.store.reading.queue_state(topic, 0).max_offset == len(stored) + 1


async def test_a_closed_store_publishes_nothing(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        topic, _ = await storage.store.topics.create("t")
    with pytest.raises(LogClosed):
        await storage.store.publishing.publish(topic, [batch("late")])


# -- reading -------------------------------------------------------------------------------


async def _publish_five(store: MessageStore, topic: Topic) -> None:
    await store.publishing.publish(
        topic, [batch(["a", "b"], tag="x"), batch("c", tag="y"), batch(["d", "e"], tag="x")]
    )


@pytest.mark.parametrize("cold", [False, True])
async def test_a_pull_from_memory_and_from_disk_is_the_same(tmp_path: Path, cold: bool) -> None:
    config = small_config(tmp_path)
    async with open_storage(config) as storage:
        topic, _ = await storage.store.topics.create("t", queues=2)
        await _publish_five(storage.store, topic)
        if not cold:
            await _check_pulls(storage.store, topic)
    if cold:
        async with open_storage(config) as storage:
            assert storage.store.reading.read_hot(topic, 0, 0, **ALL) is None
            await _check_pulls(storage.store, topic)


async def _check_pulls(store: MessageStore, topic: Topic) -> None:
    fetched = await store.reading.read(topic, 0, 1, **ALL)
    assert bodies(fetched) == [b"b", b"c", b"d", b"e"]
    assert (fetched.next_offset, fetched.min_offset, fetched.max_offset) == (5, 0, 5)
    fetched = await store.reading.read(topic, 0, 1, max_messages=2, max_bytes=MIB)
    assert (bodies(fetched), fetched.next_offset) == ([b"b", b"c"], 3)
    fetched = await store.reading.read(topic, 0, 0, max_messages=5, max_bytes=1)
    assert (bodies(fetched), fetched.next_offset) == ([b"a"], 1)
    fetched = await store.reading.read(topic, 0, 0, **ALL, filter=Tagged("y"))
    assert (bodies(fetched), fetched.next_offset) == ([b"c"], 5)
    fetched = await store.reading.read(topic, 0, 3, **ALL, filter=Tagged("y"))
    assert (bodies(fetched), fetched.next_offset) == ([], 5)
    for at_end in (
        store.reading.read_hot(topic, 0, 5, **ALL),
        await store.reading.read(topic, 0, 5, **ALL),
    ):
        assert at_end is not None
        assert (bodies(at_end), at_end.next_offset, at_end.max_offset) == ([], 5, 5)


async def test_offsets_outside_a_queue_raise_their_errors(
    store: MessageStore, topic: Topic
) -> None:
    await _publish_five(store, topic)

    async def read_hot(*arguments: Any, **bounds: Any) -> Any:
        return store.reading.read_hot(*arguments, **bounds)

    for read in (store.reading.read, read_hot):
        with pytest.raises(OffsetBeyondEnd) as beyond:
            await read(topic, 0, 6, **ALL)
        assert (beyond.value.offset, beyond.value.max_offset) == (6, 5)
        with pytest.raises(OffsetTrimmed):
            await read(topic, 0, -1, **ALL)
        with pytest.raises(OffsetBeyondEnd):
            await read(topic, 1, 1, **ALL)
        for queue in (2, -1):
            with pytest.raises(UnknownQueue):
                await read(topic, queue, 0, **ALL)
        assert bodies(await read(topic, 1, 0, **ALL)) == []


async def test_an_unknown_queue_has_no_max_offset(store: MessageStore, topic: Topic) -> None:
    await _publish_five(store, topic)
    key = topic.topic_id
    assert [store.reading.max_offset((key, queue)) for queue in (-1, 0, 1, 2)] == [None, 5, 0, None]
    assert store.reading.max_offset((key + 1, 0)) is None
    await store.topics.delete("t")
    assert store.reading.max_offset((key, 0)) is None


async def test_a_scan_finds_the_first_match_or_needs_the_disk(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        store = storage.store
        topic, _ = await store.topics.create("t")
        await _publish_five(store, topic)
        key = (topic.topic_id, 0)
        assert store.reading.scan_hot(key, 0, 5, Tagged("y")) == 2
        assert store.reading.scan_hot(key, 3, 5, Tagged("y")) == 5
        assert store.reading.scan_hot(key, 0, 2, Tagged("y")) == 2
        assert store.reading.scan_hot((99, 0), 0, 2, Tagged("y")) is None
        costly = Tagged("y", message_us=900)
        assert store.reading.scan_hot(key, 3, 5, costly) == 5
        assert (
            store.reading.scan_hot(key, 0, 5, costly) is None
        )  # three messages would cost too much
    async with open_storage(small_config(tmp_path)) as storage:
        assert storage.store.reading.scan_hot(key, 0, 5, Tagged("y")) is None


async def test_a_read_of_deleted_messages_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(tmp_path)
    async with open_storage(config) as storage:
        topic, _ = await storage.store.topics.create("t", queues=1)
        for _ in range(2):
            await fill_segment(storage, topic)
        await settled(storage)
    async with open_storage(config) as storage:
        store = storage.store
        topic = await store.topics.change("t", fields={"retention_bytes": 1})
        in_thread = QueueReader.in_thread

        async def overtaken(self: QueueReader, function: Any) -> Any:
            monkeypatch.setattr(QueueReader, "in_thread", in_thread)
            await storage.retention.run_once()
            return await in_thread(self, function)

        monkeypatch.setattr(QueueReader, "in_thread", overtaken)
        with pytest.raises(OffsetTrimmed) as caught:
            await store.reading.read(topic, 0, 0, **ALL)
        assert caught.value.min_offset == store.reading.queue_state(topic, 0).max_offset


async def test_a_damaged_batch_can_be_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = small_config(tmp_path)
    async with open_storage(config) as storage:
        topic, _ = await storage.store.topics.create("t", queues=1)
        for text in (["one", "two"], ["three", "four"], ["five"]):
            await storage.store.publishing.publish(topic, [batch(text)])
        await settled(storage)
    segment = tmp_path / "commitlog" / ("0" * 20)
    image = bytearray(segment.read_bytes())
    image[image.index(b"three")] ^= 1
    segment.write_bytes(image)
    for _ in range(2):  # first from disk, then from memory
        async with open_storage(config) as storage:
            store = storage.store
            fetched = await store.reading.read(topic, 0, 0, **ALL)
            assert (bodies(fetched), fetched.next_offset) == ([b"one", b"two"], 2)
            for offset in (2, 3):
                with pytest.raises(QueueCorrupt) as caught:
                    await store.reading.read(topic, 0, offset, **ALL)
                assert (caught.value.offset, caught.value.next_offset) == (offset, 4)
                assert caught.value.reason == "payload-crc"
                with pytest.raises(QueueCorrupt):
                    await store.lookups.message(format_message_id(topic.topic_id, 0, offset))
            assert bodies(await store.reading.read(topic, 0, 4, **ALL)) == [b"five"]
        (tmp_path / "consumequeue" / "data.mdb").unlink()
        (tmp_path / "consumequeue" / "lock.mdb").unlink()
    # The damage is read several times, but logged once.
    assert caplog.text.count("has lost offsets 2 to 4 (payload-crc)") == 1


async def test_a_block_is_decoded_once_for_all_pulls(store: MessageStore, topic: Topic) -> None:
    await _publish_five(store, topic)
    first = store.reading.read_hot(topic, 0, 4, **ALL)
    second = store.reading.read_hot(topic, 0, 4, **ALL)
    assert first is not None
    assert second is not None
    assert first.slices[0].batch is second.slices[0].batch


# -- looking up ----------------------------------------------------------------------------


async def test_offsets_by_time(store: MessageStore, topic: Topic) -> None:
    times = []
    for text in (["a", "b"], ["c"]):
        (published,) = await store.publishing.publish(topic, [batch(text)])
        times.append(published.store_timestamp_us)
    assert times[0] < times[1]
    assert await store.lookups.offset_by_time(topic, 0, 0) == (0, times[0])
    assert await store.lookups.offset_by_time(topic, 0, times[0]) == (0, times[0])
    assert await store.lookups.offset_by_time(topic, 0, times[0] + 1) == (2, times[1])
    assert await store.lookups.offset_by_time(topic, 0, times[1]) == (2, times[1])
    assert await store.lookups.offset_by_time(topic, 0, times[1] + 1) == (3, None)
    assert await store.lookups.offset_by_time(topic, 1, 0) == (0, None)
    with pytest.raises(UnknownQueue):
        await store.lookups.offset_by_time(topic, 2, 0)


async def test_a_message_is_found_by_its_id(store: MessageStore, topic: Topic) -> None:
    await _publish_five(store, topic)
    for offset, body in enumerate(b"abcde"):
        found = await store.lookups.message(format_message_id(topic.topic_id, 0, offset).lower())
        assert found[0] == topic
        assert found[1].body(found[2]) == bytes([body])
    for unknown in (
        format_message_id(topic.topic_id, 0, 5),
        format_message_id(topic.topic_id, 7, 0),
        format_message_id(99, 0, 0),
        format_message_id(0, 0, 0),  # the broker's own topic
        "",
        "x" * 32,
        "0" * 31,
    ):
        with pytest.raises(UnknownMessage):
            await store.lookups.message(unknown)


async def test_splits_cover_the_ranges(store: MessageStore, topic: Topic) -> None:
    await _publish_five(store, topic)
    size = store.reading.queue_state(topic, 0).bytes
    plan = await store.lookups.splits(
        topic, {1: (0, 0), 0: (0, 5)}, max_bytes=None, min_splits=1, max_splits=100
    )
    assert plan == [Split(0, 0, 5, size)]
    plan = await store.lookups.splits(topic, {0: (1, 5)}, max_bytes=1, min_splits=1, max_splits=100)
    assert [(split.start_offset, split.end_offset) for split in plan] == [(1, 2), (2, 3), (3, 5)]
    for bad, error in (
        ({0: (0, 6)}, OffsetBeyondEnd),
        ({0: (-1, 5)}, OffsetTrimmed),
        ({2: (0, 0)}, UnknownQueue),
    ):
        with pytest.raises(error):
            await store.lookups.splits(topic, bad, max_bytes=None, min_splits=1, max_splits=100)


# -- stored offsets ------------------------------------------------------------------------


async def test_offsets_are_merged_and_versioned(store: MessageStore, topic: Topic) -> None:
    await _publish_five(store, topic)
    with pytest.raises(UnknownGroup):
        store.offsets.stored_offsets("g", topic)
    assert await store.offsets.store_offsets("g", topic, {0: 3}) == StoredOffsets({0: 3}, 1)
    assert await store.offsets.store_offsets("g", topic, {1: 0}) == StoredOffsets({0: 3, 1: 0}, 2)
    assert await store.offsets.store_offsets("g", topic, {0: 1}) == StoredOffsets({0: 1, 1: 0}, 3)
    assert store.offsets.stored_offsets("g", topic) == StoredOffsets({0: 1, 1: 0}, 3)
    other, _ = await store.topics.create("other")
    assert store.offsets.stored_offsets("g", other) == StoredOffsets({}, 0)
    await store.offsets.store_offsets("a", other, {0: 0})
    assert store.table.groups() == ["a", "g"]
    assert store.offsets.group_topics("g") == {"t": StoredOffsets({0: 1, 1: 0}, 3)}


async def test_checks_of_many_offsets_run_in_slices(store: MessageStore) -> None:
    wide, _ = await store.topics.create("wide", queues=1000)
    offsets: Any = store.offsets.check_offsets
    with calls_a_turn(offsets.__self__, "queue_state") as calls:
        stored = await store.offsets.store_offsets("g", wide, dict.fromkeys(range(1000), 0))
    assert len(stored.offsets) == calls.total == 1000
    assert calls.most <= ITEMS_A_TURN


async def test_compare_and_swap(store: MessageStore, topic: Topic) -> None:
    await _publish_five(store, topic)
    with pytest.raises(OffsetsChanged) as caught:
        await store.offsets.store_offsets("g", topic, {0: 1}, if_version=1)
    assert caught.value.version == 0
    with pytest.raises(UnknownGroup):
        store.offsets.group_topics("g")
    assert (await store.offsets.store_offsets("g", topic, {0: 1}, if_version=0)).version == 1
    assert (await store.offsets.store_offsets("g", topic, {0: 2}, if_version=1)).version == 2
    for version in (0, 1, 3):
        with pytest.raises(OffsetsChanged):
            await store.offsets.store_offsets("g", topic, {0: 5}, if_version=version)
    assert store.offsets.stored_offsets("g", topic) == StoredOffsets({0: 2}, 2)


async def test_one_of_many_parallel_swaps_wins(store: MessageStore, topic: Topic) -> None:
    await _publish_five(store, topic)
    ended = await asyncio.gather(
        *(store.offsets.store_offsets("g", topic, {0: n % 6}, if_version=0) for n in range(20)),
        return_exceptions=True,
    )
    assert sum(isinstance(each, StoredOffsets) for each in ended) == 1
    assert sum(isinstance(each, OffsetsChanged) for each in ended) == 19
    await asyncio.gather(*(store.offsets.store_offsets("g", topic, {n % 2: 0}) for n in range(20)))
    assert store.offsets.stored_offsets("g", topic) == StoredOffsets({0: 0, 1: 0}, 21)
    groups: GroupOffsets = store.offsets
    assert not groups._locks


async def test_offsets_of_unknown_queues_are_refused(store: MessageStore, topic: Topic) -> None:
    await _publish_five(store, topic)
    with pytest.raises(UnknownQueue):
        await store.offsets.store_offsets("g", topic, {0: 5, 2: 0})
    with pytest.raises(InvalidName):
        await store.offsets.store_offsets("a/b", topic, {0: 0})
    assert store.table.groups() == []


# R10: an offset beyond the end was stored, and what came up to it was passed over


async def test_offsets_are_stored_up_to_the_end(store: MessageStore, topic: Topic) -> None:
    await _publish_five(store, topic)
    end = store.reading.queue_state(topic, 0).max_offset
    for offset in (end - 1, end):
        assert (await store.offsets.store_offsets("g", topic, {0: offset})).offsets == {0: offset}
    for offset in (end + 1, 2**63):
        with pytest.raises(OffsetBeyondEnd) as beyond:
            await store.offsets.store_offsets("g", topic, {0: offset})
        assert beyond.value.max_offset == end
    assert store.offsets.stored_offsets("g", topic).offsets == {0: end}


# -- the durable state ---------------------------------------------------------------------


async def test_a_change_that_is_not_stored_has_no_effect(
    store: MessageStore, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.offsets.store_offsets("g", topic, {0: 0})

    with monkeypatch.context() as patched:
        patched.setattr(StateStore, "_put", fail_with_full_map)
        for change in (
            store.topics.create("new"),
            store.topics.change("t", fields={"retention_ms": 1}),
            store.topics.delete("t"),
            store.offsets.store_offsets("g", topic, {1: 0}),
            store.offsets.store_offsets("new", topic, {1: 0}),
        ):
            with pytest.raises(StateUnavailable):
                await change
        assert store.table.all() == [topic]
        assert store.offsets.stored_offsets("g", topic) == StoredOffsets({0: 0}, 1)
        assert store.table.groups() == ["g"]
        await store.publishing.publish(topic, [batch("goes on")])
    assert (await store.topics.create("new"))[1]


class SlowState:
    """Commits of the state wait while `go_on` is not set."""

    def __init__(self) -> None:
        self.waiting = 0
        self.go_on = asyncio.Event()
        self.go_on.set()


@pytest.fixture
def slow_state(monkeypatch: pytest.MonkeyPatch) -> SlowState:
    state = SlowState()
    commit = StateChanges.commit

    async def held(self: StateChanges, changes: Any) -> None:
        state.waiting += 1
        await state.go_on.wait()
        state.waiting -= 1
        await commit(self, changes)

    monkeypatch.setattr(StateChanges, "commit", held)
    return state


async def test_a_cancelled_change_is_completed(tmp_path: Path, slow_state: SlowState) -> None:
    """Otherwise memory and disk would differ, and two topics could get the same id."""
    config = small_config(tmp_path)
    async with open_storage(config) as storage:
        store = storage.store
        slow_state.go_on.clear()
        left = asyncio.create_task(store.topics.create("left", queues=1))
        await until(lambda: slow_state.waiting)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        following = asyncio.create_task(store.topics.create("following", queues=1))
        slow_state.go_on.set()
        topic, _ = await following
        assert [each.name for each in store.table.all()] == ["following", "left"]
        assert len({each.topic_id for each in store.table.all()}) == 2
        slow_state.go_on.clear()
        storing = asyncio.create_task(store.offsets.store_offsets("g", topic, {0: 0}))
        await until(lambda: slow_state.waiting)
        storing.cancel()
        slow_state.go_on.set()
        await store.state.wait()
        assert storing.cancelled()
        assert store.offsets.stored_offsets("g", topic) == StoredOffsets({0: 0}, 1)
        topics = store.table.all()
    async with open_storage(config) as storage:
        assert storage.store.table.all() == topics
        assert storage.store.offsets.stored_offsets("g", topic) == StoredOffsets({0: 0}, 1)


async def test_the_failure_of_a_cancelled_change_is_logged(
    store: MessageStore,
    slow_state: SlowState,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(StateStore, "_put", fail_with_full_map)
    slow_state.go_on.clear()
    left = asyncio.create_task(store.topics.create("left"))
    await until(lambda: slow_state.waiting)
    left.cancel()
    slow_state.go_on.set()
    await store.state.wait()
    await until(lambda: "a change whose caller was cancelled failed" in caplog.text)


async def test_closing_waits_for_running_changes(tmp_path: Path, slow_state: SlowState) -> None:
    config = small_config(tmp_path)
    async with open_storage(config) as storage:
        slow_state.go_on.clear()
        creating = asyncio.create_task(storage.store.topics.create("t"))
        await until(lambda: slow_state.waiting)
        asyncio.get_running_loop().call_soon(slow_state.go_on.set)
    assert creating.done()
    async with open_storage(config) as storage:
        assert [topic.name for topic in storage.store.table.all()] == ["t"]


@pytest.mark.parametrize("meanwhile", ["group", "topic"])
async def test_offsets_can_be_deleted_twice_at_once(
    store: MessageStore, topic: Topic, slow_state: SlowState, meanwhile: str
) -> None:
    await store.offsets.store_offsets("g", topic, {0: 0})
    slow_state.go_on.clear()
    other = store.topics.delete("t") if meanwhile == "topic" else store.offsets.forget_offsets("g")
    first = asyncio.create_task(other)
    await until(lambda: slow_state.waiting)
    second = asyncio.create_task(store.offsets.forget_offsets("g"))
    for _ in range(5):
        await asyncio.sleep(0)  # it has started, and waits for the other one
    slow_state.go_on.set()
    await asyncio.gather(first, second)
    assert store.table.groups() == []


async def test_only_offsets_of_named_topics_are_deleted(store: MessageStore, topic: Topic) -> None:
    other, _ = await store.topics.create("other")
    for each in (topic, other):
        await store.offsets.store_offsets("g", each, {0: 0})
    await store.offsets.forget_offsets("g", ["t", "gone"])
    assert list(store.offsets.group_topics("g")) == ["other"]
    await store.offsets.forget_offsets("g", [])
    assert list(store.offsets.group_topics("g")) == ["other"]
    await store.offsets.forget_offsets("g", ["other"])
    assert store.table.groups() == []


@pytest.mark.parametrize("deleted_first", [False, True])
async def test_no_offsets_of_a_deleted_topic_are_kept(
    tmp_path: Path, slow_state: SlowState, deleted_first: bool
) -> None:
    config = small_config(tmp_path)
    async with open_storage(config) as storage:
        store = storage.store
        topic, _ = await store.topics.create("t")
        slow_state.go_on.clear()
        changes = [
            lambda: store.offsets.store_offsets("g", topic, {0: 0}),
            lambda: store.topics.delete("t"),
        ]
        tasks: list[asyncio.Task[Any]] = []
        for change in reversed(changes) if deleted_first else changes:
            tasks.append(asyncio.create_task(change()))
            await until(lambda: slow_state.waiting == len(tasks))
        slow_state.go_on.set()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in ended if isinstance(each, Exception)] == (
            [UnknownTopic] if deleted_first else []
        )
        assert store.table.groups() == []
    async with open_storage(config) as storage:
        assert storage.store.table.groups() == []


# -- all of it, over a restart -------------------------------------------------------------


async def _everything(store: MessageStore) -> object:
    """Return all answers of the store about its content."""
    answers: dict[str, object] = {"topics": store.table.all(), "groups": store.table.groups()}
    for topic in store.table.all():
        states = store.reading.queue_states(topic)
        answers[f"{topic.name} states"] = states
        answers[f"{topic.name} messages"] = [
            await read_queue(store, topic, state.queue) for state in states
        ]
        ranges = {state.queue: (state.min_offset, state.max_offset) for state in states}
        answers[f"{topic.name} splits"] = await store.lookups.splits(
            topic, ranges, max_bytes=5000, min_splits=7, max_splits=100
        )
        answers[f"{topic.name} search"] = [
            (found.header, row) for found, row in await store.lookups.search_key(topic, "k1", 1000)
        ]
        times = [state.newest_timestamp_us or 0 for state in states]
        answers[f"{topic.name} times"] = [
            await store.lookups.offset_by_time(topic, state.queue, time + delta)
            for state in states
            for time in times
            for delta in (-1, 0, 1)
        ]
    for group in store.table.groups():
        answers[f"group {group}"] = store.offsets.group_topics(group)
    return answers


async def _fill(config: Config) -> object:
    async with open_storage(config) as storage:
        store = storage.store
        await store.topics.create("gone")
        for name in ("a", "b"):
            topic, _ = await store.topics.create(name, queues=3)
            for number in range(30):
                await store.publishing.publish(
                    topic,
                    [batch([f"{name}{number}", "x"], number % 3, key=f"k{number % 4}")],
                    durability="written",
                )
            await fill_segment(storage, topic, 1)
            await settled(storage)
            await store.offsets.store_offsets("g", topic, {0: 7, 2: 5})
            await store.offsets.store_offsets(f"only-{name}", topic, {0: 1})
        await store.topics.delete("gone")
        await store.topics.change("a", queues=5, fields={"retention_bytes": MIB})
        await storage.retention.run_once()
        await settled(storage)
        return await _everything(store)


@pytest.mark.parametrize(
    "forgotten", [(), ("consumequeue",), ("state",), ("consumequeue", "state")], ids=str
)
async def test_a_restart_changes_no_answer(tmp_path: Path, forgotten: tuple[str, ...]) -> None:
    config = small_config(tmp_path)
    before = await _fill(config)
    for name in forgotten:
        shutil.rmtree(tmp_path / name)
        (tmp_path / name).mkdir()
    async with open_storage(config) as storage:
        assert not storage.degraded
        assert await _everything(storage.store) == before
        newest, _ = await storage.store.topics.create("newest")
        assert newest.topic_id == 4  # 1 belonged to a deleted topic


async def test_unreadable_queues_do_not_affect_others(
    storage: Storage, store: MessageStore
) -> None:
    topic, _ = await store.topics.create("many", queues=5)
    for queue in range(4):
        await store.publishing.publish(topic, [batch(f"in {queue}", queue)])
    queues = [storage.opened.reput.queues[topic.topic_id, queue] for queue in range(4)]
    assert queues[1].newest is not None
    at = queues[1].newest.physical_offset
    segment = storage.log.segment_at(at)
    assert segment is not None
    flip_bit(segment.path, at - segment.start_offset + 140)
    forget_newest_blocks(storage)
    queues[2].trim_queue(1, 0)
    found = await store.reading.read_many(topic, {0: 0, 1: 0, 2: 0, 3: 2, 4: 0}, **ALL)
    whole, corrupt, trimmed, beyond, empty = (found[queue] for queue in range(5))
    assert isinstance(whole, Fetched)
    assert bodies(whole) == [b"in 0"]
    assert isinstance(corrupt, QueueCorrupt)
    assert corrupt.next_offset == 1
    assert isinstance(trimmed, OffsetTrimmed)
    assert (trimmed.min_offset, trimmed.max_offset) == (1, 1)
    assert isinstance(beyond, OffsetBeyondEnd)
    assert (beyond.min_offset, beyond.max_offset) == (0, 1)
    assert empty == Fetched((), 0, 0, 0, 0)
    with pytest.raises(UnknownQueue):
        await store.reading.read_many(topic, {0: 0, 5: 0}, **ALL)
