"""The cost of idle AMQP connections and links (B8).

    python -m bench.amqp_idle [--json] [--connections 1000] [--wakes 1000] [--rounds 3]

Each connection has one receiver with credit, a member of the same group; client and broker send
heartbeats every 15 s. `wake` is the time from the transfer of a publish, on another connection,
to the transfer at one of the receivers, at 100 messages/s. Then many links of one kind are
attached to one connection, without credit: the memory of each link.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvloop

from bench.amqp_raw import TRANSFER, WINDOW, RawClient, encoded, handshake
from bench.harness import ARGUMENTS, arguments, broker, process_cpu_s, process_resident_bytes
from bench.hold_http import open_more_files, put_topic
from bench.rows import Row, report
from holdfast.amqp.wire.fast_transfer import TransferEncoder
from holdfast.amqp.wire.frames import EMPTY_FRAME
from holdfast.amqp.wire.performatives import (
    Accepted,
    Attach,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Source,
    Target,
)
from holdfast.amqp.wire.types import Described, ULong, encode
from holdfast.free_port import free_port
from holdfast.running_broker import RunningBroker

_MESSAGE = encode(Described(ULong(0x75), bytes(100)))
_MAX_FRAME_BYTES = 65_536
#: A client announces this, so both ends send a heartbeat after half of it.
_IDLE_TIMEOUT_MS = 30_000
_HEARTBEAT_S = 15.0
_IDLE_S = 20.0
_WAKE_S = 0.01
_CREDIT = 1_000
#: `_links` attaches this many links of each kind. A session may have 1,000 (`amqp.max_links`).
_LINKS = 1_000
_KINDS = {
    "receives from a group": Attach("", 0, True, source=Source("/groups/idle"), target=Target("x")),
    "receives from a topic": Attach("", 0, True, source=Source("/topics/idle"), target=Target("x")),
    "sends": Attach("", 0, False, source=Source("x"), target=Target("idle")),
}
_MEMORY_BAR_MIB, _IDLE_BAR, _WAKE_BAR_MS, _LINK_BAR = 40, 1.0, 10.0, 4096


def main() -> None:
    """Measure and print."""
    options = arguments("Idle connections.", connections=1_000, wakes=1_000, rounds=3)
    open_more_files()
    report(rows(options.connections, options.wakes, options.rounds), as_json=options.json)


def rows(connections: int, wakes: int, rounds: int) -> Iterator[Row]:
    """Measure; each round has a new broker."""
    what = f"{connections:,} idle connections"
    mode = "written"
    memory = Row("B8", f"{what}: memory", mode, "MiB", [], at_most=_MEMORY_BAR_MIB)
    empty = Row("B8", "no connection: processor", mode, "% of a core", [])
    idle = Row("B8", f"{what}: processor", mode, "% of a core", [], at_most=_IDLE_BAR)
    wake = Row("B8", f"{what}: wake p99", mode, "ms", [], at_most=_WAKE_BAR_MS)
    middle = Row("B8", f"{what}: wake p50", mode, "ms", [])
    links = {
        kind: Row("B8", f"a link that {kind}: memory", mode, "B", [], at_most=_LINK_BAR)
        for kind in _KINDS
    }
    for _ in range(rounds):
        with _broker() as (running, port):
            measured = uvloop.run(_connections(running, port, connections, wakes))
            for row, value in zip((memory, empty, idle, wake, middle), measured, strict=True):
                row.values.append(value)
        for kind, row in links.items():
            with _broker() as (running, port):  # nothing has freed memory that the links would use
                row.values.append(uvloop.run(_links(running, port, _KINDS[kind])))
    yield from (memory, empty, idle, wake, middle, *links.values())


@contextmanager
def _broker() -> Iterator[tuple[RunningBroker, int]]:
    """Run a broker with the topic and the group `idle`; yield it and its port for AMQP."""
    port = free_port()
    with broker((*ARGUMENTS, "--amqp-port", str(port))) as running:
        put_topic(running.url, "idle", 1, "written")
        with running.client() as client:
            client.create_group("idle", topics=["idle"])
        yield running, port


async def _connections(
    running: RunningBroker, port: int, count: int, wakes: int
) -> tuple[float, ...]:
    """Return the memory in MiB, the idle processor time in percent, without and with connections,
    and the p99 and the p50 of the wakes in ms."""
    empty = await _idle_percent(running)
    publisher = _Publisher()
    sender = Attach("out", 0, False, source=Source("x"), target=Target("idle"))
    octets = handshake(sender._replace(initial_delivery_count=0))
    publisher.client = await RawClient.connect(port, octets, publisher.read)
    receivers = _Receivers()
    await receivers.add(port, 1)  # what the first connection and the first message load
    await receivers.wake(publisher, 100)
    before = process_resident_bytes(running.pid)
    await receivers.add(port, count)
    heartbeats = asyncio.create_task(receivers.send_heartbeats())
    memory = (process_resident_bytes(running.pid) - before) / 2**20
    idle = await _idle_percent(running)
    times = sorted(await receivers.wake(publisher, wakes))
    heartbeats.cancel()
    publisher.client.transport.abort()
    receivers.close()
    return memory, empty, idle, times[len(times) * 99 // 100], times[len(times) // 2]


async def _idle_percent(running: RunningBroker) -> float:
    spent_s = process_cpu_s(running.pid)
    await asyncio.sleep(_IDLE_S)
    return 100 * (process_cpu_s(running.pid) - spent_s) / _IDLE_S


def _refuse(performative: object) -> None:
    assert not isinstance(performative, Detach | End | Close), performative


class _Publisher:
    """Sends single messages."""

    client: RawClient

    def __init__(self) -> None:
        self._encoder = TransferEncoder(0, 0, _MAX_FRAME_BYTES)
        self._sent = 0

    def read(self, client: RawClient, performative: object) -> None:
        _refuse(performative)

    def publish(self) -> None:
        number = self._sent
        self._sent += 1
        tag = number.to_bytes(4, "big")
        self.client.transport.write(b"".join(self._encoder.frames(number, tag, False, _MESSAGE)))


class _Receivers:
    """Connections with one receiver each."""

    def __init__(self) -> None:
        self._clients: list[RawClient] = []
        self._received: dict[RawClient, int] = {}
        self._attached = 0
        self._changed = asyncio.Event()
        self._arrived_s = 0.0

    async def add(self, port: int, count: int) -> None:
        """Connect, and wait until each link is attached."""
        attach = Attach("in", 0, True, source=Source("/groups/idle"), target=Target("x"))
        flow = Flow(0, WINDOW, 0, WINDOW, handle=0, delivery_count=0, link_credit=_CREDIT)
        for _ in range(count):
            name = f"receiver {len(self._clients)}"
            octets = handshake(attach, container_id=name, idle_timeout_ms=_IDLE_TIMEOUT_MS)
            octets += encoded(flow)
            self._clients.append(await RawClient.connect(port, octets, self._read))
        while self._attached < len(self._clients):
            self._changed.clear()
            await self._changed.wait()

    async def send_heartbeats(self) -> None:
        """Send a heartbeat on each connection every 15 s, spread over this time."""
        while True:
            for each in self._clients:
                each.transport.write(EMPTY_FRAME)
                await asyncio.sleep(_HEARTBEAT_S / len(self._clients))

    async def wake(self, publisher: _Publisher, times: int) -> list[float]:
        """Publish single messages; return the time of each until it arrived, in ms."""
        found = []
        for _ in range(times):
            self._changed.clear()
            started_s = time.perf_counter()
            publisher.publish()
            async with asyncio.timeout(30):
                await self._changed.wait()
            found.append((self._arrived_s - started_s) * 1000)
            await asyncio.sleep(_WAKE_S)
        return found

    def close(self) -> None:
        for each in self._clients:
            each.transport.abort()

    def _read(self, client: RawClient, performative: object) -> None:
        if performative is TRANSFER:
            self._arrived_s = time.perf_counter()
            number = self._received.get(client, 0)
            self._received[client] = number + 1
            client.transport.write(encoded(Disposition(True, number, number, True, Accepted())))
            self._changed.set()
        elif isinstance(performative, Attach):
            self._attached += 1
            self._changed.set()
        _refuse(performative)


async def _links(running: RunningBroker, port: int, attach: Attach) -> float:
    """Attach links of one kind to one connection; return the bytes of each."""
    attached = 0
    changed = asyncio.Event()

    def read(client: RawClient, performative: object) -> None:
        nonlocal attached
        _refuse(performative)
        if isinstance(performative, Attach):
            attached += 1
            changed.set()

    async def until(count: int) -> None:
        while attached < count:
            changed.clear()
            await changed.wait()

    def named(number: int) -> Attach:
        count = None if attach.role else 0
        return attach._replace(name=f"{number}", handle=number, initial_delivery_count=count)

    client = await RawClient.connect(port, handshake(named(0)), read)
    await until(1)
    before = process_resident_bytes(running.pid)
    for number in range(1, _LINKS):
        client.transport.write(encoded(named(number)))
        await until(number + 1)
    await asyncio.sleep(0.5)
    each = (process_resident_bytes(running.pid) - before) / (_LINKS - 1)
    client.transport.abort()
    return each


if __name__ == "__main__":
    main()
