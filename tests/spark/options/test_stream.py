from operator import attrgetter
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
DELAY = {"minOffsetsPerTrigger": "1"}


def parse(**given: str) -> Any:
    return parse_stream_options(BASIC | given)


def test_a_stream_starts_at_latest_and_takes_all_there_is() -> None:
    options = parse()
    assert options.read.start == EarliestOrLatest(LATEST)
    assert options.limits == TriggerLimits()
    assert options.group is None


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"startingOffsets": "latest"}, "read.start", EarliestOrLatest(LATEST)),
        ({"startingOffsets": "earliest"}, "read.start", EarliestOrLatest(EARLIEST)),
        ({"startingOffsets": '{"0": -1}'}, "read.start", ExplicitOffsets({None: {0: -1}})),
        ({"startingOffsets": "group:billing"}, "read.start", StoredByGroup("billing")),
        ({"startingTimestamp": "17"}, "read.start", AtTime(17)),
        ({"maxOffsetsPerTrigger": "100"}, "limits.max_offsets", 100),
        ({"MAXBYTESPERTRIGGER": "2m"}, "limits.max_bytes", 2 << 20),
        (DELAY, "limits.min_offsets", 1),
        (DELAY | {"maxTriggerDelay": "500ms"}, "limits.max_delay_ms", 500),
        (DELAY | {"maxTriggerDelay": "2 S"}, "limits.max_delay_ms", 2000),
        (DELAY | {"maxTriggerDelay": "15m"}, "limits.max_delay_ms", 900_000),
        (DELAY | {"maxTriggerDelay": "1h"}, "limits.max_delay_ms", 3_600_000),
        ({"idleWaitMs": "0"}, "idle_wait_ms", 0),
        ({"idleWaitMs": str(MAX_IDLE_WAIT_MS)}, "idle_wait_ms", MAX_IDLE_WAIT_MS),
    ],
)
def test_values_are_parsed(given: dict[str, str], name: str, value: object) -> None:
    assert attrgetter(name)(parse(**given)) == value


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
        (DELAY | {"maxTriggerDelay": "1"}, "maxTriggerDelay", "not a duration"),
        ({"idleWaitMs": str(MAX_IDLE_WAIT_MS + 1)}, "idleWaitMs", "more than 10000"),
        ({"idleWaitMs": "-1"}, "idleWaitMs", "at least 0"),
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
