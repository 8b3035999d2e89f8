"""Decides whether a transfer is too slow. Pure: the caller passes the time."""


class Pace:
    """Checks the rate of one transfer. Each check covers the time since the check before it."""

    __slots__ = ("_min_bytes_per_s", "_moved", "_seen_at")

    def __init__(self, min_bytes_per_s: int, now: float, moved: int = 0) -> None:
        self._min_bytes_per_s = min_bytes_per_s
        self._seen_at = now
        self._moved = moved

    def is_too_slow(self, now: float, moved: int) -> bool:
        """Return whether the transfer was slower than the minimum rate since the last check.

        `moved` is how many bytes of the transfer have been transferred in total.
        """
        least = self._min_bytes_per_s * (now - self._seen_at)
        before, self._seen_at, self._moved = self._moved, now, moved
        return moved - before < least
