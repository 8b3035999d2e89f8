"""What a member receives, as the reply that carries it in the media type that was asked for.

Messages come in the order in which the group chose them, of several topics and queues in turn;
they are made batch by batch all the same, and then put where they belong.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from holdfast.consumequeue.fetched import BatchSlice
from holdfast.groups.batch_parts import batch_parts
from holdfast.groups.service_types import Delivery, Received
from holdfast.http_api.codecs import JSON, MSGPACK, NDJSON, encode, encode_lines
from holdfast.http_api.context import ApiContext
from holdfast.http_api.delivery import APART_MESSAGES
from holdfast.http_api.lease_types import LeasedMessage, PackedLeasedMessage, ReceiveReply
from holdfast.http_api.messages import leased_messages_of, packed_leased_messages_of
from holdfast.http_api.reply import Reply

#: In the order of preference. Batches come whole, and a lease is of one message.
RECEIVE_TYPES = (JSON, NDJSON, MSGPACK)


async def deliver_received(
    context: ApiContext, received: Received, media: str, held_s: float
) -> Reply:
    """Return the reply to a receive. NDJSON has no envelope, so headers say the same."""
    deliveries = received.deliveries
    messages: list[LeasedMessage | PackedLeasedMessage] = []
    for start in range(0, len(deliveries), APART_MESSAGES):
        if start:
            await asyncio.sleep(0)
        messages += leased_messages(deliveries[start : start + APART_MESSAGES], media)
    if media == NDJSON:
        body = encode_lines(messages)
    else:
        reply = ReceiveReply(messages, received.available, received.active)
        if received.notice:
            reply.notice = True
        body = encode(media, reply)
    _count(context, deliveries, len(body))
    headers = [
        ("Holdfast-Available", str(received.available)),
        ("Holdfast-Active", "true" if received.active else "false"),
    ]
    return Reply(200, media, (body,), headers, held_s=held_s)


def leased_messages(
    deliveries: Sequence[Delivery], media: str
) -> list[LeasedMessage | PackedLeasedMessage]:
    """Return deliveries as a media type's messages, in their order. Pure."""
    make = packed_leased_messages_of if media == MSGPACK else leased_messages_of
    made: list[Any] = [None] * len(deliveries)
    for part in batch_parts(deliveries):
        first = part.deliveries[0]
        messages = make(
            first.topic.name,
            BatchSlice(first.batch, part.rows),
            [each.receipt for each in part.deliveries],
            [each.attempt for each in part.deliveries],
            [each.redelivered for each in part.deliveries],
        )
        for place, message in zip(part.places, messages, strict=True):
            made[place] = message
    return made


def _count(context: ApiContext, deliveries: Sequence[Delivery], size: int) -> None:
    """Count what is delivered, by topic; of the reply's bytes each has its share by messages."""
    counts: dict[str, int] = {}
    for each in deliveries:
        counts[each.topic.name] = counts.get(each.topic.name, 0) + 1
    for name, count in counts.items():
        counters = context.metrics.topic(name)
        counters.messages_out += count
        counters.bytes_out += size * count // len(deliveries)
