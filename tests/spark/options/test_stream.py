from typing import Any

import pytest

from holdfast.spark.errors import InvalidOption
from holdfast.spark.options.offsets import (
    EARLIEST,
    LATEST,
    AtTime,
    EarliestOrLatest,
    ExplicitOffsets,
    StoredByGroup,
)
from holdfast.spark.options.read import parse_options
from holdfast.spark.options.stream import (
    MAX_IDLE_WAIT_MS,
    STREAM_OPTIONS,
    TriggerLimits,
    parse_stream_options,
)

BASIC = {"url": "http://broker:8711", "topic": "orders"}


def parse(**given: str) -> Any:
    return parse_stream_options(BASIC | given)


def test_a_stream_starts_at_latest_and_takes_all_there_is() -> None:
    options = parse()
    assert options.read.start == EarliestOrLatest(LATEST)
    assert options.limits == TriggerLimits()
    assert options.group is None


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ({"startingOffsets": "latest"}, EarliestOrLatest(LATEST)),
        ({"startingOffsets": "earliest"}, EarliestOrLatest(EARLIEST)),
        ({"startingOffsets": '{"0": -1, "1": 7}'}, ExplicitOffsets({None: {0: -1, 1: 7}})),
        ({"startingOffsets": "group:billing"}, StoredByGroup("billing")),
        ({"startingTimestamp": "17"}, AtTime(17)),
    ],
)
def test_starts(given: dict[str, str], start: object) -> None:
    assert parse(**given).read.start == start


def test_limits() -> None:
    assert parse(
        maxOffsetsPerTrigger="100",
        MAXBYTESPERTRIGGER="2m",
        minOffsetsPerTrigger="100",
        maxTriggerDelay="90s",
    ).limits == TriggerLimits(100, 2 << 20, 100, 90_000)


@pytest.mark.parametrize(
    ("text", "span_ms"), [("500ms", 500), ("2 S", 2000), ("15m", 900_000), ("1h", 3_600_000)]
)
def test_time_spans(text: str, span_ms: int) -> None:
    limits = parse(minOffsetsPerTrigger="1", maxTriggerDelay=text).limits
    assert limits.max_delay_ms == span_ms


def test_the_idle_wait_is_bounded() -> None:
    assert parse(idleWaitMs="0").idle_wait_ms == 0
    assert parse(idleWaitMs=str(MAX_IDLE_WAIT_MS)).idle_wait_ms == MAX_IDLE_WAIT_MS
    with pytest.raises(InvalidOption, match="more than 10000"):
        parse(idleWaitMs=str(MAX_IDLE_WAIT_MS + 1))
    with pytest.raises(InvalidOption, match="at least 0"):
        parse(idleWaitMs="-1")


@pytest.mark.parametrize(
    ("given", "option", "says"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets", "availableNow"),
        ({"endingtimestamp": "1"}, "endingTimestamp", "availableNow"),
        ({"pushdown": "true"}, "pushdown", "Spark passes no filters"),
        ({"topicIds": '{"orders": 1}'}, "topicIds", "checkpoint"),
        ({"maxOffsetPerTrigger": "1"}, "maxOffsetPerTrigger", "mean 'maxOffsetsPerTrigger'"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger", "at least 1"),
        ({"leaseMs": "-1"}, "leaseMs", "at least 0"),
        ({"maxBytesPerTrigger": "0"}, "maxBytesPerTrigger", "not a size"),
        (
            {"minOffsetsPerTrigger": "2", "maxOffsetsPerTrigger": "1"},
            "minOffsetsPerTrigger",
            "more than maxOffsetsPerTrigger 1",
        ),
        ({"maxTriggerDelay": "1m"}, "maxTriggerDelay", "needs minOffsetsPerTrigger"),
        (
            {"minOffsetsPerTrigger": "2", "maxTriggerDelay": "1"},
            "maxTriggerDelay",
            "not a duration",
        ),
    ],
)
def test_wrong_options_are_refused(given: dict[str, str], option: str, says: str) -> None:
    with pytest.raises(InvalidOption, match=says) as caught:
        parse(**given)
    assert caught.value.option == option


def test_a_batch_refuses_options_of_streams() -> None:
    with pytest.raises(InvalidOption, match=r"spark\.readStream"):
        parse_options(BASIC | {"MaxOffsetsPerTrigger": "1"})


def test_every_option_has_its_line() -> None:
    assert all(STREAM_OPTIONS.values())


def test_a_directory_alone_can_be_streamed_but_has_no_groups() -> None:
    given = {"path": "/data", "topic": "orders"}
    assert parse_stream_options(given).read.location.address is None
    with pytest.raises(InvalidOption, match="groupId stores offsets with a broker; give url"):
        parse_stream_options(given | {"groupId": "billing"})
