"""Settling messages by their receipts: done, failed, not begun, not done yet, never to be done.

A receipt says itself what it is good for, so a token needs no more than the group. Every answer
is durable before it is given.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.groups.config import LONGEST_LEASE_MS
from holdfast.groups.group_specs import MAX_BACKOFF_MS
from holdfast.groups.service_types import Status, Verb
from holdfast.http_api.bounds import at_most, count_at_most
from holdfast.http_api.call import Call, NoParams
from holdfast.http_api.group_access import leased_group
from holdfast.http_api.lease_types import (
    AckRequest,
    ExtendRequest,
    NackRequest,
    RejectRequest,
    ReleaseRequest,
    SettledReply,
    StatusReply,
)
from holdfast.http_api.reply import Reply

_STATUS: Mapping[Status, StatusReply] = {each: StatusReply(each.value) for each in Status}


async def ack(call: Call[NoParams]) -> Reply:
    """Acknowledge messages: they are done, and are not delivered again.

    A receipt that is used again answers `done` again. With `cumulative` each settles also what
    its member holds below it in its queue.
    """
    asked = await call.body(AckRequest)
    return await _settle(
        call, Verb.ACK, asked.receipts, cumulative=asked.cumulative, used_ms=asked.used_ms
    )


async def nack(call: Call[NoParams]) -> Reply:
    """Give messages back as failed: they come again, in their places, after a while.

    That is `delay_ms`, or else grows with each failure. One failure too many, and a message is a
    dead letter.
    """
    asked = await call.body(NackRequest)
    return await _settle(
        call, Verb.NACK, asked.receipts, delay_ms=asked.delay_ms, used_ms=asked.used_ms
    )


async def release(call: Call[NoParams]) -> Reply:
    """Give messages back untouched: they are available at once, in their places.

    That does not count as a failure.
    """
    asked = await call.body(ReleaseRequest)
    return await _settle(call, Verb.RELEASE, asked.receipts)


async def extend(call: Call[NoParams]) -> Reply:
    """Keep messages longer: their leases end `lease_ms` from now."""
    asked = await call.body(ExtendRequest)
    return await _settle(call, Verb.EXTEND, asked.receipts, lease_ms=asked.lease_ms)


async def reject(call: Call[NoParams]) -> Reply:
    """Give messages up: they go to the group's dead letters, or are dropped if it has none."""
    asked = await call.body(RejectRequest)
    return await _settle(call, Verb.REJECT, asked.receipts, used_ms=asked.used_ms)


async def _settle(call: Call[NoParams], verb: Verb, receipts: list[str], **terms: Any) -> Reply:
    context, group = call.context, call.group()
    limits = context.groups_config
    most = limits.max_settle_receipts
    count_at_most("receipts", "receipts", len(receipts), most, "max_settle_receipts")
    at_most("lease_ms", terms.get("lease_ms"), limits.max_lease_ms, "max_lease_ms")
    at_most("delay_ms", terms.get("delay_ms"), MAX_BACKOFF_MS)
    at_most("used_ms", terms.get("used_ms"), LONGEST_LEASE_MS)
    leased_group(context, group)
    statuses = await context.groups.settle(group, verb, receipts, **terms)
    return call.reply(SettledReply([_STATUS[each] for each in statuses]))
