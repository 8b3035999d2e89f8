"""Random histories of served groups over a real storage that is stopped or killed in between.

In every history, a durably acknowledged message is never redelivered, and in the end every message
is settled. The campaign of the core tests leases and their order.
"""

import random
from pathlib import Path

import pytest

from holdfast.groups.config import Mode
from holdfast.groups.service_types import Received, Status, Verb
from holdfast.groups.settings import GroupSettings, Subscription
from tests.support.group_broker import GroupBroker, running
from tests.support.stored import copy_running, settled

STEPS = 120
MEMBERS = "abc"


class _History:
    """The published and settled messages of one group, each as (topic, queue, offset)."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.published: set[tuple[str, int, int]] = set()
        self.settled: set[tuple[str, int, int]] = set()
        self.held: list[Received] = []
        self.redelivered = 0

    async def step(self, broker: GroupBroker) -> None:
        what = self.rng.choices(("publish", "receive", "settle", "leave", "time"), (3, 6, 6, 1, 1))
        await getattr(self, what[0])(broker)

    async def publish(self, broker: GroupBroker) -> None:
        name, queue = self.rng.choice("tu"), self.rng.randrange(2)
        topic = broker.store.table.get(name)
        first = broker.store.reading.max_offset((topic.topic_id, queue))
        assert first is not None
        count = self.rng.choice((1, 3, 40))
        await broker.publish(["x"] * count, name, queue, key=self.rng.choice("kl"))
        self.published |= {(name, queue, first + each) for each in range(count)}

    async def receive(self, broker: GroupBroker) -> None:
        received = await broker.receive(self.rng.choice((1, 5, 32)), self.rng.choice(MEMBERS))
        for each in received.deliveries:
            place = (each.topic.name, each.queue, each.offset)
            assert place in self.published
            assert place not in self.settled, "acknowledged durably, and delivered again"
            self.redelivered += each.redelivered
        if received.deliveries:
            self.held.append(received)

    async def settle(self, broker: GroupBroker) -> None:
        if not self.held:
            return
        received = self.held.pop(self.rng.randrange(len(self.held)))
        verb = self.rng.choice((Verb.ACK, Verb.ACK, Verb.ACK, Verb.NACK, Verb.RELEASE))
        statuses = await broker.settle(received, verb, delay_ms=self.rng.choice((0, 0, 1_500)))
        assert Status.INVALID not in statuses
        if verb is Verb.ACK:
            done = zip(received.deliveries, statuses, strict=True)
            self.settled |= {
                (each.topic.name, each.queue, each.offset)
                for each, status in done
                if status is Status.DONE
            }

    async def leave(self, broker: GroupBroker) -> None:
        await broker.groups.leave("g", self.rng.choice(MEMBERS))

    async def time(self, broker: GroupBroker) -> None:
        broker.later(self.rng.choice((1, 2, 6)))

    async def drain(self, broker: GroupBroker) -> None:
        """Settle all messages, including leased and delayed ones."""
        for _ in range(200):
            if self.settled == self.published:
                break
            received = await broker.receive(1_000)
            if received.deliveries:
                self.held.append(received)
                while self.held:
                    held = self.held.pop()
                    statuses = await broker.settle(held)
                    self.settled |= {
                        (each.topic.name, each.queue, each.offset)
                        for each, status in zip(held.deliveries, statuses, strict=True)
                        if status is Status.DONE
                    }
            else:
                broker.later(10)
        assert self.settled == self.published
        for topic in (await broker.groups.describe("g")).topics:
            assert all(each.floor == each.max_offset for each in topic.queues)


@pytest.mark.parametrize("mode", ["competing", "keyed"])
@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_lost_and_nothing_settled_comes_back(
    tmp_path: Path, mode: Mode, seed: int
) -> None:
    history = _History(seed)
    data_dir = tmp_path / "0"
    async with running(data_dir) as broker:
        for name in "tu":
            await broker.topic(name, queues=2)
        await broker.groups.put_group(
            "g",
            GroupSettings(
                topics={"t": Subscription(3), "u": Subscription(1)},
                mode=mode,
                lease_ms=5_000,
                max_attempts=0,
            ),
        )
    skipped_s = 0.0
    for life in range(1, 5):
        async with running(data_dir) as broker:
            broker.skipped_s = skipped_s
            for _ in range(STEPS // 4):
                await history.step(broker)
            skipped_s = broker.skipped_s
            if history.rng.random() < 0.5:  # killed: the next broker starts with the current files
                await settled(broker.storage)  # a file cannot be copied while it is written
                await broker.groups.registry.get("g").commits.wait()
                copy_running(data_dir, tmp_path / str(life))
                data_dir = tmp_path / str(life)
    async with running(data_dir) as broker:
        broker.skipped_s = skipped_s + 60
        await history.drain(broker)
    assert history.redelivered
