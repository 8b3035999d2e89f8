"""Which of several flows is served next, by weight. Pure.

A flow is a topic of a group. The set knows only what was served: the caller says what each
flow's next message costs, or that it has none for whoever asks. Choosing and charging are two
calls, so that a choice that is not served after all costs nothing. What is chosen depends on
what was served before, never on who asked or how much at a time.

Flows of weight 0 are the background: served only when no other has anything.
"""

from collections.abc import Callable
from typing import Protocol

from holdfast.groups.dwrr import Dwrr
from holdfast.groups.sfq import Sfq

HeadCost = Callable[[int], int | None]
"""flow -> what its next message costs, at least 1; None: it has none for whoever asks."""


class Engine(Protocol):
    """One way to share by weight. Weights are at least 1; flows begin idle."""

    def add(self, flow: int, weight: int) -> None:
        """Take in a flow, idle."""

    def remove(self, flow: int) -> None:
        """Forget a flow."""

    def set_weight(self, flow: int, weight: int) -> None:
        """Change a weight; what was served stays as it was charged."""

    def activate(self, flow: int) -> None:
        """The flow has something again."""

    def deactivate(self, flow: int) -> None:
        """The flow has nothing for anybody: it keeps no claim."""

    def select(self, head_cost: HeadCost) -> int | None:
        """Return the flow to be served next; None: no active flow has anything.

        May raise what `head_cost` raises; the set is then as it was or somewhat further on in
        the same order.
        """

    def turns(self, flow: int, cost: int) -> int:
        """Return how many messages of this cost the flow that was just chosen is served in a
        row, if it has them: it would be chosen again each time. It may be said too few, but 1."""

    def charge(self, flow: int, cost: int, count: int = 1) -> None:
        """The flow was served, with `count` messages of this cost, each chosen; what it was
        charged may be corrected by a later call, also downwards."""

    def standing(self, flow: int) -> float:
        """Return the deficit or the tag of a flow, to be shown."""


class FairSet:
    """The flows of one group. `engine` is "sfq" or "dwrr"."""

    def __init__(self, engine: str) -> None:
        self._foreground: Engine = ENGINES[engine]()
        self._background: Engine = ENGINES[engine]()
        self._weights: dict[int, int] = {}
        self._active: set[int] = set()
        self.served: dict[int, int] = {}
        self.charged: dict[int, int] = {}

    def add(self, flow: int, weight: int) -> None:
        """Take in a flow, idle."""
        self._weights[flow] = weight
        self.served[flow] = self.charged[flow] = 0
        self._engine(flow).add(flow, weight or 1)

    def remove(self, flow: int) -> None:
        """Forget a flow."""
        self._engine(flow).remove(flow)
        self._active.discard(flow)
        del self._weights[flow], self.served[flow], self.charged[flow]

    def set_weight(self, flow: int, weight: int) -> None:
        """Change a weight, for what is served from now on."""
        before = self._weights[flow]
        if bool(before) == bool(weight):
            self._engine(flow).set_weight(flow, weight or 1)
            self._weights[flow] = weight
            return
        self._engine(flow).remove(flow)
        self._weights[flow] = weight
        self._engine(flow).add(flow, weight or 1)
        if flow in self._active:
            self._engine(flow).activate(flow)

    def weight(self, flow: int) -> int:
        """Return a flow's weight."""
        return self._weights[flow]

    def activate(self, flow: int) -> None:
        """The flow may have something; it gets no burst for the time that it had not."""
        if flow not in self._active:
            self._active.add(flow)
            self._engine(flow).activate(flow)

    def deactivate(self, flow: int) -> None:
        """The flow has nothing for anybody."""
        if flow in self._active:
            self._active.remove(flow)
            self._engine(flow).deactivate(flow)

    def is_active(self, flow: int) -> bool:
        """Say whether a flow may have something."""
        return flow in self._active

    def select(self, head_cost: HeadCost) -> int | None:
        """Return the flow to be served next; None: none has anything."""
        if not self._active:
            return None
        flow = self._foreground.select(head_cost)
        return self._background.select(head_cost) if flow is None else flow

    def turns(self, flow: int, cost: int) -> int:
        """Return how many messages of this cost the flow that was just chosen is served in a row,
        if it has them, before another may be chosen: at least 1, and never too many."""
        return self._engine(flow).turns(flow, cost)

    def charge(self, flow: int, cost: int, count: int = 1) -> None:
        """Count messages served, no more than there were turns, and what each of them costs."""
        self.served[flow] += count
        self.charged[flow] += cost * count
        self._engine(flow).charge(flow, cost, count)

    def correct(self, flow: int, difference: int) -> None:
        """Charge more, or less, for what was served before. A flow that is gone is ignored."""
        if difference and flow in self._weights:
            self.charged[flow] += difference
            self._engine(flow).charge(flow, difference)

    def standing(self, flow: int) -> float:
        """Return the deficit (dwrr) or the tag ahead of the set's time (sfq) of a flow."""
        return self._engine(flow).standing(flow)

    def _engine(self, flow: int) -> Engine:
        return self._foreground if self._weights[flow] else self._background


#: The engines by the names that a configuration gives them.
ENGINES: dict[str, type[Sfq] | type[Dwrr]] = {"sfq": Sfq, "dwrr": Dwrr}
