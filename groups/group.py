"""One group: its topics, its members and what they get. Pure: the caller says the time.

Belongs to one event loop; the shell tells it what happens and does what it says:

    reply = group.receive(ask, now)         # nothing in it: hold it with group.park(ask, ...)
    statuses = group.settle(verb, receipts, now)
    group.arrived(queue, end); group.tick(now); ...        # what happens in the world
    for waiter, answer in group.serve(now): ...            # after any of these, in the same turn
    batch = group.take_writes(); write; group.committed(batch)

`now_ms` never falls, also over a restart: receipts carry deadlines. No wake-up is lost: whatever
makes a message available to somebody stirs its topic, `park` stirs those it waits for, and
`serve` offers what was stirred to those who wait until nobody can have any of it.
"""

from heapq import heappop

from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.activity import SingleActive
from holdfast.groups.asking import Ask, Reply
from holdfast.groups.cursor import End
from holdfast.groups.errors import GroupError
from holdfast.groups.group_receiving import GroupReceiving
from holdfast.groups.waiters import Waiter


class Group(GroupReceiving):
    """The state of one group. Its cursors are made, or restored, by the caller."""

    # -- who waits ---------------------------------------------------------------------------

    def park(
        self,
        ask: Ask,
        ticket: object,
        now_ms: int,
        deadline_ms: int,
        *,
        has_looked: bool = False,
    ) -> Waiter:
        """Hold a request that got nothing. `serve` comes next: it looks once more, unless
        `has_looked` says that it found nothing, and needed no read, in this very turn."""
        self.members.seen(ask.member, now_ms, deadline_ms)
        if has_looked:
            return self.waiters.add(ask, ticket, deadline_ms)
        for topic_id in self.topics if ask.topics is None else ask.topics & self.topics.keys():
            self._stirred.add(topic_id)
        return self.waiters.add(ask, ticket, deadline_ms)

    def cancel(self, waiter: Waiter) -> bool:
        """Its client went away. False: it was answered before."""
        return self.waiters.remove(waiter)

    def serve(self, now_ms: int) -> list[tuple[Waiter, Reply | GroupError]]:
        """Answer those who wait for what was stirred; the others go on waiting.

        An answer without picks that `needs` a read is not final: the waiter is still held.
        Read there, `stir` the topic, and serve again.
        """
        answered: list[tuple[Waiter, Reply | GroupError]] = []
        while self._stirred and len(self.waiters):
            stirred, self._stirred = self._stirred, set()
            in_vain: set[object] = set()
            for waiter in self.waiters:
                likeness = self._likeness(waiter.ask)
                if likeness in in_vain or not self._hopes(waiter, stirred):
                    continue
                answer: Reply | GroupError
                try:
                    answer = self.receive(waiter.ask, now_ms)
                except GroupError as error:
                    answer = error
                if isinstance(answer, GroupError) or answer.is_answer:
                    self.waiters.remove(waiter)
                    answered.append((waiter, answer))
                    if self._is_taken(stirred):
                        break
                elif answer.needs is not None:
                    answered.append((waiter, answer))
                    self._stirred |= stirred
                    return answered
                else:
                    in_vain.add(likeness)
        self._stirred.clear()
        return answered

    def stir(self, topic_id: int) -> None:
        """Look at a topic again, for those who wait: the source can tell more now."""
        if topic_id in self.topics:
            self._stir(self.topics[topic_id])

    # -- what happens in the world -----------------------------------------------------------

    def arrived(self, key: QueueKey, end: int) -> None:
        """A queue reaches to `end`, durably."""
        lane = self._lane(key)
        if lane is not None and lane.arrived(end):
            self._happened(lane)

    def trimmed(self, key: QueueKey, log_start: int, now_ms: int) -> None:
        """A queue begins at `log_start` now."""
        lane = self._lane(key)
        if lane is not None:
            self._end(lane, lane.trim(log_start), now_ms)

    def seek(self, key: QueueKey, target: int) -> None:
        """Start a queue again at an offset; receipts of it are stale."""
        lane = self._lane(key)
        if lane is not None:
            ended = list(lane.cursor.leases)
            lane.seek(target)
            self._ended(key[0], ended, None)
            self._happened(lane)

    def leave(self, member: str, now_ms: int) -> list[Waiter]:
        """A member has gone, or is fenced: its messages are available again, in their places.
        Returns its requests, to be answered with nothing."""
        waiters = [each for each in self.waiters if each.ask.member == member]
        for waiter in waiters:
            self.waiters.remove(waiter)
        for topic in self.topics.values():
            for lane in topic.lanes.values():
                for lease in lane.cursor.leases.of_member(member):
                    if lane.cursor.leases.get(lease.head.offset) is lease:
                        back = lane.give_back(lease.head.offset, End.REVOKED, lease.number, now_ms)
                        self._end(lane, back, now_ms)
        self.members.forget(member)
        if self.activity.leave(member):
            self._stir_all()
        return waiters

    def retire(self, member: str) -> None:
        """The active member wants no more but settles what it has; then the next begins."""
        if isinstance(self.activity, SingleActive) and self.activity.retire(member):
            self._stir_all()

    def next_deadline(self) -> int | None:
        """Return when to call `tick`; None: nothing is waited for. It may be somewhat early."""
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
        """Note what has run out by now; return the waiters to be answered with nothing."""
        while self._timers and self._timers[0][0] <= now_ms:
            deadline_ms, key = heappop(self._timers)
            lane = self._lane(key)
            if lane is not None and lane.timer == deadline_ms:
                lane.timer = None
                self._run_out(lane, now_ms)
        due = self.waiters.due(now_ms)
        for member in self.members.silent(now_ms):
            due += self.leave(member, now_ms)
        return due

    # -- inside ------------------------------------------------------------------------------

    def _is_taken(self, stirred: set[int]) -> bool:
        """Say whether nothing of what was stirred is left for anybody."""
        is_about_messages = self.config.mode != "single_active"
        return is_about_messages and not any(map(self.fair.is_active, stirred))

    def _likeness(self, ask: Ask) -> object:
        """Return what is equal for requests that get nothing for the same reason."""
        if self.config.mode == "competing":
            return ask.topics, ask.filter, self.in_flight.room(ask.member) > 0, ask.settled
        return ask.member, ask.topics, ask.filter, ask.settled

    def _hopes(self, waiter: Waiter, stirred: set[int]) -> bool:
        """Say whether what was stirred may be for this waiter."""
        active = self.activity.active
        if active is not None and waiter.ask.member != active:
            return False
        topics = waiter.ask.topics
        return topics is None or not topics.isdisjoint(stirred)
