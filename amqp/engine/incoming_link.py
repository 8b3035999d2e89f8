"""A link on which this end receives: credit, and deliveries made of transfer frames. Pure."""

from typing import Any

import msgspec

from holdfast.amqp.engine.link import Link, Wiring
from holdfast.amqp.wire import serials
from holdfast.amqp.wire.conditions import (
    INVALID_FIELD,
    MESSAGE_SIZE_EXCEEDED,
    TRANSFER_LIMIT_EXCEEDED,
    LinkFailed,
    SessionFailed,
)
from holdfast.amqp.wire.performatives import Attach, Flow, Transfer

#: The longest delivery-tag (part 2.8.7).
MAX_TAG_BYTES = 32


class Delivery(msgspec.Struct, eq=False):
    """One message that arrived. `message` is the encoded sections."""

    link: "IncomingLink"
    id: int
    tag: bytes
    format: int
    message: bytes
    is_settled: bool
    state: Any = None
    rcv_settle_mode: int | None = None
    is_resumed: bool = False
    """Whether the sender resumes a delivery of a link that was lost."""


class IncomingLink(Link):
    """This end is the receiver.

    `max_message_bytes` is what this end announces as max-message-size; 0 means no limit.
    """

    role = True

    def __init__(
        self, name: str, handle: int, wiring: Wiring, remote: Attach | None,
        max_message_bytes: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(name, handle, wiring, remote)
        self.max_message_bytes = max_message_bytes
        self._delivery_count = 0
        if remote is not None:
            self._delivery_count = remote.initial_delivery_count or 0
        self._credit = 0
        self._allowed = 0
        """How many deliveries are left up to the highest credit that was granted."""
        self.available: int | None = None
        """The sender's last report of its available messages; None if it has reported none."""
        self.is_draining = False
        self._first: Transfer | None = None
        self._parts: list[bytes] = []
        self.unfinished_bytes = 0
        """The bytes of the delivery whose last frame has not arrived."""

    @property
    def credit(self) -> int:
        """How many deliveries the sender may still send, by the last grant."""
        return max(0, self._credit)

    def grant(self, credit: int, *, drain: bool = False, echo: bool = False) -> None:
        """Let the sender send `credit` deliveries from now on, and no more.

        With `drain` the sender uses up the credit or gives it back: see the event Drained.
        """
        self._credit = credit
        self._allowed = max(self._allowed, credit)
        self.is_draining = drain
        self.send_flow(echo=echo)

    def send_flow(self, *, echo: bool = False) -> None:
        """Send the state of the link and of the session's windows."""
        flow = self._wiring.windows.flow()
        self._wiring.writer.write(
            self._wiring.channel,
            flow._replace(
                handle=self.handle,
                delivery_count=self._delivery_count,
                link_credit=self.credit,
                drain=self.is_draining,
                echo=echo,
            ),
        )

    def remote_attached(self, attach: Attach) -> None:
        """Apply the attach of the sender, with its initial delivery-count."""
        self._delivery_count = attach.initial_delivery_count or 0
        super().remote_attached(attach)

    def remote_flow(self, flow: Flow) -> bool:
        """Apply a flow of the sender; return whether it ends a drain."""
        if flow.available is not None:
            self.available = flow.available
        if flow.delivery_count is not None:
            advanced = serials.add(flow.delivery_count, -self._delivery_count)
            if 0 < advanced <= self._allowed:
                self._count(advanced)
        if self.is_draining and self.credit == 0:
            self.is_draining = False
            return True
        return False

    @property
    def run_room(self) -> int:
        """Return how many frames that are whole deliveries may arrive now."""
        return self._allowed if self._first is None else 0

    def run_arrived(self, deliveries: int) -> None:
        """Count whole deliveries: see `run_room`."""
        self._count(deliveries)

    def transfer_arrived(self, transfer: Transfer, part: bytes) -> Delivery | None:
        """Add a transfer frame; return the delivery that it completes.

        Raises LinkFailed if the sender exceeds the credit or the size limit, and SessionFailed for
        a frame that does not continue its delivery.
        """
        first = self._first
        if first is None:
            if transfer.delivery_id is None or transfer.delivery_tag is None:
                raise SessionFailed(INVALID_FIELD, "a delivery has no delivery-id or delivery-tag")
            if len(transfer.delivery_tag) > MAX_TAG_BYTES:
                raise SessionFailed(INVALID_FIELD, "a delivery-tag is longer than 32 bytes")
            if not self._allowed:
                raise LinkFailed(TRANSFER_LIMIT_EXCEEDED, "a transfer is beyond the link's credit")
            self._count(1)
            self._first = first = transfer
        else:
            self._check_continues(first, transfer)
            if transfer.settled and not first.settled:
                self._first = first = first._replace(settled=True)
        if transfer.aborted:
            self._end_delivery()
            return None
        size = self.unfinished_bytes + len(part)
        if self.max_message_bytes and size > self.max_message_bytes:
            self._end_delivery()
            raise LinkFailed(
                MESSAGE_SIZE_EXCEEDED, f"a message is larger than {self.max_message_bytes} bytes"
            )
        if transfer.more:
            self._parts.append(part)
            self._wiring.held.arriving += len(part)
            self.unfinished_bytes = size
            return None
        message = b"".join([*self._parts, part]) if self._parts else part
        self._end_delivery()
        return Delivery(
            self,
            first.delivery_id or 0,
            first.delivery_tag or b"",
            first.message_format or 0,
            message,
            bool(first.settled),
            first.state,
            first.rcv_settle_mode,
            first.resume,
        )

    def _count(self, deliveries: int) -> None:
        self._delivery_count = (self._delivery_count + deliveries) & 0xFFFFFFFF
        self._credit -= deliveries
        self._allowed -= deliveries

    def _check_continues(self, first: Transfer, transfer: Transfer) -> None:
        if transfer.delivery_id not in (None, first.delivery_id):
            raise SessionFailed(INVALID_FIELD, "a delivery begins before the one before it ends")
        if transfer.delivery_tag not in (None, first.delivery_tag):
            raise SessionFailed(INVALID_FIELD, "a delivery changes its delivery-tag")

    def discard(self) -> None:
        """Free the parts of a delivery that will not be completed."""
        self._end_delivery()

    def _end_delivery(self) -> None:
        self._first = None
        if self._parts:
            self._parts = []
            self._wiring.held.arriving -= self.unfinished_bytes
            self.unfinished_bytes = 0
