"""Random acts at both ends of a connection, whose bytes arrive late and in random pieces.

The model records what was sent on each link. For any order of acts and bytes, these rules hold:
each link delivers its messages complete, in order, and only as many as its credit allowed. Neither
end reports an error of the other end. After each act, each end has the counters that the
specification gives it (`specification.py`). Once all bytes have arrived, both ends have the same
credit and the same unsettled deliveries.
"""

from collections import Counter
from typing import Any

from holdfast.amqp.engine.connection import ConnectionSettings
from holdfast.amqp.engine.events import (
    Attached,
    Closed,
    CreditChanged,
    Detached,
    Disposed,
    Drained,
    Ended,
    Received,
    SenderSettled,
    WindowOpened,
)
from holdfast.amqp.engine.incoming_link import IncomingLink
from holdfast.amqp.engine.outgoing_link import OutgoingLink
from holdfast.amqp.wire.frames import cut
from holdfast.amqp.wire.performatives import Accepted, Released, Transfer, decode_composite
from tests.amqp.engine.pair import End, Pair
from tests.amqp.engine.specification import LinkEnd, SessionEnd

LINKS = 3
WINDOW = 5
#: Sessions begin here, so that all ids wrap.
FIRST_ID = 2**32 - 10
HUGE = 4_000_000_000

# What the acts are chosen from.
CREDITS = (0, 2, 20, 50, HUGE, 2**32 - 1)
WINDOWS = (0, 3, WINDOW, WINDOW, HUGE, 2**32 - 1)
SIZES = (0, 470, 600, 3_000)
STATES = (Accepted(), Released())
PIECES = (7, 60, 600, 100_000, 100_000)


class Wire:
    """The bytes on their way in one direction. Nothing arrives while it is stalled."""

    def __init__(self, source: End, target: End, model: SessionEnd, other: SessionEnd) -> None:
        self._source, self._target = source, target
        self._model, self._other = model, other
        self._bytes = b""
        self._partial = b""
        """The arrived part of a frame that has not arrived completely."""
        self.is_stalled = False
        self.back: Wire
        """The other direction."""
        self.counts: Counter[str] = Counter()

    def collect(self, batch: int = 0) -> None:
        """Take the output of the source, and let the model check it."""
        data = self._source.connection.take_output()
        for each in cut(data, 0, len(data), 1 << 20):
            performative, _ = decode_composite(data, each.start, each.end)
            self.counts[type(performative).__name__] += 1
            self._model.sent(performative, batch)
        self._bytes += data

    def deliver(self, size: int) -> bool:
        """Deliver at most `size` bytes; return whether there were any.

        Transfers that follow one another arrive together, every other frame arrives alone.
        """
        self.collect()
        if self.is_stalled:
            return False
        part, self._bytes = self._bytes[:size], self._bytes[size:]
        data, at = self._partial + part, len(self._partial)
        batch: list[Any] = []
        begin = end = 0
        for each in cut(data, 0, len(data), 1 << 20):
            performative, _ = decode_composite(data, each.start, each.end)
            if not isinstance(performative, Transfer):
                self._arrive(data[max(begin, at) : end], batch)
                begin, batch = end, []
                self._arrive(data[max(begin, at) : each.end], [performative])
                begin = each.end
            else:
                batch.append(performative)
            end = each.end
        self._arrive(data[max(begin, at) : end], batch)
        self._partial = data[end:]
        self._arrive(data[max(end, at) :], [])
        return bool(part)

    def _arrive(self, data: bytes, frames: list[Any]) -> None:
        for each in frames:
            self._other.received(each, self._model)
        self._target.receive(data)
        self.back.collect(len(frames) - 1 if frames and type(frames[0]) is Transfer else 0)
        assert not self._other.owed, "an echo was not answered"


class LinkModel:
    """One link: what was sent and what arrived."""

    def __init__(
        self, sender: OutgoingLink, receiver: IncomingLink, at: SessionEnd, to: SessionEnd
    ) -> None:
        self.sender, self.receiver = sender, receiver
        self.sent: list[bytes] = []
        self.arrived: list[bytes] = []
        self.sender_end = at.links[sender.handle] = LinkEnd(is_sender=True)
        self.receiver_end = to.links[receiver.handle] = LinkEnd(is_sender=False)
        at.handles[receiver.handle] = sender.handle
        to.handles[sender.handle] = receiver.handle


class EngineWorld:
    """Both ends, the acts on them, and the checks."""

    def __init__(self) -> None:
        self.pair = pair = Pair(
            *(
                ConnectionSettings(
                    name, incoming_window=WINDOW, max_frame_bytes=512, first_id=FIRST_ID
                )
                for name in ("client", "server")
            )
        )
        pair.pump()
        self.session, self.remote_session = pair.begun()
        self.models = [SessionEnd(FIRST_ID, FIRST_ID, WINDOW, FIRST_ID) for _ in range(2)]
        near, far = self.models
        self.links = []
        for index in range(LINKS):
            if index % 2:
                into, out = pair.receiver(self.session, f"in {index}")
                self.links.append(LinkModel(out, into, far, near))
            else:
                out, into = pair.sender(self.session, f"out {index}")
                self.links.append(LinkModel(out, into, near, far))
        there = Wire(pair.client, pair.server, near, far)
        back = Wire(pair.server, pair.client, far, near)
        there.back, back.back = back, there
        self.wires = [there, back]
        self.unsettled: set[tuple[Any, int]] = set()
        for link in self.links:
            link.receiver.grant(20)
        self.deliver(1, 1 << 20)
        self.deliver(0, 1 << 20)

    # ---- Acts

    def grant(self, index: int, credit: int, drain: bool, echo: bool) -> None:
        self.links[index].receiver.grant(credit, drain=drain, echo=echo)

    def send(self, index: int, sizes: list[int], settled: bool) -> None:
        link = self.links[index]
        for size in sizes:
            if not link.sender.sendable:
                return
            message = bytes([len(link.sent) % 256]) + bytes(size)
            link.sent.append(message)
            delivery_id = link.sender.send(message, settled=settled)
            if not settled:
                self.unsettled.add((self._session_of(index, at_sender=True), delivery_id))

    def give_back(self, index: int) -> None:
        link = self.links[index].sender
        if link.is_draining and not link.is_partly_sent:
            link.drained()

    def settle(self, index: int, count: int, state: Any) -> None:
        session = self._session_of(index, at_sender=False)
        mine = [
            delivery_id
            for delivery_id, each in session.incoming_unsettled
            if each.link is self.links[index].receiver
        ][:count]
        for delivery_id in mine:
            session.dispose(delivery_id, delivery_id, state, settled=True)

    def stall(self, direction: int, is_stalled: bool) -> None:
        self.wires[direction].is_stalled = is_stalled

    def change_window(self, at_client: bool, size: int) -> None:
        (self.session if at_client else self.remote_session).set_incoming_window(size)

    def deliver(self, direction: int, size: int) -> None:
        self.wires[direction].deliver(size)

    def _session_of(self, index: int, *, at_sender: bool) -> Any:
        return self.session if (index % 2 == 0) == at_sender else self.remote_session

    # ---- Checks

    def check(self) -> None:
        """Compare both ends with the specification, and what arrived with what was sent."""
        for wire in self.wires:
            wire.collect()
        for session, model in zip((self.session, self.remote_session), self.models, strict=True):
            assert session.windows.outgoing_room == model.room
            assert session.windows.next_outgoing_id == model.next_out % 2**32
            assert session.windows.next_incoming_id == model.next_in % 2**32
        for link in self.links:
            assert link.sender.credit == link.sender_end.credit
            assert link.receiver.credit == max(0, link.receiver_end.credit)
            assert link.sender.is_draining == link.sender_end.is_draining
            assert link.receiver.is_draining == link.receiver_end.is_draining
        for end in (self.pair.client, self.pair.server):
            assert not [each for each in end.events if isinstance(each, Closed | Ended | Detached)]
            for event in end.take(Received):
                (link,) = (each for each in self.links if each.receiver is event.link)
                link.arrived += [each.message for each in event.deliveries]
            for event in end.take(Disposed):
                self.unsettled -= {
                    (event.session, delivery_id) for delivery_id, _ in event.deliveries
                }
            for kind in (CreditChanged, WindowOpened, Drained, SenderSettled):
                end.take(kind)
            end.take(Attached)
        for link in self.links:
            assert link.arrived == link.sent[: len(link.arrived)]

    def finish(self) -> None:
        for session in (self.session, self.remote_session):
            session.set_incoming_window(HUGE)
        for wire in self.wires:
            wire.is_stalled = False
        self.check()
        while self.wires[0].deliver(1 << 20) | self.wires[1].deliver(1 << 20):
            pass
        self.check()
        for link in self.links:
            assert link.arrived == link.sent
            assert link.sender.credit == link.receiver.credit
        for index in range(LINKS):
            at_sender = self._session_of(index, at_sender=True)
            at_receiver = self._session_of(index, at_sender=False)
            sent = {each for each, item in at_sender.outgoing_unsettled}
            assert sent == {each for each, item in at_receiver.incoming_unsettled}
            assert sent == {each for session, each in self.unsettled if session is at_sender}
