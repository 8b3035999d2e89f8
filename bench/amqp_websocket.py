"""AMQP over WebSocket compared with AMQP over TCP: rate, and the broker's processor time (B10).

    python -m bench.amqp_websocket [--json] [--messages 60000] [--rounds 5]

One client publishes messages of 100 bytes, then receives and accepts them, with a credit of 1,000.
The ways take turns in one run. A client over WebSocket sends either each of its writes as one
message, or each frame of AMQP as one message, as some libraries do.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import uvloop

from bench.harness import ARGUMENTS, arguments, broker, measure
from bench.rows import RATE, TIMES, Row, report
from holdfast.amqp.engine.connection import Connection, ConnectionSettings
from holdfast.amqp.engine.events import (
    Attached,
    Begun,
    CreditChanged,
    Disposed,
    Opened,
    Received,
    SaslOffered,
)
from holdfast.amqp.wire.performatives import Accepted, Attach, Source, Target
from holdfast.amqp.wire.types import encode
from holdfast.free_port import free_port

_BODY_BYTES = 100
_CREDIT = 1_000
_BAR = 0.8
_TCP = "TCP"
_WAYS = (_TCP, "WebSocket, a message a write", "WebSocket, a message a frame")
_MESSAGE = b"\x00\x53\x75" + encode(bytes(_BODY_BYTES))
_HANDSHAKE = (
    b"GET /amqp HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: amqp\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def main() -> None:
    """Measure and print."""
    options = arguments("AMQP over WebSocket beside TCP.", messages=60_000, rounds=5)
    report(rows(options.messages, options.rounds), as_json=options.json)


def rows(messages: int, rounds: int) -> Iterator[Row]:
    """Measure each way in turns; yield its rates, and their ratio to TCP."""
    found: dict[tuple[str, str], Row] = {}
    port = free_port()
    settings = ("--amqp-port", port, "--amqp-publish-credit", _CREDIT, "--amqp-incoming-window",
                2 * _CREDIT, "--amqp-non-durable", "written")  # fmt: skip
    for _ in range(rounds):
        for way in _WAYS:
            with broker((*ARGUMENTS, *map(str, settings))) as running:
                http_port = urlsplit(running.url).port
                client = _Session(way, port if way == _TCP else http_port or 0)
                for work in (client.publish, client.receive):
                    figure = measure(
                        way,
                        running,
                        partial(client.run, work, messages),
                        durability="written",
                        messages=messages,
                        body_bytes=_BODY_BYTES,
                    )
                    case = f"{work.__name__} over {way}"
                    row = found.setdefault(
                        (work.__name__, way), Row("B10", case, "written", RATE, [], _BODY_BYTES)
                    )
                    row.values.append(figure.messages_per_s)
                    row.broker_us.append(figure.broker_cpu_s / messages * 1e6)
                    row.client_us.append(figure.client_cpu_s / messages * 1e6)
                client.run(client.close)
    for (what, way), row in found.items():
        yield row
        if way != _TCP:
            by_tcp = found[what, _TCP].values
            ratios = [ours / theirs for ours, theirs in zip(row.values, by_tcp, strict=True)]
            yield Row("B10", f"{row.case} / TCP", "written", TIMES, ratios, at_least=_BAR)


class _Session:
    """One client with one connection, on an event loop of its own."""

    def __init__(self, way: str, port: int) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._client = self._runner.run(_connect(way, port))

    def run(self, work: Callable[..., Coroutine[Any, Any, None]], *given: int) -> None:
        self._runner.run(work(*given))

    async def publish(self, messages: int) -> None:
        client = self._client
        link = client.session.sender(
            "out",
            lambda handle: Attach(
                "out", handle, False, source=Source("out"), target=Target("bench"),
                initial_delivery_count=0,
            ),
        )  # fmt: skip
        sent = 0
        while client.outcomes < messages:
            count = min(link.sendable, messages - sent)
            for _ in range(count):
                link.send(_MESSAGE)
            sent += count
            await client.next()

    async def receive(self, messages: int) -> None:
        client = self._client
        link = client.session.receiver(
            "in",
            lambda handle: Attach("in", handle, True, source=Source("bench"), target=Target("in")),
        )
        await client.until(Attached)
        await client.until(Attached)  # the first one was that of the publisher
        link.grant(_CREDIT)
        while client.received < messages:
            await client.next()
            if link.credit < _CREDIT // 2:
                link.grant(_CREDIT)
        client.write()

    async def close(self) -> None:
        self._client.transport.abort()


class _Client(asyncio.Protocol):
    """The client half of the engine, over TCP or WebSocket."""

    def __init__(self, way: str) -> None:
        self.engine = Connection(ConnectionSettings("bench"), is_server=False)
        self.session: Any = None
        self.transport: Any = None
        self.outcomes = self.received = 0
        self.seen: list[type] = []
        self._way = way
        self._is_upgraded = way == _TCP
        self._rest = b""
        self._changed = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        if self._is_upgraded:
            self.write()
        else:
            transport.write(_HANDSHAKE)

    def data_received(self, data: bytes) -> None:
        if self._way != _TCP:
            data = self._unframed(self._rest + data)
        for event in self.engine.receive_data(data):
            if type(event) is Received:
                ids = [each.id for each in event.deliveries]
                self.received += len(ids)
                self.session.dispose(ids[0], ids[-1], Accepted(), settled=True)
            elif type(event) is Disposed:
                self.outcomes += len(event.deliveries)
            elif type(event) is SaslOffered:
                self.engine.sasl_init("ANONYMOUS", b"", None)
            elif type(event) is not CreditChanged:
                self.seen.append(type(event))
        self._changed.set()
        self.write()

    def _unframed(self, data: bytes) -> bytes:
        """Return the payloads of the whole frames, and keep the rest."""
        at, payloads = 0, []
        if not self._is_upgraded:
            assert data.startswith(b"HTTP/1.1 101 "), data
            at = data.index(b"\r\n\r\n") + 4
            self._is_upgraded = True
        while len(data) - at >= 4:
            length, start = data[at + 1], at + 2
            if length == 126:
                length, start = int.from_bytes(data[at + 2 : at + 4]), at + 4
            if start + length > len(data):
                break
            payloads.append(data[start : start + length])
            at = start + length
        self._rest = data[at:]
        return b"".join(payloads)

    def write(self) -> None:
        """Send the output of the engine, once the WebSocket is open."""
        output = self.engine.take_output() if self._is_upgraded else b""
        if not output:
            return
        if self._way == _TCP:
            self.transport.write(output)
        elif self._way.endswith("write"):
            self.transport.write(_framed(output))
        else:
            self.transport.write(b"".join(map(_framed, _frames(bytes(output)))))

    async def next(self) -> None:
        """Send the output, and wait until bytes arrive."""
        self._changed.clear()
        self.write()
        await self._changed.wait()

    async def until(self, event: type) -> None:
        while event not in self.seen:
            await self.next()
        self.seen.remove(event)


def _framed(data: bytes) -> bytes:
    """Return a masked frame. With a key of zeros only the broker spends time on the mask."""
    size = len(data)
    if size < 126:
        head = bytes((0x82, 0x80 | size))
    elif size < 65_536:
        head = b"\x82\xfe" + size.to_bytes(2)
    else:
        head = b"\x82\xff" + size.to_bytes(8)
    return head + bytes(4) + data


def _frames(output: bytes) -> Iterator[bytes]:
    """Yield the frames of AMQP, and headers of protocols."""
    at = 0
    while at < len(output):
        size = 8 if output.startswith(b"AMQP", at) else int.from_bytes(output[at : at + 4])
        yield output[at : at + size]
        at += size


async def _connect(way: str, port: int) -> _Client:
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(lambda: _Client(way), "127.0.0.1", port)
    await client.until(Opened)
    client.session = client.engine.begin()
    await client.until(Begun)
    return client


if __name__ == "__main__":
    main()
