"""The rows of a data directory's files equal the rows over HTTP."""

import json
import logging
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from holdfast.client import Client
from holdfast.commitlog.format.segment_format import (
    BLOCK_DTYPE,
    SEGMENT_HEADER_SIZE,
    TRAILER_SIZE,
    FooterTrailer,
)
from holdfast.log_files.segment_file import SegmentFile
from holdfast.spark.bound import Bound, bind
from holdfast.spark.broker.client import BrokerClient
from holdfast.spark.errors import (
    DataLost,
    FilesUnreadable,
    InvalidOption,
    TopicRecreated,
    UnknownTopic,
)
from holdfast.spark.options.offsets import QueueRange
from holdfast.spark.options.read import parse_options
from holdfast.spark.read.file_rows import FileCatalog
from holdfast.spark.read.plan import plan_partitions
from holdfast.spark.read.reading import open_catalog, read_rows
from holdfast.testing import RunningBroker
from tests.support.storage.stored import copy_running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 20_000
QUEUES = 3
#: The last tag has the highest bit of a block's tag summary.
TAGS = ("t0", "t1", "t2", "t3", "t219")
ALL_COLUMNS = (
    "topic,queue,offset,message_id,key,tag,priority,properties,body,born_timestamp,store_timestamp"
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker with small segments and a topic with every combination of columns."""
    data_dir = tmp_path_factory.mktemp("broker") / "data"
    with RunningBroker(data_dir, ["--commitlog-segment-bytes", "1MiB"]) as broker:
        with broker.client() as client:
            client.create_topic("orders", queues=QUEUES)
            client.create_topic("others", queues=1, durability="written")
            publish(client, MESSAGES)
        yield broker


def let_the_log_note_it(broker: RunningBroker) -> None:
    """Wait until the log contains the records of everything stored before. A record follows its
    reply a moment later, but appends are ordered, so one more publish is enough."""
    with broker.client() as client:
        client.publish("others", b"x")


def publish(client: Client, count: int) -> None:
    """Publish batches of all kinds to all queues; publish to another topic in between."""
    for number in range(0, count, 100):
        kind, queue = number // 100 % 8, number // 100 % QUEUES
        with client.producer("orders", queue=queue, linger_ms=0) as producer:
            for n in range(number, number + 100):
                producer.send(
                    b"%d " % n * (n % 40),
                    key=f"k{n % 50}" if kind & 1 and n % 3 else None,
                    tag=TAGS[n % len(TAGS)] if kind & 2 and n % 4 else None,
                    properties={"n": str(n), "é": ""} if kind & 4 and n % 2 else None,
                )
        client.publish("others", b"between")


def planned(bound: Bound) -> list[QueueRange]:
    options = parse_options(bound.options)
    with open_catalog(options) as catalog:
        plan = plan_partitions(catalog, options, bound.topics)
    return [part for task in plan for part in task]


def table_of(bound: Bound, parts: list[QueueRange] | None = None) -> pa.Table:
    """Return all rows as a job reads them, in order of queue and offset."""
    options = parse_options(bound.options)
    batches = list(read_rows(planned(bound) if parts is None else parts, options))
    return pa.Table.from_batches(batches).sort_by([("queue", "ascending"), ("offset", "ascending")])


def test_every_way_gives_the_same_rows(broker: RunningBroker) -> None:
    path = str(broker.data_dir)
    over_http = bind(broker.url, "orders", columns=ALL_COLUMNS)
    of_files = bind(path=path, topic="orders", columns=ALL_COLUMNS)
    both = bind(broker.url, "orders", path=path, columns=ALL_COLUMNS, transport="files")
    assert of_files.offsets == over_http.offsets == both.offsets
    expected = table_of(over_http)
    assert len(expected) == MESSAGES
    assert table_of(of_files).equals(expected)
    assert table_of(both).equals(expected)


def test_several_segments_are_read_and_a_part_may_lie_in_two(broker: RunningBroker) -> None:
    bound = bind(path=str(broker.data_dir), topic="orders", maxBytesPerPartition="700k")
    parts = planned(bound)
    assert len({segment.start_offset for part in parts for segment in part.segments}) > 2
    assert any(len(part.segments) > 1 for part in parts)
    assert len(table_of(bound)) == MESSAGES
    for queue, (start, end) in bound.offsets["orders"].items():
        ranges = [(part.start, part.end) for part in parts if part.queue == queue]
        assert [low for low, _ in ranges] == [start, *(high for _, high in ranges[:-1])]
        assert ranges[-1][1] == end


@pytest.mark.parametrize("start, end", [(0, 1), (37, 38), (99, 101), (50, 3050), (1234, 5678)])
def test_any_range_is_cut_out(broker: RunningBroker, start: int, end: int) -> None:
    ends = {"startingOffsets": json.dumps({"orders": {"1": start}})}
    ends |= {"endingOffsets": json.dumps({"orders": {"1": end}})}
    ends |= {"assign": '{"orders": [1]}'}
    tables = [
        table_of(bind(columns="queue,offset,body", **place, **ends))
        for place in ({"url": broker.url}, {"path": str(broker.data_dir)})
    ]
    assert tables[0]["offset"].to_pylist() == list(range(start, end))
    assert tables[1].equals(tables[0])


@pytest.mark.parametrize("tag", ["t3", "t1,t2", "t219", "none"])
def test_tags_choose_the_same_rows(broker: RunningBroker, tag: str) -> None:
    over_http, of_files = (
        list(read_rows(planned(bound), parse_options(bound.options)))
        for bound in (
            bind(broker.url, "orders", tag=tag),
            bind(path=str(broker.data_dir), topic="orders", tag=tag),
        )
    )

    def offsets(batches: list[pa.RecordBatch]) -> list[tuple[Any, ...]]:
        return sorted(
            pair
            for batch in batches
            for pair in zip(batch["queue"].to_pylist(), batch["offset"].to_pylist(), strict=True)
        )

    assert offsets(of_files) == offsets(over_http)
    assert bool(offsets(of_files)) == (tag != "none")


def test_times_and_groups_and_patterns_mean_the_same(broker: RunningBroker) -> None:
    path = str(broker.data_dir)
    with BrokerClient.open(parse_options({"url": broker.url, "topic": "orders"}).address) as client:
        client.store_offsets("billing", "orders", {0: 10, 2: 400}, etag=None)
    let_the_log_note_it(broker)
    stamps = table_of(bind(broker.url, "orders"))["store_timestamp"].cast(pa.int64()).to_pylist()
    middle_ms = sorted(stamps)[len(stamps) // 2] // 1000
    for given in (
        {"startingOffsets": "group:billing"},
        {"endingOffsets": "group:billing"},
        {"startingTimestamp": middle_ms},
        {"endingTimestamp": middle_ms, "startingTimestamp": middle_ms - 50},
        {"startingTimestamp": middle_ms + 10**9},
        {"startingTimestamp": 0},
    ):
        assert bind(path=path, topic="orders", **given).offsets == (
            bind(broker.url, "orders", **given).offsets
        ), given
    by_pattern = bind(path=path, subscribePattern="o.*")
    assert by_pattern.offsets == bind(broker.url, subscribePattern="o.*").offsets
    assert set(by_pattern.offsets) == {"orders", "others"}
    bound = bind(path=path, topic="orders", group="billing")
    assert bound.offsets["orders"][2].start == 400
    with pytest.raises(InvalidOption, match="no group"):
        bind(path=path, topic="orders", startingOffsets="group:nobody")


def test_only_a_broker_saves(broker: RunningBroker) -> None:
    bound = bind(path=str(broker.data_dir), topic="orders", group="nightly")
    with pytest.raises(InvalidOption, match="give url together with path"):
        bound.save()
    both = bind(broker.url, "orders", path=str(broker.data_dir), group="nightly")
    both.save()
    let_the_log_note_it(broker)
    again = bind(path=str(broker.data_dir), topic="orders", group="nightly")
    assert all(part.start == part.end for part in again.offsets["orders"].values())


def test_a_topic_that_is_not_there_is_named(broker: RunningBroker) -> None:
    with pytest.raises(UnknownTopic, match="'nothing'"):
        bind(path=str(broker.data_dir), topic="nothing")
    with pytest.raises(TopicRecreated):
        bind(path=str(broker.data_dir), topic="orders", topicIds='{"orders": 99}')


@pytest.mark.parametrize("path", ["/nowhere", __file__])
def test_a_path_that_is_no_data_directory_is_refused(path: str) -> None:
    with pytest.raises(FilesUnreadable, match=path):
        bind(path=path, topic="orders")


def test_missing_files_are_read_over_http(
    broker: RunningBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = copy_of(broker, tmp_path)
    expected = table_of(bind(broker.url, "orders"))
    bound = bind(broker.url, "orders", path=str(data))
    parts = planned(bound)
    for gone in sorted((data / "commitlog").iterdir())[1::2]:
        gone.unlink()
    with caplog.at_level(logging.INFO, "holdfast.spark"):
        assert table_of(bound, parts).equals(expected)
    assert "is read over HTTP" in caplog.text
    with pytest.raises(FilesUnreadable, match="gone"):
        table_of(bind(broker.url, "orders", path=str(data), transport="files"))


def test_a_directory_of_another_log_is_recognised(broker: RunningBroker, tmp_path: Path) -> None:
    """Another broker has files with the same names but other messages."""
    with (
        RunningBroker(tmp_path / "other", ["--commitlog-segment-bytes", "1MiB"]) as other,
        other.client() as client,
    ):
        client.create_topic("orders", queues=QUEUES)
        client.publish("orders", b"another log's")
    expected = table_of(bind(broker.url, "orders"))
    path = str(tmp_path / "other")
    assert table_of(bind(broker.url, "orders", path=path)).equals(expected)
    assert table_of(bind(broker.url, "orders", path="/nowhere")).equals(expected)
    with pytest.raises(FilesUnreadable, match="not the file that was planned with"):
        table_of(bind(broker.url, "orders", path=path, transport="files"))
    with pytest.raises(FilesUnreadable, match="/nowhere"):
        table_of(bind(broker.url, "orders", path="/nowhere", transport="files"))


def test_http_alone_reads_no_file(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.spark.read.file_rows.read_rows_of_files", None)
    bound = bind(broker.url, "orders", path=str(broker.data_dir), transport="http")
    assert len(table_of(bound)) == MESSAGES


def copy_of(broker: RunningBroker, tmp_path: Path) -> Path:
    """Return a copy of the log: its files and nothing else."""
    data = tmp_path / "copy"
    copy_running(broker.data_dir / "commitlog", data / "commitlog")
    return data


def test_a_lost_file_fails_or_is_left_out_and_counted(
    broker: RunningBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = copy_of(broker, tmp_path)
    whole = table_of(bind(path=str(data), topic="orders"))
    gone = sorted((data / "commitlog").iterdir())[1]
    gone.unlink()
    bound = bind(path=str(data), topic="orders")
    assert bound.offsets == bind(broker.url, "orders").offsets
    with pytest.raises(DataLost, match="not in the log's files"):
        table_of(bound)
    found = table_of(bind(path=str(data), topic="orders", failOnDataLoss=False))
    kept = whole.to_pylist()
    left = found.to_pylist()
    assert 0 < len(left) < len(kept)
    assert {(row["queue"], row["offset"]) for row in left} < {
        (row["queue"], row["offset"]) for row in kept
    }
    assert all(row in kept for row in left[:: len(left) // 20])
    skipped = sum(record.args[0] for record in caplog.records if "skipped" in record.msg)  # type: ignore[index,misc]
    assert skipped == len(kept) - len(left)


def test_a_damaged_block_costs_itself_alone(broker: RunningBroker, tmp_path: Path) -> None:
    data = copy_of(broker, tmp_path)
    whole = table_of(bind(path=str(data), topic="orders"))
    bound = bind(path=str(data), topic="orders", failOnDataLoss=False)
    parts = planned(bound)
    segment = next(part for part in parts if part.queue == 1).segments[1]
    flip(data, segment.start_offset, segment.first - segment.start_offset + 200)
    found = table_of(bound, parts)
    assert len(found) == len(whole) - 100
    both = bind(broker.url, "orders", path=str(data))
    assert table_of(both).equals(whole)
    with pytest.raises(DataLost, match="payload-crc"):
        table_of(bind(path=str(data), topic="orders"))


@pytest.mark.parametrize("place", ["header page", "trailer", "table"])
def test_header_page_and_footer_only_save_work(
    broker: RunningBroker, tmp_path: Path, place: str
) -> None:
    data = copy_of(broker, tmp_path)
    planned_before = bind(path=str(data), topic="orders")
    parts = planned(planned_before)
    whole = table_of(planned_before)
    size = (data / "commitlog" / f"{0:020d}").stat().st_size
    at = {"header page": 20, "trailer": size - 60, "table": size - 100}[place]
    flip(data, 0, at)
    if place == "table":
        # Damage the base offset of every block.
        raw = (data / "commitlog" / f"{0:020d}").read_bytes()
        trailer = FooterTrailer.decode(raw[-TRAILER_SIZE:])
        assert trailer is not None
        for row in range(trailer.block_count):
            flip(data, 0, size - trailer.footer_size + BLOCK_DTYPE.itemsize * row + 8)
    assert table_of(bind(path=str(data), topic="orders")).equals(whole)
    if place != "header page":  # the header page identifies the file
        assert table_of(planned_before, parts).equals(whole)


def flip(data: Path, start_offset: int, position: int) -> None:
    with (data / "commitlog" / f"{start_offset:020d}").open("r+b") as file:
        file.seek(position)
        found = file.read(1)
        file.seek(position)
        file.write(bytes([found[0] ^ 0x10]))


def test_the_walk_continues_where_it_ended(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FileCatalog(str(broker.data_dir)) as catalog:
        before = catalog.describe("others").queues[0].max_offset
        with broker.client() as client:
            for _ in range(3):
                client.publish("others", b"later")
                before += 1
                assert catalog.describe("others").queues[0].max_offset == before
            read: list[int] = []
            original = SegmentFile.read

            def counted(self: SegmentFile, physical_offset: int, size: int) -> bytes:
                read.append(size)
                return original(self, physical_offset, size)

            monkeypatch.setattr(SegmentFile, "read", counted)
            catalog.describe("others")
    assert sum(read) < SEGMENT_HEADER_SIZE * 10


def test_the_plan_names_the_files(broker: RunningBroker) -> None:
    with urllib.request.urlopen(f"{broker.url}/v1/topics/orders/splits") as reply:
        plan = json.load(reply)
    files = sorted((broker.data_dir / "commitlog").iterdir())
    named = [f"{segment['start_offset']:020d}" for segment in plan["segments"]]
    assert named == [file.name for file in files][: len(named)]
    assert len(named) > 2
    for split in plan["splits"]:
        assert 0 < split["physical_offset"] < split["end_physical_offset"]


@pytest.mark.spark
def test_spark_reads_a_directory(spark: "SparkSession", broker: RunningBroker) -> None:
    path = str(broker.data_dir)
    bound = bind(path=path, topic="orders", minPartitions=4)
    frame = bound.load(spark)
    assert frame.rdd.getNumPartitions() >= 4
    counted = frame.selectExpr("count(*)", "count(key)", "sum(crc32(body))", "sum(offset)")
    over_http = bind(broker.url, "orders").load(spark)
    expected = over_http.selectExpr("count(*)", "count(key)", "sum(crc32(body))", "sum(offset)")
    assert counted.collect() == expected.collect()
    plain = spark.read.format("holdfast").option("topic", "orders").load(path)
    assert plain.count() == MESSAGES
