"""What Prometheus is told: counts made while answering, and the state read at each scrape.

Every label has a bound: routes and status codes are few, and topics and groups beyond
MAX_SERIES share one label, so that nobody's names can fill the memory of a scraper. What the
log itself measures, it registers in the same registry.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from holdfast.http_api.durations import Durations
from holdfast.http_api.group_metrics import group_metrics

if TYPE_CHECKING:
    from holdfast.http_api.context import ApiContext

MAX_SERIES = 1000
#: Queues that one scrape looks at for topics, and again for groups: some 20 ms of the loop's time
#: each. What is beyond that is left out, and counted.
MAX_QUEUES_LOOKED_AT = 10_000
#: The label of whatever comes after that; no topic can be named so.
OTHER = "__other"


@dataclass(slots=True)
class TopicCounters:
    """One topic's counters, which whoever counts adds to."""

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
    """The counters that answering moves: plain numbers, which a scrape, on the event loop too,
    puts into Prometheus' form. Belongs to the event loop."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.wake_seconds = Durations()
        self.scan_seconds = Durations()
        self.loop_lag_seconds = Gauge(
            "holdfast_event_loop_lag_seconds",
            "How late the event loop last was for a timer.",
            registry=registry,
        )
        self._topics: dict[str, TopicCounters] = {}
        self._requests: dict[tuple[str, int], Durations] = {}
        registry.register(self)

    def topic(self, name: str) -> TopicCounters:
        """Return the counters of a topic, or those that the late-comers share."""
        counters = self._topics.get(name)
        if counters is None:
            if len(self._topics) >= MAX_SERIES and name != OTHER:
                return self.topic(OTHER)
            counters = self._topics[name] = TopicCounters()
        return counters

    def forget_topic(self, name: str) -> None:
        """Drop the counters of a topic that was deleted."""
        self._topics.pop(name, None)

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        durations = self._requests.get((route, status))
        if durations is None:
            durations = self._requests[route, status] = Durations()
        durations.observe(seconds)

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the registry need not ask for values when this is registered."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the counts as they are now."""
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


class StateCollector:
    """Reads the state of the broker when it is scraped, which is on the event loop."""

    def __init__(self, context: "ApiContext") -> None:
        self._context = context

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the registry need not ask for values when this is registered."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield what is so now; while the broker recovers, only that it does."""
        context = self._context
        status = context.status()
        build = GaugeMetricFamily("holdfast_build_info", "Always 1.", labels=["version"])
        build.add_metric([context.version], 1)
        yield build
        yield _gauge("ready", "1 while requests are served.", status.phase == "ready")
        yield from _connections(context)
        if status.phase == "ready":
            yield from _held(context)
            yield from _read_leases(context)
            yield from _topics(context)
            yield _group_lag(context)
            yield from group_metrics(context.groups.stats())


def _gauge(name: str, doc: str, value: float) -> Metric:
    return GaugeMetricFamily(f"holdfast_{name}", doc, value=float(value))


def _connections(context: "ApiContext") -> Iterator[Metric]:
    connections = context.connections
    yield _gauge("http_connections", "Client connections that are open.", connections.count)
    yield _gauge(
        "http_unsent_bytes",
        "Replies that wait in memory for their clients to take them.",
        connections.unsent.total_bytes,
    )
    counts = {
        "connections_refused": ("Connections not let in, by problem.", connections.refused),
        "connections_closed_early": (
            "Connections cut off, by what their clients did.",
            connections.closed_early,
        ),
    }
    for name, (doc, reasons) in counts.items():
        family = CounterMetricFamily(f"holdfast_http_{name}", doc, labels=["reason"])
        for reason, count in sorted(reasons.items()):
            family.add_metric([reason], count)
        yield family


def _held(context: "ApiContext") -> Iterator[Metric]:
    stats = context.hold.stats()
    yield _gauge("long_poll_parked", "Pulls held now.", stats.held)
    counts = {
        "woken": ("Held pulls answered because of a message.", stats.woken_total),
        "expired": ("Held pulls whose wait ended.", stats.expired_total),
        "cancelled": ("Held pulls whose client went away.", stats.cancelled_total),
        "refused": ("Pulls not held because of a limit.", stats.refused_total),
    }
    for name, (doc, value) in counts.items():
        yield CounterMetricFamily(f"holdfast_long_poll_{name}", doc, value=value)
    yield CounterMetricFamily(
        "holdfast_scan_rescues",
        "Arrivals that only the safety net found: each is a fault.",
        value=stats.scan_rescues,
    )


def _read_leases(context: "ApiContext") -> Iterator[Metric]:
    leasing = context.store.read_leases
    yield _gauge("read_leases", "Leases that readers hold now.", leasing.count())
    leases = leasing.leases
    yield _gauge("read_lease_queues", "Queues that these leases pin.", leases.queue_count)
    counts = {
        "taken": ("Leases that readers took.", leases.taken_total),
        "refused": ("Leases not granted because of a limit.", leases.refused_total),
        "expired": ("Leases whose time ran out.", leases.expired_total),
    }
    for name, (doc, value) in counts.items():
        yield CounterMetricFamily(f"holdfast_read_leases_{name}", doc, value=value)


def _topics(context: "ApiContext") -> Iterator[Metric]:
    families = [
        GaugeMetricFamily("holdfast_topic_messages", "Messages kept.", labels=["topic"]),
        GaugeMetricFamily("holdfast_topic_bytes", "Stored bytes kept.", labels=["topic"]),
        GaugeMetricFamily(
            "holdfast_topic_end_offset", "Messages ever stored: its queues' ends.", labels=["topic"]
        ),
    ]
    topics = context.store.topics()
    shown = looked_at = 0
    for topic in topics[:MAX_SERIES]:
        looked_at += topic.queue_count
        if looked_at > MAX_QUEUES_LOOKED_AT and shown:
            break
        shown += 1
        states = context.store.queue_states(topic)
        sums = (
            sum(state.max_offset - state.min_offset for state in states),
            sum(state.bytes for state in states),
            sum(state.max_offset for state in states),
        )
        for family, value in zip(families, sums, strict=True):
            family.add_metric([topic.name], value)
    yield from families
    yield _gauge("topics", "Topics that exist.", len(topics))
    yield _gauge(
        "topics_left_out",
        "Topics without series here: too many, or of too many queues.",
        len(topics) - shown,
    )


def _group_lag(context: "ApiContext") -> Metric:
    family = GaugeMetricFamily(
        "holdfast_group_lag_messages",
        "Messages between a group's stored offsets and the ends of their queues.",
        labels=["group", "topic"],
    )
    for group, topic, lag in islice(_lags(context), MAX_SERIES):
        family.add_metric([group, topic], lag)
    return family


def _lags(context: "ApiContext") -> Iterator[tuple[str, str, int]]:
    store = context.store
    looked_at = 0
    for group in store.groups():
        for name, stored in store.group_topics(group).items():
            looked_at += len(stored.offsets)
            if looked_at > MAX_QUEUES_LOOKED_AT and looked_at > len(stored.offsets):
                return
            topic_id = store.topic(name).topic_id
            ends = (store.max_offset((topic_id, queue)) for queue in stored.offsets)
            offsets = stored.offsets.values()
            lag = sum(max((end or 0) - at, 0) for end, at in zip(ends, offsets, strict=True))
            yield group, name, lag
