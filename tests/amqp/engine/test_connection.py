from typing import Any

import pytest

from holdfast.amqp.engine.connection import Connection, ConnectionSettings
from holdfast.amqp.engine.events import (
    Attached,
    Begun,
    Closed,
    Ended,
    Event,
    Opened,
    SaslChallenged,
    SaslEnded,
    SaslResponded,
    SaslStarted,
)
from holdfast.amqp.wire.conditions import NOT_FOUND, AmqpError
from holdfast.amqp.wire.frames import (
    AMQP_HEADER,
    EMPTY_FRAME,
    SASL_FRAME,
    SASL_HEADER,
    TLS_HEADER,
    frame,
)
from holdfast.amqp.wire.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    End,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
    encode_composite,
)
from tests.amqp.engine.pair import Pair, accept, performatives


def server(**settings: Any) -> Connection:
    """Return a server that waits for the header of AMQP or SASL."""
    return Connection(ConnectionSettings("server", requires_sasl=False, **settings), is_server=True)


def opened(**settings: Any) -> Connection:
    """Return a server whose client has opened the connection."""
    connection = server(**settings)
    assert receive(connection, AMQP_HEADER, Open("client"))
    connection.open()
    connection.take_output()
    return connection


def receive(connection: Connection, *parts: Any, channel: int = 0) -> list[Event]:
    """Pass bytes and performatives to a connection; return its events."""
    data = b"".join(
        part if isinstance(part, bytes) else frame(channel, encode_composite(part))
        for part in parts
    )
    return list(connection.receive_data(data))


def test_a_connection_opens_and_closes() -> None:
    pair = Pair()
    pair.pump()
    assert pair.client.take(SaslEnded) == [SaslEnded(0)]
    assert [each.open.container_id for each in pair.client.take(Opened)] == ["server"]
    assert [each.open.container_id for each in pair.server.take(Opened)] == ["client"]
    pair.client.connection.close(AmqpError(NOT_FOUND, "no more"))
    pair.pump()
    client, server = pair.closed()
    assert [each.error and each.error.condition for each in server] == [NOT_FOUND]
    assert client == [Closed(None)]
    assert pair.client.connection.is_closed
    assert pair.server.connection.is_closed


@pytest.mark.parametrize("step", [1, 2, 3, 7, 8, 9, 64])
def test_bytes_may_arrive_in_any_pieces(step: int) -> None:
    pair = Pair()
    pair.pump(step=step)
    session = pair.client.connection.begin()
    pair.pump(step=step)
    assert session.state.value == "mapped"
    assert len(pair.server.take(Begun)) == 1


def test_a_server_names_the_bytes_of_its_handshake() -> None:
    connection = Connection(ConnectionSettings("server"), is_server=True)
    connection.offer_mechanisms(("PLAIN", "EXTERNAL"))
    assert receive(connection, SASL_HEADER) == []
    output = connection.take_output()
    assert output[:8] == SASL_HEADER
    assert performatives(output[8:]) == [SaslMechanisms(("PLAIN", "EXTERNAL"))]


def test_what_a_client_sends_before_the_outcome_waits_for_it() -> None:
    connection = Connection(ConnectionSettings("server"), is_server=True)
    init = frame(0, encode_composite(SaslInit("PLAIN", b"\0u\0p", "host")), SASL_FRAME)
    events = receive(connection, SASL_HEADER, init, AMQP_HEADER, Open("client"))
    assert events == [SaslStarted("PLAIN", b"\0u\0p", "host")]
    connection.sasl_outcome(0)
    assert [type(each) for each in receive(connection, b"")] == [Opened]


def test_wrong_credentials_end_the_connection() -> None:
    pair = Pair()
    pair.server.on_event = lambda event: type(event) is SaslStarted and _refuse(pair)
    pair.pump()
    assert pair.client.take(SaslEnded) == [SaslEnded(1)]
    assert pair.client.connection.is_closed
    assert pair.server.connection.is_closed
    assert pair.server.take(Opened) == []


def _refuse(pair: Pair) -> bool:
    pair.server.connection.sasl_outcome(1)
    return True


def test_a_challenge_is_answered() -> None:
    pair = Pair()

    def challenge(event: Event) -> bool:
        if type(event) is SaslStarted:
            pair.server.connection.sasl_challenge(b"who?")
        elif type(event) is SaslResponded:
            pair.server.connection.sasl_outcome(0 if event.response == b"me" else 1)
        return type(event) is SaslStarted

    def respond(event: Event) -> bool:
        if type(event) is SaslChallenged and event.challenge == b"who?":
            pair.client.connection.sasl_response(b"me")
        return False

    pair.server.on_event, pair.client.on_event = challenge, respond
    pair.pump()
    assert pair.client.take(SaslEnded) == [SaslEnded(0)]
    assert len(pair.client.take(Opened)) == 1


@pytest.mark.parametrize(
    "header", [b"AMQP\x00\x00\x09\x01", TLS_HEADER, b"GET / HT", b"AMQP\x00\x01\x00\x01", b"X"]
)
def test_another_protocol_is_answered_with_ours_and_closed(header: bytes) -> None:
    connection = Connection(ConnectionSettings("server"), is_server=True)
    (event,) = receive(connection, header)
    assert type(event) is Closed
    assert connection.take_output() == SASL_HEADER
    assert connection.is_closed


def test_without_sasl_an_amqp_header_is_refused_where_sasl_is_required() -> None:
    connection = Connection(ConnectionSettings("server"), is_server=True)
    assert type(receive(connection, AMQP_HEADER)[0]) is Closed
    connection = server()
    assert receive(connection, AMQP_HEADER) == []
    assert connection.take_output() == AMQP_HEADER


def test_open_begin_attach_and_flow_may_arrive_at_once() -> None:
    connection = server()
    seen = []
    data = AMQP_HEADER + b"".join(
        frame(5, encode_composite(each)) if type(each) is not Open else
        frame(0, encode_composite(each))
        for each in (
            Open("client"),
            Begin(None, 0, 100, 100),
            Attach("in", 3, True, source=Source("q"), target=Target()),
            Flow(None, 100, 0, 100, 3, 0, 10, echo=True),
            Detach(3, True),
            End(),
            Close(),
        )
    )  # fmt: skip
    for event in connection.receive_data(data):
        seen.append(type(event).__name__)
        if type(event) is Opened:
            connection.open()
        elif type(event) is Begun:
            connection.answer_begin(event.session)
        elif type(event) is Attached:
            accept(event.link)
    assert seen == [
        "Opened", "Begun", "Attached", "CreditChanged", "Detached", "Ended", "Closed"
    ]  # fmt: skip
    sent = performatives(connection.take_output()[8:])
    assert [type(each).__name__ for each in sent] == [
        "Open", "Begin", "Attach", "Flow", "Detach", "End", "Close"
    ]  # fmt: skip
    assert sent[1].remote_channel == 5


@pytest.mark.parametrize(
    ("parts", "condition"),
    [
        ((Begin(None, 0, 1, 1),), "amqp:illegal-state"),
        ((Open("c", idle_time_out=99),), "amqp:not-allowed"),
        ((Open("c", max_frame_size=511),), "amqp:not-allowed"),
        ((Open("c"), Open("c")), "amqp:illegal-state"),
        ((Open("c"), End()), "amqp:not-allowed"),
        ((Open("c"), Transfer(0, 0, b"t")), "amqp:not-allowed"),
        ((Open("c"), Begin(None, 0, 1, 1), Begin(None, 0, 1, 1)), "amqp:illegal-state"),
        ((Open("c"), Begin(7, 0, 1, 1)), "amqp:not-allowed"),
        ((Open("c"), SaslOutcome(0)), "amqp:not-allowed"),
        ((Open("c"), bytes.fromhex("0000000c02010000") + b"abcd"), "amqp:connection:framing-error"),
        ((Open("c"), bytes.fromhex("7fffffff02000000")), "amqp:connection:framing-error"),
        ((Open("c"), frame(0, b"\xff")), "amqp:decode-error"),
        ((Open("c"), frame(0, encode_composite(Close()) + b"x")), "amqp:decode-error"),
    ],
)
def test_frames_that_are_not_allowed_close_the_connection(parts: Any, condition: str) -> None:
    connection = server()
    events = receive(connection, AMQP_HEADER, *parts)
    last = events[-1]
    assert isinstance(last, Closed)
    assert isinstance(last.error, AmqpError)
    assert last.is_local
    assert last.error.condition == condition
    close = performatives(connection.take_output()[8:])[-1]
    assert close.error.condition == condition
    assert receive(connection, Close()) in ([], [Closed(None)])


@pytest.mark.parametrize("timeout", [100, 101, 0])
def test_an_idle_timeout_that_is_long_enough_is_kept(timeout: int) -> None:
    connection = server()
    receive(connection, AMQP_HEADER, Open("c", idle_time_out=timeout))
    assert connection.keepalive_ms == (timeout // 2 or None)


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_channel_above_channel_max_closes_the_connection(more: int) -> None:
    connection = opened(channel_max=9)
    events = receive(connection, Begin(None, 0, 1, 1), channel=9 + more)
    assert type(events[0]) is (Closed if more > 0 else Begun)


def test_only_an_empty_frame_between_frames_is_a_heartbeat() -> None:
    connection = server()
    assert not connection.is_heartbeat(EMPTY_FRAME)
    receive(connection, AMQP_HEADER)
    assert not connection.is_heartbeat(EMPTY_FRAME)  # the first frame must be open
    connection = opened()
    assert connection.is_heartbeat(EMPTY_FRAME)
    for data in (b"", EMPTY_FRAME[:-1], EMPTY_FRAME * 2, frame(1, b""), frame(0, b"x")):
        assert not connection.is_heartbeat(data)
    receive(connection, EMPTY_FRAME[:3])
    assert not connection.is_heartbeat(EMPTY_FRAME)
    assert receive(connection, EMPTY_FRAME[3:]) == []
    assert connection.is_heartbeat(EMPTY_FRAME)
    connection.close()
    assert not connection.is_heartbeat(EMPTY_FRAME)


def test_empty_frames_are_ignored() -> None:
    connection = opened()
    assert receive(connection, EMPTY_FRAME, EMPTY_FRAME) == []
    connection.send_empty_frame()
    assert connection.take_output() == EMPTY_FRAME


def test_after_its_close_a_connection_ignores_everything_up_to_the_peers() -> None:
    connection = opened()
    connection.close()
    assert receive(connection, Begin(None, 0, 1, 1)) == []
    assert receive(connection, Close()) == [Closed(None)]
    assert connection.is_closed


def test_a_session_ends_alone() -> None:
    pair = Pair()
    pair.pump()
    first, remote_first = pair.begun()
    second, remote_second = pair.begun()
    first.end()
    pair.pump()
    assert [each.session for each in pair.server.take(Ended)] == [remote_first]
    assert pair.client.connection.sessions == [second]
    assert pair.server.connection.sessions == [remote_second]
    third, _ = pair.begun()
    assert third.channel == first.channel


def test_at_most_the_given_number_of_frames_is_processed_together() -> None:
    connection = opened()
    data = b"".join(frame(at, encode_composite(Begin(None, 0, 9, 9))) for at in range(5))
    events = list(connection.receive_data(data + data[:4], 2))
    assert (len(events), connection.has_backlog) == (2, True)
    events = list(connection.receive_data(b"", 2))
    assert (len(events), connection.has_backlog) == (2, True)
    events = list(connection.receive_data(b"", 2))
    assert (len(events), connection.has_backlog) == (1, False)
    assert connection.unfinished_bytes == 4
