"""Make the messages of replies from stored batches, and encode them.

Each column of a batch is split into its rows in one pass. So a thousand messages of a batch need
only a few list comprehensions, not thousands of look-ups.

A reply is encoded in portions of few messages and bytes, and the body of a long message in pieces,
so that the event loop is never blocked for long. JSON writes a control character as six bytes, so
the limits apply to the encoded text, not to the stored bytes. A thread would not help: it would
hold the GIL for up to 5 ms at a time, and meanwhile the event loop cannot run.
"""

import asyncio
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, repeat
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, UnsetType

from holdfast.commitlog.format.batch import Batch, Int32s
from holdfast.commitlog.format.batch_header import ENVELOPES
from holdfast.consumequeue.reading.fetched import BatchSlice, row_sizes, text_bytes
from holdfast.http_api.routing.codecs import JSON, MSGPACK, NDJSON, encode_elements, encode_lines
from holdfast.http_api.schemas.leases import LeasedMessage, PackedLeasedMessage
from holdfast.http_api.schemas.messages import Message, PackedMessage
from holdfast.http_api.wire.reply import Bytes

#: Encoding more messages than this in one step would block the event loop for milliseconds. More
#: messages are encoded in portions, and other tasks run between the portions.
YIELD_EVERY_MESSAGES = 500
#: The same limit for the length of the encoded text. Encoding this much takes about 5 ms.
YIELD_EVERY_BYTES = 1024 * 1024
#: One stored byte may be encoded as six, as in \u0000.
JSON_GROWTH = 6
#: The maximum stored size of a portion, unless it is a single message.
PORTION_BYTES = YIELD_EVERY_BYTES // JSON_GROWTH
#: A reply without a slot may have this much encoded text; one loop iteration encodes all of it.
#: This is enough for a pull with default settings, including the other fields of its messages.
MAX_BYTES_WITHOUT_SLOT = 2 * YIELD_EVERY_BYTES

_encode_json = msgspec.json.Encoder().encode
T = TypeVar("T")
Rows = range | Sequence[int]


# -- messages ------------------------------------------------------------------------------


def make_messages(
    media: str, topic: str, slices: Iterable[BatchSlice]
) -> list[Message] | list[PackedMessage]:
    """Return the messages of slices (rows of batches), in the order of the rows."""
    if media == MSGPACK:
        return [m for each in slices for m in map(PackedMessage, *_columns(topic, each))]
    return [m for each in slices for m in _with_bodies(Message, _columns(topic, each))]


def make_leased_messages(
    media: str, topic: str, slice_: BatchSlice, *lease: Iterable[object]
) -> Iterable[LeasedMessage | PackedLeasedMessage]:
    """Return the messages of a slice for a media type, with the values of their leases.

    `lease` has four columns: the receipts, the attempts, whether messages are redelivered, and
    the holders that a browse shows.
    """
    *columns, bodies = _columns(topic, slice_)
    if media == MSGPACK:
        return map(PackedLeasedMessage, *columns, *lease, bodies)
    return _with_bodies(LeasedMessage, (*columns, *lease, bodies))


def make_plain_message(
    media: str, topic: str, batch: Batch, row: int, *lease: object
) -> LeasedMessage | PackedLeasedMessage | None:
    """Return one message as `make_leased_messages` does, if its batch has no column that a reply
    shows except the bodies; otherwise return None. `lease` has one value of each column."""
    header = batch.header
    if header.flags & ~ENVELOPES:
        return None
    offset = header.base_offset + row
    message_id = f"{header.topic_id:08X}{header.queue_id:08X}{offset:016X}"
    born_ms, stored_ms = header.born_timestamp_us // 1000, header.store_timestamp_us // 1000
    values: Any = topic, header.queue_id, offset, message_id, None, None, {}, born_ms, stored_ms
    body = bytes(batch.bodies) if header.message_count == 1 else batch.body(row)
    if media == MSGPACK:
        return PackedLeasedMessage(*values, *lease, body)  # type: ignore[call-arg]
    return LeasedMessage(*values, *lease, *_text_or_base64(body))  # type: ignore[call-arg]


def _with_bodies(type_: Callable[..., T], columns: Sequence[Iterable[Any]]) -> Iterable[T]:
    """Return an object for each row. A body is text if it is UTF-8, otherwise base64."""
    *columns, bodies = columns
    try:
        return map(type_, *columns, [body.decode() for body in bodies])
    except UnicodeDecodeError:
        texts, base64s = zip(*map(_text_or_base64, bodies), strict=True)
        return map(type_, *columns, texts, base64s)


def _text_or_base64(body: bytes) -> tuple[str | UnsetType, str | UnsetType]:
    try:
        return body.decode(), UNSET
    except UnicodeDecodeError:
        return UNSET, b64encode(body).decode()


def _columns(topic: str, slice_: BatchSlice) -> tuple[Iterable[Any], ...]:
    """Return the values of these rows as columns, in the order of Message. The bodies are last."""
    batch, rows = slice_.batch, slice_.rows
    if not isinstance(rows, range):
        rows = [int(row) for row in rows]
    header = batch.header
    prefix = f"{header.topic_id:08X}{header.queue_id:08X}"
    base = header.base_offset
    offsets = [base + row for row in rows]
    born: Iterable[int] = repeat(header.born_timestamp_us // 1000)
    keys: Iterable[str | None] = repeat(None)
    tags: Iterable[str | None] = repeat(None)
    properties: Iterable[dict[str, str]] = ({} for _ in rows)
    if header.flags & ~ENVELOPES:
        keys = _texts(batch.key_offsets, batch.keys, rows)
        tags = _texts(batch.tag_offsets, batch.tags, rows)
        properties = _properties(batch, rows)
        born = _born_timestamps_ms(batch, rows)
    return (
        repeat(topic),
        repeat(header.queue_id),
        offsets,
        [f"{prefix}{offset:016X}" for offset in offsets],
        keys,
        tags,
        properties,
        born,
        repeat(header.store_timestamp_us // 1000),
        _values(batch.body_offsets, batch.bodies, rows),
    )


def _values(offsets: Int32s, data: memoryview, rows: Rows) -> list[bytes]:
    """Return a column's values in these rows."""
    at = _bounds(offsets, rows)
    low = at[0][0]
    raw = bytes(data[low : at[-1][1]])
    return [raw[start - low : end - low] for start, end in at]


def _texts(offsets: Int32s | None, data: memoryview, rows: Rows) -> Iterable[str | None]:
    """Return a text column's values in these rows, with None for each empty text."""
    if offsets is None:
        return repeat(None)
    return [value.decode() or None for value in _values(offsets, data, rows)]


def _bounds(offsets: Int32s, rows: Rows) -> list[tuple[int, int]]:
    if isinstance(rows, range):
        bounds = offsets[rows.start : rows.stop + 1].tolist()
        return list(pairwise(bounds))
    indexes = np.asarray(rows)
    return list(zip(offsets[indexes].tolist(), offsets[indexes + 1].tolist(), strict=True))


def _properties(batch: Batch, rows: Rows) -> Iterable[dict[str, str]]:
    listed = batch.property_list
    if listed is None or batch.name_offsets is None or batch.value_offsets is None:
        return ({} for _ in rows)
    bounds = _bounds(listed, rows)
    first, last = bounds[0][0], bounds[-1][1]
    if first == last:
        return ({} for _ in rows)
    names = [name.decode() for name in _values(batch.name_offsets, batch.names, range(first, last))]
    values = [
        each.decode() for each in _values(batch.value_offsets, batch.values, range(first, last))
    ]
    return [
        dict(zip(names[start - first : end - first], values[start - first :], strict=False))
        for start, end in bounds
    ]


def _born_timestamps_ms(batch: Batch, rows: Rows) -> Iterable[int]:
    column = batch.born_timestamps_us
    if column is None:
        return repeat(batch.header.born_timestamp_us // 1000)
    indexes: npt.NDArray[np.int64] = column[np.asarray(rows)] // 1000
    timestamps: list[int] = indexes.tolist()
    return timestamps


# -- encoding ------------------------------------------------------------------------------


def fits_one_call(media: str, count: int, stored_bytes: int) -> bool:
    """Return whether this many messages with this many stored bytes may be encoded in one step."""
    growth = 1 if media == MSGPACK else JSON_GROWTH
    return count <= YIELD_EVERY_MESSAGES and stored_bytes * growth <= YIELD_EVERY_BYTES


async def encode_portions(
    media: str, portions: Iterable[Sequence[Any]], *, has_slot: bool
) -> list[Bytes] | None:
    """Return the encoded messages of a reply, in parts.

    With `has_slot`, each loop iteration encodes one portion, or one piece of a long message.
    Without `has_slot`, one iteration encodes all messages, because many half-encoded replies would
    fill the memory. If the text is longer than MAX_BYTES_WITHOUT_SLOT, return None.
    """
    parts: list[Bytes] = []
    size = 0
    for portion in portions:
        for piece in encode_pieces(media, portion, is_first=not parts):
            parts.append(piece)
            size += len(piece)
            if has_slot:
                await asyncio.sleep(0)
            elif size > MAX_BYTES_WITHOUT_SLOT:
                return None
    return parts


def encode_pieces(media: str, messages: Sequence[Any], *, is_first: bool) -> Iterator[Bytes]:
    """Yield the encoded pieces of a portion. `is_first` is set for the first portion of a reply."""
    comma = b"" if is_first or media != JSON else b","
    if media == MSGPACK:
        yield encode_elements(media, messages)
    elif len(messages) == 1 and is_long(messages[0]):
        for piece in encode_long_message(messages[0]):
            yield comma + piece if comma else piece
            comma = b""
        if media == NDJSON:
            yield b"\n"
    elif media == NDJSON:
        yield encode_lines(messages)
    else:
        yield comma + encode_elements(media, messages)


def is_long(message: Any) -> bool:
    """Return whether a message's body is so long that it is encoded in pieces."""
    return len(_body_of(message)[1]) > PORTION_BYTES


def encode_long_message(message: Any) -> Iterator[bytes]:
    """Yield the JSON of a message, in pieces. The body must be the last field of the message."""
    name, text = _body_of(message)
    around = _encode_json(msgspec.structs.replace(message, **{name: ""}))
    assert around.endswith(b'""}')
    yield around[:-2]
    for start in range(0, len(text), PORTION_BYTES):
        yield _encode_json(text[start : start + PORTION_BYTES])[1:-1]
    yield around[-2:]


def _body_of(message: Any) -> tuple[str, str]:
    """Return the name and the value of the field that contains the body."""
    if message.body is UNSET:
        return "body_base64", message.body_base64
    return "body", message.body


def split_portions(
    slices: Iterable[BatchSlice], most: int, most_bytes: int = 2**63
) -> Iterator[list[BatchSlice]]:
    """Divide the rows of `slices` into portions: non-empty lists of slices, in the same order.

    A portion has at most `most` rows. It also has at most `most_bytes` stored bytes, except if it
    has only one row.
    """
    portion: list[BatchSlice] = []
    room, room_bytes = most, most_bytes
    for each in slices:
        rows = each.rows
        ends = np.cumsum(_row_sizes(each))
        start = done = 0
        while start < len(rows):
            fitting = int(np.searchsorted(ends, done + room_bytes, side="right")) - start
            count = max(min(room, fitting), 0 if portion else 1)
            if count:
                portion.append(BatchSlice(each.batch, rows[start : start + count]))
                start += count
                room_bytes -= int(ends[start - 1]) - done
                done = int(ends[start - 1])
                room -= count
            if start < len(rows) or room <= 0:
                yield portion
                portion, room, room_bytes = [], most, most_bytes
    if portion:
        yield portion


def _row_sizes(each: BatchSlice) -> "npt.NDArray[np.int64]":
    """Return the stored bytes of each row: its texts, and its share of the batch's other bytes."""
    batch = each.batch
    header = batch.header
    if len(batch) == 1:
        return np.array([header.total_size])
    overhead = (header.total_size - text_bytes(header)) // max(len(batch), 1)
    return row_sizes(batch, each.rows) + overhead
