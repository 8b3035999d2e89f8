"""The free numbers of a table, such as channels and handles. Pure."""

from heapq import heappop, heappush


class FreeNumbers:
    """Allocates numbers from 0 on. The lowest free number is always allocated first."""

    def __init__(self) -> None:
        self._next = 0
        self._returned: list[int] = []

    @property
    def lowest(self) -> int:
        """The number that `take` gives next."""
        return self._returned[0] if self._returned else self._next

    def take(self) -> int:
        """Return the lowest free number, which is then in use."""
        if self._returned:
            return heappop(self._returned)
        self._next += 1
        return self._next - 1

    def give_back(self, number: int) -> None:
        """Free a number that is in use."""
        heappush(self._returned, number)
