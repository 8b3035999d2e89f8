"""holdfast bench: measure how fast a broker is for its clients.

In a checkout of the project, without an address, the command runs the project's own benchmarks,
which start their own brokers. Otherwise it measures the broker at --url for a few seconds, with a
topic that it creates at the start and deletes at the end.
"""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.exits import Failure
from holdfast.cli.input.connection import broker_options, open_client
from holdfast.cli.output.figures import format_count
from holdfast.cli.output.terminal import write_rows

if TYPE_CHECKING:
    from holdfast.client import Client

_SINGLE_PUBLISHES = 300
_WAKES = 50
_WAIT_MS = 5000
#: A pull that was sent this long ago has arrived at the broker, which holds it.
_PARKED_AFTER_S = 0.02

Row = dict[str, Any]


@click.command()
@broker_options
@click.option("--messages", type=click.IntRange(1), default=100_000, show_default=True)
@click.option("--size", "body_bytes", type=click.IntRange(0), default=100, show_default=True)
@click.pass_context
def bench(context: click.Context, /, messages: int, body_bytes: int, **where: Any) -> None:
    """Measure a broker's latency and throughput.

    This includes how soon a held pull is answered. In a checkout, without --url or HOLDFAST_URL,
    the project's own benchmarks run.
    """
    given = context.get_parameter_source("url")
    own = Path(__file__).resolve().parents[2]
    if given is click.core.ParameterSource.DEFAULT and (own / "bench" / "__main__.py").exists():
        context.exit(
            subprocess.run([sys.executable, "-m", "bench"], cwd=own, check=False).returncode
        )
    topic = f"bench-{secrets.token_hex(4)}"
    with open_client(**where) as client:
        client.create_topic(topic, queues=1)
        try:
            rows = measure(client, topic, messages, os.urandom(body_bytes))
        finally:
            client.delete_topic(topic)
    write_rows(rows, ["what", "durability", "per_second", "mb_per_second", "p50_ms", "p99_ms"])


def measure(client: "Client", topic: str, messages: int, body: bytes) -> list[Row]:
    """Measure on `topic`, which must be empty and have one queue. Return a row per measurement."""
    rows = []
    for durability in ("fsync", "written"):
        client.change_topic(topic, durability=durability)
        took = [_measure(partial(client.publish, topic, body)) for _ in range(_SINGLE_PUBLISHES)]
        rows.append(_latency("publish one, then the next", durability, took))
        rows[-1]["per_second"] = round(len(took) / sum(took))
        start = _end(client, topic)
        seconds = _measure(partial(_publish_batches, client, topic, messages, body))
        rows.append(_rate("publish in batches", durability, messages, len(body), seconds))
        seconds = _measure(partial(_pull_all, client, topic, start, messages))
        rows.append(_rate("pull from there", durability, messages, len(body), seconds))
        rows.append(_latency("acknowledged to pulled", durability, _wakes(client, topic, body)))
    return rows


def _measure(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _publish_batches(client: "Client", topic: str, messages: int, body: bytes) -> None:
    with client.producer(topic, queue=0) as producer:
        for _ in range(messages):
            producer.send(body)


def _pull_all(client: "Client", topic: str, start: int, messages: int) -> None:
    found = sum(1 for _ in client.pull(topic, queue=0, offset=start, follow=False))
    if found != messages:
        raise Failure(f"published {format_count(messages, 'message')} and pulled {found:,}")


def _end(client: "Client", topic: str) -> int:
    return int(client.describe_topic(topic)["queues"][0]["max_offset"])


def _wakes(client: "Client", topic: str, body: bytes) -> list[float]:
    """Return how many seconds after the acknowledgement of a publish the reply to a held pull
    arrives, measured several times."""
    took = []
    offset = _end(client, topic)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(_WAKES):
            pulled = pool.submit(_pull_one, client, topic, offset)
            time.sleep(_PARKED_AFTER_S)
            client.publish(topic, body)
            acknowledged = time.perf_counter()
            # A reply that arrived before the acknowledgement counts as 0.
            took.append(max(0.0, pulled.result() - acknowledged))
            offset += 1
    return took


def _pull_one(client: "Client", topic: str, offset: int) -> float:
    if not client.pull_once(topic, 0, offset, 1, 1, _WAIT_MS).messages:
        raise Failure(f"a pull at {offset} was not answered within {_WAIT_MS} ms")
    return time.perf_counter()


def _latency(what: str, durability: str, seconds: Sequence[float]) -> Row:
    ordered = sorted(seconds)
    return {
        "what": what,
        "durability": durability,
        "p50_ms": round(1000 * ordered[len(ordered) // 2], 2),
        "p99_ms": round(1000 * ordered[len(ordered) * 99 // 100], 2),
    }


def _rate(what: str, durability: str, messages: int, body_bytes: int, seconds: float) -> Row:
    return {
        "what": what,
        "durability": durability,
        "per_second": round(messages / seconds),
        "mb_per_second": round(messages * body_bytes / seconds / 1e6, 1),
    }
