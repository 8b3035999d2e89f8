"""A histogram of durations for one thread. Pure.

It is faster than the histogram of prometheus_client, which is made for many threads: that one takes
a lock for each value, and needed 2 % of a request's time.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

#: Upper bounds of the buckets in seconds. Longer durations count in a last bucket.
BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Durations:
    """Counts durations. Belongs to one event loop."""

    __slots__ = ("_counts", "sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> Sequence[tuple[str, int]]:
        """Return each upper bound as text, with the number of durations that do not exceed it."""
        ends = (*map(str, BUCKETS_S), "+Inf")
        return list(zip(ends, accumulate(self._counts), strict=True))
