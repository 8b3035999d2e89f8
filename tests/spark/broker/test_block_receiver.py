"""A reply of whole blocks received in pieces equals the same bytes received at once."""

import io
import random
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.commitlog.errors import CorruptBatch, UnknownFormatVersion
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.batch_header import Buffer
from holdfast.commitlog.format.batch_run import BatchRun
from holdfast.commitlog.format.split_bodies import SplitBodies
from holdfast.spark.arrow.decoder import decode, select_rows
from holdfast.spark.broker import block_receiver
from holdfast.spark.broker.block_receiver import BlockGatherer
from holdfast.spark.options.offsets import QueueRange
from tests.spark.stored import Sent, sent
from tests.support.batches import stamped

PART = QueueRange("orders", 7, 0, 0, 1 << 40)
COLUMNS = {
    "offset": "bigint",
    "key": "string",
    "tag": "string",
    "properties": "map<string,string>",
    "body": "binary",
    "store_timestamp": "timestamp",
    "born_timestamp": "timestamp",
}


def blocks_of(batches: list[Sent]) -> list[bytes]:
    """Return the batches as consecutive stored blocks of a queue."""
    blocks: list[bytes] = []
    offset = 0
    for each in batches:
        block = stamped(
            encode_batch(**vars(each)),
            physical_offset=8192 + sum(map(len, blocks)),
            topic_id=7,
            base_offset=offset,
        )
        blocks.append(bytes(block.block))
        offset = block.header.end_offset
    return blocks


def stretch(batches: list[Sent]) -> bytes:
    """Return the blocks as in a reply."""
    return b"".join(blocks_of(batches))


Received = Buffer | SplitBodies


def gather_headers(gatherer: BlockGatherer, data: bytes) -> Buffer | None:
    """Receive a reply; return it unless it was gathered."""
    stream = io.BytesIO(data)

    def fill(buffer: memoryview) -> None:
        assert stream.readinto(buffer) == len(buffer)

    found = gatherer.receive(fill, len(data))
    assert stream.read() == b""
    return found


def received(data: bytes) -> Received:
    """Receive a single reply and return its blocks."""
    gatherer = BlockGatherer(1, 1)
    found = gather_headers(gatherer, data)
    assert gatherer.is_empty == (found is not None)
    return gatherer.blocks() if found is None else found


def rows(blocks: Received) -> list[dict[str, object]]:
    run = BatchRun(blocks)
    return list(decode(run, select_rows(run, 0, 1 << 40), PART, COLUMNS).to_pylist())


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(sent(), min_size=1, max_size=9))
def test_bodies_apart_are_the_same_rows(batches: list[Sent]) -> None:
    data = stretch(batches)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_receiver, "LARGE_BLOCK_BYTES", 0)
        apart = received(data)
    assert isinstance(apart, SplitBodies)
    assert rows(apart) == rows(data)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(sent(), min_size=1, max_size=9), st.sets(st.integers(1, 8)))
def test_replies_gathered_are_the_same_rows_as_one(batches: list[Sent], cuts: set[int]) -> None:
    blocks = blocks_of(batches)
    borders = sorted(
        {0, len(blocks), *(select_rows for select_rows in cuts if select_rows < len(blocks))}
    )
    gatherer = BlockGatherer(1 << 20, 1 << 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_receiver, "LARGE_BLOCK_BYTES", 0)
        for start, end in pairwise(borders):
            assert gather_headers(gatherer, b"".join(blocks[start:end])) is None
            assert gatherer.end_offset == Batch.decode(blocks[end - 1]).header.end_offset
    assert rows(gatherer.blocks()) == rows(b"".join(blocks))


@pytest.mark.parametrize("by", [-1, 0, 1])
def test_it_is_full_when_another_reply_like_the_largest_would_be_too_much(
    by: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_receiver, "LARGE_BLOCK_BYTES", 0)
    first, second = blocks_of([Sent([b"x"] * 3), Sent([b"y" * 999] * 2)])
    for max_bytes, max_messages in (
        (len(first) + 2 * len(second) + by, 1000),
        (1 << 20, 3 + 2 + 3 + by),
    ):
        gatherer = BlockGatherer(max_bytes, max_messages)
        assert not gatherer.is_full
        assert gather_headers(gatherer, first) is None
        assert gather_headers(gatherer, second) is None
        assert gatherer.is_full == (by < 0)


@pytest.mark.parametrize("by", [-1, 0, 1])
def test_a_reply_that_there_is_no_room_for_comes_as_it_is(
    by: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_receiver, "LARGE_BLOCK_BYTES", 0)
    first, second = blocks_of([Sent([b"x"]), Sent([b"y"] * 99)])
    gatherer = BlockGatherer(len(first) + len(second) - by, 1000)
    assert gather_headers(gatherer, first) is None
    found = gather_headers(gatherer, second)
    assert (found is None) == (by <= 0)
    apart = rows(gatherer.blocks()) + (rows(found) if found is not None else [])
    assert apart == rows(first + second)


def test_a_reply_that_was_cut_off_is_not_gathered_and_may_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(block_receiver, "LARGE_BLOCK_BYTES", 0)
    first, second = blocks_of([Sent([b"one"]), Sent([b"two", b"three"], ["k", None])])
    gatherer = BlockGatherer(1 << 20, 1000)
    assert gather_headers(gatherer, first) is None
    for size in range(len(second)):
        stream = io.BytesIO(second[:size])

        def fill(buffer: memoryview, stream: io.BytesIO = stream) -> None:
            if stream.readinto(buffer) < len(buffer):
                raise ConnectionResetError

        with pytest.raises(ConnectionResetError):
            gatherer.receive(fill, len(second))
    assert gather_headers(gatherer, second) is None
    assert rows(gatherer.blocks()) == rows(first + second)


@pytest.mark.parametrize("by", [-1, 0, 1])
def test_the_first_block_says_whether_blocks_are_large(
    by: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = stretch([Sent([b"x" * 999])])
    monkeypatch.setattr(block_receiver, "LARGE_BLOCK_BYTES", len(first) - by)
    found = received(stretch([Sent([b"x" * 999]), Sent([b"y"])]))
    assert isinstance(found, SplitBodies) == (by >= 0)


def test_what_is_damaged_comes_as_it_is_or_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_receiver, "LARGE_BLOCK_BYTES", 0)
    data = stretch(
        [Sent([b"one", b"two"], ["k", None]), Sent([b""]), Sent([b"x" * 40], None, ["t"])]
    )
    rng = random.Random(3)
    for size in range(len(data)):
        changed = bytearray(data)
        changed[size] ^= 1 << rng.randrange(8)
        for each in (data[:size], bytes(changed), data + data[:size]):
            found = received(each)
            if not isinstance(found, SplitBodies):
                assert bytes(found) == each
        with pytest.raises((CorruptBatch, UnknownFormatVersion)):
            BatchRun(received(bytes(changed)))


def test_an_error_on_the_way_is_passed_on() -> None:
    def fill(_: memoryview) -> None:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        BlockGatherer(1, 1).receive(fill, 1 << 20)
