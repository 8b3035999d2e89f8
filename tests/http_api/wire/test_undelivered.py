"""If a reply does not reach the system, its creator is notified once; otherwise never."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.http_api.access.grants import AUTHENTICATED
from holdfast.http_api.access.tokens import Tokens
from holdfast.http_api.routing.call import Call, NoParams
from holdfast.http_api.routing.router import Route, Router
from holdfast.http_api.wire.reply import Reply
from tests.support.clients.certificates import Certificates
from tests.support.clients.raw_http import raw_connection, until
from tests.support.clients.tokens import access_of, bearer, make_token
from tests.support.servers.api_server import Api, running_api

ASK = b"GET /thing HTTP/1.1\r\nHost: x\r\n\r\n"


class Thing:
    """An endpoint that answers after a signal, with `size` bytes."""

    def __init__(self, api: Api, size: int = 10) -> None:
        self.asked = self.unsent = 0
        self.may_answer = asyncio.Event()
        self.held_s = 0.0
        self.before: Callable[[], None] = lambda: None
        self._size = size
        api.server._app._router = Router([Route("GET", "/thing", self.get, access=AUTHENTICATED)])

    async def get(self, call: Call[NoParams]) -> Reply:
        """Wait for the signal and answer."""
        self.asked += 1
        await self.may_answer.wait()
        self.before()
        reply = Reply(200, "text/plain", (b"x" * self._size,), held_s=self.held_s)
        reply.on_undelivered = self.not_sent
        return reply

    def not_sent(self) -> None:
        self.unsent += 1


async def test_a_delivered_reply_is_not_reported(api: Api) -> None:
    thing = Thing(api)
    thing.may_answer.set()
    for _ in range(3):
        assert (await api.get("/thing")).body == b"x" * 10
    assert (thing.asked, thing.unsent) == (3, 0)


class Client:
    """A client whose `send`, `close` and `reset` have taken effect when the call returns."""

    def __init__(self, port: int, tls: ssl.SSLContext | None) -> None:
        self._port = port
        self._tls = tls
        self._socket = socket.socket()

    async def ask(self) -> None:
        """Connect, and send a request."""
        await asyncio.to_thread(self._connect)

    def _connect(self) -> None:
        self._socket.connect(("127.0.0.1", self._port))
        if self._tls is not None:
            self._socket = self._tls.wrap_socket(self._socket, server_hostname="localhost")
        self.send()

    def send(self) -> None:
        """Send a request."""
        self._socket.sendall(ASK)

    async def read(self) -> None:
        """Read the whole reply."""
        read = b""
        while not read.endswith(b"x" * 10):
            read += await asyncio.to_thread(self._socket.recv, 1000)

    def close(self) -> None:
        """Close the connection after all received bytes were read."""
        self._socket.close()

    def reset(self) -> None:
        """Reset the connection."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()


@asynccontextmanager
async def asked(ca: Certificates, is_encrypted: bool) -> AsyncIterator[tuple[Api, Thing, Client]]:
    """Yield an API with a Thing, and a client that has sent a request to it."""
    certificate, key = ca.issue("server")
    files: dict[str, Any] = {"tls_certificate": str(certificate), "tls_key": str(key)}
    async with running_api(**(files if is_encrypted else {})) as api, asyncio.timeout(10):
        client = Client(api.server.port, ca.trusting() if is_encrypted else None)
        thing = Thing(api)
        await client.ask()
        await until(lambda: thing.asked)
        yield api, thing, client
        await until(lambda: not api.context.http.connections.open)


@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize("end", [Client.close, Client.reset])
async def test_a_client_that_closes_before_its_reply_is_reported(
    tmp_path: Path, end: Callable[[Client], None], is_encrypted: bool
) -> None:
    # L17
    """The connection is not checked before the reply is written, and the write may even succeed."""
    async with asked(Certificates(tmp_path), is_encrypted) as (_, thing, client):
        thing.before = partial(end, client)
        thing.may_answer.set()
    assert (thing.asked, thing.unsent) == (1, 1)


@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize("end", [Client.close, Client.reset])
async def test_a_client_that_closes_after_its_reply_is_not_reported(
    tmp_path: Path, end: Callable[[Client], None], is_encrypted: bool
) -> None:
    async with asked(Certificates(tmp_path), is_encrypted) as (_, thing, client):
        thing.may_answer.set()
        await client.read()
        end(client)
    assert (thing.asked, thing.unsent) == (1, 0)


async def test_a_client_that_sends_another_request_had_its_reply(tmp_path: Path) -> None:
    """This holds for every later state of the connection."""
    async with asked(Certificates(tmp_path), False) as (_, thing, client):
        thing.may_answer.set()
        await client.read()
        thing.may_answer.clear()
        client.send()
        await until(lambda: not (thing.asked < 2))
        client.close()
    assert (thing.asked, thing.unsent) == (2, 0)


async def test_a_reply_to_a_closing_connection_is_reported(api: Api) -> None:
    thing = Thing(api)
    thing.may_answer.set()
    async with raw_connection(api.server.port) as one:
        await until(lambda: api.context.http.connections.open)
        (connection,) = api.connections
        thing.before = connection.close
        await one.send(ASK)
        await one.closed()
    assert (thing.asked, thing.unsent) == (1, 1)


async def test_a_reply_to_a_revoked_token_is_not_sent(api: Api) -> None:
    thing = Thing(api)
    thing.held_s = 1.0
    token, text = make_token("all")
    api.context.http.access = access_of(token)
    asked = asyncio.create_task(api.get("/thing", **bearer(text)))
    await until(lambda: thing.asked)
    api.context.http.access.tokens = Tokens()
    thing.may_answer.set()
    assert (await asked).problem == "unauthenticated"
    assert (thing.asked, thing.unsent) == (1, 1)


async def test_a_partly_received_reply_is_reported() -> None:
    async with running_api(transfer_grace_ms=100) as api:
        thing = Thing(api, 16_000_000)
        thing.may_answer.set()
        stuck = socket.create_connection(("127.0.0.1", api.server.port))
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.sendall(ASK)
        async with asyncio.timeout(10):
            while not thing.unsent:
                await asyncio.sleep(0.001)
        stuck.close()
        assert api.context.http.connections.closed_early == {"slow-reader": 1}
        assert (thing.asked, thing.unsent) == (1, 1)


async def test_a_client_that_closes_during_its_reply_is_reported() -> None:
    async with running_api() as api:
        thing = Thing(api, 16_000_000)
        thing.may_answer.set()
        one = socket.create_connection(("127.0.0.1", api.server.port))
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.sendall(ASK)
        async with asyncio.timeout(10):
            await until(lambda: len(api.context.http.connections.unsent))
            assert thing.unsent == 0
            one.close()
            await until(lambda: thing.unsent)
        assert (thing.asked, thing.unsent) == (1, 1)
