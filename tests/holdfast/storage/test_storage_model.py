"""The storage against a model of dictionaries and lists, under random operations.

Both must agree after each step. Restarts change nothing visible, also if the index or the state was
deleted. At the end `check` passes.
"""

import asyncio
import itertools
import shutil
import tempfile
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.check import check_data_dir
from holdfast.consumequeue.errors import OffsetBeyondEnd, OffsetTrimmed
from holdfast.consumequeue.message_store import MessageStore
from holdfast.storage.storage import Storage, StorageEvents
from tests.support.storage.stored import batch, bodies, read_queue, settled, small_config

_T = TypeVar("_T")
_MEMORY = Path("/dev/shm")  # faster than a disk, where it exists
_QUEUES = 2
_BODY_BYTES = 60_000
"""Large enough that a few messages fill a segment."""


@dataclass
class ModelQueue:
    """Every message ever published as (body, key, store timestamp), and the first offset kept."""

    messages: list[tuple[bytes, str, int]] = field(default_factory=list)
    begin: int = 0

    @property
    def end(self) -> int:
        return len(self.messages)

    @property
    def kept(self) -> list[tuple[int, bytes]]:
        return [(n, self.messages[n][0]) for n in range(self.begin, self.end)]


@dataclass
class ModelTopic:
    topic_id: int
    queues: list[ModelQueue] = field(default_factory=lambda: [ModelQueue() for _ in range(_QUEUES)])
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)


_names = st.sampled_from(("a", "b", "c"))
_queues = st.integers(0, _QUEUES - 1)
_keys = st.sampled_from(("k", "l"))
_places = st.floats(0, 1)


class StorageMachine(RuleBasedStateMachine):
    """One storage that is opened repeatedly."""

    def __init__(self) -> None:
        super().__init__()
        base = _MEMORY if _MEMORY.is_dir() else None
        self.directory = Path(tempfile.mkdtemp(prefix="holdfast-", dir=base))
        self.runner = asyncio.Runner()
        self.topics: dict[str, ModelTopic] = {}
        self.seen_ids: set[int] = set()
        self.numbers = itertools.count()
        self.open()

    # -- running ---------------------------------------------------------------------------

    def run(self, awaitable: Awaitable[_T]) -> _T:
        async def bounded() -> _T:
            async with asyncio.timeout(30):
                return await awaitable

        return self.runner.run(bounded())

    @property
    def store(self) -> MessageStore:
        return self.storage.store

    def open(self) -> None:
        self.failures: list[Exception] = []
        events = StorageEvents(on_failure=self.failures.append)
        self.storage = Storage(small_config(self.directory), events)
        self.storage.lock()
        self.run(self.storage.open())
        assert not self.storage.degraded

    def teardown(self) -> None:
        try:
            self.run(self.storage.close())
            assert not self.failures
            report = check_data_dir(self.directory)
            assert report.is_sound, report.findings
        finally:
            self.runner.close()
            shutil.rmtree(self.directory)

    # -- topics ----------------------------------------------------------------------------

    @rule(name=_names)
    def create_topic(self, name: str) -> None:
        topic, is_new = self.run(self.store.topics.create(name, queues=_QUEUES))
        assert is_new == (name not in self.topics)
        if is_new:
            assert topic.topic_id not in self.seen_ids
            self.seen_ids.add(topic.topic_id)
            self.topics[name] = ModelTopic(topic.topic_id)

    @precondition(lambda self: self.topics)
    @rule(name=_names, durability=st.sampled_from(("fsync", "written")))
    def change_durability(self, name: str, durability: str) -> None:
        if name in self.topics:
            self.run(self.store.topics.change(name, fields={"durability": durability}))

    @precondition(lambda self: self.topics)
    @rule(name=_names)
    def delete_topic(self, name: str) -> None:
        if name in self.topics:
            self.run(self.store.topics.delete(name))
            del self.topics[name]

    # -- messages --------------------------------------------------------------------------

    @precondition(lambda self: self.topics)
    @rule(
        name=_names,
        shapes=st.lists(st.tuples(_queues, st.integers(1, 4), _keys), min_size=1, max_size=5),
        large=st.booleans(),
        durability=st.sampled_from((None, "fsync", "written")),
    )
    def publish(
        self, name: str, shapes: list[tuple[int, int, str]], large: bool, durability: str | None
    ) -> None:
        if name not in self.topics:
            return
        batches, expected = [], []
        for queue, count, key in shapes:
            texts = [f"{name}{next(self.numbers)}".encode() for _ in range(count)]
            if large:
                texts = [text.ljust(_BODY_BYTES, b".") for text in texts]
            batches.append(batch(texts, queue, key=key))
            expected.append((self.topics[name].queues[queue], texts, key))
        topic = self.store.table.get(name)
        results = self.run(self.store.publishing.publish(topic, batches, durability=durability))
        for (queue_model, texts, key), result in zip(expected, results, strict=True):
            assert result.base_offset == queue_model.end
            assert result.message_count == len(texts)
            queue_model.messages += [(text, key, result.store_timestamp_us) for text in texts]

    @precondition(lambda self: self.topics)
    @rule(
        name=_names,
        queue=_queues,
        place=st.floats(-0.2, 1.2),
        max_messages=st.integers(1, 10),
        max_bytes=st.integers(1, 3 * _BODY_BYTES),
    )
    def pull(self, name: str, queue: int, place: float, max_messages: int, max_bytes: int) -> None:
        if name not in self.topics:
            return
        model = self.topics[name].queues[queue]
        offset = round(place * model.end)
        read = self.store.reading.read(
            self.store.table.get(name),
            queue,
            offset,
            max_messages=max_messages,
            max_bytes=max_bytes,
        )
        self.run(settled(self.storage))
        if offset < model.begin:
            with pytest.raises(OffsetTrimmed):
                self.run(read)
        elif offset > model.end:
            with pytest.raises(OffsetBeyondEnd):
                self.run(read)
        else:
            fetched = self.run(read)
            found = bodies(fetched)
            assert found == [text for text, _, _ in model.messages[offset : fetched.next_offset]]
            assert bool(found) == (offset < model.end)
            assert len(found) <= max_messages
            assert len(found) < 2 or sum(map(len, found)) <= max_bytes

    # -- looking up ------------------------------------------------------------------------

    @precondition(lambda self: self.topics)
    @rule(name=_names, key=_keys, limit=st.integers(1, 20))
    def search(self, name: str, key: str, limit: int) -> None:
        if name not in self.topics:
            return
        self.run(settled(self.storage))
        found = self.run(self.store.lookups.search_key(self.store.table.get(name), key, 10_000))
        places = [(each.header.queue_id, each.header.base_offset + row) for each, row in found]
        assert sorted(places) == [
            (queue, offset)
            for queue, model in enumerate(self.topics[name].queues)
            for offset in range(model.begin, model.end)
            if model.messages[offset][1] == key
        ]
        first = self.run(self.store.lookups.search_key(self.store.table.get(name), key, limit))
        assert [(each.header, row) for each, row in first] == [
            (each.header, row) for each, row in found[:limit]
        ]

    @precondition(lambda self: self.topics)
    @rule(name=_names, queue=_queues, place=_places, delta=st.sampled_from((-1, 0, 1)))
    def look_up_time(self, name: str, queue: int, place: float, delta: int) -> None:
        if name not in self.topics or not self.topics[name].queues[queue].messages:
            return
        self.run(settled(self.storage))
        model = self.topics[name].queues[queue]
        times = [timestamp for _, _, timestamp in model.messages]
        wanted = times[round(place * (len(times) - 1))] + delta
        expected = next(
            ((n, times[n]) for n in range(model.begin, model.end) if times[n] >= wanted),
            (model.end, None),
        )
        found = self.run(
            self.store.lookups.offset_by_time(self.store.table.get(name), queue, wanted)
        )
        assert found == expected

    # -- stored offsets --------------------------------------------------------------------

    @precondition(lambda self: self.topics)
    @rule(
        name=_names,
        group=st.sampled_from(("g", "h")),
        places=st.dictionaries(_queues, _places, min_size=1),
    )
    def store_offsets(self, name: str, group: str, places: dict[int, float]) -> None:
        if name not in self.topics:
            return
        self.run(settled(self.storage))
        model = self.topics[name]
        offsets = {queue: round(place * model.queues[queue].end) for queue, place in places.items()}
        self.run(self.store.offsets.store_offsets(group, self.store.table.get(name), offsets))
        model.offsets.setdefault(group, {}).update(offsets)

    # -- retention -------------------------------------------------------------------------

    @precondition(lambda self: self.topics)
    @rule(name=_names, size=st.integers(0, 10 * _BODY_BYTES))
    def trim(self, name: str, size: int) -> None:
        if name not in self.topics:
            return
        self.run(settled(self.storage))
        model = self.topics[name]
        self.run(self.store.topics.change(name, fields={"retention_bytes": max(size, 1)}))
        self.run(self.storage.retention.run_once())
        self.run(self.store.topics.change(name, fields={"retention_bytes": None}))
        states = self.store.reading.queue_states(self.store.table.get(name))
        assert sum(state.bytes for state in states) <= max(size, 1)
        for state, queue in zip(states, model.queues, strict=True):
            assert queue.begin <= state.min_offset <= queue.end
            queue.begin = state.min_offset

    # -- restarts --------------------------------------------------------------------------

    @rule(forgotten=st.sets(st.sampled_from(("consumequeue", "state"))))
    def restart(self, forgotten: set[str]) -> None:
        self.run(self.storage.close())
        assert not self.failures
        for name in forgotten:
            shutil.rmtree(self.directory / name)
        self.open()

    # -- what holds always -----------------------------------------------------------------

    @invariant()
    def everything_is_as_the_model_has_it(self) -> None:
        self.run(settled(self.storage))
        store = self.store
        assert {t.name: t.topic_id for t in store.table.all()} == {
            name: model.topic_id for name, model in self.topics.items()
        }
        groups: dict[str, dict[str, dict[int, int]]] = {}
        for name, model in self.topics.items():
            topic = store.table.get(name)
            for number, queue in enumerate(model.queues):
                state = store.reading.queue_state(topic, number)
                assert (state.min_offset, state.max_offset) == (queue.begin, queue.end)
                assert self.run(read_queue(store, topic, number)) == queue.kept
            for group, offsets in model.offsets.items():
                groups.setdefault(group, {})[name] = offsets
        assert {
            group: {
                name: stored.offsets for name, stored in store.offsets.group_topics(group).items()
            }
            for group in store.table.groups()
        } == groups


TestStorageModel = StorageMachine.TestCase
TestStorageModel.settings = settings(
    max_examples=10,  # `make test-inputs` tries more
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
