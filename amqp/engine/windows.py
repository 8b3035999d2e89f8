"""The transfer windows of a session, in both directions (part 2.5.6). Pure.

A window counts transfer frames, not deliveries. Each end announces how many frames it accepts.
An end may reduce its window while frames are in flight. So a frame is a violation only if it is
beyond every edge (the end of a window) that was ever announced.
"""

from holdfast.amqp.wire import serials
from holdfast.amqp.wire.conditions import WINDOW_VIOLATION, SessionFailed
from holdfast.amqp.wire.performatives import Begin, Flow

#: The outgoing window that this end announces. It never changes, because this end can always
#: send.
OUTGOING_WINDOW = 2**31 - 1


class Windows:
    """The transfer-ids and windows of one session.

    `incoming_size` is the window that this end announces; 0 stops the peer.
    """

    def __init__(self, incoming_size: int, next_outgoing_id: int = 0) -> None:
        self.next_outgoing_id = self._initial_outgoing_id = next_outgoing_id
        self.outgoing_room = 0
        """How many frames may be sent now."""
        self.incoming_size = incoming_size
        """The window that is announced at the next flow."""
        self.next_incoming_id: int | None = None
        self.incoming_left = 0
        """How many frames of the announced window are left. Negative if frames that were in flight
        exceeded a reduced window."""
        self._allowed = 0
        """How many frames are left up to the highest edge that was announced."""

    def begin(self, channel: int | None, handle_max: int) -> Begin:
        """Return the begin performative of this end."""
        return Begin(
            channel, self.next_outgoing_id, self.incoming_size, OUTGOING_WINDOW, handle_max
        )

    def remote_begin(self, begin: Begin) -> None:
        """Apply the begin performative of the peer."""
        self.next_incoming_id = begin.next_outgoing_id
        self.outgoing_room = begin.incoming_window
        self.incoming_left = self._allowed = self.incoming_size

    # ---- Frames that arrive

    def transfer_arrived(self) -> None:
        """Count a transfer frame. Raises SessionFailed if it is beyond every announced window."""
        if not self._allowed:
            raise SessionFailed(WINDOW_VIOLATION, "a transfer is beyond the incoming window")
        self._allowed -= 1
        self.incoming_left -= 1
        self.next_incoming_id = (self.next_incoming_id + 1) & 0xFFFFFFFF  # type: ignore[operator]

    @property
    def run_room(self) -> int:
        """How many frames may arrive before the window is due to be announced again."""
        if not self.incoming_size:
            return self._allowed
        return min(self._allowed, max(1, self.incoming_left - self.incoming_size // 2))

    def run_arrived(self, frames: int) -> None:
        """Count transfer frames: see `run_room`."""
        self._allowed -= frames
        self.incoming_left -= frames
        self.next_incoming_id = ((self.next_incoming_id or 0) + frames) & 0xFFFFFFFF

    @property
    def is_renewal_due(self) -> bool:
        """Whether half of the window is used up, so that it should be announced again."""
        return self.incoming_left * 2 <= self.incoming_size > 0

    # ---- Frames that are sent

    def sent(self, frames: int) -> None:
        """Count transfer frames that were sent."""
        self.next_outgoing_id = (self.next_outgoing_id + frames) & 0xFFFFFFFF
        self.outgoing_room -= frames

    # ---- Flows

    def flow(self) -> Flow:
        """Return a flow performative that announces the full incoming window again."""
        self.incoming_left = self.incoming_size
        self._allowed = max(self._allowed, self.incoming_size)
        return Flow(
            self.next_incoming_id, self.incoming_size, self.next_outgoing_id, OUTGOING_WINDOW
        )

    def remote_flow(self, flow: Flow) -> None:
        """Apply the windows in a flow performative of the peer."""
        expected = flow.next_incoming_id
        if expected is None:  # the peer had not received our begin
            expected = self._initial_outgoing_id
        in_flight = serials.distance(expected, self.next_outgoing_id)
        self.outgoing_room = max(0, flow.incoming_window - in_flight)
