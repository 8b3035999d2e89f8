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
from holdfast.consumequeue.reading.splits import Split
from holdfast.consumequeue.topics import QueueState, Topic

#: The state of a delivery that may be stored.
MAYBE_STORED = object()

#: The limits of a search: how many of the newest messages of a topic it examines, and how many
#: stored bytes. It may exceed them by one read.
_MOST_EXAMINED = 200_000
_MOST_BYTES = 128 * 1024 * 1024
#: The limits of one read. With many queues a read has fewer messages, but at least _LEAST_CHUNK
#: unless _MOST_EXAMINED allows fewer.
_CHUNK, _LEAST_CHUNK = 1_000, 64
_CHUNK_BYTES = 1024 * 1024
#: A thread lets the event loop run after this many batches, about 0.3 ms.
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
    store: MessageStore,
    topic: Topic,
    publisher: int,
    most: int,
    *,
    queue: int | None = None,
    tag: str | None = None,
) -> list[bytes]:
    """Return the digests of the newest messages that a container published to a topic, at most
    `most`. A message that is stored twice has its digest twice. `publisher` is the result of
    `publisher_hash`. `queue` and `tag` are those of the link's address, if it has them: a message
    in another queue, or with another tag, is no copy. Damaged messages are not found. Raises
    UnknownTopic. Cancelling is safe."""
    reading, appender = store.reading, store.publishing.appender
    states = [
        each for each in reading.queue_states(topic) if queue in (None, each.queue) and _count(each)
    ]
    # Each queue gives about as many, because the outcomes that are missing are the newest.
    queues = max(len(states), 1)
    fair = max(most // queues, _LEAST_CHUNK)
    chunk = max(min(_CHUNK, fair, _MOST_EXAMINED // queues), 1)
    left, left_bytes = _MOST_EXAMINED, _MOST_BYTES
    ends = {each.queue: each.max_offset for each in states}
    digests: list[bytes] = []
    while ends and left > 0:
        for of_queue, end in list(ends.items()):
            start = max(end - chunk, reading.queue_state(topic, of_queue).min_offset)
            for split in reversed(await _split(store, topic, of_queue, start, end)):
                if left_bytes <= 0 or len(digests) >= most:
                    return digests
                fetched = await _read(reading, topic, split)
                search = partial(_digests, fetched, publisher, appender.durable_offset, tag)
                found = await reading.in_thread(search)
                digests += found[: most - len(digests)]
                left_bytes -= _size(split, fetched)
            left -= chunk
            ends[of_queue] = start
            if end - start < chunk:
                del ends[of_queue]
    return digests


def _count(state: QueueState) -> int:
    return state.max_offset - state.min_offset


async def _split(
    store: MessageStore, topic: Topic, queue: int, start: int, end: int
) -> Sequence[Split]:
    """Cut the messages of a queue from `start` to before `end` by their stored size, because only
    this bounds the memory: the messages of a queue may have very different sizes."""
    try:
        return await store.lookups.splits(
            topic, {queue: (start, end)}, max_bytes=_CHUNK_BYTES, min_splits=1, max_splits=_CHUNK
        )
    except OffsetTrimmed:  # retention was faster
        return ()


async def _read(reading: QueueReader, topic: Topic, split: Split) -> list[Fetched]:
    """Return the messages of a split."""
    parts: list[Fetched] = []
    start, end = split.start_offset, split.end_offset
    while start < end:
        try:
            fetched = await reading.read(
                topic, split.queue, start, max_messages=end - start, max_bytes=_CHUNK_BYTES,
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


def _size(split: Split, parts: Sequence[Fetched]) -> int:
    """Return about how many stored bytes the messages have that were read of a split. It may begin
    or end in the middle of a large batch, which counts only in part."""
    stored = sum(piece.stored_messages for part in parts for piece in part.pieces)
    return split.bytes * sum(part.message_count for part in parts) // max(stored, 1)


def _digests(
    parts: Sequence[Fetched], publisher: int, durable_offset: int, tag: str | None
) -> list[bytes]:
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
                envelope = decode_envelope(octets)
                digest = _digest_of_stored(batch, row, envelope, durable_offset, tag)
                digests += [digest] if digest is not None else []
    return digests[::-1]


def _digest_of_stored(
    batch: Batch, row: int, envelope: Envelope, durable_offset: int, tag: str | None
) -> bytes | None:
    """Return the digest of a stored message. Return None if it has no message-id, if it asked for
    durability and is not durable yet, or if it has another tag than `tag` (None: its subject)."""
    if envelope.is_durable and batch.header.end_physical_offset > durable_offset:
        return None
    stored_tag = batch.tag(row)
    if tag is not None and stored_tag != tag:
        return None
    body_at, body_end = batch.body_offsets[row : row + 2].tolist()
    body = bytes(batch.bodies[body_at:body_end])
    message = envelope.annotations + envelope.message(body)
    digest = digest_of(message)
    if tag is None and stored_tag is not None and digest is not None:
        return digest if Sections(message).properties().subject == stored_tag else None
    return digest
