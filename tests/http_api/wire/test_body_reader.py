"""Bodies on the wire: too large, too slow, chunked, or interrupted."""

import asyncio
import random
import tracemalloc
import zlib
from typing import Any

import pytest

from holdfast.http_api.wire.body_reader import LIMIT, SHARE, ArrivingBytes
from tests.support.clients.raw_http import raw_connection, until
from tests.support.event_loop.loop_clock import LoopClock
from tests.support.servers.api_server import Api, running_api

HEAD = b"POST /v1/topics/orders/messages?queue=0 HTTP/1.1\r\nHost: x\r\n"
PATH = "/v1/topics/orders/messages"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def slug(body: bytes) -> str:
    return body.decode().split("/problems/")[1].split('"')[0]


def arriving(api: Api) -> int:
    return api.context.http.connections.arriving.total_bytes


def stored(api: Api) -> list[bytes]:
    return [batch.body(0) for _, batches, _ in api.publishes for batch in batches]


async def test_a_body_in_pieces_is_one_body(api: Api) -> None:
    async with raw_connection(api.server.port) as connection:
        await connection.send(HEAD + b"Content-Length: 6\r\n\r\nab")
        await asyncio.sleep(0)
        await connection.send(b"cd")
        await connection.send(b"ef")
        status, _, _ = await connection.answer()
        await connection.send(CHUNKED + b"2\r\ngh\r\n")
        await connection.send(b"3;x=y\r\nijk\r\n0\r\n\r\n")
        assert (status, (await connection.answer())[0]) == (200, 200)
    assert stored(api) == [b"abcdef", b"ghijk"]


@pytest.mark.parametrize("size", [100_000, 700_000, 1_500_000, 3_000_000])
async def test_a_body_that_arrives_at_once_is_read_completely(api: Api, size: int) -> None:
    async with raw_connection(api.server.port) as connection:
        body = bytes(range(256)) * (size // 256)
        await connection.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert (await connection.answer())[0] == 200
    assert stored(api) == [body]


@pytest.mark.parametrize("begun", [0, 100, 9_000, 15_000])
async def test_the_rest_of_a_large_body_bypasses_the_parser(api: Api, begun: int) -> None:
    """However much of it comes with the head: the parser would copy every byte three times."""
    body = bytes(range(250)) * 4000
    async with raw_connection(api.server.port) as one:
        await one.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body[:begun])
        async with asyncio.timeout(10):
            await until(lambda: arriving(api) >= len(body))
        (connection,) = api.connections
        assert connection.reader.parser is None
        await one.send(body[begun:])
        assert (await one.answer())[0] == 200
    assert stored(api) == [body]


async def test_a_body_of_a_too_large_declared_size_is_refused_before_it_arrives() -> None:
    async with running_api(max_request_bytes=1024) as api, raw_connection(api.server.port) as one:
        await one.send(HEAD + b"Content-Length: 1025\r\n\r\n")
        status, headers, body = await one.answer()
        assert (status, slug(body)) == (413, "request-too-large")
        assert headers["connection"] == "close"


async def test_a_chunked_body_is_refused_as_soon_as_it_is_too_large() -> None:
    async with running_api(max_request_bytes=1024) as api, raw_connection(api.server.port) as one:
        await one.send(CHUNKED + b"400\r\n" + b"x" * 1024 + b"\r\n1\r\nx\r\n")
        status, _, body = await one.answer()
        assert (status, slug(body)) == (413, "request-too-large")


@pytest.mark.parametrize(("length", "status"), [(1023, 200), (1024, 200), (1025, 413)])
async def test_chunked_bodies_have_the_same_limit(length: int, status: int) -> None:
    async with running_api(max_request_bytes=1024) as api, raw_connection(api.server.port) as one:
        body = b"".join(b"1\r\nx\r\n" for _ in range(length)) + b"0\r\n\r\n"
        await one.send(CHUNKED + body)
        assert (await one.answer())[0] == status


async def test_a_client_may_wait_for_100_continue() -> None:
    async with running_api(max_request_bytes=1024) as api, raw_connection(api.server.port) as one:
        await one.send(HEAD + b"Expect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        assert await one.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await one.send(b"body")
        assert (await one.answer())[0] == 200
        await one.send(HEAD + b"Expect: 100-continue\r\nContent-Length: 1025\r\n\r\n")
        status, _, body = await one.answer()
        assert (status, slug(body)) == (413, "request-too-large")


async def test_a_body_that_does_not_arrive_in_time_is_refused() -> None:
    async with running_api(body_timeout_ms=50) as api, raw_connection(api.server.port) as one:
        await one.send(HEAD + b"Content-Length: 4\r\n\r\nbo")
        status, headers, body = await one.answer()
        assert (status, slug(body)) == (408, "request-timeout")
        assert headers["connection"] == "close"
        assert stored(api) == []


async def test_an_interrupted_body_is_not_stored(api: Api) -> None:
    async with raw_connection(api.server.port) as connection:
        await connection.send(HEAD + b"Content-Length: 4\r\n\r\nbo")
        await asyncio.sleep(0)
    await until(lambda: not api.server.connection_count)
    assert stored(api) == []


@pytest.mark.parametrize("chunk", [b"zz\r\n", b"2\r\nabc\r\n", b"-1\r\n", b"2 \nab\r\n0\r\n\r\n"])
async def test_broken_chunks_are_refused(api: Api, chunk: bytes) -> None:
    async with raw_connection(api.server.port) as connection:
        await connection.send(CHUNKED + chunk)
        answer = await connection.closed()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert slug(answer) == "malformed-request"
    assert stored(api) == []


async def test_bodies_that_are_arriving_share_a_limit() -> None:
    async with (
        running_api(max_arriving_bytes=1000) as api,
        raw_connection(api.server.port) as slow,
        raw_connection(api.server.port) as other,
    ):
        await slow.send(HEAD + b"Content-Length: 900\r\n\r\nx")
        await until(lambda: arriving(api))
        await other.send(HEAD + b"Content-Length: 101\r\n\r\n")
        status, headers, body = await other.answer()
        assert (status, slug(body), headers["retry-after"]) == (503, "overloaded", "1")
        await slow.send(b"x" * 899)
        assert (await slow.answer())[0] == 200
        assert arriving(api) == 0


async def test_a_body_counts_until_it_is_answered(api: Api) -> None:
    api.publish_gate = asyncio.Event()
    task = asyncio.create_task(api.publish("orders", {"body": "x" * 1000}))
    await until(lambda: api.publishes)
    assert arriving(api) > 1000
    api.publish_gate.set()
    assert (await task).status == 200
    assert arriving(api) == 0


async def test_many_bombs_at_once_count_with_their_declared_size() -> None:
    bomb = zlib.compress(bytes(1 << 20), 9, 31)
    assert len(bomb) < 1200
    async with running_api(max_arriving_bytes=3 << 20) as api:
        answers = await asyncio.gather(
            *(api.ask("POST", PATH, bomb, Content_Encoding="gzip") for _ in range(40))
        )
        assert {answer.status for answer in answers} == {200, 503}
        assert {answer.problem for answer in answers if answer.status == 503} == {"overloaded"}
        assert arriving(api) == 0
        answer = await api.ask("POST", PATH, bomb, Content_Encoding="gzip")
        assert answer.status == 200


@pytest.mark.parametrize("said", [0, 1, 5_000])
async def test_a_bomb_is_not_decompressed_beyond_its_declared_size(api: Api, said: int) -> None:
    bomb = zlib.compress(bytes(10_000), 9, 31)[:-4] + said.to_bytes(4, "little")
    answer = await api.ask("POST", PATH, bomb, Content_Encoding="gzip")
    assert (answer.status, answer.problem) == (400, "malformed-encoding")
    assert "longer than the size that it declares" in answer.json()["detail"]
    assert stored(api) == []


@pytest.mark.parametrize("encoding", ["deflate", "br", "zstd", "gzip, gzip", "compress"])
async def test_other_encodings_than_gzip_are_refused(api: Api, encoding: str) -> None:
    # A zstd frame with a window of 2 GiB.
    frame = b"\x28\xb5\x2f\xfd\x00\xa8" + bytes(100)
    answer = await api.ask("POST", PATH, frame, Content_Encoding=encoding)
    assert (answer.status, answer.problem) == (415, "unsupported-encoding")


async def test_a_second_gzip_member_is_refused(api: Api) -> None:
    members = zlib.compress(b"", 9, 31) * 10_000
    answer = await api.ask("POST", PATH, members, Content_Encoding="gzip")
    assert (answer.status, answer.problem) == (400, "malformed-encoding")


async def test_the_client_with_the_most_arriving_bytes_gives_way() -> None:
    async with running_api(max_arriving_bytes=1000) as api:
        async with (
            raw_connection(api.server.port, address="127.0.0.2") as oldest,
            raw_connection(api.server.port, address="127.0.0.2") as next_one,
            raw_connection(api.server.port, address="127.0.0.3") as modest,
            raw_connection(api.server.port) as newcomer,
        ):
            for one, size, all_of_them in (
                (oldest, 300, 300),
                (next_one, 400, 700),
                (modest, 300, 1000),
            ):
                await one.send(HEAD + b"Content-Length: %d\r\n\r\nx" % size)
                await until(lambda: arriving(api) == all_of_them)  # noqa: B023
            await newcomer.send(HEAD + b"Content-Length: 200\r\n\r\n" + b"x" * 200)
            assert (await newcomer.answer())[0] == 200
            status, headers, body = await oldest.answer()
            assert (status, slug(body), headers["connection"]) == (503, "overloaded", "close")
            for one, left in ((next_one, 399), (modest, 299)):
                await one.send(b"x" * left)
                assert (await one.answer())[0] == 200
        assert arriving(api) == 0
        assert len(api.context.http.connections.arriving) == 0


async def test_a_body_below_the_minimum_rate_is_refused_before_its_deadline() -> None:
    settings: dict[str, Any] = {"transfer_grace_ms": 100, "min_transfer_bytes_per_s": 1000}
    async with running_api(**settings) as api, raw_connection(api.server.port) as one:
        await one.send(HEAD + b"Content-Length: 1000\r\n\r\n")
        async with asyncio.timeout(10):
            await until(lambda: api.server.connection_count)
            answer = asyncio.create_task(one.answer())
            while not answer.done():
                await one.send(b"x")
                await asyncio.sleep(0.01)
        status, _, body = await answer
        assert (status, slug(body)) == (408, "request-timeout")
        assert b"min_transfer_bytes_per_s" in body


async def test_a_slow_body_above_the_minimum_rate_is_accepted() -> None:
    settings: dict[str, Any] = {"transfer_grace_ms": 300, "min_transfer_bytes_per_s": 10}
    async with running_api(**settings) as api, raw_connection(api.server.port) as one:
        # The first bytes come with the head: a stall of the machine cannot come between.
        await one.send(HEAD + b"Content-Length: 2000\r\n\r\n" + b"x" * 100)
        for _ in range(19):
            await asyncio.sleep(0.03)
            await one.send(b"x" * 100)
        assert (await one.answer())[0] == 200


async def test_bytes_that_arrive_with_the_head_count_for_the_first_interval() -> None:
    clock = LoopClock()
    settings: dict[str, Any] = {"transfer_grace_ms": 1000, "min_transfer_bytes_per_s": 100}
    async with running_api(**settings) as api, raw_connection(api.server.port) as one:
        await one.send(HEAD + b"Content-Length: 200\r\n\r\n" + b"x" * 150)
        await until(lambda: arriving(api))
        await clock.advance(1.0)
        await one.send(b"x" * 50)
        assert (await one.answer())[0] == 200


async def test_a_bomb_is_not_decompressed_beyond_the_limit() -> None:
    squeezer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(squeezer.compress(bytes(1 << 20)) for _ in range(64)) + squeezer.flush()
    async with running_api(max_request_bytes=1 << 20) as api:
        tracemalloc.start()
        answer = await api.ask("POST", "/v1/topics/orders/messages", bomb, Content_Encoding="gzip")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (answer.status, answer.problem) == (413, "request-too-large")
        assert peak < 8 << 20


async def test_a_body_whose_connection_was_paused_is_received_completely(api: Api) -> None:
    """Its client sent more than the connection buffers, while the request before it was held."""
    body = bytes(1_500_000)
    pull = b"GET /v1/topics/orders/queues/1/messages?offset=0&wait_ms=60000 HTTP/1.1\r\nHost: x\r\n"
    async with raw_connection(api.server.port) as one:
        await one.send(pull + b"\r\n")
        await api.held(1)
        (connection,) = api.connections
        one.writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        async with asyncio.timeout(10):
            await until(lambda: connection.reader.is_paused)
            await api.publish("orders", {"body": "x", "queue": 1})
            assert [(await one.answer())[0] for _ in range(2)] == [200, 200]
    assert stored(api)[1:] == [body]


class Room(ArrivingBytes):
    """An ArrivingBytes that records the clients that gave way."""

    def __init__(self, limit_bytes: int = 100, share_bytes: int = 100) -> None:
        super().__init__(limit_bytes, share_bytes)
        self.gone: list[str] = []

    def arrive(self, holder: str, client: str, size: int) -> str | None:
        return self.take(holder, client, size, lambda: self.gone.append(holder))


@pytest.mark.parametrize(("size", "gone"), [(39, []), (40, []), (41, ["greedy-1"])])
def test_no_request_gives_way_up_to_the_limit(size: int, gone: list[str]) -> None:
    room = Room()
    room.arrive("greedy-1", "greedy", 30)
    room.arrive("greedy-2", "greedy", 30)
    assert room.take("modest", "modest", size) is None
    assert room.gone == gone
    assert room.total_bytes == 60 + size - 30 * len(gone)


@pytest.mark.parametrize(("size", "refused"), [(29, None), (30, None), (31, SHARE)])
def test_the_bytes_of_one_client_are_limited(size: int, refused: str | None) -> None:
    # M1: space for other clients stays free, however large the total is
    room = Room(limit_bytes=1000, share_bytes=60)
    assert room.arrive("first", "greedy", 30) is None
    assert room.arrive("second", "greedy", size) == refused
    assert room.bytes_of["greedy"] == (30 if refused else 30 + size)
    assert room.arrive("other", "modest", 60) is None


@pytest.mark.parametrize(("own", "other"), [(61, 40), (60, 60)])
def test_the_client_with_the_most_bytes_is_refused(own: int, other: int) -> None:
    room = Room()
    room.arrive("modest", "modest", other)
    assert room.arrive("greedy", "greedy", own) == LIMIT
    assert (room.gone, room.total_bytes) == ([], other)


def test_a_request_that_gave_way_in_vain_is_not_counted() -> None:
    room = Room()
    room.take("at work", "other", 70)
    room.arrive("small", "greedy", 10)
    room.arrive("large", "greedy", 20)
    # If the oldest request of the largest client gives way, there is room for only 10 more bytes.
    assert room.arrive("newcomer", "modest", 25) == LIMIT
    assert (room.gone, room.total_bytes) == (["small"], 90)


def test_a_single_holder_may_exceed_both_limits() -> None:
    room = Room(limit_bytes=100, share_bytes=50)
    assert room.arrive("one", "client", 1000) is None
    assert room.arrive("one", "client", 2000) is None
    assert room.arrive("two", "client", 1) == SHARE
    assert room.arrive("other", "other", 90) is None
    assert room.gone == ["one"]


def test_a_request_that_has_arrived_does_not_give_way() -> None:
    room = Room()
    room.arrive("at work", "greedy", 90)
    room.mark_arrived("at work")
    assert room.arrive("modest", "modest", 20) == LIMIT
    assert room.gone == []
    room.release("at work")
    assert room.arrive("modest", "modest", 20) is None


def test_a_refused_holder_keeps_its_former_bytes() -> None:
    room = Room(share_bytes=50)
    room.arrive("one", "client", 20)
    room.arrive("two", "client", 20)
    assert room.arrive("two", "client", 31) == SHARE
    assert (room.bytes_of["client"], len(room)) == (40, 2)


def test_the_counts_are_right_over_random_steps() -> None:
    chance = random.Random(7)
    room = Room(limit_bytes=300, share_bytes=120)
    held: dict[str, tuple[str, int]] = {}
    for step in range(5000):
        client = f"client {chance.randrange(5)}"
        holder = f"{client}/{chance.randrange(6)}"
        room.gone.clear()
        what = chance.randrange(4)
        if what == 0:
            room.release(holder)
            held.pop(holder, None)
        elif what == 1:
            room.mark_arrived(holder)
        else:
            size = chance.randrange(80)
            refused = room.arrive(holder, client, size)
            for gone in room.gone:
                del held[gone]
            if refused is None:
                held[holder] = client, size
        assert room.total_bytes == sum(size for _, size in held.values()), step
        assert len(room) == len(held)
        for number in range(5):
            each = f"client {number}"
            own = [size for whose, size in held.values() if whose == each]
            assert room.bytes_of.get(each, 0) == sum(own)
            assert sum(own) <= 120 or len(own) == 1
        assert room.total_bytes <= 300 or len(held) == 1
    for holder in held:
        room.release(holder)
    assert room.total_bytes == 0
    assert (room.arriving, room.bytes_of) == ({}, {})
