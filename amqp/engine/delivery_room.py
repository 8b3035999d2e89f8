"""How many unsettled deliveries a session and its connection may have at once. Pure.

A connection has one DeliveryRoom, and each of its sessions has one whose parent it is. Owners of
links take room when they send unsettled deliveries, and give it back when the deliveries end.
"""

from collections.abc import Callable

#: More deliveries than any client has.
UNLIMITED = 1 << 62


def _do_nothing() -> None: ...


class DeliveryRoom:
    """The room of a session, or of a connection."""

    __slots__ = ("_most", "_on_room", "_parent", "_taken")

    def __init__(
        self,
        most: int = UNLIMITED,
        parent: "DeliveryRoom | None" = None,
        on_room: Callable[[], None] = _do_nothing,
    ) -> None:
        """`on_room` is called when there is room again after there was none."""
        self._most, self._parent, self._on_room = most, parent, on_room
        self._taken = 0

    @property
    def left(self) -> int:
        """How many more unsettled deliveries may be sent now: the smaller room counts."""
        left = self._most - self._taken
        return left if self._parent is None else min(left, self._parent.left)

    def take(self, count: int) -> None:
        """Count deliveries that are sent now; `count` is at most `left`."""
        self._taken += count
        if self._parent is not None:
            self._parent.take(count)

    def give(self, count: int) -> None:
        """Count deliveries that ended."""
        was_full = self._taken >= self._most
        self._taken -= count
        if self._parent is not None:
            self._parent.give(count)
        if was_full and count:
            self._on_room()

    def close(self) -> None:
        """Call `on_room` no more, which ends a reference cycle with the owner."""
        self._on_room = _do_nothing
