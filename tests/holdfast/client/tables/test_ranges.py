import re
from typing import Any

import pytest

from holdfast.client.errors import OffsetBeyondEnd, OffsetTrimmed, UnknownQueue
from holdfast.client.tables.ranges import Bound, QueueBounds, QueueSlice, TableRange

QUEUES = {queue: QueueBounds(10, 50) for queue in (2, 0, 1)}


def wanted(
    queue: int | None = None, start: Bound | None = None, end: Bound | None = None
) -> TableRange:
    return TableRange("orders", queue, start or Bound(), end or Bound())


@pytest.mark.parametrize(
    ("given", "start_at_time", "end_at_time", "slice_"),
    [
        ({}, None, None, (10, 50)),
        ({"start": Bound(12), "end": Bound(40)}, None, None, (12, 40)),
        ({"start": Bound({1: 12}), "end": Bound({0: 20})}, None, None, (12, 50)),
        ({"start": Bound(timestamp_ms=5), "end": Bound(timestamp_ms=9)}, 20, 30, (20, 30)),
        ({"start": Bound(timestamp_ms=5), "end": Bound(20)}, 30, None, (20, 20)),
        # Nothing of the range is left, so nothing is lost.
        ({"start": Bound(3), "end": Bound(3)}, None, None, (3, 3)),
        ({"start": Bound(10), "end": Bound(50)}, None, None, (10, 50)),
        ({"start": Bound(50)}, None, None, (50, 50)),
    ],
)
def test_bounds_become_offsets(
    given: dict[str, Any],
    start_at_time: int | None,
    end_at_time: int | None,
    slice_: tuple[int, int],
) -> None:
    found = wanted(1, **given).slice_of(1, QUEUES[1], start_at_time, end_at_time)
    assert found == QueueSlice(1, *slice_)


def test_queues_are_read_in_order_and_a_named_queue_must_exist() -> None:
    assert wanted().queues_of(QUEUES) == [0, 1, 2]
    assert wanted(1).queues_of(QUEUES) == [1]
    for missing in (wanted(3), wanted(start=Bound({0: 10, 3: 10})), wanted(end=Bound({3: 10}))):
        with pytest.raises(UnknownQueue, match="no queue 3") as error:
            missing.queues_of(QUEUES)
        assert error.value.queue_count == 3


def test_offsets_that_the_queue_does_not_have_are_refused() -> None:
    with pytest.raises(OffsetTrimmed, match="begins at offset 10; offset 9 is gone") as trimmed:
        wanted(1, Bound(9)).slice_of(1, QUEUES[1], None, None)
    assert (trimmed.value.min_offset, trimmed.value.max_offset) == (10, 50)
    for beyond in (wanted(1, Bound(51)), wanted(1, end=Bound(51))):
        with pytest.raises(OffsetBeyondEnd, match="ends at offset 50, before offset 51") as error:
            beyond.slice_of(1, QUEUES[1], None, None)
        assert error.value.max_offset == 50
    with pytest.raises(ValueError, match="start_offset=20 is after end_offset=12"):
        wanted(1, Bound(20), Bound(12)).slice_of(1, QUEUES[1], None, None)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"start": Bound(1)}, "start_offset=1 belongs to one queue: give queue="),
        ({"end": Bound(1)}, "end_offset=1 belongs to one queue: give queue="),
        ({"start": Bound({0: 1}, 5)}, "give either start_offset= or start_timestamp_ms="),
        ({"end": Bound({0: 1}, 5)}, "give either end_offset= or end_timestamp_ms="),
        (
            {"start": Bound(timestamp_ms=9), "end": Bound(timestamp_ms=5)},
            "start_timestamp_ms=9 is after end_timestamp_ms=5",
        ),
    ],
)
def test_bounds_that_contradict_each_other_are_refused(
    given: dict[str, Bound], reason: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        wanted(**given)  # type: ignore[arg-type]
