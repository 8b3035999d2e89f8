"""What a member receives, as the reply that carries it in the media type that was asked for.

Messages come in the order in which the group chose them, of several topics and queues in turn;
they are made batch by batch all the same, and then put where they belong.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from holdfast.consumequeue.fetched import BatchSlice
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
    by_batch: dict[int, list[int]] = {}
    for index, each in enumerate(deliveries):
        by_batch.setdefault(id(each.batch), []).append(index)
    make = packed_leased_messages_of if media == MSGPACK else leased_messages_of
    made: list[Any] = [None] * len(deliveries)
    for indexes in by_batch.values():
        indexes.sort(key=lambda index: deliveries[index].row)
        of_batch = [deliveries[index] for index in indexes]
        messages = make(
            of_batch[0].topic.name,
            BatchSlice(of_batch[0].batch, _rows(of_batch)),
            [each.receipt for each in of_batch],
            [each.attempt for each in of_batch],
            [each.redelivered for each in of_batch],
        )
        for index, message in zip(indexes, messages, strict=True):
            made[index] = message
    return made


def _rows(deliveries: Sequence[Delivery]) -> range | list[int]:
    """Return the rows of one batch, ascending; those that follow each other as a range, which is
    cut out faster."""
    first, last = deliveries[0].row, deliveries[-1].row
    if last - first == len(deliveries) - 1:
        return range(first, last + 1)
    return [each.row for each in deliveries]


def _count(context: ApiContext, deliveries: Sequence[Delivery], size: int) -> None:
    """Count what is delivered, by topic; of the reply's bytes each has its share by messages."""
    counts: dict[str, int] = {}
    for each in deliveries:
        counts[each.topic.name] = counts.get(each.topic.name, 0) + 1
    for name, count in counts.items():
        counters = context.metrics.topic(name)
        counters.messages_out += count
        counters.bytes_out += size * count // len(deliveries)
