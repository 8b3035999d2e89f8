from typing import Any

import pytest

from holdfast.amqp.config import AmqpConfig
from holdfast.amqp.engine.connection import ConnectionSettings
from holdfast.amqp.engine.events import (
    Attached,
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
from holdfast.amqp.engine.link import LinkState
from holdfast.amqp.engine.outgoing_link import OutgoingLink
from holdfast.amqp.wire.conditions import NOT_FOUND, AmqpError, LinkFailed
from holdfast.amqp.wire.frames import cut, frame
from holdfast.amqp.wire.performatives import (
    Accepted,
    Attach,
    Begin,
    Detach,
    Disposition,
    Flow,
    Modified,
    Released,
    Source,
    Target,
    Transfer,
    encode_composite,
)
from tests.amqp.engine.pair import Pair, performatives


class Ready:
    """A pair with a session, and a link on which the client sends and one on which it receives."""

    def __init__(self, **settings: Any) -> None:
        self.pair = Pair(server=ConnectionSettings("server", **settings))
        self.pair.pump()
        self.client_session, self.server_session = self.pair.begun()
        self.out, self.out_remote = self.pair.sender(self.client_session)
        self.into, self.into_remote = self.pair.receiver(self.client_session)
        self.pump()

    def pump(self) -> None:
        self.pair.pump()

    def server_events(self, kind: type) -> list[Any]:
        return self.pair.server.take(kind)

    def client_events(self, kind: type) -> list[Any]:
        return self.pair.client.take(kind)

    def send_raw(self, performative: Any, payload: bytes = b"") -> None:
        """Let the server receive a frame of the client's session."""
        octets = frame(self.client_session.channel, encode_composite(performative) + payload)
        self.pair.server.receive(octets)


def test_deliveries_arrive_in_order_as_far_as_the_credit_allows() -> None:
    ready = Ready()
    assert ready.out.sendable == 0
    ready.out_remote.grant(3)
    ready.pump()
    assert ready.client_events(CreditChanged) == [CreditChanged(ready.out)]
    assert ready.out.sendable == 3
    ids = [ready.out.send(b"message %d" % index) for index in range(3)]
    assert ready.out.sendable == 0
    ready.pump()
    (received,) = ready.server_events(Received)
    assert received.link is ready.out_remote
    assert [each.message for each in received.deliveries] == [
        b"message 0", b"message 1", b"message 2"
    ]  # fmt: skip
    assert [each.id for each in received.deliveries] == ids
    assert ready.out_remote.credit == 0
    assert not any(each.is_settled for each in received.deliveries)


def test_a_range_of_deliveries_is_accepted_at_once() -> None:
    ready = Ready()
    ready.out_remote.grant(10)
    ready.pump()
    for index in range(5):
        ready.out.send(b"", context=index)
    ready.pump()
    ready.server_session.dispose(0, 3, Accepted(), settled=True)
    ready.pump()
    (disposed,) = ready.client_events(Disposed)
    assert [sent.context for _, sent in disposed.deliveries] == [0, 1, 2, 3]
    assert type(disposed.state) is Accepted
    assert disposed.is_settled
    assert len(ready.client_session.outgoing_unsettled) == 1
    assert len(ready.server_session.incoming_unsettled) == 1


def test_a_receiver_that_settles_second_waits_for_the_sender() -> None:
    ready = Ready()
    ready.out_remote.grant(1)
    ready.pump()
    ready.out.send(b"")
    ready.pump()
    ready.server_session.dispose(0, 0, Accepted(), settled=False)
    ready.pump()
    (disposed,) = ready.client_events(Disposed)
    assert not disposed.is_settled
    assert len(ready.client_session.outgoing_unsettled) == 1
    ready.client_session.dispose(0, 0, Accepted(), settled=True, role=False)
    ready.pump()
    (settled,) = ready.server_events(SenderSettled)
    assert [delivery_id for delivery_id, _ in settled.deliveries] == [0]
    assert len(ready.client_session.outgoing_unsettled) == 0
    assert len(ready.server_session.incoming_unsettled) == 0


def test_a_settled_delivery_is_not_remembered() -> None:
    ready = Ready()
    ready.out_remote.grant(1)
    ready.pump()
    ready.out.send(b"", settled=True)
    ready.pump()
    (received,) = ready.server_events(Received)
    assert received.deliveries[0].is_settled
    assert len(ready.client_session.outgoing_unsettled) == 0
    assert len(ready.server_session.incoming_unsettled) == 0


@pytest.mark.parametrize("state", [Released(), Modified(True), None])
def test_every_state_arrives(state: Any) -> None:
    ready = Ready()
    ready.into.grant(1)
    ready.pump()
    ready.into_remote.send(b"m", context="c")
    ready.pump()
    ready.client_session.dispose(0, 0, state, settled=True)
    ready.pump()
    (disposed,) = ready.server_events(Disposed)
    assert type(disposed.state) is type(state)
    assert disposed.deliveries[0][1].context == "c"


def test_final_outcomes_that_arrive_together_are_reported_together() -> None:
    ready = Ready()
    ready.into.grant(6)
    ready.pump()
    for number in range(6):
        ready.into_remote.send(b"m", context=number)
    ready.pump()
    outcomes = [Accepted(), Accepted(), Released(), Accepted()]
    for delivery_id, state in enumerate(outcomes):
        ready.client_session.dispose(delivery_id, delivery_id, state, settled=True)
    for delivery_id in (4, 5):  # not final: one event each
        ready.client_session.dispose(delivery_id, delivery_id, Accepted(), settled=False)
    ready.pump()
    seen = [
        (type(event.state), [delivery.context for _, delivery in event.deliveries])
        for event in ready.server_events(Disposed)
    ]
    assert seen == [
        (Accepted, [0, 1]), (Released, [2]), (Accepted, [3]), (Accepted, [4]), (Accepted, [5]),
    ]  # fmt: skip


def test_a_drain_gives_the_credit_back() -> None:
    ready = Ready()
    ready.into.grant(10, drain=True)
    ready.pump()
    assert ready.server_events(CreditChanged) == [CreditChanged(ready.into_remote)]
    assert ready.into_remote.is_draining
    ready.into_remote.send(b"only one")
    ready.into_remote.drained()
    ready.pump()
    kinds = [type(each).__name__ for each in ready.pair.client.events]
    assert kinds[-2:] == ["Received", "Drained"]
    assert ready.into.credit == 0
    assert not ready.into.is_draining
    ready.into.grant(2)
    ready.pump()
    assert ready.into_remote.sendable == 2


def test_a_drain_without_credit_is_answered() -> None:
    ready = Ready()
    ready.into.grant(0, drain=True)
    ready.pump()
    ready.into_remote.drained()
    ready.pump()
    assert ready.client_events(Drained) == [Drained(ready.into)]


def test_credit_that_is_taken_back_makes_no_delivery_on_its_way_a_violation() -> None:
    ready = Ready()
    ready.out_remote.grant(2)
    ready.pump()
    ready.out_remote.grant(0)
    ready.out.send(b"one")
    ready.out.send(b"two")
    ready.pump()
    assert ready.pair.server.messages() == [b"one", b"two"]
    assert ready.server_events(Detached) == []
    assert ready.out.sendable == 0
    ready.send_raw(Transfer(0, 2, b"t"), b"three")
    (detached,) = ready.server_events(Detached)
    assert detached.error.condition == "amqp:link:transfer-limit-exceeded"


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_message_above_the_limit_detaches_the_link(more: int) -> None:
    ready = Ready()
    ready.out_remote.grant(1)
    ready.out_remote.max_message_bytes = 1_000
    ready.pump()
    ready.out.send(bytes(1_000 + more))
    ready.pump()
    if more > 0:
        (detached,) = ready.client_events(Detached)
        assert detached.error.condition == "amqp:link:message-size-exceeded"
    else:
        assert [len(each) for each in ready.pair.server.messages()] == [1_000 + more]


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_sender_does_not_send_more_than_the_receiver_accepts(more: int) -> None:
    ready = Ready()
    ready.out_remote.grant(1)
    ready.pump()
    assert ready.out.remote is not None
    ready.out.remote = ready.out.remote._replace(max_message_size=10)
    if more > 0:
        with pytest.raises(LinkFailed, match="at most 10 bytes"):
            ready.out.send(bytes(10 + more))
    else:
        ready.out.send(bytes(10 + more))


def test_a_run_ends_where_credit_or_window_end_or_a_message_is_too_large() -> None:
    for credit, window, sizes, limit, sent in [
        (3, 9, [5] * 4, 0, 3),
        (9, 3, [5] * 4, 0, 3),
        (9, 9, [5] * 4, 0, 4),
        (9, 9, [5, 600, 5], 0, 1),
        (9, 9, [600], 0, 0),
        (9, 9, [10, 11, 10], 10, 1),
        (9, 9, [], 0, 0),
    ]:
        ready = Ready(incoming_window=window, max_frame_bytes=512)
        ready.out_remote.grant(credit)
        ready.pump()
        assert ready.out.remote is not None
        ready.out.remote = ready.out.remote._replace(max_message_size=limit)
        messages = [bytes([index]) * size for index, size in enumerate(sizes)]
        ids = ready.out.send_run(messages)
        assert (ids, ready.out.credit) == (list(range(sent)), credit - sent)
        assert len(ready.client_session.outgoing_unsettled) == sent
        ready.pump()
        assert ready.pair.server.messages() == messages[:sent]
        after = ready.out.send_run([b"settled"], settled=True)
        assert after == ([sent] if sent < credit else [])
        assert len(ready.client_session.outgoing_unsettled) == sent


def test_a_large_message_takes_many_frames_and_waits_for_the_window() -> None:
    ready = Ready(incoming_window=4, max_frame_bytes=512)
    other, other_remote = ready.pair.sender(ready.client_session, "other")
    ready.out_remote.grant(2)
    other_remote.grant(1)
    ready.pump()
    message = bytes(range(256)) * 40
    ready.out.send(message)
    assert (ready.out.is_partly_sent, ready.out.sendable) == (True, 0)
    output = ready.pair.client.connection.take_output()
    assert len(list(cut(output, 0, len(output), 512))) == 4
    assert ready.client_session.windows.outgoing_room == 0
    ready.pair.server.receive(output)
    ready.pump()
    assert ready.pair.server.messages() == [message]
    assert len(ready.client_events(WindowOpened)) >= 5
    assert (ready.out.is_partly_sent, ready.out.sendable) == (False, 1)
    other.send(b"small")
    ready.pump()
    assert ready.pair.server.messages() == [b"small"]


def test_a_closed_window_stops_the_peer_and_an_open_one_lets_it_go_on() -> None:
    ready = Ready(incoming_window=2)
    ready.out_remote.grant(10)
    ready.server_session.set_incoming_window(0)
    ready.pump()
    assert ready.out.sendable == 0
    ready.server_session.set_incoming_window(2)
    ready.pump()
    assert ready.client_events(WindowOpened) == [WindowOpened(ready.client_session)]
    assert ready.out.sendable == 2


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_frame_beyond_the_window_ends_the_session(more: int) -> None:
    ready = Ready(incoming_window=3)
    ready.out_remote.grant(10)
    ready.server_session.set_incoming_window(0)
    for index in range(3 + more):
        ready.send_raw(Transfer(0, index, b"t"))
    ended = ready.server_events(Ended)
    assert [each.error.condition for each in ended] == (
        ["amqp:session:window-violation"] if more > 0 else []
    )


def test_a_window_of_400_frames_allows_the_400th_frame_and_is_announced_after_each_200() -> None:
    # A46
    window = AmqpConfig().incoming_window
    assert window == 400
    ready = Ready(incoming_window=window)
    ready.out_remote.grant(2_000)
    ready.pump()
    for _ in range(399):
        ready.out.send(b"x")
    assert ready.out.sendable == 1
    ready.out.send(b"x")
    assert (ready.out.sendable, ready.out.credit) == (0, 1_600)

    ready = Ready(incoming_window=window)
    ready.out_remote.grant(2_000)
    ready.server_session.set_incoming_window(0)  # so the server does not announce it again
    for index in range(400):
        ready.send_raw(Transfer(0, index, b"t"))
    assert ready.server_events(Ended) == []
    ready.send_raw(Transfer(0, 400, b"t"))
    (ended,) = ready.server_events(Ended)
    assert ended.error.condition == "amqp:session:window-violation"
    assert len(ready.pair.server.messages()) == 400

    ready = Ready(incoming_window=window)
    ready.out_remote.grant(2_000)
    ready.pair.server.connection.take_output()
    seen = []
    for index in range(1_000):
        ready.send_raw(Transfer(0, index, b"t"))
        flows = performatives(ready.pair.server.connection.take_output())
        seen += [(index + 1, each.next_incoming_id, each.incoming_window) for each in flows]
    assert seen == [(count, count, 400) for count in (200, 400, 600, 800, 1_000)]


def test_an_aborted_delivery_is_forgotten() -> None:
    ready = Ready()
    ready.out_remote.grant(2)
    ready.send_raw(Transfer(0, 0, b"t", more=True), b"abc")
    assert ready.pair.server.connection.unfinished_bytes == 3
    ready.send_raw(Transfer(0, aborted=True))
    assert ready.pair.server.connection.unfinished_bytes == 0
    # It has used up credit, which the owner may renew.
    assert ready.server_events(Received) == [Received(ready.out_remote, [])]
    assert ready.out_remote.credit == 1
    ready.send_raw(Transfer(0, 1, b"u"), b"whole")
    assert ready.pair.server.messages() == [b"whole"]
    assert len(ready.server_session.incoming_unsettled) == 1


@pytest.mark.parametrize("end", ["detach", "end"])
def test_a_link_that_ends_frees_its_unfinished_and_unsettled_deliveries(end: str) -> None:
    ready = Ready()
    ready.out_remote.grant(2)
    ready.into.grant(2)
    ready.pump()
    ready.into_remote.send(b"unsettled")
    ready.send_raw(Transfer(0, 0, b"t"), b"unsettled")
    ready.send_raw(Transfer(0, 1, b"u", more=True), b"abc")
    ready.pump()
    for link in (ready.out, ready.into):
        link.detach()
    if end == "end":
        ready.client_session.end()
    ready.pump()
    assert ready.pair.server.connection.unfinished_bytes == 0
    if end == "detach":
        for each in (ready.client_session, ready.server_session):
            assert (len(each.incoming_unsettled), len(each.outgoing_unsettled)) == (0, 0)


def test_a_link_that_is_detached_before_the_answer_to_its_attach_is_answered_with_null() -> None:
    ready = Ready()
    ready.pair.server.on_event = lambda event: type(event) is Attached
    _, link = ready.pair.sender(ready.client_session, "short")
    assert link.remote
    ready.send_raw(Detach(link.remote.handle, closed=True))
    ready.pump()
    (attached,) = ready.client_events(Attached)[-1:]
    assert (attached.link.name, attached.link.remote.target) == ("short", None)
    assert [each.link.name for each in ready.client_events(Detached)] == ["short"]
    assert link.state is LinkState.DETACHED


def test_handles_and_channels_are_used_again() -> None:
    ready = Ready()
    ready.out.detach()
    ready.pump()
    again, _ = ready.pair.sender(ready.client_session, "again")
    further, _ = ready.pair.sender(ready.client_session, "further")
    assert (again.handle, further.handle) == (0, 2)
    ready.client_session.end()
    ready.pump()
    assert [each.channel for each in ready.pair.begun()] == [0, 0]


def test_a_later_frame_may_settle_its_delivery() -> None:
    ready = Ready()
    ready.out_remote.grant(1)
    ready.send_raw(Transfer(0, 0, b"t", 0, more=True), b"abc")
    ready.send_raw(Transfer(0, settled=True), b"def")
    ((delivery,),) = [each.deliveries for each in ready.server_events(Received)]
    assert (delivery.message, delivery.is_settled, delivery.tag) == (b"abcdef", True, b"t")


@pytest.mark.parametrize(
    ("frames", "condition"),
    [
        ([Transfer(9, 0, b"t")], "amqp:session:unattached-handle"),
        ([Transfer(1, 0, b"t")], "amqp:session:errant-link"),
        ([Transfer(0, None, b"t")], "amqp:invalid-field"),
        ([Transfer(0, 0, None)], "amqp:invalid-field"),
        ([Transfer(0, 0, bytes(33))], "amqp:invalid-field"),
        ([Transfer(0, 0, b"t", more=True), Transfer(0, 1)], "amqp:invalid-field"),
        ([Transfer(0, 0, b"t", more=True), Transfer(0, None, b"u")], "amqp:invalid-field"),
        ([Flow(0, 10, 0, 10, 9)], "amqp:session:unattached-handle"),
        ([Detach(9)], "amqp:session:unattached-handle"),
        ([Attach("x", 0, False)], "amqp:session:handle-in-use"),
    ],
)
def test_frames_that_are_not_allowed_end_the_session(frames: list[Any], condition: str) -> None:
    ready = Ready()
    ready.out_remote.grant(5)
    for each in frames:
        ready.send_raw(each)
    (ended,) = ready.server_events(Ended)
    assert ended.error.condition == condition
    ready.pump()
    assert [each.error.condition for each in ready.client_events(Ended)] == [condition]
    assert not ready.pair.server.connection.is_closed


def test_a_handle_above_handle_max_closes_the_connection() -> None:
    ready = Ready(handle_max=5)
    ready.send_raw(Attach("at", 5, False))
    assert len(ready.server_events(Attached)) == 1
    ready.send_raw(Attach("above", 6, False))
    (closed,) = ready.pair.closed()[1]
    assert closed.error
    assert closed.error.condition == "amqp:connection:framing-error"


def test_a_refused_link_is_attached_without_a_terminus_and_detached() -> None:
    ready = Ready()
    ready.pair.server.on_event = lambda event: type(event) is Attached and _refuse(event.link)
    for attach in (ready.pair.sender, ready.pair.receiver):
        link, _ = attach(ready.client_session, "refused")
        ready.pump()
        assert link.remote is not None
        assert (
            link.remote.target if isinstance(link, OutgoingLink) else link.remote.source
        ) is None
        (detached,) = ready.client_events(Detached)
        assert (detached.is_closed, detached.error.condition) == (True, NOT_FOUND)
        assert link.state is LinkState.DETACHED


def _refuse(link: Any) -> bool:
    link.refuse(AmqpError(NOT_FOUND, "there is no such topic"))
    return True


def test_a_detached_link_frees_its_handle_and_its_name() -> None:
    ready = Ready()
    ready.out.detach()
    ready.pump()
    (detached,) = ready.server_events(Detached)
    assert detached.link is ready.out_remote
    assert ready.out.state is LinkState.DETACHED
    again, _ = ready.pair.sender(ready.client_session)
    assert again.handle == ready.out.handle
    assert again.is_attached


def test_transfers_on_their_way_to_a_link_that_is_detached_are_ignored() -> None:
    ready = Ready()
    ready.out_remote.grant(1)
    ready.pump()
    ready.out_remote.detach(AmqpError(NOT_FOUND))
    ready.out.send(b"late")
    ready.pump()
    assert ready.pair.server.messages() == []
    assert ready.server_events(Ended) == []


def test_an_echo_is_answered_with_the_state_of_the_link() -> None:
    ready = Ready()
    ready.into_remote.available = 17
    ready.into.grant(2, echo=True)
    ready.pump()
    assert ready.into.available == 17
    assert ready.into.credit == 2


def test_an_echo_of_the_session_is_answered() -> None:
    ready = Ready()
    ready.send_raw(Flow(0, 10, 0, 10, echo=True))
    output = ready.pair.server.connection.take_output()
    assert len(output) > 0


def test_a_flow_before_the_attach_counts_from_the_initial_delivery_count() -> None:
    link: OutgoingLink
    ready = Ready()
    link = ready.into_remote
    ready.send_raw(Flow(0, 10, 0, 10, ready.into.handle, None, 7))
    assert link.credit == 7


def test_the_answer_to_a_link_that_waits_is_found_by_its_name_and_role() -> None:
    ready = Ready()
    links = [
        make(
            "same",
            lambda handle, role=role: Attach(  # type: ignore[misc]
                "same", handle, role, source=Source("a"), target=Target("b"),
                initial_delivery_count=None if role else 0,
            ),
        )
        for make, role in (
            (ready.client_session.sender, False), (ready.client_session.receiver, True),
        )
    ]  # fmt: skip
    ready.pump()
    assert all(link.is_attached for link in links)
    assert isinstance(links[0], OutgoingLink)
    assert isinstance(links[1], IncomingLink)


@pytest.mark.parametrize("start", [0, 10, 2**32 - 3, 2**32 - 1])
def test_a_sender_may_begin_its_count_anywhere(start: int) -> None:
    # A23, A24: from 2**32 - 3 on, the count of ten deliveries wraps
    ready = Ready()
    end = (start + 10) % 2**32
    ready.send_raw(
        Attach("c", 7, False, source=Source(), target=Target(), initial_delivery_count=start)
    )
    (attached,) = ready.server_events(Attached)
    link: IncomingLink = attached.link

    def granted(credit: int) -> list[tuple[int, int]]:
        ready.pair.server.connection.take_output()
        link.grant(credit)
        flows = performatives(ready.pair.server.connection.take_output())
        return [(each.delivery_count, each.link_credit) for each in flows]

    assert granted(10) == [(start, 10)]
    ids = [(start + index) % 2**32 for index in range(10)]
    for index, delivery_id in enumerate(ids):
        assert link.credit == 10 - index
        ready.send_raw(Transfer(7, delivery_id, b"t"), b"%d" % index)
    arrived = [each for event in ready.server_events(Received) for each in event.deliveries]
    assert [each.id for each in arrived] == ids
    assert [each.message for each in arrived] == [b"%d" % index for index in range(10)]
    assert link.credit == 0
    ready.server_session.dispose(ids[0], ids[-1], Accepted(), settled=True)
    assert len(ready.server_session.incoming_unsettled) == 0
    # A drain of 5 advances the count by 5.
    link.grant(5, drain=True)
    ready.send_raw(Flow(0, 10, end, 10, 7, (end + 5) % 2**32, 0))
    assert ready.server_events(Drained) == [Drained(link)]
    assert granted(1) == [((end + 5) % 2**32, 1)]
    ready.send_raw(Transfer(7, end, b"t"), b"last")
    assert ready.pair.server.messages() == [b"last"]
    ready.send_raw(Transfer(7, end + 1, b"t"))
    (detached,) = ready.server_events(Detached)
    assert detached.error.condition == "amqp:link:transfer-limit-exceeded"


@pytest.mark.parametrize("start", [0, 10, 2**32 - 3, 2**32 - 1])
def test_the_count_of_a_sending_link_wraps(start: int) -> None:
    # A23
    ready = Ready()
    ready.into.grant(start, drain=True)
    ready.pump()
    ready.into_remote.drained()  # which advances the count to `start`
    ready.pump()
    ready.into.grant(10)
    ready.pump()
    for left in range(10, 0, -1):
        assert ready.into_remote.credit == ready.into.credit == left
        ready.into_remote.send(b"%d" % left)
        ready.pump()
    assert ready.into_remote.sendable == ready.into.credit == 0
    assert ready.pair.client.messages() == [b"%d" % left for left in range(10, 0, -1)]
    ready.pair.client.sent, ready.pair.server.sent = [], []
    ready.into.grant(7, echo=True)
    ready.pump()
    for (flow,) in (ready.pair.client.sent, ready.pair.server.sent):
        assert (flow.delivery_count, flow.link_credit) == ((start + 10) % 2**32, 7)


@pytest.mark.parametrize("at_server", [True, False])
def test_a_flow_that_crosses_a_transfer_leaves_both_ends_with_the_same_credit(
    at_server: bool,
) -> None:
    # A21: at delivery-count 20 both ends have the credit 3. The flow with the credit 6 crosses one
    # transfer. A sender that ignored the delivery-count would have 6.
    ready = Ready()
    sender, receiver = (
        (ready.out, ready.out_remote) if at_server else (ready.into_remote, ready.into)
    )
    end = ready.pair.server if at_server else ready.pair.client
    receiver.grant(23)
    ready.pump()
    for _ in range(20):
        sender.send(b"before")
    ready.pump()
    assert (sender.credit, receiver.credit) == (3, 3)
    end.take(Received)

    receiver.grant(6)
    sender.send(b"crossing")
    assert (sender.credit, receiver.credit) == (2, 6)
    end.sent = []
    ready.pump()
    (flow,) = end.sent
    assert (flow.delivery_count, flow.link_credit) == (20, 6)
    assert end.messages() == [b"crossing"]
    assert (sender.credit, receiver.credit) == (5, 5)
    for _ in range(5):
        sender.send(b"after")
    assert sender.sendable == 0
    ready.pump()
    assert end.messages() == [b"after"] * 5
    assert (sender.credit, receiver.credit) == (0, 0)


def test_each_end_changes_only_its_own_part_of_a_links_state() -> None:
    # A42
    ready = Ready()
    ready.out_remote.grant(3)
    ready.into.grant(5)
    ready.into_remote.available = 17
    ready.pump()
    windows = 0, 400, 0, 400
    # A sender may not give itself credit, nor begin a drain.
    ready.send_raw(Flow(*windows, ready.out.handle, 0, 1_000, available=99, drain=True))
    assert (ready.out_remote.credit, ready.out_remote.is_draining) == (3, False)
    assert ready.out_remote.available == 99
    assert ready.server_events(Drained) == []
    # A receiver may not change the available messages, nor the count of what was sent.
    ready.send_raw(Flow(*windows, ready.into.handle, 0, 5, available=99, echo=True))
    (flow,) = performatives(ready.pair.server.connection.take_output())
    assert (flow.delivery_count, flow.link_credit, flow.available) == (0, 5, 17)
    ready.send_raw(Flow(*windows, ready.into.handle, 4, 5, echo=True))
    (flow,) = performatives(ready.pair.server.connection.take_output())
    assert (flow.delivery_count, flow.available, flow.drain) == (0, 17, False)
    # A server that sends may not begin a drain either, nor change the credit.
    octets = encode_composite(
        Flow(*windows, ready.into_remote.handle, 0, 1_000, available=17, drain=True)
    )
    ready.pair.client.receive(frame(ready.server_session.channel, octets))
    assert (ready.into.credit, ready.into.is_draining) == (5, False)
    assert ready.client_events(Drained) == []
    # The credit of the receiver is in force: the fourth message is too much.
    for index in range(4):
        assert ready.server_events(Detached) == []
        ready.send_raw(Transfer(ready.out.handle, index, b"t"), b"%d" % index)
    (detached,) = ready.server_events(Detached)
    assert detached.error.condition == "amqp:link:transfer-limit-exceeded"
    assert ready.pair.server.messages() == [b"0", b"1", b"2"]


def test_a_disposition_of_a_huge_range_costs_what_it_finds() -> None:
    ready = Ready()
    ready.into.grant(5)
    ready.pump()
    for _ in range(5):
        ready.into_remote.send(b"")
    ready.send_raw(Disposition(True, 0, 2**31 - 1, True, Accepted()))
    (disposed,) = ready.server_events(Disposed)
    assert len(disposed.deliveries) == 5
    ready.send_raw(Disposition(True, 5, 0, True, Accepted()))
    ready.send_raw(Disposition(True, 0, None, True, Accepted()))
    assert ready.server_events(Disposed) == []


def test_a_session_may_begin_anywhere_in_its_ids() -> None:
    ready = Ready()
    octets = frame(9, encode_composite(Begin(None, 2**32 - 1, 2**32 - 1, 1)))
    ready.pair.server.receive(octets)
    session = ready.pair.server.connection.sessions[-1]
    assert session.windows.next_incoming_id == 2**32 - 1
