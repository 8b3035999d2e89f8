"""WebSocket clients that send any bytes, and the protocol that the tests serve over WebSockets."""

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from websockets.frames import Frame, Opcode

from holdfast.http_api.access.grants import Principal
from holdfast.http_api.wire.request import Peer
from tests.support.clients.raw_http import RawConnection, raw_connection
from tests.support.servers.api_server import Api, running_api

_HEADERS = {
    "Host": "127.0.0.1",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": "amqp",
}


class Echo(asyncio.Protocol):
    """Sends all bytes back, unless it is silent. It stands for AMQP."""

    def __init__(self, principal: Principal | None, peer: Peer) -> None:
        self.principal = principal
        self.peer = peer
        self.received = b""
        self.is_silent = False
        self.is_paused = False
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.received += data
        if not self.is_silent:
            self.transport.write(data)

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lost.set()


@asynccontextmanager
async def serving_websockets(**settings: Any) -> AsyncIterator[tuple[Api, list[Echo]]]:
    """Serve the API with WebSockets. The list has the protocol of each WebSocket."""
    served: list[Echo] = []

    def make(principal: Principal | None, peer: Peer) -> Echo:
        served.append(Echo(principal, peer))
        return served[-1]

    async with running_api(**settings) as api:
        api.context.http.amqp = make
        yield api, served


def handshake(
    path: str = "/amqp", *, line: str = "GET {} HTTP/1.1", **headers: str | None
) -> bytes:
    """Return the request that opens a WebSocket. `Sec_WebSocket_Key=None` leaves a header out."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    fields = {name: value for name, value in {**_HEADERS, **given}.items() if value is not None}
    lines = [line.format(path), *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode()


class RawWebSocket:
    """A client that sends frames, whole or in parts, and reads the frames of the server."""

    def __init__(self, connection: RawConnection) -> None:
        self.connection = connection

    async def send(self, data: bytes) -> None:
        await self.connection.send(data)

    def pause_reading(self) -> None:
        cast(asyncio.Transport, self.connection.writer.transport).pause_reading()

    def resume_reading(self) -> None:
        cast(asyncio.Transport, self.connection.writer.transport).resume_reading()

    async def frame(self) -> tuple[int, bytes]:
        """Return the opcode and the payload of the next frame."""
        reader = self.connection.reader
        first, length = await reader.readexactly(2)
        if length == 126:
            (length,) = struct.unpack("!H", await reader.readexactly(2))
        assert length <= 65_535, "a larger frame, or a masked one"
        return first & 15, await reader.readexactly(length)

    async def close_code(self) -> int:
        """Return the code of the close that is the next frame."""
        opcode, payload = await self.frame()
        assert opcode == Opcode.CLOSE, (opcode, payload)
        return int.from_bytes(payload[:2])


def frame(payload: bytes, opcode: int = Opcode.BINARY, *, fin: bool = True) -> bytes:
    """Return a masked frame."""
    return Frame(Opcode(opcode), payload, fin).serialize(mask=True)


@asynccontextmanager
async def raw_websocket(
    port: int, tls: ssl.SSLContext | None = None
) -> AsyncIterator[RawWebSocket]:
    """Open a WebSocket."""
    async with raw_connection(port, tls) as connection:
        await connection.send(handshake())
        status, headers, _ = await connection.answer()
        assert status == 101, headers
        yield RawWebSocket(connection)
