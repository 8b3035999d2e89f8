"""Reactions of simulated producers to refusals: the shortest forms of failures of random seeds."""

import random
from pathlib import Path

from tests.support.simulated_broker import SimulatedBroker


async def test_publishing_goes_on_once_a_segment_that_had_no_room_is_made(tmp_path: Path) -> None:
    broker = SimulatedBroker(tmp_path, random.Random(1))
    await broker.open()
    try:
        plan = await broker.create_topic(1, "fsync")
        producer = broker.add_producer(plan, 0, idempotent=True)
        broker.disk.full = True
        while not broker.storage.raised_alarms:
            await broker.wait_for(broker.publish(producer, 4, 60_000))
        broker.disk.full = False  # the broker notices this half a second later
        await broker.quiesce()
        assert not broker.storage.raised_alarms
        await broker.repeat_all()
        assert not producer.unanswered
    finally:
        await broker.abandon()


async def test_a_broker_whose_full_disk_refuses_publishes_is_closed_in_order(
    tmp_path: Path,
) -> None:
    broker = SimulatedBroker(tmp_path, random.Random(1))
    await broker.open()
    try:
        plan = await broker.create_topic(1, "fsync")
        producer = broker.add_producer(plan, 0, idempotent=True)
        broker.disk.full = True
        while not broker.storage.raised_alarms:
            await broker.wait_for(broker.publish(producer, 4, 60_000))
        await broker.restart("close")
        await broker.repeat_all()
        assert not producer.unanswered
    finally:
        await broker.abandon()
