"""How many messages a member of a group prefetches. Pure.

Credit chooses the smallest buffer that keeps the worker busy. ProcessingTimes limits the waiting
messages of slow ordering keys, so that other ordering keys have room. An ordering key is a queue or
a key. One of its deliveries at a time is in progress; its other messages wait. An ordering key is
slow if its current or its last delivery takes at least `SLOW_S`. Then `FEW` waiting messages are
enough: they keep the ordering key busy for longer than a request takes. An ordering key is stuck
after `STUCK_S`. Then no message may wait while a delivery is in progress: the delay of a request no
longer matters, and other members may need the messages.
"""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

U = TypeVar("U", bound=Hashable)

SLOW_S = 0.1
STUCK_S = 2.0
#: A member requests no messages that could make its waiting messages larger than this in total. A
#: single message may be larger than `max_bytes` of a receive, and exceed it.
MAX_BUFFERED_BYTES = 100 * 1024 * 1024
FEW = 2
#: At most this many slow ordering keys without a delivery in progress are remembered.
MAX_REMEMBERED = 64


class Credit:
    """Decides when to request messages, and how many.

    A member requests more messages when its buffer has fallen to `low` messages. The reply fills
    the buffer up to twice `low`. `low` is the number of messages that the worker used during the
    last request, plus 25 %. If the buffer became empty during the request, and the broker sent
    as many messages as requested, `low` doubles. `low` begins at `least`; the member holds at most
    `most` messages.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least = min(least, most)
        self._most = most
        self._buffered = 0
        self.low = self._least

    def request_size(self, buffered: int, held: int) -> int:
        """Return how many messages to request now; 0 if the buffer is still full enough.

        `buffered` is the number of messages that wait for the worker; `held` is the number of all
        leased messages, including the waiting ones.
        """
        if buffered > self.low:
            return 0
        self._buffered = buffered
        return max(0, min(2 * self.low - buffered, self._most - held))

    def lacks_room(self, buffered: int, held: int) -> bool:
        """Return whether the member has too little room for the messages that it should request."""
        return self._most - held < 2 * self.low - buffered

    def record_reply(self, asked: int, got: int, buffered: int) -> None:
        """Adjust `low` after a request for `asked` messages. The reply had `got` messages. When the
        reply arrived, `buffered` messages were still waiting for the worker."""
        if not buffered:
            if got >= asked:
                self.low = min(self._most, self.low * 2)
            return
        needed = (self._buffered - buffered) * 5 // 4 + 1
        # Decrease in small steps, because a single quick reply may be an exception.
        self.low = max(self._least, needed, self.low * 7 // 8)
        self.low = min(self._most, self.low)


class ProcessingTimes(Generic[U]):
    """The processing times of the ordering keys. The times passed in must never decrease."""

    def __init__(self) -> None:
        #: When each ordering key's delivery in progress was taken, oldest first.
        self._taken_at_s: dict[U, float] = {}
        #: How long the last delivery of each slow ordering key took; the most recent is at the end.
        self._last_s: dict[U, float] = {}

    def start(self, ordering_key: U, now_s: float) -> None:
        """Record that a delivery of an ordering key is in progress from now on."""
        self._taken_at_s[ordering_key] = now_s

    def finish(self, ordering_key: U, now_s: float) -> None:
        """Record that the ordering key's delivery in progress is done."""
        taken_at_s = self._taken_at_s.pop(ordering_key, now_s)
        if self._last_s:
            self._last_s.pop(ordering_key, None)
        if now_s - taken_at_s >= SLOW_S:
            self._last_s[ordering_key] = now_s - taken_at_s
            if len(self._last_s) > MAX_REMEMBERED:
                del self._last_s[next(iter(self._last_s))]

    def find_slow(self, now_s: float) -> dict[U, int]:
        """Return the slow ordering keys, each with the number of its messages that may wait now."""
        times_s = dict(self._last_s)
        for ordering_key, taken_at_s in self._taken_at_s.items():
            if now_s - taken_at_s < SLOW_S:
                break
            times_s[ordering_key] = max(now_s - taken_at_s, times_s.get(ordering_key, 0.0))
        return {
            ordering_key: self._max_waiting(ordering_key, time_s)
            for ordering_key, time_s in times_s.items()
        }

    def time_until_stuck_s(self, ordering_keys: Iterable[U], now_s: float) -> float | None:
        """Return the seconds until the next of these ordering keys becomes stuck.

        Ordering keys that are already stuck, or have no delivery in progress, do not count. Return
        None if no other ordering key is left.
        """
        ages_s = (
            now_s - self._taken_at_s[ordering_key]
            for ordering_key in ordering_keys
            if ordering_key in self._taken_at_s
        )
        return min((STUCK_S - age_s for age_s in ages_s if age_s < STUCK_S), default=None)

    def time_until_change_s(self, now_s: float) -> float | None:
        """Return the seconds until the next ordering key becomes slow or stuck. Return None if
        every ordering key with a delivery in progress is already stuck."""
        next_s = None
        for taken_at_s in self._taken_at_s.values():
            age_s = now_s - taken_at_s
            if age_s < STUCK_S:
                left_s = (SLOW_S if age_s < SLOW_S else STUCK_S) - age_s
                next_s = left_s if next_s is None else min(next_s, left_s)
                if age_s < SLOW_S:
                    break
        return next_s

    def _max_waiting(self, ordering_key: U, time_s: float) -> int:
        if time_s < STUCK_S:
            return FEW
        return 0 if ordering_key in self._taken_at_s else 1
