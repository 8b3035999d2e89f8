"""What front processes would cost: hops to an appender process, notifications, and their own reads.

    python -m bench.fronts [--json] [--hops 4000] [--reads 4000] [--rounds 5]

A prototype for docs/scaling.md; the product has no front processes. A front is this process with an
event loop (uvloop), as the broker's; the core is a second process (or, as today, a thread) that
answers each request of 1,104 bytes with 32 bytes and does nothing else. The cases take turns in
each round, and each is compared with a thread hop (a lock there, `call_soon_threadsafe` back).

- hop: one request at a time, as fast as possible, and one each 2 ms (`cold`, as wake-ups are).
- 64 requests in flight: the cost of a message when one wake-up moves many.
- notification: the core writes an offset to shared memory and wakes N fronts that wait for it.
- read: a block of 100 KB by offset from the log and the index of a running broker, in a process of
  its own (its own LMDB transaction, `pread`, CRC), and through a pull over HTTP.
"""

import asyncio
import json
import mmap
import os
import select
import socket
import statistics
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import uvloop

from bench.bulk import BulkConnection
from bench.harness import arguments, broker, process_cpu_s
from bench.http_requests import Wire, encode_request
from bench.rows import TIMES, Row, report
from holdfast.commitlog.segments.commit_log import open_read_only
from holdfast.consumequeue.index.index import Index

_REQUEST, _REPLY = b"x" * 1104, b"y" * 32
_SLOTS = 256
_COLD_S = 0.002
_IN_FLIGHT = 64
_FORK = get_context("fork")
_COUNTER = struct.Struct("=q")
_FRONTS = (1, 4, 16)
_BATCH = 1000
_ACCEPT = {"Accept": "application/vnd.holdfast.batch"}


class Ring:
    """Messages of a fixed size in shared memory, from one process to another, and an eventfd that
    wakes the receiver if it sleeps."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._memory = mmap.mmap(-1, 192 + _SLOTS * size)
        self.wakes = os.eventfd(0)
        self._done = 0

    def put(self, messages: list[bytes]) -> None:
        """Write messages, and wake the receiver if it sleeps. There must be room."""
        written = self._number(0)
        for each in messages:
            at = 192 + written % _SLOTS * self._size
            self._memory[at : at + self._size] = each
            written += 1
        _COUNTER.pack_into(self._memory, 0, written)
        if self._number(128):
            _COUNTER.pack_into(self._memory, 128, 0)
            os.eventfd_write(self.wakes, 1)

    def take(self) -> list[bytes]:
        """Return the messages that have not been taken."""
        written, found = self._number(0), []
        while self._done < written:
            at = 192 + self._done % _SLOTS * self._size
            found.append(self._memory[at : at + self._size])
            self._done += 1
        return found

    def sleep(self) -> bool:
        """Ask for a wake-up. Return False if messages have arrived meanwhile."""
        _COUNTER.pack_into(self._memory, 128, 1)
        return self._number(0) == self._done

    def _number(self, at: int) -> int:
        return _number(self._memory, at)


def _core_on_socket(end: socket.socket) -> None:
    held = b""
    while data := end.recv(1 << 18):
        held += data
        count = len(held) // len(_REQUEST)
        held = held[count * len(_REQUEST) :]
        if count:
            end.sendall(_REPLY * count)


def _core_on_rings(asks: Ring, answers: Ring) -> None:
    poll = select.poll()
    poll.register(asks.wakes, select.POLLIN)
    while True:
        while taken := asks.take():
            if taken[0][:3] == b"end":
                return
            answers.put([_REPLY] * len(taken))
        # The time limit covers a wake-up that Python's missing memory barriers might lose.
        if asks.sleep() and poll.poll(100):
            os.eventfd_read(asks.wakes)


class ThreadHop:
    """As today: a thread of this process."""

    name = "thread"

    def __init__(self, answered: Callable[[int], None]) -> None:
        self._answered = answered
        self._loop = asyncio.get_running_loop()
        self._asks: deque[bytes] = deque()
        self._wakes = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def ask(self, count: int) -> None:
        """Send requests."""
        self._asks.extend([_REQUEST] * count)
        self._wakes.release()

    def core_cpu_s(self) -> float:
        """Return 0: the thread belongs to this process."""
        return 0.0

    def close(self) -> None:
        """End the core."""
        self._asks.append(b"end")
        self._wakes.release()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._wakes.acquire()
            count = len(self._asks)
            for _ in range(count):
                if self._asks.popleft() == b"end":
                    return
            if count:
                self._loop.call_soon_threadsafe(self._answered, count)


class SocketHop:
    """A process, over a Unix socket."""

    name = "Unix socket"

    def __init__(self, answered: Callable[[int], None]) -> None:
        self._answered = answered
        self._end, theirs = socket.socketpair()
        self._process = _forked(_core_on_socket, theirs)
        theirs.close()
        self._end.setblocking(False)
        asyncio.get_running_loop().add_reader(self._end, self._read)

    def ask(self, count: int) -> None:
        """Send requests."""
        data = _REQUEST * count
        assert self._end.send(data) == len(data)

    def core_cpu_s(self) -> float:
        """Return the processor time of the core so far."""
        return process_cpu_s(self._process.pid)

    def close(self) -> None:
        """End the core."""
        asyncio.get_running_loop().remove_reader(self._end)
        self._process.terminate()
        self._process.join()
        self._end.close()

    def _read(self) -> None:
        self._answered(len(self._end.recv(1 << 18)) // len(_REPLY))


class RingHop:
    """A process, over shared memory with an eventfd in each direction."""

    name = "shared memory"

    def __init__(self, answered: Callable[[int], None]) -> None:
        self._answered = answered
        self._asks, self._answers = Ring(len(_REQUEST)), Ring(len(_REPLY))
        self._process = _forked(_core_on_rings, self._asks, self._answers)
        self._answers.sleep()
        asyncio.get_running_loop().add_reader(self._answers.wakes, self._read)

    def ask(self, count: int) -> None:
        """Send requests."""
        self._asks.put([_REQUEST] * count)

    def core_cpu_s(self) -> float:
        """Return the processor time of the core so far."""
        return process_cpu_s(self._process.pid)

    def close(self) -> None:
        """End the core."""
        asyncio.get_running_loop().remove_reader(self._answers.wakes)
        self._asks.put([b"end".ljust(len(_REQUEST))])
        self._process.join()

    def _read(self) -> None:
        os.eventfd_read(self._answers.wakes)
        while True:
            if taken := self._answers.take():
                self._answered(len(taken))
            if self._answers.sleep():
                return


_HOPS: tuple[type[ThreadHop] | type[SocketHop] | type[RingHop], ...] = (
    ThreadHop,
    SocketHop,
    RingHop,
)


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__ or "", hops=4000, reads=4000, rounds=5)
    found = [*_hop_rows(options.hops, options.rounds), *_notice_rows(options.rounds)]
    report([*found, *_read_rows(options.reads, options.rounds)], as_json=options.json)


def _hop_rows(hops: int, rounds: int) -> Iterator[Row]:
    """Yield the time of a round trip and both processes' time, and the ratios to a thread."""
    modes = (("hop, hot", 1, 0.0, hops), ("hop, cold", 1, _COLD_S, hops // 10))
    for mode, in_flight, pause, count in (*modes, ("64 in flight", _IN_FLIGHT, 0.0, hops * 4)):
        trips = {hop.name: Row("", f"{mode}: {hop.name}, p50", "-", "us", []) for hop in _HOPS}
        spent = {hop.name: Row("", f"{mode}: {hop.name}, cpu", "-", "us", []) for hop in _HOPS}
        for number in range(rounds + 1):
            for hop in _HOPS:
                trip, cpu = uvloop.run(_hops(hop, count, in_flight, pause))
                if number:
                    trips[hop.name].values.append(trip)
                    spent[hop.name].values.append(cpu)
        yield from (*(trips.values() if in_flight == 1 else ()), *spent.values())
        for what, of in (("p50", trips), ("cpu", spent)):
            for hop in _HOPS[1:]:
                if in_flight == 1 or what == "cpu":
                    case = f"{mode}: {hop.name} beside thread, {what}"
                    base = of[ThreadHop.name].values
                    yield _ratio(case, of[hop.name].values, base)


async def _hops(make: Any, count: int, in_flight: int, pause_s: float) -> tuple[float, float]:
    """Return the median round trip and the processor time of a message, in microseconds."""
    arrived = asyncio.Event()
    waiting = 0

    def answered(number: int) -> None:
        nonlocal waiting
        waiting -= number
        if not waiting:
            arrived.set()

    hop = make(answered)
    took = []
    try:
        core, own = hop.core_cpu_s(), time.process_time()
        for _ in range(max(count // in_flight, 1)):
            if pause_s:
                await asyncio.sleep(pause_s)
            arrived.clear()
            waiting = in_flight
            started = time.perf_counter()
            hop.ask(in_flight)
            await arrived.wait()
            took.append(time.perf_counter() - started)
        cpu = time.process_time() - own + hop.core_cpu_s() - core
    finally:
        hop.close()
    return statistics.median(took) * 1e6, cpu / (len(took) * in_flight) * 1e6


def _notice_rows(rounds: int, notices: int = 300) -> Iterator[Row]:
    """Yield the core's time for waking fronts, and the time until the last of them runs."""
    for fronts in _FRONTS:
        cpu = Row("", f"notification of {fronts}: core's cpu", "-", "us", [])
        last = Row("", f"notification of {fronts}: until the last runs, p50", "-", "us", [])
        for _ in range(rounds):
            spent, late = _notices(fronts, notices)
            cpu.values.append(spent)
            last.values.append(late)
        yield from (cpu, last)


def _notices(fronts: int, notices: int) -> tuple[float, float]:
    memory = mmap.mmap(-1, 4096)
    wakes = [os.eventfd(0) for _ in range(fronts)]
    processes = [
        _forked(_noticing_front, memory, each, 8 * (number + 1), notices)
        for number, each in enumerate(wakes)
    ]
    spent, late = 0.0, []
    for number in range(notices):
        time.sleep(_COLD_S)
        started, before = time.monotonic_ns(), time.thread_time()
        _COUNTER.pack_into(memory, 0, number)
        for each in wakes:
            os.eventfd_write(each, 1)
        spent += time.thread_time() - before
        ends = [0]
        while min(ends) < started:
            time.sleep(0.0002)
            ends = [_number(memory, 8 * (front + 1)) for front in range(fronts)]
        late.append((max(ends) - started) / 1000)
    for process in processes:
        process.join()
    for each in wakes:
        os.close(each)
    return spent / notices * 1e6, statistics.median(late)


def _noticing_front(memory: mmap.mmap, wakes: int, at: int, notices: int) -> None:
    for _ in range(notices):
        os.eventfd_read(wakes)
        assert _number(memory, 0) >= 0
        _COUNTER.pack_into(memory, at, time.monotonic_ns())


def _read_rows(reads: int, rounds: int) -> Iterator[Row]:
    """Yield the time of a read by a front, of its index part, and of the broker for a pull."""
    own = Row("", "read of a block by a front: cpu", "written", "us", [])
    look_up = Row("", "LMDB transaction and look-up of it: cpu", "written", "us", [])
    pull = Row("", "pull of the block from the broker: cpu", "written", "us", [])
    with broker() as running:
        connection = BulkConnection(running.url)
        connection.create("read")
        blocks = 500
        connection.publish("read", messages=blocks * _BATCH, body_bytes=100, batch=_BATCH)
        topic_id = json.loads(connection.ask("GET", "/v1/topics/read"))["topic_id"]
        wire = Wire(running.url)
        time.sleep(1)  # until the index is committed
        for number in range(rounds + 1):
            times = _reads(running.data_dir, topic_id, reads, blocks)
            before = process_cpu_s(running.pid)
            for each in range(reads):
                offset = each * 7 % blocks * _BATCH
                path = f"/v1/topics/read/queues/0/messages?offset={offset}&max_messages={_BATCH}"
                assert len(wire.ask(encode_request("GET", path, headers=_ACCEPT))) > 100 * _BATCH
            spent = process_cpu_s(running.pid) - before
            if number:
                own.values.append(times[0])
                look_up.values.append(times[1])
                pull.values.append(spent / reads * 1e6)
    yield from (own, look_up, pull)
    yield _ratio("read by a front beside a pull from the broker, cpu", own.values, pull.values)


def _reads(data_dir: Path, topic_id: int, reads: int, blocks: int) -> tuple[float, float]:
    ours, theirs = _FORK.Pipe()
    process = _forked(_reading_front, data_dir, topic_id, reads, blocks, theirs)
    told: tuple[float, float] = ours.recv()
    process.join()
    return told


def _reading_front(data_dir: Path, topic_id: int, reads: int, blocks: int, out: Any) -> None:
    index = Index(data_dir / "consumequeue", 1 << 30, readonly=True)
    with open_read_only(data_dir / "commitlog") as log:
        key = (topic_id, 0)
        started = time.process_time()
        for each in range(reads):
            next(index.units(key, each * 7 % blocks * _BATCH))
        between = time.process_time()
        for each in range(reads):
            unit = next(index.units(key, each * 7 % blocks * _BATCH))
            log.read_batch(unit.physical_offset, unit.size)
        ended = time.process_time()
    index.close()
    out.send(((ended - between) / reads * 1e6, (between - started) / reads * 1e6))


def _forked(work: Callable[..., None], *arguments: Any) -> Any:
    process = _FORK.Process(target=work, args=arguments, daemon=True)
    process.start()
    return process


def _number(memory: mmap.mmap, at: int) -> int:
    return int(_COUNTER.unpack_from(memory, at)[0])


def _ratio(case: str, values: list[float], base: list[float]) -> Row:
    return Row("", case, "-", TIMES, [a / b for a, b in zip(values, base, strict=True)])


if __name__ == "__main__":
    main()
