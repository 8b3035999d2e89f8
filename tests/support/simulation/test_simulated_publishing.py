"""Reactions of simulated producers to refusals: the shortest forms of failures of random seeds."""

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.simulation.simulated_broker import SimulatedBroker


@pytest.fixture
async def full(tmp_path: Path) -> AsyncIterator[SimulatedBroker]:
    """A broker that refuses publishes because its disk is full."""
    broker = SimulatedBroker(tmp_path, random.Random(1))
    await broker.open()
    plan = await broker.create_topic(1, "fsync")
    producer = broker.add_producer(plan, 0, idempotent=True)
    broker.disk.full = True
    while not broker.storage.raised_alarms:
        await broker.wait_for(broker.publish(producer, 4, 60_000))
    yield broker
    await broker.abandon()


async def test_publishing_resumes_when_a_segment_has_room(full: SimulatedBroker) -> None:
    full.disk.full = False  # the broker notices this half a second later
    await full.quiesce()
    assert not full.storage.raised_alarms
    await full.repeat_all()
    assert not full.producers[0].unanswered


async def test_a_broker_with_a_full_disk_is_closed_in_order(full: SimulatedBroker) -> None:
    await full.restart("close")
    await full.repeat_all()
    assert not full.producers[0].unanswered
