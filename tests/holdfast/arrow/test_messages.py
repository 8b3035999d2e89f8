"""Rows from single messages equal rows from blocks."""

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.arrow.columns import HOLDFAST_COLUMNS
from holdfast.arrow.decoder import decode, select_rows
from holdfast.arrow.messages import decode_messages
from holdfast.commitlog.format.batch_run import BatchRun
from holdfast.commitlog.format.message_id import format_message_id
from holdfast.spark.options.columns import KAFKA_COLUMNS
from holdfast.spark.options.offsets import QueueRange
from tests.spark.stored import ANY_COLUMNS, QUEUE, TOPIC_ID, join_batches, store
from tests.support.storage.batches import Columns


@settings(deadline=None)  # others may share the machine
@given(st.lists(ANY_COLUMNS, min_size=1, max_size=3), st.sampled_from([None, 2]))
def test_rows_are_those_of_the_blocks(batches: list[Columns], levels: int | None) -> None:
    source = QueueRange("orders", TOPIC_ID, QUEUE, 0, 0, priority_levels=levels)
    stored = store(batches)
    messages = [
        {
            "topic": "orders",
            "queue": QUEUE,
            "offset": batch.header.base_offset + row,
            "message_id": format_message_id(TOPIC_ID, QUEUE, batch.header.base_offset + row),
            "key": batch.key(row),
            "tag": batch.tag(row),
            "properties": batch.properties(row),
            "body": batch.body(row),
            "born_timestamp_ms": batch.born_timestamp_us(row) // 1000,
            "store_timestamp_ms": batch.header.store_timestamp_us // 1000,
        }
        for batch in stored
        for row in range(len(batch))
    ]
    blocks = BatchRun(join_batches(stored))
    rows = select_rows(blocks, 0, 2**62)
    for columns in (HOLDFAST_COLUMNS, KAFKA_COLUMNS):
        expected = decode(blocks, rows, source, columns)
        found = decode_messages(messages, source, columns)
        assert found.schema.equals(expected.schema)
        assert found.to_pylist() == expected.to_pylist()
