"""Serves one group: connects the group core with the clock, the message store and the disk.

    an event -> the core is updated -> `pump`: answer waiting requests, commit the changes, send
    dead letters, set the timer

The core decides which member gets which message; this module does not. On the event loop.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from time import monotonic
from typing import Any, Protocol

from holdfast.consumequeue.errors import StoreError
from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.slices import in_slices
from holdfast.consumequeue.topics import QueueKey, Topic
from holdfast.groups.core.group import Group, MayEnd
from holdfast.groups.core.group_parts import ENDED_A_TURN
from holdfast.groups.core.in_flight import AllInFlight
from holdfast.groups.core.queue_lane import Lane
from holdfast.groups.core.receipt_state import Receipt
from holdfast.groups.core.receipts import ReceiptCodec
from holdfast.groups.core.requests import Ask, Pick, Reply
from holdfast.groups.core.subscribing import Subscriptions
from holdfast.groups.cursor.cursor import Cursor
from holdfast.groups.cursor.leases import Grant
from holdfast.groups.cursor.rows import CursorKey
from holdfast.groups.errors import GroupsStopping, InvalidReceipt
from holdfast.groups.service_types import (
    CheckTopic,
    Delivery,
    GroupState,
    Received,
    Status,
    Verb,
)
from holdfast.groups.serving.batch_parts import batch_parts
from holdfast.groups.serving.browsers import Browsers
from holdfast.groups.serving.clock import GroupClock
from holdfast.groups.serving.commits import Commits, CursorWriter, Writes
from holdfast.groups.serving.counters import Counters, Serving
from holdfast.groups.serving.dead_letters import DeadLetters
from holdfast.groups.serving.delivering import MESSAGES_A_TURN, Delivering
from holdfast.groups.serving.filling import Filling
from holdfast.groups.serving.head_source import StoreHeads
from holdfast.groups.serving.parsed_filters import Filters, characters_of
from holdfast.groups.serving.recent_batches import RecentBatches
from holdfast.groups.serving.timers import Alarm
from holdfast.groups.serving.waiting import Waiting
from holdfast.groups.storage.group_records import GroupRecord

_logger = logging.getLogger(__name__)

#: At most this many receipts are decoded or settled in one event loop iteration. Each takes about
#: 10 microseconds.
SETTLED_A_TURN = 500


class Pages(Protocol):
    """The progress page. It stores leases, and how far cursors have delivered, without a sync."""

    def note(self, key: CursorKey, cursor: Cursor) -> None:
        """Add the changes of a cursor that the page does not have yet to the next `write`."""

    def drop(self, key: CursorKey) -> None:
        """Remove a cursor with the next `write`."""

    def free(self, grants: Iterable[Grant]) -> None:
        """Free the page's records of leases whose end is committed to the disk."""

    def write(self) -> None:
        """Write the changes and removals that were added since the last call."""


class Arrivals(Protocol):
    """Tells a group which of its queues have changed: they have new messages, or have lost their
    first messages."""

    async def catch_up(self, group: "ServedGroup") -> None:
        """Inform the group about all queues that have changed since it was last informed."""

    def awake(self, group: "ServedGroup") -> AbstractContextManager[bool]:
        """Until exit, inform the group as soon as one of its queues changes. Yield True if queues
        had already changed before the entry."""


class Places(Protocol):
    """Limits the number of waiting requests, and how long they wait."""

    def at_most(self, wait_s: float) -> float:
        """Return how long a request that asks for `wait_s` may wait."""

    def taken(self, client: str) -> AbstractContextManager[None]:
        """Count a waiting request of a client, until exit. Raises HoldLimitExceeded."""


class ServedGroup:
    """Serves one group until `stop`. Code that changes the core from outside must then call
    `pump`."""

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
        letter_key: bytes,
        clock: GroupClock,
        counters: Counters,
        everyone: AllInFlight,
        arrivals: Arrivals,
    ) -> None:
        self.record = record
        self._arrivals = arrivals
        # The next three are used by `Arrivals` only.
        #: For each topic: how many changes of its queues the group has been informed about.
        self.looked: dict[int, int] = {}
        #: The count of changes of all queues when the group was last informed about all of them.
        self.move_count = 0
        #: How many requests of the group wait.
        self.awake_count = 0
        self.subscriptions = Subscriptions(record.subscriptions)
        #: The parsed filters by text, kept so that no filter is parsed twice.
        self.filters: Filters = {}
        #: The length of the texts of all filters together.
        self.filter_characters = 0
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
            wall_ms=clock.wall_ms,
            trimmed=self.trimmed,
        )
        self.core = Group(record.group_id, record.config, self.source, everyone)
        self._delivering = Delivering(self.source, codec, store.topic_by_id)
        self.commits = Commits(self.core, writer, clock.now_ms, counters)
        self._letters = DeadLetters(
            record.name, self.core, store, self._delivering, counters, self.pump, letter_key
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
        self._settles = asyncio.Event()
        self._settles.set()
        self.serving: dict[QueueKey, Serving] = {}
        #: Cursors that are stored already, of queues that are not added to the group yet.
        self.beginning: dict[QueueKey, Cursor] = {}
        #: Used by GroupService only: the last GroupState that it returned, and the record and the
        #: topic names from which it made that state.
        self.shown: tuple[GroupRecord, Mapping[int, str], GroupState] | None = None

    # -- settings, topics and queues ---------------------------------------------------------

    async def configure(self, record: GroupRecord) -> None:
        """Apply the settings of another record, but not its topics."""
        self.record = record
        self.subscriptions = Subscriptions(record.subscriptions)
        self._letters.topic_name = record.dead_letter_topic
        if record.config != self.core.config:
            self.source.forget()  # the mode determines whether heads contain keys
            self.core.configure_group(record.config)
            async for lanes in in_slices(self.lanes()):
                for lane in lanes:
                    if self._lane(lane.key) is lane:
                        self.core.configure_lane(lane)
        self.pump()

    def take_filters(self, filters: Filters) -> None:
        """Keep the parsed filters of the group's subscriptions."""
        self.filters, self.filter_characters = filters, characters_of(filters)

    def has(self, key: QueueKey) -> bool:
        """Return whether a queue belongs to the group."""
        return self._lane(key) is not None

    def lanes_of(self, topic_id: int) -> list[Lane]:
        """Return the lanes of a topic; an empty list if the group does not have the topic."""
        topic = self.core.topics.get(topic_id)
        return [] if topic is None else list(topic.lanes.values())

    def add_queue(self, key: QueueKey, cursor: Cursor) -> None:
        """Add a queue with its cursor. The next commit writes the cursor's changes."""
        self.core.add_queue(key, cursor)
        self.serving[key] = Serving(self._clock.now_ms())

    def remove_topic(self, topic_id: int, writes: Writes) -> list[Lane]:
        """Remove a topic; `writes` delete its rows. Return its lanes. The caller must pass their
        keys to `forget`."""
        lanes = self.lanes_of(topic_id)
        self.core.remove_topic(topic_id)
        self.commits.write(writes)
        self.pump()
        return lanes

    def forget(self, keys: Iterable[QueueKey]) -> None:
        """Drop all data of queues that the group does not have any more."""
        for key in keys:
            self.source.forget(key)
            self._pages.drop((self.core.group_id, *key))
            del self.serving[key]

    @property
    def in_flight(self) -> int:
        """The number of messages that are leased, or may have been leased before a restart (in
        grace)."""
        return self.core.lease_count + sum(lane.cursor.grace_count for lane in self.lanes())

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Lease no message until exit. Requests wait until then."""
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

    @contextmanager
    def settles_held(self) -> Iterator[None]:
        """Settle no message until exit. Calls of `settle` wait until then."""
        self._settles.clear()
        try:
            yield
        finally:
            self._settles.set()

    @property
    def has_letters(self) -> bool:
        """Whether dead letters are waiting to be appended to their topic."""
        return self._letters.has_waiting

    async def letters_have_gone(self, topic_ids: Collection[int] | None) -> None:
        """Wait until no dead letter of these topics waits to be appended; if `topic_ids` is None,
        of any topic. This still holds at the return, because no other code runs after the last
        check. Raises StateUnavailable after `dead_letters.GONE_S` seconds."""
        await self._letters.topics_have_gone(topic_ids)

    def lanes(self) -> Iterable[Lane]:
        """Return all lanes of the group."""
        return [lane for topic in self.core.topics.values() for lane in topic.lanes.values()]

    # -- start and stop ----------------------------------------------------------------------

    def begin(self) -> None:
        """Handle deadlines that passed before the start, and set the timer."""
        self._ring()

    def drain(self, why: StoreError | None = None) -> None:
        """Answer every waiting request with the error `why`, or with GroupsStopping if it is None.
        From now on no request can wait."""
        self._is_ending = True
        self._filling.stop()
        self.waiting.drain(why or GroupsStopping())
        self._alarm.stop()

    async def stop(self, why: StoreError | None = None) -> None:
        """Drain, and commit all pending changes. May be called twice."""
        self.drain(why)
        await self._letters.stop()
        await self.waiting.stop()
        await self.source.stop()
        with suppress(StoreError):
            await self.commits.wait()
        self.commits.stop()
        self._note_pages()

    # -- receiving ---------------------------------------------------------------------------

    async def receive(self, ask: Ask, client: str, wait_s: float) -> Received:
        """Return messages for a member. If none is available, wait up to `wait_s` for the first.
        Raises GroupError (GroupsStopping if the group stops), HoldLimitExceeded, StoreError. If
        the call is cancelled, it releases its leases."""
        if not self._moves.is_set():
            await self._moves.wait()
        await self._arrivals.catch_up(self)
        reply = await self._filling.ask(ask)
        if not reply.is_answer and wait_s > 0:
            if self._is_ending:  # after an empty answer the client would ask again at once
                raise GroupsStopping
            began_s = monotonic()
            with self._places.taken(client), self._arrivals.awake(self) as has_found:
                answer = await self.waiting.wait(
                    ask,
                    self._places.at_most(wait_s),
                    has_looked=reply.needs is None and not has_found,
                )
            held_s = monotonic() - began_s
            if answer is None:
                is_active = self._is_active(ask.member)
                available = self.core.available(ask) if is_active else 0
                return Received([], available, is_active, held_s=held_s)
            return replace(await self._received(answer, ask), held_s=held_s)
        return await self._received(reply, ask)

    def give_back(self, receipts: Sequence[str]) -> None:
        """Release the messages of a reply that was not delivered: the first SETTLED_A_TURN at once,
        the rest in later event loop iterations."""
        self._release(self._decoded(receipts[:SETTLED_A_TURN]))
        if rest := receipts[SETTLED_A_TURN:]:
            self._soon(self.give_back, rest)

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
        check_topic: CheckTopic | None = None,
        allow: Callable[[], Awaitable[None]] | None = None,
    ) -> list[Status]:
        """Settle each receipt, and return when this is durable. Many receipts take several event
        loop iterations. A call that is cumulative or has more than SETTLED_A_TURN receipts is
        completed even if the caller is cancelled.

        `check_topic` is called for the topic of every receipt before anything is settled; its
        exception reaches the caller. After that `allow` is awaited. Raises StateUnavailable."""
        terms = {
            "delay_ms": delay_ms,
            "lease_ms": lease_ms,
            "used_ms": used_ms,
        }
        is_cumulative = cumulative and verb is Verb.ACK
        settling = self._settle(verb, receipts, check_topic, allow, terms, cumulative=is_cumulative)
        if len(receipts) <= SETTLED_A_TURN and not is_cumulative:
            return await settling
        return await self._store.to_its_end(settling)

    async def _settle(
        self,
        verb: Verb,
        receipts: Sequence[str],
        check_topic: CheckTopic | None,
        allow: Callable[[], Awaitable[None]] | None,
        terms: Mapping[str, Any],
        *,
        cumulative: bool,
    ) -> list[Status]:
        decoded: list[Receipt | None] = []
        async for texts in in_slices(receipts, SETTLED_A_TURN):
            decoded += self._decoded(texts)
        if check_topic is not None:
            for topic_id in {each.topic_id for each in decoded if each is not None}:
                topic = self._store.topic_by_id(topic_id)
                if topic is not None:
                    check_topic(topic.name)
        if allow is not None:
            await allow()
        statuses: list[Status] = []
        async for part in in_slices(decoded, SETTLED_A_TURN):
            if cumulative:
                await self._settle_below(verb, part, terms)
            await self._may_settle()
            settled = self.core.settle(verb, part, self._clock.now_ms(), **terms)
            for status, count in Counter(settled).items():
                self.counters.settled[verb.value, status.value] += count
            self.pump()
            statuses += settled
        if Status.DONE in statuses:
            await self.commits.wait()
        return statuses

    async def _may_settle(self) -> None:
        """Wait until no `settles_held` is active. This still holds at the return, because no other
        code runs after the last check."""
        while not self._settles.is_set():
            await self._settles.wait()

    async def _settle_below(
        self, verb: Verb, receipts: Sequence[Receipt | None], terms: Mapping[str, Any]
    ) -> None:
        """For each receipt, settle the messages that its member has leased at lower offsets of the
        same queue."""
        below = self.core.leased_below(receipts, self._clock.now_ms())
        async for part in in_slices(below, SETTLED_A_TURN):
            await self._may_settle()
            self.core.settle(verb, part, self._clock.now_ms(), **terms)
            self.pump()
        if below:
            await asyncio.sleep(0)

    async def seek(self, targets: Mapping[QueueKey, int]) -> dict[QueueKey, int]:
        """Let the group continue at other offsets of these queues. Return the offset reached in
        each queue, when all is durable. Raises StateUnavailable; then the seek may have been done
        in some of the queues.

        Before a queue is changed, its dying messages are appended to the dead-letter topic,
        because the cursor forgets them in the seek."""
        reached: dict[QueueKey, int] = {}
        async for part in in_slices(targets):
            await self._letters.have_gone(part)
            for key in part:
                lane = self._lane(key)
                if lane is not None:  # the group may have lost the topic meanwhile
                    self.core.seek(key, targets[key])
                    self.source.forget(key)
                    reached[key] = lane.cursor.floor
            self.pump()
            await self.commits.wait()
        return reached

    async def leave(self, member: str, may_end: MayEnd | None = None) -> None:
        """Remove a member, or with `may_end` end only its leases and requests of the topics that
        `may_end` permits. If there are many leases, this takes several event loop iterations."""
        self.waiting.end(self.core.stop_waiting(member, may_end))
        async for part in in_slices(self.core.leases_of(member, may_end), ENDED_A_TURN):
            self.core.revoke(part, self._clock.now_ms())
            self.pump()
        self.waiting.end(self.core.leave(member, self._clock.now_ms(), may_end))
        self.browsers.forget(member)
        self.pump()

    # -- events ------------------------------------------------------------------------------

    def moved(self, key: QueueKey, log_start: int, end: int) -> None:
        """Record the present first offset (`log_start`) and end of a queue. The caller must then
        call `pump`."""
        lane = self._lane(key)
        if lane is not None and log_start > lane.cursor.log_start:
            self.core.trimmed(key, log_start, self._clock.now_ms())
        self.core.arrived(key, end)

    def trimmed(self, key: QueueKey, log_start: int) -> None:
        """Record that the first offset of a queue is `log_start` now, and pump."""
        self.core.trimmed(key, log_start, self._clock.now_ms())
        self.pump()

    def scan(self) -> int:
        """Serve the requests that wait although messages are available. Return how many requests
        were answered."""
        if not len(self.waiting):
            return 0
        for topic_id, topic in self.core.topics.items():
            if topic.available > 0:  # an upper bound
                self.core.stir(topic_id)
        return self.waiting.serve()

    def pump(self) -> None:
        """Act on changes of the core: answer requests, send dead letters, set the timer, write the
        page and start a commit. Must be called after every change, before the next await."""
        if not self._is_ending:
            self.waiting.serve()
            self._letters.send(self.core.take_dead_letters())
            self._alarm.set(self.core.next_deadline())
        self._note_pages()
        self.commits.begin()

    # -- inside: receiving -------------------------------------------------------------------

    async def _received(self, reply: Reply, ask: Ask) -> Received:
        """Return the messages of a reply, once all changes on which it depends are durable."""
        try:
            await self._filling.go_on(reply, ask)
            durable = self.commits.durable() if reply.commit_first else None
            deliveries, unreadable = await self._delivering.deliveries(reply.picks)
            if durable is not None:
                await asyncio.shield(durable)
            async for part in in_slices(deliveries, MESSAGES_A_TURN):
                self._count(part)
        except BaseException:
            self._unpick(reply.picks)
            raise
        if unreadable:
            self._drop(unreadable)
        return Received(deliveries, reply.available, reply.is_active, reply.is_notice)

    def _unpick(self, picks: Sequence[Pick]) -> None:
        self._release([pick.receipt for pick in picks if pick.receipt is not None])

    def _release(self, receipts: Sequence[Receipt | None]) -> None:
        part, rest = receipts[:SETTLED_A_TURN], receipts[SETTLED_A_TURN:]
        if part:
            self.counters.undelivered += self.core.release_undelivered(part, self._clock.now_ms())
            self.pump()
        if rest:
            self._soon(self._release, rest)

    def _soon(self, release: Callable[[Sequence[Any]], None], rest: Sequence[Any]) -> None:
        """Call `release` in the next event loop iteration; at once if the group is stopping."""
        if self._is_ending:
            release(rest)
        else:
            asyncio.get_running_loop().call_soon(release, rest)

    def _drop(self, picks: Sequence[Pick]) -> None:
        """Settle messages that cannot be read any more: they were damaged or removed meanwhile."""
        for pick in picks:
            _logger.warning(
                "offset %s of queue %s cannot be read any more", pick.offset, pick.queue
            )
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
        return self.core.activity.is_active(member)

    # -- inside: the rest --------------------------------------------------------------------

    def _ring(self) -> None:
        """Handle the deadlines that have passed, and pump."""
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

    def _note_pages(self) -> None:
        """Write new leases to the progress page. This must be done before a member gets their
        messages."""
        for lane in self.core.take_noted():
            self._pages.note((self.core.group_id, *lane.key), lane.cursor)
        self._pages.write()
        self._pages.free(self.core.take_free_grants())

    def topics(self) -> list[Topic]:
        """Return the group's topics."""
        found = map(self._store.topic_by_id, self.core.topics)
        return [topic for topic in found if topic is not None]
