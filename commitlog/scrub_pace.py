"""How fast a scrub may read, and what it looks at next. Pure: no clock, no files."""

from collections.abc import Sequence

#: While there is other work, a scrub waits this long at a time, but not for ever.
BUSY_PAUSE_S = 0.1
MAX_BUSY_PAUSES = 20


class ScrubPace:
    """Keeps a scrub to `bytes_per_s` on average over what it reads in one go, and lets other work
    go first."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._may_read_at = 0.0
        self._busy_pauses = 0

    def pause_s(self, now: float, *, is_busy: bool) -> float:
        """Return how long to wait before the next read; 0: read now. `now` never goes back."""
        if now < self._may_read_at:
            return self._may_read_at - now
        if is_busy and self._busy_pauses < MAX_BUSY_PAUSES:
            self._busy_pauses += 1
            return BUSY_PAUSE_S
        self._busy_pauses = 0
        return 0.0

    def has_read(self, now: float, size: int) -> None:
        """Take note of bytes that were read; time that was not used is not saved up."""
        self._may_read_at = max(self._may_read_at, now) + size / self._bytes_per_s


def next_start(starts: Sequence[int], after: int | None) -> int | None:
    """Return the segment to look at after the one that starts at `after` (None: at first), by its
    start; `starts` are in order. None at the end of a pass: the next begins at the first again."""
    for start in starts:
        if after is None or start > after:
            return start
    return None
