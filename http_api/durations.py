"""How long something took, counted by buckets: cheap to note, put together at each scrape. Pure.

prometheus_client's own histogram takes a lock and looks at its labels for each value; that is
for many threads, and was a fiftieth of a request.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

#: Upper ends of the buckets, in seconds; what took longer is counted behind them.
BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Durations:
    """Counts durations. Belongs to one event loop."""

    __slots__ = ("_counts", "sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> Sequence[tuple[str, int]]:
        """Return Prometheus' buckets: each end, and how many took no longer than that."""
        ends = (*map(str, BUCKETS_S), "+Inf")
        return list(zip(ends, accumulate(self._counts), strict=True))
