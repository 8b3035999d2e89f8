"""Expectations of the simulated group about leases when the wall clock changes between two starts.

Each test is the shortest form of a failure that random seeds found, some only once in many runs.
"""

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.groups.service_types import Verb
from tests.support.histories.history import HistoryViolation
from tests.support.simulation.simulated_broker import SimulatedBroker
from tests.support.simulation.simulated_groups import LEASE_MS
from tests.support.simulation.simulated_process import Ending

_HOUR_US = 3_600_000_000


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[SimulatedBroker]:
    """Yield a broker whose group has settled one message of three."""
    broker = SimulatedBroker(tmp_path, random.Random(1))
    await broker.open()
    try:
        plan = await broker.create_topic(1, "fsync")
        producer = broker.add_producer(plan, 0, idempotent=True)
        await broker.create_group()
        await broker.wait_for(broker.publish(producer, 3, 60))
        assert await broker.receive("a", 1) == 1
        await broker.settle(broker.held.pop(), Verb.ACK)
        yield broker
    finally:
        await broker.abandon()


async def test_a_lease_of_a_clock_that_was_ahead_ends_in_time(
    broker: SimulatedBroker,
) -> None:
    broker.clock.jump(_HOUR_US)
    await _kill(broker)
    assert await broker.receive("a", 10) == 2
    broker.clock.jump(-_HOUR_US)
    await _kill(broker)
    assert await broker.receive("b", 10) == 0
    broker.let_time_pass(LEASE_MS / 1000)
    assert await broker.receive("b", 10) == 2


async def test_a_clock_set_back_does_not_renew_an_ended_lease(
    broker: SimulatedBroker,
) -> None:
    assert await broker.receive("a", 10) == 2
    broker.clock.jump(_HOUR_US)
    await _kill(broker)
    broker.clock.jump(-_HOUR_US)
    await _kill(broker)
    broker.let_time_pass(LEASE_MS / 1000)  # exactly to the lease's own end
    assert await broker.receive("b", 10) == 2


async def test_a_clock_set_back_does_not_renew_a_lease_that_ended_after_a_power_loss(
    broker: SimulatedBroker,
) -> None:
    assert await broker.receive("a", 10) == 2
    await broker.restart("crash", recovery_crashes=0, failing_reads=0)
    assert await broker.receive("b", 10) == 0
    broker.let_time_pass(
        LEASE_MS / 1000
    )  # the wall clock of the next start does not show this time
    await _kill(broker)
    assert await broker.receive("b", 10) == 2


@pytest.mark.parametrize("ending", ["close", "kill", "crash"])
async def test_a_failed_message_waits_for_its_delay_and_counts_its_deliveries(
    broker: SimulatedBroker, ending: Ending
) -> None:
    assert await broker.receive("a", 1) == 1
    await broker.settle(broker.held.pop(), Verb.NACK, delay_ms=2_000)
    await broker.restart(ending, recovery_crashes=0, failing_reads=0)
    broker.let_time_pass(1.0)
    assert await broker.receive("b", 1) == (0 if ending == "crash" else 1)  # the next message
    broker.let_time_pass(1.0)
    assert await broker.receive("b", 1) == 1
    assert [(each.offset, each.attempt) for each in broker.held.pop()] == [(1, 2)]


async def test_a_too_small_attempt_number_is_reported(broker: SimulatedBroker) -> None:
    assert await broker.receive("a", 1) == 1
    (delivery,) = broker.held[0]
    await broker.settle(broker.held.pop(), Verb.RELEASE)
    with pytest.raises(HistoryViolation, match="attempts"):
        broker.judge(delivery, broker.now_ms())


async def _kill(broker: SimulatedBroker) -> None:
    await broker.restart("kill", recovery_crashes=0, failing_reads=0)
