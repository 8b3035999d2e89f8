"""One group: its topics, its members and the messages they get. Pure: the caller passes the time.

A Group belongs to one event loop. Its caller reports events and carries out the results:

    reply = group.receive(request, now)     # if empty: hold it with group.park(request, ...)
    statuses = group.settle(verb, receipts, now)
    group.note_end(queue, end); group.tick(now); ...        # events
    for waiter, answer in group.serve(now): ...             # after any event, without an await
    batch = group.take_writes(); write; group.mark_committed(batch)

`now_ms` must never decrease, even over a restart, because receipts contain deadlines. No wake-up
is lost: every change that makes a message available marks its topic as dirty (`mark_dirty`). `park`
also marks the topics for which the request waits. `serve` offers the messages of the dirty topics
to the waiting requests until no request can get a message.
"""

from collections.abc import Callable, Iterable
from heapq import heappop

from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.core.group_parts import ENDED_A_TURN
from holdfast.groups.core.group_receiving import GroupReceiving
from holdfast.groups.core.modes import SingleActive
from holdfast.groups.core.requests import ReceiveRequest, Reply
from holdfast.groups.core.waiters import Waiter
from holdfast.groups.cursor.cursor import End
from holdfast.groups.cursor.leases import Lease
from holdfast.groups.errors import GroupError

MayEnd = Callable[[int], bool]
"""A function that returns whether the caller may end leases of a topic, given the topic's id."""


class Group(GroupReceiving):
    """The state of one group. The caller makes or restores the cursors of its queues."""

    # -- waiting requests --------------------------------------------------------------------

    def park(
        self,
        request: ReceiveRequest,
        ticket: object,
        now_ms: int,
        deadline_ms: int,
        *,
        has_looked: bool = False,
    ) -> Waiter:
        """Hold a request that got nothing. The caller must call `serve` next, which tries the
        request once more. Set `has_looked` only if `receive` has found nothing for the request in
        this same event loop iteration, and its reply had no `needs`; then `serve` need not try the
        request again."""
        self.members.seen(request.member, now_ms, deadline_ms)
        if has_looked:
            return self.waiters.add(request, ticket, deadline_ms)
        for topic_id in (
            self.topics if request.topics is None else request.topics & self.topics.keys()
        ):
            self._dirty_topics.add(topic_id)
        return self.waiters.add(request, ticket, deadline_ms)

    def cancel(self, waiter: Waiter) -> bool:
        """Remove the request of a client that disconnected. Return False if the request was already
        answered."""
        return self.waiters.remove(waiter)

    def serve(self, now_ms: int) -> list[tuple[Waiter, Reply | GroupError]]:
        """Return the waiting requests that can be answered now, with their answers. The others
        continue to wait.

        If an answer has no messages and its `needs` is set, the answer is not final, and its
        request is still held. The caller must then read the queue at the offset in `needs`,
        `mark_dirty` the topic, and call `serve` again.
        """
        answered: list[tuple[Waiter, Reply | GroupError]] = []
        while self._dirty_topics and len(self.waiters):
            dirty, self._dirty_topics = self._dirty_topics, set()
            without_result: set[object] = set()
            for waiter in self.waiters:
                equivalence_key = self._equivalence_key(waiter.request)
                if equivalence_key in without_result or not self._may_match(waiter, dirty):
                    continue
                answer: Reply | GroupError
                try:
                    answer = self.receive(waiter.request, now_ms)
                except GroupError as error:
                    answer = error
                if isinstance(answer, GroupError) or answer.is_answer:
                    self.waiters.remove(waiter)
                    answered.append((waiter, answer))
                    if self._are_exhausted(dirty):
                        break
                elif answer.needs is not None:
                    answered.append((waiter, answer))
                    self._dirty_topics |= dirty
                    return answered
                else:
                    without_result.add(equivalence_key)
        self._dirty_topics.clear()
        return answered

    def mark_dirty(self, topic_id: int) -> None:
        """Mark a topic as dirty, because more of its messages may be in memory now. The next
        `serve` offers its messages to the waiting requests again."""
        if topic_id in self.topics:
            self._mark_dirty(self.topics[topic_id])

    # -- events ------------------------------------------------------------------------------

    def note_end(self, key: QueueKey, end: int) -> None:
        """Record that all messages of a queue below `end` are durable."""
        lane = self._lane(key)
        if lane is not None and lane.note_end(end):
            self._lane_changed(lane)

    def note_log_start(self, key: QueueKey, log_start: int, now_ms: int) -> None:
        """Record that the first offset of a queue is `log_start` now."""
        lane = self._lane(key)
        if lane is not None:
            self._end(lane, lane.trim(log_start), now_ms)

    def seek(self, key: QueueKey, target: int) -> None:
        """Continue a queue at another offset; all its receipts become stale."""
        lane = self._lane(key)
        if lane is not None:
            ended = list(lane.cursor.leases)
            lane.seek(target)
            self._ended(key[0], ended, None)
            self._lane_changed(lane)

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
            self._mark_all_dirty()
        return waiters

    def stop_waiting(self, member: str, may_end: MayEnd | None = None) -> list[Waiter]:
        """Remove and return a member's waiting requests; the caller must answer them without
        messages. A request that may get messages of a topic that `may_end` does not permit is
        kept: it continues to wait."""
        kept = [] if may_end is None else [each for each in self.topics if not may_end(each)]
        waiters = [
            each
            for each in self.waiters
            if each.request.member == member and not any(map(each.request.takes, kept))
        ]
        for waiter in waiters:
            self.waiters.remove(waiter)
        return waiters

    def leases_of(self, member: str, may_end: MayEnd | None = None) -> list[tuple[QueueKey, Lease]]:
        """Return a member's leases of the topics that `may_end` permits, each with its queue. The
        leases of one queue are sorted by offset."""
        return [
            (lane.key, lease)
            for topic_id, topic in self.topics.items()
            if may_end is None or may_end(topic_id)
            for lane in topic.lanes.values()
            if len(lane.cursor.leases)
            for lease in lane.cursor.leases.of_member(member)
        ]

    def revoke(self, leases: Iterable[tuple[QueueKey, Lease]], now_ms: int) -> None:
        """End the given leases and make their messages available again. Leases that are not live
        any more are ignored."""
        for key, lease in leases:
            lane, offset = self._lane(key), lease.head.offset
            if lane is not None and lane.cursor.leases.get(offset) is lease:
                back = lane.give_back(offset, End.REVOKED, lease.number, now_ms)
                self._end(lane, back, now_ms)

    def retire(self, member: str) -> None:
        """Give the active member no more messages. It may still settle its leases; the next
        member becomes active when these leases have ended."""
        if isinstance(self.activity, SingleActive) and self.activity.retire(member):
            self._mark_all_dirty()

    def next_deadline(self) -> int | None:
        """Return when to call `tick`; None if nothing has a deadline. The time may be earlier than
        necessary."""
        while self._timers:
            deadline_ms, key = self._timers[0]
            lane = self._lane(key)
            if lane is not None and lane.timer == deadline_ms:
                break
            heappop(self._timers)
        times = [self._timers[0][0]] if self._timers else []
        times += filter(None, (self.waiters.next_deadline(), self.members.next_end()))
        return min(times, default=None)

    def tick(self, now_ms: int) -> list[Waiter]:
        """End the leases, delays, members and requests whose time is over. Return these requests;
        the caller must answer them without messages. The work of one call is bounded: if some is
        left, `next_deadline` returns a time that has passed."""
        left = ENDED_A_TURN
        while left > 0 and self._timers and self._timers[0][0] <= now_ms:
            deadline_ms, key = heappop(self._timers)
            lane = self._lane(key)
            if lane is not None and lane.timer == deadline_ms:
                lane.timer = None
                left -= max(1, self._expire_due(lane, now_ms, left))
        due = self.waiters.due(now_ms)
        for member in self.members.silent(now_ms):
            due += self.leave(member, now_ms)
        return due

    # -- inside ------------------------------------------------------------------------------

    def _is_present(self, member: str) -> bool:
        """Return whether a member holds leases or waits for messages."""
        return self.in_flight.of(member) > 0 or any(
            waiter.request.member == member for waiter in self.waiters
        )

    def _are_exhausted(self, dirty: set[int]) -> bool:
        """Return whether the dirty topics have no messages left for any member. In single active
        mode always return False, because a waiting request may also get a notice."""
        is_about_messages = self.config.mode != "single_active"
        return is_about_messages and not any(map(self.fair.is_active, dirty))

    def _equivalence_key(self, request: ReceiveRequest) -> object:
        """Return a value that is equal for similar requests: if one of them gets nothing now, the
        others get nothing either."""
        if self.config.mode == "competing":
            room = self.in_flight.room(request.member) > 0
            return (
                request.topics,
                request.may_receive,
                request.filter,
                room,
                request.settled,
                request.limits,
            )
        return (
            request.member,
            request.topics,
            request.may_receive,
            request.filter,
            request.settled,
            request.limits,
        )

    def _may_match(self, waiter: Waiter, dirty: set[int]) -> bool:
        """Return whether this waiting request may get messages of the dirty topics."""
        active = self.activity.active
        if active is not None and waiter.request.member != active:
            return False
        request = waiter.request
        if request.topics is not None and request.topics.isdisjoint(dirty):
            return False
        return request.may_receive is None or any(map(request.may_receive, dirty))
