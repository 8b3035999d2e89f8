"""Messages of one key one after another, different keys beside each other. Pure.

A key belongs to the member that holds leases of it, until the last of them has ended; what
follows in the key goes to that member or waits. Of each key the smallest offset that is neither
settled nor leased is its head, and only the head is offered: a message that came back keeps its
key waiting until it is delivered again, also while it is delayed or in grace. When a message
comes back, the later leases of its key come back with it. So a message is never settled before
an earlier one of its key, if each member settles the messages of a key in their order; with one
message of a key at a time, whatever members do.

A message without a key is a key of its own.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush

from holdfast.groups.cursor import State
from holdfast.groups.heads import Head, NeedsRead
from holdfast.groups.selection import READ_AHEAD, QueueView

#: Messages that may wait for their keys while more is looked for behind them.
LOOK_AHEAD = 4096


@dataclass(slots=True, eq=False)
class _Key:
    """One key of which something is undone."""

    owner: str | None = None
    leased: set[int] = field(default_factory=set)
    waiting: list[int] = field(default_factory=list)
    heads: dict[int, Head] = field(default_factory=dict)


class ByKey:
    """The selection of a keyed group. `most_per_key` is what a member may hold of one key."""

    def __init__(self, view: QueueView, most_per_key: int) -> None:
        self._view = view
        self._most_per_key = most_per_key
        self._scanned = view.cursor.floor
        self._keys: dict[int, _Key] = {}
        #: offset -> its key, for everything looked at and undone.
        self._key_of: dict[int, int] = {}
        self._free: list[tuple[int, int]] = []
        self._owned: dict[str, list[tuple[int, int]]] = {}
        self._leased_count = 0

    def peek(self, member: str, filter: object | None, now_ms: int) -> Head | None:
        """Return the smallest offset that heads a key free for this member.

        Members have no filters of their own here: what one passes over would hold its key up.
        """
        while True:
            head = self._offered(member)
            if head is None:
                if not self._look_on():
                    return None
            elif not self._view.is_too_old(head, now_ms):
                return head
            else:
                self.settled(head.offset)

    def is_drained(self) -> bool:
        """Say whether everything looked at is settled or leased, and there is no more."""
        waiting = len(self._key_of) - self._leased_count
        return not waiting and self._scanned >= self._view.cursor.end

    def known(self, filter: object | None, now_ms: int, most: int) -> list[Head]:
        """Return nothing: what a message leaves on offer depends on its key."""
        return []

    def took(self, heads: Sequence[Head], member: str) -> None:
        """The keys are the member's."""
        for head in heads:
            if head.offset in self._view.cursor.leases:
                self._lease(head.offset, member)
            else:  # settled as it was sent
                self.settled(head.offset)

    def returned(self, offset: int) -> list[int]:
        """The offset heads its key again; later leases of the key come back with it."""
        self._look_up_to(offset)
        number = self._key_of.get(offset)
        if number is None:
            return []
        key = self._keys[number]
        self._unlease(key, offset)
        heappush(key.waiting, offset)
        self._refresh(number, key)
        return sorted(each for each in key.leased if each > offset)

    def settled(self, offset: int) -> None:
        """What follows in the key may go on."""
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
        """Say whether no earlier message of its key has come back since its lease `number`: it
        waits then, or was leased once more."""
        self._look_up_to(offset)
        key = self._keys.get(self._key_of.get(offset, 0))
        return key is None or not any(
            each < offset and self._came_back(each, number) for each in key.heads
        )

    def adopted(self, offset: int, member: str) -> None:
        """The key is the member's, as it was before the restart."""
        self._look_up_to(offset)
        if offset in self._key_of:
            self._lease(offset, member)

    def reset(self) -> None:
        """Look at everything again, from the floor on; what is leased stays with its key."""
        leases = self._view.cursor.leases
        heads = [
            head for key in self._keys.values() for at, head in key.heads.items() if at in leases
        ]
        self._scanned = self._view.cursor.floor
        self._keys, self._key_of = {}, {}
        self._free, self._owned = [], {}
        self._leased_count = 0
        for head in sorted(heads):
            self._file(head)

    def grace_over(self) -> list[int]:
        """Offer what was in grace; return later leases of its keys, which have to come back."""
        back = []
        for number, key in self._keys.items():
            self._refresh(number, key)
            if key.waiting and key.leased:
                back += [each for each in key.leased if each > key.waiting[0]]
        return sorted(back)

    # -- inside ------------------------------------------------------------------------------

    def _came_back(self, offset: int, number: int) -> bool:
        """Say whether an undone offset is nobody's, or somebody's by a lease after `number`."""
        cursor = self._view.cursor
        lease = cursor.leases.get(offset)
        return not cursor.is_in_grace(offset) if lease is None else lease.number > number

    def _offered(self, member: str) -> Head | None:
        free = self._first_valid(self._free, member)
        owned = None
        if (heap := self._owned.get(member)) is not None:
            owned = self._first_valid(heap, member)
            if owned is None:
                del self._owned[member]
        if free is None or (owned is not None and owned < free):
            free = owned
        return free

    def _first_valid(self, heap: list[tuple[int, int]], member: str) -> Head | None:
        """Return the smallest offset on the heap that is still on offer; drop what is not."""
        is_free = heap is self._free
        while heap:
            offset, number = heap[0]
            key = self._keys.get(number)
            if (
                key is not None
                and key.owner == (None if is_free else member)
                and self._head_of(key) == offset
                and len(key.leased) < self._most_per_key
                and self._view.cursor.is_available(offset)
            ):
                return key.heads[offset]
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
        """Put the key's head on offer, if it is to be had."""
        offset = self._head_of(key)
        if offset is None or len(key.leased) >= self._most_per_key:
            return
        if self._view.cursor.is_available(offset):
            heap = self._free if key.owner is None else self._owned.setdefault(key.owner, [])
            if not heap or heap[0] != (offset, number):
                heappush(heap, (offset, number))

    def _lease(self, offset: int, member: str) -> None:
        number = self._key_of[offset]
        key = self._keys[number]
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

    def _look_on(self) -> bool:
        """File the next messages under their keys. False: there are none, or too many wait."""
        view = self._view
        room = LOOK_AHEAD - (len(self._key_of) - self._leased_count)
        if room <= 0 or self._scanned >= view.cursor.end:
            return False
        found = view.read(self._scanned, min(READ_AHEAD, room))
        self._scanned = max(self._scanned, found.scanned)
        for head in found.heads:
            self._file(head)
        return True

    def _look_up_to(self, offset: int) -> None:
        """File a message of before a restart under its key, if the source can tell it now."""
        with suppress(NeedsRead):
            while self._scanned <= offset and self._look_on():
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
