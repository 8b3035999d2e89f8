"""Bodies in the form that a table has them: binary, text, or values parsed from JSON. Pure.

Arrow converts whole columns. Text shares the bytes of the bodies, without a copy.
"""

from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json

#: "binary", "text" (UTF-8), or the schema of JSON objects.
BodyForm: TypeAlias = Literal["binary", "text"] | pa.Schema

_BINARY = pa.binary()


class BadBody(Exception):
    """The body in this row is not of the wanted form."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(row, reason)
        self.row = row
        self.reason = reason


def body_type(form: BodyForm) -> pa.DataType:
    """Return the type of the column. Raises ValueError for an unknown form."""
    if isinstance(form, pa.Schema):
        return pa.struct(list(form))
    if form not in ("binary", "text"):
        raise ValueError(f'body= is "binary", "text" or a pyarrow.Schema, not {form!r}')
    return _BINARY if form == "binary" else pa.string()


def convert_bodies(bodies: pa.BinaryArray, form: BodyForm) -> pa.Array:
    """Return the column of the wanted form. Raises BadBody for the first body that does not have
    it, and pyarrow's errors for a type that JSON cannot become."""
    if isinstance(form, pa.Schema):
        return _parse(bodies, form)
    return bodies if form == "binary" else _as_text(bodies)


def _as_text(bodies: pa.BinaryArray) -> pa.StringArray:
    try:
        return bodies.cast(pa.string())
    except pa.ArrowInvalid:
        for row, body in enumerate(bodies):
            try:
                body.as_py().decode()
            except UnicodeDecodeError as error:
                raise BadBody(row, f"is not UTF-8 ({error})") from error
        raise


def _parse(bodies: pa.BinaryArray, schema: pa.Schema) -> pa.StructArray:
    """Parse all bodies at once; if that fails, search the first bad body by halves."""
    if not len(bodies):
        return pa.array([], body_type(schema))
    try:
        return _parse_rows(bodies, schema)
    except pa.ArrowInvalid as error:
        first, end = 0, len(bodies)
        while end - first > 1:
            middle = (first + end) // 2
            if _is_good(bodies[first:middle], schema):
                first = middle
            else:
                end = middle
        raise BadBody(first, f"is not JSON of the schema ({error})") from error


def _is_good(bodies: pa.BinaryArray, schema: pa.Schema) -> bool:
    try:
        _parse_rows(bodies, schema)
    except pa.ArrowInvalid:
        return False
    return True


def _parse_rows(bodies: pa.BinaryArray, schema: pa.Schema) -> pa.StructArray:
    """Return one value for each body. Raises ArrowInvalid.

    Each body becomes the member of an object that also has its row. So a body that is empty, or
    that has two values or half a value, cannot shift the values of other bodies.
    """
    rows = pa.array(np.arange(len(bodies)))
    lines = pc.binary_join_element_wise(
        pa.scalar(b'{"row":', _BINARY),
        rows.cast(pa.string()).cast(_BINARY),
        pa.scalar(b',"body":', _BINARY),
        bodies,
        pa.scalar(b"}\n", _BINARY),
        pa.scalar(b"", _BINARY),
    )
    content = lines.buffers()[2]
    parsed = json.read_json(
        pa.BufferReader(content),
        json.ReadOptions(block_size=max(content.size, 1), use_threads=False),
        json.ParseOptions(
            explicit_schema=pa.schema([("row", pa.int64()), ("body", body_type(schema))]),
            unexpected_field_behavior="ignore",
            newlines_in_values=True,
        ),
    ).combine_chunks()
    if not parsed["row"].combine_chunks().equals(rows):
        raise pa.ArrowInvalid("a body has several values")
    return parsed["body"].combine_chunks()
