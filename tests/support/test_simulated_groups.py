"""What the simulated group expects of leases when the wall clock is set between two starts: the
shortest form of what seeds found, some of them in one run of many."""

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.groups.service_types import Verb
from tests.support.simulated_broker import SimulatedBroker
from tests.support.simulated_groups import LEASE_MS

_HOUR_US = 3_600_000_000


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[SimulatedBroker]:
    """A broker whose group has settled one message of three."""
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


async def test_a_lease_by_a_clock_that_was_ahead_is_over_a_lease_after_the_next_start(
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


async def test_a_lease_that_a_start_found_over_is_not_renewed_by_a_clock_set_back(
    broker: SimulatedBroker,
) -> None:
    assert await broker.receive("a", 10) == 2
    broker.clock.jump(_HOUR_US)
    await _kill(broker)
    broker.clock.jump(-_HOUR_US)
    await _kill(broker)
    assert await broker.receive("b", 10) == 2


async def _kill(broker: SimulatedBroker) -> None:
    await broker.restart("kill", recovery_crashes=0, failing_reads=0)
