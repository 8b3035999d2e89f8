"""Limit repeated log lines, so that a broken disk does not fill the disk of the logs. Pure."""


class LogLimit:
    """Allows `most` log lines per interval of `per_s` seconds, and counts the suppressed lines."""

    def __init__(self, most: int = 20, per_s: float = 60.0) -> None:
        self._most = most
        self._per_s = per_s
        self._began = float("-inf")
        self._passed = 0
        self._left_out = 0

    def admit(self, now: float) -> int | None:
        """Return None if the caller must not log its line; otherwise return how many lines were
        suppressed since the last logged line. `now` is in seconds, from a clock that never goes
        back."""
        if now - self._began >= self._per_s:
            self._began, self._passed = now, 0
        if self._passed >= self._most:
            self._left_out += 1
            return None
        self._passed += 1
        left_out, self._left_out = self._left_out, 0
        return left_out
