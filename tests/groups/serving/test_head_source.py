"""Heads of queues from the store: in memory, on disk, trimmed, and cut into pieces."""

import asyncio
from typing import Any, cast

import numpy as np
import pytest

from holdfast.commitlog.format.batch import Batch
from holdfast.consumequeue.errors import OffsetTrimmed
from holdfast.consumequeue.lost_ranges import LostRange
from holdfast.consumequeue.reading.fetched import BatchSlice, Fetched, message_sizes
from holdfast.consumequeue.reading.queue_reading import QueueReader
from holdfast.consumequeue.topics import QueueKey, Topic, TopicConfig
from holdfast.groups.core.group import Group
from holdfast.groups.core.receipts import ReceiptCodec
from holdfast.groups.core.requests import SelectedMessage
from holdfast.groups.serving.clock import GroupClock
from holdfast.groups.serving.head_source import (
    KEYS_A_TURN,
    MATCHES_A_TURN,
    RecentBatches,
    StoreHeads,
)
from holdfast.groups.serving.parsed_filters import filter_of
from holdfast.groups.serving.receive_flow import ReceiveFlow
from tests.support.storage.stored import batch

KEY = (1, 0)
TOPIC = Topic("t", 1, 1, TopicConfig("fsync", None, None, 1 << 20), 0)


class _Store:
    """One queue of batches. If `is_cold`, no batch is in memory."""

    def __init__(self, *batches: Batch, is_cold: bool = False, begin: int = 0) -> None:
        self.batches: list[Batch] = []
        self.end = 0
        for each in batches:
            each.header.base_offset = self.end
            self.end += len(each)
            self.batches.append(each)
        self.is_cold = is_cold
        self.begin = begin
        self.reads: list[int] = []

    def topic_by_id(self, topic_id: int) -> Topic | None:
        return TOPIC if topic_id == 1 else None

    def newest_alone(self, key: QueueKey, offset: int) -> Batch | None:
        newest = self.batches[-1]
        is_newest = key == KEY and newest.header.base_offset == offset and len(newest) == 1
        return newest if is_newest and not self.is_cold else None

    def read_hot(self, topic: Topic, queue: int, offset: int, **how: Any) -> Fetched | None:
        return None if self.is_cold else self._read(offset, **how)

    async def read(self, topic: Topic, queue: int, offset: int, **how: Any) -> Fetched:
        await asyncio.sleep(0)
        return self._read(offset, **how)

    def _read(
        self, offset: int, *, max_messages: int, max_bytes: int, filter: Any, skip_corrupt: bool
    ) -> Fetched:
        assert skip_corrupt
        if offset < self.begin:
            raise OffsetTrimmed("t", 0, offset, self.begin, self.end)
        self.reads.append(offset)
        pieces, at, count = [], offset, 0
        for each in self.batches:
            base = each.header.base_offset
            if base + len(each) <= offset or count >= max_messages:
                continue
            first = max(offset - base, 0)
            rows = range(first, len(each))
            if filter is not None:
                rows = filter.matching_rows(each, first, len(each))
            taken = rows[: max_messages - count]
            count += len(taken)
            at = base + (taken[-1] + 1 if len(taken) < len(rows) else len(each))
            if taken:
                pieces.append(BatchSlice(each, taken))
        return Fetched(pieces, at, self.begin, self.end, count)


class _Source:
    def __init__(self, store: _Store, *, has_keys: bool = False, has_costs: bool = False) -> None:
        self.note_log_start: list[tuple[QueueKey, int]] = []
        self.heads = StoreHeads(
            store.topic_by_id,
            cast(QueueReader, store),
            RecentBatches(1 << 20),
            has_keys=lambda: has_keys,
            has_costs=lambda: has_costs,
            wall_ms=lambda: 0,
            on_trimmed=lambda key, begin: self.note_log_start.append((key, begin)),
        )

    def offsets(self, start: int, end: int, most: int = 64, wanted: str | None = None) -> object:
        found = self.heads.read(KEY, start, end, most, filter_of(wanted))
        return None if found is None else ([each.offset for each in found.heads], found.scanned)


async def test_messages_in_memory_are_returned_at_once_within_the_bounds() -> None:
    source = _Source(_Store(batch(["x"] * 5), batch(["y"] * 5)))
    assert source.offsets(0, 10) == ([*range(10)], 10)
    assert source.offsets(3, 10, most=4) == ([3, 4, 5, 6], 7)
    assert source.offsets(3, 6) == ([3, 4, 5], 6)
    assert source.offsets(4, 5) == ([4], 5)


async def test_the_newest_message_alone_needs_no_read() -> None:
    store = _Store(batch(["x"] * 2), batch(["y"], tag="a"))
    source = _Source(store)
    assert source.offsets(2, 3) == ([2], 3)
    assert source.offsets(2, 3, wanted="a") == ([2], 3)
    assert source.offsets(2, 3, wanted="b") == ([], 3)
    assert source.heads.batch(KEY, 2) is store.batches[1]
    assert store.reads == []


async def test_concurrent_fetches_share_one_read() -> None:
    store = _Store(batch(["x"] * 100), batch(["y"] * 100), is_cold=True)
    source = _Source(store)
    assert source.offsets(0, 200) is None
    await asyncio.gather(*(source.heads.fetch(KEY, 0) for _ in range(3)))
    assert store.reads == [0]
    assert source.offsets(0, 200) == ([*range(64)], 64)
    assert source.offsets(64, 200) == ([*range(64, 128)], 128)
    assert source.offsets(130, 200, most=2) == ([130, 131], 132)
    assert source.offsets(132, 200, most=500) == ([*range(132, 200)], 200)
    assert store.reads == [0], "a batch that was read is not read again"
    assert source.heads.batch(KEY, 150) is store.batches[1]
    assert source.offsets(150, 151) == ([150], 151), "one that came back"


async def test_a_filter_skips_messages_that_do_not_match() -> None:
    mixed = [batch(["x"] * 3, tag=tag) for tag in ("a", "b", "a", "c")]
    source = _Source(_Store(*mixed))
    assert source.offsets(0, 12, wanted="b") == ([3, 4, 5], 12)
    assert source.offsets(6, 12, wanted="b") == ([], 12)
    assert source.offsets(4, 5, wanted="a") == ([], 5)
    wanted = filter_of("c")
    assert [source.heads.matches(KEY, at, wanted) for at in (8, 9)] == [False, True]
    cold = _Source(_Store(*mixed, is_cold=True))
    assert cold.heads.matches(KEY, 9, wanted) is None
    await cold.heads.fetch(KEY, 9)
    assert cold.heads.matches(KEY, 9, wanted) is True


async def test_a_limited_number_of_messages_is_compared_with_filters_per_turn() -> None:
    # the filters compared all of 100,000 returned messages in one loop iteration, for 0.2 s
    store = _Store(*[batch(["x"] * 500, tag="a") for _ in range(5)])
    source = _Source(store)
    wanted, count = filter_of("b"), 5 * 500
    for start in range(0, count, 500):
        assert source.heads.batch(KEY, start) is not None
    reads = list(store.reads)
    at = turns = 0
    while at < count:
        turns += 1
        began = at
        while at < count and source.heads.matches(KEY, at, wanted) is False:
            at += 1
        assert at - began <= MATCHES_A_TURN
        assert at == count or source.heads.read(KEY, at, at + 1, 1, wanted) is None
        if at < count:
            batch_there = await source.heads.fetch(KEY, at)
            assert batch_there is not None
            assert batch_there.header.base_offset <= at
    assert turns == -(-count // MATCHES_A_TURN)
    assert store.reads == reads, "what is in memory is not read for that"


async def test_a_fetch_of_a_removed_offset_reports_the_first_offset() -> None:
    source = _Source(_Store(batch(["x"] * 5), begin=3))
    assert source.offsets(0, 5) is None
    await source.heads.fetch(KEY, 0)
    assert source.note_log_start == [(KEY, 3)]
    assert source.offsets(3, 5) == ([3, 4], 5)


async def test_a_deleted_topic_has_no_messages() -> None:
    source = _Source(_Store(batch(["x"])))
    assert source.heads.read((9, 0), 0, 1, 64, None) is None
    await source.heads.fetch((9, 0), 0)


async def test_errors_of_a_read_reach_every_waiting_caller() -> None:
    store = _Store(batch(["x"]), is_cold=True)
    source = _Source(store)

    async def broken(*args: Any, **how: Any) -> Fetched:
        raise OSError("for a test")

    store.read = broken  # type: ignore[method-assign]
    assert source.offsets(0, 1) is None
    for _ in range(2):
        with pytest.raises(OSError, match="for a test"):
            await source.heads.fetch(KEY, 0)


@pytest.mark.parametrize("most", [1, 64])
async def test_heads_tell_sizes_keys_and_ends(most: int) -> None:
    made = [
        batch(["abc", "d"], key="k", tag="t", properties={"n": "vé"}),
        batch(["e"], key="l"),
        batch(["f", "g"], key="k"),
        batch(["h"], expires_timestamps_us=[1_500]),
        batch(["i"], expires_timestamps_us=[0]),
    ]
    source = _Source(_Store(*made), has_keys=True)
    heads: list[Any] = []
    while len(heads) < 7:
        found = source.heads.read(KEY, len(heads), 7, most, None)
        assert found is not None
        heads += found.heads
    assert [each.size_bytes for each in heads] == np.concatenate(
        [message_sizes(each) for each in made]
    ).tolist()
    k, l = heads[0].key, heads[2].key  # noqa: E741
    assert [each.key for each in heads] == [k, k, l, k, k, 0, 0]
    assert k != l
    assert k
    assert [each.expires_at_ms for each in heads] == [0, 0, 0, 0, 0, 2, 0]
    plain = _Source(_Store(*made)).heads.read(KEY, 0, 7, 64, None)
    assert plain is not None
    assert {each.key for each in plain.heads} == {0}


async def test_a_message_that_was_read_is_delivered_though_others_reads_push_it_out() -> None:
    store = _Store(batch(["a", "b", "c"]), is_cold=True)
    recent = RecentBatches(1)  # keeps only the newest batch
    heads = StoreHeads(
        store.topic_by_id,
        cast(QueueReader, store),
        recent,
        has_keys=lambda: False,
        has_costs=lambda: False,
        wall_ms=lambda: 0,
        on_trimmed=lambda key, begin: None,
    )
    read, others = store.read, batch(["of another queue"])

    async def read_beside_others(*args: Any, **how: Any) -> Fetched:
        fetched = await read(*args, **how)
        asyncio.get_running_loop().call_soon(recent.put, (1, 1), others)
        return fetched

    store.read = read_beside_others  # type: ignore[method-assign]
    flow = ReceiveFlow(cast(Group, None), heads, cast(GroupClock, None), ReceiptCodec(bytes(32)))
    found, unreadable = await flow.deliveries([SelectedMessage(KEY, 1, 1, False, None)])
    assert [each.batch.body(each.row) for each in found] == [b"b"]
    assert unreadable == []


class _FailingStore(_Store):
    """A store whose first `failures` reads of the disk return no messages."""

    def __init__(self, *batches: Batch, failures: int, reason: str) -> None:
        super().__init__(*batches, is_cold=True)
        self.failures = failures
        self._reason = reason

    async def read(self, topic: Topic, queue: int, offset: int, **how: Any) -> Fetched:
        found = await super().read(topic, queue, offset, **how)
        if self.failures == 0:
            return found
        self.failures -= 1
        lost = LostRange(offset, self.end, self._reason)
        return Fetched([], self.end, 0, self.end, 0, (lost,))


@pytest.mark.parametrize(
    ("failures", "reason", "reads", "is_lost"),
    [
        (1, "unreadable", 2, False),
        (3, "unreadable", 4, False),
        (4, "unreadable", 4, True),  # a permanent read error does not block the group
        (1, "payload-crc", 1, True),
    ],
)
async def test_a_message_whose_read_fails_once_is_not_skipped(
    monkeypatch: pytest.MonkeyPatch, failures: int, reason: str, reads: int, is_lost: bool
) -> None:
    """A skipped message counts as settled: after one failed read an acknowledged message would be
    lost."""
    monkeypatch.setattr("holdfast.groups.serving.head_source.RETRY_PAUSES_S", (0.0, 0.0, 0.0))
    store = _FailingStore(batch(["a", "b"]), failures=failures, reason=reason)
    heads = _Source(store).heads
    assert heads.read(KEY, 0, 2, 10, None) is None
    await heads.fetch(KEY, 0)
    assert len(store.reads) == reads
    found = heads.read(KEY, 0, 2, 10, None)
    assert found is not None
    assert [head.offset for head in found.heads] == ([] if is_lost else [0, 1])
    assert bool(found.lost) == is_lost


async def test_keys_are_read_from_memory_up_to_the_end_of_a_batch() -> None:  # Q24
    made = [batch(["a", "b"], key="k"), batch(["c"]), batch(["d"], key="é")]
    heads = _Source(_Store(*made)).heads
    assert heads.keys(KEY, 0, 4) == [b"k", b"k"]
    assert heads.keys(KEY, 1, 4) == [b"k"]
    assert heads.keys(KEY, 0, 1) == [b"k"]
    assert heads.keys(KEY, 2, 4) == [b""]
    assert heads.keys(KEY, 3, 4) == ["é".encode()]


async def test_keys_on_the_disk_need_a_fetch() -> None:  # Q24
    store = _Store(batch(["a", "b"], key="k"), batch(["c"], key="l"), is_cold=True)
    heads = _Source(store).heads
    assert heads.keys(KEY, 1, 3) is None
    await heads.fetch(KEY, 1)
    assert (heads.keys(KEY, 1, 3), heads.keys(KEY, 2, 3)) == ([b"k"], [b"l"])
    assert store.reads == [1]


async def test_keys_that_cannot_be_read_count_as_none() -> None:  # Q24
    store = _FailingStore(batch(["a", "b"], key="k"), failures=1, reason="payload-crc")
    heads = _Source(store).heads
    assert heads.keys(KEY, 0, 2) is None
    await heads.fetch(KEY, 0)
    assert (heads.keys(KEY, 0, 2), heads.keys(KEY, 1, 2)) == ((b"",), (b"",))


async def test_one_loop_iteration_reads_a_limited_number_of_keys() -> None:  # Q24
    count = KEYS_A_TURN + 10
    store = _Store(batch(["x"] * count, key="k"))
    heads = _Source(store).heads
    assert heads.keys(KEY, 0, count) == [b"k"] * KEYS_A_TURN
    assert heads.keys(KEY, KEYS_A_TURN, count) is None
    await heads.fetch(KEY, KEYS_A_TURN)
    assert heads.keys(KEY, KEYS_A_TURN, count) == [b"k"] * 10
    assert store.reads == [0], "the keys are in memory, and only wait for their turn"


# -- the cache of batches ------------------------------------------------------------------


def batch_at(base: int, count: int = 2) -> Batch:
    made = batch([b"x" * 100] * count)
    made.header.base_offset = base
    return made


def test_a_batch_is_found_by_any_of_its_offsets() -> None:
    recent = RecentBatches(1 << 20)
    for base in (10, 4, 20):
        recent.put((1, 0), batch_at(base))
    found = {at: recent.find((1, 0), at) for at in (3, 4, 5, 6, 10, 11, 12, 21, 22)}
    bases = {at: None if each is None else each.header.base_offset for at, each in found.items()}
    assert bases == {3: None, 4: 4, 5: 4, 6: None, 10: 10, 11: 10, 12: None, 21: 20, 22: None}
    assert recent.find((1, 1), 4) is None


def test_the_oldest_go_when_there_is_no_room_and_the_newest_always_stays() -> None:
    size = batch_at(0).total_size
    recent = RecentBatches(2 * size)
    for base in (0, 2, 4):
        recent.put((1, 0), batch_at(base))
    assert [recent.find((1, 0), at) is not None for at in (0, 2, 4)] == [False, True, True]
    recent.put((1, 0), batch_at(2))
    recent.put((1, 0), batch_at(6))
    assert [recent.find((1, 0), at) is not None for at in (2, 4, 6)] == [True, False, True]
    recent.put((2, 0), batch_at(0, 1000))
    assert len(recent) == 1
    assert recent.find((2, 0), 999) is not None


def test_a_topic_is_forgotten_with_its_bytes() -> None:
    recent = RecentBatches(1 << 20)
    for topic_id in (1, 2):
        for base in (0, 2):
            recent.put((topic_id, 0), batch_at(base))
    recent.forget_topic(1)
    assert recent.find((1, 0), 0) is None
    assert recent.find((2, 0), 2) is not None
    assert recent.size_bytes == 2 * batch_at(0).total_size
    recent.forget_topic(2)
    assert recent.size_bytes == 0


async def test_given_costs_are_read_only_for_groups_that_share_by_them() -> None:
    made = (
        batch(["a", "b"], properties={"x": "1", "holdfast-cost": "2.5"}),
        batch(["c"], properties={"holdfast-cost": "0"}),
        batch(["d", "e"]),
    )
    for has_costs, expected in ((True, [2_500, 2_500, 1_000, 1_000, 1_000]), (False, [0] * 5)):
        source = _Source(_Store(*made), has_costs=has_costs)
        for most in (1, 64):
            costs: list[int] = []
            while len(costs) < 5:
                found = source.heads.read(KEY, len(costs), 5, most, None)
                assert found is not None
                costs += [each.cost for each in found.heads]
            assert costs == expected
