"""Finds out whether a message that a client resumes is stored already.

After a restart, the broker does not know which deliveries of a link are stored. So its attach has
the deliveries of the client's map that it does not know, without a state. The client then resumes
them with their messages (part 2.6.13, delivery 4). Such a message is not stored again if an equal
message of the same container is among the newest messages of the topic. Delivery-tags prove
nothing, because a client may use a tag again. Only messages with a message-id are compared: two
equal messages without it may be two messages.
"""

import time
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b

from holdfast.amqp.messages.envelope import Envelope, decode_envelope
from holdfast.amqp.messages.sections import Sections
from holdfast.amqp.wire.conditions import DecodeError
from holdfast.commitlog.format.batch import Batch
from holdfast.consumequeue.errors import OffsetTrimmed
from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.reading.fetched import Fetched
from holdfast.consumequeue.reading.queue_reading import QueueReader
from holdfast.consumequeue.topics import QueueState, Topic

#: The state of a delivery that may be stored.
MAYBE_STORED = object()

#: A search examines about so many of the newest messages of a topic, and about so many bytes.
_MOST_EXAMINED = 200_000
_MOST_BYTES = 128 * 1024 * 1024
#: So many messages, and about so many bytes, are read at once.
_CHUNK, _LEAST_CHUNK = 1_000, 64
_CHUNK_BYTES = 1024 * 1024
#: After so many batches, about 0.3 ms, a thread lets the event loop run.
_BATCHES_IN_A_ROW = 10
#: The bit in the first byte of an envelope with sections; without sections there is no message-id.
_SECTIONS = 0x20


def digest_of(message: bytes) -> bytes | None:
    """Return the digest of what an encoded message has after its header. Return None if the message
    has no message-id, or is not valid."""
    try:
        sections = Sections(message)
        if sections.properties().message_id is None:
            return None
    except DecodeError:
        return None
    return blake2b(sections.bare(), digest_size=16).digest()


async def find_copies(
    store: MessageStore, topic: Topic, publisher: int, most: int
) -> frozenset[bytes]:
    """Return the digests of the newest messages that a container published to a topic, at most
    `most`. `publisher` is the result of `publisher_hash`. Damaged messages are not found. Raises
    UnknownTopic. Cancelling is safe."""
    reading, appender = store.reading, store.publishing.appender
    states = reading.queue_states(topic)
    average = sum(each.bytes for each in states) // max(sum(map(_count, states)), 1) + 1
    # Each queue gives about as many, because the outcomes that are missing are the newest.
    fair = max(most // max(len(states), 1), _LEAST_CHUNK)
    chunk = max(min(_CHUNK, fair, _CHUNK_BYTES // average), 1)
    left = min(_MOST_EXAMINED, _MOST_BYTES // average)
    ends = {each.queue: each.max_offset for each in states if _count(each)}
    digests: set[bytes] = set()
    while ends and left > 0 and len(digests) < most:
        for queue, end in list(ends.items()):
            start = max(end - chunk, reading.queue_state(topic, queue).min_offset)
            fetched = await _read(reading, topic, queue, start, end)
            search = partial(_digests, fetched, publisher, appender.durable_offset)
            found = await reading.in_thread(search)
            digests.update(found[: most - len(digests)])
            left -= chunk
            ends[queue] = start
            if end - start < chunk:
                del ends[queue]
    return frozenset(digests)


def _count(state: QueueState) -> int:
    return state.max_offset - state.min_offset


async def _read(
    reading: QueueReader, topic: Topic, queue: int, start: int, end: int
) -> list[Fetched]:
    """Return the messages of a queue from `start` to before `end`."""
    parts: list[Fetched] = []
    while start < end:
        try:
            fetched = await reading.read(
                topic, queue, start, max_messages=end - start, max_bytes=_CHUNK_BYTES,
                skip_corrupt=True,
            )  # fmt: skip
        except OffsetTrimmed as error:  # retention was faster
            start = error.min_offset
            continue
        if fetched.next_offset <= start:
            break
        parts.append(fetched)
        start = fetched.next_offset
    return parts


def _digests(parts: Sequence[Fetched], publisher: int, durable_offset: int) -> list[bytes]:
    """Return the digests of those messages that a container published, the newest first. Runs in a
    thread, and lets the event loop run now and then."""
    hashed = publisher.to_bytes(4, "little")
    digests: list[bytes] = []
    slices = (each for part in parts for piece in part.pieces for each in piece.slices())
    for number, each in enumerate(slices):
        if number % _BATCHES_IN_A_ROW == 0:
            time.sleep(0)
        batch = each.batch
        if batch.envelope_offsets is None or hashed not in bytes(batch.envelopes):
            continue
        for row in each.rows:
            octets = batch.envelope(row)
            if octets[2:6] == hashed and octets[0] & _SECTIONS:
                digest = _digest_of_stored(batch, row, decode_envelope(octets), durable_offset)
                digests += [digest] if digest is not None else []
    return digests[::-1]


def _digest_of_stored(
    batch: Batch, row: int, envelope: Envelope, durable_offset: int
) -> bytes | None:
    """Return the digest of a stored message. Return None if it has no message-id, or if it asked
    for durability and is not durable yet."""
    if envelope.is_durable and batch.header.end_physical_offset > durable_offset:
        return None
    body_at, body_end = batch.body_offsets[row : row + 2].tolist()
    body = bytes(batch.bodies[body_at:body_end])
    return digest_of(envelope.annotations + envelope.message(body))
