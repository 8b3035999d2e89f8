"""The user of a WebSocket gets the bytes that the library `websockets` finds, cut in any way."""

import asyncio

from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from holdfast.http_api.config import HttpConfig
from holdfast.http_api.wire.connection_registry import Connections
from holdfast.http_api.wire.request import Peer
from holdfast.http_api.wire.websocket import WebSocketConnection
from tests.fuzz.wire import Wire
from tests.support.clients.web_sockets import Echo, frame


def check(data: bytes) -> None:
    """Raise if the user gets other bytes. The first byte says how many bytes arrive at a time."""
    if data:
        asyncio.run(_check(data[1:], data[0] or len(data)))


async def _check(data: bytes, piece_bytes: int) -> None:
    connections = Connections(HttpConfig())
    connections.limits.enter("client")
    user, wire = Echo(None, Peer("client")), Wire()
    protocol = ServerProtocol(state=State.OPEN, max_size=None)
    socket = WebSocketConnection(protocol, b"", user, connections, Peer("client"), None)
    socket.connection_made(wire)
    user.is_silent = True
    for start in range(0, len(data), piece_bytes):
        if not wire.is_closed:
            socket.data_received(data[start : start + piece_bytes])
    assert user.received == _expected(data)
    socket.connection_lost(None)
    assert user.lost.is_set()
    assert not connections.upgraded
    assert connections.limits.count == connections.arriving.total_bytes == 0


def _expected(data: bytes) -> bytes:
    protocol = ServerProtocol(state=State.OPEN, max_size=None)
    protocol.receive_data(data)
    found = b""
    for each in protocol.events_received():
        assert isinstance(each, Frame)
        if each.opcode is Opcode.TEXT:
            break
        if each.opcode in (Opcode.BINARY, Opcode.CONT):
            found += each.data
    return found


def seeds() -> list[bytes]:
    """Return the frames of some connections."""
    whole = frame(b"one") + frame(b"x" * 300) + frame(b"")
    torn = frame(b"two", fin=False) + frame(b"p", Opcode.PING) + frame(b"three", Opcode.CONT)
    close = frame((1000).to_bytes(2) + b"bye", Opcode.CLOSE)
    large = b"\x82\xff" + (1 << 21).to_bytes(8) + bytes(4)
    return [
        size + each
        for size in (b"\0", b"\x01", b"\x07")
        for each in (
            whole + torn + whole + close + whole,
            whole + frame(b"text", Opcode.TEXT) + whole,
            whole + large + whole,
            torn + torn + b"\x82\x01x",
        )
    ]
