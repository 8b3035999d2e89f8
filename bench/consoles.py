"""What ten open consoles cost a broker: its idle processor time, and the rate of W1.

    python -m bench.consoles [--json] [--messages 1000000] [--rounds 5] [--seconds 10]

Debian's Chromium, driven by Playwright, opens ten views of the console of a broker with topics and
a group. The requests that the views repeat are recorded. Then the browser ends, and a process sends
the same requests with the same pauses: a browser on this machine would need more processor time
than the broker. The live view holds its stream, and its topic gets no messages.

Idle: the broker's processor time per second with the consoles, less that without. W1: one producer
publishes 100 bytes in batches of 1,000, in turns with the consoles and without. A value is the
ratio of a pair. Written mode.
"""

import http.client
import json
import multiprocessing
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from threading import Thread
from urllib.parse import urlsplit

from playwright.sync_api import Request, sync_playwright

from bench.harness import Figure, arguments, broker, measure, process_cpu_s
from bench.publish import publish_async
from bench.rows import TIMES, Row, report
from holdfast.client.values import Durability
from holdfast.running_broker import RunningBroker

DURABILITY: Durability = "written"
VIEWS = (
    "#/",
    "#/topics",
    "#/topics/orders",
    "#/topics/orders/messages",
    "#/topics/orders/messages?live=1",
    "#/groups",
    "#/groups/billing",
    "#/groups/billing/letters",
    "#/connections",
    "#/access",
)
LIVE = "/v1/topics/orders/messages?from=latest"
#: What a view requests only once is over after this time.
_OPENING_S = 4.0
_RECORDED_S = 20.0
_MOST_SHARE = 0.03


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__ or "", messages=1_000_000, rounds=5, seconds=10)
    idle = Row("", "ten consoles, the broker's processor time", DURABILITY, "ms/s", [])
    idle.at_most = _MOST_SHARE * 1000
    rate = Row("W1", "rate with ten consoles", DURABILITY, TIMES, [], at_least=1 - _MOST_SHARE)
    spent = Row("W1", "broker's processor time with ten consoles", DURABILITY, TIMES, [])
    with broker() as running:
        fill(running)
        repeated = record(running.url)
        for number in range(options.rounds + 1):
            idle_without_s = seconds_spent(running, options.seconds)
            without = publish(running, options.messages)
            with consoles(running.url, repeated):
                idle_with_s = seconds_spent(running, options.seconds)
                with_them = publish(running, options.messages)
            if number:
                idle.values.append((idle_with_s - idle_without_s) / options.seconds * 1000)
                rate.values.append(with_them.messages_per_s / without.messages_per_s)
                spent.values.append(with_them.broker_cpu_s / without.broker_cpu_s)
    asked = Row("", "requests that ten consoles repeat", "", "1/s", [sum(repeated.values())])
    report(iter([asked, idle, rate, spent]), as_json=options.json)


def fill(running: RunningBroker) -> None:
    """Make what the views show: topics, messages, and a group with holders and dead letters."""
    with running.client() as client:
        for topic, queues in (("orders", 3), ("dead", 1), ("published", 1)):
            client.create_topic(topic, queues=queues, durability=DURABILITY)
        for number in range(500):
            body = json.dumps({"order": number, "text": "x" * 100}).encode()
            client.publish("orders", body, key=f"customer-{number % 30}", tag="new")
        client.create_group(
            "billing", ["orders"], dead_letter_topic="dead", max_attempts=1, lease_ms=3_600_000
        )
        taken = client.receive("billing", "anna", max_messages=60).messages
        client.reject("billing", [each.receipt for each in taken[:20] if each.receipt])


def record(url: str) -> Counter[str]:
    """Return how often per second ten open views request each path."""
    found: Counter[str] = Counter()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    flags = ["--no-sandbox"] if os.getuid() == 0 else []

    def count(request: Request) -> None:
        if time.monotonic() >= begin:
            found[request.url.removeprefix(url)] += 1

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        pages = [browser.new_context().new_page() for _ in VIEWS]
        begin = float("inf")
        for page, view in zip(pages, VIEWS, strict=True):
            page.on("request", count)
            page.goto(f"{url}/console/{view}")
        begin = time.monotonic() + _OPENING_S
        while time.monotonic() < begin + _RECORDED_S:
            pages[0].wait_for_timeout(200)
        browser.close()
    return Counter({path: times / _RECORDED_S for path, times in found.items()})


def seconds_spent(running: RunningBroker, seconds: int) -> float:
    """Return the broker's processor time in the next `seconds`."""
    before = process_cpu_s(running.pid)
    time.sleep(seconds)
    return process_cpu_s(running.pid) - before


def publish(running: RunningBroker, messages: int) -> Figure:
    return measure(
        "W1",
        running,
        lambda: publish_async(running, "published", messages, 100),
        durability=DURABILITY,
        messages=messages,
        body_bytes=100,
    )


@contextmanager
def consoles(url: str, repeated: Counter[str]) -> Iterator[None]:
    """Send the requests of ten consoles from a process, until the block ends."""
    context = multiprocessing.get_context("spawn")
    is_over = context.Event()
    process = context.Process(target=_replay, args=(url, repeated, is_over))
    process.start()
    try:
        yield
    finally:
        is_over.set()
        process.join()


def _replay(url: str, repeated: Counter[str], is_over: Event) -> None:
    threads = [
        Thread(target=_repeat, args=(url, path, 1 / per_s, is_over))
        for path, per_s in repeated.items()
    ]
    threads.append(Thread(target=_follow, args=(url, is_over)))
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def _repeat(url: str, path: str, pause_s: float, is_over: Event) -> None:
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port)
    due = time.monotonic()
    while not is_over.wait(max(due - time.monotonic(), 0)):
        due += pause_s
        connection.request("GET", path, headers={"Accept": "application/json"})
        reply = connection.getresponse()
        reply.read()
        assert reply.status == 200, (path, reply.status)
    connection.close()


def _follow(url: str, is_over: Event) -> None:
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port)
    connection.request("GET", LIVE, headers={"Accept": "text/event-stream"})
    reply = connection.getresponse()
    assert reply.status == 200, reply.status
    is_over.wait()
    connection.close()


if __name__ == "__main__":
    main()
