"""A run of batches yields the same messages as its batches one by one."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.client.read.message import Message, MessageBatch, MessageRun, RunColumns, texts_of
from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.batch_run import BatchRun
from tests.support.batches import Columns, columns, stamped


def block(each: Columns, base_offset: int) -> bytes:
    batch = stamped(
        each.encode(),
        physical_offset=0,
        base_offset=base_offset,
        topic_id=7,
        queue_id=3,
        store_timestamp_us=1000 * base_offset + 999,
    )
    return bytes(batch.block)


def run_of(batches: list[Columns], gaps: list[int]) -> tuple[RunColumns, list[MessageBatch]]:
    blocks, base = [], 100
    for each, gap in zip(batches, gaps, strict=True):
        base += gap
        blocks.append(block(each, base))
        base += len(each.bodies)
    run = RunColumns("orders", BatchRun(b"".join(blocks)))
    alone = [run.batch(index) for index in range(len(blocks))]
    return run, [MessageBatch("orders", batch, 0, len(batch)) for batch in alone]


def seen(message: Message) -> tuple[Any, ...]:
    return (
        message.topic,
        message.queue,
        message.offset,
        message.message_id,
        message.body,
        message.key,
        message.tag,
        message.properties,
        message.born_timestamp_ms,
        message.store_timestamp_ms,
    )


@settings(deadline=None)
@given(st.lists(columns(max_messages=3), min_size=1, max_size=6), st.data())
def test_a_run_has_the_messages_of_its_batches(batches: list[Columns], data: st.DataObject) -> None:
    gaps = data.draw(st.lists(st.integers(0, 2), min_size=len(batches), max_size=len(batches)))
    run, alone = run_of(batches, gaps)
    expected = [seen(message) for part in alone for message in part]
    whole = MessageRun("orders", run, 0, run.row_count)
    assert [seen(message) for message in whole] == expected
    offsets = [each[2] for each in expected]
    start, end = sorted(data.draw(st.tuples(*[st.integers(95, 130)] * 2)))
    part = MessageRun("orders", run, run.row_at(start), run.row_count).until(end)
    assert [message.offset for message in part] == [o for o in offsets if start <= o < end]
    assert [m.offset for batch in part.batches() for m in batch] == [m.offset for m in part]
    if len(part):
        assert part.end_offset == [m.offset for m in part][-1] + 1


def test_offsets_outside_of_their_column_are_damage() -> None:
    """A defective writer could write such offsets, with correct checksums."""
    raw = bytearray(block(Columns([b"abc", b"de"]), 0))
    raw[128 + 4 : 128 + 8] = (9).to_bytes(4, "little")
    run = BatchRun.__new__(BatchRun)
    intact = BatchRun(block(Columns([b"abc", b"de"]), 0))
    vars(run).update({**vars(intact), "buffer": bytes(raw)})
    with pytest.raises(CorruptBatch):
        run.text_ranges("body_offsets", "bodies")


@pytest.mark.parametrize("wrap", [bytes, memoryview])
@pytest.mark.parametrize(
    "texts",
    [[], [b""], [b"", b""], [b"ab"], [b"ab", b"cd", b"e\0"], [b"ab", b"c"], [b"a", b"", b"bcd"]],
)
def test_texts_are_split_at_their_starts_and_ends(texts: list[bytes], wrap: Any) -> None:
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64) + 1
    starts = ends - np.array([len(text) for text in texts], np.int64)
    assert texts_of(wrap(b"?" + b"".join(texts) + b"?"), starts, ends) == texts
