"""How fast a topic becomes an Arrow table without Spark, compared with a mapped Arrow file.

    python -m bench.arrow [--json] [--rounds 5]            every workload below
    python -m bench.arrow --messages 2000000 --body-bytes 100 --batch 1000    one of them

One broker process on loopback and this process share the machine's cores. Each round reads all
messages in each of these ways, from the page cache, into a table with the columns queue, offset,
store_timestamp and body. A figure is the median of the rounds:

    url           client.read_arrow from the broker
    path          client.read_arrow(path=...) from the segment files
    checked file  the same table from a mapped Arrow IPC file, whose bytes are verified with stored
                  CRCs first: one CRC for each portion of the size of the log's mean block
    arrow file    the same table from the mapped file, which is neither checked nor decoded
    floor         the blocks of the segment files read, verified and decoded by the functions of
                  Spark's source, in its portions
    verified      the blocks of the segment files only read, and their checksums verified

A mapped file costs nothing until its bytes are used. So each way also sums all columns (`add_up`);
this time is measured alone as `sums`, and is a part of the others. `verified` has no table to sum.
`text` and `json` are `path` with other forms of bodies, if the bodies are JSON (--json-bodies).

The ratios compare processor time, of this process and the broker, because other processes may use
the cores too. Ratios of elapsed time would show what two cores do at the same time.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.bulk import REQUEST_BYTES, BulkConnection
from bench.harness import plain_loop_s, process_cpu_s
from holdfast.client import Client
from holdfast.commitlog.format.batch_run import BatchRun
from holdfast.commitlog.format.checksum import crc32c_of_ranges
from holdfast.log_files.file_catalog import FileCatalog
from holdfast.log_files.file_reading import MissingRange, read_files
from holdfast.log_files.ranges import OffsetRange
from holdfast.running_broker import RunningBroker
from holdfast.spark import Bound, bind
from holdfast.spark.options.offsets import QueueRange
from holdfast.spark.options.read import parse_options
from holdfast.spark.read.plan import plan_partitions
from holdfast.spark.read.reading import open_catalog, read_rows

TOPIC = "tables"
QUEUES = 4
#: At most this many batches per publish request; the broker allows 2,000.
_BATCHES = 1000
COLUMNS = ("queue", "offset", "store_timestamp", "body")
_SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("price", pa.float64())])


@dataclass(frozen=True)
class Workload:
    """A topic with `messages` messages of `body_bytes` bytes, in batches of `batch` messages."""

    messages: int
    body_bytes: int
    batch: int
    json_bodies: bool = False


WORKLOADS = (
    Workload(5_000_000, 100, 1000),
    Workload(1_000_000, 1024, 1000),
    Workload(1_000_000, 1024, 4000),
    Workload(500_000, 100, 1),
    Workload(1_000_000, 64, 1000, json_bodies=True),
)


@dataclass
class Figure:
    """The seconds that one way took in each round: elapsed, and of processor time."""

    name: str
    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast a topic becomes an Arrow table.")
    parser.add_argument("--messages", type=int)
    parser.add_argument("--body-bytes", type=int, default=100)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--json-bodies", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object a workload")
    options = parser.parse_args()
    workloads: tuple[Workload, ...] = WORKLOADS
    if options.messages is not None:
        given = (options.messages, options.body_bytes, options.batch, options.json_bodies)
        workloads = (Workload(*given),)
    for workload in workloads:
        figures = run(workload, options.rounds)
        (print_json if options.json else print_table)(workload, figures)


def run(workload: Workload, rounds: int) -> list[Figure]:
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        RunningBroker(Path(folder) / "data") as broker,
        broker.client() as client,
    ):
        publish(broker, client, workload)
        return measure(broker, client, Path(folder), workload, rounds)


def publish(broker: RunningBroker, client: Client, workload: Workload) -> None:
    """Create the topic, and publish the batches to all queues in turn."""
    if workload.json_bodies:
        client.create_topic(TOPIC, queues=QUEUES, durability="written")
        with client.producer(TOPIC, batch_bytes=workload.batch * (workload.body_bytes + 32)) as to:
            for number in range(workload.messages):
                to.send(b'{"id": %d, "name": "name %d", "price": %d.5}' % ((number,) * 3))
        return
    connection = BulkConnection(broker.url)
    connection.create(TOPIC, queues=QUEUES)
    connection.publish(
        TOPIC,
        messages=workload.messages,
        body_bytes=workload.body_bytes,
        batch=workload.batch,
        queues=QUEUES,
        request_bytes=min(REQUEST_BYTES, _BATCHES * workload.batch * workload.body_bytes),
    )
    connection.close()


def measure(
    broker: RunningBroker, client: Client, folder: Path, workload: Workload, rounds: int
) -> list[Figure]:
    path, file = broker.data_dir, folder / "rows.arrow"

    def read(**given: Any) -> pa.Table:
        return client.read_arrow(TOPIC, columns=COLUMNS, **given)

    of_files = bind(path=str(path), topic=TOPIC, columns=",".join(COLUMNS))
    table = read(path=path)
    assert len(table) == workload.messages
    with (
        client.iter_arrow(TOPIC, columns=COLUMNS, path=path) as batches,
        pa.OSFile(str(file), "wb") as sink,
        pa.ipc.new_file(sink, batches.schema) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)
    checked = CheckedFile(file, portion_bytes=mean_block_bytes(path))
    ways: dict[str, Callable[[], object]] = {
        "url": lambda: add_up(read()),
        "path": lambda: add_up(read(path=path)),
        "checked file": lambda: add_up(checked.read()),
        "arrow file": lambda: add_up(pa.ipc.open_file(pa.memory_map(str(file))).read_all()),
        "floor": lambda: add_up(pa.Table.from_batches(decode_all(of_files))),
        "verified": lambda: verify_all(path),
        "sums": lambda: add_up(table),
    }
    if workload.json_bodies:
        ways["text"] = lambda: add_up(read(path=path, body="text"))
        ways["json"] = lambda: add_up(read(path=path, body=_SCHEMA))
    figures = {name: Figure(name) for name in ways}
    for way in ways.values():  # warms up the page cache and the imports
        way()
    for _ in range(rounds):
        for name, way in ways.items():
            started, cpu_before = time.perf_counter(), cpu_s(broker)
            way()
            figures[name].seconds.append(time.perf_counter() - started)
            figures[name].cpu_s.append(cpu_s(broker) - cpu_before)
    return list(figures.values())


def cpu_s(broker: RunningBroker) -> float:
    """Return the processor time so far of this process and of the broker."""
    return time.process_time() + process_cpu_s(broker.pid)


class CheckedFile:
    """A mapped Arrow file whose bytes are verified, as the log's are, before they are used."""

    def __init__(self, path: Path, *, portion_bytes: int) -> None:
        self._path = path
        size = path.stat().st_size
        self._starts = list(range(0, size, portion_bytes))
        self._ends = [*self._starts[1:], size]
        self._crcs = self._compute(pa.memory_map(str(path)))

    def read(self) -> pa.Table:
        mapped = pa.memory_map(str(self._path))
        assert self._compute(mapped) == self._crcs
        return pa.ipc.open_file(mapped).read_all()

    def _compute(self, mapped: pa.MemoryMappedFile) -> list[int]:
        return crc32c_of_ranges(memoryview(mapped.read_buffer()), self._starts, self._ends)


def add_up(table: pa.Table) -> int:
    """Sum every column: numbers and times as they are, binary columns and texts by their lengths
    and by their bytes, taken as numbers of 8 bytes."""
    return sum(map(_add_up, table.columns))


def _add_up(values: pa.ChunkedArray) -> int:
    kind = values.type
    if pa.types.is_struct(kind):
        return sum(map(_add_up, values.flatten()))
    if pa.types.is_timestamp(kind):
        values = values.cast(pa.int64())
    elif pa.types.is_binary(kind) or pa.types.is_string(kind):
        lengths = _add_up(pc.binary_length(values))
        return lengths + sum(map(_add_up_bytes, values.chunks))
    return int(pc.sum(values).as_py() or 0)


def _add_up_bytes(texts: pa.Array) -> int:
    _, ends, data = texts.buffers()
    first = texts.offset
    at, end = np.frombuffer(ends, np.int32)[[first, first + len(texts)]].tolist()
    return int(np.frombuffer(data, np.uint64, (end - at) // 8, at).sum())


def decode_all(bound: Bound) -> Iterator[pa.RecordBatch]:
    """Yield all rows as the tasks of Spark's source yield them, without Spark."""
    options = parse_options(bound.options)
    with open_catalog(options) as catalog:
        plan = plan_partitions(catalog, options, bound.topics)
    for task in plan:
        yield from read_rows(task, options)


def verify_all(path: Path) -> int:
    """Read the blocks and verify their checksums; return the number of messages."""
    return sum(int(blocks.message_counts.sum()) for blocks in read_blocks(path))


def mean_block_bytes(path: Path) -> int:
    """Return the mean size of the topic's blocks."""
    sizes = np.concatenate([blocks.total_sizes for blocks in read_blocks(path)])
    return int(sizes.mean())


def read_blocks(path: Path) -> Iterator[BatchRun]:
    """Yield the blocks of the segment files, and verify their checksums."""
    with FileCatalog(str(path)) as catalog:
        topic = catalog.describe(TOPIC)
        ranges = {queue: OffsetRange(*bounds) for queue, bounds in topic.queues.items()}
        splits = catalog.splits(TOPIC, topic.topic_id, ranges, max_bytes=2**30, min_splits=1)
    for each in splits:
        part = QueueRange(
            TOPIC, topic.topic_id, each.queue, each.start, each.end, None, each.segments
        )
        for found in read_files(str(path), part):
            assert not isinstance(found, MissingRange)
            yield found.blocks


def print_table(workload: Workload, figures: list[Figure]) -> None:
    kind = "JSON of about " if workload.json_bodies else ""
    print(
        f"\n{workload.messages:,} messages x {kind}{workload.body_bytes:,} B in {QUEUES} queues, "
        f"in batches of {workload.batch:,}; {', '.join(COLUMNS)}\n"
    )
    cpu = {figure.name: median(figure.cpu_s) for figure in figures}
    references = ("checked file", "arrow file", "floor")
    heads = " ".join(f"{'of ' + name.split()[0]:>10}" for name in references)
    print(f"{'':12} {'s':>8} {'cpu s':>8} {'rows/s':>12} {heads}   cpu s of each round")
    for figure in figures:
        elapsed_s = median(figure.seconds)
        ratios = " ".join(f"{cpu[name] / cpu[figure.name]:10.2f}" for name in references)
        print(
            f"{figure.name:12} {elapsed_s:8.3f} {cpu[figure.name]:8.3f} "
            f"{workload.messages / elapsed_s:12,.0f} {ratios}   "
            + " ".join(f"{each:.3f}" for each in figure.cpu_s)
        )
    print(f"\n10 million additions in a plain Python loop take {plain_loop_s():.2f} s")


def print_json(workload: Workload, figures: list[Figure]) -> None:
    ways = {
        figure.name: {
            "seconds": [round(each, 4) for each in figure.seconds],
            "cpu_s": [round(each, 4) for each in figure.cpu_s],
        }
        for figure in figures
    }
    print(json.dumps({**asdict(workload), "ways": ways, "plain_loop_s": plain_loop_s()}))


if __name__ == "__main__":
    main()
