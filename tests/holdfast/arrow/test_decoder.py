import struct
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.arrow.columns import HOLDFAST_COLUMNS
from holdfast.arrow.decoder import (
    RowSelection,
    arrow_schema,
    cut_portions,
    decode,
    select_rows,
)
from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.batch import Batch, payload_crc
from holdfast.commitlog.format.batch_run import BatchRun
from holdfast.commitlog.format.block_merge import merge_blocks
from holdfast.commitlog.format.message_id import format_message_id
from holdfast.spark.options.columns import KAFKA_COLUMNS
from holdfast.spark.options.offsets import QueueRange
from tests.spark.stored import ANY_COLUMNS, QUEUE, STORED_US, TOPIC_ID, join_batches, store
from tests.support.storage.batches import Columns, stamped

SOURCE = QueueRange("orders", TOPIC_ID, QUEUE, 0, 0, priority_levels=2)


def rows_of(*runs: tuple[int, int, int]) -> RowSelection:
    """Return decoded rows as (block, start, end)."""
    return RowSelection(*np.array(runs, np.int64).T)


def runs_of(rows: RowSelection) -> list[tuple[int, ...]]:
    """Return rows as (block, start, end)."""
    return [tuple(run) for run in np.array(rows).T.tolist()]


def when(stamp_us: int) -> datetime | None:
    """Return a time as the columns show it: whole milliseconds, None for 0."""
    if stamp_us < 1000:
        return None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=stamp_us // 1000)


def expected_row(batch: Batch, row: int) -> dict[str, Any]:
    offset = batch.header.base_offset + row
    return {
        "topic": "orders",
        "queue": QUEUE,
        "offset": offset,
        "message_id": format_message_id(TOPIC_ID, QUEUE, offset),
        "key": batch.key(row),
        "tag": batch.tag(row),
        "priority": QUEUE % 2,
        "properties": list(batch.properties(row).items()),
        "body": batch.body(row),
        "born_timestamp": when(batch.born_timestamp_us(row)),
        "store_timestamp": when(batch.header.store_timestamp_us),
    }


def expected_kafka_row(batch: Batch, row: int) -> dict[str, Any]:
    key = batch.key(row)
    headers = [{"key": n, "value": v.encode()} for n, v in batch.properties(row).items()]
    return {
        "key": None if key is None else key.encode(),
        "value": batch.body(row),
        "topic": "orders",
        "partition": QUEUE,
        "offset": batch.header.base_offset + row,
        "timestamp": when(batch.header.store_timestamp_us),
        "timestampType": 1,
        "headers": headers or None,
    }


@settings(max_examples=40)  # `make test-inputs` tries more
@given(st.lists(ANY_COLUMNS, min_size=1, max_size=5), st.data())
def test_rows_are_the_messages(batches: list[Columns], data: st.DataObject) -> None:
    stored = store(batches, 1000)
    total = sum(map(len, stored))
    start = data.draw(st.integers(1000, 999 + total))
    end = data.draw(st.integers(start + 1, 1000 + total))
    blocks = BatchRun(join_batches(stored))
    rows = select_rows(blocks, start, end)
    messages = [
        (batch, row)
        for batch in stored
        for row in range(len(batch))
        if start <= batch.header.base_offset + row < end
    ]

    decoded = decode(blocks, rows, SOURCE, HOLDFAST_COLUMNS)
    decoded.validate(full=True)
    assert decoded.to_pylist() == [expected_row(*message) for message in messages]

    kafka = decode(blocks, rows, SOURCE, KAFKA_COLUMNS)
    kafka.validate(full=True)
    assert kafka.to_pylist() == [expected_kafka_row(*message) for message in messages]

    tagged = decode(blocks, rows, SOURCE, {"offset": "bigint"}, tags=frozenset({"200", "é"}))
    assert tagged["offset"].to_pylist() == [
        batch.header.base_offset + row for batch, row in messages if batch.tag(row) in {"200", "é"}
    ]


@settings(max_examples=40)  # `make test-inputs` tries more
@given(st.data())
def test_a_long_run_of_small_batches_is_cut_into_portions_that_lose_nothing(
    data: st.DataObject,
) -> None:
    # Only some batches have keys, tags, properties or own times; the bodies have any size.
    stored = store(data.draw(st.lists(ANY_COLUMNS, min_size=1, max_size=4)) * 9, 50)
    total = sum(map(len, stored))
    start = data.draw(st.integers(50, 49 + total))
    end = data.draw(st.integers(start + 1, 50 + total))
    blocks = BatchRun(join_batches(stored))
    bounds = {
        "max_rows": data.draw(st.integers(1, 40)),
        "target_bytes": data.draw(st.integers(1, 5000)),
    }
    decoded = [
        decode(blocks, rows, SOURCE, HOLDFAST_COLUMNS)
        for rows in cut_portions(blocks, select_rows(blocks, start, end), **bounds)
    ]
    assert max(map(len, decoded)) <= bounds["max_rows"]
    assert pa.Table.from_batches(decoded).to_pylist() == [
        expected_row(batch, row)
        for batch in stored
        for row in range(len(batch))
        if start <= batch.header.base_offset + row < end
    ]


def test_a_whole_block_is_not_copied() -> None:
    data = join_batches(store([Columns([b"abc" * 1000])]))
    blocks = BatchRun(data)
    decoded = decode(blocks, rows_of((0, 0, 1)), SOURCE, {"body": "binary"})
    address = decoded["body"].buffers()[2].address
    assert 0 < address - pa.py_buffer(data).address < len(data)


def test_an_absent_priority_and_absent_columns_are_null() -> None:
    source = QueueRange("orders", TOPIC_ID, QUEUE, 0, 0)
    blocks = BatchRun(join_batches(store([Columns([b"a", b"b"])])))
    (row, _) = decode(blocks, rows_of((0, 0, 2)), source, HOLDFAST_COLUMNS).to_pylist()
    assert (row["priority"], row["key"], row["tag"], row["properties"]) == (None, None, None, [])
    assert row["born_timestamp"] is None
    assert row["store_timestamp"] == when(STORED_US)


def test_arrow_types_are_those_that_spark_demands() -> None:
    types = pytest.importorskip("pyspark.sql.pandas.types")
    from pyspark.sql import types as t

    properties = t.MapType(t.StringType(), t.StringType())
    headers = t.ArrayType(
        t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())])
    )
    of_ddl = {
        "string": t.StringType(),
        "binary": t.BinaryType(),
        "int": t.IntegerType(),
        "bigint": t.LongType(),
        "timestamp": t.TimestampType(),
        "map<string,string>": properties,
        "array<struct<key:string,value:binary>>": headers,
    }
    for columns in (HOLDFAST_COLUMNS, KAFKA_COLUMNS):
        schema = t.StructType([t.StructField(name, of_ddl[ddl]) for name, ddl in columns.items()])
        demanded = types.to_arrow_schema(schema, timezone="UTC")
        assert demanded.equals(arrow_schema(columns), check_metadata=True)


def test_rows_outside_the_range_are_cut() -> None:
    blocks = BatchRun(join_batches(store([Columns([b"x"] * 10)] * 3, 100)))
    assert runs_of(select_rows(blocks, 105, 112)) == [(0, 5, 10), (1, 0, 2)]
    assert runs_of(select_rows(blocks, 130, 140)) == []


def test_portions_close_at_the_rows_or_bytes_allowed() -> None:
    blocks = BatchRun(join_batches(store([Columns([b"x" * 100] * 10)] * 3)))
    whole = select_rows(blocks, 0, 30)

    def portions(rows: RowSelection = whole, **bounds: int) -> list[list[tuple[int, ...]]]:
        return [runs_of(each) for each in cut_portions(blocks, rows, **bounds)]

    assert portions(max_rows=12) == [[(0, 0, 10), (1, 0, 2)], [(1, 2, 10), (2, 0, 4)], [(2, 4, 10)]]
    assert portions(target_bytes=1500) == [[(0, 0, 10), (1, 0, 10)], [(2, 0, 10)]]
    assert portions(select_rows(blocks, 4, 27), max_rows=8) == [
        [(0, 4, 10), (1, 0, 2)],
        [(1, 2, 10)],
        [(2, 0, 7)],
    ]
    assert portions(select_rows(blocks, 4, 27), max_rows=8, target_bytes=1) == [
        [(0, 4, 10)],
        [(1, 0, 8)],
        [(1, 8, 10)],
        [(2, 0, 7)],
    ]
    assert portions() == [runs_of(whole)]
    assert portions(select_rows(blocks, 30, 40)) == []


@pytest.mark.parametrize(
    ("section", "offsets"),
    [
        ("body_offsets", (0, 3, 2, 4)),
        ("body_offsets", (0, 1, 2, 5)),
        ("body_offsets", (-1, 1, 2, 4)),
        ("body_offsets", (0, 2**31 - 1, 2, 4)),
        ("property_list", (0, 0, 0, 2)),
        ("property_list", (0, 0, 1, 0)),
        ("name_offsets", (0, 2)),
        ("value_offsets", (-8, 1)),
    ],
)
def test_offsets_that_lie_are_refused(section: str, offsets: tuple[int, ...]) -> None:
    # No broker stores this, since it checks the columns; but Arrow would trust them unchecked.
    (batch,) = store([Columns([b"a", b"b", b"cd"], properties=[None, None, {"n": "v"}])])
    raw = bytearray(batch.block)
    place = getattr(batch.layout, section)
    assert place.end - place.start == 4 * len(offsets)
    struct.pack_into(f"<{len(offsets)}i", raw, place.start, *offsets)
    header = replace(batch.header, payload_crc=payload_crc(bytes(raw)))
    blocks = BatchRun(bytes(header.encode()) + bytes(raw[128:]))
    with pytest.raises(CorruptBatch, match="column-offsets"):
        decode(blocks, rows_of((0, 0, 3)), SOURCE, HOLDFAST_COLUMNS)


def test_store_timestamps_of_a_merged_block_are_those_of_its_messages() -> None:
    blocks = [
        stamped(
            Columns([b"x"] * (1 + row % 2)).encode(),
            physical_offset=0,
            base_offset=row + row // 2,
            topic_id=TOPIC_ID,
            queue_id=QUEUE,
            store_timestamp_us=1_000_000 * (row + 1),
        )
        for row in range(5)
    ]
    plain = BatchRun(join_batches(blocks))
    merged = merge_blocks(BatchRun(join_batches(blocks[:3])))
    assert merged is not None
    mixed = BatchRun(merged + join_batches(blocks[3:]), rebuilt=True)
    assert len(mixed) == 3
    for start, end in ((0, 7), (1, 4), (2, 6)):
        expected, found = (
            decode(run, select_rows(run, start, end), SOURCE, HOLDFAST_COLUMNS)
            for run in (plain, mixed)
        )
        assert found.equals(expected)
        assert len(set(found["store_timestamp"].to_pylist())) > 1
