"""A server of AMQP survives any bytes: errors end links, sessions or the connection, no more.

The server answers as the broker does: it accepts links, grants credit, sends what it may and
settles what arrives. The first byte of the input says how many bytes arrive at a time.
"""

from typing import Any

from holdfast.amqp.engine.connection import ConnectionSettings
from holdfast.amqp.engine.events import Attached, CreditChanged, Disposed, Event, Received
from holdfast.amqp.engine.incoming_link import IncomingLink
from holdfast.amqp.engine.outgoing_link import OutgoingLink
from holdfast.amqp.wire.conditions import LinkFailed
from holdfast.amqp.wire.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER, cut, frame
from holdfast.amqp.wire.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    Flow,
    Modified,
    Open,
    SaslInit,
    Source,
    Target,
    Transfer,
    encode_composite,
)
from holdfast.amqp.wire.performatives import End as EndSession
from tests.amqp.engine.pair import End, accept

MAX_FRAME_BYTES = 1024
MESSAGE = b"\x00\x53\x75\xa0\x05hello"


def _frames(*performatives: Any) -> bytes:
    return b"".join(frame(0, encode_composite(each)) for each in performatives)


def seeds() -> list[bytes]:
    """Return exchanges with every performative."""
    sasl = frame(0, encode_composite(SaslInit("PLAIN", b"\x00a\x00b", None)), SASL_FRAME)
    opened = AMQP_HEADER + _frames(Open("c", idle_time_out=1000), Begin(None, 0, 100, 100))
    sender = Attach("s", 0, False, source=Source(), target=Target("t"), initial_delivery_count=0)
    receiver = Attach("r", 1, True, source=Source("q", filter={"a": "b"}), target=Target())
    sent = frame(0, encode_composite(Transfer(0, 0, b"t", 0)) + MESSAGE)
    parts = [
        frame(0, encode_composite(Transfer(0, 1, b"u", 0, more=True)) + MESSAGE[:4]),
        frame(0, encode_composite(Transfer(0, more=False)) + MESSAGE[4:]),
        frame(0, encode_composite(Transfer(0, 2, b"v", 0, more=True))),
        frame(0, encode_composite(Transfer(0, aborted=True))),
    ]
    resumed = sender._replace(unsettled={b"t": None, b"u": Accepted()}, incomplete_unsettled=True)
    flow = Flow(0, 100, 0, 100, 1, 0, 5, drain=True, echo=True)
    settled = Disposition(True, 0, 3, settled=True, state=Accepted())
    modified = Disposition(True, 0, 1, state=Modified(True, False, {"x": 1}))
    whole = opened + _frames(sender, receiver) + sent + b"".join(parts) + _frames(flow)
    return [
        b"\x00" + SASL_HEADER + sasl + whole + _frames(settled, modified),
        b"\x07" + whole + _frames(Detach(0, closed=True), Detach(1), EndSession(), Close()),
        b"\x40" + opened + _frames(sender) + sent * 3 + _frames(Disposition(False, 0, 9, True)),
        b"\x00"
        + opened
        + _frames(
            resumed,
            *(Transfer(0, at, b"t", 0, at == 1, state=Accepted(), resume=True) for at in range(3)),
        ),
    ]


def check(data: bytes) -> None:
    """Raise for any behaviour that a server must not show."""
    if not data:
        return
    settings = ConnectionSettings(
        "server",
        MAX_FRAME_BYTES,
        channel_max=9,
        handle_max=9,
        incoming_window=8,
        requires_sasl=data[1 : 1 + len(SASL_HEADER)] == SASL_HEADER,
    )
    server = End(settings, is_server=True)
    server.on_event = lambda event: _serve(server, event)
    step = data[0] or len(data)
    for start in range(1, len(data), step):
        server.receive(data[start : start + step])
        connection = server.connection
        _check_output(connection.take_output())
        assert 0 <= connection.unfinished_bytes <= len(data)
        assert connection.waiting_bytes >= 0
        if connection.is_closed:
            break
    for error in server.connection.fail(LinkFailed("amqp:internal-error", "the end")):
        assert error


def _serve(server: End, event: Event) -> bool:
    """Act as the broker does; return whether the event is handled."""
    if isinstance(event, Attached) and not event.is_answer:
        accept(event.link)
        if isinstance(event.link, IncomingLink):
            event.link.grant(4)
        else:
            _send(event.link)
        return True
    if isinstance(event, Received):
        if event.deliveries and event.link.is_attached:
            event.link.grant(4)
    elif isinstance(event, CreditChanged):
        _send(event.link)
        if event.link.is_draining and event.link.is_attached and not event.link.is_partly_sent:
            event.link.drained()
    elif isinstance(event, Disposed) and not event.is_settled:
        first, last = event.deliveries[0][0], event.deliveries[-1][0]
        event.session.dispose(first, last, event.state, settled=True, role=False)
    return False


def _send(link: Any) -> None:
    assert isinstance(link, OutgoingLink)
    for _ in range(min(link.sendable, 3)):
        if not link.sendable:
            return
        try:
            link.send(MESSAGE * 100)
        except LinkFailed as error:
            link.detach(error)
            return


def _check_output(output: bytes) -> None:
    """Raise if the output is not headers and whole frames."""
    for header in (SASL_HEADER, AMQP_HEADER):
        output = output.removeprefix(header) if output.startswith(header) else output
    if AMQP_HEADER in output:  # the header of AMQP follows the frames of SASL
        before, _, output = output.partition(AMQP_HEADER)
        _check_output(before)
    end = 0
    for each in cut(output, 0, len(output), 1 << 30):
        end = each.end
    assert end == len(output)
