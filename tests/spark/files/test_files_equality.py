"""url, path and a plain HTTP reader return the same rows while a publisher continues to write."""

import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.spark.bound import bind
from holdfast.spark.options.read import parse_options
from holdfast.spark.read.reading import read_rows
from holdfast.testing import RunningBroker
from tests.spark.files.test_files import planned

QUEUES = 4
COLUMNS = "queue,offset,key,tag,body"
_SCHEMA = pa.schema(
    [("queue", pa.int32()), ("offset", pa.int64()), ("key", pa.string()), ("tag", pa.string()),
     ("crc", pa.int64())]
)  # fmt: skip

#: Program: publish blocks of every combination of columns to all queues in turn, first a given
#: number of messages, then more until it is stopped.
PUBLISHER = """
import sys
from holdfast.client import Client
url, messages, queues, block = sys.argv[1], *map(int, sys.argv[2:])
number = 0
with Client(url) as client:
    while True:
        kind, queue = number // block % 8, number // block % queues
        with client.producer("orders", queue=queue, linger_ms=50) as producer:
            for n in range(number, number + block):
                producer.send(
                    b"%d " % n * (n % 10),
                    key=f"k{n % 50}" if kind & 1 and n % 3 else None,
                    tag=f"t{n % 5}" if kind & 2 and n % 4 else None,
                    properties={"n": str(n)} if kind & 4 and n % 2 else None,
                )
        number += block
        if number == messages:
            print("published", flush=True)
"""


@contextmanager
def publishing(url: str, messages: int, block: int) -> Iterator[None]:
    """Yield once `count` messages are stored; a process continues to publish."""
    arguments = [url, str(messages), str(QUEUES), str(block)]
    with subprocess.Popen(
        [sys.executable, "-c", PUBLISHER, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "published\n"
            yield
            assert process.poll() is None, "it ended while the rows were read"
        finally:
            process.kill()


def rows_of(place: dict[str, str], offsets: dict[int, tuple[int, int]]) -> pa.Table:
    """Return the rows in these offsets: queue, offset, key, tag and the CRC of the body."""
    ends = [json.dumps({str(q): part[end] for q, part in offsets.items()}) for end in (0, 1)]
    bound = bind(
        **place, topic="orders", columns=COLUMNS, startingOffsets=ends[0], endingOffsets=ends[1]
    )
    batches = read_rows(planned(bound), parse_options(bound.options))
    return sorted_table([hashed(batch) for batch in batches])


def hashed(batch: pa.RecordBatch) -> pa.RecordBatch:
    crcs = pa.array(map(zlib.crc32, batch["body"].to_pylist()), pa.int64())
    columns = [*(batch[name] for name in ("queue", "offset", "key", "tag")), crcs]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def plain_rows(broker: RunningBroker, offsets: dict[int, tuple[int, int]]) -> pa.Table:
    """Return the same fields of messages that the client pulls one by one."""
    batches = []
    with broker.client() as client:
        for queue, (start, end) in offsets.items():
            found = []
            for message in client.pull("orders", queue=queue, offset=start, follow=False):
                if message.offset >= end:
                    break
                crc = zlib.crc32(message.body)
                found.append((message.queue, message.offset, message.key, message.tag, crc))
            columns = [list(column) for column in zip(*found, strict=True)]
            batches.append(pa.RecordBatch.from_arrays(
                [pa.array(c, f.type) for c, f in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA
            ))  # fmt: skip
    return sorted_table(batches)


def sorted_table(batches: list[pa.RecordBatch]) -> pa.Table:
    order = [("queue", "ascending"), ("offset", "ascending")]
    return pa.Table.from_batches(batches, _SCHEMA).sort_by(order).combine_chunks()


def check_equal(data_dir: Path, messages: int, block: int, segment_bytes: str) -> None:
    arguments = ["--commitlog-segment-bytes", segment_bytes]
    with RunningBroker(data_dir, arguments) as broker, broker.client() as client:
        client.create_topic("orders", queues=QUEUES)
        path = str(data_dir)
        with publishing(broker.url, messages, block):
            earlier = bind(broker.url, "orders").offsets["orders"]
            bound = bind(path=path, topic="orders").offsets["orders"]
            # The bound contains all visible messages, and only messages that become visible.
            assert all(part.end >= earlier[queue].end for queue, part in bound.items())
            offsets = {queue: (part.start, part.end) for queue, part in earlier.items()}
            of_files = rows_of({"path": path}, offsets)
            assert len(of_files) >= messages
            assert of_files.equals(rows_of({"url": broker.url}, offsets))
            assert of_files.equals(rows_of({"url": broker.url, "path": path}, offsets))
            only_files = {"url": broker.url, "path": path, "transport": "files"}
            assert of_files.equals(rows_of(only_files, offsets))
            assert of_files.equals(plain_rows(broker, offsets))
            assert len(list((data_dir / "commitlog").iterdir())) > 2
    assert of_files.equals(rows_of({"path": path}, offsets))


def test_all_ways_give_the_same_rows_while_the_tail_is_written(tmp_path: Path) -> None:
    check_equal(tmp_path / "data", 20_000, 100, "1MiB")


@pytest.mark.fault
@pytest.mark.timeout(300)
def test_all_ways_give_the_same_two_million_rows(tmp_path: Path) -> None:
    check_equal(tmp_path / "data", 2_000_000, 1000, "16MiB")
