"""Consumers, look-ups and retention of a simulated broker; the result of each is judged at once."""

import random
from pathlib import Path

from holdfast.consumequeue.errors import OffsetTrimmed, QueueCorrupt
from tests.support.histories.history import Record, check_read
from tests.support.simulation.simulated_clients import Plan
from tests.support.simulation.simulated_process import BrokerViolation
from tests.support.simulation.simulated_publishing import SimulatedPublishing

_PULL_BYTES = 1024 * 1024


class SimulatedReading(SimulatedPublishing):
    """The reads of a simulated broker, and its retention."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        super().__init__(directory, rng)
        self._stored_offsets: dict[str, dict[int, int]] = {}
        self._consumed: dict[int, int] = {}
        """The next offset that the consumer of each queue pulls."""
        self._min_offsets: dict[int, int] = {}
        self._trimming = False
        """Whether retention ran since the last check, so that first offsets may have grown."""

    async def consume(
        self, plan: Plan, queue: int, max_messages: int, *, may_fail: bool = False
    ) -> None:
        """Pull once, and record the messages: only a power loss in written mode may remove them."""
        number = plan.queues[queue]
        offset = self._consumed.get(number, 0)
        try:
            found, following = await self._pull(plan, queue, offset, max_messages)
        except OffsetTrimmed as error:
            self._consumed[number] = error.min_offset
            return
        except QueueCorrupt as error:
            if not may_fail or error.reason != "unreadable":
                raise BrokerViolation(f"a crash left damage: {error}") from error
            return
        self._consumed[number] = following
        self.history.record_mark(f"the end of queue {number}", following)
        for message in found:
            if message.body not in self.history.sent_at:
                raise BrokerViolation(f"{message} was never sent")
            self.history.record_consumed(message, durable=plan.is_durable)

    async def store_offsets(self, plan: Plan) -> None:
        """Store the offsets of this topic's consumers."""
        offsets = {
            queue: self._consumed[number]
            for queue, number in enumerate(plan.queues)
            if number in self._consumed
        }
        if offsets:
            await self.store.offsets.store_offsets("group", self.topic(plan), offsets)
            self._stored_offsets.setdefault(plan.name, {}).update(offsets)

    async def search(self) -> None:
        """Look up one acknowledged message by its key."""
        await self.quiesce()
        if self.is_dead:
            return
        promised = [
            (send, place)
            for send in self.history.sends
            if (place := self.history.acks.get(send.body)) is not None
            and place[1] >= self._min_offsets.get(place[0], 0)
        ]
        if not promised or self._trimming:
            return
        send, (number, offset) = self.fork().choice(promised)
        plan = next(plan for plan in self.plans if number in plan.queues)
        assert send.key is not None
        matches = await self.store.lookups.search_key(self.topic(plan), send.key, 1_000_000)
        places = {
            (plan.queues[batch.header.queue_id], batch.header.base_offset + row): batch.body(row)
            for batch, row in matches
        }
        if places.get((number, offset)) != send.body:
            raise BrokerViolation(f"{send.producer} {send.number} is not found by its key")

    async def _pull(
        self, plan: Plan, queue: int, offset: int, max_messages: int
    ) -> tuple[list[Record], int]:
        fetched = await self.store.reading.read(
            self.topic(plan), queue, offset, max_messages=max_messages, max_bytes=_PULL_BYTES
        )
        found = [
            Record(
                plan.queues[queue],
                piece.batch.header.base_offset + row,
                piece.batch.key(row),
                piece.batch.body(row),
            )
            for piece in fetched.slices
            for row in piece.rows
        ]
        check_read(plan.queues[queue], offset, found, fetched.next_offset)
        self.totals.reads += len(found)
        return found, fetched.next_offset

    async def _read_all(self) -> list[Record]:
        """Read every queue from its first offset to its last."""
        everything: list[Record] = []
        for plan in self.plans:
            for queue in range(plan.queue_count):
                state = self.store.reading.queue_state(self.topic(plan), queue)
                offset = state.min_offset
                while offset < state.max_offset:
                    try:
                        found, following = await self._pull(plan, queue, offset, 1000)
                    except QueueCorrupt as error:
                        raise BrokerViolation(f"a crash left damage: {error}") from error
                    if following == offset:
                        raise BrokerViolation(f"a pull of {plan.name}/{queue} ends at {offset}")
                    everything += found
                    offset = following
        return everything

    async def trim(self, retention_bytes: int, *, may_fail: bool = False) -> None:
        """Trim topics to `retention_bytes`, and delete the segments that are not needed."""
        limits = {"retention_bytes": retention_bytes, "retention_ms": None}
        await self._retain(limits, may_fail=may_fail)

    async def expire(self, retention_ms: int) -> None:
        """Let topics delete messages older than `retention_ms`, and no younger message."""
        stored = {
            number: await self._timestamps(plan, queue)
            for plan in self.plans
            for queue, number in enumerate(plan.queues)
        }
        # A pass that a crash interrupted may have left its limit.
        await self._retain({"retention_bytes": None, "retention_ms": retention_ms})
        if self._trimming or self.config.commitlog.max_total_bytes:
            return  # other retention may have deleted more
        oldest_us = self.clock.now_us() - retention_ms * 1000
        for number, begin in self._min_offsets.items():
            young = [
                at for at, stored_us in stored[number] if stored_us >= oldest_us and at < begin
            ]
            if young:
                raise BrokerViolation(f"queue {number} forgot {young}, which are not so old")

    async def _retain(self, limits: dict[str, int | None], *, may_fail: bool = False) -> None:
        """Run one retention pass with these limits on every topic."""
        if self.is_dead:
            return
        self.disk.release_syncs()  # the preparation of a segment may wait for a sync
        self._trimming = True
        for plan in self.plans:
            await self.store.topics.change(plan.name, fields=limits)
        try:
            await self.storage.retention.run_once()
        except OSError:
            if not self.disk.frozen and not may_fail:
                raise
            if self.disk.frozen:
                return
        for plan in self.plans:
            await self.store.topics.change(plan.name, fields=dict.fromkeys(limits))
        self._trimming = False
        self._min_offsets = self._begins()

    async def _timestamps(self, plan: Plan, queue: int) -> list[tuple[int, int]]:
        """Return the offset and store timestamp of each readable batch of a queue."""
        found = []
        state = self.store.reading.queue_state(self.topic(plan), queue)
        offset = state.min_offset
        while offset < state.max_offset:
            fetched = await self.store.reading.read(
                self.topic(plan), queue, offset, max_messages=1000, max_bytes=_PULL_BYTES
            )
            for piece in fetched.slices:
                first = max(piece.batch.header.base_offset, offset)
                found.append((first, piece.batch.header.store_timestamp_us))
            offset = fetched.next_offset
        if [stored_us for _, stored_us in found] != sorted(stored_us for _, stored_us in found):
            raise BrokerViolation(f"{plan.name}/{queue} goes back in time")
        return found

    def _begins(self) -> dict[int, int]:
        return {
            number: self.store.reading.queue_state(self.topic(plan), queue).min_offset
            for plan in self.plans
            for queue, number in enumerate(plan.queues)
        }
