"""The next deadline of each queue of a group. Pure.

The heap has lazy deletion: an entry that is not its queue's deadline any more is dropped when it
reaches the top, or when most of the entries are outdated.
"""

from heapq import heapify, heappop, heappush

from holdfast.consumequeue.topics import QueueKey

#: Outdated entries below the top are dropped only when the heap has more entries than this.
MIN_ENTRIES = 64


class Timers:
    """At most one deadline for each queue."""

    def __init__(self) -> None:
        self._deadlines: dict[QueueKey, int] = {}
        self._heap: list[tuple[int, QueueKey]] = []

    def set(self, key: QueueKey, deadline_ms: int | None) -> None:
        """Replace the deadline of a queue; None removes it."""
        if deadline_ms == self._deadlines.get(key):
            return
        if deadline_ms is None:
            del self._deadlines[key]
            return
        self._deadlines[key] = deadline_ms
        heappush(self._heap, (deadline_ms, key))
        if len(self._heap) > 2 * len(self._deadlines) + MIN_ENTRIES:
            self._heap = [(each, key) for key, each in self._deadlines.items()]
            heapify(self._heap)

    def next_deadline(self) -> int | None:
        """Return the earliest deadline; None if there is none."""
        while self._heap:
            deadline_ms, key = self._heap[0]
            if self._deadlines.get(key) == deadline_ms:
                return deadline_ms
            heappop(self._heap)
        return None

    def take_due(self, now_ms: int) -> QueueKey | None:
        """Remove the earliest deadline and return its queue; None if no deadline has passed."""
        deadline_ms = self.next_deadline()
        if deadline_ms is None or deadline_ms > now_ms:
            return None
        key = heappop(self._heap)[1]
        del self._deadlines[key]
        return key
