"""Makes the messages of replies from the columns of stored batches. Pure.

Each column is split into its rows in one pass. So a thousand messages of a batch need only a few
list comprehensions, not thousands of look-ups.
"""

from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, repeat
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import UNSET, UnsetType

from holdfast.commitlog.format.batch import Batch, Int32s
from holdfast.consumequeue.reading.fetched import BatchSlice
from holdfast.http_api.schemas.leases import LeasedMessage, PackedLeasedMessage
from holdfast.http_api.schemas.messages import Message, PackedMessage

T = TypeVar("T")
Rows = range | Sequence[int]


def messages_of(topic: str, slices: Iterable[BatchSlice]) -> list[Message]:
    """Return the messages of slices (rows of batches) for JSON, in the order of the rows."""
    return [message for each in slices for message in _json_messages(topic, each)]


def packed_messages_of(topic: str, slices: Iterable[BatchSlice]) -> list[PackedMessage]:
    """Return the messages of slices for msgpack, in the order of the rows."""
    return [message for each in slices for message in map(PackedMessage, *_columns(topic, each))]


def leased_messages_of(
    topic: str, slice_: BatchSlice, *lease: Iterable[object]
) -> Iterable[LeasedMessage]:
    """Return the messages of a slice for JSON, with the values of their leases.

    `lease` has three columns: the receipts, the attempts, and whether messages are redelivered.
    """
    *columns, bodies = _columns(topic, slice_)
    return _with_bodies(LeasedMessage, (*columns, *lease), bodies)


def packed_leased_messages_of(
    topic: str, slice_: BatchSlice, *lease: Iterable[object]
) -> Iterable[PackedLeasedMessage]:
    """Return the messages of a slice for msgpack, with the values of their leases."""
    *columns, bodies = _columns(topic, slice_)
    return map(PackedLeasedMessage, *columns, *lease, bodies)


def _json_messages(topic: str, slice_: BatchSlice) -> Iterable[Message]:
    *columns, bodies = _columns(topic, slice_)
    return _with_bodies(Message, columns, bodies)


def _with_bodies(
    type_: Callable[..., T], columns: Iterable[Iterable[object]], bodies: Iterable[bytes]
) -> Iterable[T]:
    """Return an object for each row. A body is text if it is UTF-8, otherwise base64."""
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
    return (
        repeat(topic),
        repeat(header.queue_id),
        offsets,
        [f"{prefix}{offset:016X}" for offset in offsets],
        _texts(batch.key_offsets, batch.keys, rows),
        _texts(batch.tag_offsets, batch.tags, rows),
        _properties(batch, rows),
        _born_timestamps_ms(batch, rows),
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
