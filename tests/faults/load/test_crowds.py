"""Ten thousand misbehaving clients leave memory under the bound of docs/limits.md, and others
served. TEST_CLIENTS sets the number of clients."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from holdfast.running_broker import RunningBroker
from tests.support.histories.crowd import (
    Crowd,
    await_metric,
    files_that_may_be_open,
    healthy_client,
    metrics,
)

pytestmark = [pytest.mark.fault, pytest.mark.machine, pytest.mark.timeout(600)]

CLIENTS = int(os.environ.get("TEST_CLIENTS", "10000"))
MIB = 1024 * 1024

#: docs/limits.md, "How much memory a broker takes".
PER_CONNECTION = 32 * 1024
UNSENT = 256 * MIB
READS_UNDER_WAY = 6 * 16 * MIB
TEXT_UNDER_WAY = 4 * 4 * 16 * MIB
HOT = 32 * MIB

CUT_OFF = 'holdfast_http_connections_closed_early_total{reason="unsent-limit"}'
ANSWERED = (
    'holdfast_http_request_seconds_count{code="200",'
    'route="/v1/topics/{topic}/queues/{queue}/messages"}'
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    if files_that_may_be_open() < CLIENTS + 2000:
        pytest.skip(f"{CLIENTS} clients need more open files than the hard limit allows")
    settings = {
        "commitlog-segment-bytes": "64MiB",
        # bytes in the system's buffers are not the broker's memory
        "http-api-send-buffer-bytes": "64KiB",
        "http-api-transfer-grace-ms": "600000",  # slow clients must stay, so that they accumulate
        "http-api-write-timeout-ms": "600000",
        "http-api-max-wait-ms": "600000",  # no pull may time out before the last is held
    }
    arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
    with RunningBroker(tmp_path / "data", arguments) as running:
        yield running


def rss(broker: RunningBroker) -> int:
    return int(psutil.Process(broker.pid).memory_info().rss)


def publish(broker: RunningBroker, mib: int) -> None:
    with broker.client() as client:
        client.create_topic("orders", queues=1, durability="written")
        with client.producer("orders", queue=0) as producer:
            for _ in range(mib * 1024):
                producer.send(b"x" * 1000)


@pytest.mark.parametrize(
    ("media", "max_bytes", "under_way"),
    [
        ("application/vnd.holdfast.batch", 256 * 1024, READS_UNDER_WAY),
        ("application/json", 128 * 1024, READS_UNDER_WAY + TEXT_UNDER_WAY),
    ],
)
def test_clients_that_never_read_hold_no_more_than_the_bound(
    broker: RunningBroker, media: str, max_bytes: int, under_way: int
) -> None:
    publish(broker, 64)
    idle = rss(broker)
    bound = idle + CLIENTS * PER_CONNECTION + UNSENT + under_way + HOT
    peak = 0

    def request(number: int) -> bytes:
        offset = number * 997 % 60_000
        query = f"offset={offset}&max_messages=10000&max_bytes={max_bytes}"
        return (
            f"GET /v1/topics/orders/queues/0/messages?{query} HTTP/1.1\r\n"
            f"Host: localhost\r\nAccept: {media}\r\n\r\n"
        ).encode()

    started = time.monotonic()
    with Crowd(broker.url) as crowd, healthy_client(broker.url) as other:
        for _ in range(0, CLIENTS, 500):
            crowd.join(500, request, receive_buffer=4096)
            peak = max(peak, rss(broker))
        deadline = time.monotonic() + 300
        while (found := metrics(broker.url)).get(ANSWERED, 0) < CLIENTS:
            peak = max(peak, rss(broker))
            assert found["holdfast_http_unsent_bytes"] <= UNSENT
            assert time.monotonic() < deadline, f"only {found.get(ANSWERED)} are answered"
        peak = max(peak, rss(broker))
        cut_off = metrics(broker.url).get(CUT_OFF, 0)
    await_metric(broker.url, "holdfast_http_connections", lambda n: n <= 2)
    print(
        f"\n{CLIENTS} clients that never read, {media}: {time.monotonic() - started:.0f} s, "
        f"memory idle {idle / MIB:.0f} MiB, peak {peak / MIB:.0f}, bound {bound / MIB:.0f}, "
        f"after {rss(broker) / MIB:.0f}; {cut_off:.0f} cut off; others' requests "
        f"{len(other.seconds)}, p50 {other.quantile_ms(0.5):.0f} ms, p99 "
        f"{other.quantile_ms(0.99):.0f} ms"
    )
    assert peak < bound
    assert other.failures == []
    assert cut_off > 0, "the crowd was too small to fill the room: the test shows nothing"
    assert metrics(broker.url)["holdfast_http_unsent_bytes"] == 0


def test_held_pulls_that_vanish_all_at_once_leave_nothing(broker: RunningBroker) -> None:
    # L10
    with broker.client() as client:
        client.create_topic("orders", queues=4)
    idle = rss(broker)

    def request(number: int) -> bytes:
        path = f"/v1/topics/orders/queues/{number % 4}/messages?offset=0&wait_ms=600000"
        return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()

    peaks, afters = [], []
    with healthy_client(broker.url) as other:
        for _ in range(2):
            with Crowd(broker.url) as crowd:
                crowd.join(CLIENTS, request)
                await_metric(broker.url, "holdfast_long_poll_parked", lambda n: n == CLIENTS, 300)
                peaks.append(rss(broker))
                started = time.monotonic()
                crowd.vanish()
            await_metric(broker.url, "holdfast_long_poll_parked", lambda n: n == 0)
            await_metric(broker.url, "holdfast_http_connections", lambda n: n <= 2)
            gone_s = time.monotonic() - started
            afters.append(rss(broker))
    found = metrics(broker.url)
    print(
        f"\n{CLIENTS} held pulls vanish, twice: gone after {gone_s:.1f} s, memory idle "
        f"{idle / MIB:.0f} MiB, held {[round(each / MIB) for each in peaks]}, after "
        f"{[round(each / MIB) for each in afters]}; others' requests {len(other.seconds)}, p50 "
        f"{other.quantile_ms(0.5):.0f} ms, p99 {other.quantile_ms(0.99):.0f} ms"
    )
    assert max(peaks) < idle + CLIENTS * PER_CONNECTION + 32 * MIB
    # The allocator reuses the memory of one crowd for the next one: it does not add up.
    assert afters[1] < afters[0] + 16 * MIB
    assert found["holdfast_long_poll_cancelled_total"] == 2 * CLIENTS
    assert found["holdfast_scan_rescues_total"] == 0
    assert other.failures == []
    with broker.client() as client:
        client.publish("orders", b"after", queue=0)
        assert [m.body for m in client.pull("orders", 0, 0, follow=False)] == [b"after"]
