"""Leases, and tables of deadlines. Pure: the caller passes the time.

A timed lease ends when its member settles it or its deadline passes. A bound lease has no deadline:
it ends when its member settles it or leaves, or with the broker's process.

Both tables (Leases, Deadlines) keep a heap of deadlines with lazy deletion: an entry that differs
from the table is dropped when it reaches the top. The heap is rebuilt when most of its entries are
outdated. So its memory is bounded, even if a lease is extended again and again, or a long lease
stays while many short leases end.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

import msgspec

from holdfast.groups.cursor.heads import Head

K = TypeVar("K", bound=Hashable)

#: The deadline of a bound lease, later than every time.
NO_DEADLINE = 1 << 62
#: The deadline of a bound lease in the progress page: the lease is over at the next start.
OVER = 0
#: A heap is rebuilt only if it has this many more entries than twice its table.
MIN_OUTDATED = 64


class Grant(msgspec.Struct, eq=False):
    """A record of the progress page that stores leases."""

    #: The number of live leases that the record stores.
    left: int = 0
    # Only the page uses `place`, `size` and `generation`.
    #: The record's position in the file.
    place: int = 0
    #: The record's size in the file; 0 if the record was freed.
    size: int = 0
    #: The number of the page file that has the record (ProgressPage makes several).
    generation: int = 0
    #: The cursor's epoch in the record.
    epoch: int = 0
    #: Whether the record is the newest of its cursor. The newest record also stores how far
    #: deliveries went, so it is kept until there is a newer one.
    is_newest: bool = False
    #: At least one of the record's leases has ended; this may not be durable yet.
    has_ended: bool = False
    #: How many commits must finish before the record is no longer needed.
    commits_left: int = 0

    @property
    def is_over(self) -> bool:
        """Whether all leases of the record have ended, and this is durable."""
        return not self.left and not self.commits_left


class Lease(msgspec.Struct, eq=False, gc=False):
    """One delivery of one message to one member."""

    head: Head
    member: str
    #: Unique for the cursor, also after restarts: its upper bits are the boot.
    number: int
    #: NO_DEADLINE if the lease is bound.
    deadline_ms: int
    delivered_ms: int
    #: 1 for the first delivery; otherwise 1 + the number of ended leases of this offset.
    attempt: int
    #: The amount that the fair set charged for this delivery.
    charge: int = 0
    #: The request that got this lease, if the request may be repeated.
    attempt_id: str | None = None
    #: The page record that stores the lease; None until there is one.
    grant: Grant | None = None


class Leases:
    """The live leases of one cursor, at most one per offset."""

    def __init__(self) -> None:
        self.by_offset: dict[int, Lease] = {}
        """The live lease of each offset. Only this class may change it."""
        self._by_member: dict[str, dict[int, None]] = {}
        self._deadlines: list[tuple[int, int]] = []
        #: Page records without live leases; the group takes them from this list and frees them.
        self.ended_grants: list[Grant] = []

    def __len__(self) -> int:
        return len(self.by_offset)

    def __contains__(self, offset: int) -> bool:
        return offset in self.by_offset

    def __iter__(self) -> Iterator[Lease]:
        return iter(list(self.by_offset.values()))

    def get(self, offset: int) -> Lease | None:
        """Return the live lease of an offset."""
        return self.by_offset.get(offset)

    def add(self, leases: Sequence[Lease]) -> None:
        """Add new leases of one member with one deadline; their offsets must have no lease."""
        member, deadline_ms = leases[0].member, leases[0].deadline_ms
        by_offset, of_member = self.by_offset, self._by_member.setdefault(member, {})
        for lease in leases:
            offset = lease.head.offset
            by_offset[offset], of_member[offset] = lease, None
            if deadline_ms != NO_DEADLINE:
                heappush(self._deadlines, (deadline_ms, offset))
        if deadline_ms != NO_DEADLINE:
            self._drop_outdated_deadlines()

    def remove(self, offset: int) -> None:
        """Remove the lease of an offset, if it has one."""
        lease = self.by_offset.get(offset)
        if lease is not None:
            self.remove_run([lease])

    def remove_run(self, leases: Sequence[Lease]) -> None:
        """Remove live leases."""
        by_offset, by_member = self.by_offset, self._by_member
        for lease in leases:
            offset = lease.head.offset
            del by_offset[offset]
            offsets = by_member[lease.member]
            del offsets[offset]
            if not offsets:
                del by_member[lease.member]
            grant = lease.grant
            if grant is not None:
                grant.left -= 1
                grant.has_ended = True
                if not grant.left:
                    self.keep_until_commit(grant)

    def find_live(self, leases: Iterable[Lease]) -> list[Lease]:
        """Return those of the leases that are live."""
        by_offset = self.by_offset
        return [each for each in leases if by_offset.get(each.head.offset) is each]

    def attach(self, leases: Sequence[Lease], grant: Grant) -> list[Grant]:
        """Record that `grant` now stores these live leases. Return the records that stored any of
        them before and store no live lease any more."""
        emptied = []
        grant.left += len(leases)
        for lease in leases:
            before, lease.grant = lease.grant, grant
            if before is not None:
                before.left -= 1
                if not before.left:
                    emptied.append(before)
                    if before.has_ended:
                        self.keep_until_commit(before)
        return emptied

    def keep_until_commit(self, grant: Grant) -> None:
        """Keep a record until a commit has made all changes before this call durable."""
        grant.commits_left += 1
        self.ended_grants.append(grant)

    def remove_all(self) -> None:
        for offset in list(self.by_offset):
            self.remove(offset)

    def extend(self, lease: Lease, deadline_ms: int) -> None:
        """Give a live timed lease a new deadline, earlier or later."""
        lease.deadline_ms = deadline_ms
        heappush(self._deadlines, (deadline_ms, lease.head.offset))
        self._drop_outdated_deadlines()

    def of_member(self, member: str, below: int | None = None) -> list[Lease]:
        """Return a member's leases, sorted by offset. With `below`, return only the leases of
        offsets below it."""
        offsets: Iterable[int] = self._by_member.get(member, ())
        if below is not None:
            offsets = [each for each in offsets if each < below]
        return [self.by_offset[offset] for offset in sorted(offsets)]

    def next_deadline(self) -> int | None:
        """Return the earliest deadline; None if there are no timed leases."""
        while self._deadlines:
            deadline_ms, offset = self._deadlines[0]
            lease = self.by_offset.get(offset)
            if lease is not None and lease.deadline_ms == deadline_ms:
                return deadline_ms
            heappop(self._deadlines)
        return None

    def find_due(self, now_ms: int, most: int) -> list[Lease]:
        """Return the leases that are due, sorted by offset. If there are more than `most`, return
        those with the earliest deadlines. The caller must remove the leases."""
        found: dict[int, Lease] = {}
        while len(found) < most:
            deadline_ms = self.next_deadline()
            if deadline_ms is None or deadline_ms > now_ms:
                break
            offset = heappop(self._deadlines)[1]
            found[offset] = self.by_offset[offset]
        return [found[offset] for offset in sorted(found)]

    def _drop_outdated_deadlines(self) -> None:
        if len(self._deadlines) > 2 * len(self.by_offset) + MIN_OUTDATED:
            self._deadlines = [
                (each.deadline_ms, at)
                for at, each in self.by_offset.items()
                if each.deadline_ms != NO_DEADLINE
            ]
            heapify(self._deadlines)


class Deadlines(Generic[K]):
    """At most one deadline for each key."""

    def __init__(self) -> None:
        self.by_key: dict[K, int] = {}
        """The deadline of each key. Only this class may change it."""
        self._heap: list[tuple[int, K]] = []

    def __len__(self) -> int:
        return len(self.by_key)

    def __contains__(self, key: K) -> bool:
        return key in self.by_key

    def __iter__(self) -> Iterator[K]:
        return iter(list(self.by_key))

    def get(self, key: K) -> int:
        """Return the deadline of a key; 0 if it has none."""
        return self.by_key.get(key, 0)

    def set(self, key: K, deadline_ms: int | None) -> None:
        """Replace the deadline of a key; None removes it."""
        if deadline_ms == self.by_key.get(key):
            return
        if deadline_ms is None:
            del self.by_key[key]
            return
        self.by_key[key] = deadline_ms
        heappush(self._heap, (deadline_ms, key))
        if len(self._heap) > 2 * len(self.by_key) + MIN_OUTDATED:
            self._heap = [(each, key) for key, each in self.by_key.items()]
            heapify(self._heap)

    def next_deadline(self) -> int | None:
        """Return the earliest deadline; None if there is none."""
        while self._heap:
            deadline_ms, key = self._heap[0]
            if self.by_key.get(key) == deadline_ms:
                return deadline_ms
            heappop(self._heap)
        return None

    def take_due(self, now_ms: int, most: int) -> list[K]:
        """Remove the deadlines that have passed, at most the `most` earliest; return their keys."""
        found: list[K] = []
        while len(found) < most:
            deadline_ms = self.next_deadline()
            if deadline_ms is None or deadline_ms > now_ms:
                break
            key = heappop(self._heap)[1]
            del self.by_key[key]
            found.append(key)
        return found
