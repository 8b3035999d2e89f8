"""A link on which this end sends: credit of the receiver, and deliveries cut into frames. Pure."""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

from holdfast.amqp.engine.delivery_room import DeliveryRoom
from holdfast.amqp.engine.link import Link, LinkState, Wiring
from holdfast.amqp.engine.unsettled import Unsettled
from holdfast.amqp.wire import serials
from holdfast.amqp.wire.conditions import MESSAGE_SIZE_EXCEEDED, LinkFailed
from holdfast.amqp.wire.fast_disposition import encode_disposition
from holdfast.amqp.wire.fast_transfer import TransferEncoder
from holdfast.amqp.wire.frames import frame
from holdfast.amqp.wire.performatives import (
    Attach,
    Disposition,
    Flow,
    Transfer,
    encode_composite,
)

UNLIMITED_ROOM = DeliveryRoom()


class Sent:
    """An unsettled delivery of an outgoing link. `context` is the owner's. The deliveries of a run
    (`send_run`) share one object."""

    __slots__ = ("context", "link")

    def __init__(self, link: "OutgoingLink", context: Any = None) -> None:
        self.link = link
        self.context = context


class DeliveryIds:
    """Gives the deliveries of a session, in one direction, their ids."""

    def __init__(self, next_id: int = 0) -> None:
        self._next = next_id
        self.count = 0
        """How many ids were given."""

    def next(self, count: int) -> list[int]:
        """Return the next `count` ids, which stay free until `take` is called."""
        if count == 1:
            return [self._next]
        return [each & 0xFFFFFFFF for each in range(self._next, self._next + count)]

    def take(self, count: int) -> None:
        """Record that the next `count` ids were given."""
        self._next = (self._next + count) & 0xFFFFFFFF
        self.count += count


class OutgoingLink(Link):
    """This end is the sender.

    At most one delivery is partly sent: its other frames wait until the session's window opens, and
    no other delivery of the link is sent before.
    """

    role = False

    def __init__(
        self, name: str, handle: int, wiring: Wiring, remote: Attach | None,
        unsettled: Unsettled[Sent], ids: DeliveryIds,
    ) -> None:  # fmt: skip
        super().__init__(name, handle, wiring, remote)
        self._unsettled = unsettled
        self._ids = ids
        self._delivery_count = 0
        self._credit = 0
        #: The frames of a partly sent delivery. Most links never need a deque: it takes 760 bytes.
        self._waiting: deque[bytes] | tuple[()] = ()
        self._encoder: TransferEncoder | None = None
        self.delivery_room = UNLIMITED_ROOM
        """The room for unsettled deliveries; the owner takes it and gives it back. The owner sets
        the room of the session before the first delivery."""
        self.is_draining = False
        """Whether the receiver wants the credit used up or given back: see `drained`."""
        self.available: int | None = None
        """How many messages this end has for the receiver. Flows of this end report it."""
        self.answers_echo = True
        """Whether the engine answers an echo. If False, the engine sets `owes_echo`, and the owner
        sends the flow after it has counted the available messages."""
        self.owes_echo = False

    @property
    def credit(self) -> int:
        """How many deliveries the receiver accepts now."""
        return self._credit

    @property
    def sendable(self) -> int:
        """How many deliveries of one frame each the credit and the window allow now."""
        if self.state is not LinkState.ATTACHED or self._waiting:
            return 0
        return min(self._credit, self._wiring.windows.outgoing_room)

    @property
    def max_message_bytes(self) -> int:
        """The largest message that the receiver accepts; 0 means no limit."""
        return (self.remote.max_message_size or 0) if self.remote else 0

    def send(
        self, message: bytes, *, settled: bool = False, context: Any = None,
        tag: bytes | None = None,
    ) -> int:  # fmt: skip
        """Send a message; return its delivery-id. Call it only while `sendable` is above 0.

        Raises LinkFailed if the message is larger than the receiver accepts.
        """
        assert self._credit, "there is no credit"
        assert not self._waiting
        limit = self.max_message_bytes
        if limit and len(message) > limit:
            raise LinkFailed(MESSAGE_SIZE_EXCEEDED, f"the receiver accepts at most {limit} bytes")
        ids = self._ids.next(1)
        self._count_sent(ids, None if settled else Sent(self, context))
        delivery_id, windows = ids[0], self._wiring.windows
        if tag is None and windows.outgoing_room:
            parts = self._transfers().run(ids, settled, (message,))
            if parts:
                self._wiring.writer.write_all(parts)
                windows.sent(1)
                return delivery_id
        number = delivery_id.to_bytes(4, "big")
        frames = self._transfers().frames(delivery_id, tag or number, settled, message)
        self._waiting = deque(frames)
        self._wiring.held.waiting += sum(map(len, frames))
        self.continue_delivery()
        return delivery_id

    def send_run(self, messages: Sequence[bytes], *, settled: bool = False) -> list[int]:
        """Send messages as `send` does, but faster, as far as the credit and the window allow.
        Return their delivery-ids.

        The run ends before the first message that needs several frames or is larger than the
        receiver accepts. Then `send` sends that message, or raises LinkFailed.
        """
        limit = self.max_message_bytes
        if limit:
            messages = list(takewhile(lambda each: len(each) <= limit, messages))
        messages = messages[: self.sendable]
        ids = self._ids.next(len(messages))
        parts = self._transfers().run(ids, settled, messages)
        ids = ids[: len(parts) // 2]
        self._count_sent(ids, None if settled else Sent(self))
        self._wiring.writer.write_all(parts)
        self._wiring.windows.sent(len(ids))
        return ids

    def resume(
        self, tag: bytes, state: Any, *, settled: bool, message: bytes = b"", context: Any = None
    ) -> int:
        """Resume a delivery that was unsettled when an earlier link of this name was lost, and that
        the receiver has in its attach. Return its new delivery-id. `state` is what this end knows
        of the delivery. Give the message, which must fit in a frame, if the receiver has no state.
        Call it only while `sendable` is above 0."""
        assert self.sendable, "there is no credit, or no window"
        ids = self._ids.next(1)
        self._count_sent(ids, None if settled else Sent(self, context))
        transfer = Transfer(
            self.handle, ids[0], tag, 0, settled, state=state, resume=True
        )  # fmt: skip
        octets = frame(self._wiring.channel, encode_composite(transfer) + message)
        self._wiring.writer.write_bytes(octets)
        self._wiring.windows.sent(1)
        return ids[0]

    def _transfers(self) -> TransferEncoder:
        encoder = self._encoder
        if encoder is None:
            wiring = self._wiring
            encoder = self._encoder = TransferEncoder(
                wiring.channel, self.handle, wiring.writer.max_frame_bytes
            )
        return encoder

    def _count_sent(self, ids: Sequence[int], sent: Sent | None) -> None:
        """Count deliveries that are sent now. They are unsettled if `sent` is given."""
        count = len(ids)
        self._ids.take(count)
        self._delivery_count = (self._delivery_count + count) & 0xFFFFFFFF
        self._credit -= count
        if sent is not None:
            self._unsettled.add_run(ids, sent)

    def continue_delivery(self) -> bool:
        """Send frames of a partly sent delivery; return whether all of it is sent."""
        windows, waiting = self._wiring.windows, self._waiting
        if not waiting:
            return True
        room = min(windows.outgoing_room, len(waiting))
        frames = [waiting.popleft() for _ in range(room)]
        self._wiring.writer.write_all(frames)
        self._wiring.held.waiting -= sum(map(len, frames))
        windows.sent(room)
        if waiting:
            return False
        self._waiting = ()
        return True

    def discard(self) -> None:
        """Free the frames of a delivery that will not be sent."""
        self._wiring.held.waiting -= sum(map(len, self._waiting))
        self._waiting = ()

    def drained(self) -> None:
        """Give the unused credit back, as the receiver asked with drain."""
        self._delivery_count = serials.add(self._delivery_count, self._credit)
        self._credit = 0
        self.send_flow()
        self.is_draining = False

    def settle(self, first: int, last: int, state: Any) -> None:
        """Settle the deliveries from `first` to `last`, and send their state to the receiver.
        All of these deliveries must be of this link."""
        self._unsettled.take(first, last)
        octets = encode_disposition(Disposition(False, first, last, True, state))
        self._wiring.writer.write_bytes(frame(self._wiring.channel, octets))

    def forget(self, delivery_ids: Iterable[int]) -> None:
        """Forget unsettled deliveries of this link. The owner does this when the link has ended."""
        for delivery_id in delivery_ids:
            self._unsettled.remove(delivery_id)

    def answer_echo(self) -> None:
        """Send the flow that the peer asked for, or leave it to the owner (`owes_echo`)."""
        if self.answers_echo:
            super().answer_echo()
        else:
            self.owes_echo = True

    def send_flow(self, properties: dict[str, Any] | None = None) -> None:
        """Send the state of the link and of the session's windows."""
        self.owes_echo = False
        flow = self._wiring.windows.flow()
        self._wiring.writer.write(
            self._wiring.channel,
            flow._replace(
                handle=self.handle,
                delivery_count=self._delivery_count,
                link_credit=self.credit,
                available=self.available,
                drain=self.is_draining,
                properties=properties,
            ),
        )

    def remote_flow(self, flow: Flow) -> None:
        """Apply the credit in a flow of the receiver."""
        if flow.link_credit is not None:
            # The receiver had not received our attach: it counts from the initial delivery-count.
            count = 0 if flow.delivery_count is None else flow.delivery_count
            # Not serials.distance: a drain may have advanced our count by more than 2**31.
            unseen = serials.add(self._delivery_count, -count)
            self._credit = max(0, flow.link_credit - unseen)
        self.is_draining = flow.drain

    @property
    def is_partly_sent(self) -> bool:
        """Whether frames of a delivery wait for the session's window."""
        return bool(self._waiting)
