"""The progress of one group in one queue. Pure: the caller passes the time and reads the messages.

Every offset in [floor, next) has one state: AVAILABLE, LEASED, DELAYED (available again later),
GRACE (a member may have a lease from before a restart), DYING (being appended to the dead-letter
topic) or DONE (settled). All offsets below the floor are done; no offset at `next` or beyond was
delivered. As long as `epoch` stays the same, floor and next never decrease.

core/selection.py chooses the next message, and core/receipts.py determines the state of a receipt.
The cursor records in `changes` which rows must be written; rows.py makes the rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import msgspec

from holdfast.groups.cursor.heads import Head
from holdfast.groups.cursor.leases import NO_DEADLINE, Deadlines, Lease, Leases
from holdfast.groups.cursor.settled_offsets import SettledOffsets

CursorKey = tuple[int, int, int]
"""(group id, topic id, queue): identifies a cursor."""

#: Stored instead of the number of failures if the message was rejected.
REJECTED = 0xFFFF
#: The position of a dead message that is not in a dead-letter topic.
NOT_KEPT = 0xFFFF_FFFF_FFFF_FFFF
#: After one commit of `reserved_next`, at least this many further offsets may be delivered (the
#: reserve), and at most MOST_RESERVE.
RESERVE, MOST_RESERVE = 1024, 16_384
#: A lease number is (boot << BOOT_SHIFT) plus a count.
BOOT_SHIFT = 40
#: Stored as the oldest boot that has a lease if the queue never had a timed lease. It is later than
#: every boot.
NO_BOOT = 0xFFFF_FFFF
#: The largest epoch; the epoch after it is 1. When an epoch is used again, receipts from its
#: earlier use are not valid any more.
MAX_EPOCH = 0xFFFF_FFFF
#: At most this many `Settlement` entries are kept, to recognize receipts that are used again. An
#: offset that was acknowledged on its first delivery has no entry.
SETTLED_KEPT = 4_096


class State(Enum):
    """The state of an offset."""

    AVAILABLE = "available"
    LEASED = "leased"
    DELAYED = "delayed"
    GRACE = "grace"
    DYING = "dying"
    DONE = "done"


class End(Enum):
    """How a lease ended. Rows store an end as its number in this order, from 1."""

    ACKED = "acked"
    NACKED = "nacked"
    RELEASED = "released"
    REJECTED = "rejected"
    #: The deadline of the lease passed.
    EXPIRED = "expired"
    #: An earlier message of the same key was returned, or the member left or was fenced.
    REVOKED = "revoked"
    #: The message's time to live was over, so it was settled instead of being offered (again).
    DROPPED = "dropped"
    #: A later message has the same key, and the group delivers only the newest one (last_value).
    SUPERSEDED = "superseded"


#: There may be many offsets that ended in these ways, so no row stores their ends.
UNSTORED_ENDS = (End.DROPPED, End.SUPERSEDED)


@dataclass(slots=True)
class Attempts:
    """The earlier deliveries of an offset that was returned and is not settled."""

    failures: int = 0
    #: How many leases of the offset have ended.
    acquisitions: int = 0
    #: The number of the last lease that ended; 0 if unknown.
    last_lease: int = 0
    #: How the lease `last_lease` ended; None if unknown.
    last_end: End | None = None
    #: The boot (the start of the broker) in which this entry was last changed.
    boot: int = 0


class Settlement(NamedTuple):
    """The number of the lease that settled an offset, and how this lease ended."""

    lease: int
    end: End
    #: The position of the message's record in the dead-letter topic.
    position: int = NOT_KEPT


class Changes(msgspec.Struct):
    """Which rows must be written. Their values are taken from the cursor when they are written."""

    #: The `cur` row must be written.
    is_cursor_dirty: bool = False
    #: The offsets whose `att` rows must be written or deleted.
    attempts: set[int] = msgspec.field(default_factory=set)
    #: The offsets whose `dead` rows must be written or deleted.
    settled: set[int] = msgspec.field(default_factory=set)
    #: First delete all rows of the cursor except `cur`: they are of an earlier epoch.
    is_reset: bool = False
    #: First delete all `dead` rows: some are of an old layout.
    are_settled_new: bool = False
    #: First delete the `att` and `dead` rows below this offset.
    trimmed_below: int | None = None


class PageNotes(msgspec.Struct):
    """The changes of a cursor that the progress page does not have yet."""

    #: Leases that are new or have a new deadline. The leases in one sequence have the same member,
    #: deadline, delivery time and attempt id.
    leases: list[Sequence[Lease]] = msgspec.field(default_factory=list)
    #: Data other than a lease changed: `next`, the epoch or the grace.
    is_dirty: bool = False

    def __bool__(self) -> bool:
        return self.is_dirty or bool(self.leases)


class Cursor:
    """The progress of one group in one queue. `boot` is the number of this start of the broker,
    from 1."""

    def __init__(
        self, *, boot: int, floor: int = 0, end: int = 0, epoch: int = 1, last_lease: int = 0
    ) -> None:
        """The leases of this cursor get higher numbers than `last_lease`."""
        self.boot = boot
        self.epoch = epoch
        self.done = SettledOffsets(floor)
        self.next = floor
        #: The offset after the last durable message of the queue.
        self.end = max(end, floor)
        #: The first offset of the queue; messages below it were removed.
        self.log_start = 0
        #: The upper end of the reserve: offsets below it may be delivered once this value is
        #: durable.
        self.reserved_next = floor
        #: The value of `reserved_next` that is durable.
        self.reserved_durable = floor
        #: How many offsets were reserved when the reserve was last renewed.
        self._reserve = 0
        self.leases = Leases()
        #: When each delayed offset becomes available.
        self.delays: Deadlines[int] = Deadlines()
        self.attempts: dict[int, Attempts] = {}
        #: offset -> number of failures, or REJECTED if the message was rejected.
        self.dying: dict[int, int] = {}
        self.settled: dict[int, Settlement] = {}
        #: Offsets below `seen_below` that are not done may have been delivered before the last
        #: restart. The value is kept even when the floor is above it, because a kill of the broker
        #: may lose settlements that are not written yet.
        self.seen_below = 0
        #: All leases of boots with a lower number than this had ended when the broker started.
        self.oldest_boot = 0
        #: The value that `oldest_boot` gets at the next start, unless a grace is running then. It
        #: may be less than the present boot, because leases survive restarts. It is NO_BOOT until
        #: the first timed lease. Bound leases do not survive a restart, so they need no grace.
        self.oldest_leased_boot = NO_BOOT
        #: Whether it is durable that there may be timed leases. Until then no message may be
        #: delivered under a timed lease.
        self.may_lease_timed = False
        #: Offsets below `grace_bound` are in grace until `grace_end_ms`, except `grace_left`.
        self.grace_bound = 0
        self.grace_end_ms = 0
        self.grace_count = 0
        self.grace_left: set[int] = set()
        #: The boot in which the grace began.
        self.grace_boot = 0
        #: Whether the page also stores the head of each leased message.
        self.keeps_heads = False
        self.dead_count = 0
        self.expired_count = 0
        self.lost_count = 0
        #: How many messages were settled because they are superseded. It is not stored.
        self.superseded_count = 0
        self.changes = Changes()
        self.notes = PageNotes()
        self.last_lease = max(boot << BOOT_SHIFT, last_lease)

    @property
    def floor(self) -> int:
        """The lowest offset that is not done."""
        return self.done.floor

    @property
    def unsettled(self) -> int:
        """How many messages are not settled."""
        return self.end - self.done.floor - self.done.count_above

    @property
    def available(self) -> int:
        """How many messages could be delivered now. It is an upper bound, because filters may not
        have been applied to all messages yet."""
        leased, delayed = len(self.leases.by_offset), len(self.delays.by_key)
        done = self.done
        unsettled = self.end - done.floor - done.count_above
        return unsettled - leased - delayed - len(self.dying) - self.grace_count

    def state(self, offset: int) -> State:
        """Return the state of an offset below `end`."""
        if offset in self.done:
            return State.DONE
        if offset in self.leases:
            return State.LEASED
        if offset in self.delays:
            return State.DELAYED
        if offset in self.dying:
            return State.DYING
        return State.GRACE if self.is_in_grace(offset) else State.AVAILABLE

    def is_available(self, offset: int) -> bool:
        """Return whether an offset may be leased now."""
        return not (
            offset in self.leases.by_offset
            or offset in self.done
            or offset in self.delays.by_key
            or offset in self.dying
            or (offset < self.grace_bound and offset not in self.grace_left)  # is_in_grace
        )

    def is_in_grace(self, offset: int) -> bool:
        """Return whether an offset is in grace. The caller must know that it is not done, leased,
        delayed or dying."""
        return offset < self.grace_bound and offset not in self.grace_left

    def failures(self, offset: int) -> int:
        """Return how often the message at an offset has failed."""
        attempts = self.attempts.get(offset)
        return 0 if attempts is None else attempts.failures

    def is_redelivery(self, offset: int) -> bool:
        """Return whether an offset may have been delivered before."""
        return offset < self.seen_below or offset in self.attempts

    def is_untouched(self, start: int, end: int) -> bool:
        """Return whether no offset in [start, end) was delivered or settled."""
        return start >= self.next and not self.done.count(start, end)

    # -- deliveries --------------------------------------------------------------------------

    def lease(
        self,
        heads: Sequence[Head],
        member: str,
        deadline_ms: int,
        now_ms: int,
        charge: int,
        attempt_id: str | None = None,
    ) -> list[Lease]:
        """Lease available offsets to a member; `heads` must be in ascending order. `charge` is the
        cost of each message. The leases are bound if `deadline_ms` is NO_DEADLINE."""
        if self.oldest_leased_boot == NO_BOOT and deadline_ms != NO_DEADLINE:
            self.oldest_leased_boot = self.boot
            self.changes.is_cursor_dirty = True
        number, attempt, attempts = self.last_lease, 1, self.attempts
        leases = []
        for head in heads:
            number += 1
            if attempts:
                attempt = self.attempt(head.offset)
            leases.append(
                Lease(head, member, number, deadline_ms, now_ms, attempt, charge, attempt_id)
            )
        self.last_lease = number
        self.leases.add(leases)
        self.notes.leases.append(leases)
        for head in heads if heads[-1].offset >= self.reserved_next else heads[-1:]:
            self.reach(head.offset)
        return leases

    def attempt(self, offset: int) -> int:
        """Return the number of the present delivery of an offset, from 1. If it is not leased,
        return the number of the next delivery."""
        attempts = self.attempts.get(offset)
        return 1 if attempts is None else attempts.acquisitions + 1

    def reach(self, offset: int) -> None:
        """Record that an offset is delivered."""
        if offset >= self.next:
            self.next = offset + 1
            self.notes.is_dirty = True
            if self.next > self.reserved_next:
                self._renew_reserve()
                self.changes.is_cursor_dirty = True

    def keep_reserve(self) -> None:
        """Renew the reserve, if there is one. Called when the row with `reserved_next` is written
        for another reason: so deliveries seldom need a commit of their own."""
        if self.next < self.reserved_next:
            self._renew_reserve()

    def _renew_reserve(self) -> None:
        """Reserve four times as many offsets as were delivered since the last time, within the
        limits: the next renewal is durable only after two commits."""
        used = self._reserve - (self.reserved_next - self.next)
        self._reserve = min(max(4 * used, RESERVE), MOST_RESERVE)
        self.reserved_next = max(self.reserved_next, self.next + self._reserve)

    def adopt(self, head: Head, member: str, number: int, deadline_ms: int, now_ms: int) -> None:
        """Make a lease from before the restart live again."""
        self._end_grace_of(head.offset)
        lease = Lease(head, member, number, deadline_ms, now_ms, self.attempt(head.offset))
        self.leases.add([lease])
        self.notes.leases.append([lease])

    def extend(self, lease: Lease, deadline_ms: int) -> None:
        """Give a live timed lease a new deadline, earlier or later."""
        self.leases.extend(lease, deadline_ms)
        self.notes.leases.append([lease])

    # -- ends of leases ----------------------------------------------------------------------

    def finish(self, offset: int, end: End, number: int = 0) -> None:
        """Settle an offset that is not done. `number` is the lease that settles it; 0 if none."""
        lease = self.leases.by_offset.get(offset)
        if lease is not None:
            self.leases.remove_run([lease])
        else:
            self.delays.set(offset, None)
            self.dying.pop(offset, None)
            self._end_grace_of(offset)
        attempts = self.attempts.pop(offset, None)
        if attempts is not None:
            self.changes.attempts.add(offset)
        if attempts is not None or end is not End.ACKED:
            self._note_settled(offset, number, end)
        self._mark_done(offset, offset + 1)

    def finish_run(self, leases: Sequence[Lease]) -> None:
        """Acknowledge live leases of adjacent offsets, in order."""
        self.leases.remove_run(leases)
        for lease in leases if self.attempts else ():
            offset = lease.head.offset
            if self.attempts.pop(offset, None) is not None:
                self.changes.attempts.add(offset)
                self._note_settled(offset, lease.number, End.ACKED)
        first = leases[0].head.offset
        self._mark_done(first, first + len(leases))

    def give_back(
        self, offset: int, end: End, number: int, *, ready_at_ms: int = 0, most_failures: int = 0
    ) -> State:
        """End the lease of an offset without settling it; return the new state of the offset.

        A nack counts as a failure. The offset becomes DYING when it has `most_failures` failures;
        if that is 0, there is no limit.
        """
        self.leases.remove(offset)
        self._end_grace_of(offset)
        attempts = self.attempts.setdefault(offset, Attempts())
        attempts.acquisitions += 1
        attempts.last_lease, attempts.last_end, attempts.boot = number, end, self.boot
        self.changes.attempts.add(offset)
        if end is End.NACKED:
            attempts.failures = min(attempts.failures + 1, REJECTED - 1)
            if most_failures and attempts.failures >= most_failures:
                self.dying[offset] = attempts.failures
                return State.DYING
        if end is End.REJECTED:
            self.dying[offset] = REJECTED
            return State.DYING
        if ready_at_ms:
            self.delays.set(offset, ready_at_ms)
            return State.DELAYED
        return State.AVAILABLE

    def reject_late(self, offset: int, number: int) -> None:
        """Reject an available offset after its lease has ended."""
        attempts = self.attempts.setdefault(offset, Attempts())
        attempts.last_lease, attempts.last_end, attempts.boot = number, End.REJECTED, self.boot
        self.changes.attempts.add(offset)
        self.dying[offset] = REJECTED

    def mark_dead(self, offset: int, position: int) -> None:
        """Settle a dying offset. `position` is the position of its durable dead letter, or NOT_KEPT
        if it has none."""
        attempts = self.attempts.get(offset, Attempts())
        number, end = attempts.last_lease, attempts.last_end or End.REJECTED
        self.dead_count += 1
        self.changes.is_cursor_dirty = True
        self.finish(offset, end, number)
        self._note_settled(offset, number, end, position)

    def drop_expired(self, offset: int) -> None:
        """Settle an offset whose message has expired."""
        self.expired_count += 1
        self.finish(offset, End.DROPPED)
        self.changes.is_cursor_dirty = True

    def drop_superseded(self, offset: int) -> None:
        """Settle an available or delayed offset whose message is superseded by a later message of
        its key."""
        if offset in self.attempts:
            self.finish(offset, End.SUPERSEDED)
        else:
            self._mark_done(offset, offset + 1)

    def drop_untouched(self, start: int, end: int) -> None:
        """Settle the offsets in [start, end), all of which were never delivered."""
        assert start >= max(self.next, self.grace_bound)
        self._mark_done(start, end)

    def skip(self, start: int, end: int) -> None:
        """Settle all available offsets in [start, end), because the group's filter does not match
        them."""
        kept = [each for each in self._unavailable_offsets() if start <= each < end]
        for stop in [*sorted(kept), end]:
            if start < stop and self.done.add_range(start, stop):
                self.next = max(self.next, self.floor)
                self.changes.is_cursor_dirty = True
            start = stop + 1
        self.recount_grace()

    def offer_skipped(self) -> None:
        """Make settled offsets at `next` and beyond available again. They were not delivered but
        skipped, and another filter may match them."""
        for offset in [each for each in self.settled if each >= self.next]:
            if self.settled.pop(offset)[1] is End.DROPPED:
                self.expired_count -= 1  # it is counted again when it is dropped again
        self.done.remove_from(self.next)

    def skip_lost(self, start: int, end: int) -> None:
        """Settle all available offsets in [start, end), because they cannot be read any more, and
        count them as lost."""
        before = self.done.count_all
        self.skip(start, end)
        self.lost_count += self.done.count_all - before

    def count_lost(self) -> None:
        """Count one message that was settled because it cannot be read any more."""
        self.lost_count += 1
        self.changes.is_cursor_dirty = True

    # -- trims, seeks and the grace ----------------------------------------------------------

    def trim(self, log_start: int) -> list[Lease]:
        """Settle all offsets below the queue's first offset `log_start`. Offsets that were
        not done are counted as lost. Return the leases that ended."""
        self.log_start = max(self.log_start, log_start)
        for offset in [each for each in self.settled if each < log_start]:
            del self.settled[offset]
            self.changes.settled.add(offset)
        if log_start <= self.floor:
            return []
        self.end = max(self.end, log_start)
        undone = log_start - self.floor - self.done.count(self.floor, log_start)
        self.lost_count += undone
        ended = [lease for lease in self.leases if lease.head.offset < log_start]
        for offset in [each for each in self._unavailable_offsets() if each < log_start]:
            self.leases.remove(offset)
            self.delays.set(offset, None)
            self.dying.pop(offset, None)
        for offset in [each for each in self.attempts if each < log_start]:
            del self.attempts[offset]
        self.done.raise_floor(log_start)
        self.next = max(self.next, self.floor)
        self.grace_left = {each for each in self.grace_left if each >= self.floor}
        self.recount_grace()
        self.changes.trimmed_below = log_start
        self.changes.is_cursor_dirty = True
        return ended

    def seek(self, target: int) -> None:
        """Continue at another offset, with a new epoch. All receipts become stale."""
        target = min(max(target, self.log_start), self.end)
        self.epoch = epoch_after(self.epoch)
        self.done = SettledOffsets(target)
        self.next = self.reserved_next = self.reserved_durable = target
        self._reserve = 0
        self.seen_below = 0
        self.leases.remove_all()
        self.delays = Deadlines()
        self.attempts, self.dying, self.settled = {}, {}, {}
        self.grace_bound = self.grace_count = 0
        self.grace_left = set()
        trimmed_below = self.changes.trimmed_below
        self.changes = Changes(is_cursor_dirty=True, is_reset=True, trimmed_below=trimmed_below)
        self.notes = PageNotes(is_dirty=True)

    def begin_grace(self, bound: int, end_ms: int, boot: int) -> None:
        """Begin a grace until `end_ms`. It holds for the offsets below `bound` that would be
        available now, except offsets that were returned since the broker's start number `boot`: the
        leases of these offsets from before that start have ended."""
        if bound <= self.floor:
            return
        self.grace_bound, self.grace_end_ms, self.grace_boot = bound, end_ms, boot
        if boot == self.boot:
            # Keep these offsets out of the grace after more restarts, too.
            for offset in self.attempts.keys() & self._unavailable_offsets():
                self.attempts[offset].boot = boot
                self.changes.attempts.add(offset)
        back = (at for at, each in self.attempts.items() if each.boot >= boot)
        self.grace_left = {each for each in (*self._unavailable_offsets(), *back) if each < bound}
        self.recount_grace()

    def recount_grace(self) -> None:
        """Recompute `grace_count` after ranges of offsets were settled. The grace does not end
        early even if the count is 0, because a kill of the broker may undo settlements."""
        floor, bound = self.floor, max(self.grace_bound, self.floor)
        undone = bound - floor - self.done.count(floor, bound)
        self.grace_count = undone - sum(each not in self.done for each in self.grace_left)

    def end_grace(self) -> None:
        """Make the offsets in grace available, because all leases from before the restart have
        ended."""
        if self.grace_bound:
            self.changes.is_cursor_dirty = True
            self.notes.is_dirty = True
        self.grace_bound = self.grace_count = 0
        self.grace_left = set()

    # -- inside ------------------------------------------------------------------------------

    def _mark_done(self, start: int, end: int) -> None:
        floor = self.done.floor
        self.done.add_range(start, end)
        if self.done.floor != floor:
            self.next = max(self.next, self.done.floor)
            self.changes.is_cursor_dirty = True

    def _unavailable_offsets(self) -> list[int]:
        leased = [lease.head.offset for lease in self.leases]
        return [*leased, *self.delays, *self.dying]

    def _end_grace_of(self, offset: int) -> None:
        if self.is_in_grace(offset):
            self.grace_left.add(offset)
            self.grace_count -= 1

    def _note_settled(self, offset: int, number: int, end: End, position: int = NOT_KEPT) -> None:
        self.settled[offset] = Settlement(number, end, position)
        if end not in UNSTORED_ENDS:
            self.changes.settled.add(offset)
        if len(self.settled) > SETTLED_KEPT:
            oldest = next(iter(self.settled))
            if self.settled.pop(oldest).end not in UNSTORED_ENDS:
                self.changes.settled.add(oldest)


def epoch_after(epoch: int) -> int:
    """Return the epoch after this one. It fits into 32 bits and is never 0."""
    return epoch % MAX_EPOCH + 1
