"""The selection of keyed groups: messages of one key in order, different keys in parallel. Pure.

A member that has leases of a key owns the key until the last of these leases ends. Meanwhile later
messages of the key are offered only to the owner. The first open offset of a key is its smallest
offset that is neither settled nor leased, and only this offset is offered. So a returned message
blocks its key until it is delivered again, even while it is delayed or in grace. When a message is
returned, the later leases of its key are revoked.

Result: if each member settles the messages of a key in order, no message is settled before an
earlier message of its key. If the group allows one lease per key, this is so even if members do not
keep the order. Each message without a key is treated as if it had a key that no other message has.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush

from holdfast.groups.core.requests import Room
from holdfast.groups.core.selection import READ_AHEAD, QueueView
from holdfast.groups.cursor.cursor import State
from holdfast.groups.cursor.heads import UNKNOWN_SIZE, Head, NeedsRead
from holdfast.groups.cursor.leases import Lease

#: The selection stops reading ahead when this many of the messages that it has read are neither
#: settled nor leased.
LOOK_AHEAD = 4096


@dataclass(slots=True, eq=False)
class _Key:
    """A key with messages that are not done."""

    #: The member that has leases of the key.
    owner: str | None = None
    #: Several members have leases of the key, because a kill of the broker lost the settlements
    #: of earlier messages. No message of the key is offered until only one member has leases.
    is_shared: bool = False
    #: The leased offsets.
    leased: set[int] = field(default_factory=set)
    #: A heap that contains every offset that is neither settled nor leased. Outdated entries are
    #: dropped when they reach the top.
    waiting: list[int] = field(default_factory=list)
    #: offset -> head, for all messages of the key that are not done.
    heads: dict[int, Head] = field(default_factory=dict)


class KeyedSelection:
    """The selection of a keyed group. Each key may have at most `most_per_key` leases."""

    def __init__(self, view: QueueView, most_per_key: int) -> None:
        self._view = view
        self._most_per_key = most_per_key
        #: Messages below this offset were read and filed under their keys.
        self._scanned = view.cursor.floor
        self._keys: dict[int, _Key] = {}
        #: offset -> number of its key, for all messages that were read and are not done.
        self._key_of: dict[int, int] = {}
        #: A heap of (first open offset, key number) of the keys without an owner. Outdated entries
        #: are dropped when they reach the top.
        self._free: list[tuple[int, int]] = []
        #: For each member a heap like `_free`, of the keys that the member owns.
        self._owned: dict[str, list[tuple[int, int]]] = {}
        self._leased_count = 0
        for lease in sorted(view.cursor.leases, key=lambda each: each.head.offset):
            if lease.head.size_bytes != UNKNOWN_SIZE:
                self._file(lease.head)  # a lease from before a restart; the page stored its key

    def peek(
        self, member: str, filter: object | None, now_ms: int, room: Room | None = None
    ) -> Head | None:
        """Of the keys that have no owner or that this member owns, take the key with the smallest
        first open offset. Return the message at that offset.

        `filter` is ignored: keyed groups allow no filters of members, because a message that a
        member skips would block its key. With `room.returned_only`, messages that were read
        before may be offered although they were not returned. There are at most `LOOK_AHEAD` such
        messages.
        """
        may_read_on = room is None or not room.returned_only
        while True:
            head = self._first_offer(member, room)
            # If the offset is at `_scanned` or beyond, its key was filed early, for a lease from
            # before a restart. Then the smaller offsets must be read first.
            if head is None or head.offset >= self._scanned:
                is_passed = self._scanned < self._view.cursor.next
                if (may_read_on or is_passed) and self._read_next():
                    continue
            if head is None or not self._view.is_too_old(head, now_ms):
                return head
            self.mark_settled(head.offset)

    def is_drained(self) -> bool:
        waiting = len(self._key_of) - self._leased_count
        return not waiting and self._scanned >= self._view.cursor.end

    def known_heads(self, filter: object | None, now_ms: int, most: int) -> list[Head]:
        """Return an empty list: the next message depends on the keys of the messages before it."""
        return []

    def mark_taken(self, heads: Sequence[Head], member: str) -> None:
        """Make the member the owner of the keys."""
        for head in heads:
            if head.offset in self._view.cursor.leases:
                self._lease(head.offset, member)
            else:  # it was settled when it was sent
                self.mark_settled(head.offset)

    def mark_returned(self, offset: int, lease: Lease | None = None) -> list[int]:
        """Offer a returned offset again, before all later offsets of its key. Return the later
        offsets of the key that are leased."""
        self._read_up_to(offset)
        number = self._key_of.get(offset)
        if number is None:
            return []
        key = self._keys[number]
        self._unlease(key, offset)
        heappush(key.waiting, offset)
        self._refresh(number, key)
        return sorted(each for each in key.leased if each > offset)

    def mark_settled(self, offset: int, count: int = 1) -> None:
        """Remove the offsets; offer the next message of each of their keys."""
        for each in range(offset, offset + count):
            self._remove(each)

    def _remove(self, offset: int) -> None:
        number = self._key_of.pop(offset, None)
        if number is None:
            return
        key = self._keys[number]
        self._unlease(key, offset)
        key.heads.pop(offset, None)
        if key.heads:
            self._refresh(number, key)
        else:
            del self._keys[number]

    def is_in_order(self, offset: int, number: int) -> bool:
        """Return False if an earlier message of the offset's key was returned after the lease
        `number` began, otherwise True."""
        self._read_up_to(offset)
        key = self._keys.get(self._key_of.get(offset, 0))
        return key is None or not any(
            each < offset and self._was_returned_since(each, number) for each in key.heads
        )

    def overtaken_offsets(self) -> list[int]:
        """Return the offsets whose leases should have been revoked before a restart: an earlier
        message of their key was returned and leased again, but the broker was killed before it
        wrote the revocation."""
        found = []
        for key in self._keys.values():
            newest = 0
            for offset in sorted(key.leased):
                lease = self._view.cursor.leases.get(offset)
                assert lease is not None
                if lease.number < newest:
                    found.append(offset)
                newest = max(newest, lease.number)
        return sorted(found)

    def mark_adopted(self, offset: int, member: str) -> None:
        """Make the member the owner of the key, as before the restart."""
        lease = self._view.cursor.leases.get(offset)
        self._read_up_to(offset)
        if offset in self._key_of:
            self._lease(offset, member)
            if lease is not None:
                lease.head = self._keys[self._key_of[offset]].heads[offset]

    def reset(self) -> None:
        """Read the queue from the floor again. The keys of leased messages stay known."""
        leases, keys = self._view.cursor.leases, self._keys.values()
        heads = [head for key in keys for at, head in key.heads.items() if at in leases]
        self._scanned = self._view.cursor.floor
        self._keys, self._key_of, self._free, self._owned = {}, {}, [], {}
        self._leased_count = 0
        for head in sorted(heads):
            self._file(head)

    def end_grace(self) -> list[int]:
        """Offer the offsets that were in grace; return the later leased offsets of their keys."""
        # After a restart, earlier messages of these keys may not have been read yet.
        self._read_up_to(
            max((max(key.leased, default=-1) for key in self._keys.values()), default=-1)
        )
        back = []
        for number, key in self._keys.items():
            self._refresh(number, key)
            if key.waiting and key.leased:
                back += [each for each in key.leased if each > key.waiting[0]]
        return sorted(back)

    # -- inside ------------------------------------------------------------------------------

    def _was_returned_since(self, offset: int, number: int) -> bool:
        """Return whether an offset, which is not done, was returned since the lease `number`: it
        has a later lease now, or it has no lease and is not in grace."""
        cursor = self._view.cursor
        lease = cursor.leases.get(offset)
        return not cursor.is_in_grace(offset) if lease is None else lease.number > number

    def _first_offer(self, member: str, room: Room | None) -> Head | None:
        free, owned = self._first_valid(self._free, member, room), None
        if (heap := self._owned.get(member)) is not None:
            owned = self._first_valid(heap, member, room)
            if owned is None:
                del self._owned[member]
        return min(filter(None, (free, owned)), default=None)

    def _first_valid(
        self, heap: list[tuple[int, int]], member: str, room: Room | None
    ) -> Head | None:
        """Return the message with the smallest offset on the heap that may still be offered. Drop
        outdated entries, and put aside the keys that have no room left in the request's limits."""
        is_free = heap is self._free
        while heap:
            offset, number = heap[0]
            key = self._keys.get(number)
            if (
                key is not None
                and key.owner == (None if is_free else member)
                and self._head_of(key) == offset
                and len(key.leased) < self._most_per_key
                and not key.is_shared
                and self._view.cursor.is_available(offset)
            ):
                if room is None or room.has_key(self._view.key[0], number):
                    return key.heads[offset]
                room.set_aside(self._view.key, number, self._offer_again)
            heappop(heap)
        return None

    def _head_of(self, key: _Key) -> int | None:
        while key.waiting:
            offset = key.waiting[0]
            if offset in key.heads and offset not in key.leased:
                return offset
            heappop(key.waiting)
        return None

    def _refresh(self, number: int, key: _Key) -> None:
        """Put the first open offset of a key on the heap of offers, if it is available."""
        offset = self._head_of(key)
        if offset is None or key.is_shared or len(key.leased) >= self._most_per_key:
            return
        if self._view.cursor.is_available(offset):
            heap = self._free if key.owner is None else self._owned.setdefault(key.owner, [])
            if not heap or heap[0] != (offset, number):
                heappush(heap, (offset, number))

    def _offer_again(self, number: int) -> None:
        """Offer a key again that was put aside (`Room.set_aside`)."""
        key = self._keys.get(number)
        if key is not None:
            self._refresh(number, key)

    def _lease(self, offset: int, member: str) -> None:
        number = self._key_of[offset]
        key = self._keys[number]
        key.is_shared |= key.owner not in (None, member)
        key.owner = member
        if offset not in key.leased:
            key.leased.add(offset)
            self._leased_count += 1
        self._refresh(number, key)

    def _unlease(self, key: _Key, offset: int) -> None:
        if offset in key.leased:
            key.leased.remove(offset)
            self._leased_count -= 1
            if not key.leased:
                key.owner = None
            if key.is_shared:
                leases = map(self._view.cursor.leases.get, key.leased)
                owners = {each.member for each in leases if each is not None}
                key.is_shared = len(owners) > 1
                key.owner = next(iter(owners), None)

    def _read_next(self) -> bool:
        """Read the next messages and file them under their keys. Return False without reading if
        the end of the queue is reached, or if LOOK_AHEAD messages wait. Raises NeedsRead."""
        view = self._view
        room = LOOK_AHEAD - (len(self._key_of) - self._leased_count)
        if room <= 0 or self._scanned >= view.cursor.end:
            return False
        found = view.read(self._scanned, min(READ_AHEAD, room))
        self._scanned = max(self._scanned, found.scanned)
        for head in found.heads:
            self._file(head)
        return True

    def _read_up_to(self, offset: int) -> None:
        """File all messages up to `offset` under their keys, as far as the source knows them
        without a fetch. This is for messages that were leased before a restart."""
        with suppress(NeedsRead):
            while self._scanned <= offset and self._read_next():
                pass

    def _file(self, head: Head) -> None:
        cursor = self._view.cursor
        state = cursor.state(head.offset)
        if state in (State.DONE, State.DYING) or head.offset in self._key_of:
            return
        number = head.key or -1 - head.offset
        key = self._keys.setdefault(number, _Key())
        key.heads[head.offset] = head
        self._key_of[head.offset] = number
        lease = cursor.leases.get(head.offset)
        if lease is not None:
            self._lease(head.offset, lease.member)
        else:
            heappush(key.waiting, head.offset)
            self._refresh(number, key)
