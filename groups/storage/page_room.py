"""Allocates places in the progress page for records. Pure.

A place is a range of bytes; its size is the size of its record, a power of two. A freed place is
reused only for a record of the same size. The place that was freed last is reused first.
"""


class PageRoom:
    """The places from the position `start` on."""

    def __init__(self, start: int) -> None:
        self.end = start
        """No place at this position or beyond was ever used."""
        self._free: dict[int, list[int]] = {}

    def allocate(self, size: int) -> int:
        """Allocate a place for a record of this size; return its position."""
        places = self._free.get(size)
        if places:
            return places.pop()
        place, self.end = self.end, self.end + size
        return place

    def release(self, place: int, size: int) -> None:
        """Free a place."""
        self._free.setdefault(size, []).append(place)
