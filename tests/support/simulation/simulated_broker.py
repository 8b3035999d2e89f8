"""A simulated broker with its clients, and the judge of all its data after each restart."""

import random
from collections.abc import Sequence
from pathlib import Path

from tests.support.histories.history import check_history, check_marks, settle_power_loss
from tests.support.simulation.simulated_clients import Plan
from tests.support.simulation.simulated_groups import DEAD, SimulatedGroups
from tests.support.simulation.simulated_process import BrokerViolation, Ending
from tests.support.simulation.simulated_publishing import Totals

__all__ = ["SimulatedBroker", "Totals"]


class SimulatedBroker(SimulatedGroups):
    """Storage, disk and clients on one event loop; wrong behaviour raises an AssertionError."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        super().__init__(directory, rng)
        self.restart_count = 0

    async def restart(
        self,
        ending: Ending,
        *,
        forget: Sequence[str] = (),
        recovery_crashes: float = 0.3,
        failing_reads: float = 0.1,
        hold_syncs: bool = False,
    ) -> None:
        """End the process, open its storage again, and judge the result.

        `forget` names LMDB environments ("consumequeue", "state") that are deleted in between.
        `recovery_crashes` is the probability of another power loss while the storage opens, and
        `failing_reads` the probability of a failing read then. With `hold_syncs` the disk is slow
        from then on.
        """
        if ending == "close":
            await self.quiesce()
        is_unsynced = self.storage.log.written_offset > self.storage.syncer.durable_offset
        ending = await self.end(ending)
        self.restart_count += 1
        self.totals.closes += ending == "close"
        self.totals.kills += ending == "kill"
        self.totals.kills_unsynced += ending == "kill" and is_unsynced
        self.disk.mend()
        self.check()
        for name in forget:
            self.forget(name)
        # Sometimes the power fails during recovery, or soon after it.
        again = self.rng.random() < recovery_crashes
        self.disk.freeze_after(self.rng.randint(0, 6) if again else None)
        if self.rng.random() < failing_reads:
            self.disk.fail("read", after=self.rng.randint(0, 30))
        power_lost = await self.open() or ending == "crash"
        self.disk.spare("read")
        if hold_syncs:
            await self.keeper_done()  # the next segment exists: no roll waits for a sync
            self.disk.hold_syncs()
        await self._verify(power_lost=power_lost)

    async def finish(self) -> None:
        """Close in order and open again twice, the second time without the index; judge both."""
        await self.repeat_all()
        await self.restart("close", recovery_crashes=0)
        await self.restart("close", forget=["consumequeue"], recovery_crashes=0)
        await self.drain_group()
        await self.quiesce()
        await self.close()
        self.check()

    async def close(self) -> None:
        """Close the storage after every running publish was answered or has failed."""
        await self._settle()
        await super().close()

    async def abandon(self) -> None:
        """End the threads in any state."""
        self.disk.freeze()
        await self.close()

    async def _verify(self, *, power_lost: bool) -> None:
        """Judge the data after a restart. It must not be lost later, because recovery synced it."""
        begins = self._begins()
        for number, begin in begins.items():
            before = self._min_offsets.get(number, 0)
            if begin < before or (begin > before and not self._trimming):
                raise BrokerViolation(f"queue {number} began at {before}, begins at {begin} now")
        self._trimming = False
        self._min_offsets = begins
        found = await self._read_all()
        if power_lost:
            lost = settle_power_loss(self.history, found, min_offsets=begins)
            self.totals.power_losses += 1
            self.totals.lost_written += lost
            self.totals.lossy_power_losses += lost > 0
        check_history(self.history, found, min_offsets=begins)
        self.history.written.clear()
        self._verify_marks(power_lost)
        self.totals.sends = len(self.history.sends)
        self.totals.acks = len(self.history.acked_at)
        if {topic.name for topic in self.store.table.all()} - {DEAD} != {
            plan.name for plan in self.plans
        }:
            raise BrokerViolation(f"there are the topics {self.store.table.all()}")
        for plan in self.plans:
            self._verify_topic(plan)
        self.verify_group(power_lost=power_lost)

    def _verify_marks(self, power_lost: bool) -> None:
        """Check that only a power loss in written mode made the end of a queue smaller."""
        self.history.seen += self.history.seen_written
        self.history.seen_written.clear()
        for plan in self.plans:
            for queue, number in enumerate(plan.queues):
                mark = f"the end of queue {number}"
                end = self.store.reading.queue_state(self.topic(plan), queue).max_offset
                if power_lost and not plan.is_durable:
                    self.history.marks.pop(mark, None)
                check_marks(self.history, {mark: end})
                self.history.record_mark(mark, end)

    def _verify_topic(self, plan: Plan) -> None:
        topic = self.topic(plan)
        if (topic.queue_count, topic.config.durability) != (plan.queue_count, plan.durability):
            raise BrokerViolation(f"{topic} is not {plan}")
        expected = self._stored_offsets.get(plan.name)
        if expected is not None:
            if not plan.is_durable:
                # Other messages will get the offsets after the end that the power loss left.
                ends = {q: self.store.reading.queue_state(topic, q).max_offset for q in expected}
                expected = {queue: min(offset, ends[queue]) for queue, offset in expected.items()}
                self._stored_offsets[plan.name] = expected
            stored = self.store.offsets.stored_offsets("group", topic).offsets
            if stored != expected:
                raise BrokerViolation(f"stored offsets of {plan.name}: {stored}, not {expected}")
        for queue, number in enumerate(plan.queues):
            end = self.store.reading.queue_state(topic, queue).max_offset
            if self._consumed.get(number, 0) > end:
                if plan.is_durable:
                    raise BrokerViolation(
                        f"{plan.name}/{queue} ends at {end}, was consumed to "
                        f"{self._consumed[number]}"
                    )
                self._consumed[number] = end
