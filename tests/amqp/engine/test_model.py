"""Random acts at both ends of a connection, whose bytes arrive in random pieces.

The model records what was sent on each link. For any order of acts and bytes, these rules hold:
each link delivers its messages complete, in order, and only as many as its credit allowed. Neither
end reports an error of the other end. Once all bytes have arrived, both ends have the same credit
and the same unsettled deliveries.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.amqp.engine.connection import ConnectionSettings
from holdfast.amqp.engine.events import (
    Attached,
    Closed,
    CreditChanged,
    Detached,
    Disposed,
    Ended,
    Received,
)
from holdfast.amqp.engine.incoming_link import IncomingLink
from holdfast.amqp.engine.outgoing_link import OutgoingLink
from holdfast.amqp.wire.performatives import Accepted, Released
from tests.amqp.engine.pair import End, Pair

LINKS = 3


class Wire:
    """The bytes on their way in one direction."""

    def __init__(self, source: End, target: End) -> None:
        self._source, self._target = source, target
        self._bytes = b""

    def deliver(self, size: int) -> bool:
        """Deliver at most `size` bytes; return whether there were any."""
        self._bytes += self._source.connection.take_output()
        part, self._bytes = self._bytes[:size], self._bytes[size:]
        self._target.receive(part)
        return bool(part)


class LinkModel:
    """One link: what was sent and what arrived."""

    def __init__(self, sender: OutgoingLink, receiver: IncomingLink) -> None:
        self.sender, self.receiver = sender, receiver
        self.sent: list[bytes] = []
        self.arrived: list[bytes] = []


class EngineMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pair = pair = Pair(
            *(
                ConnectionSettings(name, incoming_window=5, max_frame_bytes=512)
                for name in ("client", "server")
            )
        )
        pair.pump()
        self.session, self.remote_session = pair.begun()
        self.links = []
        for index in range(LINKS):
            if index % 2:
                into, out = pair.receiver(self.session, f"in {index}")
                self.links.append(LinkModel(out, into))
            else:
                out, into = pair.sender(self.session, f"out {index}")
                self.links.append(LinkModel(out, into))
        for link in self.links:
            link.receiver.grant(20)
        pair.pump()
        self.wires = [Wire(pair.client, pair.server), Wire(pair.server, pair.client)]
        self.unsettled: set[tuple[Any, int]] = set()

    links_ = st.integers(0, LINKS - 1)

    @rule(
        index=links_,
        credit=st.sampled_from([0, 2, 20, 50]),
        drain=st.sampled_from([False, False, True]),
    )
    def grant(self, index: int, credit: int, drain: bool) -> None:
        self.links[index].receiver.grant(credit, drain=drain)

    @rule(
        index=links_,
        sizes=st.lists(st.sampled_from([0, 470, 600, 3_000]), min_size=1, max_size=4),
        settled=st.booleans(),
    )
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

    @rule(index=links_)
    def give_back(self, index: int) -> None:
        link = self.links[index].sender
        if link.is_draining and not link.is_partly_sent:
            link.drained()

    @rule(index=links_, count=st.integers(1, 4), state=st.sampled_from([Accepted(), Released()]))
    def settle(self, index: int, count: int, state: Any) -> None:
        session = self._session_of(index, at_sender=False)
        mine = [
            delivery_id
            for delivery_id, each in session.incoming_unsettled
            if each.link is self.links[index].receiver
        ][:count]
        for delivery_id in mine:
            session.dispose(delivery_id, delivery_id, state, settled=True)

    @rule(at_client=st.booleans(), size=st.sampled_from([0, 3, 5, 5]))
    def change_window(self, at_client: bool, size: int) -> None:
        (self.session if at_client else self.remote_session).set_incoming_window(size)

    @rule(direction=st.integers(0, 1), size=st.sampled_from([7, 60, 600, 100_000, 100_000]))
    def deliver(self, direction: int, size: int) -> None:
        self.wires[direction].deliver(size)

    def _session_of(self, index: int, *, at_sender: bool) -> Any:
        return self.session if (index % 2 == 0) == at_sender else self.remote_session

    @invariant()
    def messages_arrive_whole_and_in_order(self) -> None:
        for end in (self.pair.client, self.pair.server):
            assert not [each for each in end.events if isinstance(each, Closed | Ended | Detached)]
            for event in end.take(Received):
                (link,) = (each for each in self.links if each.receiver is event.link)
                link.arrived += [each.message for each in event.deliveries]
            for event in end.take(Disposed):
                self.unsettled -= {
                    (event.session, delivery_id) for delivery_id, _ in event.deliveries
                }
            end.take(CreditChanged)
            end.take(Attached)
        for link in self.links:
            assert link.arrived == link.sent[: len(link.arrived)]

    def teardown(self) -> None:
        for session in (self.session, self.remote_session):
            session.set_incoming_window(5)
        while self.wires[0].deliver(1 << 20) | self.wires[1].deliver(1 << 20):
            pass
        self.messages_arrive_whole_and_in_order()
        for link in self.links:
            assert link.arrived == link.sent
            assert link.sender.credit == link.receiver.credit
        for index in range(LINKS):
            at_sender = self._session_of(index, at_sender=True)
            at_receiver = self._session_of(index, at_sender=False)
            sent = {each for each, item in at_sender.outgoing_unsettled}
            assert sent == {each for each, item in at_receiver.incoming_unsettled}
            assert sent == {each for session, each in self.unsettled if session is at_sender}


EngineMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=50)
TestEngine = EngineMachine.TestCase
