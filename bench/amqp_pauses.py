"""How long a stalled link, or large messages, hold up the other channels of a connection.

    python -m bench.amqp_pauses [--json] [--messages 2000] [--rounds 5]

Each channel is a session of AMQP 1.0, all over the same connection. In the first case, one channel
publishes to a topic whose syncs take half a second, so it waits most of the time. Another channel
publishes messages of 100 bytes one by one in written mode; the figure is the longest time until a
confirmation. In the second case, one channel gets messages of 1 MiB all the time, with credit for
one: what the socket has taken cannot be overtaken, so more credit takes more time. Two other
channels publish and get messages of 100 bytes one by one; the figure is the time that a message
takes. The client decodes the large messages in the same process, so its time counts too.
"""

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import holdfast
from bench.harness import ARGUMENTS, arguments
from bench.rows import Row, report
from holdfast.client import ChannelMessage, Connection
from holdfast.running_broker import RunningBroker

_BODY = bytes(100)
_LARGE = bytes(1 << 20)
_LARGE_MESSAGES = 64
_LARGE_CREDIT = 1
_MOST_PAUSE_MS = 50.0
_MOST_URGENT_MS = 20.0
_SLOW = (sys.executable, "-m", "bench.slow_sync_broker")
_PLAIN = (sys.executable, "-m", "holdfast")

#: Measures with a connection, and a number of messages; returns milliseconds for each.
_Measure = Callable[[Connection, int], list[float]]


def main() -> None:
    """Measure and print."""
    options = arguments("How long links hold up other links.", messages=2_000, rounds=5)
    report(rows(options.messages, options.rounds), as_json=options.json)


def rows(messages: int, rounds: int) -> Iterator[Row]:
    """Measure in turns; yield the longest times until a confirmation, and the times to arrive."""
    alone = Row("", "longest confirmation, one channel", "written", "ms", [])
    pause = Row("", "the same, another one waits", "written", "ms", [], at_most=_MOST_PAUSE_MS)
    idle = Row("", "publish to delivery, p99", "written", "ms", [])
    urgent = Row("", "the same, among 1 MiB", "written", "ms", [], at_most=_MOST_URGENT_MS)
    for _ in range(rounds):
        alone.values.append(max(_run(_SLOW, _confirmations, messages)))
        pause.values.append(max(_run(_SLOW, _confirmations_beside_a_stalled_channel, messages)))
        idle.values.append(_p99(_run(_PLAIN, _deliveries, messages)))
        urgent.values.append(_p99(_run(_PLAIN, _deliveries_among_large_messages, messages)))
    yield from (alone, pause, idle, urgent)


def _p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


def _run(program: tuple[str, ...], measure: _Measure, messages: int) -> list[float]:
    """Measure with a new broker."""
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        RunningBroker(Path(folder) / "data", ARGUMENTS, program=program) as running,
    ):
        with running.client() as client:
            for topic in ("fast", "large"):
                client.create_topic(topic, queues=1, durability="written")
            client.create_topic("slow", queues=1, durability="fsync")
            client.publish("fast", _BODY)  # the first publish of a topic may wait for a sync
            if measure is _deliveries_among_large_messages:
                for _ in range(_LARGE_MESSAGES):
                    client.publish("large", _LARGE)
        with holdfast.connect(running.url) as connection:
            return measure(connection, messages)


def _confirmations(connection: Connection, messages: int) -> list[float]:
    """Publish messages one by one; return how long the confirmations took."""
    found = []
    with connection.channel() as channel:
        for _ in range(messages):
            began_s = time.perf_counter()
            channel.publish("fast", _BODY)
            found.append((time.perf_counter() - began_s) * 1e3)
    return found


def _confirmations_beside_a_stalled_channel(connection: Connection, messages: int) -> list[float]:
    is_over = threading.Event()

    def publish() -> None:
        with connection.channel() as channel:
            while not is_over.is_set():
                channel.publish_nowait("slow", _BODY)  # waits if too many are unconfirmed

    return _beside(publish, is_over, connection, _confirmations, messages)


def _deliveries(connection: Connection, messages: int) -> list[float]:
    """Publish messages one by one; return how long they took to arrive."""
    arrived: SimpleQueue[ChannelMessage] = SimpleQueue()
    found = []
    with connection.channel() as publisher, connection.channel() as consumer:
        consumer.consume(arrived.put, topic="fast")
        for _ in range(messages):
            began_s = time.perf_counter()
            publisher.publish_nowait("fast", _BODY)
            arrived.get(timeout=30)
            found.append((time.perf_counter() - began_s) * 1e3)
    return found


def _deliveries_among_large_messages(connection: Connection, messages: int) -> list[float]:
    is_over = threading.Event()

    def consume() -> None:
        with connection.channel() as channel:
            while not is_over.is_set():
                arrived = threading.Semaphore(0)
                tag = channel.consume(
                    lambda _, arrived=arrived: arrived.release(),  # type: ignore[misc]
                    topic="large",
                    start="first",
                    credit=_LARGE_CREDIT,
                )
                for _ in range(_LARGE_MESSAGES):
                    arrived.acquire()
                channel.cancel(tag)

    return _beside(consume, is_over, connection, _deliveries, messages)


def _beside(
    other: Callable[[], None],
    is_over: threading.Event,
    connection: Connection,
    measure: _Measure,
    messages: int,
) -> list[float]:
    """Measure while `other` runs in a thread."""
    thread = threading.Thread(target=other)
    thread.start()
    try:
        time.sleep(1.0)  # warms up
        return measure(connection, messages)
    finally:
        is_over.set()
        thread.join()


if __name__ == "__main__":
    main()
