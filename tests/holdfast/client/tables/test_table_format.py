from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'holdfast[arrow]')")

from holdfast.client.tables.rows import BlockRows, FetchedRows, SourceQueue  # noqa: E402
from holdfast.client.tables.table_format import ALONE_BYTES, TableFormat  # noqa: E402
from holdfast.commitlog.format.batch_run import BatchRun  # noqa: E402
from tests.spark.stored import QUEUE, TOPIC_ID, join_batches, store  # noqa: E402
from tests.support.batches import Columns  # noqa: E402

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
