from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'holdfast[arrow]')")

from holdfast.client.errors import UndecodableBody  # noqa: E402
from holdfast.client.tables.rows import BlockRows, FetchedRows, SourceQueue  # noqa: E402
from holdfast.client.tables.table_format import (  # noqa: E402
    ALONE_BYTES,
    APART_BYTES,
    TableFormat,
)
from holdfast.commitlog.errors import CorruptBatch  # noqa: E402
from holdfast.commitlog.format.batch_run import BatchRun  # noqa: E402
from tests.spark.stored import QUEUE, TOPIC_ID, join_batches, store  # noqa: E402
from tests.support.storage.batches import Columns  # noqa: E402

SOURCE = SourceQueue("orders", TOPIC_ID, QUEUE, None)


def batches_of(data: bytes, start: int = 0, end: int = 2**62, **given: Any) -> list[Any]:
    table_format = TableFormat(given.get("columns"), given.get("body", "binary"))
    rows = BlockRows(BatchRun(data), start, end)
    return list(table_format.batches(FetchedRows(SOURCE, [rows])))


@pytest.mark.parametrize("form", ["binary", "text"])
def test_the_columns_of_a_large_block_are_not_copied(form: str) -> None:
    count = 1024
    block = Columns(
        [b"b" * (ALONE_BYTES // count)] * count,
        keys=[f"key-{row}" for row in range(count)],
        tags=["tag"] * count,
        properties=[{"name": f"value-{row}"} for row in range(count)],
    )
    data = join_batches(store([block] * 3))
    start = pa.py_buffer(data).address
    found = batches_of(data, 7, 3 * count, body=form)
    assert [len(batch) for batch in found] == [count - 7, count, count]
    for batch in found:
        properties = batch["properties"]
        shared = [batch[name].buffers()[2] for name in ("body", "key", "tag")]
        shared += [properties.keys.buffers()[2], properties.items.buffers()[2]]
        for buffer in shared:
            assert start < buffer.address < start + len(data) - buffer.size


def test_small_blocks_are_joined() -> None:
    data = join_batches(store([Columns([b"a"] * 10)] * 50))
    (batch,) = batches_of(data, 3, 498)
    assert batch["offset"].to_pylist() == list(range(3, 498))


def test_a_table_may_have_no_bodies_and_columns_in_any_order() -> None:
    data = join_batches(store([Columns([b"\xff"], keys=["k"])]))
    (batch,) = batches_of(data, columns=("key", "offset"), body="text")
    assert batch.to_pylist() == [{"key": "k", "offset": 0}]
    (batch,) = batches_of(data, columns=("body", "queue"))
    assert batch.to_pylist() == [{"body": b"\xff", "queue": QUEUE}]


def tables_of(data: bytes, start: int = 0, end: int = 2**62, **given: Any) -> list[Any]:
    table_format = TableFormat(given.get("columns"), given.get("body", "binary"))
    rows = BlockRows(BatchRun(data), start, end)
    return list(table_format.tables(FetchedRows(SOURCE, [rows])))


def bodies_of(rows: range, size: int) -> list[bytes]:
    return [b"%d" % row * (size // len(str(row))) for row in rows]


@pytest.mark.parametrize("form", ["binary", "text"])
def test_the_bodies_of_a_table_lie_on_the_received_blocks(form: str) -> None:
    size = APART_BYTES // 40
    blocks = [
        Columns(bodies_of(range(50 * each, 50 * each + 50), size), keys=["k"] * 50)
        for each in range(4)
    ]
    data = join_batches(store(blocks))
    (table,) = tables_of(data, 7, 193, body=form)
    assert table.to_pylist() == [
        row for batch in batches_of(data, 7, 193, body=form) for row in batch.to_pylist()
    ]
    assert table["offset"].num_chunks == 1
    assert [len(chunk) for chunk in table["body"].chunks] == [43, 50, 50, 43]
    start = pa.py_buffer(data).address
    for chunk in table["body"].chunks:
        for buffer in chunk.buffers()[1:]:
            assert start < buffer.address <= start + len(data) - buffer.size


@pytest.mark.parametrize("columns", [("body",), ("queue", "offset"), ("body", "offset")])
def test_a_table_has_the_rows_of_its_record_batches(columns: tuple[str, ...]) -> None:
    for size in (10, APART_BYTES):
        data = join_batches(store([Columns([b"b" * size] * 3)] * 3))
        found = tables_of(data, 1, 8, columns=columns)
        expected = batches_of(data, 1, 8, columns=columns)
        assert [row for each in found for row in each.to_pylist()] == [
            row for each in expected for row in each.to_pylist()
        ]


def test_a_table_names_the_offset_of_a_body_that_is_not_text() -> None:
    good, bad = [b"a" * APART_BYTES] * 3, [b"a" * APART_BYTES, b"\xff", b"\xff"]
    data = join_batches(store([Columns(good), Columns(bad)]))
    with pytest.raises(UndecodableBody) as error:
        tables_of(data, 1, body="text")
    assert error.value.offset == 4


def test_a_table_refuses_bodies_whose_offsets_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(join_batches(store([Columns([b"a" * APART_BYTES] * 3)])))
    data[132:136] = (4 * APART_BYTES).to_bytes(4, "little")  # where the first body ends
    monkeypatch.setattr(BatchRun, "_check", lambda *_, **__: None)  # a wrong writer's valid CRC
    with pytest.raises(CorruptBatch, match="column-offsets"):
        tables_of(bytes(data))
