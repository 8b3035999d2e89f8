"""A broker closes a thousand slow clients of each kind in time, and answers all others.
TEST_SLOW_CLIENTS sets the number of clients of a kind."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
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

pytestmark = [pytest.mark.fault, pytest.mark.machine, pytest.mark.timeout(300)]

CLIENTS = int(os.environ.get("TEST_SLOW_CLIENTS", "1000"))
MIB = 1024 * 1024
#: Tolerance for a busy machine: a longer delay is a broken promise.
SLACK_S = 30.0

SETTINGS = {
    "http-api-header-timeout-ms": "2000",
    "http-api-body-timeout-ms": "4000",
    "http-api-write-timeout-ms": "4000",
    "http-api-transfer-grace-ms": "1000",
    "http-api-min-transfer-bytes-per-s": "1000",
    "http-api-send-buffer-bytes": "64KiB",
    # Enough for all thousand requests, so that only the minimum rate can end the clients.
    "http-api-max-unsent-bytes": "1GiB",
}

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF_A_HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
POST = b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: localhost\r\n"
PULL = (
    b"GET /v1/topics/orders/queues/0/messages?offset=0&max_bytes=500000 HTTP/1.1\r\n"
    b"Host: localhost\r\nAccept: application/vnd.holdfast.batch\r\n\r\n"
)


@dataclass(frozen=True)
class Slow:
    """The bytes that a slow client sends first, the bytes that it repeats, and its deadline."""

    first: bytes
    then: bytes
    within_s: float
    reason: str | None = None
    """The reason under which its end is counted, unless it is answered before."""
    keepalive_ms: int = 600_000
    """Short only where this timeout must end the client; elsewhere it would hide a missing timeout.
    """


KINDS = {
    "says nothing": Slow(b"", b"", 2, "slow-head"),
    "half a head": Slow(HALF_A_HEAD, b"", 2, "slow-head"),
    "a head byte by byte": Slow(HALF_A_HEAD, b"x", 2, "slow-head"),
    "half a second head": Slow(HEALTH + HALF_A_HEAD, b"", 2, "slow-head"),
    "a second head byte by byte": Slow(HEALTH + HALF_A_HEAD, b"x", 2 + 3, keepalive_ms=3000),
    "idle after a request": Slow(HEALTH, b"", 3, keepalive_ms=3000),
    "no body": Slow(POST + b"Content-Length: 100\r\n\r\n", b"", 1 + 2),
    "a body byte by byte": Slow(POST + b"Content-Length: 100000\r\n\r\n", b"x", 1 + 2),
    "chunks byte by byte": Slow(POST + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", 1 + 2),
    "takes no reply": Slow(PULL, b"", 1, "slow-reader"),
}


@pytest.fixture
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RunningBroker]:
    if files_that_may_be_open() < CLIENTS + 2000:
        pytest.skip(f"{CLIENTS} clients need more open files than the hard limit allows")
    keepalive_ms = KINDS[request.node.callspec.params["kind"]].keepalive_ms
    settings = {**SETTINGS, "http-api-keepalive-timeout-ms": str(keepalive_ms)}
    arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
    with RunningBroker(tmp_path / "data", arguments) as running:
        with running.client() as client:
            client.create_topic("orders", queues=1, durability="written")
            for _ in range(8):
                client.publish("orders", b"x" * 100_000, queue=0)
        yield running


@pytest.mark.parametrize("kind", KINDS)
def test_slow_clients_are_closed_in_time_and_harm_no_other(
    broker: RunningBroker, kind: str
) -> None:
    slow = KINDS[kind]
    process = psutil.Process(broker.pid)
    idle = process.memory_info().rss
    with Crowd(broker.url) as crowd, healthy_client(broker.url) as other:
        joined = crowd.join(CLIENTS, lambda _: slow.first, receive_buffer=4096)
        started = time.monotonic()
        peak = process.memory_info().rss
        while slow.then and time.monotonic() < started + slow.within_s:
            crowd.drip(slow.then)
            time.sleep(0.2)
        open_ones = await_metric(
            broker.url, "holdfast_http_connections", lambda n: n <= 2, slow.within_s + SLACK_S
        )
        took_s = time.monotonic() - started
        peak = max(peak, process.memory_info().rss)
        assert open_ones <= 2
        assert crowd.await_closed(joined, 10) == 0
    found = metrics(broker.url)
    print(
        f"\n{CLIENTS} clients, {kind}: gone after {took_s:.1f} s, memory + "
        f"{(peak - idle) / MIB:.0f} MiB; others' requests {len(other.seconds)}, p50 "
        f"{other.quantile_ms(0.5):.0f} ms, p99 {other.quantile_ms(0.99):.0f} ms"
    )
    assert other.failures == []
    assert other.seconds
    assert peak < idle + CLIENTS * 32 * 1024 + 384 * MIB
    if slow.reason is not None:
        name = f'holdfast_http_connections_closed_early_total{{reason="{slow.reason}"}}'
        assert found[name] == CLIENTS
    with broker.client() as client:
        client.publish("orders", b"after", queue=0)
