"""The Prometheus metrics of the broker's state, which are read at each scrape.

A scrape is a request of Prometheus for the metrics. The log registers its own metrics in the same
registry. The ages of messages may have to be read from the disk, so one call in a reader thread
finds them, for a limited number of queues.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from time import time
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from holdfast.consumequeue.errors import StoreError, UnknownGroup
from holdfast.consumequeue.slices import in_slices
from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.service_types import GroupServiceStats
from holdfast.http_api.metrics import MAX_SERIES
from holdfast.http_api.routing.context import ApiContext, HttpContext
from holdfast.http_api.wire.connection_registry import Connections

#: One scrape examines at most this many queues of topics, and at most as many queues of groups. The
#: topics take about 20 ms, and so do the groups, over many event loop iterations. A metric counts
#: the topics that are left out.
MAX_QUEUES_EXAMINED = 10_000
#: In one event loop iteration, a scrape examines at most this many topics, or pairs of group and
#: topic.
TOPICS_A_TURN = 64
#: For one request of the metrics, at most this many queues of topics are examined, and at most as
#: many queues of groups. Examining a queue takes about 10 microseconds in a reader thread.
MAX_QUEUES_AGED = 1000

_AGES = {
    "topic_oldest_message_seconds": (
        "Age of the oldest message that a topic keeps.",
        ["topic"],
    ),
    "group_lag_seconds": (
        "Age of the oldest message between a group's stored offsets and their queues' ends.",
        ["group", "topic"],
    ),
}


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
        build = GaugeMetricFamily("holdfast_build_info", "Always 1.", labels=["version"])
        build.add_metric([http.version], 1)
        yield build
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
    found += group_metrics(await context.groups.stats_in_slices())
    return found


def _gauge(name: str, doc: str, value: float) -> Metric:
    return GaugeMetricFamily(f"holdfast_{name}", doc, value=float(value))


def _connections(connections: Connections) -> Iterator[Metric]:
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


def _held(context: ApiContext) -> Iterator[Metric]:
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


def _read_leases(context: ApiContext) -> Iterator[Metric]:
    leases = context.store.read_leases
    yield _gauge("read_leases", "Leases that readers hold now.", leases.count())
    yield _gauge("read_lease_queues", "Queues that these leases pin.", leases.queue_count)
    counts = {
        "taken": ("Leases that readers took.", leases.taken_total),
        "refused": ("Leases not granted because of a limit.", leases.refused_total),
        "expired": ("Leases whose time ran out.", leases.expired_total),
    }
    for name, (doc, value) in counts.items():
        yield CounterMetricFamily(f"holdfast_read_leases_{name}", doc, value=value)


async def _topics(context: ApiContext) -> list[Metric]:
    families = [
        GaugeMetricFamily("holdfast_topic_messages", "Messages kept.", labels=["topic"]),
        GaugeMetricFamily("holdfast_topic_bytes", "Stored bytes kept.", labels=["topic"]),
        GaugeMetricFamily(
            "holdfast_topic_end_offset", "Messages ever stored: its queues' ends.", labels=["topic"]
        ),
    ]
    topics = context.store.table.all()
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
            "Topics without series here: too many, or of too many queues.",
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
        except UnknownGroup:  # deleted meanwhile
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


# -- ages ----------------------------------------------------------------------------------


class _Place(NamedTuple):
    """An offset in a queue. The message there may be the oldest message of a metric's series."""

    name: str
    labels: tuple[str, ...]
    key: QueueKey
    offset: int


async def age_metrics(context: ApiContext) -> list[Metric]:
    """Return the current ages as metrics.

    A series is 0 if its queues have no such message. When MAX_QUEUES_AGED queues have been
    examined, the remaining series are left out.
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
    families: list[Metric] = []
    for name, (doc, labels) in _AGES.items():
        family = GaugeMetricFamily(f"holdfast_{name}", doc, labels=labels)
        for values, age_s in ages[name].items():
            family.add_metric(values, round(age_s, 3))
        families.append(family)
    return families


def _oldest_of_topics(context: ApiContext) -> Iterator[_Place]:
    examined = 0
    for topic in context.store.table.all():
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
            with suppress(StoreError):  # deleted meanwhile
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
    gauges = {
        "groups": ("Groups with leases.", stats.groups),
        "group_waiting": ("Receives held now.", stats.waiting),
        "group_in_flight": ("Messages leased now.", stats.in_flight),
        "groups_at_limit": (
            "Groups that deliver nothing new until a lease ends or a message that came back is "
            "settled: max_in_flight are leased, or as many came back as groups.max_returned or "
            "max_returned_per_group allows.",
            len(stats.at_limit),
        ),
    }
    for name, (doc, value) in gauges.items():
        yield GaugeMetricFamily(f"holdfast_{name}", doc, value=float(value))
    at_limit = GaugeMetricFamily(
        "holdfast_group_at_limit",
        "1 for each group that delivers nothing new, as holdfast_groups_at_limit counts them.",
        labels=["group"],
    )
    for group in islice(stats.at_limit, MAX_SERIES):
        at_limit.add_metric([group], 1)
    yield at_limit
    counts = {
        "delivered": ("Messages delivered to members.", stats.delivered_total),
        "redelivered": ("Messages delivered that may have been before.", stats.redelivered_total),
        "dead_letters": ("Messages that were given up.", stats.dead_letters_total),
        "expired_leases": ("Leases whose time ran out.", stats.expired_leases_total),
        "undelivered": (
            "Messages given back because their reply was not sent.",
            stats.undelivered_total,
        ),
        "commits": ("Writes that made settling durable.", stats.commits_total),
        "commit_failures": ("Writes of settling that failed.", stats.commit_failures_total),
    }
    for name, (doc, value) in counts.items():
        yield CounterMetricFamily(f"holdfast_group_{name}", doc, value=float(value))
    not_kept = CounterMetricFamily(
        "holdfast_group_dead_letters_not_kept",
        "Dead letters that their topic did not get, by reason.",
        labels=["reason"],
    )
    for reason, count in sorted(stats.letters_not_kept_total.items()):
        not_kept.add_metric([reason], count)
    yield not_kept
    settled = CounterMetricFamily(
        "holdfast_group_settled",
        "Receipts that members settled with, by what they said and what became of it.",
        labels=["verb", "status"],
    )
    for (verb, status), count in sorted(stats.settled_total.items()):
        settled.add_metric([verb, status], count)
    yield settled
