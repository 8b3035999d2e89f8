"""One queue's index in memory: where it begins and ends, and its newest entries. Pure.

Only the reput thread writes here, except `min_offset` and `min_bytes`, which retention changes.
Any thread may read at any time. No lock is needed: each change is one assignment or one append,
and a reader must read `max_offset` before `entries`. Then every entry below `max_offset` is in
`entries` or in LMDB.
"""

import bisect
from collections.abc import Callable, Iterator
from typing import NamedTuple


class CqUnit(NamedTuple):
    """One batch in a queue's index."""

    base_offset: int
    physical_offset: int
    size: int
    message_count: int
    store_timestamp_us: int
    tag_summary: int
    queue_bytes: int
    """Running count of the queue's stored bytes before this batch, from an arbitrary start. The
    difference between two entries is the size of the batches between them."""

    @property
    def end_offset(self) -> int:
        """The queue offset after its last message."""
        return self.base_offset + self.message_count

    @property
    def end_physical_offset(self) -> int:
        return self.physical_offset + self.size

    @property
    def end_queue_bytes(self) -> int:
        return self.queue_bytes + self.size


class ConsumeQueue:
    """The state of one queue. Offsets are queue offsets.

    `min_offset` is the first offset kept. `max_offset` is the next offset to become visible.
    Entries that are indexed but not yet visible (they wait for a sync) are not in `entries`.
    """

    __slots__ = ("entries", "indexed", "max_offset", "min_bytes", "min_offset", "newest", "pending")

    def __init__(self, newest: CqUnit | None, min_offset: int, min_bytes: int) -> None:
        self.entries: list[CqUnit] = []
        self.newest = newest
        """The last visible entry, or None if there never was one."""
        self.max_offset = max(newest.end_offset if newest else 0, min_offset)
        self.min_offset = min_offset
        self.min_bytes = min_bytes
        """Value of queue_bytes at `min_offset`."""
        self.indexed = newest
        """The last entry that was indexed, visible or not."""
        self.pending = 0
        """The number of entries that are indexed but not visible yet."""

    @property
    def bytes(self) -> int:
        """Stored bytes from `min_offset` to `max_offset`."""
        return self.newest.end_queue_bytes - self.min_bytes if self.newest else 0

    def show(self, unit: CqUnit) -> None:
        """Make the entry that follows all visible entries visible, too."""
        self.entries.append(unit)
        self.newest = unit
        self.max_offset = unit.base_offset + unit.message_count

    def trim_entries(self, committed_offset: int, keep: int) -> None:
        """Drop entries from memory that the index on disk has (those that end at or before
        `committed_offset`), but keep the newest `keep` entries."""
        entries = self.entries
        drop = min(len(entries) - keep, bisect.bisect_right(entries, committed_offset, key=_end))
        if drop > 0:
            self.entries = entries[drop:]

    def from_tail(self, offset: int) -> Iterator[CqUnit] | None:
        """Return the entries, starting with the one that holds `offset`, or with the next one if
        none holds it. Return None if `offset` is before the entries in memory."""
        entries = self.entries
        if not entries or offset < entries[0].base_offset:
            return None
        start = bisect.bisect_right(entries, offset, key=_end)
        return iter(entries[start:])

    def trim_queue(self, min_offset: int, min_bytes: int) -> None:
        """Set the queue's first kept offset to `min_offset`, which is in the queue or its end."""
        self.min_bytes = min_bytes
        self.min_offset = min_offset


def first_reaching(
    entries: list[CqUnit], attribute: Callable[[CqUnit], int], value: int
) -> CqUnit | None:
    """Return the first entry whose `attribute` is at least `value`, or None if there is none.
    `attribute` must never decrease along `entries`."""
    index = bisect.bisect_left(entries, value, key=attribute)
    return entries[index] if index < len(entries) else None


def _end(unit: CqUnit) -> int:
    return unit.base_offset + unit.message_count
