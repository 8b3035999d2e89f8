"""Check Spark's rows and convert them to the broker's columns, whole columns at a time.

The result is a record batch with the same columns under Holdfast's names, each with a fixed Arrow
type. Nulls remain only for optional fields of a message.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.commitlog.format.header_table import Int64s
from holdfast.commitlog.format.priority import HIGHEST_PRIORITY
from holdfast.spark.errors import UnwritableRow
from holdfast.spark.write.columns import Column

#: The estimated bytes of a row without its texts, for offsets and hashes.
ROW_BYTES = 32
#: The estimated bytes of a property without its texts.
PROPERTY_BYTES = 8

_MAX_QUEUE = 2**31 - 1


def check_rows(
    batch: pa.RecordBatch,
    columns: Mapping[str, Column],
    *,
    partition: int,
    first_row: int,
) -> pa.RecordBatch:
    """Return the rows with these columns, checked and converted. `first_row` is the position of the
    batch's first row in the partition. Raises UnwritableRow."""
    arrays = {
        name: _CONVERTERS[name](
            _InputColumn(batch.column(column.index), column.name, partition, first_row)
        )
        for name, column in columns.items()
    }
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def row_weights(rows: pa.RecordBatch) -> Int64s:
    """Return the estimated size in bytes of each checked row. It depends only on the row itself."""
    weights = np.full(len(rows), ROW_BYTES, np.int64)
    for name in ("body", "key", "tag"):
        if name in rows.schema.names:
            weights += _text_sizes(rows.column(name))
    if "properties" in rows.schema.names:
        offsets, names, values = property_entries(rows.column("properties"))
        sizes = _text_sizes(names) + _text_sizes(values) + PROPERTY_BYTES
        totals = np.concatenate(([0], np.cumsum(sizes)))
        weights += totals[offsets[1:]] - totals[offsets[:-1]]
    return weights


def property_entries(properties: pa.MapArray) -> tuple[npt.NDArray[np.int32], pa.Array, pa.Array]:
    """Return (offsets, names, values): row i has the properties offsets[i] to offsets[i + 1]. The
    offsets begin at 0. `properties` must be checked; it may be a slice."""
    offsets = properties.offsets.to_numpy()
    start, end = int(offsets[0]), int(offsets[-1])
    return offsets - offsets[0], properties.keys[start:end], properties.items[start:end]


class _InputColumn:
    """A column as Spark gave it, with its name and position in the partition for error messages."""

    def __init__(self, array: pa.Array, name: str, partition: int, first_row: int) -> None:
        self.array = array
        self._name = name
        self._partition = partition
        self._first_row = first_row

    # In the methods below, `rows` has the row of each value. None means that value i is in row i.

    def error(self, index: int, detail: str, rows: Int64s | None = None) -> UnwritableRow:
        """Return the error for value number `index`."""
        row = index if rows is None else int(rows[index])
        return UnwritableRow(self._partition, self._first_row + row, self._name, detail)

    def refuse(self, is_wrong: pa.Array, detail: str, rows: Int64s | None = None) -> None:
        """Raise UnwritableRow for the first value where `is_wrong` is true, not null."""
        wrong = pc.fill_null(is_wrong, False).to_numpy(zero_copy_only=False)
        if wrong.any():
            raise self.error(int(np.argmax(wrong)), detail, rows)

    def to_texts(self, array: pa.Array, rows: Int64s | None = None) -> pa.Array:
        """Return `array` as texts. Raises UnwritableRow for a value that is not valid UTF-8."""
        octets = array.cast(pa.binary())
        try:
            return octets.cast(pa.string())
        except pa.ArrowInvalid:
            index = next(i for i, value in enumerate(octets) if not _is_utf8(value.as_py()))
            raise self.error(index, "is not valid UTF-8", rows) from None


def _convert_body(given: _InputColumn) -> pa.Array:
    given.refuse(given.array.is_null(), "is null; make it empty, or filter the row out")
    return given.array.cast(pa.binary())


def _convert_text(given: _InputColumn) -> pa.Array:
    texts = given.to_texts(given.array)
    given.refuse(pc.equal(pc.binary_length(texts), 0), "is empty; use null instead")
    return texts


def _convert_topic(given: _InputColumn) -> pa.Array:
    given.refuse(given.array.is_null(), "is null; give the row a topic, or the option topic")
    return _convert_text(given)


def _convert_integer(given: _InputColumn, maximum: int) -> pa.Array:
    numbers = given.array
    is_outside = pc.or_(pc.less(numbers, 0), pc.greater(numbers, maximum))
    given.refuse(is_outside, f"is not from 0 to {maximum}")
    return numbers.cast(pa.int32())


def _convert_time(given: _InputColumn) -> pa.Array:
    """Return microseconds since 1970. A null stays null; the batch format stores it as 0."""
    stamps = given.array.cast(pa.int64())
    given.refuse(pc.less(stamps, 0), "is before 1970")
    return stamps


def _convert_properties(given: _InputColumn) -> pa.Array:
    array = given.array
    is_map = pa.types.is_map(array.type)
    lengths = np.diff(array.offsets.to_numpy())
    if array.null_count and bool(np.any(lengths[array.is_null().to_numpy(False)])):
        array = array.take(pa.array(np.arange(len(array))))  # drops entries of null rows
    offsets = array.offsets.to_numpy()
    start, end = int(offsets[0]), int(offsets[-1])
    if is_map:
        names, values = array.keys[start:end], array.items[start:end]
    else:
        names, values = (array.values[start:end].field(at) for at in (0, 1))
    offsets = offsets - offsets[0]
    rows = np.repeat(np.arange(len(array)), np.diff(offsets))
    given.refuse(names.is_null(), "has a property without a name", rows)
    given.refuse(values.is_null(), "has a property whose value is null; omit the property", rows)
    names, values = given.to_texts(names, rows), given.to_texts(values, rows)
    given.refuse(pc.equal(pc.binary_length(names), 0), "has a property with an empty name", rows)
    if not is_map:  # names in Spark's maps are unique
        _check_names_differ(given, names, rows)
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), names, values)


def _check_names_differ(given: _InputColumn, names: pa.Array, rows: Int64s) -> None:
    coded = names.dictionary_encode()
    pairs = rows * (len(coded.dictionary) + 1) + coded.indices.to_numpy()
    _, first = np.unique(pairs, return_index=True)
    if len(first) < len(pairs):
        again = int(np.setdiff1d(np.arange(len(pairs)), first)[0])
        raise given.error(again, f"has the name {names[again].as_py()!r} twice", rows)


def _text_sizes(texts: pa.Array) -> Int64s:
    sizes: Int64s = pc.fill_null(pc.binary_length(texts), 0).to_numpy().astype(np.int64)
    return sizes


def _is_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


_CONVERTERS: Mapping[str, Callable[[_InputColumn], Any]] = {
    "body": _convert_body,
    "key": _convert_text,
    "tag": _convert_text,
    "properties": _convert_properties,
    "topic": _convert_topic,
    "queue": partial(_convert_integer, maximum=_MAX_QUEUE),
    "priority": partial(_convert_integer, maximum=HIGHEST_PRIORITY),
    "born_timestamp": _convert_time,
    "expires_timestamp": _convert_time,
}
