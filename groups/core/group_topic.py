"""One topic of a group and its queues: the next message, and the ends of leases. Pure.

A lane is one queue of a group: its cursor, and the selection over it, kept consistent. All code
that ends a lease calls the lane. The lane informs the selection, drops expired messages instead of
offering them again, and makes dead letters of messages that failed too often.

Queues of a higher priority level come first, if they have a message for the member. The queues of
one level take turns, one message each. A queue without a message for any member is taken out of
this rotation until something changes in it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, zip_longest
from typing import NamedTuple, TypeVar

from holdfast.commitlog.format.priority import level_of_queue
from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.config import GroupConfig
from holdfast.groups.core.key_selection import KeyedSelection
from holdfast.groups.core.last_values import KnownKeys, LastValues
from holdfast.groups.core.receipts import Receipt
from holdfast.groups.core.requests import Room
from holdfast.groups.core.selection import OrderedSelection, QueueView, Selection
from holdfast.groups.cursor.cursor import NOT_KEPT, REJECTED, Cursor, End, State
from holdfast.groups.cursor.heads import UNKNOWN_SIZE, Head, HeadSource, NeedsRead
from holdfast.groups.cursor.leases import Lease

T = TypeVar("T")


class DeadLetter(NamedTuple):
    """A dead letter to append. A repeated append has the same `letter_id`, so that the log stores
    the letter only once."""

    letter_id: str
    queue: QueueKey
    offset: int
    failures: int
    is_rejected: bool
    #: Why the member rejected the message, if it gave a reason and the broker has not restarted.
    reason: str | None = None


class QueueLane:
    """One queue of one group. Methods that end leases return these leases."""

    def __init__(
        self,
        group_id: int,
        key: QueueKey,
        cursor: Cursor,
        source: HeadSource,
        config: GroupConfig,
        filter: object | None,
        on_skipped: Callable[["QueueLane"], None],
        known_keys: KnownKeys,
    ) -> None:
        """`on_skipped` is called when a `peek` has settled messages that it skipped. `known_keys`
        counts the keys that the groups of the broker keep in memory (`LastValues`)."""
        self.group_id = group_id
        self.key = key
        self.cursor = cursor
        self.config = config
        self.dead_letters: list[DeadLetter] = []
        #: The group's counts include this many available messages of this lane.
        self.counted = 0
        #: The group's counts include this many returned messages of this lane.
        self.counted_returned = 0
        #: Whether the lane is in the rotation of its topic (GroupTopic).
        self.is_in_rotation = False
        self._on_skipped = on_skipped
        self.view = QueueView(cursor, key, source)
        self.view.filter = filter
        self.selection = self._new_selection()
        self._known_keys = known_keys
        self._last_values: LastValues | None = None
        self._last_values = self._new_last_values()
        for offset in self.selection.overtaken_offsets():
            lease = cursor.leases.get(offset)
            if lease is not None:
                cursor.give_back(offset, End.REVOKED, lease.number)
                self.selection.mark_returned(offset)
        for offset in sorted(cursor.dying):
            self._dead_letter_or_drop(offset)

    # -- deliveries --------------------------------------------------------------------------

    def peek(
        self, member: str, filter: object | None, now_ms: int, room: Room | None = None
    ) -> Head | None:
        """Return the message that a member would get next from this queue. Raises NeedsRead."""
        done = self.cursor.done
        settled = done.floor + done.count_above
        try:
            if self._last_values is not None:
                self._last_values.catch_up()
            while True:
                head = self.selection.peek(member, filter, now_ms, room)
                if head is None or self._last_values is None or self._is_newest(head):
                    return head
        finally:
            if done.floor + done.count_above != settled:
                self._on_skipped(self)

    def known_heads(self, filter: object | None, now_ms: int, most: int) -> list[Head]:
        """Return the messages that successive calls of `peek` would return if each message were
        taken: at most `most`, and only messages that need no read of the queue."""
        heads = self.selection.known_heads(filter, now_ms, most)
        return heads if self._last_values is None else self._last_values.judged(heads)

    def lease(
        self,
        heads: Sequence[Head],
        member: str,
        deadline_ms: int,
        now_ms: int,
        charge: int,
        attempt_id: str | None = None,
    ) -> list[Lease]:
        """Lease messages; `heads` are in the order in which they were offered."""
        leases = self.cursor.lease(heads, member, deadline_ms, now_ms, charge, attempt_id)
        self.selection.mark_taken(heads, member)
        return leases

    def take_settled(self, heads: Sequence[Head], member: str) -> None:
        """Settle messages that are sent without receipts; `heads` are in the order in which they
        were offered."""
        for head in heads:
            self.cursor.reach(head.offset)
            self.cursor.finish(head.offset, End.ACKED)
            self._note_settled(head.offset)
        self.selection.mark_taken(heads, member)

    # -- ends of leases ----------------------------------------------------------------------

    def finish(self, offset: int, end: End, number: int) -> list[Lease]:
        """Settle an offset that is not done, under the lease `number`."""
        lease = self.cursor.leases.by_offset.get(offset)
        self.cursor.finish(offset, end, number)
        self.selection.mark_settled(offset)
        if self._last_values is not None:
            self._last_values.note_settled(offset, 1)
        return [] if lease is None else [lease]

    def finish_run(self, leases: Sequence[Lease]) -> None:
        """Acknowledge live leases of adjacent offsets, in order."""
        self.cursor.finish_run(leases)
        first, count = leases[0].head.offset, len(leases)
        self.selection.mark_settled(first, count)
        self._note_settled(first, count)

    def give_back(
        self,
        offset: int,
        end: End,
        number: int,
        now_ms: int,
        ready_at_ms: int = 0,
        reason: str | None = None,
    ) -> list[Lease]:
        """End a lease without settling its message. The lease is live, or it is from before a
        restart and its message is in grace. `reason` is why a message is rejected."""
        lease = self.cursor.leases.get(offset)
        ended = [] if lease is None else [lease]
        if lease and end is not End.REJECTED and self.view.has_expired(lease.head, now_ms):
            self.cursor.drop_expired(offset)
            self.selection.mark_settled(offset)
            return ended
        if end is not End.REJECTED and self._is_superseded(offset):
            self.cursor.finish(offset, End.SUPERSEDED)
            self.selection.mark_settled(offset)
            return ended
        most = self.config.max_attempts
        state = self.cursor.give_back(
            offset, end, number, ready_at_ms=ready_at_ms, most_failures=most
        )
        if state is State.DYING:
            self.selection.mark_settled(offset)
            self._dead_letter_or_drop(offset, reason)
            return ended
        return ended + self._revoke(self.selection.mark_returned(offset, lease), now_ms)

    def reject_late(self, offset: int, number: int, reason: str | None) -> None:
        """Reject an available message after its lease has ended."""
        self.cursor.reject_late(offset, number)
        self.selection.mark_settled(offset)
        self._dead_letter_or_drop(offset, reason)

    def adopt(self, offset: int, member: str, number: int, deadline_ms: int, now_ms: int) -> None:
        """Make a lease from before the restart live again."""
        self.cursor.adopt(Head(offset, UNKNOWN_SIZE), member, number, deadline_ms, now_ms)
        self.selection.mark_adopted(offset, member)

    # -- time, log and operators -------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Return when to call `tick`; None if nothing has a deadline."""
        cursor = self.cursor
        first = cursor.leases.next_deadline()
        delay_end_ms = cursor.delays.next_deadline() if cursor.delays.by_key else None
        if delay_end_ms is not None and (first is None or delay_end_ms < first):
            first = delay_end_ms
        if cursor.grace_bound and (first is None or cursor.grace_end_ms < first):
            first = cursor.grace_end_ms
        return first

    def tick(self, now_ms: int, most: int) -> list[Lease]:
        """End the grace if its time is over, and at most `most` leases and `most` delays that are
        due. The rest is due in the next call. Return the ended leases."""
        cursor, ended = self.cursor, []
        for lease in cursor.leases.find_due(now_ms, most):
            ended += self.expire(lease, now_ms)
        for offset in sorted(cursor.delays.take_due(now_ms, most)):
            ended += self._revoke(self.selection.mark_returned(offset), now_ms)
        if cursor.grace_bound and cursor.grace_end_ms <= now_ms:
            cursor.end_grace()
            ended += self._revoke(self.selection.end_grace(), now_ms)
            if self._last_values is not None:
                self._last_values.restart()
        return ended

    def expire(self, lease: Lease, now_ms: int) -> list[Lease]:
        """End a lease that is due. Return an empty list if it had ended before."""
        offset = lease.head.offset
        if self.cursor.leases.get(offset) is not lease:
            return []
        return self.give_back(offset, End.EXPIRED, lease.number, now_ms)

    def trim(self, log_start: int) -> list[Lease]:
        """Record that the first offset of the queue is `log_start` now."""
        floor = self.cursor.floor
        ended = self.cursor.trim(log_start)
        if self.cursor.floor != floor:
            self.selection.reset()
            self.dead_letters = [each for each in self.dead_letters if each.offset >= log_start]
        return ended

    def seek(self, target: int) -> None:
        """Continue at another offset; all receipts become stale."""
        self.cursor.seek(target)
        self.selection.reset()
        self._last_values = self._new_last_values()
        self.dead_letters.clear()

    def configure(self, config: GroupConfig) -> None:
        """Change the settings. Messages that are already dying are not affected."""
        before, self.config = self.config, config
        is_limit_new = config.max_in_flight_per_key != before.max_in_flight_per_key
        # Without this, heads that were read before the change would have no costs.
        is_cost_new = config.cost != before.cost and config.cost == "given"
        if is_limit_new or is_cost_new or config.mode != before.mode:
            self.selection = self._new_selection()
        if config.last_value != before.last_value:
            self._last_values = self._new_last_values()

    def set_filter(self, filter: object | None) -> None:
        """Change the filter. Messages at `next` and beyond that the old filter skipped are
        offered again if they match."""
        self.view.filter = filter
        self.cursor.offer_skipped()
        self.selection.reset()
        if self._last_values is not None:
            self._last_values.restart()

    def close(self) -> None:
        """Release what the lane uses of the limits of the broker. May be called twice."""
        if self._last_values is not None:
            self._last_values.close()

    def receipt(self, lease: Lease) -> Receipt:
        """Return the receipt of a live lease."""
        offset, number, epoch = lease.head.offset, lease.number, self.cursor.epoch
        place = self.group_id, *self.key, offset, number, epoch
        return Receipt(*place, lease.deadline_ms, lease.attempt, lease.member)

    def _make_dead_letter(self, offset: int, reason: str | None) -> DeadLetter:
        """Return the dead letter of a dying message."""
        topic_id, queue = self.key
        place = f"{self.group_id:08X}{topic_id:08X}{queue:08X}{offset:016X}"
        # The id contains the number of the last lease: after a seek the message may become a dead
        # letter again, and that is a different letter. Only if no lease is known, the id contains
        # the epoch instead, although a power loss may change the epoch.
        attempts = self.cursor.attempts.get(offset)
        last_lease = 0 if attempts is None else attempts.last_lease
        death = f"{last_lease:016X}" if last_lease else f"{self.cursor.epoch:08X}"
        failures = self.cursor.dying[offset]
        is_rejected = failures == REJECTED
        if is_rejected:
            failures = self.cursor.failures(offset)
        return DeadLetter(place + death, self.key, offset, failures, is_rejected, reason)

    # -- inside ------------------------------------------------------------------------------

    def _new_selection(self) -> Selection:
        self.cursor.keeps_heads = self.config.mode == "keyed"
        if self.cursor.keeps_heads:
            return KeyedSelection(self.view, self.config.max_in_flight_per_key)
        return OrderedSelection(self.view)

    def _new_last_values(self) -> LastValues | None:
        self.close()
        if not self.config.last_value:
            return None
        return LastValues(
            self.cursor, self.key, self.view.source, self._known_keys, self._mark_settled
        )

    def _mark_settled(self, offset: int) -> None:
        self.selection.mark_settled(offset)  # the selection may be another one than before

    def _is_newest(self, head: Head) -> bool:
        """Return whether a message may be offered as the newest of its key. If this is not known,
        read on. Raises NeedsRead."""
        if self._last_values is None or self._last_values.is_judged(head.offset):
            return True
        self._last_values.extend()
        return False

    def _is_superseded(self, offset: int) -> bool:
        """Return whether a message that is given back is superseded, as far as this is known
        without a fetch."""
        if self._last_values is None:
            return False
        with suppress(NeedsRead):
            self._last_values.catch_up()
        return self._last_values.take_held(offset)

    def _note_settled(self, offset: int, count: int = 1) -> None:
        if self._last_values is not None:
            self._last_values.note_settled(offset, count)

    def _revoke(self, offsets: Iterable[int], now_ms: int) -> list[Lease]:
        ended = []
        for offset in offsets:
            lease = self.cursor.leases.get(offset)
            if lease is not None:
                ended += self.give_back(offset, End.REVOKED, lease.number, now_ms)
        return ended

    def _dead_letter_or_drop(self, offset: int, reason: str | None = None) -> None:
        if self.config.has_dead_letters:
            self.dead_letters.append(self._make_dead_letter(offset, reason))
        else:
            self.cursor.mark_dead(offset, NOT_KEPT)


Offer = tuple[QueueLane, Head]
"""A message that may be delivered next, and its queue."""
Run = list[tuple[QueueLane, list[Head]]]
"""Messages of queues that take turns, to be delivered together: first the first message of each
queue, then the second message of each, and so on."""


class GroupTopic:
    """The lanes of one topic, by queue."""

    def __init__(self, topic_id: int, levels: int, filter: object | None) -> None:
        self.topic_id = topic_id
        self.levels = levels
        self.filter = filter
        self.lanes: dict[int, QueueLane] = {}
        self.is_paused = False
        self.available = 0
        self.rotations: list[deque[QueueLane]] = [deque() for _ in range(levels)]

    def add(self, lane: QueueLane) -> None:
        """Add a new lane."""
        self.lanes[lane.key[1]] = lane
        if lane.cursor.available:
            self.add_to_rotation(lane)

    def add_to_rotation(self, lane: QueueLane) -> None:
        """Put a lane back into the rotation: something has changed in it."""
        if not lane.is_in_rotation:
            lane.is_in_rotation = True
            self._rotation_of(lane).append(lane)

    def peek(
        self, member: str, filter: object | None, now_ms: int, room: Room | None = None
    ) -> Offer | None:
        """Return the message that a member would get next, within `room`; None if there is none.
        Raises NeedsRead."""
        if self.is_paused:
            return None
        for lanes in reversed(self.rotations):
            for _ in range(len(lanes)):
                lane = lanes[0]
                if room is not None and not room.of_queue(lane.key):
                    lanes.rotate(-1)
                    continue
                head = lane.peek(member, filter, now_ms, room)
                if head is not None:
                    return lane, head
                if lane.selection.is_drained():
                    lanes.popleft()
                    lane.is_in_rotation = False
                else:
                    lanes.rotate(-1)
        return None

    def select_run(
        self,
        offered: Offer,
        filter: object | None,
        now_ms: int,
        most: int,
        room: Room | None = None,
    ) -> Run:
        """Return the message that `peek` offered, and the messages that successive calls of `peek`
        would offer if each message were taken. Return at most `most` messages, and only messages
        that need no read of a queue."""
        rotation = self._rotation_of(offered[0])
        lanes: Iterable[QueueLane] = rotation
        if room is not None:
            lanes = (lane for lane in rotation if room.of_queue(lane.key))
        rounds = -(-most // min(len(rotation), most))
        known: Run = []
        ends = False
        for lane in islice(lanes, most):
            count = rounds if room is None else min(rounds, room.of_queue(lane.key))
            heads = lane.known_heads(filter, now_ms, count)
            if not heads:  # the run ends at this lane's turn
                ends = True
                break
            known.append((lane, heads))
        if not known:  # returned messages, and messages of keyed groups, are taken one by one
            return [(offered[0], [offered[1]])]
        if ends:
            return truncate_run(known, len(known))
        # The run ends at the first lane that has no known message left at its turn.
        turns = [index + len(known) * len(heads) for index, (_, heads) in enumerate(known)]
        return truncate_run(known, min(most, *turns))

    def advance(self, run: Run, *, has_left_out: bool = False) -> None:
        """Advance the rotation after these messages were taken. The next queue to serve is the one
        that follows the last message's queue. Set `has_left_out` if the run may have skipped
        queues."""
        lanes = self._rotation_of(run[0][0])
        if len(lanes) < 2:
            return
        if not has_left_out:
            lanes.rotate(-sum([len(heads) for _, heads in run]))
            return
        rounds = len(run[0][1])
        last = [lane for lane, heads in run if len(heads) == rounds][-1]
        lanes.rotate(-1 - lanes.index(last))

    def is_drained(self) -> bool:
        """Return whether all queues have been taken out of the rotation."""
        return not any(self.rotations)

    def _rotation_of(self, lane: QueueLane) -> deque[QueueLane]:
        """Return the rotation that this lane is in: the lanes of its priority level. The first lane
        in it is served next."""
        level = level_of_queue(lane.key[1], self.levels) if self.levels > 1 else 0
        return self.rotations[level]


def truncate_run(run: Run, count: int) -> Run:
    """Return the first `count` messages of a run, at least one."""
    if len(run) == 1:
        return [(run[0][0], run[0][1][:count])]
    return [
        (lane, heads[: -(-(count - index) // len(run))])
        for index, (lane, heads) in enumerate(run[:count])
    ]


def interleave(columns: Sequence[Sequence[T]]) -> Iterator[T]:
    """Yield the first of each column, then the second of each, and so on."""
    return (each for row in zip_longest(*columns) for each in row if each is not None)
