"""The bytes of one connection, over TCP or over WebSocket."""

import asyncio
import ssl
from typing import Protocol
from urllib.parse import urlsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from holdfast.client.errors import ApiError, ConnectionFailed, api_error
from holdfast.client.transport.requests import CONNECT_TIMEOUT_S
from holdfast.client.transport.target import Target

_READ_BYTES = 262_144
_DEFAULT_PORTS = {"amqp": 5672, "amqps": 5671}


class Stream(Protocol):
    """Bytes in both directions. `receive` returns b"" at the end; both raise OSError."""

    async def receive(self) -> bytes: ...
    async def send(self, data: bytes) -> None: ...
    async def close(self) -> None: ...


async def open_stream(target: Target, url: str | None) -> Stream:
    """Connect to the AMQP address `url`; without one, to the HTTP port by WebSocket.

    Raises ConnectionFailed, or ApiError if the broker refuses the WebSocket.
    """
    shown = url or target.url
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            return await (_open_tcp(url, target) if url else _open_web_socket(target))
    except InvalidStatus as error:
        raise _refusal(error) from error
    except (OSError, InvalidHandshake, TimeoutError) as error:
        reason = str(error) or type(error).__name__
        raise ConnectionFailed(shown, reason, maybe_executed=False) from error


async def _open_tcp(url: str, target: Target) -> Stream:
    parts = urlsplit(url)
    port = parts.port or _DEFAULT_PORTS[parts.scheme]
    tls = None
    if parts.scheme == "amqps":
        tls = target.tls or ssl.create_default_context()
    return _Tcp(*await asyncio.open_connection(parts.hostname, port, ssl=tls))


async def _open_web_socket(target: Target) -> Stream:
    headers = {"Authorization": f"Bearer {target.token}"} if target.token else None
    return _WebSocket(
        await connect(
            target.url.replace("http", "ws", 1) + "/amqp",
            subprotocols=[Subprotocol("amqp")],
            additional_headers=headers,
            compression=None,
            max_size=None,  # credit limits what the broker sends
            ssl=target.tls,
            proxy=None,
        )
    )


def check_url(url: str) -> None:
    """Raise ValueError if `url` is no address of AMQP."""
    parts = urlsplit(url)
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or "@" in parts.netloc:
        raise ValueError(f"an address of AMQP looks like amqp://127.0.0.1:5672, not {url!r}")


def _refusal(error: InvalidStatus) -> ApiError:
    status = error.response.status_code
    try:
        return api_error(status, msgspec.json.decode(error.response.body or b"", type=dict))
    except msgspec.DecodeError:
        return ApiError(status, "about:blank", error.response.reason_phrase)


class _Tcp:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> bytes:
        return await self._reader.read(_READ_BYTES)

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        self._writer.close()


class _WebSocket:
    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def receive(self) -> bytes:
        try:
            return await self._socket.recv(decode=False)
        except ConnectionClosed:
            return b""

    async def send(self, data: bytes) -> None:
        try:
            await self._socket.send(data)
        except ConnectionClosed as error:
            raise ConnectionError(str(error)) from error

    async def close(self) -> None:
        await self._socket.close()
