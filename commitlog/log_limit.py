"""How many lines of a kind go to the log: a broken disk must not fill the next one. Pure."""


class LogLimit:
    """Lets `most` lines through in any `per_s` seconds, and counts the rest."""

    def __init__(self, most: int = 20, per_s: float = 60.0) -> None:
        self._most = most
        self._per_s = per_s
        self._began = float("-inf")
        self._passed = 0
        self._left_out = 0

    def admit(self, now: float) -> int | None:
        """Return None for a line that is to be left out; else how many were left out before
        it. `now` is any clock that never goes back."""
        if now - self._began >= self._per_s:
            self._began, self._passed = now, 0
        if self._passed >= self._most:
            self._left_out += 1
            return None
        self._passed += 1
        left_out, self._left_out = self._left_out, 0
        return left_out
