"""The Prometheus metrics of the broker's state, which are read at each scrape.

A scrape is a request of Prometheus for the metrics. The log registers its own metrics in the same
registry. The ages of messages may have to be read from the disk, so one call in a reader thread
reads them, for a limited number of queues.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from time import time
from typing import Any, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from holdfast.consumequeue.errors import StoreError, UnknownGroup
from holdfast.consumequeue.slices import in_slices
from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.service_types import GroupServiceStats
from holdfast.http_api.metrics import MAX_SERIES
from holdfast.http_api.routing.context import ApiContext, HttpContext
from holdfast.http_api.wire.connection_registry import Connections

#: One scrape examines at most this many queues of topics, and at most as many queues of groups. The
#: topics take about 20 ms, over many event loop iterations, and the groups take the same time. The
#: metric `topics_left_out` counts the topics that are not examined.
MAX_QUEUES_EXAMINED = 10_000
#: In one event loop iteration, a scrape examines at most this many topics, or pairs of group and
#: topic.
TOPICS_A_TURN = 64
#: For one request of the metrics, at most this many queues of topics are examined, and at most as
#: many queues of groups. Examining a queue takes about 10 microseconds in a reader thread.
MAX_QUEUES_AGED = 1000

_AGES = {
    "topic_oldest_message_seconds": ("Age of the oldest message that a topic keeps.", ["topic"]),
    "group_lag_seconds": (
        "Age of the oldest message between a group's stored offsets and the ends of the queues.",
        ["group", "topic"],
    ),
}
_Family = type[GaugeMetricFamily] | type[CounterMetricFamily]


class _Collector:
    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that the registry collects no values at the registration."""
        return ()


class HttpCollector(_Collector):
    """Makes metrics of the HTTP server at each scrape, on the event loop."""

    def __init__(self, http: HttpContext) -> None:
        self._http = http

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the current state."""
        http = self._http
        version = {(http.version,): 1}
        yield _labelled(GaugeMetricFamily, "build_info", "Always 1.", ["version"], version)
        yield _gauge("ready", "1 while requests are served.", http.phase == "ready")
        yield from _connections(http.connections)
        expires_s = http.certificate_expires_s()
        if expires_s is not None:
            yield _gauge(
                "tls_certificate_expiry_timestamp_seconds",
                "When the broker's own certificate expires, in seconds since the epoch.",
                expires_s,
            )


class StateCollector(_Collector):
    """Makes metrics of held pulls and read leases at each scrape, on the event loop."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the current state; nothing while the broker stops."""
        context = self._context
        if context.http.phase == "ready":
            yield from _held(context)
            yield from _read_leases(context)


async def state_metrics(context: ApiContext) -> list[Metric]:
    """Return the metrics of topics and groups. This takes several event loop iterations."""
    found = await _topics(context)
    found.append(await _lag_of_groups(context))
    await asyncio.sleep(0)
    found.append(await _groups_without_leases(context))
    found += group_metrics(await context.groups.stats_in_slices())
    return found


def _gauge(name: str, doc: str, value: float) -> Metric:
    return GaugeMetricFamily(f"holdfast_{name}", doc, value=float(value))


def _counter(name: str, doc: str, value: float) -> Metric:
    return CounterMetricFamily(f"holdfast_{name}", doc, value=float(value))


def _labelled(
    family: _Family, name: str, doc: str, labels: Sequence[str], values: Mapping[Any, float]
) -> Metric:
    """Return a metric with one series for each tuple of label values, in their order."""
    metric = family(f"holdfast_{name}", doc, labels=labels)
    for series, value in values.items():
        metric.add_metric(series, value)
    return metric


def _connections(connections: Connections) -> Iterator[Metric]:
    yield _gauge("http_connections", "Client connections that are open.", connections.limits.count)
    yield _gauge(
        "http_unsent_bytes",
        "Bytes of replies that the broker keeps until the clients accept them.",
        connections.unsent.total_bytes,
    )
    yield _gauge(
        "http_arriving_bytes",
        "Bytes of the heads and bodies of requests that arrive, wait or are processed.",
        connections.arriving.total_bytes,
    )
    for name, doc, reasons in (
        ("refused", "Connections that the broker refused, by problem.", connections.refused),
        (
            "closed_early",
            "Connections that the broker closed early, by reason.",
            connections.closed_early,
        ),
    ):
        counts = {(reason,): count for reason, count in sorted(reasons.items())}
        yield _labelled(CounterMetricFamily, f"http_connections_{name}", doc, ["reason"], counts)


def _held(context: ApiContext) -> Iterator[Metric]:
    stats = context.hold.stats()
    yield _gauge("long_poll_parked", "Pulls that are held now.", stats.held)
    for name, doc, value in (
        ("woken", "Held pulls that were answered because of a message.", stats.woken_total),
        ("expired", "Held pulls whose waiting time ended.", stats.expired_total),
        ("cancelled", "Held pulls whose client disconnected.", stats.cancelled_total),
        ("refused", "Pulls that were not held because of a limit.", stats.refused_total),
    ):
        yield _counter(f"long_poll_{name}", doc, value)
    doc = "Lost wake-ups that only the periodic scan found: each is a defect."
    yield _counter("scan_rescues", doc, stats.scan_rescues)


def _read_leases(context: ApiContext) -> Iterator[Metric]:
    leases = context.store.read_leases
    yield _gauge("read_leases", "Read leases that exist now.", leases.count())
    yield _gauge("read_lease_queues", "Queues that these leases pin.", leases.queue_count)
    for name, doc, value in (
        ("taken", "Read leases that were granted.", leases.taken_total),
        ("refused", "Read leases that were refused because of a limit.", leases.refused_total),
        ("expired", "Read leases that expired.", leases.expired_total),
    ):
        yield _counter(f"read_leases_{name}", doc, value)


async def _topics(context: ApiContext) -> list[Metric]:
    families = [
        GaugeMetricFamily(f"holdfast_topic_{name}", doc, labels=["topic"])
        for name, doc in (
            ("messages", "Messages that the topic keeps."),
            ("bytes", "Stored bytes of the messages that the topic keeps."),
            ("end_offset", "Messages ever stored: the sum of max_offset over the queues."),
        )
    ]
    topics = context.store.table.listed()
    shown = examined = 0
    for topic in topics[:MAX_SERIES]:
        examined += topic.queue_count
        if examined > MAX_QUEUES_EXAMINED and shown:
            break
        shown += 1
        sums = [0, 0, 0]
        async for queues in in_slices(range(topic.queue_count)):
            for queue in queues:
                state = context.store.reading.queue_state(topic, queue)
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
            "Topics without series in this scrape: too many topics, or too many queues.",
            len(topics) - shown,
        ),
    ]


async def _lag_of_groups(context: ApiContext) -> Metric:
    family = GaugeMetricFamily(
        "holdfast_group_lag_messages",
        "Messages between a group's stored offsets and the ends of their queues.",
        labels=["group", "topic"],
    )
    store = context.store
    shown = examined = 0
    for group in store.table.groups():
        try:
            topics = store.offsets.group_topics(group)
        except UnknownGroup:  # it was deleted meanwhile
            continue
        for name, stored in topics.items():
            examined += len(stored.offsets)
            is_too_much = examined > MAX_QUEUES_EXAMINED and examined > len(stored.offsets)
            topic = store.table.find(name)
            if shown >= MAX_SERIES or is_too_much:
                return family
            if topic is None:
                continue
            lag = 0
            async for some in in_slices(list(stored.offsets.items())):
                for queue, offset in some:
                    end = store.reading.max_offset((topic.topic_id, queue))
                    lag += max((end or 0) - offset, 0)
            family.add_metric([group, name], lag)
            shown += 1
            if not shown % TOPICS_A_TURN:
                await asyncio.sleep(0)
    return family


async def _groups_without_leases(context: ApiContext) -> Metric:
    count = 0
    async for names in in_slices(context.store.table.groups()):
        count += sum(not context.groups.has_leases(name) for name in names)
    return _gauge("groups_without_leases", "Groups that only store offsets.", count)


# -- ages ----------------------------------------------------------------------------------


class _Place(NamedTuple):
    """An offset in a queue. The message there may be the oldest message of a metric's series."""

    name: str
    labels: tuple[str, ...]
    key: QueueKey
    offset: int


async def age_metrics(context: ApiContext) -> list[Metric]:
    """Return the current ages as metrics.

    The age of a series is 0 if its queues have no message at or after the examined offsets. When
    MAX_QUEUES_AGED queues have been examined, the remaining series are left out.
    """
    places = [*_oldest_of_topics(context), *[place async for place in _oldest_of_groups(context)]]
    stored_us = await context.store.lookups.stored_at([(each.key, each.offset) for each in places])
    await asyncio.sleep(0)
    now_s = time()
    ages: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in _AGES}
    for place, at_us in zip(places, stored_us, strict=True):
        age_s = 0.0 if at_us is None else max(now_s - at_us / 1e6, 0.0)
        series = ages[place.name]
        series[place.labels] = max(series.get(place.labels, 0.0), age_s)
    return [
        _labelled(
            GaugeMetricFamily, name, doc, labels,
            {series: round(age_s, 3) for series, age_s in ages[name].items()},
        )
        for name, (doc, labels) in _AGES.items()
    ]  # fmt: skip


def _oldest_of_topics(context: ApiContext) -> Iterator[_Place]:
    examined = 0
    for topic in context.store.table.listed():
        examined += topic.queue_count
        if examined > MAX_QUEUES_AGED:
            return
        for queue in range(topic.queue_count):
            key = (topic.topic_id, queue)
            yield _Place("topic_oldest_message_seconds", (topic.name,), key, 0)


async def _oldest_of_groups(context: ApiContext) -> AsyncIterator[_Place]:
    """Yield the stored offsets of groups. Process only some groups in each loop iteration."""
    store, examined = context.store, 0
    async for groups in in_slices(store.table.groups()):
        for group in groups:
            with suppress(StoreError):  # it was deleted meanwhile
                for topic, stored in store.offsets.group_topics(group).items():
                    examined += len(stored.offsets)
                    if examined > MAX_QUEUES_AGED:
                        return
                    topic_id = store.table.get(topic).topic_id
                    for queue, offset in stored.offsets.items():
                        yield _Place("group_lag_seconds", (group, topic), (topic_id, queue), offset)


# -- groups with leases --------------------------------------------------------------------


def group_metrics(stats: GroupServiceStats) -> Iterator[Metric]:
    """Yield the current values of the groups as metrics."""
    yield _gauge("groups", "Groups with leases.", stats.groups)
    yield _gauge("group_waiting", "Receive requests that are held now.", stats.waiting)
    yield _gauge("group_in_flight", "Messages that are leased now.", stats.in_flight)
    yield _gauge(
        "groups_at_limit",
        "Groups that deliver no new message until a lease ends or a returned message is settled: "
        "max_in_flight messages are leased, or as many were returned as groups.max_returned or "
        "max_returned_per_group allows.",
        len(stats.at_limit),
    )
    yield _labelled(
        GaugeMetricFamily,
        "group_at_limit",
        "1 for each group that delivers no new message, as holdfast_groups_at_limit counts them.",
        ["group"],
        {(group,): 1 for group in islice(stats.at_limit, MAX_SERIES)},
    )
    for name, doc, value in (
        ("delivered", "Messages delivered to members.", stats.delivered_total),
        (
            "redelivered",
            "Delivered messages that may have been delivered before.",
            stats.redelivered_total,
        ),
        ("dead_letters", "Messages that became dead letters.", stats.dead_letters_total),
        ("expired_leases", "Leases that expired.", stats.expired_leases_total),
        (
            "undelivered",
            "Messages given back because their reply did not reach the client.",
            stats.undelivered_total,
        ),
        ("commits", "Commits that made settling durable.", stats.commits_total),
        ("commit_failures", "Commits of settling that failed.", stats.commit_failures_total),
    ):
        yield _counter(f"group_{name}", doc, value)
    reasons = {(reason,): n for reason, n in sorted(stats.letters_not_kept_total.items())}
    doc = "Dead letters that were not stored in the dead-letter topic, by reason."
    yield _labelled(CounterMetricFamily, "group_dead_letters_not_kept", doc, ["reason"], reasons)
    settled = dict(sorted(stats.settled_total.items()))
    doc = "Receipts that members settled, by verb and result."
    yield _labelled(CounterMetricFamily, "group_settled", doc, ["verb", "status"], settled)
