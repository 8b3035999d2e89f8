"""One group as it is served: the core, with a clock, the store and the disk around it.

    something happens -> the core is told -> `pump`: who waits is answered, what changed is
    committed, dead letters are sent, the timer is set

Nothing here decides what is delivered to whom. On the event loop.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from time import monotonic
from typing import Protocol

from holdfast.consumequeue.errors import StoreError
from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.topics import QueueKey, Topic
from holdfast.groups.asking import Ask, Pick, Reply
from holdfast.groups.batch_parts import batch_parts
from holdfast.groups.browsers import Browsers
from holdfast.groups.commits import Commits, CursorWriter, Writes
from holdfast.groups.counters import Counters, Serving
from holdfast.groups.cursor import Cursor
from holdfast.groups.cursor_rows import Page, page_of
from holdfast.groups.dead_letters import DeadLetters
from holdfast.groups.delivering import Delivering
from holdfast.groups.errors import InvalidReceipt
from holdfast.groups.filling import Filling
from holdfast.groups.group import Group
from holdfast.groups.group_clock import GroupClock
from holdfast.groups.group_records import GroupRecord
from holdfast.groups.head_source import StoreHeads
from holdfast.groups.lane import Lane
from holdfast.groups.receipts import ReceiptCodec
from holdfast.groups.recent_batches import RecentBatches
from holdfast.groups.rows import CursorKey
from holdfast.groups.service_types import Delivery, GroupState, Received, Status, Verb
from holdfast.groups.standing import Receipt
from holdfast.groups.timers import Alarm
from holdfast.groups.waiting import Waiting

_logger = logging.getLogger(__name__)


class Pages(Protocol):
    """Where is noted, without a sync, how far cursors have delivered."""

    def note(self, key: CursorKey, page: Page) -> None:
        """Note it."""

    def drop(self, key: CursorKey) -> None:
        """Forget a cursor."""


class Places(Protocol):
    """Who may wait, and for how long. `taken` raises HoldLimitExceeded."""

    def at_most(self, wait_s: float) -> float:
        """Return how long a request may wait that asks for so long."""

    def taken(self, client: str) -> AbstractContextManager[None]:
        """Take a place for a client's request, for as long as it waits."""


class ServedGroup:
    """A group that is served until `stop`. After changes from outside it is to be pumped."""

    def __init__(
        self,
        record: GroupRecord,
        *,
        store: MessageStore,
        writer: CursorWriter,
        pages: Pages,
        places: Places,
        recent: RecentBatches,
        codec: ReceiptCodec,
        clock: GroupClock,
        counters: Counters,
    ) -> None:
        self.record = record
        self.counters = counters
        self._store = store
        self._pages = pages
        self._places = places
        self._codec = codec
        self._clock = clock
        self.source = StoreHeads(
            store,
            recent,
            has_keys=lambda: self.core.config.mode == "keyed",
            lead_ms=clock.lead_ms,
            trimmed=self.trimmed,
        )
        self.core = Group(record.group_id, record.config, self.source)
        self._delivering = Delivering(self.source, codec, store.topic_by_id)
        self.commits = Commits(self.core, writer, clock.now_ms, counters)
        self._letters = DeadLetters(
            record.name, self.core, store, self._delivering, counters, self.pump
        )
        self._letters.topic_name = record.dead_letter_topic
        self._alarm = Alarm(self._ring, clock.now_ms)
        self.waiting = Waiting(
            self.core, self.source, clock, unpick=self._unpick, changed=self.pump
        )
        self._filling = Filling(self.core, self.source, clock, changed=self.pump)
        self.browsers = Browsers(self.core, self.source, self._delivering)
        self._is_ending = False
        self._moves = asyncio.Event()
        self._moves.set()
        self.serving: dict[QueueKey, Serving] = {}
        #: The service's: what it showed of the group last, and of which record and topics' names.
        self.shown: tuple[GroupRecord, Mapping[int, str], GroupState] | None = None

    # -- what it consists of -----------------------------------------------------------------

    def configure(self, record: GroupRecord) -> None:
        """Take another record's settings; its topics are told of one by one."""
        self.record = record
        self._letters.topic_name = record.dead_letter_topic
        if record.config != self.core.config:
            self.source.forget()  # whether keys matter may have changed
            self.core.configure(record.config)
        self.pump()

    def add_queue(self, key: QueueKey, cursor: Cursor) -> None:
        """Take in a queue. What the cursor has to write is written."""
        self.core.add_queue(key, cursor)
        self.serving[key] = Serving(self._clock.now_ms())

    def remove_topic(self, topic_id: int, writes: Writes) -> None:
        """Forget a topic; `writes` delete what it has."""
        lanes = self.core.topics[topic_id].lanes.values()
        for key in [lane.key for lane in lanes]:
            self.source.forget(key)
            self._pages.drop((self.core.group_id, *key))
            del self.serving[key]
        self.core.remove_topic(topic_id)
        self.commits.write(writes)
        self.pump()

    @property
    def in_flight(self) -> int:
        """How many messages are leased, or may be since before a restart."""
        return self.core.lease_count + sum(lane.cursor.grace_count for lane in self.lanes())

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Lease nothing meanwhile: who asks waits for its end, and then gets what there is."""
        moving = [each for each, topic in self.core.topics.items() if not topic.is_paused]
        for topic_id in moving:
            self.core.pause(topic_id, True)
        self._moves.clear()
        try:
            yield
        finally:
            self._moves.set()
            for topic_id in moving:
                if topic_id in self.core.topics:
                    self.core.pause(topic_id, False)
            self.pump()

    def lanes(self) -> Iterable[Lane]:
        """Return every queue of the group."""
        return [lane for topic in self.core.topics.values() for lane in topic.lanes.values()]

    # -- its end -----------------------------------------------------------------------------

    def drain(self, why: StoreError | None = None) -> None:
        """Answer every waiting request with nothing, or with `why`; none waits from now on."""
        self._is_ending = True
        self._filling.stop()
        self.waiting.drain(why)
        self._alarm.stop()

    async def stop(self, why: StoreError | None = None) -> None:
        """Drain, and commit what waits for it. May be called twice."""
        self.drain(why)
        await self._letters.stop()
        await self.waiting.stop()
        await self.source.stop()
        with suppress(StoreError):
            await self.commits.wait()
        self.commits.stop()
        for lane in self.lanes():
            self._note_page(lane.key)

    # -- receiving ---------------------------------------------------------------------------

    async def receive(self, ask: Ask, client: str, wait_s: float) -> Received:
        """Return what a member gets, or what comes within `wait_s`. Raises GroupError,
        HoldLimitExceeded, StoreError. Cancelling gives back what was leased."""
        if not self._moves.is_set():
            await self._moves.wait()
        reply = await self._filling.ask(ask)
        if not reply.is_answer and wait_s > 0 and not self._is_ending:
            began_s = monotonic()
            with self._places.taken(client):
                answer = await self.waiting.wait(
                    ask, self._places.at_most(wait_s), has_looked=reply.needs is None
                )
            held_s = monotonic() - began_s
            if answer is None:
                is_active = self._is_active(ask.member)
                return Received([], self.core.available(ask.topics), is_active, held_s=held_s)
            return replace(await self._received(answer, ask), held_s=held_s)
        return await self._received(reply, ask)

    def give_back(self, receipts: Sequence[str]) -> None:
        """Make messages available again that were leased, but did not get away."""
        self._release(self._decoded(receipts))

    # -- settling ----------------------------------------------------------------------------

    async def settle(
        self,
        verb: Verb,
        receipts: Sequence[str],
        *,
        delay_ms: int | None,
        lease_ms: int | None,
        used_ms: float | None,
        cumulative: bool,
    ) -> list[Status]:
        """Settle each receipt, durably. Raises StateUnavailable."""
        decoded = self._decoded(receipts)
        statuses = self.core.settle(
            verb,
            decoded,
            self._clock.now_ms(),
            delay_ms=delay_ms,
            lease_ms=lease_ms,
            used_ms=used_ms,
            cumulative=cumulative,
        )
        for status in statuses:
            self.counters.settled[verb.value, status.value] += 1
        self.pump()
        done = {
            (receipt.topic_id, receipt.queue)
            for receipt, status in zip(decoded, statuses, strict=True)
            if receipt is not None and status is Status.DONE
        }
        if done:
            await self.commits.wait()
        for key in done:
            self._note_page(key)
        return statuses

    async def seek(self, targets: Mapping[QueueKey, int]) -> dict[QueueKey, int]:
        """Go elsewhere in these queues, durably; return where. Raises StateUnavailable.

        What was rejected there is among the dead letters first: a cursor that starts again knows
        nothing of it."""
        await self._letters.have_gone(targets)
        reached = {}
        for key, offset in targets.items():
            lane = self._lane(key)
            if lane is not None:  # the group may have let go of its topic meanwhile
                self.core.seek(key, offset)
                self.source.forget(key)
                reached[key] = lane.cursor.floor
        self.pump()
        await self.commits.wait()
        for key in reached:
            self._note_page(key)
        return reached

    def leave(self, member: str) -> None:
        """A member has gone."""
        self.waiting.end(self.core.leave(member, self._clock.now_ms()))
        self.browsers.forget(member)
        self.pump()

    # -- what happens in the world -----------------------------------------------------------

    def arrived(self, ends: Mapping[QueueKey, int]) -> None:
        """Queues that it has reach to these ends."""
        for key, end in ends.items():
            self.core.arrived(key, end)
        self.pump()

    def trimmed(self, key: QueueKey, log_start: int) -> None:
        """A queue begins at `log_start` now."""
        self.core.trimmed(key, log_start, self._clock.now_ms())
        self.pump()

    def scan(self) -> int:
        """Look whether somebody waits for what is there; answer, and return how many."""
        if not len(self.waiting):
            return 0
        for topic_id, topic in self.core.topics.items():
            if topic.available > 0:  # at most so much is there
                self.core.stir(topic_id)
        return self.waiting.serve()

    def pump(self) -> None:
        """Do what the last change asks for. To be called after any, in the same turn."""
        if not self._is_ending:
            self.waiting.serve()
            self._letters.send(self.core.take_dead_letters())
            self._alarm.set(self.core.next_deadline())
        self.commits.begin()

    # -- inside: receiving -------------------------------------------------------------------

    async def _received(self, reply: Reply, ask: Ask) -> Received:
        """Return a reply with its messages, once what has to be durable before it is."""
        try:
            await self._filling.go_on(reply, ask)
            durable = self.commits.durable() if reply.commit_first else None
            deliveries, unreadable = await self._delivering.deliveries(reply.picks)
            if durable is not None:
                await asyncio.shield(durable)
        except BaseException:
            self._unpick(reply.picks)
            raise
        if unreadable:
            self._drop(unreadable)
        self._count(deliveries)
        for key in {pick.queue for pick in reply.picks if pick.receipt is not None}:
            self._note_page(key)
        return Received(deliveries, reply.available, reply.is_active, reply.is_notice)

    def _unpick(self, picks: Sequence[Pick]) -> None:
        self._release([pick.receipt for pick in picks if pick.receipt is not None])

    def _release(self, receipts: Sequence[Receipt | None]) -> None:
        if receipts:
            self.core.settle(Verb.RELEASE, receipts, self._clock.now_ms())
            self.counters.undelivered += len(receipts)
            self.pump()

    def _drop(self, picks: Sequence[Pick]) -> None:
        """Settle messages that are gone: damaged since they were looked at, or trimmed."""
        for pick in picks:
            _logger.warning("%s of queue %s cannot be read any more", pick.offset, pick.queue)
        self.core.unreadable(picks, self._clock.now_ms())
        self.pump()

    def _count(self, deliveries: Sequence[Delivery]) -> None:
        now_ms = self._clock.now_ms()
        self.counters.delivered += len(deliveries)
        self.counters.redelivered += sum([each.redelivered for each in deliveries])
        for part in batch_parts(deliveries):
            first = part.deliveries[0]
            serving = self.serving.get((first.topic.topic_id, first.queue))
            if serving is not None:
                serving.add(len(part.rows), part.body_bytes(), now_ms)

    def _is_active(self, member: str) -> bool:
        return self.core.activity.active in (None, member)

    # -- inside: the rest --------------------------------------------------------------------

    def _ring(self) -> None:
        """Do what the time asks for."""
        self.waiting.expire(self.core.tick(self._clock.now_ms()))
        self.pump()

    def _decoded(self, receipts: Iterable[str]) -> list[Receipt | None]:
        decoded: list[Receipt | None] = []
        for text in receipts:
            try:
                decoded.append(self._codec.decode(text))
            except InvalidReceipt:
                decoded.append(None)
        return decoded

    def _lane(self, key: QueueKey) -> Lane | None:
        topic = self.core.topics.get(key[0])
        return None if topic is None else topic.lanes.get(key[1])

    def _note_page(self, key: QueueKey) -> None:
        lane = self._lane(key)
        if lane is not None:
            self._pages.note((self.core.group_id, *key), page_of(lane.cursor))

    def topics(self) -> list[Topic]:
        """Return the group's topics, as they are now."""
        found = map(self._store.topic_by_id, self.core.topics)
        return [topic for topic in found if topic is not None]
