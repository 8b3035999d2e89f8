"""How a group handles receipts and dead letters. Pure.

settling.py decides the result for each receipt; this module updates the group accordingly.
"""

from collections.abc import Iterable, Sequence

from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.core import settling
from holdfast.groups.core.group_configuring import GroupConfiguring
from holdfast.groups.core.queue_lane import DeadLetter, QueueLane
from holdfast.groups.core.receipt_state import Receipt
from holdfast.groups.core.requests import SelectedMessage
from holdfast.groups.core.settling import Status, Terms, Verb


class GroupSettling(GroupConfiguring):
    """The part of a group that settles receipts."""

    def settle(
        self,
        verb: Verb,
        receipts: Sequence[Receipt | None],
        now_ms: int,
        *,
        delay_ms: int | None = None,
        lease_ms: int | None = None,
        used_ms: float | None = None,
        cumulative: bool = False,
    ) -> list[Status]:
        """Apply a verb to each receipt, and return a status for each. A receipt that could not be
        decoded is given as None. The results are durable once the rows of the next `take_writes`
        are.

        `used_ms` is the time that the member worked on each message, if known. If `cumulative` is
        true, each acknowledged receipt also acknowledges the messages that its member has leased
        at lower offsets of the same queue."""
        if cumulative and verb is Verb.ACK:
            self.settle(verb, self.leased_below(receipts, now_ms), now_ms, used_ms=used_ms)
        terms = Terms(verb, now_ms, self._lease_ms(lease_ms), delay_ms)
        touched: dict[QueueLane, None] = {}
        statuses = [self._settle(receipt, terms, used_ms, touched) for receipt in receipts]
        for lane in touched:
            self._update_lane(lane)
        return statuses

    def leased_below(self, receipts: Iterable[Receipt | None], now_ms: int) -> list[Receipt]:
        """For each receipt, find the messages that its member has leased at lower offsets of the
        same queue. Return receipts for these messages. Ignore a given receipt with which an ack
        would change nothing."""
        highest: dict[tuple[QueueLane, str], int] = {}
        looked: set[QueueLane] = set()
        for receipt in receipts:
            if receipt is None or receipt.group_id != self.group_id:
                continue
            lane = self._lane((receipt.topic_id, receipt.queue))
            if lane is None:
                continue
            self._expire(lane, receipt.offset, now_ms, is_first=lane not in looked)
            looked.add(lane)
            if settling.would_settle(lane, self.activity, receipt, Verb.ACK):
                offset = highest.get((lane, receipt.member), 0)
                highest[lane, receipt.member] = max(offset, receipt.offset)
        return [
            Receipt(
                self.group_id, *lane.key, lease.head.offset, lease.number, lane.cursor.epoch,
                lease.deadline_ms, lease.attempt, member,
            )
            for (lane, member), offset in highest.items()
            for lease in lane.cursor.leases.of_member(member, offset)
        ]  # fmt: skip

    def release_undelivered(self, receipts: Sequence[Receipt | None], now_ms: int) -> int:
        """Release the messages of a reply that was not delivered; return how many.

        Leave out messages whose leases were extended since: the member has these messages from the
        reply to a repeat of the request."""
        undelivered = [
            each for each in receipts if each is not None and not self._is_extended(each)
        ]
        self.settle(Verb.RELEASE, undelivered, now_ms)
        return len(undelivered)

    def unreadable(self, messages: Sequence[SelectedMessage], now_ms: int) -> None:
        """Settle selected messages that can no longer be read, and count them as lost."""
        self.settle(
            Verb.ACK,
            [message.receipt for message in messages if message.receipt is not None],
            now_ms,
        )
        for message in messages:
            lane = self._lane(message.queue)
            if lane is not None:
                lane.cursor.count_lost()
                self._update_lane(lane)

    def take_dead_letters(self) -> list[DeadLetter]:
        """Return the messages to append to the dead-letter topic. Each is returned by one call
        only."""
        letters = []
        for lane in self._lanes_with_dead_letters:
            letters += lane.dead_letters
            lane.dead_letters = []
        self._lanes_with_dead_letters.clear()
        return letters

    def dead_lettered(self, key: QueueKey, offset: int, position: int) -> bool:
        """Record that a dead letter is durable at `position`. Return False if the message was not
        dying."""
        lane = self._lane(key)
        if lane is None or not lane.dead_lettered(offset, position):
            return False
        self._update_lane(lane)
        return True

    # -- inside ------------------------------------------------------------------------------

    def _is_extended(self, receipt: Receipt) -> bool:
        lane = self._lane((receipt.topic_id, receipt.queue))
        lease = None if lane is None else lane.cursor.leases.get(receipt.offset)
        return (
            lease is not None
            and lease.number == receipt.lease_number
            and lease.deadline_ms > receipt.deadline_ms
        )

    def _settle(
        self,
        receipt: Receipt | None,
        terms: Terms,
        used_ms: float | None,
        touched: dict[QueueLane, None],
    ) -> Status:
        """Settle one receipt and add its lane to `touched`. The caller updates each of these lanes
        once, after all receipts of the call."""
        if receipt is None or receipt.group_id != self.group_id:
            return Status.INVALID
        lane = self._lane((receipt.topic_id, receipt.queue))
        if lane is None:
            return Status.STALE
        self._expire(lane, receipt.offset, terms.now_ms, is_first=lane not in touched)
        leases_before, active = len(lane.cursor.leases), self.activity.active
        status, ended = settling.settle(lane, self.activity, receipt, terms)
        adopted = len(lane.cursor.leases) - leases_before + len(ended)
        if adopted:
            self.in_flight.add(receipt.member)
        if status is Status.DONE:
            until = terms.now_ms + terms.lease_ms if terms.verb is Verb.EXTEND else 0
            self.members.seen(receipt.member, terms.now_ms, until)
            self._ended(lane.key[0], ended, terms.now_ms, used_ms)
            if terms.verb in (Verb.NACK, Verb.RELEASE) or self.config.mode == "keyed":
                self._lane_changed(lane)
        # Even if the receipt was stale, its check may have settled unwanted messages.
        touched[lane] = None
        if self.activity.active != active:  # the member has proven that it was active before
            self._mark_all_dirty()
        return status

    def _expire(self, lane: QueueLane, offset: int, now_ms: int, *, is_first: bool) -> None:
        """Expire the lease of `offset` if it is due, before its receipt is checked. If `is_first`
        (this is the first receipt of the call for this lane), also expire other leases that are
        due, as many as one event loop iteration may expire."""
        leases = lane.cursor.leases
        if (first := leases.next_deadline()) is None or first > now_ms:
            return
        if is_first:
            self._expire_due(lane, now_ms)
        lease = leases.get(offset)
        if lease is not None and lease.deadline_ms <= now_ms:
            ended = lane.expire(lease, now_ms)
            self.expired_leases += len(ended)
            self._end(lane, ended, now_ms)
