"""How many messages of a slow unit a member may prefetch, so that room is left for others. Pure.

A unit is a queue or a key. One of its deliveries at a time is in hand (being processed); its other
messages wait. A unit is slow if its current or its last delivery takes at least `SLOW_S`. Then
`FEW` waiting messages are enough: they keep the unit busy for longer than a request takes. A unit
is stuck after `STUCK_S`. Then no message may wait while one is in hand: the delay of a request no
longer matters, and other members may need the messages.
"""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

U = TypeVar("U", bound=Hashable)

SLOW_S = 0.1
STUCK_S = 2.0
FEW = 2
#: At most this many slow units without a delivery in hand are remembered, the most recent ones.
MAX_REMEMBERED = 64


class Paces(Generic[U]):
    """The processing times of the units. The times that are passed in must never decrease."""

    def __init__(self) -> None:
        #: When each unit's delivery in hand was taken, oldest first.
        self._taken_at_s: dict[U, float] = {}
        #: How long the last delivery of each slow unit took; the most recent is at the end.
        self._last_s: dict[U, float] = {}

    def take(self, unit: U, now_s: float) -> None:
        """Record that a delivery of a unit is in hand from now on."""
        self._taken_at_s[unit] = now_s

    def finish(self, unit: U, now_s: float) -> None:
        """Record that the unit's delivery in hand is done."""
        taken_at_s = self._taken_at_s.pop(unit, now_s)
        if self._last_s:
            self._last_s.pop(unit, None)
        if now_s - taken_at_s >= SLOW_S:
            self._last_s[unit] = now_s - taken_at_s
            if len(self._last_s) > MAX_REMEMBERED:
                del self._last_s[next(iter(self._last_s))]

    def is_in_hand(self, unit: U) -> bool:
        """Return whether a delivery of a unit is in hand."""
        return unit in self._taken_at_s

    def slow(self, now_s: float) -> dict[U, int]:
        """Return the slow units, each with the number of its messages that may wait now."""
        paces_s = dict(self._last_s)
        for unit, taken_at_s in self._taken_at_s.items():
            if now_s - taken_at_s < SLOW_S:
                break
            paces_s[unit] = max(now_s - taken_at_s, paces_s.get(unit, 0.0))
        return {unit: self._ahead(unit, pace_s) for unit, pace_s in paces_s.items()}

    def stuck_in_s(self, units: Iterable[U], now_s: float) -> float | None:
        """Return the seconds until the next of these units becomes stuck.

        Units that are already stuck, or have no delivery in hand, do not count. Return None if no
        other unit is left.
        """
        ages_s = (now_s - self._taken_at_s[unit] for unit in units if unit in self._taken_at_s)
        return min((STUCK_S - age_s for age_s in ages_s if age_s < STUCK_S), default=None)

    def changes_in_s(self, now_s: float) -> float | None:
        """Return the seconds until the next unit becomes slow or stuck. Return None if every unit
        with a delivery in hand is already stuck."""
        next_s = None
        for taken_at_s in self._taken_at_s.values():
            age_s = now_s - taken_at_s
            if age_s < STUCK_S:
                left_s = (SLOW_S if age_s < SLOW_S else STUCK_S) - age_s
                next_s = left_s if next_s is None else min(next_s, left_s)
                if age_s < SLOW_S:
                    break
        return next_s

    def _ahead(self, unit: U, pace_s: float) -> int:
        if pace_s < STUCK_S:
            return FEW
        return 0 if unit in self._taken_at_s else 1
