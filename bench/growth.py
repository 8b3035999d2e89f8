"""The cost of growth: publish and read with more queues, a longer log, or more reading groups.

    python -m bench.growth [--json] [--queues 1,100,10000] [--log-gb 1,20] [--groups 1,100]

The load is messages of 100 bytes in batches of 1,000, in written mode, sent and read over plain
connections, so that the figures are those of the broker. Each line has its rates, their ratios to
the first line of the same table, and the broker's memory.
"""

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import psutil
from rich.console import Console
from rich.table import Table

from bench.bulk import BulkConnection
from bench.harness import ARGUMENTS, broker
from holdfast.running_broker import RunningBroker

DURABILITY = "written"
BODY_BYTES = 100
BATCH = 1000
#: The number of messages per figure. The messages that fill the log are not counted in it.
MESSAGES = 5_000_000
_LARGE_BODY_BYTES = 64 * 1024


@dataclass(frozen=True)
class Line:
    """One line of a table. `published` and `read` are messages per second."""

    what: str
    published: float
    read: float
    memory_mb: float


def main() -> None:
    """Measure and print."""
    options = _options()
    for title, lines in (
        ("queues", queues(options.queues)),
        ("log", log(options.log_gb)),
        ("groups", groups(options.groups)),
    ):
        _report(title, list(lines), as_json=options.json)


def queues(counts: Sequence[int]) -> Iterator[Line]:
    """Measure with a growing number of queues; batches go to the queues in turn."""
    for count in counts:
        with broker() as running:
            connection = BulkConnection(running.url)
            connection.create("queues", queues=count)
            started = time.perf_counter()
            connection.publish(
                "queues", messages=MESSAGES, body_bytes=BODY_BYTES, batch=BATCH, queues=count
            )
            published = MESSAGES / (time.perf_counter() - started)
            read = _read_all(connection, "queues")
        yield Line(f"{count:,}", published, read, _memory_with(count))


def _memory_with(queue_count: int) -> float:
    """Return the broker's memory in MB after the same number of messages was published to and read
    from `queue_count` queues.

    The cache of recent batches is switched off, so that it does not count.
    """
    with broker([*ARGUMENTS, "--consumequeue-hot-cache-bytes", "0"]) as running:
        connection = BulkConnection(running.url)
        connection.create("queues", queues=queue_count)
        connection.publish(
            "queues", messages=MESSAGES, body_bytes=BODY_BYTES, batch=BATCH, queues=queue_count
        )
        _read_all(connection, "queues")
        return _memory(running)


def log(sizes_gb: Sequence[int]) -> Iterator[Line]:
    """Measure with new topics at the end of a growing log."""
    with broker() as running:
        connection = BulkConnection(running.url)
        connection.create("filling", queues=4)
        filled = 0
        for size_gb in sizes_gb:
            messages = (size_gb * 10**9 - filled) // _LARGE_BODY_BYTES // 16 * 16
            connection.publish(
                "filling", messages=messages, body_bytes=_LARGE_BODY_BYTES, batch=16, queues=4
            )
            filled += messages * _LARGE_BODY_BYTES
            topic = f"after{size_gb}"
            connection.create(topic)
            started = time.perf_counter()
            connection.publish(topic, messages=MESSAGES, body_bytes=BODY_BYTES, batch=BATCH)
            published = MESSAGES / (time.perf_counter() - started)
            yield Line(f"{size_gb} GB", published, _read_all(connection, topic), _memory(running))


def groups(counts: Sequence[int]) -> Iterator[Line]:
    """Measure with a growing number of groups that read the same backlog and store their
    offsets."""
    with broker() as running:
        connection = BulkConnection(running.url)
        connection.create("shared", queues=1)
        started = time.perf_counter()
        connection.publish("shared", messages=MESSAGES, body_bytes=BODY_BYTES, batch=BATCH)
        published = MESSAGES / (time.perf_counter() - started)
        for count in counts:
            each = MESSAGES // max(counts)
            threads = [
                threading.Thread(target=_read_as_group, args=(running.url, f"g{number}", each))
                for number in range(count)
            ]
            started = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            read = each * count / (time.perf_counter() - started)
            yield Line(f"{count:,}", published, read, _memory(running))


def _read_as_group(url: str, group: str, messages: int) -> None:
    connection = BulkConnection(url)
    offset = 0
    while offset < messages:
        connection.ask(
            "GET",
            f"/v1/topics/shared/queues/0/messages?offset={offset}&max_messages=10000"
            "&max_bytes=1048576",
        )
        offset = min(offset + 10_000, messages)
        connection.ask(
            "PUT",
            f"/v1/groups/{group}/topics/shared/offsets",
            json.dumps({"offsets": {"0": offset}}).encode(),
            "application/json",
        )
    connection.close()


def _read_all(connection: BulkConnection, topic: str) -> float:
    """Read a whole topic; return messages per second."""
    started = time.perf_counter()
    return connection.read_all(topic) / (time.perf_counter() - started)


def _memory(running: RunningBroker) -> float:
    """Return the broker's memory in MB, without mapped files."""
    memory = psutil.Process(running.pid).memory_info()
    return float((memory.rss - memory.shared) / 1e6)


def _report(title: str, lines: Sequence[Line], *, as_json: bool) -> None:
    if as_json:
        for line in lines:
            print(json.dumps({"growing": title, "durability": DURABILITY, **asdict(line)}))
        return
    table = Table(box=None, header_style="bold")
    for column in (title, "published/s", "of the first", "read/s", "of the first", "broker MB"):
        table.add_column(column, justify="right")
    for line in lines:
        table.add_row(
            line.what,
            f"{line.published:,.0f}",
            f"{line.published / lines[0].published:.2f}",
            f"{line.read:,.0f}",
            f"{line.read / lines[0].read:.2f}",
            f"{line.memory_mb:,.0f}",
        )
    Console(width=None if sys.stdout.isatty() else 100).print(table)


def _options() -> argparse.Namespace:
    def counts(text: str) -> list[int]:
        return [int(each) for each in text.split(",")]

    parser = argparse.ArgumentParser(description="What growth costs.")
    parser.add_argument("--json", action="store_true", help="JSON lines in place of tables")
    parser.add_argument("--queues", type=counts, default=[1, 100, 10_000])
    parser.add_argument("--log-gb", type=counts, default=[1, 20])
    parser.add_argument("--groups", type=counts, default=[1, 100])
    return parser.parse_args()


if __name__ == "__main__":
    main()
