from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from holdfast.spark.errors import UnwritableRow
from holdfast.spark.write.columns import choose_columns
from holdfast.spark.write.rows import check_rows

MAP = pa.map_(pa.string(), pa.string())
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIME = pa.timestamp("us", tz="UTC")
KINDS: dict[str, tuple[str, pa.DataType]] = {
    "body": ("binary", pa.binary()),
    "value": ("string", pa.string()),
    "key": ("binary", pa.binary()),
    "tag": ("string", pa.string()),
    "topic": ("string", pa.string()),
    "properties": ("map<string,string>", MAP),
    "headers": ("array<struct<key:string,value:binary>>", HEADERS),
    "queue": ("bigint", pa.int64()),
    "partition": ("int", pa.int32()),
    "priority": ("int", pa.int32()),
    "born_timestamp": ("timestamp", TIME),
}


def checked(given: dict[str, list[Any]], *, first_row: int = 0) -> pa.RecordBatch:
    columns = choose_columns([(name, KINDS[name][0]) for name in given], topic_given=True)
    arrays = [pa.array(values, KINDS[name][1]) for name, values in given.items()]
    batch = pa.RecordBatch.from_arrays(arrays, names=list(given))
    return check_rows(batch, columns, partition=3, first_row=first_row)


def test_kafkas_names_become_holdfasts() -> None:
    rows = checked(
        {
            "value": ["é", ""],
            "key": [b"k", None],
            "partition": [1, None],
            "headers": [[{"key": "a", "value": b"1"}], None],
        }
    )
    assert rows.schema.names == ["body", "key", "queue", "properties"]
    assert rows.to_pylist() == [
        {"body": "é".encode(), "key": "k", "queue": 1, "properties": [("a", "1")]},
        {"body": b"", "key": None, "queue": None, "properties": []},
    ]


def test_times_are_microseconds() -> None:
    rows = checked({"body": [b"", b""], "born_timestamp": [datetime(1970, 1, 2, tzinfo=UTC), None]})
    assert rows.column("born_timestamp").to_pylist() == [86_400_000_000, None]


@pytest.mark.parametrize(
    ("column", "values", "row", "says"),
    [
        ("body", [b"", None], 1, "is null"),
        ("key", [None, b"", b""], 1, "is empty; use null"),
        ("key", [b"ok", b"\xff"], 1, "is not valid UTF-8"),
        ("tag", ["a", ""], 1, "is empty"),
        ("topic", ["orders", None], 1, "is null"),
        ("queue", [None, 0, -1], 2, "is not from 0 to"),
        ("queue", [2**31 - 1, 2**31], 1, "is not from 0 to"),
        ("priority", [9, 10], 1, "is not from 0 to 9"),
        ("properties", [[("a", "1")], None, [("b", "2"), ("c", None)]], 2, "value is null"),
        ("properties", [[("a", "1")], [("", "1")]], 1, "empty name"),
        ("headers", [[], [{"key": None, "value": b""}]], 1, "without a name"),
        ("headers", [[], None, [{"key": "a", "value": b"\xff"}]], 2, "is not valid UTF-8"),
        (
            "headers",
            [[{"key": "a", "value": b"1"}], [{"key": "a", "value": b"1"}] * 2],
            1,
            "the name 'a' twice",
        ),
        ("born_timestamp", [datetime(1969, 12, 31, tzinfo=UTC)], 0, "before 1970"),
    ],
)
def test_a_row_that_is_no_message_is_named(
    column: str, values: list[Any], row: int, says: str
) -> None:
    given = {column: values}
    if column != "body":
        given["body"] = [b""] * len(values)
    with pytest.raises(UnwritableRow, match=says) as refused:
        checked(given, first_row=100)
    assert (refused.value.partition, refused.value.row) == (3, 100 + row)
    assert refused.value.column == column


def test_slices_are_checked_by_their_own_rows() -> None:
    columns = choose_columns(
        [("body", "binary"), ("properties", KINDS["properties"][0])], topic_given=True
    )
    arrays = [
        pa.array([b"a", None, b"c"]),
        pa.array([[("", "1")], [("x", "1")], [("y", "2")]], MAP),
    ]
    batch = pa.RecordBatch.from_arrays(arrays, names=["body", "properties"]).slice(2)
    rows = check_rows(batch, columns, partition=0, first_row=0)
    assert rows.to_pylist() == [{"body": b"c", "properties": [("y", "2")]}]
