"""A batch made from Arrow columns equals, byte for byte, the batch of the commit log's encoder."""

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_check import MessageLimits, check_batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.spark.write.arrow_encoder import encode_rows
from holdfast.spark.write.columns import choose_columns
from holdfast.spark.write.partitioner import key_hashes
from holdfast.spark.write.rows import check_rows

KINDS = {
    "body": ("binary", pa.binary()),
    "key": ("string", pa.string()),
    "tag": ("binary", pa.binary()),
    "properties": ("map<string,string>", pa.map_(pa.string(), pa.string())),
    "born_timestamp": ("timestamp", pa.timestamp("us", tz="UTC")),
    "expires_timestamp": ("timestamp", pa.timestamp("us", tz="UTC")),
}
_letters = "aé\u043a\U0001d11e"  # one to four bytes each in UTF-8
_text = st.text(_letters, min_size=1, max_size=5)
_times = st.none() | st.integers(1, 2**52)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "body": st.binary(max_size=20),
    "key": st.none() | _text,
    "tag": st.none() | st.sampled_from([b"200", b"404", "é".encode()]),
    "properties": st.none() | st.dictionaries(_text, st.text(_letters, max_size=5), max_size=3),
    "born_timestamp": _times,
    "expires_timestamp": _times,
}


@st.composite
def rows(draw: st.DrawFn) -> dict[str, list[Any]]:
    """Return the columns of some rows: bodies, and any of the other columns."""
    names = ["body", *draw(st.sets(st.sampled_from([n for n in KINDS if n != "body"])))]
    n = draw(st.integers(1, 8))
    return {name: draw(st.lists(_VALUES[name], min_size=n, max_size=n)) for name in names}


def as_arrow(columns: dict[str, list[Any]]) -> pa.RecordBatch:
    arrays = [
        pa.array([v and list(v.items()) for v in values], KINDS[name][1])
        if name == "properties"
        else pa.array(values, KINDS[name][1])
        for name, values in columns.items()
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    schema = [(name, KINDS[name][0]) for name in batch.schema.names]
    columns = choose_columns(schema, topic_given=True)
    return check_rows(batch, columns, partition=0, first_row=0)


def or_none(columns: dict[str, list[Any]], name: str) -> list[Any] | None:
    return columns.get(name)


@settings(deadline=None)
@given(rows(), st.integers(0, 3), st.integers(0, 3))
def test_bytes_are_those_of_the_commit_logs_encoder(
    columns: dict[str, list[Any]], before: int, behind: int
) -> None:
    n = len(columns["body"])
    start, end = min(before, n - 1), max(n - behind, min(before, n - 1) + 1)
    batch = checked(as_arrow(columns)).slice(start, end - start)
    columns = {name: values[start:end] for name, values in columns.items()}
    hashes = key_hashes(batch.column("key")) if "key" in columns else None
    header, payload = encode_rows(batch, hashes, topic_id=7, queue=3, born_timestamp_us=123)

    tags = or_none(columns, "tag")
    born, expires = or_none(columns, "born_timestamp"), or_none(columns, "expires_timestamp")
    expected = encode_batch(
        columns["body"],
        keys=or_none(columns, "key"),
        tags=None if tags is None else [tag and tag.decode() for tag in tags],
        properties=or_none(columns, "properties"),
        born_timestamp_us=123,
        born_timestamps_us=None if born is None else [stamp or 0 for stamp in born],
        expires_timestamps_us=None if expires is None else [stamp or 0 for stamp in expires],
        queue_id=3,
    )
    found = Batch.decode(bytes(header.encode()) + payload)
    check_batch(found, MessageLimits())
    assert payload == expected[128:]
    assert found.header == header
    wanted = Batch.decode(expected).header
    wanted.topic_id = 7
    assert header == wanted


def test_data_of_null_values_is_not_written() -> None:
    entries = pa.StructArray.from_arrays(
        [pa.array(["a", "b"]), pa.array(["1", "2"])], names=["key", "value"]
    )
    properties = pa.Array.from_buffers(
        pa.map_(pa.string(), pa.string()),
        2,
        [pa.py_buffer(b"\x02"), pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0")],
        children=[entries],
    )
    batch = checked(
        pa.RecordBatch.from_arrays([pa.array([b"", b""]), properties], names=["body", "properties"])
    )
    header, payload = encode_rows(batch, None, topic_id=1, queue=0, born_timestamp_us=0)
    found = Batch.decode(bytes(header.encode()) + payload)
    assert [found.properties(row) for row in range(2)] == [{}, {"b": "2"}]
