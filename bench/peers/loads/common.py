"""Common parts of the loads: they run the requested verb, measure the time, print a line when the
measured work begins, and print the measurement as JSON at the end.

python -m bench.peers.loads.NAME '{"verb": "publish", "address": ..., ...}'
"""

import json
import multiprocessing
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, Protocol

_STAMP_BYTES = 20
#: Whether the work waits for a line from standard input.
_observed = threading.Event()


class Load(Protocol):
    """A load of one client library. Topics exist, with one queue or partition."""

    def __init__(self, address: str, durability: str) -> None:
        """Store the settings without connecting."""

    def create(self, topic: str) -> None:
        """Create the topic."""

    def publish(self, topic: str, messages: int, body: bytes, batch: int) -> None:
        """Publish in batches, with the library's fast method; return when all are acknowledged."""

    def consume(self, topic: str, messages: int) -> int:
        """Read `messages` messages from the beginning; return the total bytes of their bodies."""

    def sender(self, topic: str) -> Callable[[bytes], object]:
        """Return a function that publishes one message and waits for its acknowledgement.

        Call this method in the thread that will use the function.
        """

    def singles(self, topic: str, body: bytes, *, producers: int, each: int, shared: bool) -> None:
        """Let `producers` producers publish one message at a time and wait for each
        acknowledgement.

        They share one client if `shared`; otherwise each has its own client and connection.
        """

    def deliveries(self, topic: str) -> Iterator[bytes]:
        """Wait for messages that are published from now on; yield each body when it arrives."""


def main(make: Callable[[str, str], Any]) -> None:
    """Run the verb from the command line and print its measurement.

    With `"observed": true` the timed work starts and ends with a line from standard input, so that
    a profiler sees only that work.
    """
    asked = json.loads(sys.argv[1])
    if asked.pop("observed", False):
        _observed.set()
    load = make(asked.pop("address"), asked.pop("durability"))
    told = _VERBS[asked.pop("verb")](load, **asked)
    print(json.dumps(told))


def _publish(
    load: Load, *, topic: str, messages: int, body_bytes: int, batch: int
) -> dict[str, Any]:
    load.create(topic)
    body = b"x" * body_bytes
    return _timed(messages, body_bytes, lambda: load.publish(topic, messages, body, batch))


def _consume(load: Load, *, topic: str, messages: int, body_bytes: int) -> dict[str, Any]:
    def consume() -> None:
        size = load.consume(topic, messages)
        if size != messages * body_bytes:
            raise ValueError(f"{size} bytes came, not {messages * body_bytes}")

    return _timed(messages, body_bytes, consume)


def _singles(
    load: Load,
    *,
    topic: str,
    messages: int,
    body_bytes: int,
    producers: int,
    shared: bool = True,
) -> dict[str, Any]:
    load.create(topic)
    body = b"x" * body_bytes
    load.sender(topic)(body)  # with the first message, a server creates what the topic needs
    each = messages // producers
    return _timed(
        each * producers,
        body_bytes,
        lambda: load.singles(topic, body, producers=producers, each=each, shared=shared),
    )


def singles_in_threads(
    sender: Callable[[], Callable[[bytes], object]], body: bytes, *, producers: int, each: int
) -> None:
    """Run Load.singles with one thread per producer, for libraries that are used that way. Each
    thread calls `sender` once."""

    def produce() -> None:
        send = sender()
        for _ in range(each):
            send(body)

    with ThreadPoolExecutor(producers) as threads:
        for done in [threads.submit(produce) for _ in range(producers)]:
            done.result()


def _latency(
    load: Load, *, topic: str, messages: int, body_bytes: int, rate: int
) -> dict[str, Any]:
    """Publish at a fixed rate. Measure the time from just before each publish to the delivery of
    its message in another process."""
    load.create(topic)
    ours, theirs = multiprocessing.Pipe()
    consumer = multiprocessing.get_context("fork").Process(
        target=_receive, args=(load, topic, theirs), daemon=True
    )
    consumer.start()
    send = load.sender(topic)
    while not ours.poll(0.05):  # publish until the consumer reports that it has received a message
        send(_stamped(0, body_bytes))
    ours.recv()

    def publish() -> None:
        started = time.perf_counter()
        for number in range(messages):
            early = started + number / rate - time.perf_counter()
            if early > 0:
                time.sleep(early)
            send(_stamped(time.monotonic_ns(), body_bytes))

    told = _timed(messages, body_bytes, publish)
    send(_stamped(-1, body_bytes))
    told["latencies_ms"] = ours.recv()
    consumer.join(10)
    return told


def _receive(load: Load, topic: str, out: Connection) -> None:
    latencies: list[float] = []
    told = False
    for body in load.deliveries(topic):
        now = time.monotonic_ns()
        sent = int(body[:_STAMP_BYTES])
        if sent > 0:
            latencies.append((now - sent) / 1e6)
        elif sent < 0:
            out.send(latencies)
            return
        elif not told:
            told = True
            out.send(None)


def _stamped(number: int, body_bytes: int) -> bytes:
    return str(number).rjust(_STAMP_BYTES).encode().ljust(body_bytes, b"x")


def _timed(messages: int, body_bytes: int, work: Callable[[], object]) -> dict[str, Any]:
    print("begins", flush=True)
    _wait_for_observer()
    cpu = _cpu_s()
    started = time.perf_counter()
    work()
    told = {
        "messages": messages,
        "body_bytes": body_bytes,
        "seconds": time.perf_counter() - started,
        "client_cpu_s": _cpu_s() - cpu,
    }
    _wait_for_observer()
    return told


def _wait_for_observer() -> None:
    if _observed.is_set():
        print("waiting", flush=True)
        sys.stdin.readline()


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


_VERBS: dict[str, Callable[..., dict[str, Any]]] = {
    "publish": _publish,
    "consume": _consume,
    "singles": _singles,
    "latency": _latency,
}
