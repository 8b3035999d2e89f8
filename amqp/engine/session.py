"""A session: its links, its windows, and the deliveries that are not settled. Pure."""

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

from holdfast.amqp.engine.events import (
    Attached,
    Begun,
    CreditChanged,
    Detached,
    Disposed,
    Drained,
    Ended,
    Event,
    Received,
    SenderSettled,
    WindowOpened,
)
from holdfast.amqp.engine.frame_writer import FrameWriter
from holdfast.amqp.engine.free_numbers import FreeNumbers
from holdfast.amqp.engine.incoming_link import Delivery, IncomingLink
from holdfast.amqp.engine.link import HeldBytes, Link, LinkState, Wiring, error_of
from holdfast.amqp.engine.outgoing_link import DeliveryIds, OutgoingLink, Sent
from holdfast.amqp.engine.transfer_run import read_run, run_start
from holdfast.amqp.engine.unsettled import Unsettled
from holdfast.amqp.engine.windows import Windows
from holdfast.amqp.wire.conditions import (
    ERRANT_LINK,
    FRAMING_ERROR,
    HANDLE_IN_USE,
    ILLEGAL_STATE,
    UNATTACHED_HANDLE,
    AmqpError,
    ConnectionFailed,
    LinkFailed,
    SessionFailed,
)
from holdfast.amqp.wire.fast_disposition import encode_disposition
from holdfast.amqp.wire.fast_transfer import decode_transfer
from holdfast.amqp.wire.frames import frame
from holdfast.amqp.wire.performatives import (
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Flow,
)
from holdfast.amqp.wire.types import Buffer

_Kind = TypeVar("_Kind", bound=Link)


class SessionState(Enum):
    """Where a session is between its two begins and its two ends.

    | state          | this end sent | the peer sent | frames of the peer |
    |----------------|---------------|---------------|--------------------|
    | BEGIN_SENT     | begin         |               | begin              |
    | BEGIN_RECEIVED |               | begin         | processed          |
    | MAPPED         | begin         | begin         | processed          |
    | END_SENT       | end           |               | ignored up to end  |
    | END_RECEIVED   |               | end           | none               |
    | UNMAPPED       | end           | end           | none               |
    """

    BEGIN_SENT = "begin sent"
    BEGIN_RECEIVED = "begin received"
    MAPPED = "mapped"
    END_SENT = "end sent"
    END_RECEIVED = "end received"
    UNMAPPED = "unmapped"


class Session:
    """One session of a connection; made by Connection.

    `channel` is the channel of this end. `handle_max` is the highest handle that the peer may use.
    """

    def __init__(
        self,
        channel: int,
        writer: FrameWriter,
        incoming_window: int,
        handle_max: int,
        held: HeldBytes,
        first_id: int = 0,
    ) -> None:
        self.channel = channel
        self.remote_channel: int | None = None
        """The channel of the peer; None until its begin has arrived."""
        self.state = SessionState.BEGIN_SENT
        self.context: Any = None
        """Whatever the owner keeps with the session."""
        self.handle_max = handle_max
        self._remote_handle_max = 0xFFFFFFFF
        self._writer = writer
        self.windows = Windows(incoming_window, first_id)
        self._wiring = Wiring(channel, self.windows, writer, held)
        self._links: dict[int, Link] = {}
        """All links, by the handles of this end."""
        self._by_remote_handle: dict[int, Link] = {}
        self._handles = FreeNumbers()
        self._unanswered: dict[tuple[str, bool], Link] = {}
        """The links whose attach the peer has not answered, by name and role."""
        self._ids = DeliveryIds(first_id)
        self.outgoing_unsettled: Unsettled[Sent] = Unsettled()
        self.incoming_unsettled: Unsettled[Delivery] = Unsettled()

    # ---- Commands of the owner

    def begin(self, remote_channel: int | None = None) -> None:
        """Send the begin of this end.

        `remote_channel` is the channel of the peer if the peer began the session, otherwise None.
        """
        self._writer.write(self.channel, self.windows.begin(remote_channel, self.handle_max))
        self.state = SessionState.BEGIN_SENT if remote_channel is None else SessionState.MAPPED

    def end(self, error: AmqpError | None = None) -> None:
        """End the session, with an error if there is one. Do nothing if it was ended before."""
        if self.state in (SessionState.END_SENT, SessionState.UNMAPPED):
            return
        self._writer.write(self.channel, End(error_of(error) if error else None))
        is_last = self.state is SessionState.END_RECEIVED
        self.state = SessionState.UNMAPPED if is_last else SessionState.END_SENT
        for link in self._links.values():
            link.discard()

    def sender(self, name: str, attach: Callable[[int], Attach]) -> OutgoingLink:
        """Attach a link on which this end sends. `attach(handle)` returns the frame to send."""
        handle = self._free_handle()
        link = OutgoingLink(name, handle, self._wiring, None, self.outgoing_unsettled, self._ids)
        return self._attach(link, attach(handle))

    def receiver(
        self, name: str, attach: Callable[[int], Attach], max_message_bytes: int = 0
    ) -> IncomingLink:
        """Attach a link on which this end receives. `attach(handle)` returns the frame to send."""
        handle = self._free_handle()
        link = IncomingLink(name, handle, self._wiring, None, max_message_bytes)
        return self._attach(link, attach(handle))

    def _attach(self, link: _Kind, attach: Attach) -> _Kind:
        self._links[link.handle] = self._unanswered[link.name, link.role] = link
        link.send_attach(attach)
        return link

    def _free_handle(self) -> int:
        if self._handles.lowest > self._remote_handle_max:
            raise SessionFailed(ILLEGAL_STATE, "the peer accepts no further link")
        return self._handles.take()

    def set_incoming_window(self, size: int) -> None:
        """Announce a new incoming window immediately; 0 stops the peer."""
        self.windows.incoming_size = size
        self._writer.write(self.channel, self.windows.flow())

    def dispose(
        self, first: int, last: int, state: Any, *, settled: bool, role: bool = True
    ) -> None:
        """Send the state of the deliveries from `first` to `last`.

        `role` is True for deliveries that this end received. Settled deliveries are forgotten.
        """
        if settled:
            unsettled = self.incoming_unsettled if role else self.outgoing_unsettled
            unsettled.take(first, last)
        octets = encode_disposition(Disposition(role, first, last, settled, state))
        self._writer.write_bytes(frame(self.channel, octets))

    @property
    def links(self) -> list[Link]:
        """The links that at least one end has not detached."""
        return list(self._links.values())

    @property
    def sent_count(self) -> int:
        """How many deliveries this end has sent, since the session began."""
        return self._ids.count

    # ---- Frames of the peer

    def remote_begin(self, begin: Begin) -> Event:
        """Apply the peer's begin."""
        self.windows.remote_begin(begin)
        self._remote_handle_max = begin.handle_max
        is_answer = self.state is SessionState.BEGIN_SENT and begin.remote_channel is not None
        self.state = SessionState.MAPPED if is_answer else SessionState.BEGIN_RECEIVED
        return Begun(self, begin, is_answer)

    def remote_end(self, end: End) -> Event:
        """Apply the peer's end, and answer it."""
        is_last = self.state is SessionState.END_SENT
        self.state = SessionState.UNMAPPED if is_last else SessionState.END_RECEIVED
        self.end()
        return Ended(self, end.error)

    def transfer_arrived(self, buffer: Buffer, start: int, end: int, events: list[Event]) -> None:
        """Process a transfer frame. Raises SessionFailed or DecodeError."""
        transfer, start = decode_transfer(buffer, start, end)
        self.windows.transfer_arrived()
        link = self._by_remote_handle.get(transfer.handle)
        if link is None:
            raise SessionFailed(UNATTACHED_HANDLE, f"handle {transfer.handle} is not attached")
        if not isinstance(link, IncomingLink):
            raise SessionFailed(ERRANT_LINK, "a transfer arrived on a link that sends")
        if link.state is not LinkState.ATTACHED:
            if link.state is LinkState.DETACH_SENT:
                return  # the peer has not received the detach
            raise SessionFailed(ERRANT_LINK, "a transfer arrived before the link was attached")
        try:
            delivery = link.transfer_arrived(transfer, bytes(buffer[start:end]))
        except LinkFailed as error:
            link.detach(error)
            events.append(Detached(link, True, error, is_local=True))
            return
        if delivery is not None:
            if not delivery.is_settled:
                self.incoming_unsettled.add(delivery.id, delivery)
            last = events[-1] if events else None
            if type(last) is Received and last.link is link:
                last.deliveries.append(delivery)
            else:
                events.append(Received(link, [delivery]))
        elif transfer.aborted:
            events.append(Received(link, []))
        if self.windows.is_renewal_due:
            self._writer.write(self.channel, self.windows.flow())

    def run_arrived(
        self, buffer: bytes, at: int, end: int, most: int, max_frame_bytes: int,
        events: list[Event],
    ) -> tuple[int, int]:  # fmt: skip
        """Process transfer frames from `at` on as long as they are whole deliveries of one link,
        at most `most`. Return the offset after them, and their number."""
        assert self.remote_channel is not None
        start = run_start(buffer, at, end, self.remote_channel)
        if start is None:
            return at, 0
        link = self._by_remote_handle.get(start.handle_number)
        if not isinstance(link, IncomingLink) or link.state is not LinkState.ATTACHED:
            return at, 0
        most = min(most, self.windows.run_room, link.run_room)
        at, deliveries = read_run(
            buffer, at, end, start, link, self.incoming_unsettled, most, max_frame_bytes
        )
        if deliveries:
            link.run_arrived(len(deliveries))
            self.windows.run_arrived(len(deliveries))
            last = events[-1] if events else None
            if type(last) is Received and last.link is link:
                last.deliveries.extend(deliveries)
            else:
                events.append(Received(link, deliveries))
            if self.windows.is_renewal_due:
                self._writer.write(self.channel, self.windows.flow())
        return at, len(deliveries)

    def disposition_arrived(self, disposition: Disposition, events: list[Event]) -> None:
        """Process a disposition. Deliveries that are not known are ignored."""
        first = disposition.first
        last = first if disposition.last is None else disposition.last
        if disposition.role:
            unsettled = self.outgoing_unsettled
            find = unsettled.take if disposition.settled else unsettled.find
            if found := find(first, last):
                _add_disposed(events, Disposed(self, found, disposition.state, disposition.settled))
        elif disposition.settled and (arrived := self.incoming_unsettled.take(first, last)):
            events.append(SenderSettled(self, arrived, disposition.state))

    def flow_arrived(self, flow: Flow, events: list[Event]) -> None:
        """Process a flow: windows, and the credit of a link. Raises SessionFailed."""
        had_room = self.windows.outgoing_room > 0
        self.windows.remote_flow(flow)
        if self.windows.outgoing_room > 0:
            self._continue_deliveries()
            if not had_room:
                events.append(WindowOpened(self))
        if flow.handle is None:
            if flow.echo:
                self._writer.write(self.channel, self.windows.flow())
            return
        link = self._by_remote_handle.get(flow.handle)
        if link is None:
            raise SessionFailed(UNATTACHED_HANDLE, f"handle {flow.handle} is not attached")
        if isinstance(link, OutgoingLink):
            link.remote_flow(flow)
            if flow.echo and not flow.drain:
                link.answer_echo()
            events.append(CreditChanged(link))
        elif isinstance(link, IncomingLink):
            if link.remote_flow(flow):
                events.append(Drained(link))
            if flow.echo:
                link.answer_echo()

    def _continue_deliveries(self) -> None:
        if not self._wiring.held.waiting:
            return
        for link in self._links.values():
            if isinstance(link, OutgoingLink) and link.is_partly_sent:
                link.continue_delivery()
                if not self.windows.outgoing_room:
                    return

    def attach_arrived(self, attach: Attach) -> Event:
        """Process an attach: the answer to one of this end, or a new link.

        Raises SessionFailed for a handle in use, ConnectionFailed for a handle above handle-max.
        """
        if attach.handle > self.handle_max:
            raise ConnectionFailed(FRAMING_ERROR, f"handle {attach.handle} is above handle-max")
        if attach.handle in self._by_remote_handle:
            raise SessionFailed(HANDLE_IN_USE, f"handle {attach.handle} is in use")
        link = self._unanswered.pop((attach.name, not attach.role), None)
        if link is not None:
            self._by_remote_handle[attach.handle] = link
            link.remote_attached(attach)
            return Attached(link, True, self)
        handle = self._free_handle()
        if attach.role:  # the peer receives
            link = OutgoingLink(
                attach.name, handle, self._wiring, attach, self.outgoing_unsettled, self._ids
            )
        else:
            link = IncomingLink(attach.name, handle, self._wiring, attach)
        self._links[handle] = self._by_remote_handle[attach.handle] = link
        return Attached(link, False, self)

    def detach_arrived(self, detach: Detach) -> Event:
        """Process a detach, and answer it. Raises SessionFailed for an unknown handle."""
        link = self._by_remote_handle.pop(detach.handle, None)
        if link is None:
            raise SessionFailed(UNATTACHED_HANDLE, f"handle {detach.handle} is not attached")
        if link.state is LinkState.ATTACH_RECEIVED:
            link.send_null_attach()  # the peer does not wait for the answer to its attach
        link.remote_detached()
        link.detach(closed=detach.closed)
        del self._links[link.handle]
        self._handles.give_back(link.handle)
        if len(self.outgoing_unsettled) and isinstance(link, OutgoingLink):
            self.outgoing_unsettled.remove_where(lambda sent: sent.link is link)
        elif len(self.incoming_unsettled) and isinstance(link, IncomingLink):
            self.incoming_unsettled.remove_where(lambda delivery: delivery.link is link)
        return Detached(link, detach.closed, detach.error)


def _add_disposed(events: list[Event], event: Disposed) -> None:
    """Add an event. If the last event has the same final outcome, add the deliveries to it."""
    last = events[-1] if events else None
    if (
        type(last) is Disposed
        and last.session is event.session
        and last.is_settled
        and event.is_settled
        and last.state == event.state
        and type(last.state) is type(event.state)
    ):
        last.deliveries.extend(event.deliveries)
    else:
        events.append(event)
