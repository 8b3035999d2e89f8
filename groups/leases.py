"""Who holds which message until when, and what comes back later. Pure: the caller says the time.

A lease ends when its member settles it or its deadline has come. Both tables keep a heap with
lazy deletion: an entry that no longer says what the table says is thrown away when it is met. A
heap of deadlines that is mostly such entries is made anew, so that neither extending for ever nor
what passes by one long lease costs memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from holdfast.groups.heads import Head


@dataclass(slots=True, eq=False)
class Lease:
    """One delivery of one message to one member."""

    head: Head
    member: str
    #: Never used again, over restarts too: the boot is in its upper bits.
    number: int
    deadline_ms: int
    delivered_ms: int
    #: 1 for the first delivery; one more than the leases of this offset that have ended.
    attempt: int
    #: What the fair set was charged for it.
    charge: int = 0


class Leases:
    """The live leases of one cursor, at most one an offset."""

    def __init__(self) -> None:
        self._by_offset: dict[int, Lease] = {}
        self._by_member: dict[str, dict[int, None]] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._latest_ms = 0

    @property
    def latest_end_ms(self) -> int:
        """No live lease ends after it; 0 without leases."""
        return self._latest_ms if self._by_offset else 0

    def __len__(self) -> int:
        return len(self._by_offset)

    def __contains__(self, offset: int) -> bool:
        return offset in self._by_offset

    def __iter__(self) -> Iterator[Lease]:
        return iter(list(self._by_offset.values()))

    def get(self, offset: int) -> Lease | None:
        """Return the live lease of an offset."""
        return self._by_offset.get(offset)

    def add(self, leases: Sequence[Lease]) -> None:
        """Keep leases that one member gets at once, with one deadline, on offsets that have
        none."""
        member, deadline_ms = leases[0].member, leases[0].deadline_ms
        self._latest_ms = max(self.latest_end_ms, deadline_ms)
        by_offset, deadlines = self._by_offset, self._deadlines
        of_member = self._by_member.setdefault(member, {})
        for lease in leases:
            offset = lease.head.offset
            by_offset[offset] = lease
            of_member[offset] = None
            heappush(deadlines, (deadline_ms, offset))
        self._let_go_of_ended()

    def remove(self, offset: int) -> Lease | None:
        """Forget and return the lease of an offset, if it has one."""
        lease = self._by_offset.pop(offset, None)
        if lease is not None:
            offsets = self._by_member[lease.member]
            del offsets[offset]
            if not offsets:
                del self._by_member[lease.member]
        return lease

    def extend(self, lease: Lease, deadline_ms: int) -> None:
        """Give a live lease another deadline, earlier or later."""
        lease.deadline_ms = deadline_ms
        self._latest_ms = max(self._latest_ms, deadline_ms)
        heappush(self._deadlines, (deadline_ms, lease.head.offset))
        self._let_go_of_ended()

    def of_member(self, member: str) -> list[Lease]:
        """Return a member's leases by offset."""
        return [self._by_offset[offset] for offset in sorted(self._by_member.get(member, ()))]

    def members(self) -> list[str]:
        """Return who has leases."""
        return list(self._by_member)

    def next_deadline(self) -> int | None:
        """Return when the first lease ends; None without leases."""
        while self._deadlines:
            deadline_ms, offset = self._deadlines[0]
            lease = self._by_offset.get(offset)
            if lease is not None and lease.deadline_ms == deadline_ms:
                return deadline_ms
            heappop(self._deadlines)
        return None

    def due(self, now_ms: int) -> list[Lease]:
        """Return the leases that have ended by now, by offset. They stay until removed."""
        found: dict[int, Lease] = {}
        while (deadline_ms := self.next_deadline()) is not None and deadline_ms <= now_ms:
            offset = heappop(self._deadlines)[1]
            found[offset] = self._by_offset[offset]
        return [found[offset] for offset in sorted(found)]

    def _let_go_of_ended(self) -> None:
        if len(self._deadlines) > 2 * len(self._by_offset) + 64:
            self._deadlines = [(each.deadline_ms, at) for at, each in self._by_offset.items()]
            heapify(self._deadlines)


class Delays:
    """Offsets that come back at a time of their own."""

    def __init__(self) -> None:
        self._ready_at: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._ready_at)

    def __contains__(self, offset: int) -> bool:
        return offset in self._ready_at

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._ready_at))

    def ready_at(self, offset: int) -> int:
        """Return when an offset comes back; 0: it is not delayed."""
        return self._ready_at.get(offset, 0)

    def add(self, offset: int, ready_at_ms: int) -> None:
        """Keep an offset back until a time."""
        self._ready_at[offset] = ready_at_ms
        heappush(self._heap, (ready_at_ms, offset))

    def remove(self, offset: int) -> bool:
        """Forget an offset. False: it was not delayed."""
        return self._ready_at.pop(offset, None) is not None

    def next_ready(self) -> int | None:
        """Return when the first comes back; None when none is delayed."""
        while self._heap:
            ready_at_ms, offset = self._heap[0]
            if self._ready_at.get(offset) == ready_at_ms:
                return ready_at_ms
            heappop(self._heap)
        return None

    def take_ready(self, now_ms: int) -> list[int]:
        """Remove and return what comes back by now, by offset."""
        found = []
        while (ready_at_ms := self.next_ready()) is not None and ready_at_ms <= now_ms:
            offset = heappop(self._heap)[1]
            del self._ready_at[offset]
            found.append(offset)
        return sorted(found)
