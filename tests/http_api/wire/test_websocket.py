"""WebSockets carry a stream of bytes: frames, the closing handshake, limits, and the end."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.frames import Opcode
from websockets.typing import Subprotocol

from holdfast.http_api.config import HttpConfig
from holdfast.http_api.wire import websocket
from tests.support.clients.certificates import Certificates
from tests.support.clients.raw_http import raw_connection, until
from tests.support.clients.web_sockets import (
    frame,
    handshake,
    raw_websocket,
    serving_websockets,
)
from tests.support.event_loop.loop_clock import LoopClock

AMQP = [Subprotocol("amqp")]
MIB = 1024 * 1024


async def read(socket: Any, size: int) -> bytes:
    """Read messages until they have `size` bytes together."""
    data = b""
    while len(data) < size:
        message = await socket.recv()
        assert len(message) <= 65_535
        data += message
    return data


async def test_bytes_pass_both_ways_whatever_the_messages_are() -> None:
    # B10
    sent = [b"", b"a", b"b" * 125, b"c" * 126, b"d" * 65_536, b"e" * MIB]
    async with (
        serving_websockets() as (api, served),
        connect(f"ws://127.0.0.1:{api.server.port}/amqp", subprotocols=AMQP) as socket,
    ):
        assert socket.subprotocol == "amqp"
        assert socket.response is not None
        assert "Sec-WebSocket-Extensions" not in socket.response.headers
        for message in sent:
            await socket.send(message)
        await socket.send([b"a message ", b"", b"of three frames"])
        whole = b"".join(sent) + b"a message of three frames"
        assert await read(socket, len(whole)) == whole
        assert served[0].received == whole
        await (await socket.ping())
        assert api.server.connection_count == 1
    await until(lambda: api.server.connection_count == 0)
    assert served[0].lost.is_set()


async def test_frames_may_be_torn_anywhere() -> None:
    data = (
        frame(b"one") + frame(b"two", fin=False) + frame(b"ping", Opcode.PING)
        + frame(b"three", Opcode.CONT) + frame(b"four" * 40)
    )  # fmt: skip
    async with serving_websockets() as (api, served), raw_websocket(api.server.port) as client:
        for index in range(len(data)):
            await client.send(data[index : index + 1])
            await asyncio.sleep(0)
        answers = [await client.frame() for _ in range(5)]
        payloads = [payload for opcode, payload in answers if opcode == Opcode.BINARY]
        assert payloads == [b"one", b"two", b"three", b"four" * 40]
        assert (Opcode.PONG, b"ping") in answers
        assert served[0].received == b"onetwothree" + b"four" * 40


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(b"text", Opcode.TEXT), 1003),
        (b"\x82\x01x", 1002),  # not masked
        (frame(b"", Opcode.CONT), 1002),
        (frame(b"", fin=False) + frame(b"x"), 1002),
        (b"\x83\x80" + bytes(4), 1002),  # an unknown opcode
        (b"\xc2\x80" + bytes(4), 1002),  # a reserved bit: compression is off
        (b"\x82\xff" + (MIB + 1).to_bytes(8) + bytes(4), 1009),
        (b"\x82\xff" + b"\xff" * 8 + bytes(4), 1009),
        (frame((1000).to_bytes(2), Opcode.CLOSE), 1000),
        (frame((4321).to_bytes(2) + b"why", Opcode.CLOSE), 4321),
    ],
    ids=map(str, range(10)),  # the frames have random masks
)
async def test_each_end_has_its_code(sent: bytes, code: int) -> None:
    async with serving_websockets() as (api, served), raw_websocket(api.server.port) as client:
        await client.send(frame(b"before") + sent + frame(b"after"))
        assert await client.frame() == (Opcode.BINARY, b"before")
        assert await client.close_code() == code
        assert await client.connection.closed() == b""
        client.connection.writer.close()
        await served[0].lost.wait()
        assert served[0].received == b"before"
        assert api.server.connection_count == 0


@pytest.mark.parametrize(("size", "is_accepted"), [(MIB - 1, True), (MIB, True), (MIB + 1, False)])
async def test_a_frame_has_a_limit(size: int, is_accepted: bool) -> None:
    async with serving_websockets() as (api, served), raw_websocket(api.server.port) as client:
        served[0].is_silent = True
        with_header = b"\x82\xff" + size.to_bytes(8) + bytes(4)
        await client.send(with_header + bytes(size))
        if is_accepted:
            await until(lambda: len(served[0].received) == size)
        else:
            assert await client.close_code() == 1009
            assert served[0].received == b""


async def test_a_client_that_still_sends_gets_the_close_code_and_no_reset() -> None:
    async with serving_websockets() as (api, _), raw_websocket(api.server.port) as client:
        await client.send(frame(b"text", Opcode.TEXT) + frame(bytes(4 * MIB)))
        assert await client.close_code() == 1003
        assert await client.connection.reader.read() == b""


async def test_the_broker_closes_with_a_handshake() -> None:
    async with (
        serving_websockets() as (api, served),
        connect(f"ws://127.0.0.1:{api.server.port}/amqp", subprotocols=AMQP) as socket,
    ):
        served[0].transport.write(b"last")
        served[0].transport.close()
        assert served[0].transport.is_closing()
        served[0].transport.write(b"dropped")
        assert await socket.recv() == b"last"
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 1000
        await served[0].lost.wait()


async def test_a_client_that_does_not_close_is_disconnected() -> None:
    async with serving_websockets() as (api, served), raw_websocket(api.server.port) as client:
        clock = LoopClock()
        served[0].transport.close()
        assert await client.close_code() == 1000
        await client.send(frame(b"too late"))
        await clock.advance(websocket.CLOSING_S - 0.1)
        assert api.server.connection_count == 1
        await clock.advance(0.2)
        assert await client.connection.closed() == b""
        await until(lambda: api.server.connection_count == 0)
        assert served[0].received == b""


async def test_an_abort_sends_nothing() -> None:
    async with serving_websockets() as (api, served), raw_websocket(api.server.port) as client:
        served[0].transport.abort()
        assert await client.connection.closed() == b""
        await served[0].lost.wait()


async def test_a_stop_closes_websockets_and_waits_for_them() -> None:
    clock = LoopClock()
    async with (
        serving_websockets() as (api, served),
        connect(f"ws://127.0.0.1:{api.server.port}/amqp", subprotocols=AMQP) as socket,
        raw_websocket(api.server.port) as late,
        raw_websocket(api.server.port),  # it answers nothing
    ):
        stopped = asyncio.create_task(api.server.stop())
        assert await late.close_code() == 1001
        await late.send(frame((1001).to_bytes(2), Opcode.CLOSE))
        assert await late.connection.reader.read() == b""  # no reset
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 1001
        await clock.advance(websocket.CLOSING_S - 0.1)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not stopped.done()
        await clock.advance(0.2)
        await stopped
        assert all(each.lost.is_set() for each in served)


async def test_the_user_may_pause_reading() -> None:
    async with serving_websockets() as (api, served), raw_websocket(api.server.port) as client:
        served[0].transport.pause_reading()
        assert not served[0].transport.is_reading()
        await client.send(frame(b"x"))
        await asyncio.sleep(0.05)
        assert served[0].received == b""
        served[0].transport.resume_reading()
        assert await client.frame() == (Opcode.BINARY, b"x")


async def test_pings_of_a_client_that_does_not_read_use_no_memory() -> None:
    async with serving_websockets() as (api, served), raw_websocket(api.server.port) as client:
        transport = served[0].transport
        client.pause_reading()
        while not served[0].is_paused:
            transport.write(bytes(MIB))
            await asyncio.sleep(0)
        unsent = transport.get_write_buffer_size()
        pings = b"".join(frame(b"%03d" % number, Opcode.PING) for number in range(1000))
        served[0].is_silent = True
        await client.send(pings + frame(b"received"))
        await until(lambda: served[0].received == b"received")
        assert transport.get_write_buffer_size() <= unsent
        client.resume_reading()
        while (answer := await client.frame())[0] == Opcode.BINARY:
            pass
        assert answer == (Opcode.PONG, b"999")
        assert not served[0].is_paused


async def test_incomplete_frames_are_counted_and_limited() -> None:
    part = b"\x82\xff" + (500_000).to_bytes(8) + bytes(4) + b"x"
    async with (
        serving_websockets(max_client_arriving_bytes=1_000_000) as (api, served),
        raw_websocket(api.server.port) as first,
        raw_websocket(api.server.port) as second,
        raw_websocket(api.server.port) as third,
    ):
        arriving = api.context.http.connections.arriving
        await first.send(part)
        await until(lambda: arriving.total_bytes > 500_000)
        await second.send(part)
        assert await second.close_code() == 1013  # 28 bytes of headers are too many
        await third.send(b"\x82\xfe" + (8_000).to_bytes(2) + bytes(4) + b"x")
        await first.send(bytes(499_999))
        await until(lambda: len(served[0].received) == 500_000)
        assert arriving.total_bytes == 0  # a small frame is not counted
        await first.send(part)
        await until(lambda: arriving.total_bytes > 500_000)
        first.connection.writer.close()
        await until(lambda: arriving.total_bytes == 0)


async def test_bytes_before_the_reply_are_refused() -> None:
    async with serving_websockets() as (api, served):
        for too_early in (frame(b"x"), b"\x82"):
            async with raw_connection(api.server.port) as connection:
                await connection.send(handshake() + too_early)
                status, _, body = await connection.answer()
                assert (status, b"after the reply" in body) == (400, True)
        assert served == []


async def test_a_slow_handshake_ends_as_any_slow_request() -> None:
    clock = LoopClock()
    async with serving_websockets() as (api, served), raw_websocket(api.server.port) as client:
        connections = api.context.http.connections
        for size in (1, 60, len(handshake()) - 1):
            async with raw_connection(api.server.port) as connection:
                await connection.send(handshake()[:size])
                await until(lambda: len(connections.header_timeouts) == 1)
                await clock.advance(HttpConfig().header_timeout_ms / 1000 + 1)
                assert await connection.closed() == b""
        assert connections.closed_early["slow-head"] == 3
        await until(lambda: api.server.connection_count == 1)
        await client.send(frame(b"x"))  # an open WebSocket has no such limit
        assert await client.frame() == (Opcode.BINARY, b"x")
        assert len(served) == 1


@pytest.mark.parametrize(("limit", "is_admitted"), [(1, False), (2, True), (3, True)])
async def test_websockets_count_as_connections(limit: int, is_admitted: bool) -> None:
    async with (
        serving_websockets(max_connections_per_client=limit) as (api, _),
        raw_websocket(api.server.port),
        raw_connection(api.server.port) as second,
    ):
        await second.send(handshake())
        status, _, _ = await second.answer()
        assert status == (101 if is_admitted else 429)


async def test_a_websocket_works_over_tls(tmp_path: Path) -> None:
    ca = Certificates(tmp_path)
    certificate, key = ca.issue("server")
    async with (
        serving_websockets(tls_certificate=str(certificate), tls_key=str(key)) as (api, served),
        connect(
            f"wss://localhost:{api.server.port}/amqp",
            subprotocols=AMQP,
            ssl=ca.trusting(),
            host="127.0.0.1",
        ) as socket,
    ):
        await socket.send(bytes(MIB))
        assert await read(socket, MIB) == bytes(MIB)
        served[0].transport.close()
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 1000


async def test_a_stalled_client_over_tls_pauses_the_user(tmp_path: Path) -> None:
    ca = Certificates(tmp_path)
    certificate, key = ca.issue("server")
    files = {"tls_certificate": str(certificate), "tls_key": str(key)}
    async with (
        serving_websockets(**files) as (api, served),
        raw_websocket(api.server.port, ca.trusting()) as client,
    ):
        client.pause_reading()
        written = 0
        while not served[0].is_paused:
            served[0].transport.write(bytes(MIB))
            written += MIB
            assert written < 64 * MIB
            await asyncio.sleep(0)
