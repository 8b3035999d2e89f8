"""Settling messages by their receipts: ack, nack, release, extend and reject.

A receipt identifies its message. One grant of the token must cover both the message's topic and the
group, as for receiving. All changes are durable before the reply is sent.
"""

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.groups.config import LONGEST_LEASE_MS
from holdfast.groups.service_types import Status, Verb
from holdfast.groups.settings import MAX_BACKOFF_MS
from holdfast.http_api.access.authorization import missing_grant
from holdfast.http_api.access.grants import ANONYMOUS
from holdfast.http_api.endpoints.group_access import leased_group
from holdfast.http_api.routing.call import Call, NoParams
from holdfast.http_api.routing.params import check_at_most, check_count_at_most
from holdfast.http_api.schemas.leases import (
    AckRequest,
    ExtendRequest,
    NackRequest,
    RejectRequest,
    ReleaseRequest,
    SettledReply,
    StatusReply,
)
from holdfast.http_api.wire.reply import Reply

_STATUS: Mapping[Status, StatusReply] = {each: StatusReply(each.value) for each in Status}


async def ack(call: Call[NoParams]) -> Reply:
    """Acknowledge messages: they are done, and are not delivered again.

    If a receipt is used a second time, the result is `done` again. With `cumulative`, each receipt
    also settles all earlier messages of its queue that its member has leased.
    """
    asked = await call.body(AckRequest)
    return await _settle(
        call, Verb.ACK, asked.receipts, cumulative=asked.cumulative, used_ms=asked.used_ms
    )


async def nack(call: Call[NoParams]) -> Reply:
    """Give messages back as failed: they are redelivered after a delay, in queue order.

    The delay is `delay_ms`. If it is not given, the delay grows with each failure. A message that
    fails too often becomes a dead letter.
    """
    asked = await call.body(NackRequest)
    return await _settle(
        call, Verb.NACK, asked.receipts, delay_ms=asked.delay_ms, used_ms=asked.used_ms
    )


async def release(call: Call[NoParams]) -> Reply:
    """Give unprocessed messages back: they are available again at once, in queue order.

    This does not count as a failure.
    """
    asked = await call.body(ReleaseRequest)
    return await _settle(call, Verb.RELEASE, asked.receipts)


async def extend(call: Call[NoParams]) -> Reply:
    """Extend the leases of messages: they expire `lease_ms` from now."""
    asked = await call.body(ExtendRequest)
    return await _settle(call, Verb.EXTEND, asked.receipts, lease_ms=asked.lease_ms)


async def reject(call: Call[NoParams]) -> Reply:
    """Reject messages: they become dead letters, or are dropped if the group keeps none."""
    asked = await call.body(RejectRequest)
    return await _settle(call, Verb.REJECT, asked.receipts, used_ms=asked.used_ms)


def _check_topic(call: Call[NoParams]) -> Callable[[str], None] | None:
    """Return a check that raises Denied for topics that the token does not grant.

    Return None without authentication, because every topic is then granted.
    """
    principal, group = call.principal, call.path["group"]
    if principal is ANONYMOUS:
        return None

    def check(topic: str) -> None:
        if not principal.may(("consume",), topic, group):
            what = "the topics of all these receipts"
            raise missing_grant(principal, ("consume",), group=group, what=what)

    return check


async def _settle(call: Call[NoParams], verb: Verb, receipts: list[str], **terms: Any) -> Reply:
    context, group = call.context, call.group()
    limits = context.groups_config
    most = limits.max_settle_receipts
    check_count_at_most("receipts", "receipts", len(receipts), most, "max_settle_receipts")
    check_at_most("lease_ms", terms.get("lease_ms"), limits.max_lease_ms, "max_lease_ms")
    check_at_most("delay_ms", terms.get("delay_ms"), MAX_BACKOFF_MS)
    check_at_most("used_ms", terms.get("used_ms"), LONGEST_LEASE_MS)
    leased_group(context, group)
    statuses = await context.groups.settle(
        group, verb, receipts, check_topic=_check_topic(call), **terms
    )
    return call.reply(SettledReply([_STATUS[each] for each in statuses]))
