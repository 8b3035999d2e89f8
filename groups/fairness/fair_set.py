"""Chooses which of several flows is served next, by weight. Pure.

A flow is a topic of a group. The set records what each flow was charged for. The caller passes the
cost of the next message of a flow, or that the flow has no message for the requesting member.
Choosing and charging are two calls, so a flow that is chosen but not served is not charged. The
choice depends only on what was served before; it does not depend on which member requests messages,
or how many at a time.

Flows of weight 0 are the background: they are served only when no other flow has a message.
"""

from collections.abc import Callable
from typing import Protocol

from holdfast.groups.fairness.dwrr import Dwrr
from holdfast.groups.fairness.sfq import Sfq

HeadCost = Callable[[int], int | None]
"""A function that returns the cost of a flow's next message, at least 1. It returns None if the
flow has no message for the requesting member."""


class Engine(Protocol):
    """A fairness engine: an algorithm that shares by weight. Weights are at least 1."""

    def add(self, flow: int, weight: int) -> None:
        """Add a flow without messages; `activate` follows when it has some."""

    def remove(self, flow: int) -> None:
        """Remove a flow."""

    def set_weight(self, flow: int, weight: int) -> None:
        """Change a weight; earlier charges stay as they are."""

    def activate(self, flow: int) -> None:
        """Record that the flow has messages again."""

    def deactivate(self, flow: int) -> None:
        """Record that the flow has no message for any member. It loses the share that it has not
        used."""

    def select(self, head_cost: HeadCost) -> int | None:
        """Return the flow to serve next; None if no active flow has a message.

        If `head_cost` raises an exception, the caller gets it, and may call again: the order in
        which flows are served is the same as without the exception.
        """

    def turns(self, flow: int, cost: int) -> int:
        """Return how many messages of this cost the flow that was just chosen may be served in a
        row, if the flow has that many. The result is at least 1. It may be too small, but not too
        large."""

    def charge(self, flow: int, cost: int, count: int = 1) -> None:
        """Charge a flow for `count` messages of this cost, as if it had been chosen for each of
        them. A call with a negative cost corrects an earlier charge."""

    def standing(self, flow: int) -> float:
        """Return the deficit (dwrr) or the tag (sfq) of a flow, for display."""


class FairSet:
    """The flows of one group. `engine` is "sfq" or "dwrr"."""

    def __init__(self, engine: str) -> None:
        self._foreground: Engine = ENGINES[engine]()
        self._background: Engine = ENGINES[engine]()
        self._weights: dict[int, int] = {}
        self._active: set[int] = set()
        #: flow -> the number of messages served.
        self.served: dict[int, int] = {}
        #: flow -> the sum of its charges.
        self.charged: dict[int, int] = {}

    def add(self, flow: int, weight: int) -> None:
        """Add a flow without messages; `activate` follows when it has some."""
        self._weights[flow] = weight
        self.served[flow] = self.charged[flow] = 0
        self._engine(flow).add(flow, weight or 1)

    def remove(self, flow: int) -> None:
        """Remove a flow."""
        self._engine(flow).remove(flow)
        self._active.discard(flow)
        del self._weights[flow], self.served[flow], self.charged[flow]

    def set_weight(self, flow: int, weight: int) -> None:
        """Change a weight for future choices."""
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
        """Record that the flow may have messages. It gets no extra share for its idle time."""
        if flow not in self._active:
            self._active.add(flow)
            self._engine(flow).activate(flow)

    def deactivate(self, flow: int) -> None:
        """Record that the flow has no message for any member."""
        if flow in self._active:
            self._active.remove(flow)
            self._engine(flow).deactivate(flow)

    def is_active(self, flow: int) -> bool:
        """Return whether a flow may have messages."""
        return flow in self._active

    def select(self, head_cost: HeadCost) -> int | None:
        """Return the flow to serve next; None if no flow has a message."""
        if not self._active:
            return None
        flow = self._foreground.select(head_cost)
        return self._background.select(head_cost) if flow is None else flow

    def turns(self, flow: int, cost: int) -> int:
        """Return how many messages of this cost the flow that was just chosen may be served in a
        row before another flow must be considered. The result is at least 1."""
        return self._engine(flow).turns(flow, cost)

    def charge(self, flow: int, cost: int, count: int = 1) -> None:
        """Charge a flow for `count` messages of this cost each; `count` is at most `turns`."""
        self.served[flow] += count
        self.charged[flow] += cost * count
        self._engine(flow).charge(flow, cost, count)

    def correct(self, flow: int, difference: int) -> None:
        """Correct the charge for messages that were served before. `difference` may be negative. If
        the flow was removed, do nothing."""
        if difference and flow in self._weights:
            self.charged[flow] += difference
            self._engine(flow).charge(flow, difference)

    def standing(self, flow: int) -> float:
        """Return the deficit (dwrr) of a flow, or how far its tag is ahead of the set's time
        (sfq)."""
        return self._engine(flow).standing(flow)

    def _engine(self, flow: int) -> Engine:
        return self._foreground if self._weights[flow] else self._background


#: The engines by their names in the configuration.
ENGINES: dict[str, type[Sfq] | type[Dwrr]] = {"sfq": Sfq, "dwrr": Dwrr}
