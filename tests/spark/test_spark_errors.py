"""Spark shows an error as one sentence that names the place of the error and how to fix it.

For batches and writes the sentence is the last line, except for Spark's SQLSTATE. For a stream it
is between a traceback and the plan, and `reason` finds it there.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.spark import reason
from tests.support.servers.fake_broker import Answer, FakeBroker, FakeTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

TIMEOUT_S = 60

TRIMMED = Answer(
    410,
    {"Content-Type": "application/problem+json"},
    b'{"type": "/problems/offset-trimmed", "status": 410, "min_offset": 2}',
)


@pytest.fixture(autouse=True)
def topic(broker: FakeBroker) -> FakeTopic:
    return broker.topic("orders", queues=2, bodies=[b"a", b"b", b"c"])


def sentence_of(act: Callable[[], object], *, last: bool = True) -> str:
    """Return the sentence with which an action fails; if `last`, it must end the text."""
    with pytest.raises(Exception, match=r"\w") as caught:
        act()
    sentence = reason(caught.value)
    assert sentence is not None, str(caught.value)
    if last:
        text = str(caught.value).rstrip().removesuffix("SQLSTATE: 38000").rstrip()
        assert text.endswith(sentence), text[-2000:]
    return sentence


@pytest.mark.parametrize(
    ("options", "says", "at_load"),
    [
        ({"url": ""}, "or path (a data directory to read)", True),
        ({"topic": ""}, "give exactly one of topic, subscribe", True),
        ({"topic": "nowhere"}, "there is no topic 'nowhere'", True),
        ({"startOffsets": "earliest"}, "did you mean 'startingOffsets'", True),
        (
            {"startingOffsets": '{"0": 2}', "endingOffsets": '{"0": 1}'},
            "give an earlier start",
            True,
        ),
        ({"endingOffsets": '{"0": 9}'}, "beyond the end of queue 0 of 'orders', which is 3;", True),
        ({"startingOffsets": '{"0": 9}'}, "give a smaller offset", False),
        ({"startingOffsets": '{"7": 0}'}, "only 0, 1", False),
        ({"startingOffsets": "group:nobody"}, "holdfast.spark.bind, which creates", False),
        (
            {"startingTimestamp": "99999999999999", "startingOffsetsByTimestampStrategy": "error"},
            "option 'startingTimestamp': queue 0 of 'orders' has no message",
            False,
        ),
    ],
)
def test_a_wrong_batch_fails_with_a_sentence_as_early_as_possible(
    spark: "SparkSession", broker: FakeBroker, options: dict[str, str], says: str, at_load: bool
) -> None:
    given = {"url": broker.url, "topic": "orders", **options}
    reader = spark.read.format("holdfast").options(**{k: v for k, v in given.items() if v})
    if at_load:
        assert says in sentence_of(reader.load)
    else:
        assert says in sentence_of(reader.load().count)


def test_a_failed_task_gives_a_sentence(spark: "SparkSession", broker: FakeBroker) -> None:
    frame = spark.read.format("holdfast").options(url=broker.url, topic="orders").load()
    broker.faults.append(lambda target: TRIMMED if "/messages?" in target else None)
    assert "failOnDataLoss=false" in sentence_of(frame.count)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"endingOffsets": "latest"}, "trigger(availableNow=True) stops at the current end"),
        ({"startingOffsets": '{"0": 9}'}, "give a smaller offset"),
        ({"maxOffsetPerTrigger": "5"}, "did you mean 'maxOffsetsPerTrigger'"),
        ({"startingOffsets": "earliest"}, "failOnDataLoss=false"),  # its tasks fail
    ],
)
def test_a_wrong_stream_fails_with_a_sentence(
    spark: "SparkSession", broker: FakeBroker, tmp_path: Path, options: dict[str, str], says: str
) -> None:
    broker.faults.append(lambda target: TRIMMED if "/messages?" in target else None)

    def run() -> None:
        frame = spark.readStream.format("holdfast").options(
            url=broker.url, topic="orders", **options
        )
        writer = frame.load().writeStream.format("noop").trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path)).start().awaitTermination(TIMEOUT_S)

    assert says in sentence_of(run, last=False)


@pytest.mark.parametrize(
    ("columns", "options", "mode", "says"),
    [
        ("string(id) as body", {"topic": "nowhere"}, "append", "there is no topic 'nowhere'"),
        ("string(id) as body", {"durabilty": "fsync"}, "append", "did you mean 'durability'"),
        ("string(id) as body", {}, "overwrite", "use append"),
        ("string(id) as bodi", {}, "append", "did you mean 'body'"),
        ("cast(null as string) as body", {}, "append", "filter the row out"),
        ("'' as body, 7 as queue", {}, "append", "use null to let the source choose"),
    ],
)
def test_a_wrong_write_fails_with_a_sentence(
    spark: "SparkSession",
    broker: FakeBroker,
    columns: str,
    options: dict[str, str],
    mode: str,
    says: str,
) -> None:
    frame: DataFrame = spark.range(1).selectExpr(*columns.split(", "))
    writer = frame.write.format("holdfast").mode(mode)
    assert says in sentence_of(
        writer.options(**{"url": broker.url, "topic": "orders", **options}).save
    )
