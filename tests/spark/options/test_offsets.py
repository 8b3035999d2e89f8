import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.log_files.ranges import OffsetRange, QueueState
from holdfast.spark.errors import DataLost, InvalidOption
from holdfast.spark.options.offsets import (
    EARLIEST,
    LATEST,
    AtTime,
    EarliestOrLatest,
    ExplicitOffsets,
    OffsetSpec,
    StoredByGroup,
    format_offsets,
    parse_offsets,
    resolve_ranges,
)

QUEUES = {0: QueueState(10, 100), 1: QueueState(0, 50)}
EARLIEST_ON = EarliestOrLatest(EARLIEST)
UP_TO_LATEST = EarliestOrLatest(LATEST)
WHOLE = {0: (10, 100), 1: (0, 50)}


def ranges(
    start: OffsetSpec = EARLIEST_ON, end: OffsetSpec = UP_TO_LATEST, **given: Any
) -> dict[int, OffsetRange]:
    """Resolve the ranges of the queues. By default, no offset is looked up and loss is an error."""
    defaults: dict[str, Any] = {"start_lookup": {}, "end_lookup": {}, "fail_on_data_loss": True}
    return resolve_ranges("t", QUEUES, start, end, **defaults | given)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("earliest", EarliestOrLatest(EARLIEST)),
        ("Earliest", EarliestOrLatest(EARLIEST)),
        ("group:billing", StoredByGroup("billing")),
        ('{"0": 12, "1": -2}', ExplicitOffsets({None: {0: 12, 1: -2}})),
        ('{"t": {"0": 12}, "u": {}}', ExplicitOffsets({"t": {0: 12}, "u": {}})),
        ("{}", ExplicitOffsets({None: {}})),
    ],
)
def test_starts_parse(text: str, spec: OffsetSpec) -> None:
    assert parse_offsets("startingOffsets", text, useless=LATEST) == spec


@pytest.mark.parametrize(
    "text",
    [
        "", "now", "group:", "[1]", "{", '{"0": -3}', '{"0": 1.5}', '{"0": true}', '{"0": "1"}',
        '{"x": 1}', '{"-1": 1}', '{"t": {"0": 1}, "0": 1}', '{"t": {"u": {}}}',
        '{"0": -1}', '{"t": {"0": -1}}', "latest",
    ],
)  # fmt: skip
def test_starts_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(InvalidOption):
        parse_offsets("startingOffsets", text, useless=LATEST)


def test_an_end_is_latest_but_not_earliest() -> None:
    assert parse_offsets("endingOffsets", '{"0": -1}', useless=EARLIEST) == ExplicitOffsets(
        {None: {0: -1}}
    )
    with pytest.raises(InvalidOption):
        parse_offsets("endingOffsets", '{"0": -2}', useless=EARLIEST)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (EARLIEST_ON, UP_TO_LATEST, WHOLE),
        # A queue that is not named starts at the earliest and ends at the latest offset.
        (
            ExplicitOffsets({None: {1: 7}}),
            ExplicitOffsets({"t": {0: 20}}),
            {0: (10, 20), 1: (7, 50)},
        ),
        # Kafka's numbers for the ends.
        (ExplicitOffsets({None: {0: EARLIEST}}), ExplicitOffsets({None: {0: LATEST}}), WHOLE),
        # An empty range of trimmed messages is no loss.
        (ExplicitOffsets({None: {0: 5}}), ExplicitOffsets({None: {0: 5}}), {0: (5, 5), 1: (0, 50)}),
    ],
)
def test_starts_and_ends_give_ranges(
    start: OffsetSpec, end: OffsetSpec, expected: dict[int, tuple[int, int]]
) -> None:
    assert ranges(start, end) == expected


def test_a_group_without_an_offset_counts_as_at_the_earliest() -> None:
    assert ranges(StoredByGroup("g"), start_lookup={0: 40}) == {0: (40, 100), 1: (0, 50)}
    assert ranges(end=StoredByGroup("g"), end_lookup={0: 40}) == {0: (10, 40), 1: (0, 0)}


def test_times_never_exceed_the_bound_ends() -> None:
    # Messages published after the queues were described are left for the next read.
    late = {0: 120, 1: 60}
    assert ranges(AtTime(5), start_lookup=late) == {0: (100, 100), 1: (50, 50)}
    assert ranges(end=AtTime(5), end_lookup=late) == WHOLE


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (ExplicitOffsets({None: {0: 101}}), EarliestOrLatest(LATEST)),
        (EarliestOrLatest(EARLIEST), ExplicitOffsets({None: {0: 101}})),
        (ExplicitOffsets({None: {0: 30}}), ExplicitOffsets({None: {0: 29}})),
        (ExplicitOffsets({None: {2: 0}}), EarliestOrLatest(LATEST)),
        (EarliestOrLatest(EARLIEST), ExplicitOffsets({"t": {2: 0}})),
    ],
)
def test_offsets_that_do_not_fit_are_refused(start: OffsetSpec, end: OffsetSpec) -> None:
    with pytest.raises(InvalidOption):
        ranges(start, end)


def test_a_group_beyond_the_end_is_refused() -> None:
    with pytest.raises(InvalidOption, match="beyond the end"):
        ranges(StoredByGroup("g"), start_lookup={1: 51})


def test_a_trimmed_start_is_lost_data() -> None:
    with pytest.raises(DataLost) as caught:
        ranges(ExplicitOffsets({None: {0: 9}}))
    assert (caught.value.offset, caught.value.next_offset) == (9, 10)
    assert "failOnDataLoss=false" in str(caught.value)


def test_a_trimmed_start_moves_up_when_loss_is_allowed() -> None:
    start = ExplicitOffsets({None: {0: 3}})
    assert ranges(start, fail_on_data_loss=False)[0] == (10, 100)
    assert ranges(start, ExplicitOffsets({None: {0: 5}}), fail_on_data_loss=False)[0] == (5, 5)


@settings(deadline=None)  # others may share the machine
@given(
    st.dictionaries(
        st.text("abc", min_size=1),
        st.dictionaries(st.integers(0, 99), st.integers(0, 2**62), min_size=1),
        min_size=1,
    )
)
def test_offsets_written_are_read_back(by_topic: dict[str, dict[int, int]]) -> None:
    text = format_offsets(by_topic)
    assert parse_offsets("startingOffsets", text, useless=LATEST) == ExplicitOffsets(by_topic)  # type: ignore[arg-type]
    assert json.loads(text)
