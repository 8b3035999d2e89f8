"""A group with leases on a simulated broker: its members, and what they may be given and when.

One group, "workers", reads every topic that there was when it was made; what its members reject
goes to the topic "dead". Of a request that the process did not survive nobody knows whether it
counted: what it was about may come again, and need not. Judged are

    risen      what was settled comes again, though no seek asked for it
    too-early  what is leased is delivered to somebody else
    order      a reply is not in order within a queue
    passed     a group stands behind what nobody settled, or never delivers it
    letters    what was rejected is not among the dead letters once
"""

import asyncio
import random
import shutil
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from holdfast.consumequeue.errors import StoreError
from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.service import GroupService
from holdfast.groups.service_types import (
    Delivery,
    GroupSpec,
    ReceiveAsk,
    Status,
    TopicSpec,
    Verb,
)
from holdfast.storage import StorageEvents
from tests.support.history import Found, HistoryViolation
from tests.support.simulated_clients import Plan
from tests.support.simulated_process import bounded, until
from tests.support.simulated_reading import SimulatedReading

GROUP, DEAD = "workers", "dead"
LEASE_MS = 5_000
MEMBERS = ("a", "b", "c")
_SETTLES = (Verb.ACK, Verb.REJECT)


@dataclass(slots=True)
class QueueBook:
    """What the members know of one queue."""

    start: int = 0
    """Where the group began, or went by a seek."""
    settled: set[int] = field(default_factory=set)
    unsure: set[int] = field(default_factory=set)
    """What may be settled, or not: nobody was told."""
    leases: dict[int, int] = field(default_factory=dict)
    """By offset, the group's time before which nobody else may have it."""
    rejected: set[int] = field(default_factory=set)

    def said(self, verb: Verb, offset: int) -> None:
        """A member has said what became of a message; the answer is to come."""
        self.leases.pop(offset, None)
        if verb in _SETTLES:
            self.unsure.add(offset)

    def answered(self, verb: Verb, offset: int, status: Status) -> None:
        """What the member said counted, or was stale."""
        if verb in _SETTLES and status is Status.DONE:
            self.settled.add(offset)
            if verb is Verb.REJECT:
                self.rejected.add(offset)

    def sought(self, offset: int, *, is_sure: bool) -> None:
        """The group starts again at an offset, perhaps."""
        self.leases.clear()
        if is_sure:
            self.start = offset
            self.unsure = {each for each in self.unsure if each < offset}
        else:
            self.unsure |= {each for each in self.settled if each >= offset}
            self.unsure |= set(range(self.start, offset))
            self.start = min(self.start, offset)
        self.settled = {each for each in self.settled if each < offset}

    def cut(self, begin: int, end: int) -> None:
        """The queue has only what is from `begin` to before `end`: a power loss took what came
        then, or retention what came before. Other messages will have those offsets."""
        self.start = max(min(self.start, end), begin)
        for offsets in (self.settled, self.unsure, self.rejected):
            offsets -= {each for each in offsets if not begin <= each < end}
        self.leases = {at: ends for at, ends in self.leases.items() if begin <= at < end}

    def bound_leases(self, now_ms: int) -> None:
        """The broker starts at this time, perhaps by a clock that was set. What it finds over stays
        over, and nothing lasts longer from now on than a lease can."""
        most_ms = now_ms + LEASE_MS
        self.leases = {at: min(ends, most_ms) for at, ends in self.leases.items() if ends > now_ms}

    def is_open(self, offset: int) -> bool:
        """Say whether a message has to be delivered yet."""
        return offset >= self.start and offset not in self.settled and offset not in self.unsure


class SimulatedGroups(SimulatedReading):
    """A simulated broker with a group. Without `create_group` there is none."""

    groups: GroupService

    def __init__(self, directory: Path, rng: random.Random) -> None:
        super().__init__(directory, rng)
        self.books: dict[int, QueueBook] = defaultdict(QueueBook)
        """By the queue's number in the row of all topics' queues."""
        self.held: list[list[Delivery]] = []
        """Replies whose messages nobody has said anything of."""
        self._plans_by_topic: dict[str, Plan] = {}
        self._settling: set[asyncio.Task[None]] = set()
        self._passed_s = 0.0
        self._is_serving = False
        self._life = 0
        """Another one after each kill and crash."""

    # -- the process -----------------------------------------------------------------------

    async def open(self) -> bool:
        """Open storage and groups."""
        power_lost = await super().open()
        self.groups = GroupService(
            self.store,
            self.storage.groups,
            self.config.groups,
            places=_Places(),
            ageing_us=self.storage.ageing.now_us,
            passed_s=lambda: self._passed_s,
        )
        self.store.topic_deleted = self.groups.topic_deleted
        await self.groups.start()
        self._is_serving = True
        return power_lost

    async def close(self) -> None:
        """Stop the groups, then the storage."""
        if self._is_serving:
            self._is_serving = False
            await bounded(self.groups.stop())
        await self._all_said()
        await super().close()

    def forget(self, name: str) -> None:
        """Delete an LMDB environment; with the state the cursors of groups are gone, and what
        was settled may come again."""
        super().forget(name)
        if name == "state":
            self.faults_to_come.add("damaged-groups")
            for book in self.books.values():
                book.unsure |= book.settled
                book.settled.clear()
                book.leases.clear()

    def _storage_opened(self) -> None:
        for book in self.books.values():
            book.bound_leases(self.storage.groups.opened_ms)

    def _lose_power(self) -> None:
        super()._lose_power()
        if self.rng.random() < 0.5:  # it was never synced
            (self._data_dir / "state" / "groups.page").unlink(missing_ok=True)

    def _keep_lmdb(self) -> None:
        self._life += 1  # from here on nobody is told anything
        super()._keep_lmdb()
        kept = self._kept_lmdb / "state"
        (kept / "groups").mkdir()
        self.storage.groups.store._env.copy(str(kept / "groups"))
        shutil.copy(self._data_dir / "state" / "groups.page", kept)

    def _events(self) -> StorageEvents:
        return StorageEvents(
            arrived=self._arrived, failed=lambda error: None, trimmed=self._trimmed
        )

    def _arrived(self, advanced: dict[QueueKey, int]) -> None:
        if self._is_serving:
            self.groups.arrived(advanced)

    def _trimmed(self, begins: Mapping[QueueKey, int]) -> None:
        if self._is_serving:
            self.groups.trimmed(begins)

    # -- members ---------------------------------------------------------------------------

    async def create_group(self) -> None:
        """Make the group, on every topic that there is."""
        topics = {plan.name: TopicSpec() for plan in self.plans}
        spec = GroupSpec(topics=topics, lease_ms=LEASE_MS, max_attempts=0, dead_letter_topic=DEAD)
        await self.store.create_topic(DEAD, queues=1, fields={"durability": "fsync"})
        await self.groups.put_group(GROUP, spec)
        self._plans_by_topic = {plan.name: plan for plan in self.plans}

    async def receive(self, member: str, most: int) -> int:
        """Receive once; return how many messages came."""
        if not self._plans_by_topic:
            return 0
        failed_reads = self.disk.failed_reads
        asked_ms = self._now_ms()
        try:
            received = await self.groups.receive(GROUP, ReceiveAsk(member, "client", most))
        except (StoreError, OSError):
            if self.disk.failed_reads == failed_reads and not self.is_dead:
                raise
            return 0
        if received.deliveries:
            self.held.append(received.deliveries)
        by_queue: dict[int, list[int]] = defaultdict(list)
        for each in received.deliveries:
            by_queue[self._number(each)].append(each.offset)
            self._judge(each, asked_ms)
        for number, offsets in by_queue.items():
            if any(one >= other for one, other in pairwise(offsets)):
                raise HistoryViolation("order", f"{offsets} of queue {number} in one reply")
        return len(received.deliveries)

    def settle(self, deliveries: list[Delivery], verb: Verb) -> "asyncio.Task[None]":
        """Say what became of messages; the task ends with the answer, or with the process."""
        for each in deliveries:
            self.books[self._number(each)].said(verb, each.offset)
        task = asyncio.create_task(self._settle_them(deliveries, verb))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return task

    async def seek(self, plan: Plan, queue: int, offset: int) -> None:
        """Let the group start again at an offset of one queue."""
        if plan.name not in self._plans_by_topic:
            return
        book = self.books[plan.queues[queue]]
        book.sought(offset, is_sure=False)
        reached = await self.groups.seek(GROUP, {plan.name: {queue: offset}})
        book.sought(reached[plan.name][queue], is_sure=True)

    async def leave(self, member: str) -> None:
        """A member goes."""
        if self._plans_by_topic:
            for book in self.books.values():
                book.leases.clear()  # whose they were is not noted
            await self.groups.leave(GROUP, member)

    def let_time_pass(self, seconds: float) -> None:
        """Let leases grow older."""
        self._passed_s += seconds
        if self._plans_by_topic:
            self.groups._served.get(GROUP)._ring()

    async def _settle_them(self, deliveries: list[Delivery], verb: Verb) -> None:
        receipts, life = [each.receipt or "" for each in deliveries], self._life
        with suppress(StoreError):
            statuses = await self.groups.settle(GROUP, verb, receipts, delay_ms=0)
            if life != self._life:
                return
            for each, status in zip(deliveries, statuses, strict=True):
                if status is Status.INVALID:
                    raise HistoryViolation("receipts", f"{each} was not known")
                self.books[self._number(each)].answered(verb, each.offset, status)

    async def _all_said(self) -> None:
        """Wait for every answer that is under way; raise what somebody found wrong."""
        while self._settling:
            await bounded(asyncio.gather(*self._settling))

    # -- judging ---------------------------------------------------------------------------

    def _judge(self, delivery: Delivery, asked_ms: int) -> None:
        book, number = self.books[self._number(delivery)], self._number(delivery)
        offset = delivery.offset
        if offset in book.settled:
            raise HistoryViolation("risen", f"{offset} of queue {number} was settled")
        if book.leases.get(offset, 0) > self._now_ms():
            raise HistoryViolation(
                "too-early", f"{offset} of queue {number}, leased until {book.leases[offset]}"
            )
        book.unsure.discard(offset)  # it was not settled, after all
        book.leases[offset] = asked_ms + LEASE_MS
        plan = self._plans_by_topic[delivery.topic.name]
        key, body = delivery.batch.key(delivery.row), delivery.batch.body(delivery.row)
        self.history.consumed(Found(number, offset, key, body), durable=plan.is_durable)

    def verify_group(self, *, power_lost: bool = False) -> None:
        """Judge what a restart left of the group. A power loss may have taken the newest messages
        of a topic in written mode: its offsets may be others', so that no lease holds there."""
        if not self._plans_by_topic:
            return
        self.held.clear()  # whoever had those was told nothing: their leases end by themselves
        for plan in self._plans_by_topic.values():
            topic = self.topic(plan)
            floors = self.groups.floors(GROUP, plan.name)
            for queue, number in enumerate(plan.queues):
                state = self.store.queue_state(topic, queue)
                book = self.books[number]
                book.cut(state.min_offset, state.max_offset)
                if power_lost and not plan.is_durable:
                    book.leases.clear()
                passed = [at for at in range(book.start, floors[queue]) if book.is_open(at)]
                if passed:
                    raise HistoryViolation(
                        "passed", f"queue {number} goes on at {floors[queue]}, without {passed}"
                    )

    async def drain_group(self) -> None:
        """Settle all that there is; nothing may be left."""
        if not self._plans_by_topic:
            return
        await self.quiesce()
        self.let_time_pass(10 * LEASE_MS / 1000)
        while await self.receive("drain", 1000):
            await self.settle(self.held.pop(), Verb.ACK)
        self.verify_group()
        for plan in self._plans_by_topic.values():
            for queue, number in enumerate(plan.queues):
                state, book = self.store.queue_state(self.topic(plan), queue), self.books[number]
                begin = max(book.start, state.min_offset)
                left = [at for at in range(begin, state.max_offset) if book.is_open(at)]
                if left:
                    raise HistoryViolation("passed", f"queue {number} never gave {left}")
        await until(lambda: self.groups.describe(GROUP).dying == 0)
        self._judge_letters([letter async for letter in self._letters()])

    def _judge_letters(self, letters: Collection[tuple[int, int]]) -> None:
        if len(set(letters)) < len(letters):
            raise HistoryViolation("letters", f"one is there twice: {sorted(letters)}")
        for number, book in self.books.items():
            missing = book.rejected - {at for other, at in letters if other == number}
            if missing and not self._are_letters_trimmed():
                raise HistoryViolation("letters", f"{missing} of queue {number} are not there")

    def _are_letters_trimmed(self) -> bool:
        return self.store.queue_state(self.store.topic(DEAD), 0).min_offset > 0

    async def _letters(self) -> AsyncIterator[tuple[int, int]]:
        """Yield of which message each dead letter is one."""
        topic = self.store.topic(DEAD)
        state = self.store.queue_state(topic, 0)
        offset = state.min_offset
        while offset < state.max_offset:
            fetched = await self.store.read(
                topic, 0, offset, max_messages=1000, max_bytes=1024 * 1024
            )
            for piece in fetched.slices:
                for row in piece.rows:
                    said = piece.batch.properties(row)
                    plan = self._plans_by_topic[said["holdfast-dead-topic"]]
                    number = plan.queues[int(said["holdfast-dead-queue"])]
                    yield number, int(said["holdfast-dead-offset"])
            offset = fetched.next_offset

    def _number(self, delivery: Delivery) -> int:
        return self._plans_by_topic[delivery.topic.name].queues[delivery.queue]

    def _now_ms(self) -> int:
        return self.groups._served.clock.now_ms()


class _Places:
    """Room for whoever wants to wait; nobody does."""

    def at_most(self, wait_s: float) -> float:
        return wait_s

    @contextmanager
    def taken(self, client: str) -> Iterator[None]:
        yield
