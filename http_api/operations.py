"""Operating the broker: is it alive, is it ready, what does it measure, what is it."""

from dataclasses import replace

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from holdfast.http_api.call import Call, NoParams
from holdfast.http_api.codecs import JSON
from holdfast.http_api.context import BrokerStatus
from holdfast.http_api.problems import Problem
from holdfast.http_api.reply import Reply
from holdfast.http_api.types import FaultReply, HealthReply, ReadyReply

_WHY_NOT_READY = {
    "recovering": "the broker is recovering; wait until it is ready",
    "draining": "the broker is stopping; send the request again once it is back",
}


_WITHHELD = "told to those whose token grants operate"


def not_ready(phase: str, /, **members: object) -> Problem:
    """Return the problem of a request that this phase of the broker does not serve."""
    slug = "recovering" if phase == "recovering" else "draining"
    return Problem(slug, _WHY_NOT_READY[slug], **members)


async def get_health(call: Call[NoParams]) -> Reply:
    """Tell that the process lives and its event loop turns."""
    return call.reply(HealthReply("alive"))


async def get_ready(call: Call[NoParams]) -> Reply:
    """Tell whether requests are served: 503 with the progress while the broker recovers.

    A broker that serves in spite of faults is ready, and names them in `degraded`. Where tokens
    are asked for, the words that tell more are for one that grants `operate`.
    """
    status = call.context.status()
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
    """Return what everybody may know: sentences about faults may name files and topics."""
    return replace(
        status,
        degraded=tuple(replace(fault, detail=_WITHHELD) for fault in status.degraded),
        read_only=status.read_only and _WITHHELD,
        alarms=dict.fromkeys(status.alarms, _WITHHELD),
    )


async def get_metrics(call: Call[NoParams]) -> Reply:
    """Return the metrics for Prometheus."""
    return Reply(200, CONTENT_TYPE_LATEST, (generate_latest(call.context.registry),))


async def get_openapi(call: Call[NoParams]) -> Reply:
    """Return this API's description, OpenAPI 3.1."""
    return Reply(200, JSON, (call.context.openapi,))


async def get_info(call: Call[NoParams]) -> Reply:
    """Tell what the broker is: its version, and what matters of its configuration."""
    info = {"name": "holdfast", "version": call.context.version, **call.context.info()}
    return call.reply(info)
