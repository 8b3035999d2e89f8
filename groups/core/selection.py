"""Chooses the next message of a queue: the first that is available and matches a filter. Pure.

All members with the same filter share a pointer: the offset up to which messages were read for this
filter. They also share a heap of the messages below the pointer that were returned. A new pointer
begins at the floor, so a new filter finds messages that other filters skipped. Ranges of done
offsets are skipped in chunks. Messages that do not match the group's own filter are not wanted;
they are settled when they are read.

If a Selection has offered an offset, the lane reports every change of this offset to it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice
from typing import Protocol

import msgspec

from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.core.requests import Room
from holdfast.groups.cursor.cursor import Cursor
from holdfast.groups.cursor.heads import Head, Heads, HeadSource, NeedsRead
from holdfast.groups.cursor.leases import Lease

#: How many messages are requested from the source in one read, if receives take few at a time.
READ_AHEAD = 64
#: At most this many messages are requested in one read, if receives take so many at a time.
MAX_READ_AHEAD = 256
#: A queue has pointers for at most this many filters. If there are more filters, the pointer of the
#: least recently used one is dropped.
MAX_FILTERS = 64
#: Unavailable entries below the top of a `returned` heap are removed only when the heap has more
#: entries than this.
MIN_RETURNED = 64
#: Larger than every offset.
BEYOND = 1 << 63


class Selection(Protocol):
    """The order in which a queue's messages are offered, and the members that get them."""

    def peek(
        self, member: str, filter: object | None, now_ms: int, room: Room | None = None
    ) -> Head | None:
        """Return the message that `member` would get next, within `room`; None if there is none. If
        `room.returned_only` is true, offer only returned messages; a keyed group then also offers
        messages that were read before. Raises NeedsRead."""

    def is_drained(self) -> bool:
        """Return whether the last `peek` without a filter found no message for any member."""

    def known_heads(self, filter: object | None, now_ms: int, most: int) -> list[Head]:
        """Return the messages that successive calls of `peek` would offer if each message were
        taken. Return at most `most` messages, and only messages that need no read of the queue.
        This call takes no message. If `most` is large, the next read requests more messages."""

    def mark_taken(self, heads: Sequence[Head], member: str) -> None:
        """Record that messages were leased, or settled when they were sent. `heads` are in the
        order in which they were offered."""

    def mark_returned(self, offset: int, lease: Lease | None = None) -> list[int]:
        """Record that an offset is available again or delayed. `lease` is its lease that has ended
        now, if it had one. Return the offsets whose leases must be revoked because of this."""

    def mark_settled(self, offset: int, count: int = 1) -> None:
        """Record that `count` offsets from `offset` on are done or dying."""

    def is_in_order(self, offset: int, number: int) -> bool:
        """Return whether an offset that is not leased may be settled now, as far as the order of
        its key is concerned. `number` is the lease of the receipt; it has ended, or it is from
        before a restart."""

    def overtaken_offsets(self) -> list[int]:
        """Return the offsets whose leases are from before a restart and must be revoked."""

    def mark_adopted(self, offset: int, member: str) -> None:
        """Record that an offset in grace is leased again, by the member that had leased it."""

    def reset(self) -> None:
        """Read the queue from the floor again."""

    def end_grace(self) -> list[int]:
        """Offer the offsets that were in grace. Return the offsets whose leases must be revoked
        because of this."""


class QueueView:
    """The queue of a cursor, without settled messages and without unwanted messages. A message is
    unwanted if the group's own filter does not match it."""

    def __init__(self, cursor: Cursor, key: QueueKey, source: HeadSource) -> None:
        self.cursor = cursor
        self.key = key
        self.source = source
        #: The group's own filter on this topic.
        self.filter: object | None = None

    def read(self, start: int, most: int) -> Heads:
        """Return at most `most` wanted messages from `start` on; settle the unwanted messages
        between them. Raises NeedsRead."""
        cursor = self.cursor
        start = cursor.done.first_open(start)
        if start >= cursor.end:
            return Heads([], cursor.end)
        found = self.source.read(self.key, start, cursor.end, most, self.filter)
        if found is None:
            raise NeedsRead(self.key, start)
        if found.lost:
            self._mark_lost(found, start)
        heads, offset = found.heads, start
        if heads and heads[-1].offset == start + len(heads) - 1:  # there are no gaps
            offset += len(heads)
        else:
            for head in heads:
                if head.offset > offset:
                    cursor.skip(offset, head.offset)
                offset = head.offset + 1
        if found.scanned > offset:
            cursor.skip(offset, found.scanned)
        return found

    def read_head(self, offset: int) -> Head | None:
        """Return one message. If it is unwanted or lost, settle it and return None. Raises
        NeedsRead."""
        found = self.source.read(self.key, offset, offset + 1, 1, self.filter)
        if found is None:
            raise NeedsRead(self.key, offset)
        if found.heads:
            return found.heads[0]
        self._mark_lost(found, offset)
        self.cursor.skip(offset, offset + 1)
        return None

    def _mark_lost(self, found: Heads, start: int) -> None:
        for each in found.lost:
            first, end = max(each.start_offset, start), min(each.end_offset, found.scanned)
            if first < end:
                self.cursor.skip_lost(first, end)

    def is_too_old(self, head: Head, now_ms: int) -> bool:
        """Return whether an available message's time to live is over. If it is, settle the
        message."""
        if not self.has_expired(head, now_ms):
            return False
        self.cursor.drop_expired(head.offset)
        return True

    def has_expired(self, head: Head, now_ms: int) -> bool:
        """Return whether a message's time to live is over, by the wall clock."""
        return 0 < head.expires_at_ms <= self.source.wall_ms(now_ms)


@dataclass(slots=True)
class _Pointer:
    """The state of the selection for one filter."""

    #: Messages below this offset were read for this filter.
    scanned: int
    #: Messages that were read and match, and have not been taken yet.
    unread: deque[Head] = field(default_factory=deque)
    #: A heap of the offsets below `scanned` that were returned. Offsets that are no longer
    #: available are removed when they reach the top, or when the heap has more than `most_returned`
    #: entries, because the filter may never be used again.
    returned: list[int] = field(default_factory=list)
    most_returned: int = MIN_RETURNED
    #: How many messages the next read requests.
    read_ahead: int = READ_AHEAD

    def add_returned(self, offset: int, cursor: Cursor) -> None:
        """Put a returned offset on the heap if it is below the pointer."""
        if offset < self.scanned:
            heappush(self.returned, offset)
            if len(self.returned) > self.most_returned:
                self.returned = sorted(filter(cursor.is_available, set(self.returned)))
                self.most_returned = 2 * len(self.returned) + MIN_RETURNED


class _Returned(msgspec.Struct, frozen=True):
    """The key in the table of pointers for requests that may get only returned messages. Such a
    pointer is beyond every offset, so all returned messages are on its heap."""

    filter: object | None


class OrderedSelection:
    """The selection of competing, single active and exclusive groups: any member may get any
    message, and messages may be settled in any order."""

    def __init__(self, view: QueueView) -> None:
        self._view = view
        self._pointers: dict[object | None, _Pointer] = {}
        #: The heads of returned messages, as far as they are known.
        self._heads: dict[int, Head] = {}
        #: The heads of leases up to this number are not used: the group's filter or its settings
        #: may have been others then, or the broker has restarted since.
        self._outdated_lease = view.cursor.last_lease

    def peek(
        self, member: str, filter: object | None, now_ms: int, room: Room | None = None
    ) -> Head | None:
        """Return the smallest available message that matches the filter. Raises NeedsRead."""
        view = self._view
        is_returned = room is not None and room.returned_only
        pointer = self._pointer(_Returned(filter) if is_returned else filter)
        while True:
            head = self._first_returned(pointer, filter) if pointer.returned else None
            if pointer.unread or pointer.scanned < view.cursor.end:
                fresh = self._first_new(pointer, filter, None if head is None else head.offset)
                if fresh is not None and (head is None or fresh.offset < head.offset):
                    head = fresh
            if head is None or not head.expires_at_ms or not view.is_too_old(head, now_ms):
                return head
            self._heads.pop(head.offset, None)

    def is_drained(self) -> bool:
        pointer = self._pointers.get(None)
        return (
            pointer is not None
            and not pointer.returned
            and not pointer.unread
            and pointer.scanned >= self._view.cursor.end
        )

    def known_heads(self, filter: object | None, now_ms: int, most: int) -> list[Head]:
        """Return the messages that were read for this filter and not taken yet, at most `most`.
        Return an empty list if returned messages must be offered first."""
        pointer = self._pointers.get(filter)
        if pointer is None or pointer.returned or not pointer.unread or not most:
            return []
        pointer.read_ahead = min(max(most, READ_AHEAD), MAX_READ_AHEAD)
        cursor = self._view.cursor
        heads = list(islice(pointer.unread, most))
        if not cursor.is_untouched(heads[0].offset, heads[-1].offset + 1):
            heads = [head for head in pointer.unread if cursor.is_available(head.offset)][:most]
        for count, head in enumerate(heads):
            if head.expires_at_ms and self._view.has_expired(head, now_ms):
                return heads[:count]
        return heads

    def mark_taken(self, heads: Sequence[Head], member: str) -> None:
        """Remove these messages from the beginning of every pointer's `unread`."""
        for pointer in self._pointers.values():
            unread = pointer.unread
            for head in heads:
                if not unread or unread[0] is not head:
                    break
                unread.popleft()

    def mark_returned(self, offset: int, lease: Lease | None = None) -> list[int]:
        """Put an offset on the heap of every pointer above it. No other lease is affected."""
        if lease is not None and lease.number > self._outdated_lease:
            self._heads[offset] = lease.head
        for pointer in self._pointers.values():
            pointer.add_returned(offset, self._view.cursor)
        return []

    def mark_settled(self, offset: int, count: int = 1) -> None:
        heads = self._heads
        for each in range(offset, offset + count) if heads else ():
            heads.pop(each, None)

    def is_in_order(self, offset: int, number: int) -> bool:
        return True

    def overtaken_offsets(self) -> list[int]:
        return []

    def mark_adopted(self, offset: int, member: str) -> None: ...

    def reset(self) -> None:
        """Forget all pointers; new ones begin at the floor."""
        self._pointers.clear()
        self._heads.clear()
        self._outdated_lease = self._view.cursor.last_lease

    def end_grace(self) -> list[int]:
        """Let all pointers begin at the floor again, to find the offsets that were in grace."""
        self.reset()
        return []

    def _pointer(self, of: object | None) -> _Pointer:
        pointer = self._pointers.get(of)
        if pointer is None:
            pointer = self._new_pointer(of)
            if len(self._pointers) >= MAX_FILTERS:
                del self._pointers[next(iter(self._pointers))]
            self._pointers[of] = pointer
        elif of is not None:  # the order of the table is the order of last use
            self._pointers[of] = self._pointers.pop(of)
        return pointer

    def _new_pointer(self, of: object | None) -> _Pointer:
        """Make a pointer that begins after the offsets in grace. When the grace ends, `end_grace`
        lets all pointers begin at the floor again."""
        cursor = self._view.cursor
        if isinstance(of, _Returned) and of.filter is not None:
            # There may be 100,000 returned offsets. So find the available ones once, not again for
            # each filter.
            unfiltered = self._pointer(_Returned(None))
            returned = unfiltered.returned.copy()
            return _Pointer(BEYOND, returned=returned, most_returned=unfiltered.most_returned)
        if isinstance(of, _Returned):
            return _Pointer(BEYOND, returned=sorted(filter(cursor.is_available, cursor.attempts)))
        returned = sorted(filter(cursor.is_available, cursor.grace_left))
        return _Pointer(max(cursor.floor, cursor.grace_bound), returned=returned)

    def _first_returned(self, pointer: _Pointer, filter: object | None) -> Head | None:
        view, returned = self._view, pointer.returned
        while returned:
            offset = returned[0]
            if view.cursor.is_available(offset):
                head = self._heads.get(offset) or view.read_head(offset)
                if head is not None and self._matches(offset, filter):
                    self._heads[offset] = head
                    return head
            heappop(returned)
        return None

    def _first_new(self, pointer: _Pointer, filter: object | None, stop: int | None) -> Head | None:
        """Return the first available message ahead of the pointer; None if there is none. Do not
        read beyond the offset `stop`, if it is given."""
        view, cursor, unread = self._view, self._view.cursor, pointer.unread
        while True:
            while unread:
                if cursor.is_available(unread[0].offset):
                    return unread[0]
                unread.popleft()
            if pointer.scanned >= cursor.end or (stop is not None and pointer.scanned > stop):
                return None
            found = view.read(pointer.scanned, pointer.read_ahead)
            heads = found.heads
            if filter is not None:
                heads = [head for head in heads if self._matches(head.offset, filter)]
            unread.extend(heads)
            pointer.scanned = max(pointer.scanned, found.scanned)

    def _matches(self, offset: int, filter: object | None) -> bool:
        if filter is None:
            return True
        is_match = self._view.source.matches(self._view.key, offset, filter)
        if is_match is None:
            raise NeedsRead(self._view.key, offset)
        return is_match
