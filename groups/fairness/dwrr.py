"""Deficit weighted round robin. Pure.

Flows are topics of a group; they are visited in turn. A visit first adds the flow's quantum, which
is its weight, to its deficit. Then, while the flow has messages and the deficit covers the cost of
the next one, the message is served and its cost is subtracted from the deficit. If the request is
full before the visit ends, the next request continues the visit, without a second quantum. A flow
without messages for any member loses its deficit. A flow without messages for the requesting member
is skipped, and gets no quantum.

After a visit 0 <= deficit < the largest cost, or the flow has no messages. If no flow's deficit
covers the cost of its next message, the quanta of many rounds are added at once. So an expensive
message takes no more steps than a cheap one.
"""

from collections.abc import Callable
from sys import maxsize


class Dwrr:
    """An engine for FairSet; `fair_set.Engine` documents the methods."""

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
        """Add a flow without messages."""
        self._quanta[flow] = weight
        self._deficits[flow] = 0

    def remove(self, flow: int) -> None:
        """Remove a flow."""
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

    def select(self, head_cost: Callable[[int], int | None]) -> int | None:
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
            self._go_on()
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
        """Return a flow's deficit."""
        return self._deficits[flow]

    def _go_on(self) -> None:
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
