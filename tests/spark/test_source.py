"""The source as Spark calls it, without Spark: through JSON and pickle as Spark does."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from holdfast.spark.broker.client import BrokerClient
from holdfast.spark.errors import BrokerRefused, CheckpointUnreadable, InvalidOption, TopicRecreated
from holdfast.spark.read.task import _freeze_modules
from holdfast.spark.source import HoldfastDataSource
from holdfast.spark.stream import source as stream_source
from holdfast.spark.stream.source import HoldfastStreamReader
from tests.support.servers.fake_broker import FakeBroker, FakeTopic


@pytest.fixture(autouse=True)
def topic(broker: FakeBroker) -> FakeTopic:
    return broker.topic("orders", queues=2, bodies=[b"a", b"b", b"c"])


Open = Callable[..., HoldfastStreamReader]


@pytest.fixture
def open_reader(broker: FakeBroker) -> Iterator[Open]:
    """Return a function that returns a reader of a stream with these options."""
    with ExitStack() as opened:

        def make(**options: str) -> HoldfastStreamReader:
            reader = loaded(broker, **options).streamReader(StructType())
            opened.callback(reader.stop)
            return reader

        yield make


def moved(thing: Any) -> Any:
    """Return the object as it arrives in another process."""
    return cloudpickle.loads(cloudpickle.dumps(thing))  # type: ignore[no-untyped-call]


def loaded(broker: FakeBroker, **options: str) -> HoldfastDataSource:
    given = CaseInsensitiveDict({"url": broker.url, "topic": "orders", **options})
    source = HoldfastDataSource(cast(dict[str, str], given))
    source.schema()
    return cast(HoldfastDataSource, moved(source))


@pytest.fixture
def reader(open_reader: Open) -> HoldfastStreamReader:
    return open_reader(startingOffsets="earliest", columns="queue,offset,body")


def test_rows_cross_the_processes(reader: HoldfastStreamReader) -> None:
    start = json.loads(json.dumps(reader.initialOffset()))
    end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
    assert end == {"version": 1, "topics": {"orders": {"id": 1, "queues": {"0": 3, "1": 3}}}}
    rows = [
        tuple(row.values())
        for partition in reader.partitions(start, end)
        for batch in moved(reader).read(moved(partition))
        for row in batch.to_pylist()
    ]
    assert rows == [
        (queue, offset, body)
        for queue in range(2)
        for offset, body in enumerate([b"a", b"b", b"c"])
    ]


def test_the_same_offset_has_the_same_text(reader: HoldfastStreamReader) -> None:
    start = json.loads(json.dumps(reader.initialOffset()))
    end = reader.latestOffset(start, ReadAllAvailable())
    again = reader.latestOffset(json.loads(json.dumps(end)), ReadAllAvailable())
    assert json.dumps(again) == json.dumps(end)


def test_nothing_to_read_is_no_partition(reader: HoldfastStreamReader) -> None:
    start = reader.initialOffset()
    assert reader.partitions(start, start) == []
    assert list(reader.read(InputPartition(None))) == []


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "5"}, ReadMaxRows(5)),
        ({"maxBytesPerTrigger": "5"}, ReadMaxBytes(5)),
        ({"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "7"}, ReadMaxRows(5)),
        ({"minOffsetsPerTrigger": "5"}, ReadMinRows(5)),
    ],
)
def test_spark_gets_the_limit(open_reader: Open, options: dict[str, str], limit: ReadLimit) -> None:
    assert open_reader(**options).getDefaultReadLimit() == limit


def test_a_limit_is_kept_unless_the_trigger_takes_everything(open_reader: Open) -> None:
    reader = open_reader(startingOffsets="earliest", maxOffsetsPerTrigger="4")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(4))
    assert end["topics"]["orders"]["queues"] == {"0": 2, "1": 2}
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end["topics"]["orders"]["queues"] == {"0": 3, "1": 3}


def test_the_end_is_pinned_for_available_now(
    reader: HoldfastStreamReader, topic: FakeTopic
) -> None:
    assert isinstance(reader, SupportsTriggerAvailableNow)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    topic.publish(0, [b"late"])
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end["topics"]["orders"]["queues"] == {"0": 3, "1": 3}
    assert reader.latestOffset(end, ReadAllAvailable()) is end


def test_the_newest_offsets_are_reported(reader: HoldfastStreamReader) -> None:
    assert reader.reportLatestOffset() is None
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(1))
    newest = reader.reportLatestOffset()
    assert newest is not None
    assert newest["topics"]["orders"]["queues"] == {"0": 3, "1": 3}


def test_a_reader_that_could_not_open_leaves_nothing_open(
    open_reader: Open, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group with leases is refused at the start."""
    opened: list[BrokerClient] = []
    open_client, close_client = BrokerClient.open, BrokerClient.close

    def counted(*arguments: Any, **named: Any) -> BrokerClient:
        opened.append(open_client(*arguments, **named))
        return opened[-1]

    def closed(client: BrokerClient) -> None:
        opened.remove(client)
        close_client(client)

    monkeypatch.setattr(BrokerClient, "open", counted)
    monkeypatch.setattr(BrokerClient, "close", closed)
    broker.leased_groups.add("billing")
    reader = open_reader(groupId="billing")
    for _ in range(2):
        with pytest.raises(InvalidOption, match="leases messages"):
            reader.initialOffset()
        assert opened == []
    broker.leased_groups.clear()
    reader.initialOffset()
    assert len(opened) == 2
    reader.stop()
    reader.stop()
    assert opened == []


def test_a_reader_that_is_ended_while_it_stops_releases_its_leases(
    reader: HoldfastStreamReader, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark closes the connection, so the reader stops, and then Spark sends SIGTERM."""
    acts: list[Callable[[], None]] = []
    monkeypatch.setattr(stream_source, "run_before_termination", acts.append)
    start = reader.initialOffset()
    reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    assert list(broker.leases) == ["lease-0"]
    release = BrokerClient.release_leases

    def cut_off(client: BrokerClient, leases: Iterable[tuple[str, str]]) -> None:
        monkeypatch.setattr(BrokerClient, "release_leases", release)
        acts[0]()
        assert broker.leases == {}

    monkeypatch.setattr(BrokerClient, "release_leases", cut_off)
    reader.stop()
    assert broker.leases == {}


def test_a_checkpoint_of_another_version_is_refused(reader: HoldfastStreamReader) -> None:
    with pytest.raises(CheckpointUnreadable, match="their version is 2"):
        reader.latestOffset({"version": 2}, ReadAllAvailable())


# -- options for both batches and streams -----------------------------------------------------


def test_options_of_a_stream_alone_bind_nothing(broker: FakeBroker) -> None:
    source = loaded(broker, maxOffsetsPerTrigger="5")
    assert broker.requests == []
    with pytest.raises(InvalidOption, match=r"is for streams \(spark.readStream\)"):
        source.reader(StructType())


def test_options_of_a_batch_alone_are_no_streams(broker: FakeBroker) -> None:
    source = loaded(broker, endingOffsets="latest")
    source.reader(StructType())
    with pytest.raises(InvalidOption, match="no meaning for a stream"):
        source.streamReader(StructType())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"maxOffsetsPerTrigger": "none"}, "not an integer"),
        ({"maxOffsetsPerTrigger": "5", "endingOffsets": "latest"}, "no meaning for a stream"),
        ({"startingOffset": "latest"}, "did you mean 'startingOffsets'"),
        ({"endingOffsets": "earliest"}, "a batch that ends at earliest reads nothing"),
    ],
)
def test_options_of_neither_fail_at_load(
    broker: FakeBroker, options: dict[str, str], says: str
) -> None:
    with pytest.raises(InvalidOption, match=says):
        loaded(broker, **options)


def test_a_start_that_a_batch_cannot_have_is_the_batchs_alone(broker: FakeBroker) -> None:
    # A stream continues at its checkpoint, and must not evaluate the option at all.
    source = loaded(broker, startingOffsets='{"0": 50}')
    source.streamReader(StructType())
    with pytest.raises(InvalidOption, match="offset 50 is beyond the end"):
        source.reader(StructType())
    with pytest.raises(InvalidOption, match="offset 50 is beyond the end"):
        loaded(broker, startingOffsets='{"0": 50}', endingOffsets="latest")


def test_a_topic_that_is_not_there_fails_at_load(broker: FakeBroker) -> None:
    del broker.topics["orders"]
    with pytest.raises(BrokerRefused, match="there is no topic"):
        loaded(broker)
    source = loaded(broker, failOnDataLoss="false")
    source.streamReader(StructType())
    with pytest.raises(BrokerRefused, match="there is no topic"):
        source.reader(StructType())


def test_a_bound_read_of_a_topic_recreated_fails_at_load(broker: FakeBroker) -> None:
    with pytest.raises(TopicRecreated):
        loaded(broker, topicIds='{"orders": 7}')


def test_a_schema_of_the_users_is_refused(broker: FakeBroker) -> None:
    source = HoldfastDataSource({"url": broker.url, "topic": "orders"})
    with pytest.raises(InvalidOption, match="option columns"):
        source.streamReader(StructType())


# -- batches -----------------------------------------------------------------------------------


def test_the_partition_that_spark_makes_up_has_no_rows(broker: FakeBroker) -> None:
    reader = loaded(broker).reader(StructType())
    assert list(reader.read(InputPartition(None))) == []


def test_a_worker_freezes_its_modules_once(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen: list[None] = []
    monkeypatch.setattr("gc.freeze", lambda: frozen.append(None))
    reader = loaded(broker).reader(StructType())
    list(reader.read(reader.partitions()[0]))
    assert not frozen  # the user's own process, outside of a Spark task

    monkeypatch.setattr("pyspark.TaskContext.get", lambda: "a task")
    _freeze_modules.cache_clear()
    rows = reader.read(reader.partitions()[0])
    next(rows)
    assert not frozen  # a module that reading needs may be loaded as late as here
    for each in (rows, reader.read(reader.partitions()[0])):
        list(each)
        assert len(frozen) == 1
