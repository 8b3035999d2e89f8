"""One group: its topics, its members and the messages they get. Pure: the caller passes the time.

A Group belongs to one event loop. Its caller reports events and carries out the results:

    reply = receive(group, request, now)    # receiving.py; if empty: group.park(request, ...)
    statuses = settle(group, verb, receipts, now)           # settling.py
    group.note_end(queue, end); group.tick(now); ...        # events
    for waiter, answer in serve(group, now): ...            # after any event, without an await
    batch = group.outbox.take_writes(); write; group.outbox.mark_committed(batch)

`now_ms` must never decrease, even over a restart, because receipts contain deadlines. No wake-up
is lost: every change that makes a message available marks its topic as dirty (`mark_dirty`). `park`
also marks the topics for which the request waits. `serve` offers the messages of the dirty topics
to the waiting requests until no request can get a message.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set

from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.config import SHORTEST_LEASE_MS, GroupConfig
from holdfast.groups.core.fair_set import Costs, FairSet
from holdfast.groups.core.group_topic import GroupTopic, QueueLane
from holdfast.groups.core.last_values import KnownKeys
from holdfast.groups.core.members import AllInFlight, InFlight, Members, member_rule
from holdfast.groups.core.outbox import Outbox
from holdfast.groups.core.requests import (
    AnswerCache,
    ReceiveRequest,
    SelectedMessage,
    Waiter,
    Waiters,
)
from holdfast.groups.cursor.cursor import Cursor, End
from holdfast.groups.cursor.heads import HeadSource
from holdfast.groups.cursor.leases import OVER, Deadlines, Lease

#: At most this many leases end in one event loop iteration because their deadline passed or their
#: member left. Each takes about 10 microseconds. The same limit holds for delays that end, and for
#: queues whose timers are checked.
ENDED_A_TURN = 500

MayEnd = Callable[[int], bool]
"""A function that returns whether the caller may end leases of a topic, given the topic's id."""


class Group:
    """The state of one group. The caller makes or restores the cursors of its queues."""

    def __init__(
        self,
        group_id: int,
        config: GroupConfig,
        source: HeadSource,
        everyone: AllInFlight | None = None,
        known_keys: KnownKeys | None = None,
    ) -> None:
        """`everyone` counts the leases of all groups, `known_keys` their keys in memory."""
        self.group_id = group_id
        self.config = config
        self.topics: dict[int, GroupTopic] = {}
        self.fair = FairSet(config.engine)
        self.activity = member_rule(config.mode)
        self.members = Members(config.member_ttl_ms)
        self.waiters = Waiters()
        self.in_flight = InFlight(config, everyone)
        self._known_keys = known_keys or KnownKeys()
        self.costs = Costs(config.cost)
        self.answers = AnswerCache(config.repeat_ms)
        self.outbox = Outbox(group_id, self.activity, self.members)
        #: The topics of which more messages may be available than when `serve` last offered them
        #: to the waiting requests.
        self.dirty_topics: set[int] = set()
        #: How many leases have expired, or were revoked because an earlier lease of their key
        #: expired.
        self.expired_leases = 0
        self._source = source
        self._timers: Deadlines[QueueKey] = Deadlines()

    @property
    def lease_count(self) -> int:
        return self.in_flight.total

    # -- settings, topics and queues ---------------------------------------------------------

    def configure_group(self, config: GroupConfig) -> None:
        """Change the group's settings for future deliveries. This does not change the queues: the
        caller must then call `configure_lane` for each queue. The mode may change only while
        nothing is leased."""
        before, self.config = self.config, config
        self.in_flight.config = config
        self.members.ttl_ms = config.member_ttl_ms
        if config.engine != before.engine:
            weights = {topic_id: self.fair.weight(topic_id) for topic_id in self.topics}
            self.fair = FairSet(config.engine)
            for topic_id, weight in weights.items():
                self.fair.add(topic_id, weight)
        if config.cost != before.cost:
            self.costs = Costs(config.cost)
        if config.mode != before.mode:
            assert not self.lease_count
            self.activity = self.outbox.activity = member_rule(config.mode)
            self.outbox.durable_fencing_epoch = 0

    def configure_lane(self, lane: QueueLane) -> None:
        """Apply the group's settings to a queue."""
        lane.configure(self.config)
        self.lane_changed(lane)

    def add_topic(
        self, topic_id: int, *, weight: int = 1, levels: int = 1, filter: object | None = None
    ) -> None:
        """Add a topic without queues; the caller adds these with `add_queue`."""
        self.topics[topic_id] = GroupTopic(topic_id, levels, filter)
        self.fair.add(topic_id, weight)

    def add_queue(self, key: QueueKey, cursor: Cursor) -> None:
        """Add a queue of a topic, at the position of its cursor."""
        topic = self.topics[key[0]]
        lane = QueueLane(
            self.group_id,
            key,
            cursor,
            self._source,
            self.config,
            topic.filter,
            self.update_lane,
            self._known_keys,
        )
        topic.add(lane)
        self._count_restored_leases(lane)
        cursor.notes.is_dirty = True
        self.update_lane(lane)
        self._mark_dirty(topic)

    def remove_topic(self, topic_id: int) -> None:
        """Remove a topic and end its leases. The caller must delete its rows."""
        topic = self.topics.pop(topic_id)
        ended: list[Lease] = []
        may_deliver = False
        for lane in topic.lanes.values():
            ended += lane.cursor.leases
            may_deliver |= self.in_flight.count_returned(-lane.counted_returned)
            self._timers.set(lane.key, None)
            self.outbox.remove(lane)
            lane.close()
        self.fair.remove(topic_id)
        self.account_ended(topic_id, ended, None)
        if may_deliver:
            self.mark_all_dirty()

    def set_filter(self, lane: QueueLane, filter: object | None) -> None:
        """Change the filter of a queue. Messages that the old filter skipped are offered again if
        they are at the queue's `next` or beyond. Below `next` they are not offered again, because
        later messages were already delivered."""
        lane.set_filter(filter)
        self.lane_changed(lane)

    def offer_skipped(self, lane: QueueLane) -> None:
        """Make skipped messages available again: those at `next` and beyond that the queue's filter
        does not match. The caller must do this before it stores another filter, so that a crash in
        between loses no message. The topic must be paused until the filter is stored."""
        self.set_filter(lane, lane.view.filter)

    def pause(self, topic_id: int, is_paused: bool) -> None:
        """Pause or resume the deliveries of a topic."""
        topic = self.topics[topic_id]
        topic.is_paused = is_paused
        self._mark_dirty(topic)

    # -- waiting requests --------------------------------------------------------------------

    def park(
        self,
        request: ReceiveRequest,
        ticket: object,
        now_ms: int,
        deadline_ms: int | None,
        *,
        has_looked: bool = False,
    ) -> Waiter:
        """Hold a request that got nothing, until `deadline_ms`; without limit if that is None. The
        caller must call `serve` next, which tries the request once more. Set `has_looked` only if
        `receive` has found nothing for the request in this same event loop iteration, and its reply
        had no `needs`; then `serve` need not try the request again."""
        if request.bound:
            self.members.bind(request.member)
        else:
            self.members.mark_seen(request.member, now_ms, deadline_ms or 0)
        if not has_looked:
            self.dirty_topics |= self._requested_topics(request)
        return self.waiters.add(request, ticket, deadline_ms)

    def stop_waiting(self, member: str, may_end: MayEnd | None = None) -> list[Waiter]:
        """Remove and return a member's waiting requests; the caller must answer them without
        messages. A request that may get messages of a topic that `may_end` does not permit is
        kept: it continues to wait."""
        if not self.waiters.count_of(member):
            return []
        kept = [] if may_end is None else [each for each in self.topics if not may_end(each)]
        waiters = [
            each
            for each in self.waiters
            if each.request.member == member and not any(map(each.request.takes, kept))
        ]
        for waiter in waiters:
            self.waiters.remove(waiter)
        return waiters

    # -- members -----------------------------------------------------------------------------

    def join(self, member: str) -> bool:
        """Add a bound member, which stays until it leaves, and return whether it may get messages
        now. In a single active group it waits to become the active member, also while it has no
        request. Raises ExclusiveHeld."""
        self.activity.admit(member, self.may_become_active)
        self.members.bind(member)
        return self.activity.is_active(member)

    def activate_bound(self) -> None:
        """If the member that becomes active next is a bound one, make it active now, without a
        notice. Other members become active with their next request."""
        member = self.activity.next_member()
        if member is not None and self.members.is_bound(member):
            self.activity.admit(member, self.may_become_active)
            if self.activity.active is not None:
                self.mark_all_dirty()

    # -- events ------------------------------------------------------------------------------

    def note_end(self, key: QueueKey, end: int) -> None:
        """Record that all messages of a queue below `end` are durable."""
        lane = self.lane(key)
        if lane is not None and end > lane.cursor.end:
            lane.cursor.end = end
            self.topics[key[0]].add_to_rotation(lane)
            self._count_available(lane)  # the end changes nothing else of the lane
            self._activate(key[0])

    def note_log_start(self, key: QueueKey, log_start: int, now_ms: int) -> None:
        """Record that the first offset of a queue is `log_start` now."""
        lane = self.lane(key)
        if lane is not None:
            self.finish_leases(lane, lane.trim(log_start), now_ms)

    def seek(self, key: QueueKey, target: int) -> None:
        """Continue a queue at another offset; all its receipts become stale."""
        lane = self.lane(key)
        if lane is not None:
            ended = list(lane.cursor.leases)
            lane.seek(target)
            self.account_ended(key[0], ended, None)
            self.lane_changed(lane)

    def record_dead_letter(self, key: QueueKey, offset: int, position: int) -> bool:
        """Record that a dead letter is durable at `position`. Return False if the message was not
        dying."""
        lane = self.lane(key)
        if lane is None or offset not in lane.cursor.dying:
            return False
        lane.cursor.mark_dead(offset, position)
        self.update_lane(lane)
        return True

    def leave(self, member: str, now_ms: int, may_end: MayEnd | None = None) -> list[Waiter]:
        """Remove a member that left or was fenced, and make its messages available again, in
        their old order. Return the member's waiting requests; the caller must answer them without
        messages.

        If `may_end` permits only some topics, the member keeps its leases of the other topics, and
        the requests that may get messages of the other topics. While it has such a lease or
        request, it stays a member.
        """
        waiters = self.stop_waiting(member, may_end)
        self.revoke(self.leases_of(member, may_end), now_ms)
        if may_end is not None and self._is_present(member):
            return waiters
        self.members.forget(member)
        if self.activity.leave(member):
            self.mark_all_dirty()
        return waiters

    def leases_of(self, member: str, may_end: MayEnd | None = None) -> list[tuple[QueueKey, Lease]]:
        """Return a member's leases of the topics that `may_end` permits, each with its queue. The
        leases of one queue are sorted by offset."""
        if not self.in_flight.count_of(member):
            return []
        return [
            (lane.key, lease)
            for topic_id, topic in self.topics.items()
            if may_end is None or may_end(topic_id)
            for lane in topic.lanes.values()
            if lane.cursor.leases
            for lease in lane.cursor.leases.of_member(member)
        ]

    def revoke(self, leases: Iterable[tuple[QueueKey, Lease]], now_ms: int) -> None:
        """End the given leases and make their messages available again. Leases that are not live
        any more are ignored."""
        for key, lease in leases:
            lane, offset = self.lane(key), lease.head.offset
            if lane is not None and lane.cursor.leases.get(offset) is lease:
                back = lane.give_back(offset, End.REVOKED, lease.number, now_ms)
                self.finish_leases(lane, back, now_ms)

    def retire(self, member: str) -> None:
        """Give the active member no more messages. It may still settle its leases; the next
        member becomes active when these leases have ended."""
        if self.config.mode == "single_active" and member == self.activity.active:
            self.activity.leave(member)
            self.mark_all_dirty()

    def resume(self, member: str, now_ms: int) -> None:
        """Restore the active member after a restart. Other members wait until this member leaves or
        its time to live is over."""
        self.outbox.written_active = member
        self.activity.resume(member)
        self.members.mark_seen(member, now_ms)
        if self.activity.active is None:
            return
        # Another member may have leases: it had just become active, but its name was not stored
        # yet, so its reply was not sent. Return its messages.
        leases = [(lane.key, lease) for lane in self._lanes() for lease in lane.cursor.leases]
        self.revoke([each for each in leases if each[1].member != member], now_ms)

    def next_deadline(self) -> int | None:
        """Return when to call `tick`; None if nothing has a deadline. The time may be earlier than
        necessary."""
        first = self.members.next_deadline()
        for each in (self._timers, self.waiters.deadlines):
            other = each.next_deadline() if each.by_key else None
            if other is not None and (first is None or other < first):
                first = other
        return first

    def tick(self, now_ms: int) -> list[Waiter]:
        """End the leases, delays, members and requests whose time is over. Return these requests;
        the caller must answer them without messages. The work of one call is bounded: if some is
        left, `next_deadline` returns a time that has passed."""
        left = ENDED_A_TURN
        while left > 0 and (due := self._timers.take_due(now_ms, 1)):
            topic_id, queue = due[0]
            lane = self.topics[topic_id].lanes[queue]
            left -= max(1, self.expire_due(lane, now_ms, left))
        waiters = self.waiters.take_due(now_ms)
        for member in self.members.find_silent(now_ms):
            waiters += self.leave(member, now_ms)
        return waiters

    # -- questions ---------------------------------------------------------------------------

    def lane(self, key: QueueKey) -> QueueLane | None:
        """Return the lane of a queue; None if the group does not have the queue."""
        topic = self.topics.get(key[0])
        return None if topic is None else topic.lanes.get(key[1])

    def lease(self, key: QueueKey, offset: int, number: int) -> Lease | None:
        """Return a lease by its number; None if it is not live any more."""
        lane = self.lane(key)
        lease = None if lane is None else lane.cursor.leases.get(offset)
        return lease if lease is not None and lease.number == number else None

    def available(self, request: ReceiveRequest | None = None) -> int:
        """Return how many messages this request could get now. If `request` is None, count the
        messages of all topics. The result is an upper bound, because filters may not have been
        applied to all messages yet."""
        if request is None or (request.topics is None and request.may_receive is None):
            return sum([topic.available for topic in self.topics.values()])
        requested = self._requested_topics(request)
        return sum([self.topics[each].available for each in requested if request.takes(each)])

    def _requested_topics(self, request: ReceiveRequest) -> Set[int]:
        topics = self.topics.keys()
        return topics if request.topics is None else request.topics & topics

    def allowed_lease_ms(self, lease_ms: int | None) -> int:
        """Return how long a lease lasts if a request asks for `lease_ms`."""
        asked = self.config.lease_ms if lease_ms is None else lease_ms
        return min(max(asked, SHORTEST_LEASE_MS), self.config.longest_lease_ms)

    def may_become_active(self, member: str) -> bool:
        """Return whether a member may become active: True if no other member has a lease and no
        message is in grace."""
        has_others = self.lease_count > self.in_flight.count_of(member)
        return not has_others and not any(lane.cursor.grace_count for lane in self._lanes())

    def _lanes(self) -> Iterator[QueueLane]:
        return (lane for topic in self.topics.values() for lane in topic.lanes.values())

    # -- effects of a change, for receiving.py and settling.py --------------------------------

    def mark_dirty(self, topic_id: int) -> None:
        """Mark a topic as dirty, because more of its messages may be in memory now. The next
        `serve` offers its messages to the waiting requests again."""
        if topic_id in self.topics:
            self._mark_dirty(self.topics[topic_id])

    def _mark_dirty(self, topic: GroupTopic) -> None:
        if not topic.is_drained():
            self.fair.activate(topic.topic_id)
        self.dirty_topics.add(topic.topic_id)

    def mark_all_dirty(self) -> None:
        for topic in self.topics.values():
            self._mark_dirty(topic)

    def lane_changed(self, lane: QueueLane) -> None:
        """Update the group's data about a lane (see `update_lane`), and mark its topic as dirty:
        messages of the lane may be available now."""
        topic_id = lane.key[0]
        self.topics[topic_id].add_to_rotation(lane)
        self.update_lane(lane)
        self._activate(topic_id)

    def _activate(self, topic_id: int) -> None:
        """Mark a topic as dirty that has a lane in its rotation."""
        self.fair.activate(topic_id)
        self.dirty_topics.add(topic_id)

    def update_lane(self, lane: QueueLane) -> None:
        """Update the group's data about a lane: counts, timer and pending writes."""
        self._count_available(lane)
        returned = len(lane.cursor.attempts)
        if returned != lane.counted_returned:
            may_deliver = self.in_flight.count_returned(returned - lane.counted_returned)
            lane.counted_returned = returned
            if may_deliver:
                self.mark_all_dirty()
        deadline_ms = lane.next_deadline()
        if deadline_ms is not None or self._timers.by_key:
            self._timers.set(lane.key, deadline_ms)
        self.outbox.add(lane)

    def _count_available(self, lane: QueueLane) -> None:
        available = lane.cursor.available
        if available != lane.counted:
            self.topics[lane.key[0]].available += available - lane.counted
            lane.counted = available

    def expire_due(self, lane: QueueLane, now_ms: int, most: int = ENDED_A_TURN) -> int:
        """End the leases and the delays of a lane that are due, at most `most` leases and `most`
        delays. Return how many ended."""
        delayed = len(lane.cursor.delays)
        ended = lane.tick(now_ms, most)
        self.expired_leases += len(ended)
        self.finish_leases(lane, ended, now_ms)
        return len(ended) + delayed - len(lane.cursor.delays)

    def finish_leases(self, lane: QueueLane, ended: list[Lease], now_ms: int) -> None:
        """Account for leases that ended, and offer the messages that are now available."""
        self.account_ended(lane.key[0], ended, now_ms)
        self.lane_changed(lane)

    def account_ended(
        self, topic_id: int, ended: list[Lease], now_ms: int | None, used_ms: float | None = None
    ) -> None:
        """Update counts and charges for leases of a topic that ended. `used_ms` is how long the
        member worked on each message, if known. If `now_ms` is None, no charge is corrected."""
        is_room_made = False
        counts = {ended[0].member: 1} if len(ended) == 1 else Counter([e.member for e in ended])
        for member, count in counts.items():
            is_room_made |= self.in_flight.remove(member, count)
        if now_ms is not None and self.costs.kind == "time":
            for lease in ended:
                difference = self.costs.difference(topic_id, lease, now_ms, used_ms)
                self.fair.correct(topic_id, difference)
        if is_room_made or (not self.lease_count and self.config.mode == "single_active"):
            self.mark_all_dirty()

    def _count_restored_leases(self, lane: QueueLane) -> None:
        """Count the leases of a lane that are from before a restart. Restore the stored replies
        (`AnswerCache`) that contained the messages of these leases."""
        cursor = lane.cursor
        for lease in cursor.leases:
            self.in_flight.add(lease.member)
            if lease.deadline_ms != OVER:
                self.members.mark_seen(lease.member, lease.delivered_ms, lease.deadline_ms)
            if lease.attempt_id is not None:
                offset, receipt = lease.head.offset, lane.receipt(lease)
                message = SelectedMessage(
                    lane.key,
                    offset,
                    lease.attempt,
                    cursor.is_redelivery(offset),
                    receipt,
                    cursor.failures(offset),
                )
                self.answers.restore(lease.member, lease.attempt_id, [message], lease.delivered_ms)

    def _is_present(self, member: str) -> bool:
        """Return whether a member has leases or waits for messages."""
        return self.in_flight.count_of(member) > 0 or self.waiters.count_of(member) > 0
