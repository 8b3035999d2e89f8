"""Read leases: the table compared with a list, its limits, and pinned messages of a real log."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.consumequeue.config import ConsumeQueueConfig
from holdfast.consumequeue.errors import OffsetTrimmed, TooManyReadLeases, UnknownReadLease
from holdfast.consumequeue.maintenance.read_leases import Pinned, ReadLeases
from holdfast.consumequeue.topics import Topic, TopicConfig
from holdfast.storage.storage import Storage
from tests.support.storage.stored import (
    MIB,
    batch,
    filled_topic,
    open_storage,
    read_queue,
    settled,
    small_config,
)

MINUTE_MS = 60_000


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


def topic_with(topic_id: int) -> Topic:
    return Topic(f"t{topic_id}", topic_id, 10, TopicConfig("fsync", None, None, 1), 0)


ONE, TWO = map(topic_with, (1, 2))


class Table(ReadLeases):
    """Leases whose clock, also the wall clock, shows `clock.now_s`. Every queue is readable."""

    def __init__(self, **limits: Any) -> None:
        self.clock = Clock()
        super().__init__(
            readable=lambda topic, queue, offset: None,
            limits=replace(ConsumeQueueConfig(), **limits),
            now_ms=lambda: int(self.clock.now_s * 1000),
            monotonic=self.clock,
        )

    async def take_s(self, topic: Topic, starts: dict[int, int], s: int, client: str = "c") -> str:
        """Take a lease for `s` seconds and return its id."""
        return (await self.take(topic, starts, s * 1000, client=client)).lease_id


async def test_the_lowest_start_of_all_leases_is_pinned() -> None:
    leases = Table()
    await leases.take_s(ONE, {0: 12, 1: 5}, 10)
    await leases.take_s(ONE, {0: 7, 2: 9}, 20)
    await leases.take_s(TWO, {0: 0}, 30)
    assert leases.pinned(1) == Pinned({0: 7, 1: 5, 2: 9}, 2, 20_000)
    assert leases.pinned(3) is None
    assert leases.queue_count == 5


async def test_a_lease_is_active_before_its_end_and_not_at_its_end() -> None:
    leases = Table()
    await leases.take_s(ONE, {0: 12}, 10)
    leases.clock.now_s = 9.999
    assert leases.pinned(1) is not None
    leases.clock.now_s = 10
    assert leases.pinned(1) is None
    assert (leases.count(), leases.queue_count, leases.expired_total) == (0, 0, 1)


async def test_extending_makes_a_lease_longer_and_never_shorter() -> None:
    leases = Table()
    lease_id = await leases.take_s(ONE, {0: 12}, 10)
    leases.clock.now_s = 5
    assert leases.extend(ONE, lease_id, 10_000).until_ms == 15_000
    assert leases.extend(ONE, lease_id, 1_000).until_ms == 15_000
    leases.clock.now_s = 15
    with pytest.raises(UnknownReadLease):
        leases.extend(ONE, lease_id, 5_000)


async def test_a_lease_is_known_on_its_own_topic_alone() -> None:
    leases = Table()
    lease_id = await leases.take_s(ONE, {0: 12}, 10)
    with pytest.raises(UnknownReadLease):
        leases.extend(TWO, lease_id, 20_000)
    assert not leases.end(TWO, lease_id)
    assert leases.end(ONE, lease_id)
    assert not leases.end(ONE, lease_id)
    assert leases.pinned(1) is None


async def test_ending_a_topic_ends_its_leases() -> None:
    leases = Table()
    for topic in (ONE, ONE, TWO):
        await leases.take_s(topic, {0: 0, 1: 0}, 10)
    leases.end_topic(1)
    assert (leases.count(), leases.queue_count) == (1, 2)
    assert leases.pinned(2) is not None


async def test_no_more_leases_are_granted_than_are_allowed() -> None:
    leases = Table(max_read_leases=2)
    await leases.take_s(ONE, {0: 0}, 10)
    await leases.take_s(ONE, {0: 0}, 20)
    with pytest.raises(TooManyReadLeases) as caught:
        await leases.take_s(ONE, {0: 0}, 10)
    assert (caught.value.limit_name, caught.value.limit) == ("max_read_leases", 2)
    assert leases.refused_total == 1
    leases.clock.now_s = 10  # the first lease has ended
    await leases.take_s(ONE, {0: 0}, 10)


@pytest.mark.parametrize(("queues", "is_granted"), [(6, True), (7, True), (8, False)])
async def test_no_more_queues_are_pinned_than_are_allowed(queues: int, is_granted: bool) -> None:
    leases = Table(max_leased_queues=10)
    await leases.take_s(ONE, {0: 0, 1: 0, 2: 0}, 10)
    starts = dict.fromkeys(range(queues), 0)
    if is_granted:
        await leases.take_s(ONE, starts, 10)
    else:
        with pytest.raises(TooManyReadLeases, match=r"max_leased_queues \(10\)"):
            await leases.take_s(ONE, starts, 10)
    assert leases.queue_count == 3 + (queues if is_granted else 0)


@pytest.mark.parametrize(("count", "is_granted"), [(1, True), (2, True), (3, False)])
async def test_one_client_cannot_take_the_leases_of_others(count: int, is_granted: bool) -> None:
    # M4: one client took all leases for an hour
    leases = Table(max_read_leases_per_client=2)
    taken = [await leases.take_s(ONE, {0: 0}, 10, "greedy") for _ in range(count - 1)]
    if not is_granted:
        with pytest.raises(TooManyReadLeases) as caught:
            await leases.take_s(ONE, {0: 0}, 10, "greedy")
        assert caught.value.limit_name == "max_read_leases_per_client"
        assert leases.end(ONE, taken[0])
    await leases.take_s(ONE, {0: 0}, 10, "greedy")
    await leases.take_s(ONE, {0: 0}, 10, "modest")


@pytest.mark.parametrize(("queues", "is_granted"), [(1, True), (2, True), (3, False)])
async def test_one_client_cannot_pin_the_queues_of_others(queues: int, is_granted: bool) -> None:
    leases = Table(max_leased_queues_per_client=5)
    await leases.take_s(ONE, {0: 0, 1: 0, 2: 0}, 10, "greedy")
    starts = dict.fromkeys(range(queues), 0)
    if is_granted:
        await leases.take_s(ONE, starts, 10, "greedy")
    else:
        with pytest.raises(TooManyReadLeases, match=r"max_leased_queues_per_client \(5\)"):
            await leases.take_s(ONE, starts, 10, "greedy")
    await leases.take_s(ONE, dict.fromkeys(range(5), 0), 10, "modest")
    leases.clock.now_s = 10
    await leases.take_s(ONE, dict.fromkeys(range(5), 0), 10, "greedy")


_steps = st.lists(
    st.tuples(
        st.sampled_from(["take", "extend", "end", "end_topic"]),
        st.integers(0, 4),  # lease
        st.sampled_from([ONE, TWO]),
        st.dictionaries(st.integers(0, 2), st.integers(0, 9), min_size=1),
        st.integers(0, 3),  # time that passes
        st.integers(1, 6),  # how long the lease is
    ),
    max_size=40,
)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@settings(deadline=None)
@given(_steps)
def test_the_table_is_a_list_of_leases(
    runner: asyncio.Runner, steps: list[tuple[str, int, Topic, dict[int, int], int, int]]
) -> None:
    leases = Table(max_read_leases=3, max_leased_queues=5)
    model: list[tuple[str, Topic, dict[int, int], int]] = []
    for verb, which, topic, starts, passed, length in steps:
        leases.clock.now_s += passed
        now = int(leases.clock.now_s)
        model = [each for each in model if each[3] > now]
        lease_id = model[which % len(model)][0] if model else "-"
        known = [each for each in model if each[:2] == (lease_id, topic)]
        match verb:
            case "take":
                size = sum(len(each[2]) for each in model) + len(starts)
                if len(model) < 3 and size <= 5:
                    taken = runner.run(leases.take_s(topic, starts, length))
                    model.append((taken, topic, starts, now + length))
                else:
                    with pytest.raises(TooManyReadLeases):
                        runner.run(leases.take_s(topic, starts, length))
            case "extend" if known:
                until_s = max(known[0][3], now + length)
                assert leases.extend(topic, lease_id, 1000 * length).until_ms == 1000 * until_s
                model[model.index(known[0])] = (*known[0][:3], until_s)
            case "extend":
                with pytest.raises(UnknownReadLease):
                    leases.extend(topic, lease_id, 1000 * length)
            case "end":
                assert leases.end(topic, lease_id) == bool(known)
                model = [each for each in model if each not in known]
            case _:
                leases.end_topic(topic.topic_id)
                model = [each for each in model if each[1] is not topic]
        for each_topic in (ONE, TWO):
            mine = [each for each in model if each[1] is each_topic]
            expected: dict[int, int] = {}
            for _, _, pinned_starts, _ in mine:
                for queue, start in pinned_starts.items():
                    expected[queue] = min(start, expected.get(queue, start))
            until_ms = 1000 * max((each[3] for each in mine), default=0)
            pinned = Pinned(expected, len(mine), until_ms) if mine else None
            assert leases.pinned(each_topic.topic_id) == pinned
        assert leases.queue_count == sum(len(each[2]) for each in model)


# -- over a real log -------------------------------------------------------------------------------


def with_clock(storage: Storage) -> tuple[ReadLeases, Clock]:
    leases: ReadLeases = storage.store.read_leases
    leases.monotonic = clock = Clock(1000.0)
    return leases, clock


async def fill(storage: Storage, *, queues: int = 1) -> Topic:
    await filled_topic(storage, queues=queues, segments=4)
    return await storage.store.topics.change("t", fields={"retention_bytes": MIB})


async def test_retention_keeps_pinned_messages_until_their_lease_ends(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        leases, clock = with_clock(storage)
        topic = await fill(storage)
        before = await read_queue(storage.store, topic)
        end = storage.store.reading.queue_state(topic, 0).max_offset
        await leases.take(topic, {0: end // 2}, MINUTE_MS)
        await storage.retention.run_once()
        assert 0 < storage.store.reading.queue_state(topic, 0).min_offset <= end // 2
        begin = storage.store.reading.queue_state(topic, 0).min_offset
        assert await read_queue(storage.store, topic) == before[begin:]
        clock.now_s += MINUTE_MS / 1000
        await storage.retention.run_once()
        assert storage.store.reading.queue_state(topic, 0).min_offset > end // 2


async def test_a_pin_within_a_batch_keeps_the_whole_batch(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        leases, _ = with_clock(storage)
        topic, _ = await storage.store.topics.create("t", queues=1)
        for text in "abcd":
            await storage.store.publishing.publish(topic, [batch([text * 1000] * 10)])
        await settled(storage)
        topic = await storage.store.topics.change("t", fields={"retention_bytes": 1})
        await leases.take(topic, {0: 15}, MINUTE_MS)
        await storage.retention.run_once()
        assert storage.store.reading.queue_state(topic, 0).min_offset == 10
        await storage.retention.run_once()
        assert storage.store.reading.queue_state(topic, 0).min_offset == 10


async def test_other_queues_and_other_topics_are_not_pinned(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        leases, _ = with_clock(storage)
        other, _ = await storage.store.topics.create("other", queues=1)
        topic = await fill(storage, queues=2)
        await leases.take(other, {0: 0}, MINUTE_MS)
        await leases.take(topic, {1: 0}, MINUTE_MS)
        await storage.store.topics.change("t", fields={"retention_bytes": 1})
        await storage.retention.run_once()
        states = storage.store.reading.queue_states(topic)
        assert states[0].min_offset == states[0].max_offset
        assert states[1].min_offset == 0


async def test_an_extended_lease_pins_and_an_ended_lease_does_not(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        leases, clock = with_clock(storage)
        topic = await fill(storage)
        lease = await leases.take(topic, {0: 0}, MINUTE_MS)
        clock.now_s += 59
        extended = leases.extend(topic, lease.lease_id, MINUTE_MS)
        assert extended.lease_id == lease.lease_id
        clock.now_s += 59
        await storage.retention.run_once()
        assert storage.store.reading.queue_state(topic, 0).min_offset == 0
        assert leases.end(topic, lease.lease_id)
        await storage.retention.run_once()
        assert storage.store.reading.queue_state(topic, 0).min_offset > 0
        with pytest.raises(UnknownReadLease):
            leases.extend(topic, lease.lease_id, MINUTE_MS)


async def test_the_limit_on_the_whole_log_ignores_leases(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path, max_total_bytes=2 * MIB)) as storage:
        leases, _ = with_clock(storage)
        topic = await filled_topic(storage, segments=4)
        await leases.take(topic, {0: 0}, MINUTE_MS)
        assert await storage.retention.run_once() == 3
        assert storage.store.reading.queue_state(topic, 0).min_offset > 0


async def test_retention_ignores_leases_while_the_disk_is_low(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        leases, _ = with_clock(storage)
        topic = await fill(storage)
        await leases.take(topic, {0: 0}, MINUTE_MS)
        monkeypatch.setattr(storage.retention, "is_disk_low", lambda: True)
        await storage.retention.run_once()
        assert storage.store.reading.queue_state(topic, 0).min_offset > 0


async def test_no_lease_is_granted_on_messages_that_are_being_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        leases, _ = with_clock(storage)
        topic = await fill(storage)
        commit, gate, begun = storage.retention.commit_state, asyncio.Event(), asyncio.Event()

        async def slow(changes: dict[bytes, bytes | None]) -> None:
            begun.set()
            await gate.wait()
            await commit(changes)

        monkeypatch.setattr(storage.retention, "commit_state", slow)
        retention = asyncio.create_task(storage.retention.run_once())
        await begun.wait()
        taking = asyncio.create_task(leases.take(topic, {0: 0}, MINUTE_MS))
        await asyncio.sleep(0)
        gate.set()
        with pytest.raises(OffsetTrimmed) as caught:
            await taking
        await retention
        assert caught.value.min_offset == storage.store.reading.queue_state(topic, 0).min_offset
        assert leases.count() == 0


async def test_deleting_a_topic_ends_its_leases(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        leases, _ = with_clock(storage)
        topic = await fill(storage)
        lease = await leases.take(topic, {0: 0}, MINUTE_MS)
        await storage.store.topics.delete("t")
        assert leases.count() == 0
        assert await storage.retention.run_once() == 4
        again, _ = await storage.store.topics.create("t")
        with pytest.raises(UnknownReadLease):
            leases.extend(again, lease.lease_id, MINUTE_MS)


async def test_a_restart_ends_every_lease(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        topic = await fill(storage)
        lease = await storage.store.read_leases.take(topic, {0: 0}, MINUTE_MS)
    async with open_storage(small_config(tmp_path)) as storage:
        with pytest.raises(UnknownReadLease):
            storage.store.read_leases.extend(topic, lease.lease_id, MINUTE_MS)
        await storage.retention.run_once()
        assert storage.store.reading.queue_state(topic, 0).min_offset > 0
