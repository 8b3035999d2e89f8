"""The effects of one failing, torn or slow call, of a full disk, and of a power loss at any
change."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.simulation.simulated_broker import SimulatedBroker
from tests.support.simulation.simulated_clients import Attempt, Plan, Producer
from tests.support.simulation.simulated_process import until

_NEVER_MS = 3_600_000
_LARGE = 400_000
"""Two messages of this size fill a segment."""


@pytest.fixture
async def broker(memory_path: Path) -> AsyncIterator[SimulatedBroker]:
    """Return a broker that commits its index only when it closes."""
    made = SimulatedBroker(memory_path, random.Random(1))
    made.commit_interval_ms = _NEVER_MS
    await made.open()
    yield made
    await made.abandon()


async def _producer(broker: SimulatedBroker, durability: str = "fsync") -> tuple[Plan, Producer]:
    plan = await broker.create_topic(1, durability)
    return plan, broker.add_producer(plan, 0, idempotent=True)


async def _publish(
    broker: SimulatedBroker, producer: Producer, messages: int = 1, body_bytes: int = 100
) -> Attempt:
    attempt = broker.publish(producer, messages, body_bytes)
    assert attempt is not None
    await broker.wait_for(attempt)
    return attempt


def _places(broker: SimulatedBroker) -> list[tuple[int, int]]:
    return sorted(broker.history.acks.values())


@pytest.mark.parametrize("ending", ["kill", "crash"])
async def test_a_failed_sync_fails_who_waits_and_leaves_the_rest_readable(
    broker: SimulatedBroker, ending: str
) -> None:
    plan, producer = await _producer(broker)
    await _publish(broker, producer)
    broker.disk.fail("sync")
    await _publish(broker, producer)
    await until(lambda: broker.storage.read_only is not None)
    await _publish(broker, producer)  # no second try: the disk would accept it
    assert _places(broker) == [(plan.queues[0], 0)]
    await broker.consume(plan, 0, 10)
    assert len(broker.history.seen) == 1
    await broker.restart("kill", recovery_crashes=0)
    await broker.consume(plan, 0, 10)
    await broker.restart(ending, recovery_crashes=0)  # type: ignore[arg-type]
    await broker.repeat_all()
    assert _places(broker) == [(plan.queues[0], 0), (plan.queues[0], 1)]


async def test_a_sync_that_fails_while_a_segment_is_sealed_is_not_passed_over(
    broker: SimulatedBroker,
) -> None:
    """The kernel reports a failed sync once: to the sealing thread or to the sync thread."""
    plan, _ = await _producer(broker)
    broker.flush_interval_ms = _NEVER_MS
    await broker.restart("close", recovery_crashes=0)
    written = broker.add_producer(plan, 0, idempotent=True, durability="written")
    await _publish(broker, written, 1, _LARGE)
    await _publish(broker, written, 1, _LARGE)
    broker.disk.fail("sync", after=1)  # the next segment is prepared before this one is sealed
    await _publish(broker, written, 1, _LARGE)
    assert len(broker.storage.log.segments) == 2
    await broker.keeper_done()
    durable = broker.add_producer(plan, 0, idempotent=True)
    await _publish(broker, durable)
    assert durable.unanswered, "acknowledged, though a sync of what was before it had failed"
    await broker.restart("crash", recovery_crashes=0)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9999, 1.0])
async def test_a_write_that_fails_half_way_is_cut_or_kept_whole(
    broker: SimulatedBroker, share: float
) -> None:
    plan, producer = await _producer(broker)
    await _publish(broker, producer)
    broker.disk.fail("write", share=share)
    await _publish(broker, producer, 3, 2000)
    assert broker.is_dead
    assert _places(broker) == [(plan.queues[0], 0)]
    await broker.restart("kill", recovery_crashes=0)
    await broker.repeat_all()
    assert _places(broker) == [(plan.queues[0], offset) for offset in range(4)]


async def test_a_full_disk_stops_publishing_alone_and_only_until_there_is_room(
    broker: SimulatedBroker,
) -> None:
    plan, producer = await _producer(broker)
    await broker.quiesce()
    broker.disk.full = True
    for _ in range(4):  # the active and the prepared segment are still filled
        await _publish(broker, producer, 1, _LARGE)
    refused = await _publish(broker, producer, 1, _LARGE)
    assert producer.unanswered == [refused]
    assert not broker.is_dead
    await broker.consume(plan, 0, 10)
    await broker.store_offsets(plan)
    broker.disk.full = False
    await until(lambda: not broker.storage.raised_alarms)
    await broker.repeat_all()
    assert not producer.unanswered
    await broker.restart("crash", recovery_crashes=0)


async def test_a_slow_sync_holds_up_only_who_waits_for_it(broker: SimulatedBroker) -> None:
    plan, producer = await _producer(broker)
    await _publish(broker, producer)
    written = broker.add_producer(plan, 0, idempotent=True, durability="written")
    broker.disk.hold_syncs()
    waiting = broker.publish(producer, 1, 100)
    assert waiting is not None
    await asyncio.to_thread(broker.disk.wait_for_held_sync)
    quick = broker.publish(written, 1, 100)
    assert quick is not None
    assert quick.task is not None
    await quick.task
    await broker.consume(plan, 0, 10)
    await broker.store_offsets(plan)
    assert len(broker.history.seen) == 1, "shown before it was durable"
    assert waiting.is_under_way
    await broker.wait_for(waiting)
    await broker.quiesce()
    await broker.consume(plan, 0, 10)
    assert len(broker.history.seen) == 3


@pytest.mark.parametrize("forget", [[], ["consumequeue"]])
async def test_an_index_that_is_segments_behind_catches_up(
    broker: SimulatedBroker, forget: list[str]
) -> None:
    _, producer = await _producer(broker)
    for _ in range(9):
        await _publish(broker, producer, 1, _LARGE)
    assert len(broker.storage.log.segments) >= 4
    await broker.restart("kill", forget=forget, recovery_crashes=0)
    assert broker.recovered_blocks >= 9
    await broker.search()
    await broker.restart("close", recovery_crashes=0)
    assert broker.recovered_blocks <= 2  # the state's snapshot alone, if it was synced late


async def test_the_power_may_go_at_any_change_of_a_roll_and_of_a_trim(memory_path: Path) -> None:
    """Cut the power at each disk call of rolls, seals, commits and deletions of segments."""
    change = 0
    while True:
        broker = SimulatedBroker(memory_path / str(change), random.Random(change))
        broker.commit_interval_ms = 1
        await broker.open()
        try:
            plan, producer = await _producer(broker)
            other = broker.add_producer(plan, 0, idempotent=True, durability="written")
            broker.disk.freeze_after(change)
            for _ in range(2):
                await _publish(broker, producer, 1, _LARGE)
                await _publish(broker, other, 1, _LARGE)
                await broker.consume(plan, 0, 10)
            await broker.store_offsets(plan)
            await broker.trim(1)
            survived = not broker.disk.frozen
            await broker.restart("crash")
            while broker.is_dead:
                await broker.restart("crash")
            await broker.finish()
        except BaseException as error:
            error.add_note(f"the power went at change {change}")
            await broker.abandon()
            raise
        if survived:
            break
        change += 1
    assert change > 20
