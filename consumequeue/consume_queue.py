"""One queue's index in memory: where it begins and ends, and its newest entries. Pure.

Written only by the reput thread, but for where it begins, which retention moves; read by any
thread at any time. That works without a lock because each change is one assignment or one
append, and a reader looks at `max_offset` before it looks at the entries: what is below it is
there.
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
    """Stored bytes of all batches of this queue before this one: differences are sizes."""

    @property
    def end_offset(self) -> int:
        """The queue offset after its last message."""
        return self.base_offset + self.message_count

    @property
    def end_physical_offset(self) -> int:
        """Where its block ends in the log."""
        return self.physical_offset + self.size

    @property
    def end_queue_bytes(self) -> int:
        """Stored bytes of the queue up to and with this batch."""
        return self.queue_bytes + self.size


class ConsumeQueue:
    """The state of one queue. Offsets are queue offsets.

    `min_offset` is the first offset kept, `max_offset` the next to be made visible. Entries
    that are indexed but not yet visible (their topic demands durability) are not in here.
    """

    __slots__ = ("entries", "indexed", "max_offset", "min_bytes", "min_offset", "newest", "pending")

    def __init__(self, newest: CqUnit | None, min_offset: int, min_bytes: int) -> None:
        self.entries: list[CqUnit] = []
        self.newest = newest
        """The last visible entry, None while there never was one."""
        self.max_offset = max(newest.end_offset if newest else 0, min_offset)
        self.min_offset = min_offset
        self.min_bytes = min_bytes
        """Value of queue_bytes at `min_offset`."""
        self.indexed = newest
        """The last entry that was given its place, visible or not."""
        self.pending = 0
        """Entries that have their place but are not visible yet."""

    @property
    def bytes(self) -> int:
        """Stored bytes from `min_offset` to `max_offset`."""
        return self.newest.end_queue_bytes - self.min_bytes if self.newest else 0

    def show(self, unit: CqUnit) -> None:
        """Make an entry visible: the one after all that are."""
        self.entries.append(unit)
        self.newest = unit
        self.max_offset = unit.end_offset

    def trim_entries(self, committed_offset: int, keep: int) -> None:
        """Forget entries that the index on disk has (they end at or before
        `committed_offset`), but for the newest `keep`."""
        entries = self.entries
        drop = min(len(entries) - keep, bisect.bisect_right(entries, committed_offset, key=_end))
        if drop > 0:
            self.entries = entries[drop:]

    def from_tail(self, offset: int) -> Iterator[CqUnit] | None:
        """Return the entries from the one that holds `offset` on, None when it is older than
        what is in memory. The entry returned first may begin after `offset`: a gap."""
        entries = self.entries
        if not entries or offset < entries[0].base_offset:
            return None
        start = bisect.bisect_right(entries, offset, key=_end)
        return iter(entries[start:])

    def trim_queue(self, min_offset: int, min_bytes: int) -> None:
        """Move the queue's begin up, to an offset that it has or its end."""
        self.min_bytes = min_bytes
        self.min_offset = min_offset


def first_reaching(
    entries: list[CqUnit], attribute: Callable[[CqUnit], int], value: int
) -> CqUnit | None:
    """Return the first entry whose `attribute`, which never decreases, is at least `value`."""
    index = bisect.bisect_left(entries, value, key=attribute)
    return entries[index] if index < len(entries) else None


def _end(unit: CqUnit) -> int:
    return unit.base_offset + unit.message_count
