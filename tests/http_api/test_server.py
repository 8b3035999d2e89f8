"""The server's promises: deadlines, the connection limit, invalid HTTP, and an orderly stop."""

import asyncio
import contextlib
import socket
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from holdfast.http_api.app import make_app
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.server import start_server
from holdfast.http_api.wire.listener import ACCEPTS_A_TURN
from tests.support.clients.raw_http import raw_connection
from tests.support.event_loop.loop_clock import LoopClock
from tests.support.servers.api_server import Api, running_api
from tests.support.storage.stored import until

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: x\r\n"
PULL = b"GET /v1/topics/orders/queues/0/messages?offset=0&wait_ms=60000 HTTP/1.1\r\nHost: x\r\n\r\n"


async def test_a_connection_serves_request_after_request(api: Api) -> None:
    async with raw_connection(api.server.port) as connection:
        await connection.send(HEALTH + HEALTH)
        for _ in range(2):
            status, headers, _ = await connection.answer()
            assert status == 200
            assert "connection" not in headers
            assert headers["date"].endswith("gmt")
        await connection.send(HEALTH)
        assert (await connection.answer())[0] == 200


@pytest.mark.parametrize(
    ("request_head", "connection", "stays"),
    [
        (b"GET /healthz HTTP/1.0\r\n\r\n", "close", False),
        (b"GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "keep-alive", True),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "close", False),
    ],
)
async def test_a_client_may_close_its_connection(
    api: Api, request_head: bytes, connection: str, stays: bool
) -> None:
    async with raw_connection(api.server.port) as one:
        await one.send(request_head)
        status, headers, _ = await one.answer()
        assert (status, headers.get("connection")) == (200, connection)
        if stays:
            await one.send(request_head)
            assert (await one.answer())[0] == 200
        else:
            assert await one.closed() == b""


async def test_one_loop_iteration_accepts_many_connections(api: Api) -> None:
    # M1: a new client waited one loop iteration for each connection before its own
    count, turns = 8 * ACCEPTS_A_TURN, 0
    before = api.server.connection_count
    clients = [socket.create_connection(("127.0.0.1", api.server.port)) for _ in range(count)]
    while api.server.connection_count < before + count:
        turns += 1
        assert turns <= count // 2
        await asyncio.sleep(0)
    for client in clients:
        client.close()


# -- deadlines and the connection limit ----------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHo"])
async def test_a_missing_head_closes_the_connection(sent: bytes) -> None:
    clock = LoopClock()
    async with running_api(header_timeout_ms=1000) as api, raw_connection(api.server.port) as one:
        while not api.server.connection_count:
            await asyncio.sleep(0)
        await one.send(sent)
        await clock.advance(1.0)
        assert await one.closed() == b""


async def test_a_second_head_has_the_same_deadline() -> None:
    clock = LoopClock()
    async with running_api(header_timeout_ms=1000) as api, raw_connection(api.server.port) as one:
        await one.send(HEALTH)
        assert (await one.answer())[0] == 200
        await one.send(b"GET /heal")
        while not api.context.http.connections.header_timeouts:
            await asyncio.sleep(0)
        await clock.advance(1.0)
        assert await one.closed() == b""


@pytest.mark.parametrize(
    ("first", "answers"),
    [
        (HEALTH, 1),
        (HEALTH + HEALTH, 2),
        (POST + b"Content-Length: 2\r\n\r\n{}", 1),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 1),
    ],
)
async def test_a_pipelined_head_has_a_deadline(api: Api, first: bytes, answers: int) -> None:
    heads = api.context.http.connections.header_timeouts
    async with raw_connection(api.server.port) as one:
        for _ in range(2):
            await one.send(first + HEALTH[:9])
            for _ in range(answers):
                await one.answer()
            assert len(heads) == 1
            await one.send(HEALTH[9:])
            assert (await one.answer())[0] == 200
            assert len(heads) == 0


async def test_the_deadline_of_a_head_after_a_held_pull_starts_at_the_reply(api: Api) -> None:
    heads = api.context.http.connections.header_timeouts
    async with raw_connection(api.server.port) as one:
        await one.send(PULL + HEALTH[:9])
        await api.held(1)
        assert len(heads) == 0
        await api.publish("orders", {"body": "x", "queue": 0})
        assert (await one.answer())[0] == 200
        assert len(heads) == 1


async def test_a_head_in_pieces_is_served_and_stops_its_deadline() -> None:
    clock = LoopClock()
    async with (
        running_api(header_timeout_ms=1000, orders=4) as api,
        raw_connection(api.server.port) as one,
    ):
        await one.send(PULL[:20])
        await asyncio.sleep(0)
        await one.send(PULL[20:])
        await api.held(1)
        await clock.advance(1.1)  # the deadline passes, and no pull ends
        assert api.hold.stats().held == 1
        await api.publish("orders", {"body": "x", "queue": 0})
        assert (await one.answer())[0] == 200


async def test_an_idle_connection_is_closed() -> None:
    clock = LoopClock()
    async with (
        running_api(keepalive_timeout_ms=1000) as api,
        raw_connection(api.server.port) as one,
    ):
        await one.send(HEALTH)
        assert (await one.answer())[0] == 200
        await clock.advance(1.0)
        assert await one.closed() == b""


@pytest.mark.parametrize(
    ("settings", "status", "slug"),
    [
        ({"max_connections": 1}, 503, "too-many-connections"),
        ({"max_connections_per_client": 1}, 429, "too-many-client-connections"),
    ],
)
@pytest.mark.parametrize("speaks_first", [False, True])
async def test_a_connection_above_the_limit_gets_a_problem(
    settings: dict[str, Any], status: int, slug: str, speaks_first: bool
) -> None:
    async with running_api(**settings) as api, raw_connection(api.server.port) as first:
        await first.send(HEALTH)
        assert (await first.answer())[0] == 200
        async with raw_connection(api.server.port) as second:
            if speaks_first:
                await second.send(HEALTH)
            found, headers, body = await second.answer()
            assert (found, headers["retry-after"], headers["connection"]) == (status, "1", "close")
            assert f"/problems/{slug}".encode() in body
            assert await second.closed() == b""
        await first.send(HEALTH)
        assert (await first.answer())[0] == 200
        assert api.server.connection_count == 1
        assert api.context.http.connections.refused == {slug: 1}
    await until(lambda: api.context.http.connections.is_empty)


async def test_a_refused_connection_that_sends_gets_the_problem() -> None:
    """If it were closed at once, with unread bytes, the client would see a reset instead."""
    async with running_api(max_connections=1) as api, raw_connection(api.server.port) as first:
        await first.send(HEALTH)
        await first.answer()
        with socket.create_connection(("127.0.0.1", api.server.port)) as second:
            second.setblocking(False)
            async with asyncio.timeout(10):
                await until(lambda: api.context.http.connections.refused)
                for _ in range(20):
                    second.send(HEALTH)
                    await asyncio.sleep(0.001)
            assert second.recv(1000).startswith(b"HTTP/1.1 503 ")


async def test_a_refused_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.http_api.wire.connection_registry.REJECT_TIMEOUT_S", 0.05)
    async with running_api(max_connections=1) as api, raw_connection(api.server.port) as first:
        await first.send(HEALTH)
        await first.answer()
        async with raw_connection(api.server.port) as second:
            await second.send(b"x" * 100_000)
            async with asyncio.timeout(10):
                await second.closed()
                await until(lambda: not api.context.http.connections._rejected)


async def test_the_number_of_refused_connections_with_a_reply_is_limited(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.http_api.wire.connection_registry.MAX_REJECTED", 1)
    async with running_api(max_connections=1) as api, raw_connection(api.server.port) as first:
        await first.send(HEALTH)
        await first.answer()
        async with (
            raw_connection(api.server.port) as refused,
            raw_connection(api.server.port) as closed,
        ):
            assert (await refused.answer())[0] == 503
            assert await closed.closed() == b""
    warnings = [each for each in caplog.records if "max_connections" in each.getMessage()]
    assert len(warnings) == 1


@pytest.mark.parametrize(
    "settings",
    [{"write_timeout_ms": 100, "min_transfer_bytes_per_s": 0}, {"transfer_grace_ms": 100}],
)
async def test_a_client_that_does_not_read_is_cut_off_without_harm_to_others(
    settings: dict[str, Any],
) -> None:
    async with running_api(**settings) as api:
        await api.fill(4_000_000, 4)
        assert (await api.get("/healthz")).status == 200
        stuck = socket.create_connection(("127.0.0.1", api.server.port))
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.sendall(PULL.replace(b"&wait", b"&max_bytes=16000000&max_messages=4&wait"))
        async with asyncio.timeout(10):
            await until(lambda: api.server.connection_count >= 2)
            while api.server.connection_count > 1:
                assert (await api.get("/healthz")).status == 200
        assert api.context.http.connections.closed_early == {"slow-reader": 1}
        assert api.context.http.connections.unsent.total_bytes == 0
        stuck.close()


async def test_replies_that_wait_for_their_clients_share_a_limit() -> None:
    async with running_api(max_unsent_bytes=30_000_000, orders=4) as api:
        for _ in range(4):
            await api.publish("orders", {"body": "x" * 4_000_000, "queue": 0})
        ask = PULL.replace(b"&wait", b"&max_bytes=16000000&max_messages=4&wait")
        stuck = []
        connections = api.context.http.connections
        for waiting in (1, 2, 2, 2):
            one = socket.create_connection(
                ("127.0.0.1", api.server.port), source_address=("127.0.0.2", 0)
            )
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.sendall(ask)
            stuck.append(one)
            async with asyncio.timeout(10):
                while len(stuck) - connections.closed_early["unsent-limit"] > waiting:
                    await asyncio.sleep(0)
                while len(connections.unsent) < waiting:
                    await asyncio.sleep(0)
            assert connections.unsent.total_bytes <= 30_000_000
        # A client at another address that reads is served, and never gives way.
        answer = await api.get("/v1/topics/orders/queues/0/messages?offset=0&max_bytes=16000000")
        size = len(answer.body)
        del answer
        assert size > 12_000_000
        assert connections.closed_early["unsent-limit"] in (2, 3)
        for one in stuck:
            one.close()


async def test_the_send_buffer_of_a_connection_is_limited() -> None:
    async with running_api(send_buffer_bytes=32 * 1024, orders=4) as api:
        await api.publish("orders", {"body": "x" * 1_000_000, "queue": 0})
        with socket.create_connection(("127.0.0.1", api.server.port)) as stuck:
            stuck.sendall(PULL.replace(b"&wait", b"&max_bytes=2000000&wait"))
            await until(lambda: api.context.http.connections.unsent.total_bytes)
            (connection,) = [each for each in api.connections if each.writer.is_paused]
            assert connection.writer.transport is not None
            system = connection.writer.transport.get_extra_info("socket")
            # Linux doubles the requested size.
            assert system.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 64 * 1024


async def test_an_unread_small_reply_counts_and_is_cut_off() -> None:
    async with running_api(send_buffer_bytes=4096, transfer_grace_ms=500) as api:
        await api.fill(60_000)
        with socket.socket() as stuck:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            stuck.connect(("127.0.0.1", api.server.port))
            stuck.sendall(PULL)
            connections = api.context.http.connections
            await until(lambda: connections.unsent.total_bytes)
            await until(lambda: connections.closed_early["slow-reader"])


async def test_a_client_that_reads_slowly_but_reads_gets_its_reply() -> None:
    clock = LoopClock()
    async with running_api(transfer_grace_ms=400, min_transfer_bytes_per_s=1000) as api:
        await api.fill(4_000_000, 4)
        async with raw_connection(api.server.port) as slow:
            await slow.send(PULL.replace(b"&wait", b"&max_bytes=16000000&max_messages=4&wait"))
            head = await slow.reader.readuntil(b"\r\n\r\n")
            left = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            begun = asyncio.get_running_loop().time()
            while left > 1_000_000:
                left -= len(await slow.reader.read(500_000))
                await clock.advance(0.02)
            assert asyncio.get_running_loop().time() > begun + 0.8
            assert api.context.http.connections.closed_early == {}
            await slow.reader.readexactly(left)


# -- invalid requests ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET  / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nx",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n folded: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nBad\x0bName: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nName: a\x00b\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_bytes_that_are_not_http_are_refused(api: Api, sent: bytes) -> None:
    async with raw_connection(api.server.port) as connection:
        await connection.send(sent)
        answer = await connection.closed()
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert b"application/problem+json" in answer
    assert b"/problems/malformed-request" in answer


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nLong: " + b"x" * 10_000 + b"\r\n\r\n",
    ],
)
async def test_a_head_that_is_too_large_is_refused(api: Api, sent: bytes) -> None:
    async with raw_connection(api.server.port) as connection:
        await connection.send(sent)
        answer = await connection.closed()
    assert answer.startswith(b"HTTP/1.1 431 "), answer
    assert b"/problems/header-too-large" in answer


#: The last request of a connection, marked with "Connection: close".
CLOSING = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /" + b"x" * 70_000, 431),
        (CLOSING + b"x" * 70_000, 200),
        (CLOSING + b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + b"x" * 70_000, 200),
        (b"GET /healthz#a HTTP/1.1\r\nHost: x\r\n\r\n" + b"GET /healthz HTTP/1.1\r\n", 400),
    ],
)
async def test_a_client_that_sends_after_its_last_request_gets_the_reply(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, status: int
) -> None:
    """If it were closed at once, with unread bytes, the client would see a reset instead."""
    monkeypatch.setattr("holdfast.http_api.wire.connection.LINGERING_S", 60)
    loop = asyncio.get_running_loop()
    async with running_api() as api, asyncio.timeout(20):
        with socket.create_connection(("127.0.0.1", api.server.port)) as one:
            one.setblocking(False)
            await loop.sock_sendall(one, sent)
            answer = await loop.sock_recv(one, 1)
            for _ in range(20):
                await loop.sock_sendall(one, b"x" * 10_000)
            # The end comes at once, not after the server has read for the whole lingering time.
            while piece := await loop.sock_recv(one, 10_000):
                answer += piece
            assert answer.startswith(b"HTTP/1.1 %d " % status)
            assert answer.count(b"HTTP/1.1 ") == 1
            assert api.server.connection_count == 1
        await until(lambda: not api.server.connection_count)


@pytest.mark.parametrize(("more", "is_closed"), [(999, False), (1000, False), (1001, True)])
@pytest.mark.parametrize(
    ("sent", "status"), [(b"nonsense\r\n\r\n", 400), (CLOSING + b"nonsense\r\n\r\n", 200)]
)
async def test_few_bytes_are_read_after_the_last_request(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, status: int, more: int, is_closed: bool
) -> None:
    monkeypatch.setattr("holdfast.http_api.wire.connection.LINGERING_S", 60)
    monkeypatch.setattr("holdfast.http_api.wire.connection.LINGERING_BYTES", 1000)
    async with running_api() as api, raw_connection(api.server.port) as one:
        await one.send(sent)
        assert (await one.answer())[0] == status
        (connection,) = api.connections
        connection.data_received(b"x" * (more - 500))
        connection.data_received(b"x" * 500)
        assert connection.writer.transport is not None
        assert connection.writer.transport.is_closing() == is_closed


# -- stopping ------------------------------------------------------------------------------


async def test_a_request_under_way_is_answered_before_the_end(api: Api) -> None:
    api.publish_gate = asyncio.Event()
    task = asyncio.create_task(api.publish("orders", {"body": "x"}))
    await until(lambda: api.publishes)
    stopping = asyncio.create_task(api.server.stop())
    await asyncio.sleep(0)
    api.publish_gate.set()
    assert (await task).status == 200
    await stopping
    assert api.server.connection_count == 0
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", api.server.port)


async def test_a_stop_does_not_wait_for_the_idle_and_the_slow() -> None:
    async with running_api(shutdown_timeout_ms=1000, orders=4) as api:
        async with (
            raw_connection(api.server.port) as idle,
            raw_connection(api.server.port) as held,
            raw_connection(api.server.port) as slow,
        ):
            await held.send(PULL)
            await api.held(1)
            await slow.send(
                b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx"
            )
            await until(lambda: api.context.http.connections.arriving.total_bytes)
            async with asyncio.timeout(10):
                await api.server.stop()
            assert (await held.answer())[0] == 503
            assert await idle.closed() == b""
            await slow.closed()
        await api.server.stop()


async def test_a_stop_cuts_off_a_client_that_does_not_read() -> None:
    async with running_api(shutdown_timeout_ms=100, orders=4) as api:
        for _ in range(4):
            await api.publish("orders", {"body": "x" * 4_000_000, "queue": 0})
        with socket.create_connection(("127.0.0.1", api.server.port)) as stuck:
            stuck.sendall(PULL.replace(b"&wait", b"&max_bytes=16000000&wait"))
            async with asyncio.timeout(10):
                await until(lambda: any(each.writer.is_paused for each in api.connections))
                await api.server.stop()
        assert api.server.connection_count == 0


async def test_a_port_in_use_is_an_error_and_leaves_nothing_running(api: Api) -> None:
    tasks = asyncio.all_tasks()
    http = replace(api.context.http, registry=CollectorRegistry())
    with pytest.raises(OSError, match="in use"):
        await start_server(make_app(http), HttpConfig(port=api.server.port))
    assert asyncio.all_tasks() <= tasks


# -- how connections are used --------------------------------------------------------------


async def test_answers_come_in_the_order_of_pipelined_requests(api: Api) -> None:
    """This also holds if the first is held and the second could be answered at once."""
    async with raw_connection(api.server.port) as one:
        await one.send(PULL + HEALTH + HEALTH)
        await api.held(1)
        await api.publish("orders", {"body": "x", "queue": 0})
        _, headers, _ = await one.answer()
        assert headers["holdfast-next-offset"] == "1"
        for _ in range(2):
            assert b'"alive"' in (await one.answer())[2]


async def test_many_pipelined_requests_are_all_answered(api: Api) -> None:
    """More requests than are buffered: reading pauses and resumes."""
    async with raw_connection(api.server.port) as one:
        one.writer.write(HEALTH * 300)
        for _ in range(300):
            assert (await one.answer())[0] == 200


async def test_a_client_that_closed_its_side_counts_as_disconnected(api: Api) -> None:
    """A half-closed connection looks like a closed one: its pull is dropped."""
    async with raw_connection(api.server.port) as one:
        await one.send(PULL)
        await api.held(1)
        one.writer.write_eof()
        await api.held(0)
        assert await one.closed() == b""
        assert api.hold.stats().cancelled_total == 1


async def test_disconnected_held_pulls_leave_no_task_and_no_slot(api: Api) -> None:
    tasks = len(asyncio.all_tasks())
    before = api.server.connection_count
    for _ in range(2):
        sockets = []
        for _ in range(300):
            one = socket.create_connection(("127.0.0.1", api.server.port))
            one.sendall(PULL)
            sockets.append(one)
        await api.held(300)
        for one in sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            one.close()
        await api.held(0)
        async with asyncio.timeout(10):
            while api.server.connection_count > before or len(asyncio.all_tasks()) > tasks:
                await asyncio.sleep(0)
            await until(lambda: len(api.context.http.connections.open) <= before)


@pytest.mark.parametrize(
    ("body_length", "status"), [(b"Content-Length: 20000000", 413), (b"Content-Length: 5", 400)]
)
@pytest.mark.parametrize("expects", [b"Expect: 100-continue\r\n", b""])
async def test_an_early_refusal_asks_for_no_body_and_ends_the_connection(
    api: Api, monkeypatch: pytest.MonkeyPatch, body_length: bytes, status: int, expects: bytes
) -> None:
    """The answer comes before the body.

    Body bytes that arrive anyway are read for a while, so that the client receives the error.
    """
    monkeypatch.setattr("holdfast.http_api.wire.connection.LINGERING_S", 0.2)
    async with raw_connection(api.server.port) as one:
        path = b"/v1/topics/orders/messages" + (b"?queue=x" if status == 400 else b"")
        head = b"POST " + path + b" HTTP/1.1\r\nHost: x\r\n" + expects + body_length
        await one.send(head + b"\r\n\r\n")
        found, headers, _ = await one.answer()
        assert (found, headers["connection"]) == (status, "close")
        for _ in range(50):
            one.writer.write(b"x" * 10_000)
        async with asyncio.timeout(10):
            await one.closed()
        assert api.context.http.connections.arriving.total_bytes == 0


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST /v1/nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 20000000\r\n\r\n", 404),
        (b"nonsense\r\n\r\n", 400),
        (CLOSING + b"nonsense\r\n\r\n", 200),
    ],
)
async def test_lingering_ends_while_the_client_still_sends(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, status: int
) -> None:
    monkeypatch.setattr("holdfast.http_api.wire.connection.LINGERING_S", 0.2)
    async with running_api() as api, raw_connection(api.server.port) as one:
        await one.send(sent)
        assert (await one.answer())[0] == status
        async with asyncio.timeout(10):
            while api.server.connection_count:
                with contextlib.suppress(ConnectionError):
                    await one.send(b"x" * 100)
                await asyncio.sleep(0.01)
