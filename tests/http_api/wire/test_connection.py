"""A connection separates its input into requests: in pieces, in order, with and without the
parser."""

import asyncio
import socket

import pytest

from holdfast.http_api.wire.connection_registry import RECEIVE_BUFFER_BYTES
from holdfast.http_api.wire.request_reader import MAX_WAITING, PauseReason
from tests.support.clients.raw_http import RawConnection, raw_connection, until
from tests.support.servers.api_server import Api

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
PULL = b"GET /v1/topics/orders/queues/1/messages?offset=0&wait_ms=60000 HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /v1/topics/orders/messages?queue=0 HTTP/1.1\r\nHost: x\r\n"


def post(body: bytes) -> bytes:
    return POST + b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunked(*chunks: bytes) -> bytes:
    parts = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))
    return POST + b"Transfer-Encoding: chunked\r\n\r\n" + parts


def stored(api: Api) -> list[bytes]:
    return [batch.body(0) for _, batches, _ in api.publishes for batch in batches]


async def statuses(connection: RawConnection, count: int) -> list[int]:
    async with asyncio.timeout(10):
        return [(await connection.answer())[0] for _ in range(count)]


MIXED = HEALTH + post(b"one") + HEALTH + chunked(b"t", b"wo") + post(b"") + post(b"three") + HEALTH


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, len(MIXED)])
async def test_requests_of_every_kind_in_pieces_of_any_size(api: Api, size: int) -> None:
    """Each piece arrives in its own iteration of the event loop."""
    async with raw_connection(api.server.port) as one:
        await until(lambda: api.context.http.connections.open)
        (connection,) = api.connections
        for start in range(0, len(MIXED), size):
            left = memoryview(MIXED)[start : start + size]
            while left:
                await until(lambda: not connection.reader.is_paused)
                room = connection.get_buffer(-1)
                count = min(len(room), len(left))
                room[:count] = left[:count]
                connection.buffer_updated(count)
                left = left[count:]
        assert await statuses(one, 7) == [200] * 7
        assert len(api.context.http.connections.header_timeouts) == 0  # no next head is expected
    assert stored(api) == [b"one", b"two", b"", b"three"]


@pytest.mark.parametrize("size", [1, 20_000, 300_000])
async def test_large_bodies_one_after_another_at_once(api: Api, size: int) -> None:
    bodies = [bytes([number]) * size for number in range(4)]
    async with raw_connection(api.server.port) as one:
        one.writer.write(b"".join(map(post, bodies)) + HEALTH)
        assert await statuses(one, 5) == [200] * 5
    assert stored(api) == bodies


async def test_a_large_body_after_a_held_pull_waits_for_its_turn(api: Api) -> None:
    body = b"x" * 500_000
    async with raw_connection(api.server.port) as one:
        await one.send(PULL)
        await api.held(1)
        (connection,) = api.connections
        one.writer.write(post(body) + HEALTH)
        async with asyncio.timeout(10):
            await until(lambda: connection.reader.pause_reasons & PauseReason.BODY_TURN)
            # Only the beginning of the body was received and counted. The connection reads no more
            # until the body has its place.
            assert 0 < api.context.http.connections.arriving.total_bytes < 2 * RECEIVE_BUFFER_BYTES
            await api.publish("orders", {"body": "y", "queue": 1})
        assert await statuses(one, 3) == [200] * 3
    assert stored(api)[1:] == [body]


async def test_a_chunked_body_that_paused_reading_after_a_held_pull_is_read_completely(
    api: Api,
) -> None:
    chunks = [bytes([number]) * 40_000 for number in range(10)]
    async with raw_connection(api.server.port) as one:
        await one.send(PULL)
        await api.held(1)
        (connection,) = api.connections
        one.writer.write(chunked(*chunks) + HEALTH)
        async with asyncio.timeout(10):
            await until(lambda: connection.reader.pause_reasons & PauseReason.BODY_BUFFER)
            await api.publish("orders", {"body": "y", "queue": 1})
        assert await statuses(one, 3) == [200] * 3
    assert stored(api)[1:] == [b"".join(chunks)]


async def test_the_requests_that_wait_after_a_held_pull_are_limited(api: Api) -> None:
    async with raw_connection(api.server.port) as one:
        await one.send(PULL)
        await api.held(1)
        (connection,) = api.connections
        one.writer.write(HEALTH * 5000)
        await until(lambda: connection.reader.pause_reasons & PauseReason.PIPELINE)
        assert 0 < len(connection.reader.waiting) <= 2 * MAX_WAITING
        await api.publish("orders", {"body": "y", "queue": 1})
        assert await statuses(one, 5001) == [200] * 5001


async def test_waiting_requests_in_separate_packets_are_limited_too(api: Api) -> None:
    """Each of these requests ends at the end of its packet, and so has its own parser."""
    async with raw_connection(api.server.port) as one:
        await one.send(PULL)
        await api.held(1)
        (connection,) = api.connections
        for _ in range(MAX_WAITING):
            assert not connection.reader.pause_reasons & PauseReason.PIPELINE
            connection.data_received(HEALTH)
        assert connection.reader.pause_reasons & PauseReason.PIPELINE
        await api.publish("orders", {"body": "y", "queue": 1})
        assert await statuses(one, MAX_WAITING + 1) == [200] * (MAX_WAITING + 1)
        assert not connection.reader.is_paused


async def test_idle_and_held_connections_keep_no_parser_and_idle_ones_no_task(api: Api) -> None:
    async with raw_connection(api.server.port) as one:
        await one.send(HEALTH)
        await statuses(one, 1)
        (connection,) = api.connections
        assert connection.reader.parser is None
        assert connection.task is None
        await one.send(PULL)
        await api.held(1)
        assert connection.reader.parser is None
        assert connection.task is not None


async def test_a_connection_keeps_its_parser_if_the_next_head_has_begun(api: Api) -> None:
    async with raw_connection(api.server.port) as one:
        await one.send(HEALTH + HEALTH[:20])
        await statuses(one, 1)
        (connection,) = api.connections
        assert connection.reader.parser is not None
        await one.send(HEALTH[20:] + b"\r\n\r\n" + HEALTH)  # extra empty lines are ignored
        assert await statuses(one, 2) == [200, 200]


@pytest.mark.parametrize("sent", [POST + b"Content-Length: 100000\r\n\r\nx", post(b"x"), PULL])
async def test_a_client_that_disconnects_in_the_iteration_in_which_it_connected(
    api: Api, sent: bytes
) -> None:
    """Its request is dropped in every state."""
    api.publish_gate = asyncio.Event()
    tasks = asyncio.all_tasks()
    for _ in range(50):
        one = socket.create_connection(("127.0.0.1", api.server.port))
        one.sendall(sent)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        one.close()
        await asyncio.sleep(0)
    api.publish_gate.set()
    await until(
        lambda: not (api.context.http.connections.limits.count or asyncio.all_tasks() - tasks)
    )
    assert api.context.http.connections.arriving.total_bytes == 0
    assert api.hold.stats().held == 0


async def test_an_invalid_chunk_ends_its_request_at_once(api: Api) -> None:
    async with raw_connection(api.server.port) as one:
        await one.send(POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n")
        async with asyncio.timeout(10):
            await until(lambda: api.context.http.connections.arriving.total_bytes)
            await one.send(b"zz\r\n")
            assert (await one.closed()).startswith(b"HTTP/1.1 400 ")
    assert stored(api) == []


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("size", [1000, 16_000, 17_000, 100_000, 1_000_000])
@pytest.mark.parametrize("behind", [b"", b"\r\n", b"GET /v1/in"])
async def test_after_a_body_only_an_incomplete_head_has_a_deadline(
    api: Api, size: int, is_chunked: bool, behind: bytes
) -> None:
    """A complete body does not start a head: the connection is idle, for `keepalive_timeout_ms`."""
    head = b"POST /v1/topics/orders/messages?queue=0 HTTP/1.1\r\nHost: x\r\n"
    body = b"x" * size
    if is_chunked:
        sent = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (size, body)
    else:
        sent = head + b"Content-Length: %d\r\n\r\n" % size + body
    connections = api.context.http.connections
    async with raw_connection(api.server.port) as one:
        await one.send(sent + behind)
        assert (await one.answer())[0] == 200
        await until(lambda: len(connections.idle))
        if not behind.strip():
            assert len(connections.header_timeouts) == 0
