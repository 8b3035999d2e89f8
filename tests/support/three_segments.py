"""A data directory with two sealed segments and an active one, for tests of checks and repairs."""

from pathlib import Path

from holdfast.commitlog.format.segment_format import segment_name
from tests.support.stored import (
    MIB,
    batch,
    fill_segment,
    open_storage,
    settled,
    small_config,
    until,
)

FIRST, SECOND, LAST = (segment_name(number * MIB) for number in range(3))

Messages = dict[tuple[int, int], bytes]
"""(queue, offset) -> body."""


async def fill(data_dir: Path) -> None:
    """Create the directory: topic t with two queues, and a stored offset of group g."""
    async with open_storage(small_config(data_dir)) as storage:
        store = storage.store
        topic, _ = await store.topics.create("t", queues=2)
        for number in range(20):
            await store.publishing.publish(
                topic, [batch([f"body {number}", "x"], number % 2, key=f"k{number}")]
            )
        for queue in (0, 1):
            await fill_segment(storage, topic, queue)
            await store.publishing.publish(
                topic, [batch(f"in segment {queue + 2}", queue, key="late")]
            )
        await store.offsets.store_offsets("g", topic, {0: 3})
        await settled(storage)
        await store.publishing.publish(topic, [batch("the very last", 0)])
        await settled(storage)
        await until(lambda: all(segment.sealed for segment in storage.log.segments[:-1]))


async def read_all(data_dir: Path) -> tuple[Messages, dict[int, list[tuple[int, int]]], list[str]]:
    """Return all messages, the ranges that pulls skipped in each queue, and the degraded parts."""
    async with open_storage(small_config(data_dir)) as storage:
        topic = storage.store.table.get("t")
        assert storage.store.offsets.stored_offsets("g", topic).offsets == {0: 3}
        messages: Messages = {}
        skipped: dict[int, list[tuple[int, int]]] = {}
        for queue in (0, 1):
            at = 0
            while at < storage.store.reading.queue_state(topic, queue).max_offset:
                fetched = await storage.store.reading.read(
                    topic, queue, at, max_messages=1000, max_bytes=MIB
                )
                for piece in fetched.slices:
                    base = piece.batch.header.base_offset
                    for row in piece.rows:
                        messages[queue, base + row] = piece.batch.body(row)
                for each in fetched.skipped:
                    skipped.setdefault(queue, []).append((each.start_offset, each.end_offset))
                assert fetched.next_offset > at
                at = fetched.next_offset
        return messages, skipped, [str(fault) for fault in storage.degraded]
