"""Deficit weighted round robin, with deficits that can be looked at. Pure.

Flows are visited in turn. A visit adds the flow's quantum, its weight, to its deficit; it is
served while it has something and its deficit covers the cost, and pays. A visit that ends
because whoever asked has enough goes on with the next who asks, without a second quantum. A flow
that has nothing for anybody loses its deficit; one that has nothing for whoever asks is passed
by, and gets no quantum.

After a visit 0 <= deficit < the largest cost, or the flow is empty. While no deficit covers its
cost, whole rounds are added at once, so that a dear message costs no more turns than a cheap one.
"""

from collections.abc import Callable
from sys import maxsize


class Dwrr:
    """See fair_set.Engine for what each call promises."""

    def __init__(self) -> None:
        self._quanta: dict[int, int] = {}
        self._deficits: dict[int, int] = {}
        #: Flows with something, in the order of visits. The one being visited is at `_index`.
        self._ring: list[int] = []
        self._index = 0
        self._is_quantum_given = False

    def add(self, flow: int, weight: int) -> None:
        """Take in a flow, idle."""
        self._quanta[flow] = weight
        self._deficits[flow] = 0

    def remove(self, flow: int) -> None:
        """Forget a flow."""
        self.deactivate(flow)
        del self._quanta[flow], self._deficits[flow]

    def set_weight(self, flow: int, weight: int) -> None:
        """Change a quantum, from the next visit on."""
        self._quanta[flow] = weight

    def activate(self, flow: int) -> None:
        """Put a flow at the end of the round that is under way."""
        self._deficits[flow] = min(self._deficits[flow], 0)
        self._ring.insert(self._index, flow)
        self._index = (self._index + 1) % len(self._ring)

    def deactivate(self, flow: int) -> None:
        """Take a flow out of the round; it loses its deficit."""
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
        """Return the flow whose visit goes on, or the first whose deficit covers its cost."""
        costs: dict[int, int] = {}  # of those visited in vain since the last round was added
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
                continue  # found to be empty just now
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
        """Return how many messages of this cost the visit's deficit covers; a flow that is alone
        is visited again and again."""
        return maxsize if len(self._ring) == 1 else max(1, self._deficits[flow] // cost)

    def charge(self, flow: int, cost: int, count: int = 1) -> None:
        """Take the cost from the deficit."""
        self._deficits[flow] -= cost * count
        if count > 1 and self._deficits[flow] < 0:  # each visit on the way added the quantum
            self._deficits[flow] %= self._quanta[flow]

    def standing(self, flow: int) -> float:
        """Return a flow's deficit."""
        return self._deficits[flow]

    def _go_on(self) -> None:
        self._index = (self._index + 1) % len(self._ring)
        self._is_quantum_given = False

    def _add_rounds(self, costs: dict[int, int]) -> None:
        """Add all rounds but the one in which the first deficit covers its cost."""
        rounds = min(
            -(-(cost - self._deficits[flow]) // self._quanta[flow]) for flow, cost in costs.items()
        )
        for flow in costs:
            self._deficits[flow] += (rounds - 1) * self._quanta[flow]
