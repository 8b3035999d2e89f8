"""The memory of heads is limited: the size of one head, the number of waiting heads, and the
total."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest

from holdfast.http_api.wire.aiohttp_parser import MAX_HEADERS
from holdfast.http_api.wire.connection import Connection
from holdfast.http_api.wire.connection_registry import RECEIVE_BUFFER_BYTES
from holdfast.http_api.wire.heads import unfinished_head_memory
from holdfast.http_api.wire.request_reader import UNCOUNTED_BYTES, PauseReason
from tests.support.clients.raw_http import RawConnection, raw_connection, until
from tests.support.servers.api_server import Api, running_api

PULL = b"GET /v1/topics/orders/queues/1/messages?offset=0&wait_ms=60000 HTTP/1.1\r\nHost: x\r\n\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
_LARGEST_FIELD = 8000


def head(size: int, *, is_whole: bool = True) -> bytes:
    """Return a request whose head has `size` bytes, or the beginning of a head with this many
    bytes."""
    lines = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
    end = b"\r\n"
    number = 0
    while (left := size - len(lines) - len(end)) > 0:
        name = b"X-%03d: " % number
        length = min(left, _LARGEST_FIELD)
        if 0 < left - length < 2 * len(name):
            length -= 2 * len(name)
        lines += name + b"x" * (length - len(name) - 2) + b"\r\n"
        number += 1
    whole = lines + end
    assert len(whole) == size
    return whole if is_whole else whole[:-4]


def counted(api: Api) -> int:
    return api.context.http.connections.arriving.total_bytes


@contextlib.asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Api]:
    async with running_api(**settings) as api:
        await api.store.topics.create("orders")
        yield api


@pytest.fixture
async def small() -> AsyncIterator[Api]:
    async with serving(max_head_bytes=20_000) as api:
        yield api


@pytest.mark.parametrize(("size", "status"), [(19_999, 200), (20_000, 200), (20_001, 431)])
@pytest.mark.parametrize("piece", [1000, 8192, 20_001])
async def test_a_whole_head_has_a_limit(small: Api, size: int, status: int, piece: int) -> None:
    # M1: each header had a limit, but all headers together had none
    sent = head(size)
    async with raw_connection(small.server.port) as one:
        for start in range(0, size, piece):
            await one.send(sent[start : start + piece])
            await asyncio.sleep(0)
        found, _, body = await one.answer()
        assert found == status
        if status == 431:
            assert b"max_head_bytes (20000)" in body
    await until(lambda: counted(small) == 0)


async def test_a_head_after_complete_requests_has_the_same_limit(small: Api) -> None:
    async with raw_connection(small.server.port) as one:
        await one.send(HEALTH * 3 + head(20_001) + HEALTH)
        for expected in (200, 200, 200, 431):
            assert (await one.answer())[0] == expected
        await one.closed()


async def test_a_head_that_never_ends_is_refused_before_its_end(small: Api) -> None:
    async with raw_connection(small.server.port) as one:
        with contextlib.suppress(ConnectionError):
            await one.send(head(20_000 + 3 * RECEIVE_BUFFER_BYTES, is_whole=False))
        assert (await one.answer())[0] == 431


async def test_an_unfinished_head_is_counted_until_its_connection_ends(api: Api) -> None:
    # M1: 900 unfinished heads of a megabyte each killed the broker, without any token
    async with raw_connection(api.server.port) as one:
        await one.send(head(60_000, is_whole=False))
        await until(lambda: counted(api) >= 60_000)
    await until(lambda: counted(api) == 0)


async def test_a_finished_head_is_counted_while_its_request_is_answered(api: Api) -> None:
    large = PULL[:-2] + b"".join(b"X-%d: %s\r\n" % (n, b"x" * 4000) for n in range(10)) + b"\r\n"
    async with raw_connection(api.server.port) as one:
        await one.send(large)
        await api.held(1)
        assert counted(api) > 40_000
        await api.publish("orders", {"body": "y", "queue": 1})
        assert (await one.answer())[0] == 200
        await until(lambda: counted(api) == 0)
        await one.send(HEALTH)
        assert (await one.answer())[0] == 200


async def test_small_requests_are_not_counted(api: Api) -> None:
    """The allowance of each connection is part of the cost of a connection (docs/limits.md)."""
    async with raw_connection(api.server.port) as one:
        await one.send(PULL)
        await api.held(1)
        await one.send(HEALTH)
        (connection,) = api.connections
        await until(lambda: connection.reader.waiting)
        assert counted(api) == 0
        assert connection.reader.waiting_memory <= UNCOUNTED_BYTES


async def test_the_client_with_the_most_unfinished_heads_gives_way() -> None:
    # M1
    async with (
        serving(max_arriving_bytes=1_000_000, max_client_arriving_bytes=900_000) as api,
        contextlib.AsyncExitStack() as stack,
    ):
        flood = [
            await stack.enter_async_context(raw_connection(api.server.port, address="127.0.0.2"))
            for _ in range(20)
        ]
        for one in flood:
            with contextlib.suppress(ConnectionError):
                await one.send(head(50_000, is_whole=False))
        answers = [asyncio.create_task(one.answer()) for one in flood]
        await asyncio.wait(answers, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        for answer in answers:
            if answer.done():
                status, _, body = await answer
                assert (status, b"/problems/overloaded" in body) == (503, True)
            answer.cancel()
        assert any(answer.done() for answer in answers)
        assert counted(api) <= 900_000
        other = await stack.enter_async_context(raw_connection(api.server.port))
        await other.send(head(50_000))
        assert (await other.answer())[0] == 200
        assert counted(api) <= 1_000_000


@pytest.mark.parametrize("headers", [0, 10, 120])
async def test_requests_that_wait_have_a_limit_by_memory(headers: int) -> None:
    # M1: 32 heads of a megabyte each waited after one held pull
    wide = b"".join(b"%d:%s\r\n" % (n, b"x" * 30) for n in range(headers))
    request = HEALTH[:-2] + wide + b"\r\n"
    count = 3000 if headers == 0 else 200
    async with (
        serving(max_waiting_head_bytes=30_000) as api,
        raw_connection(api.server.port) as one,
    ):
        await one.send(PULL)
        await api.held(1)
        (connection,) = api.connections
        one.writer.write(request * count)
        await until(lambda: connection.reader.pause_reasons & PauseReason.PIPELINE)
        most_in_a_packet = RECEIVE_BUFFER_BYTES // len(request) + 1
        one_request = connection.reader.waiting_memory // len(connection.reader.waiting)
        bound = 30_000 + most_in_a_packet * one_request
        assert one_request < connection.reader.waiting_memory <= bound
        assert connection.reader.counted_bytes == counted(api) >= connection.reader.waiting_memory
        await api.publish("orders", {"body": "y", "queue": 1})
        async with asyncio.timeout(30):
            for _ in range(count + 1):
                assert (await one.answer())[0] == 200
        await until(lambda: counted(api) == 0)


async def test_one_request_may_always_wait() -> None:
    async with serving(max_waiting_head_bytes=1) as api, raw_connection(api.server.port) as one:
        await one.send(PULL)
        await api.held(1)
        (connection,) = api.connections
        await one.send(HEALTH)
        await until(lambda: connection.reader.pause_reasons & PauseReason.PIPELINE)
        await one.send(HEALTH)
        await one.send(HEALTH)
        assert connection.reader.is_paused
        assert len(connection.reader.waiting) == 1
        await api.publish("orders", {"body": "y", "queue": 1})
        for _ in range(4):
            assert (await one.answer())[0] == 200


async def test_the_received_body_of_a_held_request_is_counted(api: Api) -> None:
    # M1: the body of a pull is never read; its received bytes stayed in memory and were not counted
    begun = b"x" * 14_000
    with_length = PULL[:-2] + b"Content-Length: 1000000\r\n\r\n" + begun
    in_chunks = PULL[:-2] + b"Transfer-Encoding: chunked\r\n\r\n" + b"3000\r\n" + begun[:12_288]
    for number, sent in enumerate((with_length, in_chunks)):
        async with raw_connection(api.server.port) as one:
            await one.send(sent.replace(b"offset=0", b"offset=%d" % number))
            await api.held(1)
            assert counted(api) >= 12_000
            await api.publish("orders", {"body": "y", "queue": 1})
            assert (await one.answer())[0] == 200
        await until(lambda: counted(api) == 0)


CHUNK = b"2\r\nxy\r\n"
CHUNK_MEMORY = 100 + len(CHUNK)


def with_chunks(request: bytes, count: int) -> bytes:
    """Return a request with the beginning of a body of `count` small chunks."""
    return request[:-2] + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNK * count


def publish_with_chunks(count: int) -> bytes:
    line = b"POST /v1/topics/orders/messages?queue=0 HTTP/1.1\r\nHost: x\r\n\r\n"
    return with_chunks(line, count)


async def open_connection(api: Api) -> Connection:
    await until(lambda: api.context.http.connections.open)
    (connection,) = api.connections
    return connection


@pytest.mark.parametrize("end", ["answered", "closed", "refused", "shut down"])
@pytest.mark.parametrize("is_own", [True, False], ids=["its own", "of the next request"])
async def test_a_body_in_small_chunks_counts_while_a_pull_is_held(
    api: Api, is_own: bool, end: str
) -> None:
    """Unread chunks need much more memory than their bytes."""
    async with raw_connection(api.server.port) as one:
        await one.send(with_chunks(PULL, 100) if is_own else PULL)
        await api.held(1)
        if not is_own:
            await one.send(publish_with_chunks(100))
        await until(lambda: counted(api) >= 100 * CHUNK_MEMORY)
        before = counted(api)
        await one.send(CHUNK * 100)
        await until(lambda: counted(api) == before + 100 * CHUNK_MEMORY)
        if end == "answered":
            await one.send(b"0\r\n\r\n")
            connection = await open_connection(api)
            await until(lambda: not connection.reader.is_chunked_body_open)
            await api.publish("orders", {"body": "y", "queue": 1})
            for _ in range(1 if is_own else 2):
                assert (await one.answer())[0] == 200
            await until(lambda: counted(api) == 0)
        elif end == "refused":
            await one.send(b"zz\r\n")
            await api.publish("orders", {"body": "y", "queue": 1})
            assert (await one.answer())[0] == 200
            assert is_own or (await one.answer())[0] == 400
            await until(lambda: counted(api) == 0)
        elif end == "shut down":
            api.context.http.connections.abort_all()
    await until(lambda: counted(api) == 0)


async def test_whole_bodies_in_small_chunks_that_wait_are_counted(api: Api) -> None:
    async with raw_connection(api.server.port) as one:
        await one.send(PULL)
        await api.held(1)
        await one.send((publish_with_chunks(250) + b"0\r\n\r\n") * 3)
        await until(lambda: counted(api) >= 3 * 250 * CHUNK_MEMORY)
        await api.publish("orders", {"body": "y", "queue": 1})
        for _ in range(4):
            assert (await one.answer())[0] == 200
        await until(lambda: counted(api) == 0)


@pytest.mark.parametrize("is_in_time", [True, False])
async def test_a_chunked_body_that_is_read_is_counted_only_by_its_reader(is_in_time: bool) -> None:
    body_timeout_ms = 60_000 if is_in_time else 200
    async with (
        serving(body_timeout_ms=body_timeout_ms) as api,
        raw_connection(api.server.port) as one,
    ):
        connection = await open_connection(api)
        connection.data_received(publish_with_chunks(100))
        await until(lambda: counted(api) > api.context.config.max_request_bytes)
        before = counted(api)
        connection.data_received(CHUNK * 100)
        assert counted(api) == before
        if is_in_time:
            await one.send(b"0\r\n\r\n")
        assert (await one.answer())[0] == (200 if is_in_time else 408)
        await until(lambda: counted(api) == 0)


async def test_small_chunks_above_the_limit_end_their_connection() -> None:
    begun = head(15_000, is_whole=False)
    of_second = unfinished_head_memory(len(begun), MAX_HEADERS)
    share = of_second + 150 * CHUNK_MEMORY
    async with serving(max_client_arriving_bytes=share) as api, contextlib.AsyncExitStack() as s:
        first = await s.enter_async_context(raw_connection(api.server.port))
        second = await s.enter_async_context(raw_connection(api.server.port))
        await first.send(with_chunks(PULL, 100))
        await second.send(begun)
        await until(lambda: counted(api) >= of_second + 100 * CHUNK_MEMORY)
        await first.send(CHUNK * 100)
        assert await first.closed() == b""
        assert api.context.http.connections.closed_early["arriving-limit"] == 1
        assert counted(api) == of_second
        await second.send(b"\r\n\r\n")
        assert (await second.answer())[0] == 200
        await until(lambda: counted(api) == 0)


async def test_the_memory_of_a_long_filter_is_counted(api: Api) -> None:
    # M1: 20,000 held pulls with filters of 4 KiB each needed gigabytes
    long = " OR ".join(f"a{n} = '{n}'" for n in range(100))
    path = PULL.decode().replace("wait_ms", f"filter={quote(long)}&wait_ms").encode()
    async with raw_connection(api.server.port) as one:
        await one.send(path)
        await api.held(1)
        assert counted(api) > 100 * len(long)
    await until(lambda: counted(api) == 0)


async def test_a_filter_above_the_limit_is_refused() -> None:
    async with serving(max_client_arriving_bytes=250_000) as api, contextlib.AsyncExitStack() as s:
        long = " OR ".join(f"a{n} = '{n}'" for n in range(100))
        path = PULL.decode().replace("wait_ms", f"filter={quote(long)}&wait_ms").encode()
        first = await s.enter_async_context(raw_connection(api.server.port))
        second = await s.enter_async_context(raw_connection(api.server.port))
        await first.send(path)
        await api.held(1)
        await second.send(path)
        status, _, body = await second.answer()
        assert (status, b"max_client_arriving_bytes" in body) == (503, True)
        await second.send(HEALTH)
        assert (await second.answer())[0] == 200


async def test_waiting_heads_of_the_largest_client_end_their_connection() -> None:
    async with (
        serving(max_arriving_bytes=1_000_000) as api,
        contextlib.AsyncExitStack() as stack,
    ):

        async def held_with_waiting(address: str) -> RawConnection:
            one = await stack.enter_async_context(raw_connection(api.server.port, address=address))
            before = api.hold.stats().held
            await one.send(PULL)
            await api.held(before + 1)
            await one.send(head(60_000) * 2)
            return one

        first = await held_with_waiting("127.0.0.2")
        (connection,) = api.connections
        await until(lambda: len(connection.reader.waiting) == 2)
        of_one = counted(api)
        for number in (2, 3):
            await held_with_waiting("127.0.0.2")
            await until(lambda: counted(api) == number * of_one)  # noqa: B023
        assert api.context.http.connections.closed_early["arriving-limit"] == 0
        await held_with_waiting("127.0.0.3")
        async with asyncio.timeout(10):
            assert await first.closed() == b""
        assert api.context.http.connections.closed_early["arriving-limit"] == 1
        assert counted(api) <= 1_000_000


def test_the_memory_of_a_head_is_not_underestimated() -> None:
    """The parser stores such text with four bytes per character, and it is counted so."""
    wide = "x" * 8000 + "\U0001f600"
    assert sys.getsizeof(wide) > 4 * 8000
