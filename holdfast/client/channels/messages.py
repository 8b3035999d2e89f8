"""Messages of channels: what arrived, and how the program settles it."""

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from holdfast.amqp.engine.incoming_link import Delivery
from holdfast.amqp.wire.performatives import Accepted, Modified, Rejected, Released
from holdfast.client.errors import ChannelClosed, StaleDelivery
from holdfast.client.session.messages import LinkMessage, decode_message

if TYPE_CHECKING:
    from holdfast.client.channels.channel_session import ChannelSession


@dataclass(frozen=True, slots=True, eq=False)
class ChannelMessage(LinkMessage):
    """One message of a channel. `consumer_tag` names its consumer; it is "" for a message of `get`.

    Settling is a fire-and-forget call for any thread: it does not wait for the broker. A second
    outcome for a message has no effect, and neither has any for a message that needs none. Each of
    the four methods raises StaleDelivery if the connection was lost since the message arrived, and
    ChannelClosed if the channel was closed.
    """

    consumer_tag: str = ""
    _session: Any = field(default=None, repr=False)

    def ack(self, *, multiple: bool = False) -> None:
        """Acknowledge the message; with `multiple`, also all messages that arrived before it on
        the same channel and are not settled."""
        self._settle(Accepted(), multiple)

    def nack(self) -> None:
        """Report that processing failed: the group delivers the message again, and counts it."""
        self._settle(Modified(delivery_failed=True))

    def reject(self) -> None:
        """Declare that the message can never be processed: it becomes a dead letter."""
        self._settle(Rejected())

    def release(self) -> None:
        """Give the message back, to be delivered again. This does not count as a failure."""
        self._settle(Released())

    def _settle(self, state: object, multiple: bool = False) -> None:
        session: ChannelSession = self._session
        if self.delivery_id is None:
            return
        if session.is_closed:
            raise ChannelClosed
        if session.is_lost:
            raise StaleDelivery
        session.post(session.settle, self.delivery_id, state, multiple)


_FIELDS = [each.name for each in fields(LinkMessage)]


def message_of(
    delivery: Delivery, session: "ChannelSession", consumer_tag: str, *, settled: bool
) -> ChannelMessage:
    """Return the message of a delivery. Raises DecodeError, KeyError or TypeError if it is not
    one of a Holdfast broker."""
    found = decode_message(delivery.message, None if settled else delivery.id)
    values = {name: getattr(found, name) for name in _FIELDS}
    return ChannelMessage(**values, consumer_tag=consumer_tag, _session=session)
