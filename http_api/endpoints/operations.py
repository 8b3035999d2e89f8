"""Endpoints for operating the broker: health, readiness, metrics, overview, OpenAPI."""

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from holdfast.http_api.endpoints.state_metrics import age_metrics, state_metrics
from holdfast.http_api.routing.call import Call, NoParams, OpenCall
from holdfast.http_api.routing.codecs import JSON
from holdfast.http_api.routing.context import BrokerStatus
from holdfast.http_api.schemas.inspection import DiskReply, GroupFiguresReply, OverviewReply
from holdfast.http_api.schemas.messages import FaultReply, HealthReply, ReadyReply
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.reply import Reply

_WHY_NOT_READY = {
    "recovering": "the broker is recovering; wait until it is ready",
    "draining": "the broker is stopping; send the request again once it is back",
}


#: The metrics of the process: processor time, memory, open files, start time.
_PROCESS = CollectorRegistry()
ProcessCollector(registry=_PROCESS)

#: After a metric with more samples than this, `get_metrics` lets other tasks run.
SAMPLES_A_TURN = 250
_WITHHELD = "shown only to tokens that grant operate"


def not_ready(phase: str, /, **members: object) -> Problem:
    """Return the problem of a request that the broker does not serve in this phase."""
    slug = "recovering" if phase == "recovering" else "draining"
    return Problem(slug, _WHY_NOT_READY[slug], **members)


async def get_health(call: OpenCall[NoParams]) -> Reply:
    """Report that the process is alive and its event loop runs."""
    return call.reply(HealthReply("alive"))


async def get_ready(call: OpenCall[NoParams]) -> Reply:
    """Report whether the broker serves requests.

    While the broker recovers, the status is 503, and the reply has the progress. A broker that
    serves in spite of faults is ready, and lists the faults in `degraded`. If authentication is on,
    only a token that grants `operate` gets the details.
    """
    status = call.http.status()
    if not call.principal.may(("operate",)):
        status = _without_details(status)
    degraded = [FaultReply(fault.reason, fault.detail) for fault in status.degraded]
    if status.phase != "ready":
        raise not_ready(
            status.phase,
            phase=status.phase,
            degraded=degraded,
            read_only=status.read_only,
            alarms=status.alarms,
            progress=status.progress,
        )
    return call.reply(ReadyReply(status.phase, degraded, status.read_only, dict(status.alarms)))


def _without_details(status: BrokerStatus) -> BrokerStatus:
    """Return the public part of the status: without texts that may name files and topics."""
    return replace(
        status,
        degraded=tuple(replace(fault, detail=_WITHHELD) for fault in status.degraded),
        read_only=status.read_only and _WITHHELD,
        alarms=dict.fromkeys(status.alarms, _WITHHELD),
    )


async def get_metrics(call: OpenCall[NoParams]) -> Reply:
    """Return the metrics for Prometheus."""
    http = call.http
    # A thread reads /proc and formats the text, because both would block the event loop.
    process = await asyncio.to_thread(generate_latest, _PROCESS)
    found: list[Metric] = []
    for metric in http.registry.collect():
        found.append(metric)
        if len(metric.samples) > SAMPLES_A_TURN:
            await asyncio.sleep(0)
    if isinstance(call, Call) and http.phase == "ready":
        found += await state_metrics(call.context)
        found += await age_metrics(call.context)
    texts = (await asyncio.to_thread(_format_metrics, found), process)
    return Reply(200, CONTENT_TYPE_LATEST, (b"".join(texts),))


def _format_metrics(metrics: Sequence[Metric]) -> bytes:
    registry = CollectorRegistry()
    registry.register(_CollectedMetrics(metrics))
    return generate_latest(registry)


class _CollectedMetrics(Collector):
    """Gives metrics that were already collected to a registry."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Sequence[Metric]:
        """Return the metrics."""
        return self._metrics


async def get_openapi(call: OpenCall[NoParams]) -> Reply:
    """Return the description of this API, in OpenAPI 3.1."""
    return Reply(200, JSON, (await asyncio.to_thread(call.http.openapi),))


async def get_info(call: Call[NoParams]) -> Reply:
    """Return information about the broker: its version, and essential settings."""
    info = {"name": "holdfast", "version": call.http.version, **call.http.info()}
    return call.reply(info)


#: The overview names at most this many groups that are at a limit.
MOST_NAMED = 10


async def get_overview(call: Call[NoParams]) -> Reply:
    """Return the figures that tell how the broker is. Faults and alarms are in `/readyz`."""
    context, http = call.context, call.http
    groups = await context.groups.stats_in_slices()
    figures = await http.figures()
    totals = http.metrics.totals()
    reply = OverviewReply(
        version=http.version,
        phase="ready",
        uptime_seconds=round(http.uptime_s(), 1),
        disk=DiskReply(
            figures.free_bytes,
            figures.total_bytes,
            figures.min_free_bytes,
            figures.log_bytes,
            figures.bytes_per_day,
        ),
        topics=len(context.store.table.listed()),
        groups=GroupFiguresReply(
            count=groups.groups,
            in_flight=groups.in_flight,
            waiting=groups.waiting,
            dead_letters=groups.dead_letters_total,
            letters_not_kept=sum(groups.letters_not_kept_total.values()),
            expired_leases=groups.expired_leases_total,
            at_limit=sorted(groups.at_limit)[:MOST_NAMED],
            at_limit_count=len(groups.at_limit),
        ),
        messages_in_total=totals.messages_in,
        bytes_in_total=totals.bytes_in,
        messages_out_total=totals.messages_out,
        bytes_out_total=totals.bytes_out,
        held_pulls=context.hold.stats().held,
        connections=http.connections.limits.count,
        amqp_connections=figures.amqp_connections,
        event_loop_lag_seconds=round(http.metrics.last_lag_s, 6),
        sync_p99_seconds=figures.sync_p99_s,
    )
    return call.reply(reply)
