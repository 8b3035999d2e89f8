"""Pipelined requests with chunked bodies: each is answered without further bytes.

This must hold for all packet sizes and reading speeds.
"""

import asyncio
import random

import pytest

from holdfast.http_api.config import HttpConfig
from holdfast.http_api.wire.body_reader import BodyReader
from holdfast.http_api.wire.connection import Connection
from holdfast.http_api.wire.connection_registry import Connections
from holdfast.http_api.wire.reply import Reply
from holdfast.http_api.wire.request import Request
from tests.fuzz.wire import Wire
from tests.support.clients.raw_http import until

#: In the first seeds a connection waited for bytes that it already had: a parser that was paused in
#: one body stayed paused in the next, or answered requests were counted as waiting.
SEEDS = (177, 182, 194, 214, 219, 244, 253, 265, 289, 290, 709, 730, *range(20))


def request_of(chance: random.Random) -> bytes:
    head = b"POST /a HTTP/1.1\r\nHost: x\r\n"
    kind = chance.random()
    if kind < 0.2:
        return b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
    if kind < 0.4:
        size = chance.choice([0, 1, 100, 9000, 20000])
        return head + b"Content-Length: %d\r\n\r\n" % size + b"x" * size
    count = chance.choice([1, 5, 256, 257, 258, 300, 600, 2000])
    size = chance.choice([1, 1, 1, 2, 30])
    chunk = b"%x\r\n" % size + b"y" * size + b"\r\n"
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * count + b"0\r\n\r\n"


@pytest.mark.parametrize("seed", SEEDS)
async def test_each_pipelined_request_is_answered(seed: int) -> None:
    chance = random.Random(seed)
    config = HttpConfig()
    connections = Connections(config)
    bodies = BodyReader(config, connections.arriving)
    answered = 0

    async def answer(request: Request) -> Reply:
        nonlocal answered
        for _ in range(int(chance.random() * 6)):
            await asyncio.sleep(0)
        await bodies.read(request)
        bodies.done(request)
        answered += 1
        return Reply(200, "text/plain", [b"x"])

    connection = Connection(answer, asyncio.get_running_loop(), config, connections)
    wire = Wire()
    connection.connection_made(wire)
    count = chance.randrange(1, 12)
    left = memoryview(b"".join(request_of(chance) for _ in range(count)))
    most = chance.choice([7, 100, 1000, 4096, 16384])
    async with asyncio.timeout(20):
        while left:
            await until(lambda: wire.reads_on)
            room = connection.get_buffer(-1)
            size = min(len(room), len(left), chance.randrange(1, most + 1))
            room[:size] = left[:size]
            connection.buffer_updated(size)
            left = left[size:]
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
        await until(lambda: not (answered < count))
        await until(lambda: not (connection.task is not None))
    assert not wire.is_closed
    connection.connection_lost(None)
    assert connections.arriving.total_bytes == 0
    connections.abort_all()
