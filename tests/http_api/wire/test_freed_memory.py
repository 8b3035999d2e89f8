"""Requests that end early free their memory at once: undelivered replies and incomplete bodies.

They must do so by reference counts alone. The garbage collector runs rarely, and many closed
connections would fill the memory first. So it is off here, and at the end it must find nothing.
"""

import asyncio
import gc
import socket
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.commitlog.errors import DiskFull, LogPoisoned
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.http_api.wire.connection import Connection
from holdfast.http_api.wire.reply import Bytes, Reply
from tests.support.clients.certificates import Certificates
from tests.support.clients.raw_http import raw_connection, until
from tests.support.event_loop.own_garbage import only_own_garbage
from tests.support.servers.api_server import Api, raising_at_once, running_api

PULL = (
    b"GET /v1/topics/orders/queues/0/messages?offset=0&max_bytes=16000000 HTTP/1.1\r\nHost: x\r\n"
)
BINARY = b"Accept: application/vnd.holdfast.batch\r\n"
HELD = b"GET /v1/topics/orders/queues/1/messages?offset=0&wait_ms=60000 HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: x\r\n"
JSON = b"Content-Type: application/json\r\n"
RESET = b"\x01\0\0\0\0\0\0\0"
ROOM = 1_000_000


@asynccontextmanager
async def api_with(*, large: int = 0, **settings: Any) -> AsyncIterator[Api]:
    """Yield an API with `large` messages of a megabyte in queue 0, and without connections.

    At the end no reference cycles may be left.
    """
    with only_own_garbage():
        async with running_api(send_buffer_bytes=4096, **settings) as api:
            topic, _ = await api.store.topics.create("orders", queues=2)
            for _ in range(large):
                block = encode_batch([b"x" * ROOM], queue_id=0)
                await api.store.publishing.publish(topic, [Batch.decode(block)])
            if api.server.scheme == "http":
                # The objects that the first request creates for all later ones are ignored.
                assert (await api.publish("orders", {"body": "x", "queue": 0})).status == 200
            await api.session.close()
            await clients_left(api)
            gc.collect()
            yield api
            await clients_left(api)
            assert garbage() == []


async def clients_left(api: Api) -> None:
    """Wait until every connection and the tasks that served it have ended."""
    await until(lambda: api.context.http.connections.is_empty)
    stay = {asyncio.current_task()}
    names = {
        "group-floors",
        "hold-scan",
        "event-loop-lag",
        "tls-files",
        "alarms",
        "lmdb-readers",
        "retention",
    }
    await until(lambda: all(each.get_name() in names for each in asyncio.all_tasks() - stay))
    for _ in range(3):
        await asyncio.sleep(0)


def garbage() -> list[str]:
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return list(map(_described, gc.garbage))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def _described(each: object) -> str:
    code = getattr(each, "f_code", None) or getattr(each, "cr_code", None)
    return f"{type(each)} of {code.co_qualname}" if code is not None else f"{each!r:.80}"


def client(api: Api) -> socket.socket:
    """Return a client with a small receive buffer."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.connect(("127.0.0.1", api.server.port))
    return one


async def answer(one: socket.socket) -> bytes:
    """Return the first bytes of the answer to a client."""
    one.setblocking(False)
    return await asyncio.get_running_loop().sock_recv(one, 10_000)


# -- how a connection ends -------------------------------------------------------------------------

Way = Callable[[Connection, socket.socket], object]


def reset(_: Connection, one: socket.socket) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    one.close()


def cancelled(connection: Connection, _: socket.socket) -> None:
    assert connection.task is not None
    connection.task.cancel()


WAYS: dict[str, Way] = {
    "cut off": lambda connection, one: connection.cut_off("unsent-limit"),
    "aborted": lambda connection, one: connection.abort(),
    "cancelled": cancelled,
    "reset": reset,
    "closed": lambda connection, one: one.close(),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    return WAYS[request.param]


async def end(api: Api, way: Way, one: socket.socket) -> None:
    """End the only connection in this way, and wait until it has ended."""
    (connection,) = api.connections
    way(connection, one)
    del connection
    await clients_left(api)
    one.close()


# -- replies ---------------------------------------------------------------------------------------


class Parts(list[Bytes]):
    """The parts of a reply; the test can observe when they are freed."""

    __slots__ = ("__weakref__",)
    __hash__ = object.__hash__  # type: ignore[assignment]


@pytest.fixture
def replies(monkeypatch: pytest.MonkeyPatch) -> "weakref.WeakSet[Parts]":
    """Return the set of replies that are in memory."""
    alive = weakref.WeakSet[Parts]()
    encode = Reply.encode

    def noted(self: Reply, *args: Any, keeps_alive: bool) -> tuple[Sequence[Bytes], int]:
        parts, size = encode(self, *args, keeps_alive=keeps_alive)
        alive.add(marked := Parts(parts))
        return marked, size

    monkeypatch.setattr(Reply, "encode", noted)
    return alive


@pytest.mark.parametrize("turns", [0, 5])
@pytest.mark.parametrize("accept", [BINARY, b""])
async def test_a_reply_that_its_client_does_not_receive(
    replies: "weakref.WeakSet[Parts]", accept: bytes, turns: int, way: Way
) -> None:
    async with api_with(large=4) as api:
        one = client(api)
        one.sendall(PULL + accept + b"\r\n" + HELD)
        await until(lambda: api.context.http.connections.unsent.total_bytes)
        for _ in range(turns):  # before or after the first step of its task
            await asyncio.sleep(0)
        assert len(replies) == 1
        await end(api, way, one)
        assert len(replies) == 0


async def test_a_reply_over_tls_that_its_client_does_not_receive(
    tmp_path: Path, replies: "weakref.WeakSet[Parts]"
) -> None:
    ca = Certificates(tmp_path)
    certificate, key = ca.issue("server")
    tls = {"tls_certificate": str(certificate), "tls_key": str(key)}
    async with (
        api_with(large=4, **tls) as api,
        raw_connection(api.server.port, ca.trusting()) as one,
    ):
        await one.send(PULL + BINARY + b"\r\n")
        await until(lambda: api.context.http.connections.unsent.total_bytes)
        assert len(replies) == 1
        (connection,) = api.connections
        connection.cut_off("unsent-limit")
        del connection
        await clients_left(api)
        assert len(replies) == 0


async def test_a_pull_that_is_held(way: Way) -> None:
    async with api_with() as api:
        one = client(api)
        one.sendall(HELD + HELD)
        await api.held(1)
        await end(api, way, one)
        assert api.hold.stats().held == 0


# -- bodies ----------------------------------------------------------------------------------------

#: The start of a body of a megabyte, with a length and in chunks.
HEADS = [b"Content-Length: 1000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\nf4240\r\n"]


@pytest.mark.parametrize("head", HEADS)
async def test_a_body_that_stays_incomplete(head: bytes, way: Way) -> None:
    async with api_with() as api:
        one = client(api)
        one.sendall(POST + head + b"x" * 1000)
        await until(lambda: api.context.http.connections.arriving.total_bytes)
        await end(api, way, one)


@pytest.mark.parametrize("head", HEADS)
async def test_a_body_that_is_late(head: bytes) -> None:
    async with api_with(body_timeout_ms=20) as api:
        with client(api) as one:
            one.sendall(POST + head + b"x" * 1000)
            assert b" 408 " in await answer(one)


@pytest.mark.parametrize("head", HEADS)
async def test_a_body_that_gives_way(head: bytes) -> None:
    async with api_with(max_arriving_bytes=16_000_000) as api:
        with client(api) as one:
            one.sendall(POST + head + b"x" * 1000)
            await until(lambda: api.context.http.connections.arriving.total_bytes)
            (holders,) = api.context.http.connections.arriving.arriving.values()
            (give_way,) = holders.values()
            give_way()
            del holders, give_way
            assert b" 503 " in await answer(one)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (POST + HEADS[1] + b"x" * ROOM + b"zz", 400),
        (POST + JSON + b"Content-Length: 200000\r\n\r\n{" + b" " * 199_999, 400),
        (POST + JSON + b"Content-Length: 1000\r\n\r\n{" + b" " * 999, 400),
        (POST + b"Content-Encoding: gzip\r\nContent-Length: 1000\r\n\r\n" + b"x" * 1000, 400),
        (POST + BINARY.replace(b"Accept", b"Content-Type") + HEADS[0] + b"x" * ROOM, 400),
        (POST.replace(b"orders", b"%2F") + HEADS[0] + b"x" * ROOM, 400),
    ],
)
async def test_a_body_that_is_refused(request_: bytes, status: int) -> None:
    async with api_with() as api:
        with client(api) as one:
            one.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(one, request_)
            assert b" %d " % status in await answer(one)


async def test_a_publish_that_waits_to_be_acknowledged(way: Way) -> None:
    async with api_with() as api:
        api.publish_gate = asyncio.Event()
        api.publishes.clear()
        one = client(api)
        one.sendall(POST + b"Content-Length: 100000\r\n\r\n" + b"x" * 100_000)
        await until(lambda: api.publishes)
        api.publishes.clear()
        await end(api, way, one)


@pytest.mark.parametrize("error", [DiskFull(4096), LogPoisoned("x"), RuntimeError("our fault")])
async def test_a_publish_that_fails(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The same error object is raised many times, and must not keep references to the requests."""
    async with api_with() as api:
        monkeypatch.setattr(api.store.publishing, "begin", raising_at_once(error))
        for _ in range(3):
            with client(api) as one:
                one.sendall(POST + b"Content-Length: 100000\r\n\r\n" + b"x" * 100_000)
                assert b" 50" in await answer(one)
        assert error.__traceback__ is None
