"""The source as Spark calls it, without Spark: pickled between the steps as Spark does."""

from typing import Any, cast

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from holdfast.spark.errors import InvalidOption
from holdfast.spark.read.batch_source import HoldfastReader
from holdfast.spark.read.task import _freeze_modules
from holdfast.spark.source import HoldfastDataSource
from tests.support.fake_broker import FakeBroker, FakeTopic


@pytest.fixture
def topic(broker: FakeBroker) -> FakeTopic:
    topic = broker.topic("orders", queues=2)
    for queue in range(2):
        topic.publish(queue, [b"a", b"b", b"c"])
    return topic


def loaded(broker: FakeBroker, **options: str) -> HoldfastDataSource:
    given = CaseInsensitiveDict({"url": broker.url, "topic": "orders", **options})
    source = HoldfastDataSource(cast(dict[str, str], given))
    source.schema()
    return source


def moved(thing: Any) -> Any:
    """Return the object as it arrives in another process."""
    return cloudpickle.loads(cloudpickle.dumps(thing))  # type: ignore[no-untyped-call]


def collect(source: HoldfastDataSource) -> list[dict[str, Any]]:
    """Return the rows, with all steps of one action."""
    reader = moved(source).reader(StructType())
    partitions = moved(reader).partitions()
    assert isinstance(partitions, list)
    return [
        row
        for partition in partitions
        for batch in moved(reader).read(moved(partition))
        for row in batch.to_pylist()
    ]


def test_the_format_is_named_holdfast() -> None:
    assert HoldfastDataSource.name() == "holdfast"


def test_the_schema_names_the_columns(broker: FakeBroker, topic: FakeTopic) -> None:
    source = loaded(broker, columns="offset,properties")
    assert source.schema() == "`offset` bigint, `properties` map<string,string>"


def test_rows_cross_the_processes(broker: FakeBroker, topic: FakeTopic) -> None:
    rows = collect(loaded(broker, columns="queue,offset,body"))
    assert [tuple(row.values()) for row in rows] == [
        (queue, offset, body)
        for queue in range(2)
        for offset, body in enumerate([b"a", b"b", b"c"])
    ]


def test_two_actions_see_the_same_rows(broker: FakeBroker, topic: FakeTopic) -> None:
    source = loaded(broker)
    first = collect(source)
    topic.publish(0, [b"late"])
    assert collect(source) == first
    assert len(collect(loaded(broker))) == len(first) + 1


def test_each_task_reads_its_own_part(broker: FakeBroker, topic: FakeTopic) -> None:
    for _ in range(3):
        topic.publish(0, [b"d"])
    reader = loaded(broker, minPartitions="5").reader(StructType())
    partitions = reader.partitions()
    assert len(partitions) == 5
    counts = [sum(batch.num_rows for batch in reader.read(part)) for part in partitions]
    assert counts == [3, 1, 1, 1, 3]


def test_nothing_to_read_is_one_empty_task(broker: FakeBroker) -> None:
    broker.topic("orders")
    reader = loaded(broker).reader(StructType())
    (partition,) = reader.partitions()
    assert list(reader.read(partition)) == []


def test_the_partition_that_spark_makes_up_has_no_rows(
    broker: FakeBroker, topic: FakeTopic
) -> None:
    reader = loaded(broker).reader(StructType())
    assert list(reader.read(InputPartition(None))) == []


def test_rows_come_as_record_batches_from_an_iterator(broker: FakeBroker, topic: FakeTopic) -> None:
    reader = loaded(broker).reader(StructType())
    rows = reader.read(reader.partitions()[0])
    assert isinstance(next(rows), pa.RecordBatch)
    rows.close()  # type: ignore[attr-defined]


def test_filters_are_not_pushed() -> None:
    # With default settings, Spark refuses a reader that overrides pushFilters.
    assert HoldfastReader.pushFilters is DataSourceReader.pushFilters


def test_a_schema_of_the_users_is_refused(broker: FakeBroker) -> None:
    source = HoldfastDataSource({"url": broker.url, "topic": "orders"})
    with pytest.raises(InvalidOption, match="option columns"):
        source.reader(StructType())


def test_options_are_checked_at_load(broker: FakeBroker) -> None:
    with pytest.raises(InvalidOption, match="did you mean 'startingOffsets'"):
        loaded(broker, startingOffset="earliest")


def test_a_worker_freezes_its_modules_once(
    broker: FakeBroker, topic: FakeTopic, monkeypatch: pytest.MonkeyPatch
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
