"""A simulated process beside clients that write down what they are told, and its judge.

`restart` ends the process in one of three ways and opens what is left; then everything is read
back and judged by the history checker. Queues of all topics are numbered in one row, so that
one History sees the whole log.
"""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from holdfast.commitlog.batch import Batch, encode_batch
from holdfast.commitlog.errors import DiskFull, LogPoisoned, NoSegment, ProducerFenced, SequenceGap
from holdfast.consumequeue.errors import OffsetTrimmed, QueueCorrupt, UnknownTopic
from holdfast.consumequeue.message_store import Published
from holdfast.consumequeue.topics import Topic
from tests.support.history import (
    Found,
    History,
    check_history,
    check_marks,
    check_read,
    settle_power_loss,
)
from tests.support.simulated_clients import Attempt, Plan, Producer
from tests.support.simulated_process import (
    BrokerViolation,
    Ending,
    SimulatedProcess,
    bounded,
    until,
)

_PULL_BYTES = 1024 * 1024


@dataclass(slots=True)
class Totals:
    """What happened in runs, summed up."""

    runs: int = 0
    sends: int = 0
    acks: int = 0
    reads: int = 0
    """Messages read, by consumers and by the judge."""
    closes: int = 0
    kills: int = 0
    kills_unsynced: int = 0
    """Kills while something was written that no sync had covered."""
    power_losses: int = 0
    lost_written: int = 0
    """Messages acknowledged in written mode that a power loss took; all else is a violation."""
    lossy_power_losses: int = 0

    def add(self, other: "Totals") -> None:
        """Add what happened in other runs."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class SimulatedBroker(SimulatedProcess):
    """Storage, disk and clients, all on one event loop. Anything that a right broker cannot do
    raises an AssertionError: HistoryViolation or BrokerViolation."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        super().__init__(directory, rng)
        self.history = History()
        self.plans: list[Plan] = []
        self.producers: list[Producer] = []
        self.restart_count = 0
        self.totals = Totals(runs=1)
        self._stored_offsets: dict[str, dict[int, int]] = {}
        self._consumed: dict[int, int] = {}
        """Per queue, the offset that its consumer pulls next."""
        self._min_offsets: dict[int, int] = {}
        self._trimming = False
        """Whether queues may begin later than they did: retention was at work last."""
        self._deleted_ids: set[int] = set()

    # -- the process -----------------------------------------------------------------------

    async def restart(
        self,
        ending: Ending,
        *,
        forget: Sequence[str] = (),
        recovery_crashes: float = 0.3,
        failing_reads: float = 0.1,
        hold_syncs: bool = False,
    ) -> None:
        """End the process, open what is left of it, and judge that.

        `forget` names LMDB environments ("consumequeue", "state") that are deleted in between;
        `recovery_crashes` is how likely another power loss is while the storage opens, and
        `failing_reads` how likely a read that fails then; with `hold_syncs` the disk is slow from
        then on.
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
        # Now and then the power goes while recovering, or soon after it.
        again = self.rng.random() < recovery_crashes
        self.disk.freeze_after(self.rng.randint(0, 6) if again else None)
        if self.rng.random() < failing_reads:
            self.disk.fail("read", after=self.rng.randint(0, 30))
        power_lost = await self.open() or ending == "crash"
        self.disk.spare("read")
        if hold_syncs:
            self.disk.hold_syncs()
        await self._verify(power_lost=power_lost)

    async def finish(self) -> None:
        """Close in order, open again twice, the second time without the index; judge each."""
        await self.repeat_all()
        await self.restart("close", recovery_crashes=0)
        await self.restart("close", forget=["consumequeue"], recovery_crashes=0)
        await self.quiesce()
        await self.close()
        self.check()

    async def close(self) -> None:
        """Close the storage once every publish under way was answered or failed."""
        await self._settle()
        await super().close()

    async def abandon(self) -> None:
        """End the threads, whatever state they are in."""
        self.disk.freeze()
        await self.close()

    # -- topics ----------------------------------------------------------------------------

    async def create_topic(self, queue_count: int, durability: str) -> Plan:
        """Create a topic."""
        number = len(self.plans)
        plan = Plan(number, f"topic-{number}", queue_count, durability)
        await self.store.create_topic(
            plan.name, queues=queue_count, fields={"durability": durability}
        )
        self.plans.append(plan)
        return plan

    async def churn_topic(self) -> None:
        """Create a topic, publish to it, delete it. It must not come back, nor what it held."""
        self.disk.release_syncs()
        topic, is_new = await self.store.create_topic("short-lived", queues=1)
        state = self.store.queue_state(topic, 0)
        if not is_new or topic.topic_id in self._deleted_ids or state.max_offset:
            raise BrokerViolation(f"{topic} came back with {state}")
        batch = Batch.decode(encode_batch([b"forget me"], queue_id=0))
        with contextlib.suppress(LogPoisoned, DiskFull, NoSegment):
            await bounded(self.store.publish(topic, [batch]))
        await self.store.delete_topic(topic.name)
        self._deleted_ids.add(topic.topic_id)

    def topic(self, plan: Plan) -> Topic:
        """Return the topic as the store has it."""
        try:
            return self.store.topic(plan.name)
        except UnknownTopic as error:
            raise BrokerViolation(f"{plan} is gone") from error

    async def trim(self, retention_bytes: int, *, may_fail: bool = False) -> None:
        """Trim every topic to so many bytes, and delete the segments that nobody needs or that
        are too many; publishes may be under way. With `may_fail` the disk is to refuse it."""
        limits = {"retention_bytes": retention_bytes, "retention_ms": None}
        await self._retain(limits, may_fail=may_fail)

    async def expire(self, retention_ms: int) -> None:
        """Let every topic forget what is older, by the clock as it is now: nothing else goes."""
        stored = {
            number: await self._timestamps(plan, queue)
            for plan in self.plans
            for queue, number in enumerate(plan.queues)
        }
        # A pass that a crash cut short may have left its limit.
        await self._retain({"retention_bytes": None, "retention_ms": retention_ms})
        if self._trimming or self.config.commitlog.max_total_bytes:
            return  # more than that may be gone
        oldest_us = self.clock.now_us() - retention_ms * 1000
        for number, begin in self._min_offsets.items():
            young = [
                at for at, stored_us in stored[number] if stored_us >= oldest_us and at < begin
            ]
            if young:
                raise BrokerViolation(f"queue {number} forgot {young}, which are not so old")

    async def _retain(self, limits: dict[str, int | None], *, may_fail: bool = False) -> None:
        """Make one pass of retention with these limits on every topic."""
        if self.is_dead:
            return
        self.disk.release_syncs()  # a segment that is being prepared waits for one
        self._trimming = True
        for plan in self.plans:
            await self.store.change_topic(plan.name, fields=limits)
        try:
            await self.storage.retention.run_once()
        except OSError:
            if not self.disk.frozen and not may_fail:
                raise
            if self.disk.frozen:
                return
        for plan in self.plans:
            await self.store.change_topic(plan.name, fields=dict.fromkeys(limits))
        self._trimming = False
        self._min_offsets = self._begins()

    async def _timestamps(self, plan: Plan, queue: int) -> list[tuple[int, int]]:
        """Return the offset and store timestamp of each batch of a queue that can be read."""
        found = []
        state = self.store.queue_state(self.topic(plan), queue)
        offset = state.min_offset
        while offset < state.max_offset:
            fetched = await self.store.read(
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
            number: self.store.queue_state(self.topic(plan), queue).min_offset
            for plan in self.plans
            for queue, number in enumerate(plan.queues)
        }

    # -- publishing ------------------------------------------------------------------------

    def add_producer(
        self, plan: Plan, queue: int | None, *, idempotent: bool, durability: str | None = None
    ) -> Producer:
        """Add a producer; `durability` if its publishes ask for another than the topic's."""
        number = len(self.producers) + 1
        producer = Producer(
            f"p{number:03d}",
            plan,
            queue,
            number if idempotent else 0,
            durability or plan.durability,
        )
        self.producers.append(producer)
        return producer

    def publish(self, producer: Producer, messages: int, body_bytes: int) -> Attempt | None:
        """Send off the next publish, or first again what failed; None when too many of this
        producer are under way."""
        if repeated := self._repeat(producer):
            return repeated[-1]
        if not producer.can_send:
            return None
        attempt = producer.attempt(messages, body_bytes)
        for sends in attempt.sends:
            for send in sends:
                self.history.sent(send)
        producer.unanswered.append(attempt)
        self._send_off(producer, attempt)
        return attempt

    def _repeat(self, producer: Producer) -> list[Attempt]:
        """What a client does after a failure: send again what was not answered, in order."""
        repeated = [attempt for attempt in producer.unanswered if not attempt.is_under_way]
        for attempt in repeated:
            if attempt.task is not None:
                attempt.task.result()  # raises what it found
            self._send_off(producer, attempt)
        return repeated

    async def wait_for(self, attempt: Attempt | None) -> None:
        """Wait until a publish is answered or failed; syncs that are held are let go."""
        if attempt is not None and attempt.task is not None:
            self.disk.release_syncs()
            await bounded(attempt.task)

    def _send_off(self, producer: Producer, attempt: Attempt) -> None:
        attempt.task = asyncio.create_task(self._answer(producer, attempt))

    async def _answer(self, producer: Producer, attempt: Attempt) -> None:
        try:
            results = await self.store.publish(
                self.topic(producer.plan), attempt.batches, durability=attempt.durability
            )
        except (LogPoisoned, DiskFull, NoSegment):
            is_over = not producer.producer_id
        except (SequenceGap, ProducerFenced):
            is_over = self._judge_refusal(producer, attempt)
        else:
            if attempt.loses_answer():
                # It was stored; the client will not know before it asks again.
                is_over = not producer.producer_id
            else:
                self._note(producer.plan, attempt, results)
                is_over = producer.is_known = True
        if is_over:
            producer.unanswered.remove(attempt)

    def _note(self, plan: Plan, attempt: Attempt, results: list[Published]) -> None:
        for result, sends in zip(results, attempt.sends, strict=True):
            if result.count != len(sends):
                raise BrokerViolation(f"{result} answers {len(sends)} messages")
            self._must_be_readable(plan, result)
            for row, send in enumerate(sends):
                place = plan.queues[result.queue], result.base_offset + row
                self.history.acknowledged(send, *place, durable=result.durable)

    def _must_be_readable(self, plan: Plan, result: Published) -> None:
        """Who is told an offset can read from it, unless the topic demands more than was asked."""
        end = self.store.queue_state(self.topic(plan), result.queue).max_offset
        is_shown = result.durable or not plan.is_durable
        if is_shown and end < result.base_offset + result.count:
            raise BrokerViolation(f"{result} was answered, but {plan.name} ends at {end}")

    def _judge_refusal(self, producer: Producer, attempt: Attempt) -> bool:
        """Return whether a refused publish is given up. A gap follows from a publish before
        that failed and will be repeated, or from what a power loss took."""
        if attempt.epoch < producer.epoch:
            return True
        if producer.unanswered[0] is not attempt:
            return False
        if producer.durability == "fsync" or not self.totals.power_losses:
            raise BrokerViolation(f"{producer.name} is refused, but nothing of it was lost")
        # What is lost was acknowledged and will not come again: begin anew.
        producer.epoch += 1
        producer.sequence = 0
        return True

    async def repeat_all(self) -> None:
        """Let every producer send again what failed, until all is answered."""
        self.disk.release_syncs()
        await self._settle()
        for producer in self.producers:
            for attempt in self._repeat(producer):
                await bounded(attempt.task)

    # -- consuming -------------------------------------------------------------------------

    async def consume(
        self, plan: Plan, queue: int, max_messages: int, *, may_fail: bool = False
    ) -> None:
        """Pull once from where this queue's consumer is. What it is shown is noted: no kill may
        take it back, and of a durable topic no power loss. With `may_fail` a read is to fail."""
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
        self.history.reached(f"the end of queue {number}", following)
        for message in found:
            if message.body not in self.history.sent_at:
                raise BrokerViolation(f"{message} was never sent")
            self.history.consumed(message, durable=plan.is_durable)

    async def store_offsets(self, plan: Plan) -> None:
        """Store where this topic's consumers are."""
        offsets = {
            queue: self._consumed[number]
            for queue, number in enumerate(plan.queues)
            if number in self._consumed
        }
        if offsets:
            await self.store.store_offsets("group", self.topic(plan), offsets)
            self._stored_offsets.setdefault(plan.name, {}).update(offsets)

    async def search(self) -> None:
        """Find one acknowledged message by its key."""
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
        matches = await self.store.search_key(self.topic(plan), send.key, 1_000_000)
        places = {
            (plan.queues[batch.header.queue_id], batch.header.base_offset + row): batch.body(row)
            for batch, row in matches
        }
        if places.get((number, offset)) != send.body:
            raise BrokerViolation(f"{send.producer} {send.number} is not found by its key")

    async def _pull(
        self, plan: Plan, queue: int, offset: int, max_messages: int
    ) -> tuple[list[Found], int]:
        fetched = await self.store.read(
            self.topic(plan), queue, offset, max_messages=max_messages, max_bytes=_PULL_BYTES
        )
        found = [
            Found(
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

    async def _read_all(self) -> list[Found]:
        """Read every queue from its first offset to its last."""
        everything: list[Found] = []
        for plan in self.plans:
            for queue in range(plan.queue_count):
                state = self.store.queue_state(self.topic(plan), queue)
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

    # -- judging ---------------------------------------------------------------------------

    async def _verify(self, *, power_lost: bool) -> None:
        """Judge what a restart left. Nothing of it may be lost later: recovery synced it."""
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
        if {topic.name for topic in self.store.topics()} != {plan.name for plan in self.plans}:
            raise BrokerViolation(f"there are the topics {self.store.topics()}")
        for plan in self.plans:
            self._verify_topic(plan)

    def _verify_marks(self, power_lost: bool) -> None:
        """A queue's end goes back only where a power loss takes it from a written topic. Recovery
        synced what it found: from here on that is durable."""
        self.history.seen += self.history.seen_written
        self.history.seen_written.clear()
        for plan in self.plans:
            for queue, number in enumerate(plan.queues):
                mark = f"the end of queue {number}"
                end = self.store.queue_state(self.topic(plan), queue).max_offset
                if power_lost and not plan.is_durable:
                    self.history.marks.pop(mark, None)
                check_marks(self.history, {mark: end})
                self.history.reached(mark, end)

    def _verify_topic(self, plan: Plan) -> None:
        topic = self.topic(plan)
        if (topic.queue_count, topic.config.durability) != (plan.queue_count, plan.durability):
            raise BrokerViolation(f"{topic} is not {plan}")
        expected = self._stored_offsets.get(plan.name)
        if expected is not None:
            stored = self.store.stored_offsets("group", topic).offsets
            if stored != expected:
                raise BrokerViolation(f"stored offsets of {plan.name}: {stored}, not {expected}")
        for queue, number in enumerate(plan.queues):
            end = self.store.queue_state(topic, queue).max_offset
            if self._consumed.get(number, 0) > end:
                if plan.is_durable:
                    raise BrokerViolation(
                        f"{plan.name}/{queue} ends at {end}, was consumed to "
                        f"{self._consumed[number]}"
                    )
                self._consumed[number] = end

    # -- waiting ---------------------------------------------------------------------------

    async def quiesce(self) -> None:
        """Wait until every thread is idle and all that was written is synced and visible. Returns
        early when the process turns out to be dead."""
        self.disk.release_syncs()
        await self._settle()
        if self.is_dead:
            return
        if not await self.all_written():
            return
        await self.keeper_done()
        await until(self.is_idle)

    async def _settle(self) -> None:
        """Wait until every publish under way is answered or failed."""
        for producer in self.producers:
            for attempt in list(producer.unanswered):
                if attempt.task is not None:
                    await bounded(attempt.task)
