"""A merged block has exactly the messages of its blocks; damaged blocks are never merged, and a
merged block is never taken for a stored one."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.commitlog.errors import CorruptBatch, LogError, UnknownFormatVersion
from holdfast.commitlog.format.batch import Batch, iter_batches
from holdfast.commitlog.format.batch_check import MessageLimits, check_batch
from holdfast.commitlog.format.batch_encoding import Requests, encode_columns
from holdfast.commitlog.format.batch_header import (
    HEADER_SIZE,
    PRODUCERS,
    REBUILT,
    REQUEST_SEQUENCE,
    BatchHeader,
)
from holdfast.commitlog.format.batch_run import BatchRun
from holdfast.commitlog.format.block_merge import MAX_AVERAGE_BYTES, merge_blocks
from holdfast.commitlog.format.checksum import crc32c
from holdfast.commitlog.format.header_table import find_intact_run
from tests.support.storage.batches import Columns, columns, stamped

LIMITS = MessageLimits()
Message = tuple[object, ...]


def messages(batch: Batch) -> list[Message]:
    """Return every field of every message."""
    header = batch.header
    producers = batch.requests
    counts_requests = bool(header.flags & (REQUEST_SEQUENCE | PRODUCERS))
    if header.flags & REBUILT:
        counts_requests = bool(header.flags & REQUEST_SEQUENCE)
    found: list[Message] = []
    for row in range(len(batch)):
        producer = (
            (header.producer_id, header.sequence, header.producer_epoch)
            if producers is None
            else tuple(int(column[row]) for column in producers)
        )
        found.append(
            (
                (header.topic_id, header.queue_id, header.base_offset + row),
                batch.body(row),
                batch.key(row),
                0 if batch.key_hashes is None else int(batch.key_hashes[row]),
                batch.tag(row),
                0 if batch.tag_codes is None else int(batch.tag_codes[row]),
                list(batch.properties(row).items()),
                batch.born_timestamp_us(row),
                batch.expires_timestamp_us(row),
                batch.store_timestamp_us(row),
                producer,
                counts_requests if producer[0] else None,
                batch.envelope(row),
            )
        )
    return found


@st.composite
def stored_blocks(draw: st.DrawFn, counts_requests: bool | None = None) -> list[Batch]:
    """Draw consecutive blocks of a queue; with `counts_requests` None, each producer's sequence may
    count requests or batches."""
    blocks = []
    base = draw(st.integers(0, 2**40))
    at = draw(st.integers(0, 2**40)) * 8
    stored_us = draw(st.integers(0, 2**50))
    small = columns(3, 12) | st.builds(Columns, bodies=st.just([b"same size"]))
    for each in draw(st.lists(small, min_size=2, max_size=8)):
        block = _stored(draw, each, at, base, stored_us, counts_requests)
        blocks.append(block)
        base += len(block)
        at += block.total_size + draw(st.sampled_from([0, 0, 4096]))
        stored_us += draw(st.integers(0, 3))
    return blocks


def _stored(
    draw: st.DrawFn, each: Columns, at: int, base: int, stored_us: int, counts: bool | None
) -> Batch:
    producer = draw(
        st.sampled_from(["none", "one", "each"] if counts is not False else ["none", "one"])
    )
    n = len(each.bodies)
    fields = {
        name: getattr(each, name) for name in Columns.__dataclass_fields__ if name != "bodies"
    }
    ids = st.integers(1, 2**63 - 1)
    if producer == "one":
        fields |= {
            "producer_id": draw(ids),
            "producer_epoch": draw(st.integers(0, 2**32 - 1)),
            "sequence": draw(st.integers(0, 2**62)),
            "request_sequence": draw(st.booleans()) if counts is None else counts,
        }
    elif producer == "each":

        def several(values: st.SearchStrategy[int]) -> Sequence[int]:
            return draw(st.lists(values, min_size=n, max_size=n))

        fields["requests"] = Requests(
            several(ids | st.just(0)), several(st.integers(0, 2**62)), several(st.integers(0, 9))
        )
    header, payload = encode_columns(each.bodies, **fields)
    return stamped(
        header.encode() + payload,
        physical_offset=at,
        base_offset=base,
        topic_id=7,
        queue_id=3,
        store_timestamp_us=stored_us,
    )


def join(blocks: Sequence[Batch]) -> bytes:
    return b"".join(block.block for block in blocks)


def singles(count: int, body: bytes = b"body") -> list[Batch]:
    return [
        stamped(
            Columns([body], born_timestamp_us=row).encode(),
            physical_offset=row * 512,
            base_offset=row,
            store_timestamp_us=100 + row,
        )
        for row in range(count)
    ]


def only(block: bytes | None) -> Batch:
    assert block is not None
    (batch,) = iter_batches(block, rebuilt=True)
    return batch


@settings(deadline=None)  # the machine may be busy
@given(st.booleans().flatmap(stored_blocks))
def test_a_merged_block_has_the_messages_of_its_blocks(blocks: list[Batch]) -> None:
    merged = only(merge_blocks(BatchRun(join(blocks))))
    assert messages(merged) == [message for block in blocks for message in messages(block)]
    check_batch(merged, LIMITS)
    assert merged.header.flags & REBUILT
    assert merged.header.physical_offset == blocks[0].header.physical_offset
    summaries = 0
    for block in blocks:
        summaries |= block.header.tag_summary
    assert merged.header.tag_summary == summaries


@settings(deadline=None)
@given(stored_blocks())
def test_sequences_of_both_kinds_are_kept_apart_or_not_merged(blocks: list[Batch]) -> None:
    block = merge_blocks(BatchRun(join(blocks)))
    kinds = {
        bool(each.header.flags & (REQUEST_SEQUENCE | PRODUCERS))
        for each in blocks
        if each.header.producer_id or each.header.flags & PRODUCERS
    }
    assert (block is None) == (len(kinds) == 2)
    assume(block is not None)
    assert messages(only(block)) == [message for each in blocks for message in messages(each)]


@settings(deadline=None)
@given(st.booleans().flatmap(stored_blocks), st.data())
def test_a_flipped_bit_in_a_block_is_refused(blocks: list[Batch], data: st.DataObject) -> None:
    raw = bytearray(join(blocks))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(LogError):
        BatchRun(bytes(raw))


def test_every_flipped_bit_of_a_merged_block_is_refused() -> None:
    block = merge_blocks(BatchRun(join(singles(3))))
    assert block is not None
    for position in range(len(block)):
        raw = bytearray(block)
        raw[position] ^= 1 << position % 8
        for read in (lambda data: list(iter_batches(data, rebuilt=True)), _run):
            with pytest.raises(LogError):
                read(bytes(raw))


def _run(data: bytes) -> BatchRun:
    return BatchRun(data, rebuilt=True)


def test_a_merged_block_is_refused_as_a_stored_one() -> None:
    """Readers of the log, publishes and clients that did not ask refuse it."""
    block = merge_blocks(BatchRun(join(singles(30))))
    assert block is not None
    for read in (Batch.decode, BatchHeader.decode, BatchRun):
        with pytest.raises(UnknownFormatVersion):
            read(block)
    assert len(find_intact_run(block, 0, 0, 10).headers) == 0


def test_a_run_of_merged_blocks_has_each_messages_store_timestamp() -> None:
    blocks = singles(6)
    parts = [merge_blocks(BatchRun(join(blocks[:3]))), join(blocks[3:4])]
    parts.append(merge_blocks(BatchRun(join(blocks[4:]))))
    run = BatchRun(b"".join(part for part in parts if part), rebuilt=True)
    assert run.store_timestamps_us.tolist() == [100 + row for row in range(6)]


def test_a_header_without_the_flag_has_no_store_timestamps() -> None:
    (block,) = singles(1)
    assert block.store_timestamps_us is None
    assert block.store_timestamp_us(0) == 100


@pytest.mark.parametrize(
    "fields", [{"queue_id": 1}, {"topic_id": 9}, {"base_offset": 5}, {"base_offset": 0}]
)
def test_blocks_that_do_not_follow_each_other_are_not_merged(fields: dict[str, int]) -> None:
    first, second = singles(2)
    header = replace(second.header, **fields)  # type: ignore[arg-type]
    other = header.encode() + bytes(second.block[HEADER_SIZE:])
    assert merge_blocks(BatchRun(bytes(first.block) + other)) is None


def test_large_blocks_and_a_lone_block_are_not_merged() -> None:
    assert merge_blocks(BatchRun(join(singles(1)))) is None
    assert merge_blocks(BatchRun(join(singles(4, b"x" * MAX_AVERAGE_BYTES)))) is None
    assert merge_blocks(BatchRun(join(singles(4, b"x" * (MAX_AVERAGE_BYTES // 2))))) is not None


def test_blocks_with_offsets_that_do_not_cover_their_column_are_not_merged() -> None:
    blocks = singles(2)
    raw = bytearray(blocks[1].block)
    raw[HEADER_SIZE + 4] -= 1  # the body's end
    header = replace(blocks[1].header, payload_crc=0)
    header.payload_crc = crc32c(bytes(raw[HEADER_SIZE:]))
    raw[:HEADER_SIZE] = header.encode()
    assert merge_blocks(BatchRun(bytes(blocks[0].block) + bytes(raw))) is None


def test_a_damaged_block_raises_before_it_is_merged() -> None:
    raw = bytearray(join(singles(30)))
    raw[-1] ^= 1
    with pytest.raises(CorruptBatch):
        merge_blocks(BatchRun(bytes(raw)))
