"""The counters of the API, in the form of Prometheus metrics.

The number of series is limited, so that names chosen by clients cannot fill the memory of
Prometheus. The topics beyond MAX_SERIES share one set of counters.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import (
    CounterMetricFamily,
    HistogramMetricFamily,
    Metric,
)

#: At most this many topics, this many groups, and this many pairs of group and topic have their own
#: series.
MAX_SERIES = 1000
#: The common label of all topics beyond MAX_SERIES. No topic can have this name.
OTHER = "__other"


@dataclass(slots=True)
class TopicCounters:
    """The counters of one topic. Callers increment them directly."""

    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0


_TOPIC_DOCS = {
    "messages_in": "Messages acknowledged to publishers.",
    "bytes_in": "Bytes of the batches that they were stored in.",
    "messages_out": "Messages delivered to pulls and to members of groups.",
    "bytes_out": "Bytes of the replies that delivered them.",
}


class Metrics:
    """The API's counters as plain numbers. At a scrape they are converted for Prometheus.

    Belongs to the event loop. Scrapes also run on it.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.wake_seconds = Durations()
        self.scan_seconds = Durations()
        self.last_lag_s = 0.0
        self.loop_lag_seconds = Gauge(
            "holdfast_event_loop_lag_seconds",
            "How late the event loop last was for a timer.",
            registry=registry,
        )
        self._topics: dict[str, TopicCounters] = {}
        self._requests: dict[tuple[str, int], Durations] = {}
        registry.register(self)

    def topic(self, name: str) -> TopicCounters:
        """Return the counters of a topic. The broker's own topics, and topics beyond MAX_SERIES,
        share counters."""
        if name.startswith("__"):
            name = OTHER
        counters = self._topics.get(name)
        if counters is None:
            if len(self._topics) >= MAX_SERIES and name != OTHER:
                return self.topic(OTHER)
            counters = self._topics[name] = TopicCounters()
        return counters

    def totals(self) -> TopicCounters:
        """Return the sums over all topics that exist."""
        every = list(self._topics.values())
        return TopicCounters(
            *(sum([getattr(each, name) for each in every]) for name in _TOPIC_DOCS)
        )

    def set_lag(self, seconds: float) -> None:
        """Record how late the event loop was for a timer."""
        self.last_lag_s = seconds
        self.loop_lag_seconds.set(seconds)

    def forget_topic(self, name: str) -> None:
        self._topics.pop(name, None)

    def count_request(self, route: str, status: int, seconds: float) -> None:
        durations = self._requests.get((route, status))
        if durations is None:
            durations = self._requests[route, status] = Durations()
        durations.observe(seconds)

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that the registry collects no values at the registration."""
        return ()

    def collect(self) -> Iterator[Metric]:
        for name, doc in _TOPIC_DOCS.items():
            family = CounterMetricFamily(f"holdfast_{name}", doc, labels=["topic"])
            for topic, counters in self._topics.items():
                family.add_metric([topic], getattr(counters, name))
            yield family
        requests = HistogramMetricFamily(
            "holdfast_http_request_seconds",
            "Time to answer a request, without the time that a pull was held.",
            labels=["route", "code"],
        )
        for (route, status), durations in self._requests.items():
            requests.add_metric([route, str(status)], durations.buckets(), durations.sum_s)
        yield requests
        yield HistogramMetricFamily(
            "holdfast_long_poll_wake_seconds",
            "From storing a message to the answer of a pull that was held for it.",
            buckets=self.wake_seconds.buckets(),
            sum_value=self.wake_seconds.sum_s,
        )
        yield HistogramMetricFamily(
            "holdfast_scan_seconds",
            "The event loop's time that a scan for missed arrivals took.",
            buckets=self.scan_seconds.buckets(),
            sum_value=self.scan_seconds.sum_s,
        )


#: Upper bounds of the buckets in seconds. Longer durations count in a last bucket.
BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Durations:
    """A histogram of durations for one thread.

    The histogram of prometheus_client is made for many threads: it takes a lock for each value, and
    needed 2 % of a request's time.
    """

    __slots__ = ("_counts", "sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> Sequence[tuple[str, int]]:
        """Return each upper bound as text, with the number of durations that do not exceed it."""
        ends = (*map(str, BUCKETS_S), "+Inf")
        return list(zip(ends, accumulate(self._counts), strict=True))
