"""Measure requests that must not wait for the disk, while durable publishes are running."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tests.support.clients.broker_calls import Calls

DURABLE, WRITTEN = "durable", "written"
_PAUSE_S = 0.004
_PUBLISHERS = 4


@dataclass(slots=True)
class Latencies:
    """Durations in seconds, by kind of request."""

    of: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def p99_s(self, what: str) -> float:
        """Return the 99th percentile. With fewer than 100 samples this is the slowest sample."""
        samples = sorted(self.of[what])
        assert samples, f"no samples of {what}"
        return samples[int(len(samples) * 0.99)]

    def slowest(self) -> tuple[str, float]:
        """Return the kind of request, except publishes, with the highest p99, and this p99."""
        return max(
            ((what, self.p99_s(what)) for what in self.of if what != "publish"),
            key=lambda pair: pair[1],
        )


def prepare(calls: Calls) -> None:
    """Create the topics, messages and offsets that the probe uses."""
    for topic, durability in ((DURABLE, "fsync"), (WRITTEN, "written")):
        made = calls("PUT", f"/v1/topics/{topic}", {"queues": 1, "durability": durability})
        assert made.status == 201, made
    for number in range(10):
        assert calls.publish(WRITTEN, f"{number}").status == 200
    stored = calls("PUT", f"/v1/groups/g/topics/{WRITTEN}/offsets", {"offsets": {"0": 3}})
    assert stored.status == 200, stored


def probe(url: str, seconds: float, *, store_offsets: bool = False) -> Latencies:
    """Send requests for `seconds` while durable publishes (and stores of offsets) are running."""
    found = Latencies()
    over = threading.Event()

    def repeat(what: str, once: Callable[[Calls], float | None], pause_s: float) -> None:
        calls = Calls(url, keep_alive=True)
        while not over.wait(pause_s):
            started = time.monotonic()
            measured = once(calls)
            if measured is None:
                measured = time.monotonic() - started
            found.of[what].append(measured)

    def get(path: str) -> Callable[[Calls], None]:
        def once(calls: Calls) -> None:
            answer = calls("GET", path)
            assert answer.status == 200, answer

        return once

    def publish(calls: Calls) -> None:
        assert calls.publish(DURABLE, "x" * 1000).status in (200, 503)

    def store(calls: Calls) -> None:
        path = f"/v1/groups/writer/topics/{WRITTEN}/offsets"
        assert calls("PUT", path, {"offsets": {"0": 1}}).status == 200

    work: list[tuple[str, Callable[[Calls], float | None], float]] = [
        ("health", get("/healthz"), _PAUSE_S),
        ("pull", get(f"/v1/topics/{WRITTEN}/queues/0/messages?offset=0&max_messages=5"), _PAUSE_S),
        ("offsets", get(f"/v1/groups/g/topics/{WRITTEN}/offsets"), _PAUSE_S),
        ("wake", _Wake(url), _PAUSE_S),
        *[("publish", publish, 0.0)] * _PUBLISHERS,
        *([("publish", store, 0.0)] if store_offsets else []),
    ]
    with ThreadPoolExecutor(len(work)) as pool:
        running = [pool.submit(repeat, *each) for each in work]
        over.wait(seconds)
        over.set()
    for each in running:
        each.result()
    return found


class _Wake:
    """Measures the time from the publish that wakes a held pull to the pull's answer."""

    def __init__(self, url: str) -> None:
        self._puller = Calls(url, keep_alive=True)

    def __call__(self, publisher: Calls) -> float:
        state = publisher("GET", f"/v1/topics/{WRITTEN}").json["queues"][0]
        parked = publisher.metric("holdfast_long_poll_parked")
        answered: list[float] = []

        def pull() -> None:
            path = f"/v1/topics/{WRITTEN}/queues/0/messages?wait_ms=20000"
            answer = self._puller("GET", f"{path}&offset={state['max_offset']}")
            answered.append(time.monotonic())
            assert len(answer.json["messages"]) == 1, answer

        puller = threading.Thread(target=pull)
        puller.start()
        while publisher.metric("holdfast_long_poll_parked") <= parked and not answered:
            time.sleep(0.001)
        started = time.monotonic()
        assert publisher.publish(WRITTEN, "wake").status == 200
        puller.join()
        return answered[0] - started
