"""Decode the binary batches of a publish request, and check them.

Each batch must be complete, intact, and valid for the topic. Fields that only the broker sets
(offsets, the store timestamp) must be zero. Problems identify a batch by its index in the request.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from holdfast.commitlog.append.producer_sequences import BROKER_EPOCH
from holdfast.commitlog.errors import CorruptBatch, UnknownFormatVersion
from holdfast.commitlog.format.batch import Batch, iter_batches
from holdfast.commitlog.format.batch_check import LimitExceeded, MessageLimits, check_batch
from holdfast.commitlog.format.batch_header import ANY_QUEUE, HEADER_SIZE, BatchFlag
from holdfast.consumequeue.errors import UnknownQueue
from holdfast.consumequeue.topics import Topic
from holdfast.groups.serving.letters import RESERVED_PREFIX
from holdfast.http_api.endpoints.publish_request import (
    message_too_large,
    reserved_property,
    too_many_batches,
    too_many_messages,
)
from holdfast.http_api.wire.problems import Problem

#: A body with more bytes is decoded in a thread, because it would block the event loop for
#: milliseconds. Using a thread costs about 0.1 ms.
OFFLOAD_BINARY_BYTES = 4 * 1024 * 1024
#: The same limit for the number of batches in a body.
OFFLOAD_BATCHES = 64
_BROKER_FIELDS = ("physical_offset", "durable_offset", "base_offset", "store_timestamp_us")


def is_slow_to_decode(body: bytes | memoryview) -> bool:
    """Return whether decoding these batches would block the event loop for milliseconds.

    The result depends on the number of bytes and of batches. The batches are counted by the sizes
    in their headers, which are not verified yet.
    """
    if len(body) > OFFLOAD_BINARY_BYTES:
        return True
    position = 0
    for _ in range(OFFLOAD_BATCHES):
        if position + HEADER_SIZE > len(body):
            return False
        position += int.from_bytes(body[position + 8 : position + 12], "little")
    return position < len(body)


def decode_batches(body: bytes | memoryview, max_messages: int, max_batches: int) -> list[Batch]:
    """Verify the checksums of a request's batches and return the batches. Raises Problem."""
    batches: list[Batch] = []
    count = 0
    try:
        for batch in iter_batches(body):
            if len(batches) == max_batches:
                raise too_many_batches(max_batches)
            batches.append(batch)
            count += len(batch)
    except CorruptBatch as error:
        raise _malformed(error.reason, len(batches), str(error)) from error
    except UnknownFormatVersion as error:
        raise _malformed("format-version", len(batches), str(error)) from error
    if not batches:
        raise _malformed("empty", 0, "there is no batch to publish")
    if count > max_messages:
        raise too_many_messages(max_messages)
    return batches


def check_batches(batches: Sequence[Batch], topic: Topic, limits: MessageLimits) -> None:
    """Raise Problem or UnknownQueue if a topic does not accept these batches.

    If the topic does not exist yet, its id is 0.
    """
    before = 0
    for index, batch in enumerate(batches):
        _check_header(batch, index, topic)
        try:
            check_batch(batch, limits)
        except CorruptBatch as error:
            raise _malformed(error.reason, index, str(error)) from error
        except LimitExceeded as error:
            raise message_too_large(
                error.limit_name, error.limit, error.found, before + error.row
            ) from error
        _check_properties(batch, before)
        before += len(batch)


def _check_properties(batch: Batch, before: int) -> None:
    """Raise Problem for a property that only the broker may write."""
    listed, offsets = batch.property_list, batch.name_offsets
    if listed is None or offsets is None:
        return
    names = bytes(batch.names)
    if RESERVED_PREFIX.encode() not in names:
        return
    found = [each.start() for each in re.finditer(RESERVED_PREFIX.encode(), names)]
    # Names are stored without separators, so a match may be inside a name or span two names.
    for entry in np.flatnonzero(np.isin(offsets[:-1], found)).tolist():
        name = names[offsets[entry] : offsets[entry + 1]].decode()
        if name.startswith(RESERVED_PREFIX):
            row = int(np.searchsorted(listed, entry, side="right")) - 1
            raise reserved_property(name, before + row)


def _check_header(batch: Batch, index: int, topic: Topic) -> None:
    header = batch.header
    for name in _BROKER_FIELDS:
        if getattr(header, name):
            raise _malformed("stamped", index, f"the broker sets {name}; leave it 0")
    if header.topic_id not in (0, topic.topic_id):
        raise Problem(
            "topic-recreated",
            f"batch {index} is for topic id {header.topic_id}, but {topic.name!r} has "
            f"{topic.topic_id or 'no id yet'}; look the topic up again",
            topic=topic.name,
            topic_id=topic.topic_id or None,
            batch=index,
        )
    if header.queue_id != ANY_QUEUE and header.queue_id >= topic.queue_count:
        raise UnknownQueue(topic.name, header.queue_id, topic.queue_count)
    if header.queue_id == ANY_QUEUE and header.producer_id:
        raise _malformed(
            "queue-not-named",
            index,
            "a producer's sequence counts its batches to one queue; name the queue",
        )
    if header.producer_epoch == BROKER_EPOCH:
        raise _malformed("epoch", index, f"the highest epoch is {BROKER_EPOCH - 1}")
    if header.sequence < 0:
        raise _malformed("sequence", index, "sequences count from 0")
    if header.flags & BatchFlag.REQUEST_SEQUENCE:
        raise _malformed("request-sequence", index, "only the producer headers may count requests")
    if header.flags & BatchFlag.PRODUCERS:
        raise _malformed("producers", index, "a published batch must have one producer")
    if header.flags & BatchFlag.ENVELOPES:
        raise _malformed("envelopes", index, "only the broker writes envelopes")


def fill_queues(batches: Sequence[Batch], choose: Callable[[], int]) -> list[Batch]:
    """Return the batches. If a batch names no queue, `choose` returns its queue."""
    return [
        batch
        if batch.header.queue_id != ANY_QUEUE
        else replace(batch, header=replace(batch.header, queue_id=choose()))
        for batch in batches
    ]


def _malformed(reason: str, index: int, detail: str) -> Problem:
    return Problem(
        "malformed-batch",
        f"batch {index}: {detail}; encode it again as FORMAT.md describes",
        reason=reason,
        batch=index,
    )
