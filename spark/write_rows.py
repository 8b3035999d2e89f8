"""Rows as Spark hands them over -> rows as the broker takes them, checked, whole columns at a time.

What comes out is a record batch with the columns of WRITABLE_COLUMNS that there are, by
Holdfast's names, each of one plain type; nulls are left only where a message may lack something.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.commitlog.priority import HIGHEST_PRIORITY
from holdfast.spark.errors import UnwritableRow
from holdfast.spark.write_columns import Column

Int64s = npt.NDArray[np.int64]

#: What a row takes beside its texts: offsets and hashes, about.
ROW_BYTES = 32
PROPERTY_BYTES = 8

_MAX_QUEUE = 2**31 - 1


def check_rows(
    batch: pa.RecordBatch,
    columns: Mapping[str, Column],
    *,
    partition: int,
    first_row: int,
) -> pa.RecordBatch:
    """Return the rows with the columns of `columns`, checked.

    Raises UnwritableRow, which counts rows from `first_row` on.
    """
    arrays = {
        name: _KINDS[name](_Given(batch.column(column.index), column.name, partition, first_row))
        for name, column in columns.items()
    }
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def row_weights(rows: pa.RecordBatch) -> Int64s:
    """Return about how many bytes each of checked rows takes, from the row alone."""
    weights = np.full(len(rows), ROW_BYTES, np.int64)
    for name in ("body", "key", "tag"):
        if name in rows.schema.names:
            weights += _sizes(rows.column(name))
    if "properties" in rows.schema.names:
        listed, names, values = entries(rows.column("properties"))
        each = _sizes(names) + _sizes(values) + PROPERTY_BYTES
        running = np.concatenate(([0], np.cumsum(each)))
        weights += running[listed[1:]] - running[listed[:-1]]
    return weights


def entries(properties: pa.MapArray) -> tuple[npt.NDArray[np.int32], pa.Array, pa.Array]:
    """Return where each row's entries end, from 0 on, and the names and values of all.

    For checked properties, and slices of them.
    """
    offsets = properties.offsets.to_numpy()
    start, end = int(offsets[0]), int(offsets[-1])
    return (
        offsets - offsets[0],
        properties.keys[start:end],
        properties.items[start:end],
    )


class _Given:
    """One column as it came, and where its rows are, for what is said of them."""

    def __init__(self, array: pa.Array, name: str, partition: int, first_row: int) -> None:
        self.array = array
        self._name = name
        self._partition = partition
        self._first_row = first_row

    def refuse(self, is_wrong: pa.Array | npt.NDArray[np.bool_], detail: str) -> None:
        """Raise UnwritableRow for the first row that is wrong, if there is one. Null: it is not."""
        if isinstance(is_wrong, pa.Array):
            is_wrong = pc.fill_null(is_wrong, False).to_numpy(zero_copy_only=False)
        if is_wrong.any():
            raise self.at(int(np.argmax(is_wrong)), detail)

    def at(self, row: int, detail: str) -> UnwritableRow:
        """Return the refusal of one row of these."""
        return UnwritableRow(self._partition, self._first_row + row, self._name, detail)

    def texts(self, array: pa.Array, rows: Sequence[int] | Int64s | None = None) -> pa.Array:
        """Return an array of texts as valid UTF-8; its values are of `rows`, else one a row."""
        octets = array.cast(pa.binary())
        try:
            return octets.cast(pa.string())
        except pa.ArrowInvalid:
            index = next(i for i, value in enumerate(octets) if not _is_utf8(value.as_py()))
            row = index if rows is None else int(rows[index])
            raise self.at(row, "is not UTF-8, as a text has to be") from None


def _body(given: _Given) -> pa.Array:
    given.refuse(given.array.is_null(), "is null; give an empty one, or filter the row out")
    return given.array.cast(pa.binary())


def _text(given: _Given) -> pa.Array:
    texts = given.texts(given.array)
    given.refuse(pc.equal(pc.binary_length(texts), 0), "is empty; make it null for none")
    return texts


def _topic(given: _Given) -> pa.Array:
    given.refuse(given.array.is_null(), "is null; give the row a topic, or the option topic")
    return _text(given)


def _queue(given: _Given) -> pa.Array:
    return _whole(given, _MAX_QUEUE)


def _priority(given: _Given) -> pa.Array:
    return _whole(given, HIGHEST_PRIORITY)


def _whole(given: _Given, maximum: int) -> pa.Array:
    numbers = given.array
    is_outside = pc.or_(pc.less(numbers, 0), pc.greater(numbers, maximum))
    given.refuse(is_outside, f"is not from 0 to {maximum}")
    return numbers.cast(pa.int32())


def _time(given: _Given) -> pa.Array:
    """Microseconds since 1970; null for none, which 0 means in the format."""
    stamps = given.array.cast(pa.int64())
    given.refuse(pc.less(stamps, 0), "is before 1970")
    return stamps


def _properties(given: _Given) -> pa.Array:
    array = given.array
    is_map = pa.types.is_map(array.type)
    if array.null_count and bool(np.any(_lengths(array)[array.is_null().to_numpy(False)])):
        array = array.take(pa.array(np.arange(len(array))))  # leaves nothing behind a null
    offsets = array.offsets.to_numpy()
    start, end = int(offsets[0]), int(offsets[-1])
    if is_map:
        names, values = array.keys[start:end], array.items[start:end]
    else:
        names, values = (array.values[start:end].field(at) for at in (0, 1))
    listed = offsets - offsets[0]
    rows = np.repeat(np.arange(len(array)), np.diff(listed))

    def refuse(is_wrong: pa.Array, detail: str) -> None:
        wrong = pc.fill_null(is_wrong, False).to_numpy(zero_copy_only=False)
        if wrong.any():
            raise given.at(int(rows[np.argmax(wrong)]), detail)

    refuse(names.is_null(), "has a property without a name")
    refuse(values.is_null(), "has a property whose value is null; leave it out")
    names, values = given.texts(names, rows), given.texts(values, rows)
    refuse(pc.equal(pc.binary_length(names), 0), "has a property with an empty name")
    if not is_map:  # Spark's maps have each name once
        _check_names_differ(given, names, rows)
    return pa.MapArray.from_arrays(pa.array(listed, pa.int32()), names, values)


def _check_names_differ(given: _Given, names: pa.Array, rows: Int64s) -> None:
    coded = names.dictionary_encode()
    pairs = rows * (len(coded.dictionary) + 1) + coded.indices.to_numpy()
    _, first = np.unique(pairs, return_index=True)
    if len(first) < len(pairs):
        again = np.setdiff1d(np.arange(len(pairs)), first)[0]
        raise given.at(int(rows[again]), f"has the name {names[int(again)].as_py()!r} twice")


def _lengths(array: pa.Array) -> npt.NDArray[np.int32]:
    lengths: npt.NDArray[np.int32] = np.diff(array.offsets.to_numpy())
    return lengths


def _sizes(texts: pa.Array) -> Int64s:
    sizes: Int64s = pc.fill_null(pc.binary_length(texts), 0).to_numpy().astype(np.int64)
    return sizes


def _is_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


_KINDS: Mapping[str, Callable[[_Given], Any]] = {
    "body": _body,
    "key": _text,
    "tag": _text,
    "properties": _properties,
    "topic": _topic,
    "queue": _queue,
    "priority": _priority,
    "born_timestamp": _time,
    "expires_timestamp": _time,
}
