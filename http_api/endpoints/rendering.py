"""Encodes the messages of a reply without blocking the event loop for long.

A reply is encoded in portions of few messages and bytes, and the body of a long message in pieces.
JSON writes a control character as six bytes, so the limits apply to the encoded text, not to the
stored bytes. A thread would not help: it would hold the GIL for up to 5 ms at a time, and meanwhile
the event loop cannot run.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET

from holdfast.consumequeue.reading.fetched import BatchSlice, row_sizes, text_bytes
from holdfast.http_api.routing.codecs import JSON, MSGPACK, NDJSON, encode_elements, encode_lines
from holdfast.http_api.wire.reply import Bytes

#: Encoding more messages than this at once would block the event loop for milliseconds. They are
#: encoded in portions, and other tasks run between the portions.
YIELD_EVERY_MESSAGES = 500
#: The same limit for the length of the encoded text. Encoding this much takes about 5 ms.
YIELD_EVERY_BYTES = 1024 * 1024
#: One stored byte may be encoded as six, as in \u0000.
JSON_GROWTH = 6

#: The maximum stored size of a portion, unless it is a single message.
PORTION_BYTES = YIELD_EVERY_BYTES // JSON_GROWTH
#: At most this much text of a reply without a slot is encoded, in one loop iteration. It is enough
#: for a pull with default settings, also for the fields of its messages other than the bodies.
MAX_BYTES_WITHOUT_SLOT = 2 * YIELD_EVERY_BYTES

_encode_json = msgspec.json.Encoder().encode


def fits_one_call(media: str, count: int, stored_bytes: int) -> bool:
    """Return whether this many messages with this many stored bytes may be encoded at once."""
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
    """Return the stored bytes of each row: its texts, and a share of the batch's other bytes."""
    batch = each.batch
    header = batch.header
    if len(batch) == 1:
        return np.array([header.total_size])
    beside = (header.total_size - text_bytes(header)) // max(len(batch), 1)
    return row_sizes(batch, each.rows) + beside
