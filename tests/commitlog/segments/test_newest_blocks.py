"""Copies of the newest blocks equal the blocks in the log, and take no more memory than allowed."""

import errno
import tracemalloc
from collections.abc import Iterator
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import Rows, encode_batch
from holdfast.commitlog.format.batch_header import HEADER_SIZE
from holdfast.commitlog.segments.newest_blocks import (
    MAX_BLOCK_BYTES,
    OBJECTS_BYTES,
    NewestBlocks,
)
from tests.commitlog.publishing import Publishing, batch
from tests.support.storage.batches import Columns, columns, stamped
from tests.support.storage.small_log import SmallLog

MIB = 1024 * 1024


@pytest.fixture
def publishing() -> Iterator[Publishing]:
    publishing = Publishing()
    yield publishing
    publishing.stop()


def block(physical_offset: int, body_bytes: int = 0) -> Batch:
    return stamped(encode_batch([b"." * body_bytes]), physical_offset=physical_offset)


def add(newest: NewestBlocks, *blocks: Batch) -> None:
    buffers = [part for each in blocks for part in (each.block[:HEADER_SIZE], payload_of(each))]
    newest.add([each.header for each in blocks], buffers)


def payload_of(batch: Batch) -> memoryview:
    return batch.block[HEADER_SIZE:]


def is_kept(newest: NewestBlocks, batch: Batch) -> bool:
    return newest.find(batch.header.physical_offset, batch.total_size) is not None


def memory_of(batch: Batch) -> int:
    return batch.total_size + OBJECTS_BYTES


def expect_same(found: Batch | None, read: Batch) -> None:
    assert found is not None
    assert found.block == read.block
    assert found.block.readonly
    assert (found.header, found.layout) == (read.header, read.layout)
    assert found.header.requests == ()


# -- the blocks are those of the log -----------------------------------------------------------


@given(st.lists(columns(), min_size=1, max_size=6))
def test_a_kept_block_equals_the_block_that_is_read(batches: list[Columns]) -> None:
    newest, blocks, at = NewestBlocks(MIB), [], 4096
    for number, each in enumerate(batches):
        made = stamped(each.encode(), physical_offset=at, base_offset=number, queue_id=number % 2)
        at += made.total_size
        blocks.append(made)
    add(newest, *blocks)
    for made in blocks:
        expect_same(newest.find(made.header.physical_offset, made.total_size), made)


def test_an_appended_block_equals_the_block_that_is_read(small: SmallLog) -> None:
    sent = [small.append(encode_batch([b"x" * size])) for size in (0, 5, 3000, 60_000)]
    for each in sent:
        where = each.header.physical_offset, each.total_size
        expect_same(small.log.newest.find(*where), small.log.read_batch(*where))


def test_what_the_appender_writes_is_kept_as_it_is_stored(publishing: Publishing) -> None:
    publishing.submit(batch(300, tags=["a"]))
    for producer_id in (0, 7, 8):  # they share a block
        rows = Rows(queue_id=0, bodies=[b"row"], born_timestamp_us=1, producer_id=producer_id)
        publishing.submit(rows)
    publishing.submit(batch(100, queue=1), batch(200, queue=2))
    publishing.appender.start()
    publishing.appender.stop()
    headers = publishing.dispatched()
    assert [header.message_count for header in headers] == [1, 1, 1, 3]
    assert len(headers[3].requests) == 2
    for header in headers:
        where = header.physical_offset, header.total_size
        expect_same(publishing.log.newest.find(*where), publishing.log.read_batch(*where))


def test_a_block_whose_write_failed_is_not_kept(publishing: Publishing) -> None:
    publishing.disk.fail("write", errno.EIO, after=1)
    end = publishing.log.written_offset
    publishing.submit()
    publishing.appender.start()
    publishing.events.wait_for("failed")
    assert publishing.dispatched() == []
    assert publishing.log.newest.find(max(end, 4096), batch().total_size) is None


def test_another_size_or_place_is_not_found() -> None:
    newest, one = NewestBlocks(MIB), block(4096)
    add(newest, one)
    assert is_kept(newest, one)
    assert newest.find(4096, one.total_size + 8) is None
    assert newest.find(4104, one.total_size) is None


def test_a_request_is_not_kept_for_a_block_of_it() -> None:
    newest, made = NewestBlocks(MIB), block(4096, 500)
    request = bytearray(made.block)
    newest.add([made.header], [made.block[:HEADER_SIZE], memoryview(request)[HEADER_SIZE:]])
    request.clear()  # fails if a view of it exists
    expect_same(newest.find(4096, made.total_size), made)


# -- the limits --------------------------------------------------------------------------------


def test_the_oldest_block_is_dropped() -> None:
    blocks = [block(4096 + number * 1000) for number in range(3)]
    newest = NewestBlocks(2 * memory_of(blocks[0]))
    for each in blocks:
        newest.find(4096, blocks[0].total_size)
        add(newest, each)
    assert [is_kept(newest, each) for each in blocks] == [False, True, True]


@pytest.mark.parametrize("max_bytes", [0, 1, memory_of(block(0)) - 1])
def test_a_block_above_the_limit_is_not_kept(max_bytes: int) -> None:
    newest = NewestBlocks(max_bytes)
    add(newest, block(4096))
    assert not is_kept(newest, block(4096))


def test_a_large_block_is_not_kept() -> None:
    newest = NewestBlocks(MIB)
    most = MAX_BLOCK_BYTES - block(0).total_size
    small, large = block(4096, most), block(4096 + MIB, most + 64)
    add(newest, small, large)
    assert (is_kept(newest, small), is_kept(newest, large)) == (True, False)


@given(st.lists(st.lists(st.integers(0, 900), min_size=1, max_size=4), max_size=12))
def test_the_limit_is_never_exceeded_and_the_newest_stay(rounds: list[list[int]]) -> None:
    max_bytes = 5 * memory_of(block(0))
    newest, written, at = NewestBlocks(max_bytes), [], 4096
    for sizes in rounds:
        made = []
        for size in sizes:
            made.append(block(at, size))
            at += made[-1].total_size
        add(newest, *made)
        written += made
        kept = sum(is_kept(newest, each) for each in written)
        sums = accumulate(memory_of(each) for each in reversed(written))
        assert kept == sum(total <= max_bytes for total in sums)
        assert all(is_kept(newest, each) for each in written[len(written) - kept :])


def test_the_objects_of_a_block_are_counted() -> None:
    blocks = [block(4096 + number * 1000) for number in range(500)]
    newest = NewestBlocks(500 * memory_of(blocks[0]))
    parts = [(each.header, bytes(each.block)) for each in blocks]
    tracemalloc.start()
    for header, raw in parts:
        stored = header.stamp(
            physical_offset=header.physical_offset, durable_offset=1 << 40, base_offset=1 << 40,
            topic_id=1 << 20, queue_id=1 << 20, store_timestamp_us=1 << 50, tag_summary=1 << 50,
        )  # fmt: skip
        newest.add([stored], [memoryview(raw)[:HEADER_SIZE], memoryview(raw)[HEADER_SIZE:]])
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert is_kept(newest, blocks[0])
    assert taken <= 500 * memory_of(blocks[0])
    assert taken >= 500 * blocks[0].total_size
