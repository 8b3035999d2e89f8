"""How fast the log grows, and how long its syncs take."""

from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import Histogram

from holdfast.commitlog.format.segment_format import SEGMENT_HEADER_SIZE, SegmentHeader
from holdfast.storage.figures import DAY_US, SHORTEST_US, bytes_per_day, upper_quantile

SIZE = 100_000


@dataclass
class FakeSegment:
    start_offset: int
    created_us: int
    is_readable: bool = True

    @property
    def first_offset(self) -> int:
        return self.start_offset + SEGMENT_HEADER_SIZE

    def read(self, physical_offset: int, size: int) -> bytes:
        if not self.is_readable:
            raise OSError("bad disk")
        return SegmentHeader(self.start_offset, SIZE, self.created_us).encode()


def rate(segments: Sequence[FakeSegment], end: int, now_us: int) -> int:
    return bytes_per_day(segments, end, now_us)  # type: ignore[arg-type]


def test_a_log_without_segments_has_no_rate() -> None:
    assert rate([], 0, 0) == 0


def test_the_rate_is_that_since_the_oldest_segment_of_the_last_day() -> None:
    now = 10 * DAY_US
    segments = [FakeSegment(number * SIZE, now - (4 - number) * DAY_US // 2) for number in range(4)]
    # The third segment was created a day ago.
    assert rate(segments, 4 * SIZE, now) == 2 * SIZE - SEGMENT_HEADER_SIZE


def test_an_old_last_segment_gives_the_rate_since_it_was_created() -> None:
    segments = [FakeSegment(0, 0), FakeSegment(SIZE, DAY_US)]
    end = SIZE + SEGMENT_HEADER_SIZE + 900
    assert rate(segments, end, 10 * DAY_US) == 100


def test_the_first_seconds_of_a_log_do_not_count_as_a_whole_day() -> None:
    segments = [FakeSegment(0, 1000)]
    end = SEGMENT_HEADER_SIZE + 100
    expected = 100 * DAY_US // SHORTEST_US
    for passed_us in (-5, 0, 1, SHORTEST_US):
        assert rate(segments, end, 1000 + passed_us) == expected
    assert rate(segments, end, 1000 + 2 * SHORTEST_US) == expected // 2


def test_an_unreadable_header_gives_no_rate() -> None:
    assert rate([FakeSegment(0, 0, is_readable=False)], 10**6, DAY_US) == 0


def test_a_quantile_is_the_bound_that_the_share_does_not_exceed() -> None:
    histogram = Histogram("x", "x", buckets=(1, 2, 3), registry=None)
    assert upper_quantile(histogram, 0.99) is None
    for _ in range(99):
        histogram.observe(0.5)
    assert upper_quantile(histogram, 0.99) == 1.0
    histogram.observe(2.5)
    assert upper_quantile(histogram, 0.99) == 1.0
    histogram.observe(2.5)
    assert upper_quantile(histogram, 0.99) == 3.0
    for _ in range(5):
        histogram.observe(10)
    assert upper_quantile(histogram, 0.99) is None
