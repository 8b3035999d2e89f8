"""Which offset of a queue comes next: the smallest available one that is wanted. Pure.

Every set of members with the same filter has a pointer of its own, up to which it has looked,
and a heap of what came back behind it. Pointers begin at the floor, so that a filter that comes
late finds what others skipped; what is done is passed by whole chunks. What the group's own
filter fails is settled where it is met.

A Selection is told of each thing that happens to an offset it has offered.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice
from typing import Protocol

from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.cursor import Cursor
from holdfast.groups.heads import Head, Heads, HeadSource, NeedsRead

#: Messages asked of the source in one piece.
READ_AHEAD = 64
#: Filters at once on one queue; the one asked for least lately is forgotten and begins again.
MAX_FILTERS = 64
#: Messages that came back behind a filter before those that have gone since are looked for.
MIN_BEHIND = 64


class Selection(Protocol):
    """The order in which a queue's messages are offered, and to whom."""

    def peek(self, member: str, filter: object | None, now_ms: int) -> Head | None:
        """Return the message that `member` would get next. Raises NeedsRead."""

    def is_drained(self) -> bool:
        """Say whether the last `peek` without a filter found nothing for any member at all."""

    def known(self, filter: object | None, now_ms: int, most: int) -> list[Head]:
        """Return what `peek` would offer next, each once the one before was taken: at most `most`,
        and no more than is known without a look. Changes nothing."""

    def took(self, heads: Sequence[Head], member: str) -> None:
        """Messages were leased, or settled as they were sent, in the order in which they were
        offered."""

    def returned(self, offset: int) -> list[int]:
        """An offset is available again, or delayed, or was adopted after a restart.

        Returns leased offsets that have to come back with it.
        """

    def settled(self, offset: int) -> None:
        """An offset is done, or dying."""

    def is_in_order(self, offset: int, number: int) -> bool:
        """Say whether settling an offset that is not leased overtakes nothing. `number` is that
        of its lease, which was before the restart or has ended."""

    def adopted(self, offset: int, member: str) -> None:
        """An offset in grace is leased again by the member that had it."""

    def reset(self) -> None:
        """Look again from the floor."""

    def grace_over(self) -> list[int]:
        """What was in grace is available; returns leased offsets that have to come back."""


class QueueView:
    """One cursor's queue as its selection reads it: settled and unwanted messages left out."""

    def __init__(self, cursor: Cursor, key: QueueKey, source: HeadSource) -> None:
        self.cursor = cursor
        self.key = key
        self.source = source
        #: The group's own filter on this topic.
        self.filter: object | None = None

    def read(self, start: int, most: int) -> Heads:
        """Return the next wanted messages; what is not wanted is settled. Raises NeedsRead."""
        cursor = self.cursor
        start = cursor.done.first_open(start)
        if start >= cursor.end:
            return Heads([], cursor.end)
        found = self.source.read(self.key, start, cursor.end, most, self.filter)
        if found is None:
            raise NeedsRead(self.key, start)
        self._lose(found, start)
        offset = start
        for head in found.heads:
            if head.offset > offset:
                cursor.pass_over(offset, head.offset)
            offset = head.offset + 1
        if found.scanned > offset:
            cursor.pass_over(offset, found.scanned)
        return found

    def head(self, offset: int) -> Head | None:
        """Return one message, None when it is not wanted (and settled so). Raises NeedsRead."""
        found = self.source.read(self.key, offset, offset + 1, 1, self.filter)
        if found is None:
            raise NeedsRead(self.key, offset)
        if found.heads:
            return found.heads[0]
        self._lose(found, offset)
        self.cursor.pass_over(offset, offset + 1)
        return None

    def _lose(self, found: Heads, start: int) -> None:
        for each in found.lost:
            first, end = max(each.start_offset, start), min(each.end_offset, found.scanned)
            if first < end:
                self.cursor.lose(first, end)

    def is_too_old(self, head: Head, now_ms: int) -> bool:
        """Say whether an available message is too old, and settle it if so."""
        if not head.expires_at_ms or now_ms < head.expires_at_ms:
            return False
        self.cursor.drop_expired(head.offset)
        return True


@dataclass(slots=True)
class _Pointer:
    """How far members with one filter have looked, and what lies behind that for them."""

    scanned: int
    ahead: deque[Head] = field(default_factory=deque)
    #: A heap. What is not available any more is let go of when somebody looks, or once there is
    #: more than `most_behind`: nobody may ask with this filter again.
    behind: list[int] = field(default_factory=list)
    most_behind: int = MIN_BEHIND

    def come_back(self, offset: int, cursor: Cursor) -> None:
        """Put an offset behind it, if it has passed that."""
        if offset < self.scanned:
            heappush(self.behind, offset)
            if len(self.behind) > self.most_behind:
                self.behind = sorted(filter(cursor.is_available, set(self.behind)))
                self.most_behind = 2 * len(self.behind) + MIN_BEHIND


class InOrder:
    """Every message to whoever asks: competing, single active and exclusive groups."""

    def __init__(self, view: QueueView) -> None:
        self._view = view
        self._pointers: dict[object | None, _Pointer] = {}
        #: The messages behind pointers, as far as they were read.
        self._heads: dict[int, Head] = {}

    def peek(self, member: str, filter: object | None, now_ms: int) -> Head | None:
        """Return the smallest available message that passes the filter. Raises NeedsRead."""
        view = self._view
        pointer = self._pointer(filter)
        while True:
            head = self._first_behind(pointer, filter)
            fresh = self._first_ahead(pointer, filter, None if head is None else head.offset)
            if fresh is not None and (head is None or fresh.offset < head.offset):
                head = fresh
            if head is None or not view.is_too_old(head, now_ms):
                return head
            self._heads.pop(head.offset, None)

    def is_drained(self) -> bool:
        """Say whether there is nothing for a member without a filter."""
        pointer = self._pointers.get(None)
        return (
            pointer is not None
            and not pointer.behind
            and not pointer.ahead
            and pointer.scanned >= self._view.cursor.end
        )

    def known(self, filter: object | None, now_ms: int, most: int) -> list[Head]:
        """Return what lies ahead of the filter's pointer, if nothing came back behind it."""
        pointer = self._pointers.get(filter)
        if pointer is None or pointer.behind or not pointer.ahead:
            return []
        cursor = self._view.cursor
        heads = list(islice(pointer.ahead, most))
        if not cursor.is_untouched(heads[0].offset, heads[-1].offset + 1):
            heads = [head for head in pointer.ahead if cursor.is_available(head.offset)][:most]
        for count, head in enumerate(heads):
            if 0 < head.expires_at_ms <= now_ms:
                return heads[:count]
        return heads

    def took(self, heads: Sequence[Head], member: str) -> None:
        """Pass them; what is available, the cursor says."""
        if heads[0].offset in self._view.cursor.leases:
            for head in heads:
                self._heads[head.offset] = head
        for pointer in self._pointers.values():
            ahead = pointer.ahead
            for head in heads:
                if not ahead or ahead[0] is not head:
                    break
                ahead.popleft()

    def returned(self, offset: int) -> list[int]:
        """Put an offset behind every pointer that has passed it."""
        for pointer in self._pointers.values():
            pointer.come_back(offset, self._view.cursor)
        return []

    def settled(self, offset: int) -> None:
        """Forget an offset."""
        self._heads.pop(offset, None)

    def is_in_order(self, offset: int, number: int) -> bool:
        """Messages are settled in any order."""
        return True

    def adopted(self, offset: int, member: str) -> None:
        """Nothing is noted: the cursor says what is leased."""

    def reset(self) -> None:
        """Begin every pointer at the floor again."""
        self._pointers.clear()
        self._heads.clear()

    def grace_over(self) -> list[int]:
        """Begin again at the floor: what was in grace lies behind every pointer."""
        self.reset()
        return []

    def _pointer(self, filter: object | None) -> _Pointer:
        pointer = self._pointers.get(filter)
        if pointer is None:
            if len(self._pointers) >= MAX_FILTERS:
                del self._pointers[next(iter(self._pointers))]
            pointer = self._pointers[filter] = self._new_pointer()
        elif filter is not None:  # the order of the table is the order of last use
            self._pointers[filter] = self._pointers.pop(filter)
        return pointer

    def _new_pointer(self) -> _Pointer:
        """What may be leased since before a restart is passed; `reset` comes when that ends."""
        cursor = self._view.cursor
        behind = sorted(filter(cursor.is_available, cursor.grace_left))
        return _Pointer(max(cursor.floor, cursor.grace_bound), behind=behind)

    def _first_behind(self, pointer: _Pointer, filter: object | None) -> Head | None:
        view, behind = self._view, pointer.behind
        while behind:
            offset = behind[0]
            if view.cursor.is_available(offset):
                head = self._heads.get(offset) or view.head(offset)
                if head is not None and self._passes(offset, filter):
                    self._heads[offset] = head
                    return head
            heappop(behind)
        return None

    def _first_ahead(
        self, pointer: _Pointer, filter: object | None, stop: int | None
    ) -> Head | None:
        """Look on, but not where a smaller offset than `stop` can no longer be found."""
        view, cursor, ahead = self._view, self._view.cursor, pointer.ahead
        while True:
            while ahead:
                if cursor.is_available(ahead[0].offset):
                    return ahead[0]
                ahead.popleft()
            if pointer.scanned >= cursor.end or (stop is not None and pointer.scanned > stop):
                return None
            found = view.read(pointer.scanned, READ_AHEAD)
            passing = [head for head in found.heads if self._passes(head.offset, filter)]
            ahead.extend(passing)
            pointer.scanned = max(pointer.scanned, found.scanned)

    def _passes(self, offset: int, filter: object | None) -> bool:
        if filter is None:
            return True
        passes = self._view.source.matches(self._view.key, offset, filter)
        if passes is None:
            raise NeedsRead(self._view.key, offset)
        return passes
