"""The Prometheus metrics: counters of the API, and the broker's state.

A scrape is a request of Prometheus for the metrics; the state is read at each scrape. The number of
series is limited, so that names chosen by clients cannot fill the memory of Prometheus. The topics
beyond MAX_SERIES share one set of counters. The log registers its own metrics in the same registry.
"""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from holdfast.consumequeue.errors import UnknownGroup
from holdfast.consumequeue.slices import in_slices
from holdfast.http_api.endpoints.group_metrics import group_metrics
from holdfast.http_api.metrics.histogram import Durations

if TYPE_CHECKING:
    from holdfast.http_api.routing.context import ApiContext

#: At most this many topics, and at most this many pairs of group and topic, have their own series.
MAX_SERIES = 1000
#: One scrape examines at most this many queues of topics, and at most as many queues of groups. The
#: topics take about 20 ms, and so do the groups, over many event loop iterations. A metric counts
#: the topics that are left out.
MAX_QUEUES_EXAMINED = 10_000
#: In one event loop iteration, a scrape examines at most this many topics, or pairs of group and
#: topic.
TOPICS_A_TURN = 64
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
        self.loop_lag_seconds = Gauge(
            "holdfast_event_loop_lag_seconds",
            "How late the event loop last was for a timer.",
            registry=registry,
        )
        self._topics: dict[str, TopicCounters] = {}
        self._requests: dict[tuple[str, int], Durations] = {}
        registry.register(self)

    def topic(self, name: str) -> TopicCounters:
        """Return the counters of a topic, or the shared counters of topics beyond MAX_SERIES."""
        counters = self._topics.get(name)
        if counters is None:
            if len(self._topics) >= MAX_SERIES and name != OTHER:
                return self.topic(OTHER)
            counters = self._topics[name] = TopicCounters()
        return counters

    def forget_topic(self, name: str) -> None:
        """Drop the counters of a deleted topic."""
        self._topics.pop(name, None)

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count one answered request, with its duration in seconds."""
        durations = self._requests.get((route, status))
        if durations is None:
            durations = self._requests[route, status] = Durations()
        durations.observe(seconds)

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that the registry collects no values at the registration."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
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
    """Makes metrics of the broker's state at each scrape, on the event loop."""

    def __init__(self, context: "ApiContext") -> None:
        self._context = context

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that the registry collects no values at the registration."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the current state. During recovery, leave out those of the store."""
        context = self._context
        status = context.status()
        build = GaugeMetricFamily("holdfast_build_info", "Always 1.", labels=["version"])
        build.add_metric([context.version], 1)
        yield build
        yield _gauge("ready", "1 while requests are served.", status.phase == "ready")
        yield from _connections(context)
        expires_s = context.certificate_expires_s()
        if expires_s is not None:
            yield _gauge(
                "tls_certificate_expiry_timestamp_seconds",
                "When the broker's own certificate expires, in seconds since the epoch.",
                expires_s,
            )
        if status.phase == "ready":
            yield from _held(context)
            yield from _read_leases(context)


async def state_metrics(context: "ApiContext") -> list[Metric]:
    """Return the metrics of topics and groups. This takes several event loop iterations."""
    found = await _topics(context)
    found.append(await _group_lag(context))
    await asyncio.sleep(0)
    found += group_metrics(await context.groups.stats_in_slices())
    return found


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
    yield _gauge(
        "http_arriving_bytes",
        "Heads and bodies of requests that arrive, wait or are at work.",
        connections.arriving.total_bytes,
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


async def _topics(context: "ApiContext") -> list[Metric]:
    families = [
        GaugeMetricFamily("holdfast_topic_messages", "Messages kept.", labels=["topic"]),
        GaugeMetricFamily("holdfast_topic_bytes", "Stored bytes kept.", labels=["topic"]),
        GaugeMetricFamily(
            "holdfast_topic_end_offset", "Messages ever stored: its queues' ends.", labels=["topic"]
        ),
    ]
    topics = context.store.topics()
    shown = examined = 0
    for topic in topics[:MAX_SERIES]:
        examined += topic.queue_count
        if examined > MAX_QUEUES_EXAMINED and shown:
            break
        shown += 1
        sums = [0, 0, 0]
        async for queues in in_slices(range(topic.queue_count)):
            for queue in queues:
                state = context.store.queue_state(topic, queue)
                sums[0] += state.max_offset - state.min_offset
                sums[1] += state.bytes
                sums[2] += state.max_offset
        for family, value in zip(families, sums, strict=True):
            family.add_metric([topic.name], value)
        if not shown % TOPICS_A_TURN:
            await asyncio.sleep(0)
    return [
        *families,
        _gauge("topics", "Topics that exist.", len(topics)),
        _gauge(
            "topics_left_out",
            "Topics without series here: too many, or of too many queues.",
            len(topics) - shown,
        ),
    ]


async def _group_lag(context: "ApiContext") -> Metric:
    family = GaugeMetricFamily(
        "holdfast_group_lag_messages",
        "Messages between a group's stored offsets and the ends of their queues.",
        labels=["group", "topic"],
    )
    store = context.store
    shown = examined = 0
    for group in store.groups():
        try:
            topics = store.group_topics(group)
        except UnknownGroup:  # deleted meanwhile
            continue
        for name, stored in topics.items():
            examined += len(stored.offsets)
            is_too_much = examined > MAX_QUEUES_EXAMINED and examined > len(stored.offsets)
            topic = store.find_topic(name)
            if shown >= MAX_SERIES or is_too_much:
                return family
            if topic is None:
                continue
            lag = 0
            async for some in in_slices(list(stored.offsets.items())):
                for queue, offset in some:
                    end = store.max_offset((topic.topic_id, queue))
                    lag += max((end or 0) - offset, 0)
            family.add_metric([group, name], lag)
            shown += 1
            if not shown % TOPICS_A_TURN:
                await asyncio.sleep(0)
    return family
