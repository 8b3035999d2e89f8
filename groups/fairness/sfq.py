"""Start-time fair queueing: the flow with the smallest tag is next. Pure.

Flows are topics of a group. Serving a flow increases its tag by cost / weight. The set's time is
the tag of the flow that was chosen last. If a flow was idle, or had no message for the requesting
member, its tag is raised to the set's time, so it gets no extra share afterwards. While two flows
have messages, their shares differ from the ideal shares by at most one message of each.

Tags are integers: the unit of cost / weight is 1 / (a common multiple of all weights). So no tag is
rounded, and the weights 1 and 2 give exactly the same order as 1000 and 2000.
"""

from collections import Counter
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import lcm
from sys import maxsize

#: The common multiple is at most this. If the weights need a larger one, tags are rounded down.
LARGEST_UNIT = 1 << 96


class Sfq:
    """An engine for FairSet; `fair_set.Engine` documents the methods."""

    def __init__(self) -> None:
        self._weights: dict[int, int] = {}
        #: weight -> the number of flows that have it. Many flows usually have few weights.
        self._counts: Counter[int] = Counter()
        self._tags: dict[int, int] = {}
        #: flow -> a number in the order of `add`. Of flows with equal tags, the lowest is next.
        self._places: dict[int, int] = {}
        self._active: set[int] = set()
        #: A heap with (tag, place, flow) of each active flow. Outdated entries are dropped when
        #: they reach the top.
        self._heap: list[tuple[int, int, int]] = []
        #: The set's time.
        self._time = 0
        #: The common multiple: cost / weight is multiplied by it.
        self._unit = 1
        self._last_place = 0

    def add(self, flow: int, weight: int) -> None:
        """Add a flow without messages."""
        self._last_place += 1
        self._places[flow] = self._last_place
        self._tags[flow] = self._time
        self._weights[flow] = weight
        self._counts[weight] += 1
        self._fit_unit()

    def remove(self, flow: int) -> None:
        """Remove a flow."""
        self._forget_weight(flow)
        del self._weights[flow], self._tags[flow], self._places[flow]
        self._active.discard(flow)
        self._fit_unit()

    def set_weight(self, flow: int, weight: int) -> None:
        """Change a weight for future choices."""
        self._forget_weight(flow)
        self._weights[flow] = weight
        self._counts[weight] += 1
        self._fit_unit()

    def activate(self, flow: int) -> None:
        """Make a flow eligible. Its tag is raised to the set's time if it is smaller."""
        self._active.add(flow)
        self._tags[flow] = max(self._tags[flow], self._time)
        self._push(flow)

    def deactivate(self, flow: int) -> None:
        """Make a flow not eligible. It keeps its tag."""
        self._active.discard(flow)

    def select(self, head_cost: Callable[[int], int | None]) -> int | None:
        """Return the active flow with the smallest tag that has a message."""
        passed = []
        chosen: int | None = None
        heap = self._heap
        try:
            while heap:
                tag, place, flow = heap[0]
                is_current = flow in self._active and self._places[flow] == place
                if not is_current or self._tags[flow] != tag:
                    heappop(heap)
                    continue
                cost = head_cost(flow)
                if flow not in self._active:  # `head_cost` found the flow empty and deactivated it
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
        """Return how many messages of this cost may be served in a row: the flow's tag must be the
        smallest before each of them."""
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
        """Increase a flow's tag, or decrease it if the cost is negative."""
        step = cost * self._unit // self._weights[flow]
        if count > 1:  # as if the flow had been chosen for each message
            self._time = max(self._time, self._tags[flow] + (count - 1) * step)
        self._tags[flow] += count * step
        if flow in self._active:
            self._push(flow)

    def standing(self, flow: int) -> float:
        """Return how far a flow's tag is ahead of the set's time. The unit is cost / weight."""
        return (self._tags[flow] - self._time) / self._unit

    def _push(self, flow: int) -> None:
        heappush(self._heap, (self._tags[flow], self._places[flow], flow))
        if len(self._heap) > 2 * len(self._active) + 16:
            self._make_heap()

    def _make_heap(self) -> None:
        self._heap = [(self._tags[flow], self._places[flow], flow) for flow in self._active]
        heapify(self._heap)

    def _forget_weight(self, flow: int) -> None:
        weight = self._weights[flow]
        self._counts[weight] -= 1
        if not self._counts[weight]:
            del self._counts[weight]

    def _fit_unit(self) -> None:
        """Compute the common multiple of the present weights, and convert all tags to it."""
        unit = min(lcm(*self._counts), LARGEST_UNIT)
        if unit != self._unit:
            self._time = self._time * unit // self._unit
            self._tags = {flow: tag * unit // self._unit for flow, tag in self._tags.items()}
            self._unit = unit
            self._make_heap()
