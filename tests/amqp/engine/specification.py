"""What part 2.5.6 and 2.6.7 of the specification say of windows and credit, for one session.

The counters here never wrap: a flow that is on its way keeps the counters of its sender beside the
32 bits that are on the wire. So nothing here compares serial numbers.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.amqp.wire.performatives import Flow, Transfer

_BITS = 2**32


class _Told(NamedTuple):
    """A flow on its way, with counters that do not wrap."""

    next_in: int
    delivery_count: int


@dataclass
class LinkEnd:
    """What one end of a link knows."""

    is_sender: bool
    count: int = 0
    credit: int = 0
    """A receiver's is negative if more was in flight than it wants now."""
    is_draining: bool = False
    is_within_delivery: bool = False

    def count_frame(self, transfer: Transfer) -> None:
        """Count a delivery at its first frame."""
        if not self.is_within_delivery:
            assert self.credit > 0 or not self.is_sender, "a transfer without credit"
            self.count += 1
            self.credit -= 1
        self.is_within_delivery = transfer.more


@dataclass
class SessionEnd:
    """What one end of a session knows, of the frames that it sent and received."""

    next_out: int
    next_in: int
    room: int
    """How many frames it may send."""
    next_delivery: int
    links: dict[int, LinkEnd] = field(default_factory=dict)
    """By the handles of this end."""
    handles: dict[int, int] = field(default_factory=dict)
    """The handles of the other end -> those of this end."""
    told: deque[_Told] = field(default_factory=deque)
    """The flows that the other end has not received."""
    owed: set[int] = field(default_factory=set)
    """The links for which the other end asked for a flow."""

    def sent(self, performative: Any, batch: int = 0) -> None:
        """Check and apply a frame that this end sent, maybe within a batch of received frames."""
        if isinstance(performative, Transfer):
            assert self.room > 0, "a transfer beyond the window"
            link = self.links[performative.handle]
            if not link.is_within_delivery:
                assert performative.delivery_id == self.next_delivery % _BITS
                self.next_delivery += 1
            link.count_frame(performative)
            self.room -= 1
            self.next_out += 1
        elif isinstance(performative, Flow):
            self._sent_flow(performative, batch)

    def _sent_flow(self, flow: Flow, batch: int) -> None:
        assert flow.next_outgoing_id == self.next_out % _BITS
        assert flow.next_incoming_id is not None
        behind = (self.next_in - flow.next_incoming_id) % _BITS
        assert behind <= batch
        count = 0
        if flow.handle is not None:
            link = self.links[flow.handle]
            self.owed.discard(flow.handle)
            if not link.is_sender:
                link.credit = flow.link_credit or 0
                link.is_draining = flow.drain
            elif link.is_draining and flow.link_credit == 0:
                link.count += link.credit
                link.credit = 0
                assert flow.drain
                link.is_draining = False
            assert flow.delivery_count == link.count % _BITS
            assert flow.link_credit == link.credit
            count = link.count
        self.told.append(_Told(self.next_in - behind, count))

    def received(self, performative: Any, other: "SessionEnd") -> None:
        """Apply a frame of the other end."""
        if isinstance(performative, Transfer):
            self.next_in += 1
            self.links[self.handles[performative.handle]].count_frame(performative)
        elif isinstance(performative, Flow):
            told = other.told.popleft()
            self.room = max(0, told.next_in + performative.incoming_window - self.next_out)
            if performative.handle is not None:
                handle = self.handles[performative.handle]
                self._received_link_flow(handle, performative, told.delivery_count)

    def _received_link_flow(self, handle: int, flow: Flow, count: int) -> None:
        link = self.links[handle]
        if link.is_sender:
            link.credit = max(0, count + (flow.link_credit or 0) - link.count)
            link.is_draining = flow.drain
        else:
            link.credit -= count - link.count
            link.count = count
            link.is_draining = link.is_draining and link.credit > 0
        if flow.echo and not flow.drain:
            self.owed.add(handle)
