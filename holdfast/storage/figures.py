"""How fast the log grows, and how long its syncs take: for the overview of the broker."""

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client import Histogram

from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.segment_format import SEGMENT_HEADER_SIZE, SegmentHeader
from holdfast.commitlog.segments.segment import Segment

DAY_US = 86_400_000_000
#: A rate is measured over at least this time: the first seconds of a log say little about a day.
SHORTEST_US = 600_000_000


def bytes_per_day(segments: Sequence[Segment], end_offset: int, now_us: int) -> int:
    """Return how many bytes were written to the log per day, since the oldest segment that was
    created in the last day, or since the last segment was created if that is longer ago.

    Read the headers of a few segments, so call this in a thread. Return 0 if they cannot be read.
    """
    if not segments:
        return 0
    try:
        number = bisect_left(segments, now_us - DAY_US, key=_created_us)
        first = segments[min(number, len(segments) - 1)]
        passed_us = max(now_us - _created_us(first), SHORTEST_US)
    except (OSError, CorruptBatch):
        return 0
    return max(end_offset - first.first_offset, 0) * DAY_US // passed_us


def _created_us(segment: Segment) -> int:
    page = segment.read(segment.start_offset, SEGMENT_HEADER_SIZE)
    return SegmentHeader.decode(page).created_timestamp_us


def upper_quantile(histogram: Histogram, share: float) -> float | None:
    """Return the smallest bucket bound that at least this share of the values do not exceed.

    Return None if there are no values, or if the bound is infinite.
    """
    (metric,) = histogram.collect()
    counts = {s.labels["le"]: s.value for s in metric.samples if s.name.endswith("_bucket")}
    total = counts.pop("+Inf")
    return next((float(le) for le, n in counts.items() if total and n >= share * total), None)
