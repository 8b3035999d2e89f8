"""The source under Spark itself: one test per promise."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.spark.bound import bind
from tests.support.servers.fake_broker import FakeBroker, FakeTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]


@pytest.fixture(autouse=True)
def topic(broker: FakeBroker) -> FakeTopic:
    topic = broker.topic("orders", queues=2)
    for queue in range(2):
        for second in range(1, 4):
            topic.publish(
                queue,
                [b"%d" % (10 * second + n) for n in range(10)],
                keys=[f"k{n}" for n in range(10)],
                tags=["200" if n % 2 else None for n in range(10)],
                properties=[{"n": str(n)} if n else None for n in range(10)],
                store_timestamp_us=second * 1_000_000,
                born_timestamp_us=second * 1_000_000 - 1,
            )
    return topic


Load = Callable[..., "DataFrame"]


@pytest.fixture
def load(spark: "SparkSession", broker: FakeBroker) -> Load:
    """Return a function that reads the topic "orders" with these options."""

    def read(**options: str) -> "DataFrame":
        if "assign" not in options:
            options["topic"] = "orders"
        return spark.read.format("holdfast").options(url=broker.url, **options).load()

    return read


def collect(frame: "DataFrame") -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def test_columns_and_rows(load: Load) -> None:
    frame = load()
    assert [tuple(field) for field in frame.dtypes] == [
        ("queue", "int"),
        ("offset", "bigint"),
        ("key", "string"),
        ("tag", "string"),
        ("properties", "map<string,string>"),
        ("body", "binary"),
        ("born_timestamp", "timestamp"),
        ("store_timestamp", "timestamp"),
    ]
    rows = frame.selectExpr(
        "queue", "offset", "key", "tag", "properties['n']", "size(properties)",
        "string(body)", "unix_millis(born_timestamp)", "unix_millis(store_timestamp)",
    )  # fmt: skip
    assert collect(rows.where("queue = 1 and offset in (0, 11)")) == [
        (1, 0, "k0", None, None, 0, "10", 999, 1000),
        (1, 11, "k1", "200", "1", 1, "21", 1999, 2000),
    ]
    assert frame.count() == 60


def test_kafka_columns(spark: "SparkSession", broker: FakeBroker) -> None:
    frame = (
        spark.read.format("holdfast")
        .option("kafka.bootstrap.servers", broker.url.removeprefix("http://"))
        .option("subscribe", "orders")
        .option("schema", "kafka")
        .option("includeHeaders", True)
        .load()
    )
    rows = frame.selectExpr(
        "string(key)", "string(value)", "topic", "partition", "offset",
        "unix_millis(timestamp)", "timestampType", "headers[0].key", "string(headers[0].value)",
    )  # fmt: skip
    assert collect(rows.where("partition = 0 and offset = 1")) == [
        ("k1", "11", "orders", 0, 1, 1000, 1, "n", "1")
    ]
    assert frame.where("headers is null").count() == 6


def test_every_column_can_be_chosen(load: Load) -> None:
    frame = load(columns="message_id,topic,priority,offset", tag="200")
    first = frame.orderBy("message_id").first()
    assert first is not None
    assert tuple(first) == ("00000001" + "00000000" + "0000000000000001", "orders", None, 1)
    assert frame.count() == 30


def test_all_actions_see_the_rows_of_the_load_and_a_new_load_sees_more(
    load: Load, spark: "SparkSession", topic: FakeTopic
) -> None:
    frame = load()
    topic.publish(0, [b"late"] * 5)  # before the first action
    frame.createOrReplaceTempView("orders")
    assert spark.sql("select * from orders a join orders b using (queue, offset)").count() == 60
    topic.publish(0, [b"late"] * 5)
    counts = frame.groupBy("queue").agg({"*": "count", "offset": "max"})
    assert collect(counts.select("queue", "count(1)", "max(offset)")) == [(0, 30, 29), (1, 30, 29)]
    assert load().count() == 70


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"startingOffsets": '{"0": 5}', "endingOffsets": '{"0": 25, "1": 3}'}, 23),
        ({"startingTimestamp": "1001", "endingTimestamp": "3000"}, 20),
        ({"startingOffsets": "group:billing"}, 31),
        ({"endingOffsets": "group:billing"}, 29),
        ({"assign": '{"orders": [1]}', "minPartitions": "3"}, 30),
        ({"filter": "n > 1", "columns": "offset"}, 60),
        ({"startingTimestamp": "3001"}, 0),
    ],
)
def test_ranges(load: Load, broker: FakeBroker, options: dict[str, str], count: int) -> None:
    broker.groups["billing"] = {"orders": ({0: 29}, 1)}
    assert load(**dict(options)).count() == count


def test_one_queue_is_read_by_several_tasks(load: Load) -> None:
    frame = load(assign='{"orders": [0]}', minPartitions="3")
    tasks = frame.selectExpr("spark_partition_id() as task", "offset").groupBy("task")
    assert sorted(row["count"] for row in tasks.count().collect()) == [10, 10, 10]


def test_a_bound_group_continues_where_it_stopped(
    spark: "SparkSession", broker: FakeBroker, topic: FakeTopic
) -> None:
    bound = bind(broker.url, "orders", group="billing")
    frame = bound.load(spark)
    topic.publish(1, [b"late"] * 4)
    assert frame.count() == 60
    bound.save()
    assert bind(broker.url, "orders", group="billing").load(spark).count() == 4
    assert bound.load(spark).count() == 60


def test_lost_data_fails_the_job(load: Load, topic: FakeTopic) -> None:
    frame = load()
    careless = load(failOnDataLoss="false")
    topic.queues[1].min_offset = 7
    with pytest.raises(Exception, match="queue 1 of 'orders' has no messages from offset 0 to 7"):
        frame.count()
    assert careless.count() == 53


def test_a_topic_recreated_fails_the_job(load: Load, broker: FakeBroker) -> None:
    frame = load()
    assert frame.count() == 60
    broker.topic("orders", queues=2).publish(0, [b"other"] * 60)
    with pytest.raises(Exception, match="was deleted and created again"):
        frame.collect()


def test_a_schema_of_the_users_is_refused(spark: "SparkSession", broker: FakeBroker) -> None:
    reader = spark.read.format("holdfast").schema("body binary")
    with pytest.raises(Exception, match=r"omit .schema"):
        reader.options(url=broker.url, topic="orders").load().collect()


def test_sparks_filters_narrow_the_read(
    load: Load, spark: "SparkSession", broker: FakeBroker
) -> None:
    conditions = (
        "queue = 1 and offset >= 5 and offset < 25 and tag in ('200', '404') "
        "and store_timestamp >= timestamp_millis(2000) and key = 'k3'"
    )
    expected = collect(load().where(conditions).select("queue", "offset"))
    assert expected == [(1, 13), (1, 23)]

    def pushed() -> "DataFrame":
        return load(pushdown="true").where(conditions).select("queue", "offset")

    with pytest.raises(Exception, match=r"spark.sql.python.filterPushdown.enabled"):
        pushed().collect()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        broker.requests.clear()
        assert collect(pushed()) == expected
        assert load(pushdown="true").where("key = 'k3' or queue = 0").count() == 33
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    pulls = [each for each in broker.requests if "/messages?" in each and "tag=200,404" in each]
    assert pulls
    assert all("queues/1/messages?offset=10&" in each for each in pulls)
