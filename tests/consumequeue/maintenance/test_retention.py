"""Decisions of retention: first offsets of queues, and unneeded segments. It uses only LMDB's
files."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.commitlog.format.gap_block import GAP_TOPIC_ID
from holdfast.consumequeue.index.consume_queue import ConsumeQueue, CqUnit
from holdfast.consumequeue.index.index import Index, ReputPosition
from holdfast.consumequeue.index.queue_lookup import first_unit_reaching
from holdfast.consumequeue.maintenance import retention
from holdfast.consumequeue.maintenance.retention import (
    Begins,
    apply_begins,
    find_expired,
    is_unneeded,
    queues_in,
)
from holdfast.consumequeue.topics import Topic, TopicConfig
from tests.support.storage.stored import (
    batch,
    fill_segment,
    open_storage,
    settled,
    small_config,
    until,
)

_topics = itertools.count(1)
NOW_US = 10**9


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    index = Index(tmp_path_factory.mktemp("index"), 1 << 30)
    yield index
    index.close()


def topic(topic_id: int, *, ms: int | None = None, size: int | None = None) -> Topic:
    return Topic("t", topic_id, 4, TopicConfig("fsync", ms, size, 1024), 0)


def queue(*batches: tuple[int, int], count: int = 10) -> ConsumeQueue:
    """Return a queue of batches of ten messages, each (store timestamp, bytes)."""
    cq = ConsumeQueue(None, 0, 0)
    base = at = 0
    for timestamp_us, size in batches:
        cq.show(CqUnit(base, 4096 + at, size, count, timestamp_us, 0, at))
        base, at = base + count, at + size
    return cq


def begins(index: Index, a_topic: Topic, *queues: ConsumeQueue) -> dict[int, int]:
    found = find_expired(index, a_topic, dict(enumerate(queues)), NOW_US)
    assert all(key[0] == a_topic.topic_id for key in found)
    return {key[1]: begin for key, begin in found.items()}


# -- where queues begin --------------------------------------------------------------------


def test_without_limits_nothing_is_deleted(index: Index) -> None:
    assert begins(index, topic(1), queue((1, 100))) == {}


def test_the_age_is_counted_from_now(index: Index) -> None:
    cq = queue((NOW_US - 2001, 1), (NOW_US - 2000, 1), (NOW_US - 1999, 1))
    assert begins(index, topic(1, ms=3), cq) == {}
    assert begins(index, topic(1, ms=2), cq) == {0: 10}
    assert begins(index, topic(1, ms=1), cq) == {0: 30}
    cq.trim_queue(10, 1)
    assert begins(index, topic(1, ms=2), cq) == {}


def test_the_size_limit_deletes_the_oldest_of_all_queues(index: Index) -> None:
    one = queue((1, 100), (3, 100), (5, 100))
    two = queue((2, 100), (4, 100), (6, 100))
    assert begins(index, topic(1, size=600), one, two) == {}
    assert begins(index, topic(1, size=599), one, two) == {0: 10}
    assert begins(index, topic(1, size=300), one, two) == {0: 20, 1: 10}
    assert begins(index, topic(1, size=99), one, two) == {0: 30, 1: 30}
    assert begins(index, topic(1, size=0), one, two) == {0: 30, 1: 30}


def test_the_stricter_of_age_and_size_counts(index: Index) -> None:
    cq = queue((NOW_US - 5000, 100), (NOW_US - 3000, 100), (NOW_US - 1000, 100))
    assert begins(index, topic(1, ms=4, size=1000), cq) == {0: 10}
    assert begins(index, topic(1, ms=4, size=100), cq) == {0: 20}
    assert begins(index, topic(1, ms=2, size=300), cq) == {0: 20}


def test_empty_queues_and_topics_do_not_change(index: Index) -> None:
    assert begins(index, topic(1, ms=0, size=0)) == {}
    assert begins(index, topic(1, ms=0, size=0), ConsumeQueue(None, 70, 0)) == {}


def test_messages_that_arrive_meanwhile_stay(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    cq = queue((1, 100))

    def arriving(*arguments: object) -> CqUnit | None:
        found = first_unit_reaching(*arguments)  # type: ignore[arg-type]
        cq.show(CqUnit(10, 5000, 100, 10, NOW_US, 0, 100))
        return found

    monkeypatch.setattr(retention, first_unit_reaching.__name__, arriving)
    assert begins(index, topic(1, ms=1), cq) == {0: 10}
    assert cq.max_offset == 20


@settings(deadline=None)  # it waits for the disk
@given(
    shapes=st.lists(
        st.lists(st.tuples(st.integers(1, 20), st.integers(1, 50)), max_size=6),
        min_size=1,
        max_size=3,
    ),
    age_us=st.none() | st.integers(0, 25),
    size=st.none() | st.integers(0, 400),
    on_disk=st.integers(0, 6),
)
def test_the_limits_delete_as_little_as_necessary(
    index: Index,
    shapes: list[list[tuple[int, int]]],
    age_us: int | None,
    size: int | None,
    on_disk: int,
) -> None:
    topic_id = next(_topics)
    queues = {}
    for number, shape in enumerate(shapes):
        whole = queue(*sorted(shape))
        index.commit([((topic_id, number), u) for u in whole.entries[:on_disk]], ReputPosition())
        queues[number] = whole
        whole.entries = whole.entries[min(on_disk, max(len(shape) - 1, 0)) :]
    units = [unit for shape in shapes for unit in queue(*sorted(shape)).entries]
    # The clock is 25; an age in whole milliseconds would keep all messages or none.
    oldest = 0 if age_us is None else 25 - age_us
    if size is not None:
        times = sorted({oldest, *(u.store_timestamp_us + 1 for u in units)})
        oldest = next(
            at
            for at in times
            if at >= oldest and sum(u.size for u in units if u.store_timestamp_us >= at) <= size
        )
    a_topic = topic(topic_id, ms=None if age_us is None else 0, size=size)
    found = find_expired(index, a_topic, queues, 25 - (age_us or 0))
    for number, shape in enumerate(shapes):
        kept = [u for u in queue(*sorted(shape)).entries if u.store_timestamp_us >= oldest]
        begin = kept[0].base_offset if kept else len(shape) * 10
        assert found.get((topic_id, number), 0) == begin


# -- acting on it --------------------------------------------------------------------------


def test_a_new_min_offset_deletes_older_index_entries(tmp_path: Path) -> None:
    index = Index(tmp_path, 1 << 26)
    cq = queue((1, 100), (2, 100), (3, 100))
    index.commit([((1, 0), unit) for unit in cq.entries], ReputPosition())
    apply_begins(index, {(1, 0): cq}, {(1, 0): 20, (7, 7): 5})
    assert (cq.min_offset, cq.max_offset, cq.bytes) == (20, 30, 100)
    assert [unit.base_offset for unit in index.units((1, 0), 0)] == [20]
    apply_begins(index, {(1, 0): cq}, {(1, 0): 30})
    assert (cq.min_offset, cq.max_offset, cq.bytes) == (30, 30, 0)
    assert [unit.base_offset for unit in index.units((1, 0), 0)] == [20]
    apply_begins(index, {(1, 0): cq}, {(1, 0): 10})
    assert cq.min_offset == 30
    index.close()


def test_the_newest_committed_entry_stays(tmp_path: Path) -> None:
    """A power loss may remove newer entries; without any entry the queue would start at 0 again."""
    index = Index(tmp_path, 1 << 26)
    cq = queue((1, 100), (2, 100), (3, 100))
    index.commit([((1, 0), unit) for unit in list(cq.entries)[:2]], ReputPosition())
    apply_begins(index, {(1, 0): cq}, {(1, 0): 20})
    assert cq.min_offset == 20
    assert [unit.base_offset for unit in index.units((1, 0), 0)] == [10]
    index.close()


# -- unneeded segments ---------------------------------------------------------------------


def held(**ends: int) -> Begins:
    """Return the ends of a segment's queues: q0=5 means that queue 0 of topic 1 ends at offset 5.
    s0 is a queue of the state."""
    return {(0 if name[0] == "s" else 1, int(name[1:])): end for name, end in ends.items()}


def ten(min_offset: int) -> ConsumeQueue:
    cq = queue((1, 100))
    cq.trim_queue(min_offset, 0)
    return cq


@pytest.mark.parametrize(
    ("holds", "begin", "expected"),
    [
        (held(), 0, True),
        (held(q0=5), 0, False),
        (held(q0=5), 4, False),
        (held(q0=5), 5, True),
        (held(q0=5), 10, True),
        (held(s0=99), 0, True),
        (held(s0=99, q0=5), 4, False),
        (held(q0=5, q1=5), 5, False),  # queue 1 has nothing in memory: unknown
        (held(q0=12), 10, True),  # entries that the queue lacks are damaged
        (held(q0=12), 9, False),
    ],
)
def test_a_segment_is_needed_while_a_queue_begins_in_it(
    holds: Begins, begin: int, expected: bool
) -> None:
    assert is_unneeded(holds, {(1, 0): ten(begin)}, lambda topic_id: False) is expected


def test_gap_blocks_of_a_repair_are_not_needed() -> None:
    assert is_unneeded({(GAP_TOPIC_ID, 0): 1}, {}, lambda topic_id: False)


def test_a_deleted_topic_needs_nothing() -> None:
    assert is_unneeded(held(q0=5, q1=5), {}, lambda topic_id: topic_id == 1)
    assert not is_unneeded(held(q0=5), {}, lambda topic_id: topic_id == 2)


async def test_footer_and_blocks_give_the_same_queues(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        topic_, _ = await storage.store.topics.create("t", queues=3)
        await storage.store.publishing.publish(
            topic_, [batch(["a", "b"], 0), batch("c", 2), batch("d", 0)]
        )
        await fill_segment(storage, topic_, 1)
        await settled(storage)
        segment = storage.log.segments[0]
        await until(lambda: segment.sealed)
        by_footer = queues_in(segment)
        end = by_footer.pop((topic_.topic_id, 1))
        assert 0 < end <= storage.store.reading.queue_state(topic_, 1).max_offset
        assert by_footer.pop((0, 0)) > 0
        assert by_footer == {(topic_.topic_id, 0): 3, (topic_.topic_id, 2): 1}
        segment.file.write([bytes(64)], segment.size - 64)
        by_blocks = queues_in(segment)
        assert {**by_footer, (topic_.topic_id, 1): end} == {
            key: value for key, value in by_blocks.items() if key[0]
        }
