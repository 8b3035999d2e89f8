"""Extend, end and describe read leases. A request for a plan (`get_splits`) creates them.

A read lease protects the planned messages from retention by age and size. A caller who may consume
a topic may take read leases on it.
"""

import re

from msgspec import UNSET, UnsetType

from holdfast.consumequeue.errors import UnknownReadLease
from holdfast.consumequeue.maintenance.read_leases import ReadLease
from holdfast.consumequeue.topics import Topic
from holdfast.http_api.routing.call import Call, NoParams
from holdfast.http_api.routing.context import ApiContext
from holdfast.http_api.routing.params import check_at_most
from holdfast.http_api.schemas.messages import (
    ReadLeaseEndedReply,
    ReadLeaseReply,
    ReadLeaseRequest,
    ReadLeasesReply,
)
from holdfast.http_api.wire.reply import Reply

_LEASE_ID = re.compile(r"[0-9a-f]{32}")


async def extend_read_lease(call: Call[NoParams]) -> Reply:
    """Extend a lease to `lease_ms` from now, if that is later than its current end.

    If the lease has ended, the status is 404: its messages may be deleted. A restart of the broker
    ends all leases.
    """
    topic = call.topic()
    lease_ms = (await call.body(ReadLeaseRequest)).lease_ms
    check_at_most("lease_ms", lease_ms, call.context.config.max_read_lease_ms, "max_read_lease_ms")
    leases = call.context.store.read_leases
    return call.reply(lease_reply(leases.extend(topic, call.path["lease"], lease_ms)))


async def end_read_lease(call: Call[NoParams]) -> Reply:
    """End a lease early. If the lease has already ended, this is no error.

    If the text is not a valid lease id, the status is 404.
    """
    topic = call.topic()
    lease_id = call.path["lease"]
    if not _LEASE_ID.fullmatch(lease_id):
        raise UnknownReadLease(lease_id)
    ended = call.context.store.read_leases.end(topic, lease_id)
    return call.reply(ReadLeaseEndedReply(ended))


def lease_reply(lease: ReadLease) -> ReadLeaseReply:
    return ReadLeaseReply(lease.lease_id, lease.until_ms)


def describe_read_leases(context: ApiContext, topic: Topic) -> ReadLeasesReply | UnsetType:
    """Return what the read leases of a topic protect; UNSET if the topic has no read leases."""
    pinned = context.store.read_leases.pinned(topic.topic_id)
    if pinned is None:
        return UNSET
    return ReadLeasesReply(
        pinned.lease_count,
        pinned.until_ms,
        {str(queue): start for queue, start in sorted(pinned.starts.items())},
    )
