"""A group with leases on a simulated broker: its members, and the judge of their deliveries.

One group, "workers", reads every topic that exists when the group is created. Messages that its
members reject go to the topic "dead". If the process dies during a request, its effect is unknown:
the messages of that request may be redelivered, or not. The rules:

    risen      a settled message is redelivered without a seek
    too-early  a leased message, or a failed one within its delay, is redelivered
    attempts   a redelivery is marked as new, or its attempt number is too small
    order      a reply is not in offset order within a queue
    passed     the group's floor is after an unsettled message, or the message is never delivered
    letters    a rejected message does not have exactly one dead letter
"""

import asyncio
import random
import shutil
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import cast

from holdfast.consumequeue.errors import StoreError
from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.service import GroupService
from holdfast.groups.service_types import Delivery, Receipt, ReceiveRequest, Status, Verb
from holdfast.groups.settings import GroupSettings, Subscription
from holdfast.holdservice.pull_request_hold_service import PullRequestHoldService
from holdfast.storage.storage import StorageEvents
from tests.support.histories.history import HistoryViolation, Record
from tests.support.simulation.simulated_clients import Plan
from tests.support.simulation.simulated_process import bounded, until
from tests.support.simulation.simulated_reading import SimulatedReading

GROUP, DEAD = "workers", "dead"
LEASE_MS = 5_000
MEMBERS = ("a", "b", "c")
_SETTLES = (Verb.ACK, Verb.REJECT)


@dataclass(slots=True)
class QueueModel:
    """What the members know of one queue."""

    start: int = 0
    """The offset at which the group started, or of its last seek."""
    settled: set[int] = field(default_factory=set)
    unconfirmed: set[int] = field(default_factory=set)
    """Offsets that may be settled or not: their answers are missing."""
    leases: dict[int, int] = field(default_factory=dict)
    """By offset, the group's time before which no other member may receive the message."""
    least_attempts: dict[int, int] = field(default_factory=dict)
    """By offset of each delivered message, the smallest attempt number of its next delivery."""
    last: dict[int, str | Receipt | None] = field(default_factory=dict)
    """By offset, the receipt of its last delivery."""
    rejected: set[int] = field(default_factory=set)

    def record_call(self, verb: Verb, offset: int) -> None:
        """Record that a member has sent a settlement; its answer is not known yet."""
        self.leases.pop(offset, None)
        if verb in _SETTLES:
            self.unconfirmed.add(offset)

    def record_answer(self, verb: Verb, offset: int, status: Status) -> None:
        """Record the answer to a settlement: it was applied, or it was stale."""
        if verb in _SETTLES and status is Status.DONE:
            self.settled.add(offset)
            if verb is Verb.REJECT:
                self.rejected.add(offset)

    def record_seek(self, offset: int, *, is_confirmed: bool) -> None:
        """Record a seek to an offset, which the broker may have confirmed."""
        self.forget_deliveries()
        if is_confirmed:
            self.start = offset
            self.unconfirmed = {each for each in self.unconfirmed if each < offset}
        else:
            self.unconfirmed |= {each for each in self.settled if each >= offset}
            self.unconfirmed |= set(range(self.start, offset))
            self.start = min(self.start, offset)
        self.settled = {each for each in self.settled if each < offset}

    def keep_only(self, begin: int, end: int) -> None:
        """Record that the queue has only the offsets from `begin` up to but not including `end`.

        A power loss removed later messages, or retention removed earlier ones. New messages may get
        the offsets at the end.
        """
        self.start = max(min(self.start, end), begin)
        for offsets in (self.settled, self.unconfirmed, self.rejected):
            offsets -= {each for each in offsets if not begin <= each < end}
        for by_offset in (self.leases, self.least_attempts, self.last):
            for at in [at for at in by_offset if not begin <= at < end]:
                del by_offset[at]

    def forget_deliveries(self) -> None:
        """Forget all deliveries: any message may be delivered again at once, as a new one."""
        self.leases.clear()
        self.least_attempts.clear()
        self.last.clear()

    def record_return(self, delivery: Delivery, until_ms: int) -> None:
        """Record an answered nack or release.

        The message must not be redelivered before `until_ms`, unless it was redelivered already.
        """
        if self.last.get(delivery.offset) == delivery.receipt:
            self.least_attempts[delivery.offset] = delivery.attempt + 1
            self.leases[delivery.offset] = until_ms

    def end_leases(self, now_ms: int) -> None:
        """Forget the leases that have ended at this time.

        They stay ended, even if the wall clock is set back and the broker then restarts.
        """
        self.leases = {at: ends for at, ends in self.leases.items() if ends > now_ms}

    def bound_leases(self, now_ms: int) -> None:
        """Adjust the leases for a start of the broker at this time, possibly with a changed clock.

        Leases that have ended stay ended, and no lease lasts longer from now on than a full lease.
        """
        self.end_leases(now_ms)
        most_ms = now_ms + LEASE_MS
        self.leases = {at: min(ends, most_ms) for at, ends in self.leases.items()}

    def is_open(self, offset: int) -> bool:
        """Return whether a message still has to be delivered."""
        return (
            offset >= self.start and offset not in self.settled and offset not in self.unconfirmed
        )


class SimulatedGroups(SimulatedReading):
    """A simulated broker with a group. Until `create_group` is called, it has no group."""

    groups: GroupService

    def __init__(self, directory: Path, rng: random.Random) -> None:
        super().__init__(directory, rng)
        self.models: dict[int, QueueModel] = defaultdict(QueueModel)
        """Models by queue number, in one numbering of the queues of all topics."""
        self.held: list[list[Delivery]] = []
        """Replies whose messages no member has settled yet."""
        self._plans_by_topic: dict[str, Plan] = {}
        self._settling: set[asyncio.Task[None]] = set()
        self._passed_s = 0.0
        self._is_serving = False
        self._life = 0
        """The number of the current process; it changes with each kill and crash."""

    # -- the process -----------------------------------------------------------------------

    async def open(self) -> bool:
        """Open storage and groups."""
        power_lost = await super().open()
        self.groups = GroupService(
            self.store,
            self.storage.groups,
            self.config.groups,
            hold=cast(PullRequestHoldService, _Places()),
            ageing_us=self.storage.ageing.now_us,
            wall_us=self.clock.now_us,
            passed_s=lambda: self._passed_s,
        )
        self.store.topics.created = self.groups.changes.topic_created
        self.store.topics.deleted_listeners.append(self.groups.registry.topic_deleted)
        await self.groups.start()
        self._is_serving = True
        return power_lost

    async def close(self) -> None:
        """Stop the groups, then close the storage."""
        if self._is_serving:
            for model in self.models.values():
                model.end_leases(self.now_ms())
            self._is_serving = False
            await bounded(self.groups.stop())
        await self._await_answers()
        await super().close()

    def forget(self, name: str) -> None:
        """Delete an LMDB environment.

        The cursors of groups are part of the state: without it, settled messages may be
        redelivered.
        """
        super().forget(name)
        if name == "state":
            self.faults_to_come.add("damaged-groups")
            for model in self.models.values():
                model.unconfirmed |= model.settled
                model.settled.clear()
                model.forget_deliveries()

    def _storage_opened(self) -> None:
        for model in self.models.values():
            model.bound_leases(self.storage.groups.opened_ms)

    def _lose_power(self) -> None:
        super()._lose_power()
        if self.rng.random() < 0.5:  # the file was never synced
            (self._data_dir / "state" / "groups.page").unlink(missing_ok=True)

    def _keep_lmdb(self) -> None:
        self._life += 1  # no request is answered from here on
        super()._keep_lmdb()
        kept = self._kept_lmdb / "state"
        (kept / "groups").mkdir()
        self.storage.groups.store.env.copy(kept / "groups")
        shutil.copy(self._data_dir / "state" / "groups.page", kept)

    def _events(self) -> StorageEvents:
        return StorageEvents(
            arrival_listeners=[self._arrived], on_failure=lambda error: None, on_trim=self._trimmed
        )

    def _arrived(self, advanced: dict[QueueKey, int]) -> None:
        if self._is_serving:
            self.groups.queue_changes.note(advanced)

    def _trimmed(self, begins: Mapping[QueueKey, int]) -> None:
        if self._is_serving:
            self.groups.queue_changes.note(begins)

    # -- members ---------------------------------------------------------------------------

    async def create_group(self) -> None:
        """Create the group with all existing topics."""
        topics = {plan.name: Subscription() for plan in self.plans}
        spec = GroupSettings(
            topics=topics, lease_ms=LEASE_MS, max_attempts=0, dead_letter_topic=DEAD
        )
        await self.store.topics.create(DEAD, queues=1, fields={"durability": "fsync"})
        await self.groups.put_group(GROUP, spec)
        self._plans_by_topic = {plan.name: plan for plan in self.plans}

    async def receive(self, member: str, most: int) -> int:
        """Receive once; return the number of messages."""
        if not self._plans_by_topic:
            return 0
        failed_reads = self.disk.failed_reads
        sent_ms = self.now_ms()
        try:
            received = await self.groups.receive(
                GROUP, ReceiveRequest(member, most, 1 << 20, client="client")
            )
        except (StoreError, OSError):
            if self.disk.failed_reads == failed_reads and not self.is_dead:
                raise
            return 0
        if received.deliveries:
            self.held.append(received.deliveries)
        by_queue: dict[int, list[int]] = defaultdict(list)
        for each in received.deliveries:
            by_queue[self._number(each)].append(each.offset)
            self.judge(each, sent_ms)
        for number, offsets in by_queue.items():
            if any(one >= other for one, other in pairwise(offsets)):
                raise HistoryViolation("order", f"{offsets} of queue {number} in one reply")
        return len(received.deliveries)

    def settle(
        self, deliveries: list[Delivery], verb: Verb, delay_ms: int = 0
    ) -> "asyncio.Task[None]":
        """Settle messages; the task ends with the answer, or with the process."""
        for each in deliveries:
            self.models[self._number(each)].record_call(verb, each.offset)
        task = asyncio.create_task(self._settle_and_judge(deliveries, verb, delay_ms))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return task

    async def seek(self, plan: Plan, queue: int, offset: int) -> None:
        """Seek the group to an offset of one queue."""
        if plan.name not in self._plans_by_topic:
            return
        model = self.models[plan.queues[queue]]
        model.record_seek(offset, is_confirmed=False)
        reached = await self.groups.seek(GROUP, {plan.name: {queue: offset}})
        model.record_seek(reached[plan.name][queue], is_confirmed=True)

    async def leave(self, member: str) -> None:
        """Let a member leave the group."""
        if self._plans_by_topic:
            for model in self.models.values():
                model.leases.clear()  # the owners of the leases are not recorded
            await self.groups.leave(GROUP, member)

    def let_time_pass(self, seconds: float) -> None:
        """Advance the clock, so that leases grow older."""
        self._passed_s += seconds
        if self._plans_by_topic:
            self.groups.registry.get(GROUP).process_deadlines()

    async def _settle_and_judge(
        self, deliveries: list[Delivery], verb: Verb, delay_ms: int
    ) -> None:
        receipts, life = [each.receipt or "" for each in deliveries], self._life
        until_ms = self.now_ms() + (delay_ms if verb is Verb.NACK else 0)
        with suppress(StoreError):
            statuses = await self.groups.settle(GROUP, verb, receipts, delay_ms=delay_ms)
            if life != self._life:
                return
            for each, status in zip(deliveries, statuses, strict=True):
                if status is Status.INVALID:
                    raise HistoryViolation("receipts", f"{each} was not known")
                model = self.models[self._number(each)]
                model.record_answer(verb, each.offset, status)
                if verb not in _SETTLES and status is Status.DONE:
                    model.record_return(each, until_ms)

    async def _await_answers(self) -> None:
        """Wait for all pending answers; raise the first violation that was found."""
        while self._settling:
            await bounded(asyncio.gather(*self._settling))

    # -- judging ---------------------------------------------------------------------------

    def judge(self, delivery: Delivery, sent_ms: int) -> None:
        model, number = self.models[self._number(delivery)], self._number(delivery)
        offset = delivery.offset
        if offset in model.settled:
            raise HistoryViolation("risen", f"{offset} of queue {number} was settled")
        if model.leases.get(offset, 0) > self.now_ms():
            raise HistoryViolation(
                "too-early", f"{offset} of queue {number}, leased until {model.leases[offset]}"
            )
        least = model.least_attempts.get(offset)
        if least is not None and (delivery.attempt < least or not delivery.redelivered):
            raise HistoryViolation(
                "attempts",
                f"{offset} of queue {number} came as attempt {delivery.attempt}, redelivered: "
                f"{delivery.redelivered}, though {least - 1} had ended",
            )
        model.least_attempts[offset], model.last[offset] = delivery.attempt, delivery.receipt
        model.unconfirmed.discard(offset)  # this delivery shows that it was not settled
        model.leases[offset] = sent_ms + LEASE_MS
        plan = self._plans_by_topic[delivery.topic.name]
        key, body = delivery.batch.key(delivery.row), delivery.batch.body(delivery.row)
        self.history.record_consumed(Record(number, offset, key, body), durable=plan.is_durable)

    def verify_group(self, *, power_lost: bool = False) -> None:
        """Judge the group after a restart.

        A power loss may have removed the newest messages of a topic in written mode. New messages
        may have their offsets, so no lease is valid there.
        """
        if not self._plans_by_topic:
            return
        self.held.clear()  # their members got no answer: the leases expire
        for plan in self._plans_by_topic.values():
            topic = self.topic(plan)
            served = self.groups.registry.by_name[GROUP]
            lanes = served.lanes_of(topic.topic_id)
            floors = {lane.key[1]: lane.cursor.floor for lane in lanes}
            for queue, number in enumerate(plan.queues):
                state = self.store.reading.queue_state(topic, queue)
                model = self.models[number]
                model.keep_only(state.min_offset, state.max_offset)
                if power_lost and not plan.is_durable:
                    model.forget_deliveries()
                passed = [at for at in range(model.start, floors[queue]) if model.is_open(at)]
                if passed:
                    raise HistoryViolation(
                        "passed", f"queue {number} continues at {floors[queue]}, without {passed}"
                    )

    async def drain_group(self) -> None:
        """Settle all messages; none may be left."""
        if not self._plans_by_topic:
            return
        await self.quiesce()
        self.let_time_pass(10 * LEASE_MS / 1000)
        while await self.receive("drain", 1000):
            await self.settle(self.held.pop(), Verb.ACK)
        self.verify_group()
        for plan in self._plans_by_topic.values():
            for queue, number in enumerate(plan.queues):
                state, model = (
                    self.store.reading.queue_state(self.topic(plan), queue),
                    self.models[number],
                )
                begin = max(model.start, state.min_offset)
                left = [at for at in range(begin, state.max_offset) if model.is_open(at)]
                if left:
                    raise HistoryViolation("passed", f"queue {number} never gave {left}")
        lanes = self.groups.registry.by_name[GROUP].lanes
        await until(lambda: not any(lane.cursor.dying for lane in lanes()))
        self._judge_letters([letter async for letter in self._letters()])

    def _judge_letters(self, letters: Collection[tuple[int, int]]) -> None:
        if len(set(letters)) < len(letters):
            raise HistoryViolation("letters", f"one is there twice: {sorted(letters)}")
        for number, model in self.models.items():
            missing = model.rejected - {at for other, at in letters if other == number}
            if missing and not self._are_letters_trimmed():
                raise HistoryViolation("letters", f"{missing} of queue {number} are not there")

    def _are_letters_trimmed(self) -> bool:
        return self.store.reading.queue_state(self.store.table.get(DEAD), 0).min_offset > 0

    async def _letters(self) -> AsyncIterator[tuple[int, int]]:
        """Yield the source message of each dead letter."""
        topic = self.store.table.get(DEAD)
        state = self.store.reading.queue_state(topic, 0)
        offset = state.min_offset
        while offset < state.max_offset:
            fetched = await self.store.reading.read(
                topic, 0, offset, max_messages=1000, max_bytes=1024 * 1024
            )
            for piece in fetched.slices:
                for row in piece.rows:
                    properties = piece.batch.properties(row)
                    plan = self._plans_by_topic[properties["holdfast-dead-topic"]]
                    number = plan.queues[int(properties["holdfast-dead-queue"])]
                    yield number, int(properties["holdfast-dead-offset"])
            offset = fetched.next_offset

    def _number(self, delivery: Delivery) -> int:
        return self._plans_by_topic[delivery.topic.name].queues[delivery.queue]

    def now_ms(self) -> int:
        return self.groups.registry.clock.now_ms()


class _Places:
    """Wait slots without a limit; no member waits."""

    def limit_wait(self, wait_s: float) -> float:
        return wait_s

    def occupy_slot(self, client: str) -> None: ...

    def free_slot(self, client: str) -> None: ...
