"""Chooses which of several flows is served next, by weight; what a delivery costs. Pure.

A flow is a topic of a group. The set records what each flow was charged for. The caller passes the
cost of the next message of a flow, or that the flow has no message for the requesting member.
Choosing and charging are two calls, so a flow that is chosen but not served is not charged. The
choice depends only on what was served before; it does not depend on which member requests messages,
or how many at a time. Flows of weight 0 are the background: they are served only when no other flow
has a message.

An engine is the algorithm that shares by weight: start-time fair queueing (Sfq) or deficit weighted
round robin (Dwrr). An engine has the methods of FairSet; its weights are at least 1.
"""

from collections import Counter
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import lcm
from sys import maxsize

from holdfast.groups.core.given_cost import UNITS
from holdfast.groups.cursor.heads import Head
from holdfast.groups.cursor.leases import Lease

#: The cost of a message in addition to its bytes, so that many small messages are not free.
OVERHEAD_BYTES = 64
#: If the cost is time, its unit is a tenth of a millisecond, to distinguish fast handlers.
UNITS_PER_MS = 10
#: If the cost is time, the first message of a flow is charged one millisecond.
FIRST_TIME = UNITS_PER_MS
#: In the average of a flow the newest time has the weight 1/8, as in TCP's estimate of the
#: round-trip time.
SMOOTHING = 8
#: The common multiple of the weights (Sfq) is at most this. If the weights need a larger multiple,
#: tags are rounded down.
LARGEST_UNIT = 1 << 96

HeadCost = Callable[[int], int | None]
"""A function that returns the cost of a flow's next message, at least 1. It returns None if the
flow has no message for the requesting member."""


class FairSet:
    """The flows of one group. `engine` is "sfq" or "dwrr"."""

    def __init__(self, engine: str) -> None:
        self._foreground: Sfq | Dwrr = ENGINES[engine]()
        self._background: Sfq | Dwrr = ENGINES[engine]()
        self._weights: dict[int, int] = {}
        #: flow -> the engine that has it: that of the foreground or of the background.
        self._engines: dict[int, Sfq | Dwrr] = {}
        self._active: set[int] = set()
        #: flow -> the number of messages served.
        self.served: dict[int, int] = {}
        #: flow -> the sum of its charges.
        self.charged: dict[int, int] = {}

    def add(self, flow: int, weight: int) -> None:
        """Add a flow without messages; `activate` follows when it has some."""
        self._weights[flow] = weight
        self.served[flow] = self.charged[flow] = 0
        engine = self._engines[flow] = self._engine_for(weight)
        engine.add(flow, weight or 1)

    def remove(self, flow: int) -> None:
        self._engines.pop(flow).remove(flow)
        self._active.discard(flow)
        del self._weights[flow], self.served[flow], self.charged[flow]

    def set_weight(self, flow: int, weight: int) -> None:
        """Change a weight; earlier charges stay as they are."""
        before = self._weights[flow]
        if bool(before) == bool(weight):
            self._engines[flow].set_weight(flow, weight or 1)
            self._weights[flow] = weight
            return
        self._engines[flow].remove(flow)
        self._weights[flow] = weight
        engine = self._engines[flow] = self._engine_for(weight)
        engine.add(flow, weight or 1)
        if flow in self._active:
            engine.activate(flow)

    def weight(self, flow: int) -> int:
        return self._weights[flow]

    def activate(self, flow: int) -> None:
        """Record that the flow may have messages. It gets no extra share for its idle time."""
        if flow not in self._active:
            self._active.add(flow)
            self._engines[flow].activate(flow)

    def deactivate(self, flow: int) -> None:
        """Record that the flow has no message for any member. It loses the share that it has not
        used."""
        if flow in self._active:
            self._active.remove(flow)
            self._engines[flow].deactivate(flow)

    @property
    def has_active(self) -> bool:
        """Whether any flow may have messages."""
        return bool(self._active)

    def is_active(self, flow: int) -> bool:
        """Return whether a flow may have messages."""
        return flow in self._active

    def select(self, head_cost: HeadCost) -> int | None:
        """Return the flow to serve next; None if no flow has a message.

        If `head_cost` raises an exception, it reaches the caller, who may call again: the order in
        which flows are served is the same as without the exception.
        """
        if not self._active:
            return None
        flow = self._foreground.select(head_cost)
        return self._background.select(head_cost) if flow is None else flow

    def turns(self, flow: int, cost: int) -> int:
        """Return how many messages of this cost the flow that was just chosen may be served in a
        row, if the flow has that many. The result is at least 1. It may be too small, but not too
        large."""
        return self._engines[flow].turns(flow, cost)

    def charge(self, flow: int, cost: int, count: int = 1) -> None:
        """Charge a flow for `count` messages of this cost each, as if it had been chosen for each
        of them; `count` is at most `turns`."""
        self.served[flow] += count
        self.charged[flow] += cost * count
        self._engines[flow].charge(flow, cost, count)

    def correct(self, flow: int, difference: int) -> None:
        """Correct the charge for messages that were served before. `difference` may be negative. If
        the flow was removed, do nothing."""
        if difference and flow in self._weights:
            self.charged[flow] += difference
            self._engines[flow].charge(flow, difference)

    def standing(self, flow: int) -> float:
        """Return the deficit of a flow (dwrr), or how far its tag is ahead of the set's time, in
        cost / weight (sfq)."""
        return self._engines[flow].standing(flow)

    def _engine_for(self, weight: int) -> "Sfq | Dwrr":
        return self._foreground if weight else self._background


class Sfq:
    """Start-time fair queueing: the flow with the smallest tag is next.

    Serving a flow increases its tag by cost / weight. The set's time is the tag of the flow that
    was chosen last. If a flow was idle, or had no message for the requesting member, its tag is
    raised to the set's time, so it gets no extra share afterwards. While two flows have messages,
    their shares differ from the ideal shares by at most one message of each.

    Tags are integers: the unit of cost / weight is 1 / (a common multiple of all weights). So no
    tag is rounded, and the weights 1 and 2 give exactly the same order as 1000 and 2000.
    """

    def __init__(self) -> None:
        self._weights: dict[int, int] = {}
        #: weight -> the number of flows that have it. Many flows usually have few weights.
        self._counts: Counter[int] = Counter()
        self._tags: dict[int, int] = {}
        #: flow -> a number in the order of `add`. Of flows with equal tags, the flow with the
        #: lowest number is next.
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
        self._last_place += 1
        self._places[flow] = self._last_place
        self._tags[flow] = self._time
        self._weights[flow] = weight
        self._counts[weight] += 1
        self._fit_unit()

    def remove(self, flow: int) -> None:
        self._forget_weight(flow)
        del self._weights[flow], self._tags[flow], self._places[flow]
        self._active.discard(flow)
        self._fit_unit()

    def set_weight(self, flow: int, weight: int) -> None:
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

    def select(self, head_cost: HeadCost) -> int | None:
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


class Dwrr:
    """Deficit weighted round robin: the flows are visited in turn.

    A visit first adds the flow's quantum, which is its weight, to its deficit. Then, while the flow
    has messages and the deficit covers the cost of the next one, the message is served and its cost
    is subtracted from the deficit. If the request is full before the visit ends, the next request
    continues the visit, without a second quantum. A flow without messages for any member loses its
    deficit. A flow without messages for the requesting member is skipped, and gets no quantum.

    After a visit 0 <= deficit < the largest cost, or the flow has no messages. If no flow's deficit
    covers the cost of its next message, the quanta of many rounds are added at once. So an
    expensive message takes no more steps than a cheap one.
    """

    def __init__(self) -> None:
        self._quanta: dict[int, int] = {}
        self._deficits: dict[int, int] = {}
        #: The active flows in the order of visits.
        self._ring: list[int] = []
        #: The index in `_ring` of the flow that is being visited.
        self._index = 0
        #: Whether this visit has added the quantum.
        self._is_quantum_given = False

    def add(self, flow: int, weight: int) -> None:
        self._quanta[flow] = weight
        self._deficits[flow] = 0

    def remove(self, flow: int) -> None:
        self.deactivate(flow)
        del self._quanta[flow], self._deficits[flow]

    def set_weight(self, flow: int, weight: int) -> None:
        """Change a quantum. The flow's next visit uses the new one."""
        self._quanta[flow] = weight

    def activate(self, flow: int) -> None:
        """Put a flow at the end of the current round."""
        self._deficits[flow] = min(self._deficits[flow], 0)
        self._ring.insert(self._index, flow)
        self._index = (self._index + 1) % len(self._ring)

    def deactivate(self, flow: int) -> None:
        """Remove a flow from the round; it loses its deficit."""
        if flow not in self._ring:
            return
        index = self._ring.index(flow)
        del self._ring[index]
        self._deficits[flow] = min(self._deficits[flow], 0)
        if index < self._index:
            self._index -= 1
        elif index == self._index:
            self._is_quantum_given = False
        if self._index >= len(self._ring):
            self._index = 0

    def select(self, head_cost: HeadCost) -> int | None:
        """Return the first flow, from the present visit on, whose deficit covers the cost of its
        next message."""
        costs: dict[int, int] = {}  # flow -> cost, if its deficit is too small
        passed = 0
        while self._ring:
            if passed >= len(self._ring):
                if not costs:
                    return None
                self._add_rounds(costs)
                costs, passed = {}, 0
            flow = self._ring[self._index]
            cost = head_cost(flow)
            if not self._ring or flow != self._ring[self._index]:
                continue  # `head_cost` found the flow empty and deactivated it
            if cost is not None:
                if not self._is_quantum_given:
                    self._deficits[flow] += self._quanta[flow]
                    self._is_quantum_given = True
                if self._deficits[flow] >= cost:
                    return flow
                costs[flow] = cost
            self._visit_next()
            passed += 1
        return None

    def turns(self, flow: int, cost: int) -> int:
        """Return how many messages of this cost the deficit covers, at least 1. If only one flow is
        active, there is no limit, because this flow is visited again and again."""
        return maxsize if len(self._ring) == 1 else max(1, self._deficits[flow] // cost)

    def charge(self, flow: int, cost: int, count: int = 1) -> None:
        """Subtract the cost from the deficit."""
        self._deficits[flow] -= cost * count
        if count > 1 and self._deficits[flow] < 0:  # the visits in between would add quanta
            self._deficits[flow] %= self._quanta[flow]

    def standing(self, flow: int) -> float:
        return self._deficits[flow]

    def _visit_next(self) -> None:
        self._index = (self._index + 1) % len(self._ring)
        self._is_quantum_given = False

    def _add_rounds(self, costs: dict[int, int]) -> None:
        """Add the quanta of several rounds at once: of all rounds before the first one in which the
        deficit of a flow covers its cost."""
        rounds = min(
            -(-(cost - self._deficits[flow]) // self._quanta[flow]) for flow, cost in costs.items()
        )
        for flow in costs:
            self._deficits[flow] += (rounds - 1) * self._quanta[flow]


class Costs:
    """The costs of one group's deliveries. `kind` is "count", "bytes", "time" or "given".

    Processing time is not known at delivery. So the average time of the flow is charged at
    delivery. When the lease ends, the difference from the real time is charged. A delivery costs at
    most the time that its lease lasted.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._averages: dict[int, float] = {}

    def at_delivery(self, flow: int, head: Head) -> int:
        """Return the charge for a delivery, at least 1."""
        if self.kind == "count":
            return 1
        if self.kind == "bytes":
            return head.size_bytes + OVERHEAD_BYTES
        if self.kind == "given":
            return head.cost or UNITS
        return max(1, round(self._averages.get(flow, FIRST_TIME)))

    @property
    def are_alike(self) -> bool:
        """Whether all messages of a flow would have the same cost now."""
        return self.kind in ("count", "time")

    def difference(self, flow: int, lease: Lease, now_ms: int, used_ms: float | None) -> int:
        """Return the additional charge for a lease that ended. It is negative if the charge at
        delivery was too high.

        `used_ms` is the processing time that the member reported. If it is None, the time since
        the delivery is used instead.
        """
        if self.kind != "time":
            return 0
        longest_ms = max(0, min(now_ms, lease.deadline_ms) - lease.delivered_ms)
        taken_ms = longest_ms if used_ms is None else min(max(used_ms, 0.0), longest_ms)
        taken = taken_ms * UNITS_PER_MS
        average = self._averages.get(flow)
        self._averages[flow] = taken if average is None else average + (taken - average) / SMOOTHING
        return round(taken) - lease.charge


#: The engines by their names in the configuration.
ENGINES: dict[str, type[Sfq] | type[Dwrr]] = {"sfq": Sfq, "dwrr": Dwrr}
