"""The transfer windows of a session, in both directions (part 2.5.6). Pure.

A window counts transfer frames, not deliveries. Each end announces how many frames it accepts.
A frame is a violation only beyond the highest edge that was ever announced: an end may reduce its
window while frames are on their way.
"""

from holdfast.amqp.wire import serials
from holdfast.amqp.wire.conditions import WINDOW_VIOLATION, SessionFailed
from holdfast.amqp.wire.performatives import Begin, Flow

#: What this end announces as its outgoing window: it is always ready to send.
OUTGOING_WINDOW = 2**31 - 1


class Windows:
    """The transfer-ids and windows of one session.

    `incoming_size` is the window that this end announces; 0 stops the peer.
    """

    def __init__(self, incoming_size: int, next_outgoing_id: int = 0) -> None:
        self.next_outgoing_id = self._initial_outgoing_id = next_outgoing_id
        self._remote_edge = next_outgoing_id
        self._incoming_size = incoming_size
        self.next_incoming_id: int | None = None
        self._edge = self._highest_edge = 0

    def begin(self, channel: int | None, handle_max: int) -> Begin:
        """Return the begin of this end."""
        return Begin(
            channel, self.next_outgoing_id, self._incoming_size, OUTGOING_WINDOW, handle_max
        )

    def remote_begin(self, begin: Begin) -> None:
        """Apply the begin of the peer."""
        self.next_incoming_id = begin.next_outgoing_id
        self._remote_edge = serials.add(self._initial_outgoing_id, begin.incoming_window)
        self._edge = self._highest_edge = serials.add(begin.next_outgoing_id, self._incoming_size)

    # ---- Frames that arrive

    def transfer_arrived(self) -> None:
        """Count a transfer frame. Raises SessionFailed if it is beyond every announced window."""
        assert self.next_incoming_id is not None
        if self.next_incoming_id == self._highest_edge:
            raise SessionFailed(WINDOW_VIOLATION, "a transfer is beyond the incoming window")
        self.next_incoming_id = serials.add(self.next_incoming_id, 1)

    @property
    def incoming_left(self) -> int:
        """How many frames of the announced window are left; below 0 after it was reduced."""
        assert self.next_incoming_id is not None
        return serials.distance(self.next_incoming_id, self._edge)

    @property
    def is_renewal_due(self) -> bool:
        """Whether half of the window is used up, so that it should be announced again."""
        return self.incoming_left * 2 <= self._incoming_size and self._incoming_size > 0

    @property
    def incoming_size(self) -> int:
        """The window that is announced at the next flow."""
        return self._incoming_size

    @incoming_size.setter
    def incoming_size(self, size: int) -> None:
        self._incoming_size = size

    # ---- Frames that are sent

    @property
    def outgoing_room(self) -> int:
        """How many frames may be sent now."""
        return max(0, serials.distance(self.next_outgoing_id, self._remote_edge))

    def sent(self, frames: int) -> None:
        """Count transfer frames that were sent."""
        self.next_outgoing_id = serials.add(self.next_outgoing_id, frames)

    # ---- Flows

    def flow(self) -> Flow:
        """Return a flow of the session, which announces the incoming window anew."""
        if self.next_incoming_id is not None:
            self._edge = serials.add(self.next_incoming_id, self._incoming_size)
            if serials.distance(self._highest_edge, self._edge) > 0:
                self._highest_edge = self._edge
        return Flow(
            self.next_incoming_id, self._incoming_size, self.next_outgoing_id, OUTGOING_WINDOW
        )

    def remote_flow(self, flow: Flow) -> None:
        """Apply the windows in a flow of the peer."""
        expected = flow.next_incoming_id
        if expected is None:  # the peer had not received our begin
            expected = self._initial_outgoing_id
        self._remote_edge = serials.add(expected, flow.incoming_window)
