"""Replies to receive requests, in the requested media type.

The messages have the order in which the group selected them, and this order alternates between
topics and queues. To save time, messages are decoded batch by batch, and then put in this order.
"""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from holdfast.consumequeue.reading.fetched import BatchSlice
from holdfast.groups.service_types import Delivery, Received, batch_parts
from holdfast.http_api.endpoints.rendering import (
    PORTION_BYTES,
    YIELD_EVERY_MESSAGES,
    encode_portions,
    make_leased_messages,
)
from holdfast.http_api.limits.reply_slots import LargeReplySlot
from holdfast.http_api.routing.codecs import (
    JSON,
    MSGPACK,
    NDJSON,
    encode,
    encode_lines,
    wrap_listing,
)
from holdfast.http_api.routing.context import ApiContext
from holdfast.http_api.schemas.leases import LeasedMessage, PackedLeasedMessage, ReceiveReply
from holdfast.http_api.wire.reply import Bytes, Reply

#: Decoding a further batch takes as much time as about this many further messages of one batch.
BATCH_MESSAGES = 4

#: The media types of a reply, in order of preference. Binary batches are impossible, because each
#: message has its own lease.
RECEIVE_TYPES = (JSON, NDJSON, MSGPACK)


async def deliver_received(
    context: ApiContext, received: Received, media: str, held_s: float, slot: LargeReplySlot
) -> Reply:
    """Return the reply to a receive request.

    The values of the envelope are also in headers, because NDJSON has no envelope. If the reply
    proves to be large, this function waits for `turn`, which limits large replies.
    """
    deliveries = received.deliveries
    envelope: ReceiveReply[Any] = ReceiveReply([], received.available, received.active)
    if received.notice:
        envelope.notice = True
    parts: Sequence[Bytes]
    _, end = next(_portions(deliveries), (0, 0))
    if end == len(deliveries) and not _is_one_large(deliveries):
        envelope.messages = leased_messages(deliveries, media)
        is_lines = media == NDJSON
        parts = [encode_lines(envelope.messages) if is_lines else encode(media, envelope)]
    else:
        found = None
        if not slot.is_held and _cost(deliveries) <= YIELD_EVERY_MESSAGES:
            found = await _encode_portions(deliveries, media, has_slot=False)
        if found is None:
            await slot.acquire_from(context.large_replies)
            found = await _encode_portions(deliveries, media, has_slot=True)
            assert found is not None
        parts = found
        if media != NDJSON:
            parts = wrap_listing(media, envelope, "messages", found, len(deliveries))
    _count(context, deliveries, sum(map(len, parts)))
    headers = [
        ("Holdfast-Available", str(received.available)),
        ("Holdfast-Active", "true" if received.active else "false"),
    ]
    return Reply(200, media, parts, headers, held_s=held_s)


async def _encode_portions(
    deliveries: Sequence[Delivery], media: str, *, has_slot: bool
) -> list[Bytes] | None:
    """Return the encoded messages in parts. Without a turn, return None if they are too large."""
    await asyncio.sleep(0)  # selecting the messages has already taken milliseconds
    made = (leased_messages(deliveries[start:end], media) for start, end in _portions(deliveries))
    return await encode_portions(media, made, has_slot=has_slot)


def _cost(deliveries: Sequence[Delivery]) -> int:
    """Return the time for encoding these messages, in messages of a single batch."""
    batches = len(list(groupby(deliveries, key=lambda each: id(each.batch))))
    return len(deliveries) + BATCH_MESSAGES * batches


def _is_one_large(deliveries: Sequence[Delivery]) -> bool:
    return len(deliveries) == 1 and _row_bytes(deliveries[0]) > PORTION_BYTES


def _row_bytes(delivery: Delivery) -> int:
    """Return the stored bytes of a message: its body, and a share of the batch's other bytes."""
    batch, row = delivery.batch, delivery.row
    header, offsets = batch.header, batch.body_offsets
    beside = (header.total_size - header.body_bytes) // max(len(batch), 1)
    return int(offsets[row + 1]) - int(offsets[row]) + beside


def _portions(deliveries: Sequence[Delivery]) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each portion of messages that may be encoded at once.

    The number of messages, the number of batches and the stored bytes of a portion are limited.
    """
    start = size = cost = 0
    batch = None
    for index, each in enumerate(deliveries):
        row_bytes = _row_bytes(each)
        if index > start and (cost >= YIELD_EVERY_MESSAGES or size + row_bytes > PORTION_BYTES):
            yield start, index
            start, size, cost, batch = index, 0, 0, None
        cost += 1 if each.batch is batch or batch is None else 1 + BATCH_MESSAGES
        batch = each.batch
        size += row_bytes
    if deliveries:
        yield start, len(deliveries)


def leased_messages(
    deliveries: Sequence[Delivery], media: str
) -> list[LeasedMessage | PackedLeasedMessage]:
    """Return deliveries as messages for a media type, in the same order. Pure."""
    made: list[Any] = [None] * len(deliveries)
    for part in batch_parts(deliveries):
        first = part.deliveries[0]
        messages = make_leased_messages(
            media,
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
    """Count the messages and bytes of a reply in the metrics of the topics.

    The bytes are divided among the topics by their numbers of messages.
    """
    counts: dict[str, int] = {}
    for each in deliveries:
        counts[each.topic.name] = counts.get(each.topic.name, 0) + 1
    for name, count in counts.items():
        counters = context.http.metrics.topic(name)
        counters.messages_out += count
        counters.bytes_out += size * count // len(deliveries)
