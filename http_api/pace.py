"""Whether a transfer is too slow to go on. Pure: the caller says what time it is."""


class Pace:
    """Judges one transfer by how much of it moved since it was last looked at."""

    __slots__ = ("_min_bytes_per_s", "_moved", "_seen_at")

    def __init__(self, min_bytes_per_s: int, now: float, moved: int = 0) -> None:
        self._min_bytes_per_s = min_bytes_per_s
        self._seen_at = now
        self._moved = moved

    def is_too_slow(self, now: float, moved: int) -> bool:
        """Whether less than the least rate moved since the last look; `moved` counts all of it."""
        least = self._min_bytes_per_s * (now - self._seen_at)
        before, self._seen_at, self._moved = self._moved, now, moved
        return moved - before < least
