"""Where one group stands in one queue. Pure: the caller says the time, and reads the messages.

Every offset in [floor, next) is in one state: AVAILABLE, LEASED, DELAYED (comes back later),
GRACE (may be leased by somebody from before a restart), DYING (to be appended to the dead
letters) or DONE. Below the floor all are done; at `next` and beyond none was delivered. Floor
and next never fall while `epoch` stays the same.

The cursor does not choose what is delivered next (selection.py) and does not judge receipts
(standing.py). What has to be written is noted in `changes`; cursor_rows.py makes rows of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from holdfast.groups.done_chunks import DoneChunks
from holdfast.groups.heads import Head
from holdfast.groups.leases import Delays, Lease, Leases
from holdfast.groups.rows import REJECTED

#: Offsets that may be delivered after one write of how far deliveries may go.
RESERVE = 1024
#: The boot is in a lease's number above this many bits.
BOOT_SHIFT = 40
#: Settled leases that a repeated receipt is compared with: other than first and acknowledged.
SETTLED_KEPT = 16_384


class State(Enum):
    """What an offset is."""

    AVAILABLE = "available"
    LEASED = "leased"
    DELAYED = "delayed"
    GRACE = "grace"
    DYING = "dying"
    DONE = "done"


class End(Enum):
    """How a lease ended."""

    ACKED = "acked"
    NACKED = "nacked"
    RELEASED = "released"
    REJECTED = "rejected"
    #: Its deadline came.
    EXPIRED = "expired"
    #: Taken back: an earlier message of its key came back, or its member was fenced.
    REVOKED = "revoked"
    #: The message itself is of no use any more: too old, or not wanted.
    DROPPED = "dropped"


@dataclass(slots=True)
class Attempts:
    """What happened to an offset that was delivered and came back."""

    failures: int = 0
    acquisitions: int = 0
    #: The last lease of this run of the broker that ended, and how.
    last_lease: int = 0
    last_end: End | None = None


@dataclass(slots=True)
class Changes:
    """What is to be written, by name: values are taken when it is."""

    is_cursor_dirty: bool = False
    attempts: set[int] = field(default_factory=set)
    dead: dict[int, int] = field(default_factory=dict)
    #: Rows that are gone whatever they say: all of an old epoch, or those below the log's start.
    is_reset: bool = False
    trimmed_below: int | None = None


class Cursor:
    """One (group, queue). `boot` counts the broker's starts and is at least 1."""

    def __init__(self, *, boot: int, floor: int = 0, end: int = 0, epoch: int = 1) -> None:
        self.boot = boot
        self.epoch = epoch
        self.done = DoneChunks(floor)
        self.next = floor
        #: Nothing at it or beyond may be delivered: the log's durable end.
        self.end = max(end, floor)
        self.log_start = 0
        #: Deliveries below it are provided for on disk, once that is written down.
        self.reserved_next = floor
        self.reserved_durable = floor
        self.leases = Leases()
        self.delays = Delays()
        self.attempts: dict[int, Attempts] = {}
        #: offset -> its failures, REJECTED when it was rejected.
        self.dying: dict[int, int] = {}
        self.settled: dict[int, tuple[int, End]] = {}
        #: Undone offsets below it were maybe delivered before the last restart.
        self.seen_below = floor
        #: Leases of earlier boots than this had ended when the broker started.
        self.oldest_boot = 0
        #: They wait below `grace_bound` until `grace_end_ms`, but for those in `grace_left`.
        self.grace_bound = 0
        self.grace_end_ms = 0
        self.grace_count = 0
        self.grace_left: set[int] = set()
        self.dead_count = 0
        self.expired_count = 0
        self.lost_count = 0
        self.changes = Changes()
        self._last_lease = boot << BOOT_SHIFT

    @property
    def floor(self) -> int:
        """Everything below it is done."""
        return self.done.floor

    @property
    def available(self) -> int:
        """How many messages could be delivered: an upper bound while a filter has not looked."""
        undone = self.end - self.floor - self.done.count_above
        kept_back = len(self.leases) + len(self.delays) + len(self.dying) + self.grace_count
        return undone - kept_back

    def state(self, offset: int) -> State:
        """Return what an offset below `end` is."""
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
        """Say whether an offset may be leased now."""
        return not (
            offset in self.leases
            or offset in self.done
            or offset in self.delays
            or offset in self.dying
            or (offset < self.grace_bound and offset not in self.grace_left)
        )

    def is_in_grace(self, offset: int) -> bool:
        """Say whether an undone offset, neither leased nor delayed nor dying, is in grace."""
        return offset < self.grace_bound and offset not in self.grace_left

    def failures(self, offset: int) -> int:
        """Return how often an offset has failed."""
        attempts = self.attempts.get(offset)
        return 0 if attempts is None else attempts.failures

    def is_redelivery(self, offset: int) -> bool:
        """Say whether an offset may have been delivered before."""
        return offset < self.seen_below or offset in self.attempts

    def is_untouched(self, start: int, end: int) -> bool:
        """Say whether nothing in [start, end) was delivered, or settled, before."""
        return start >= self.next and not self.done.count(start, end)

    # -- deliveries --------------------------------------------------------------------------

    def lease(
        self, heads: Sequence[Head], member: str, deadline_ms: int, now_ms: int, charge: int
    ) -> list[Lease]:
        """Lease available offsets, which ascend; `charge` is what each cost."""
        number, attempt, attempts = self._last_lease, 1, self.attempts
        leases = []
        for head in heads:
            number += 1
            if attempts:
                attempt = self.attempt(head.offset)
            leases.append(Lease(head, member, number, deadline_ms, now_ms, attempt, charge))
        self._last_lease = number
        self.leases.add(leases)
        for head in heads if heads[-1].offset >= self.reserved_next else heads[-1:]:
            self.reach(head.offset)
        return leases

    def attempt(self, offset: int) -> int:
        """Return which delivery of an offset the next, or the present, one is."""
        attempts = self.attempts.get(offset)
        return 1 if attempts is None else attempts.acquisitions + 1

    def reach(self, offset: int) -> None:
        """Note that an offset is delivered."""
        if offset >= self.next:
            self.next = offset + 1
            if self.next > self.reserved_next:
                self.reserved_next = self.next + RESERVE
                self.changes.is_cursor_dirty = True

    def adopt(self, head: Head, member: str, number: int, deadline_ms: int, now_ms: int) -> None:
        """Make a lease of before the restart a live one."""
        self._leave_grace(head.offset)
        lease = Lease(head, member, number, deadline_ms, now_ms, self.attempt(head.offset))
        self.leases.add([lease])

    # -- ends --------------------------------------------------------------------------------

    def finish(self, offset: int, end: End, number: int = 0) -> None:
        """Settle an offset for good; it is undone. `number`: the lease that settles it."""
        self.leases.remove(offset)
        self.delays.remove(offset)
        self.dying.pop(offset, None)
        self._leave_grace(offset)
        attempts = self.attempts.pop(offset, None)
        if attempts is not None:
            self.changes.attempts.add(offset)
        if attempts is not None or end is not End.ACKED:
            self._note_settled(offset, number, end)
        self._done(offset)

    def give_back(
        self, offset: int, end: End, number: int, *, ready_at_ms: int = 0, most_failures: int = 0
    ) -> State:
        """End the lease of an offset without settling it; return what the offset is then.

        A nack is a failure, and the last of `most_failures` makes it DYING (0: no limit).
        """
        self.leases.remove(offset)
        self._leave_grace(offset)
        attempts = self.attempts.setdefault(offset, Attempts())
        attempts.acquisitions += 1
        attempts.last_lease, attempts.last_end = number, end
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
            self.delays.add(offset, ready_at_ms)
            return State.DELAYED
        return State.AVAILABLE

    def reject_late(self, offset: int, number: int) -> None:
        """Reject an available offset whose lease had ended."""
        attempts = self.attempts.setdefault(offset, Attempts())
        attempts.last_lease, attempts.last_end = number, End.REJECTED
        self.changes.attempts.add(offset)
        self.dying[offset] = REJECTED

    def bury(self, offset: int, position: int) -> None:
        """Settle a dying offset: its record in the dead letters is durable at `position`."""
        attempts = self.attempts.get(offset)
        number, end = (
            (0, End.REJECTED)
            if attempts is None
            else (attempts.last_lease, attempts.last_end or End.REJECTED)
        )
        self.changes.dead[offset] = position
        self.dead_count += 1
        self.finish(offset, end, number)

    def drop_expired(self, offset: int) -> None:
        """Settle an offset whose message is too old to be delivered."""
        self.expired_count += 1
        self.finish(offset, End.DROPPED)
        self.changes.is_cursor_dirty = True

    def pass_over(self, start: int, end: int) -> None:
        """Settle whatever is available in [start, end): the group does not want it."""
        kept = [each for each in self._kept_back() if start <= each < end]
        for stop in [*sorted(kept), end]:
            if start < stop and self.done.add_range(start, stop):
                self.next = max(self.next, self.floor)
                self.changes.is_cursor_dirty = True
            start = stop + 1
        self.recount_grace()

    def lose(self, start: int, end: int) -> None:
        """Settle whatever is available in [start, end): it cannot be read any more."""
        before = self.done.count_all
        self.pass_over(start, end)
        self.lost_count += self.done.count_all - before

    def count_lost(self) -> None:
        """Count one message that was settled because it cannot be read any more."""
        self.lost_count += 1
        self.changes.is_cursor_dirty = True

    # -- the log and the group move ----------------------------------------------------------

    def trim(self, log_start: int) -> list[Lease]:
        """Give up what lies below the log's start; return the leases that this ends."""
        self.log_start = max(self.log_start, log_start)
        if log_start <= self.floor:
            return []
        self.end = max(self.end, log_start)
        undone = log_start - self.floor - self.done.count(self.floor, log_start)
        self.lost_count += undone
        ended = [lease for lease in self.leases if lease.head.offset < log_start]
        for offset in [each for each in self._kept_back() if each < log_start]:
            self.leases.remove(offset)
            self.delays.remove(offset)
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
        """Start again at an offset, under a new epoch: every receipt is stale from now on."""
        target = min(max(target, self.log_start), self.end)
        self.epoch += 1
        self.done = DoneChunks(target)
        self.next = self.reserved_next = self.reserved_durable = self.seen_below = target
        self.leases, self.delays = Leases(), Delays()
        self.attempts, self.dying, self.settled = {}, {}, {}
        self.grace_bound = self.grace_count = 0
        self.grace_left = set()
        self.changes = Changes(
            is_cursor_dirty=True,
            dead=self.changes.dead,
            is_reset=True,
            trimmed_below=self.changes.trimmed_below,
        )

    def begin_grace(self, bound: int, end_ms: int) -> None:
        """Hold back until `end_ms` what is below `bound` and was maybe delivered before."""
        self.grace_bound, self.grace_end_ms = bound, end_ms
        self.grace_left = {each for each in self._kept_back() if each < bound}
        self.recount_grace()

    def recount_grace(self) -> None:
        """Count again what is in grace, after offsets were settled in ranges."""
        if self.grace_bound <= self.floor:
            return self.end_grace()
        undone = self.grace_bound - self.floor - self.done.count(self.floor, self.grace_bound)
        left = sum(each not in self.done for each in self.grace_left)
        self.grace_count = undone - left
        return None

    def end_grace(self) -> None:
        """Make what is still in grace available: leases of before the restart have ended."""
        if self.grace_bound:
            self.changes.is_cursor_dirty = True
        self.grace_bound = self.grace_count = 0
        self.grace_left = set()

    # -- inside ------------------------------------------------------------------------------

    def _done(self, offset: int) -> None:
        floor = self.done.floor
        self.done.add(offset)
        if self.done.floor != floor:
            self.next = max(self.next, self.done.floor)
            self.changes.is_cursor_dirty = True

    def _kept_back(self) -> list[int]:
        return [
            *(lease.head.offset for lease in self.leases), *self.delays, *self.dying
        ]  # fmt: skip

    def _leave_grace(self, offset: int) -> None:
        if offset < self.grace_bound and offset not in self.grace_left:
            self.grace_left.add(offset)
            self.grace_count -= 1

    def _note_settled(self, offset: int, number: int, end: End) -> None:
        self.settled[offset] = number, end
        if len(self.settled) > SETTLED_KEPT:
            del self.settled[next(iter(self.settled))]
