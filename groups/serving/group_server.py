"""Serves one group: connects the group core with the clock, the message store and the disk.

    an event -> the core is updated -> `after_change`: answer waiting requests, send dead letters,
    set the timer, write the page, commit

The core decides which member gets which message; this module does not. On the event loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from time import monotonic
from typing import Any

from holdfast.consumequeue.errors import StoreError
from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.slices import in_slices
from holdfast.consumequeue.topics import QueueKey, Topic
from holdfast.groups.core import settling
from holdfast.groups.core.group import ENDED_A_TURN, Group, MayEnd
from holdfast.groups.core.group_topic import QueueLane
from holdfast.groups.core.last_values import KnownKeys
from holdfast.groups.core.members import ActiveListeners, AllInFlight, OnActive
from holdfast.groups.core.receipts import Receipt, ReceiptCodec
from holdfast.groups.core.receiving import receive
from holdfast.groups.core.requests import ReceiveRequest, Reply, SelectedMessage
from holdfast.groups.core.subscribing import Subscriptions
from holdfast.groups.core.unused import UnusedTime
from holdfast.groups.cursor.cursor import Cursor
from holdfast.groups.errors import ExclusiveHeld, GroupsStopping, InvalidReceipt
from holdfast.groups.service_types import (
    CheckTopic,
    Delivery,
    GroupCounters,
    Received,
    Status,
    Verb,
    allow_all,
    batch_parts,
)
from holdfast.groups.serving.browsers import Browsers
from holdfast.groups.serving.clock import DeadlineTimer, GroupClock
from holdfast.groups.serving.commits import Commits
from holdfast.groups.serving.dead_letters import DeadLetters
from holdfast.groups.serving.head_source import RecentBatches, StoreHeads
from holdfast.groups.serving.parsed_filters import Filters, characters_of
from holdfast.groups.serving.queue_watch import QueueChanges, QueueWatch
from holdfast.groups.serving.receive_flow import (
    MESSAGES_A_TURN,
    DeliveryRate,
    ReceiveFlow,
    Ticket,
    Waiting,
)
from holdfast.groups.storage.cursor_store import Writes
from holdfast.groups.storage.group_records import GroupRecord
from holdfast.groups.storage.open import OpenedGroups
from holdfast.holdservice.pull_request_hold_service import PullRequestHoldService

_logger = logging.getLogger(__name__)

#: At most this many receipts are decoded or settled in one event loop iteration. Each takes about
#: 10 microseconds.
SETTLED_A_TURN = 500
#: The size of the cache of recently read batches, which all groups share.
RECENT_BYTES = 32 * 1024 * 1024
#: After a failed read for waiting requests, wait this long before the next try.
RETRY_S = 1.0
_STATUSES = [(status, status.value) for status in Status]
_IS_REDELIVERED = attrgetter("redelivered")


@dataclass(frozen=True)
class SharedParts:
    """The objects that all groups of a broker use."""

    store: MessageStore
    opened: OpenedGroups
    hold: PullRequestHoldService
    """It limits how many requests wait, and how long."""
    clock: GroupClock
    in_flight: AllInFlight
    known_keys: KnownKeys
    counters: GroupCounters = field(default_factory=GroupCounters)
    changes: QueueChanges = field(default_factory=QueueChanges)
    recent: RecentBatches = field(default_factory=lambda: RecentBatches(RECENT_BYTES))

    @property
    def receipt_key(self) -> bytes:
        """The broker's secret key that signs receipts. It exists if any group exists."""
        key = self.opened.table.receipt_key
        assert key is not None
        return key

    @cached_property
    def codec(self) -> ReceiptCodec:
        """Encodes and decodes receipts."""
        return ReceiptCodec(self.receipt_key)


class GroupServer:
    """Serves one group until `stop`."""

    def __init__(
        self,
        record: GroupRecord,
        shared: SharedParts,
        begin_queue: Callable[["GroupServer", QueueKey], None],
        on_unused: Callable[["GroupServer"], None],
    ) -> None:
        """`begin_queue` adds a queue that is new in a topic of the group. `on_unused` is called
        when the group has had no member for `auto_delete_after_ms`."""
        self.record = record
        self.counters = shared.counters
        self._begin_queue = begin_queue
        self._on_unused = on_unused
        self._unused = UnusedTime()
        self._store = store = shared.store
        self._page = shared.opened.page
        self._hold = shared.hold
        self._codec = shared.codec
        self._clock = clock = shared.clock
        self.watch = QueueWatch(shared.changes, self._process_changes)
        self.subscriptions = Subscriptions(record.subscriptions)
        #: The parsed filters by text, kept so that no filter is parsed twice.
        self.filters: Filters = {}
        #: The length of the texts of all filters together.
        self.filter_characters = 0
        self.source = StoreHeads(
            store.table.by_id,
            store.reading,
            shared.recent,
            has_keys=lambda: self.core.config.mode == "keyed",
            has_costs=lambda: self.core.config.cost == "given",
            wall_ms=clock.wall_ms,
            on_trimmed=self.note_log_start,
        )
        self.core = Group(
            record.group_id, record.config, self.source, shared.in_flight, shared.known_keys
        )
        self._flow = flow = ReceiveFlow(self.core, self.source, clock, shared.codec)
        self.commits = Commits(self.core, shared.opened.store, clock.now_ms, shared.counters)
        self.dead_letters = DeadLetters(
            record, self.core, store, flow, shared.counters, shared.receipt_key, self.after_change
        )
        self._timer = DeadlineTimer(self.process_deadlines, clock)
        self._waiting = Waiting(self.core, clock)
        #: The reads for waiting requests, by queue and offset.
        self._reads: dict[tuple[QueueKey, int], asyncio.Task[None]] = {}
        self.browsers = Browsers(self.core, self.source, flow)
        self._listeners = ActiveListeners()
        self._is_ending = False
        #: The error of all requests once the group was deleted.
        self._gone: StoreError | None = None
        self._delivery_allowed = asyncio.Event()
        self._delivery_allowed.set()
        self._settling_allowed = asyncio.Event()
        self._settling_allowed.set()
        self.rates: dict[QueueKey, DeliveryRate] = {}
        #: Stored cursors of queues that are not added to the group yet.
        self.prepared_cursors: dict[QueueKey, Cursor] = {}

    # -- settings, topics and queues ---------------------------------------------------------

    async def configure(self, record: GroupRecord) -> None:
        """Apply the settings of another record, but not its topics."""
        self.record = self.dead_letters.record = record
        self.subscriptions = Subscriptions(record.subscriptions)
        if record.config != self.core.config:
            self.source.forget()  # mode and cost determine what heads contain
            self.core.configure_group(record.config)
            for member in self._listeners:
                with suppress(ExclusiveHeld):
                    self.core.join(member)
            self._inform_listeners()
            async for lanes in in_slices(self.lanes()):
                for lane in lanes:
                    if self.core.lane(lane.key) is lane:
                        self.core.configure_lane(lane)
        self.after_change()

    def take_filters(self, filters: Filters) -> None:
        """Keep the parsed filters of the group's subscriptions."""
        self.filters, self.filter_characters = filters, characters_of(filters)

    def lanes_of(self, topic_id: int) -> list[QueueLane]:
        """Return the lanes of a topic; an empty list if the group does not have the topic."""
        topic = self.core.topics.get(topic_id)
        return [] if topic is None else list(topic.lanes.values())

    def add_queue(self, key: QueueKey, cursor: Cursor) -> None:
        """Add a queue with its cursor. The next commit writes the cursor's changes."""
        self.core.add_queue(key, cursor)
        self.rates[key] = DeliveryRate(self._clock.now_ms())

    def remove_topic(self, topic_id: int, writes: Writes) -> list[QueueLane]:
        """Remove a topic; `writes` delete its rows. Return its lanes. The caller must pass the keys
        of these lanes to `forget`."""
        lanes = self.lanes_of(topic_id)
        self.core.remove_topic(topic_id)
        self.commits.write(writes)
        self.after_change()
        return lanes

    def forget(self, keys: Iterable[QueueKey]) -> None:
        """Drop all data of queues that the group does not have any more."""
        for key in keys:
            self.source.forget(key)
            self._page.drop((self.core.group_id, *key))
            del self.rates[key]

    @property
    def in_flight(self) -> int:
        """The number of messages that are leased, or may have been leased before a restart (in
        grace)."""
        return self.core.lease_count + sum(lane.cursor.grace_count for lane in self.lanes())

    @contextmanager
    def deliveries_paused(self) -> Iterator[None]:
        """Return a context in which no message is leased. Requests wait until its end."""
        moving = [each for each, topic in self.core.topics.items() if not topic.is_paused]
        for topic_id in moving:
            self.core.pause(topic_id, True)
        self._delivery_allowed.clear()
        try:
            yield
        finally:
            self._delivery_allowed.set()
            for topic_id in moving:
                if topic_id in self.core.topics:
                    self.core.pause(topic_id, False)
            self.after_change()

    @contextmanager
    def settling_paused(self) -> Iterator[None]:
        """Return a context in which no message is settled. Calls of `settle` wait until its end."""
        self._settling_allowed.clear()
        try:
            yield
        finally:
            self._settling_allowed.set()

    @property
    def is_used(self) -> bool:
        """Whether the group has a member, a lease or a waiting request."""
        core = self.core
        return bool(len(core.members) or core.lease_count or len(core.waiters))

    def postpone_auto_delete(self, until_ms: int) -> None:
        """Report the group again at `until_ms`, because it could not be deleted."""
        self._unused.postpone(until_ms)
        self.after_change()

    def lanes(self) -> Iterable[QueueLane]:
        """Return all lanes of the group."""
        return [lane for topic in self.core.topics.values() for lane in topic.lanes.values()]

    # -- start and stop ----------------------------------------------------------------------

    def drain(self, why: StoreError | None = None) -> None:
        """Answer every waiting request with the error `why`, or with GroupsStopping if it is None.
        From now on no request can wait."""
        self._is_ending = True
        self._gone = why
        self._flow.stop()
        self._waiting.drain(why or GroupsStopping())
        self._timer.stop()

    async def stop(self, why: StoreError | None = None) -> None:
        """Drain, and commit all pending changes. May be called twice."""
        self.drain(why)
        reads = [*self._reads.values()]
        for task in reads:
            task.cancel()
        await self.dead_letters.stop()
        if reads:
            await asyncio.wait(reads)
        await self.source.stop()
        with suppress(StoreError):
            await self.commits.wait()
        self.commits.stop()
        self._write_page()

    # -- receiving ---------------------------------------------------------------------------

    async def receive(self, request: ReceiveRequest) -> Received:
        """Return messages for a member. If none is available, wait up to `wait_s` for the first.
        Raises GroupError (GroupsStopping if the group stops), HoldLimitExceeded, StoreError. If
        the call is cancelled, it releases its leases."""
        begun = self.begin_receive(request)
        if begun is None:
            begun = await self._wait_to_begin(request)
        while not isinstance(begun, Received):
            try:
                await begun.future
            except BaseException:
                begun.give_up()
                raise
            begun = begun.result()
        return begun

    async def _wait_to_begin(
        self, request: ReceiveRequest
    ) -> "Received | HeldReceive | UnfinishedReceive":
        """Begin to receive when the group may deliver, and has read what it needs."""
        if not self._delivery_allowed.is_set():
            await self._delivery_allowed.wait()
            if self._gone is not None:
                raise self._gone
        if not self.watch.is_current:
            await self.watch.catch_up()
        return self._begin_answer(await self._first_reply(request), request)

    def begin_receive(
        self, request: ReceiveRequest
    ) -> "Received | HeldReceive | UnfinishedReceive | None":
        """Begin to `receive` in this event loop iteration. Return the messages, or what the receive
        waits for. Return None, and lease nothing, if `receive` must wait before it can look for
        messages."""
        if not self._delivery_allowed.is_set():
            return None
        if not self.watch.is_current:
            self.watch.process()
            if not self.watch.is_current:
                return None
        reply = receive(self.core, request, self._clock.now_ms())
        if reply.needs is not None and not reply.is_answer:
            self.after_change()
            return None
        return self._begin_answer(reply, request)

    def _begin_answer(
        self, reply: Reply, request: ReceiveRequest
    ) -> "Received | HeldReceive | UnfinishedReceive":
        """Begin to send the reply that the core has just made. If it is empty and the request may
        wait, let the request wait."""
        if reply.is_answer or request.wait_s <= 0:
            self.after_change()
            return self.begin_reply(reply, request)
        try:
            return self._hold_request(request, has_looked=reply.needs is None)
        except BaseException:
            self.after_change()
            raise

    def begin_reply(
        self, reply: Reply, request: ReceiveRequest, held_s: float = 0.0
    ) -> "Received | UnfinishedReceive":
        """Return the messages of a reply. If the reply must wait, for messages that are not in
        memory or for a commit, begin to wait."""
        try:
            received = self._reply_at_once(reply, request, held_s)
        except BaseException:
            self.return_leases(reply.messages)
            raise
        return received or UnfinishedReceive(self, reply, request, held_s)

    def give_back(self, receipts: Sequence[str | Receipt]) -> None:
        """Release the messages of a reply that was not delivered: SETTLED_A_TURN of them in this
        event loop iteration, the others in later iterations. If the group is stopping, release all
        in this iteration."""
        part, rest = receipts[:SETTLED_A_TURN], receipts[SETTLED_A_TURN:]
        if part:
            self.counters.undelivered_total += settling.release_undelivered(
                self.core, [*map(self._decode, part)], self._clock.now_ms()
            )
            self.after_change()
        if rest and self._is_ending:
            self.give_back(rest)
        elif rest:
            asyncio.get_running_loop().call_soon(self.give_back, rest)

    def join(self, member: str, on_active: OnActive) -> bool:
        """Add a bound member; GroupService.join describes this. Raises ExclusiveHeld,
        GroupsStopping."""
        if self._is_ending:
            raise GroupsStopping
        is_active = self.core.join(member)
        self._listeners.add(member, on_active, is_active)
        self.after_change()
        return is_active

    def available(self, request: ReceiveRequest) -> int:
        """Return how many messages this request could get now; 0 if its member is not served."""
        is_active = self.core.activity.is_active(request.member)
        return self.core.available(request) if is_active else 0

    # -- settling ----------------------------------------------------------------------------

    async def settle(
        self,
        verb: Verb,
        receipts: Sequence[str | Receipt],
        terms: Mapping[str, Any],
        *,
        cumulative: bool = False,
        check_topic: CheckTopic = allow_all,
        allow_lease: Callable[[], Awaitable[None]] | None = None,
    ) -> list[Status]:
        """Settle each receipt, and return when this is durable. Many receipts take several event
        loop iterations. `terms` are further parameters of `core.settling.settle`.

        `check_topic` is called for the topic of every receipt before anything is settled; its
        exception reaches the caller. After that `allow_lease` is awaited. Raises StateUnavailable.
        """
        decoded = await self.decode_receipts(receipts, check_topic)
        if allow_lease is not None:
            await allow_lease()
        statuses: list[Status] = []
        async for some in in_slices(decoded, SETTLED_A_TURN):
            if cumulative:
                await self._settle_below(verb, some, terms)
            while not self._settling_allowed.is_set():
                await self._settling_allowed.wait()
            statuses += self._settle_part(verb, some, terms)
        if Status.DONE in statuses:
            await self.commits.wait()
        return statuses

    async def decode_receipts(
        self, receipts: Sequence[str | Receipt], check_topic: CheckTopic
    ) -> list[Receipt | None]:
        """Return the values of receipts: None for each text that is not a receipt of this broker.
        Call `check_topic` for the topic of every receipt; its exception reaches the caller."""
        decoded: list[Receipt | None] = []
        async for part in in_slices(receipts, SETTLED_A_TURN):
            decoded += map(self._decode, part)
        self._check_topics(decoded, check_topic)
        return decoded

    def _check_topics(self, receipts: Iterable[Receipt | None], check_topic: CheckTopic) -> None:
        for topic_id in {each.topic_id for each in receipts if each is not None}:
            topic = self._store.table.by_id(topic_id)
            if topic is not None:
                check_topic(topic.name)

    def begin_settling(
        self,
        verb: Verb,
        receipts: Sequence[str | Receipt],
        terms: Mapping[str, Any],
        *,
        waits: bool,
        check_topic: CheckTopic = allow_all,
    ) -> "tuple[list[Status], asyncio.Future[None] | None] | None":
        """Settle all receipts in this event loop iteration, as `settle` does. Return their
        statuses, and the future of the commit that makes them durable, which is None if nothing was
        settled or the caller does not wait for it. Settle nothing and return None while
        `settling_paused` is active."""
        if not self._settling_allowed.is_set():
            return None
        decode = self._decode
        decoded = [each if isinstance(each, Receipt) else decode(each) for each in receipts]
        if check_topic is not allow_all:
            self._check_topics(decoded, check_topic)
        statuses = self._settle_part(verb, decoded, terms)
        is_awaited = waits and Status.DONE in statuses
        return statuses, self.commits.when_durable() if is_awaited else None

    def _settle_part(
        self, verb: Verb, receipts: Sequence[Receipt | None], terms: Mapping[str, Any]
    ) -> list[Status]:
        """Settle these receipts, and count their statuses."""
        settled = settling.settle(self.core, verb, receipts, self._clock.now_ms(), **terms)
        self.after_change()
        for status, name in _STATUSES:  # a Counter would hash each member of the enum in Python
            if count := settled.count(status):
                self.counters.settled_total[verb._value_, name] += count
        return settled

    async def _settle_below(
        self, verb: Verb, receipts: Sequence[Receipt | None], terms: Mapping[str, Any]
    ) -> None:
        """For each receipt, settle the messages that its member has leased at lower offsets of the
        same queue."""
        below = settling.receipts_below(self.core, receipts, self._clock.now_ms())
        async for part in in_slices(below, SETTLED_A_TURN):
            while not self._settling_allowed.is_set():
                await self._settling_allowed.wait()
            settling.settle(self.core, verb, part, self._clock.now_ms(), **terms)
            self.after_change()
        if below:
            await asyncio.sleep(0)

    async def seek(self, targets: Mapping[QueueKey, int]) -> dict[QueueKey, int]:
        """Let the group continue at other offsets of these queues. Return the offset reached in
        each queue, after all seeks are durable. Raises StateUnavailable; then the group may have
        moved in some of the queues.

        Before a queue is changed, its dying messages are appended to the dead-letter topic,
        because the cursor forgets them in the seek."""
        reached: dict[QueueKey, int] = {}
        async for part in in_slices(targets):
            await self.dead_letters.wait_for_queues(part)
            for key in part:
                lane = self.core.lane(key)
                if lane is not None:  # the group may have lost the topic meanwhile
                    self.core.seek(key, targets[key])
                    self.source.forget(key)
                    reached[key] = lane.cursor.floor
            self.after_change()
            await self.commits.wait()
        return reached

    async def leave(self, member: str, may_end: MayEnd | None = None) -> None:
        """Remove a member, or with `may_end` end only its leases and requests of the topics that
        `may_end` permits. If there are many leases, this takes several event loop iterations."""
        if may_end is None:
            self._listeners.remove(member)
        self._waiting.end(self.core.stop_waiting(member, may_end))
        async for part in in_slices(self.core.leases_of(member, may_end), ENDED_A_TURN):
            self.core.revoke(part, self._clock.now_ms())
            self.after_change()
        self._waiting.end(self.core.leave(member, self._clock.now_ms(), may_end))
        self.browsers.forget(member)
        self.after_change()

    # -- events ------------------------------------------------------------------------------

    def _process_changes(self, keys: Sequence[QueueKey]) -> None:
        """Record the present first offsets and ends of these queues."""
        for key in keys:
            bounds = self._store.reading.bounds(key)
            if bounds is not None:
                lane = self.core.lane(key)
                if lane is None:
                    self._begin_queue(self, key)
                    continue
                log_start, end = bounds
                if log_start > lane.cursor.log_start:
                    self.core.note_log_start(key, log_start, self._clock.now_ms())
                self.core.note_end(key, end)
        self.after_change()

    def note_end(self, key: QueueKey, end: int) -> None:
        """Record that the end of a queue is `end` now."""
        self.core.note_end(key, end)
        self.after_change()

    def note_log_start(self, key: QueueKey, log_start: int) -> None:
        """Record that the first offset of a queue is `log_start` now."""
        self.core.note_log_start(key, log_start, self._clock.now_ms())
        self.after_change()

    def scan(self) -> int:
        """Serve the requests that wait although messages are available. Return how many requests
        were answered."""
        if not len(self.core.waiters):
            return 0
        for topic_id, topic in self.core.topics.items():
            if topic.available > 0:  # an upper bound
                self.core.mark_dirty(topic_id)
        return self._serve()

    # -- inside: receiving -------------------------------------------------------------------

    async def _first_reply(self, request: ReceiveRequest) -> Reply:
        reply = Reply()
        async for attempt in self._flow.start_reply(request):
            reply = attempt
            self.after_change()
        return reply

    def _hold_request(self, request: ReceiveRequest, *, has_looked: bool) -> "HeldReceive":
        """Let a request wait for messages. Set `has_looked` if the core has none for it in this
        event loop iteration. Raises GroupsStopping, HoldLimitExceeded."""
        if self._is_ending:  # after an empty answer the client would ask again at once
            raise GroupsStopping
        self._hold.occupy_slot(request.client)
        try:
            has_looked = not self.watch.begin_waiting() and has_looked
            wait_s = self._hold.limit_wait(request.wait_s)
            ticket = self._waiting.park(request, wait_s, has_looked=has_looked)
            self.after_change()
        except BaseException:
            self.end_waiting(request)
            raise
        return HeldReceive(self, request, ticket)

    def end_waiting(self, request: ReceiveRequest) -> None:
        """Free the place of a request that waited."""
        self.watch.end_waiting()
        self._hold.free_slot(request.client)

    def empty_reply(self, request: ReceiveRequest) -> Reply:
        """Return the reply to a request that has waited in vain."""
        is_active = self.core.activity.is_active(request.member)
        return Reply(available=self.available(request), is_active=is_active)

    def _reply_at_once(
        self, reply: Reply, request: ReceiveRequest, held_s: float
    ) -> Received | None:
        """Return the messages of a reply; None if the reply must wait."""
        if reply.commit_first or not self._flow.is_filled(reply, request):
            return None
        deliveries = self._flow.deliveries_in_memory(
            reply.messages, receipt_values=request.receipt_values
        )
        if deliveries is None:
            return None
        self._count(deliveries)
        return Received(deliveries, reply.available, reply.is_active, reply.is_notice, held_s)

    async def finish_reply(self, reply: Reply, request: ReceiveRequest, held_s: float) -> Received:
        """Return the messages of a reply, once all changes on which it depends are durable. If the
        call fails or is cancelled, the caller must call `return_leases`."""
        async for _ in self._flow.fill_reply(reply, request):
            self.after_change()
        durable = self.commits.when_durable() if reply.commit_first else None
        deliveries, unreadable = await self._flow.deliveries(
            reply.messages, receipt_values=request.receipt_values
        )
        if durable is not None:
            await asyncio.shield(durable)
        async for part in in_slices(deliveries, MESSAGES_A_TURN):
            self._count(part)
        if unreadable:
            self._drop(unreadable)
        return Received(deliveries, reply.available, reply.is_active, reply.is_notice, held_s)

    def return_leases(self, messages: Sequence[SelectedMessage]) -> None:
        """Release the messages of a reply that is not sent."""
        self.give_back([message.receipt for message in messages if message.receipt is not None])

    def _drop(self, messages: Sequence[SelectedMessage]) -> None:
        """Settle messages that cannot be read any more: they were damaged or removed meanwhile."""
        for message in messages:
            _logger.warning(
                "offset %s of queue %s cannot be read any more", message.offset, message.queue
            )
        settling.settle_unreadable(self.core, messages, self._clock.now_ms())
        self.after_change()

    def _count(self, deliveries: Sequence[Delivery]) -> None:
        now_ms = self._clock.last_ms  # a rate needs no exact time
        self.counters.delivered_total += len(deliveries)
        self.counters.redelivered_total += sum(map(_IS_REDELIVERED, deliveries))
        for part in batch_parts(deliveries):
            first = part.deliveries[0]
            rate = self.rates.get((first.topic.topic_id, first.queue))
            if rate is not None:
                rate.add(len(part.rows), part.body_bytes(), now_ms)

    # -- inside: after a change --------------------------------------------------------------------

    def after_change(self) -> None:
        """Act on changes of the core: answer requests, send dead letters, set the timer, write the
        page and start a commit. Must be called after every change, before the next await."""
        core, outbox = self.core, self.core.outbox
        if not self._is_ending:
            if not core.activity.serves_all and self._listeners:
                self._inform_listeners()
            if core.dirty_topics:
                self._serve()
            if outbox.lanes_with_dead_letters:
                self.dead_letters.add(outbox.take_dead_letters())
            self._timer.set(self._next_deadline())
        if outbox.lanes_with_notes or outbox.free_grants or self._page.retry_s:
            self._write_page()
        self.commits.begin()

    def _next_deadline(self) -> int | None:
        """Return when to call `process_deadlines`. Report the group if it must be deleted now."""
        deadline_ms, limit_ms = self.core.next_deadline(), self.core.config.auto_delete_after_ms
        if not limit_ms and self._unused.due_ms is None:
            return deadline_ms
        now_ms = self._clock.now_ms()
        self._unused.update(limit_ms, is_used=self.is_used, now_ms=now_ms)
        if self._unused.take_due(now_ms):
            self._on_unused(self)
        return min(filter(None, (deadline_ms, self._unused.due_ms)), default=None)

    def _serve(self) -> int:
        """Answer the requests that can get messages now; return how many. If another request needs
        a read first, start the read."""
        answered, needs = self._waiting.serve()
        if needs is not None and needs not in self._reads:
            self._reads[needs] = asyncio.create_task(self._read(*needs), name="group-bring")
        return answered

    def _inform_listeners(self) -> None:
        """Make the next bound member active if there is no active member. Tell the members for
        which this has changed, in callbacks of their own."""
        self.core.activate_bound()
        for on_active, is_active in self._listeners.take_changes(self.core.activity):
            asyncio.get_running_loop().call_soon(on_active, is_active)

    async def _read(self, queue: QueueKey, offset: int) -> None:
        """Read a part of a queue for waiting requests, and serve them."""
        try:
            await self.source.fetch(queue, offset)
        except Exception:
            # The requests continue to wait. As long as any of them waits, the read is retried.
            _logger.exception("queue %s could not be read at %d", queue, offset)
            await asyncio.sleep(RETRY_S)
        finally:
            del self._reads[queue, offset]
        self.core.mark_dirty(queue[0])
        self.after_change()

    def process_deadlines(self) -> None:
        """Handle the deadlines that have passed, and set the timer to the next deadline."""
        self._waiting.expire(self.core.tick(self._clock.now_ms()))
        self.after_change()

    def _decode(self, receipt: str | Receipt) -> Receipt | None:
        """Return the value of a receipt; None if it is not a receipt of this broker."""
        if not isinstance(receipt, str):
            return receipt
        try:
            return self._codec.decode(receipt)
        except InvalidReceipt:
            return None

    def _write_page(self) -> None:
        """Write new leases to the progress page. This must be done before a member gets their
        messages."""
        outbox, page = self.core.outbox, self._page
        for lane in outbox.take_lanes_with_notes():
            page.note((self.core.group_id, *lane.key), lane.cursor)
        page.write()
        page.free(outbox.take_free_grants())

    def topics(self) -> list[Topic]:
        """Return the group's topics."""
        found = map(self._store.table.by_id, self.core.topics)
        return [topic for topic in found if topic is not None]


class HeldReceive:
    """A receive that waits for its first message. On the event loop."""

    __slots__ = ("_began_s", "_is_ended", "_request", "_server", "future")

    def __init__(self, server: GroupServer, request: ReceiveRequest, future: Ticket) -> None:
        self._server = server
        self._request = request
        self._began_s = monotonic()
        self._is_ended = False
        self.future = future
        """Done when the receive gets messages, or ends without them."""

    def result(self) -> "Received | UnfinishedReceive":
        """Return the messages, once `future` is done, or what the receive waits for next. Raises
        the errors of `GroupServer.receive`."""
        self._end()
        reply = self.future.take_answer()
        if reply is None:
            reply = self._server.empty_reply(self._request)
        return self._server.begin_reply(reply, self._request, monotonic() - self._began_s)

    def give_up(self) -> None:
        """Cancel the receive, and release its messages. May be called twice, but not after
        `result`."""
        if not self._is_ended:
            self._end()
            self._server.return_leases(self.future.abandon())

    def _end(self) -> None:
        self._is_ended = True
        self._server.end_waiting(self._request)


class UnfinishedReceive:
    """A receive that has messages, and waits for a commit or for more messages, in a task. On the
    event loop."""

    __slots__ = ("_reply", "_server", "future")

    def __init__(
        self, server: GroupServer, reply: Reply, request: ReceiveRequest, held_s: float
    ) -> None:
        self._server = server
        self._reply: Reply | None = reply
        finishing = server.finish_reply(reply, request, held_s)
        self.future = asyncio.create_task(finishing, name="group-receive")

    def result(self) -> Received:
        """Return the messages, once `future` is done. Raises the errors of `GroupServer.receive`"""
        try:
            return self.future.result()
        except BaseException:
            self.give_up()
            raise

    def give_up(self) -> None:
        """Release the messages, after `future` was cancelled, or because the result is not wanted.
        May be called twice."""
        reply, self._reply = self._reply, None
        if reply is not None:
            self._server.return_leases(reply.messages)
