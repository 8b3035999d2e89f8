"""Limit how fast a scrub reads, and choose its next segment. Pure: no clock, no files."""

from collections.abc import Sequence

#: While there is other work, a scrub pauses this long, but at most MAX_BUSY_PAUSES times in a row.
BUSY_PAUSE_S = 0.1
MAX_BUSY_PAUSES = 20


class ScrubPace:
    """Limits a scrub to an average of `bytes_per_s`, and lets other work go first."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._may_read_at = 0.0
        self._busy_pauses = 0

    def pause_s(self, now: float, *, is_busy: bool) -> float:
        """Return the seconds to wait before calling this again; 0.0 means read now. `now` is in
        seconds, from a clock that never goes back."""
        if now < self._may_read_at:
            return self._may_read_at - now
        if is_busy and self._busy_pauses < MAX_BUSY_PAUSES:
            self._busy_pauses += 1
            return BUSY_PAUSE_S
        self._busy_pauses = 0
        return 0.0

    def has_read(self, now: float, size: int) -> None:
        """Record a read of `size` bytes. Unused time does not allow a faster read later."""
        self._may_read_at = max(self._may_read_at, now) + size / self._bytes_per_s


def next_start(starts: Sequence[int], after: int | None) -> int | None:
    """Return the start offset of the segment to scrub after the segment that starts at `after`.

    `starts` are the segments' start offsets in ascending order; `after` is None at the beginning
    of a pass. Return None at the end of a pass."""
    for start in starts:
        if after is None or start > after:
            return start
    return None
