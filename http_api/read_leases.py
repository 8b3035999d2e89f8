"""Leases on what is to be read: take one with a plan, extend it, let it go, tell of them.

A lease keeps retention by age and size from what a reader has planned. Whoever may consume a topic
may have leases on it.
"""

import re

from msgspec import UNSET, UnsetType

from holdfast.consumequeue.errors import UnknownReadLease
from holdfast.consumequeue.message_store import ReadLease
from holdfast.consumequeue.topics import Topic
from holdfast.http_api.bounds import at_most
from holdfast.http_api.call import Call, NoParams
from holdfast.http_api.context import ApiContext
from holdfast.http_api.reply import Reply
from holdfast.http_api.types import (
    ReadLeaseEndedReply,
    ReadLeaseReply,
    ReadLeaseRequest,
    ReadLeasesReply,
)

_LEASE_ID = re.compile(r"[0-9a-f]{32}")


async def extend_read_lease(call: Call[NoParams]) -> Reply:
    """Let a lease live for `lease_ms` from now, if that is longer than it would.

    404 when it has ended: what it pinned may be trimmed. A restart of the broker ends all leases.
    """
    topic = call.topic()
    lease_ms = (await call.body(ReadLeaseRequest)).lease_ms
    at_most("lease_ms", lease_ms, call.context.config.max_read_lease_ms, "max_read_lease_ms")
    leases = call.context.store.read_leases
    return call.reply(lease_reply(leases.extend(topic, call.path["lease"], lease_ms)))


async def end_read_lease(call: Call[NoParams]) -> Reply:
    """Let a lease go before its time; one that has ended is no error.

    404 for what no lease has as its id.
    """
    topic = call.topic()
    lease_id = call.path["lease"]
    if not _LEASE_ID.fullmatch(lease_id):
        raise UnknownReadLease(lease_id)
    ended = call.context.store.read_leases.end(topic, lease_id)
    return call.reply(ReadLeaseEndedReply(ended))


def lease_reply(lease: ReadLease) -> ReadLeaseReply:
    """Return a lease as a client sees it."""
    return ReadLeaseReply(lease.lease_id, lease.until_ms)


def pinned_of(context: ApiContext, topic: Topic) -> ReadLeasesReply | UnsetType:
    """Return what readers have pinned of a topic, UNSET when that is nothing."""
    leases = context.store.read_leases
    pinned = leases.pinned(topic.topic_id)
    if pinned is None:
        return UNSET
    return ReadLeasesReply(
        pinned.lease_count,
        leases.wall_ms(pinned.until_s),
        {str(queue): start for queue, start in sorted(pinned.starts.items())},
    )
