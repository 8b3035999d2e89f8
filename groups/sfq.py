"""Start-time fair queueing: the flow with the smallest tag is next. Pure.

Serving a flow moves its tag on by cost / weight; the set's time is the tag of the last flow
chosen, and a flow that has, or had, nothing for whoever asked is never behind it: it gets no
burst. Between two flows that both have something, what was served differs from the ideal by one
message of each at most.

Tags are whole numbers: cost / weight in units of 1 / (a common multiple of all weights), so that
nothing is rounded, and weights 1 and 2 do exactly what 1000 and 2000 do.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import lcm
from sys import maxsize

#: The common multiple never grows beyond this; with stranger weights tags are rounded down.
LARGEST_UNIT = 1 << 96


class Sfq:
    """See fair_set.Engine for what each call promises."""

    def __init__(self) -> None:
        self._weights: dict[int, int] = {}
        self._tags: dict[int, int] = {}
        self._places: dict[int, int] = {}
        self._active: set[int] = set()
        #: (tag, place, flow) of each active flow once; others are out of date and thrown away.
        self._heap: list[tuple[int, int, int]] = []
        self._time = 0
        self._unit = 1
        self._last_place = 0

    def add(self, flow: int, weight: int) -> None:
        """Take in a flow, idle."""
        self._last_place += 1
        self._places[flow] = self._last_place
        self._tags[flow] = self._time
        self._weights[flow] = weight
        self._fit_unit()

    def remove(self, flow: int) -> None:
        """Forget a flow."""
        del self._weights[flow], self._tags[flow], self._places[flow]
        self._active.discard(flow)
        self._fit_unit()

    def set_weight(self, flow: int, weight: int) -> None:
        """Change a weight, for what is served from now on."""
        self._weights[flow] = weight
        self._fit_unit()

    def activate(self, flow: int) -> None:
        """Put a flow among those that may be chosen, not behind the set's time."""
        self._active.add(flow)
        self._tags[flow] = max(self._tags[flow], self._time)
        self._push(flow)

    def deactivate(self, flow: int) -> None:
        """Take a flow out; its tag stays."""
        self._active.discard(flow)

    def select(self, head_cost: Callable[[int], int | None]) -> int | None:
        """Return the flow with the smallest tag that has something."""
        passed = []
        chosen: int | None = None
        heap = self._heap
        try:
            while heap:
                tag, _, flow = heap[0]
                if flow not in self._active or self._tags[flow] != tag:
                    heappop(heap)
                    continue
                cost = head_cost(flow)
                if flow not in self._active:  # found to be empty just now
                    continue
                if cost is not None:
                    chosen = flow
                    self._time = max(self._time, tag)
                    break
                heappop(heap)
                passed.append(flow)
        finally:
            for flow in passed:
                if chosen is not None:
                    self._tags[flow] = max(self._tags[flow], self._time)
                self._push(flow)
        return chosen

    def turns(self, flow: int, cost: int) -> int:
        """Return after how many messages of this cost another flow's tag may be the smallest."""
        if self._heap[0][2] != flow:
            return 1
        others = self._heap[1:3]
        step = cost * self._unit // self._weights[flow]
        if not others or not step:
            return maxsize
        tag, place, _ = min(others)
        room = tag - self._tags[flow] - (place < self._places[flow])
        return 1 + max(0, room // step)

    def charge(self, flow: int, cost: int, count: int = 1) -> None:
        """Move a flow's tag on, or back."""
        step = cost * self._unit // self._weights[flow]
        if count > 1:  # its tags on the way were chosen
            self._time = max(self._time, self._tags[flow] + (count - 1) * step)
        self._tags[flow] += count * step
        if flow in self._active:
            self._push(flow)

    def standing(self, flow: int) -> float:
        """Return how far a flow's tag is ahead of the set's time, in cost by weight."""
        return (self._tags[flow] - self._time) / self._unit

    def _push(self, flow: int) -> None:
        heappush(self._heap, (self._tags[flow], self._places[flow], flow))
        if len(self._heap) > 2 * len(self._active) + 16:
            self._make_heap()

    def _make_heap(self) -> None:
        self._heap = [(self._tags[flow], self._places[flow], flow) for flow in self._active]
        heapify(self._heap)

    def _fit_unit(self) -> None:
        unit = lcm(*self._weights.values()) if self._weights else 1
        unit = unit if unit <= LARGEST_UNIT else LARGEST_UNIT
        if unit != self._unit:
            self._time = self._time * unit // self._unit
            self._tags = {flow: tag * unit // self._unit for flow, tag in self._tags.items()}
            self._unit = unit
        self._make_heap()
