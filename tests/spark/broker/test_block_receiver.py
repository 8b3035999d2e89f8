"""A reply of whole blocks received in pieces equals the same bytes received at once."""

import io
import random
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.arrow.decoder import decode, select_rows
from holdfast.commitlog.errors import CorruptBatch, UnknownFormatVersion
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_header import Buffer
from holdfast.commitlog.format.batch_run import BatchRun
from holdfast.commitlog.format.split_bodies import SplitBodies
from holdfast.spark.broker import block_receiver
from holdfast.spark.broker.block_receiver import BlockGatherer
from holdfast.spark.options.offsets import QueueRange
from tests.spark.stored import ANY_COLUMNS
from tests.support.storage.batches import Columns, stamped


@pytest.fixture(autouse=True, scope="module")
def _all_blocks_are_large() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_receiver, "LARGE_BLOCK_BYTES", 0)
        yield


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


def blocks_of(batches: list[Columns]) -> list[bytes]:
    """Return the batches as consecutive stored blocks of a queue."""
    blocks: list[bytes] = []
    offset = 0
    for each in batches:
        block = stamped(
            each.encode(),
            physical_offset=8192 + sum(map(len, blocks)),
            topic_id=7,
            base_offset=offset,
        )
        blocks.append(bytes(block.block))
        offset = block.header.end_offset
    return blocks


def reply_of(batches: list[Columns]) -> bytes:
    """Return the blocks as in a reply."""
    return b"".join(blocks_of(batches))


Received = Buffer | SplitBodies


def gather(gatherer: BlockGatherer, data: bytes) -> Buffer | None:
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
    found = gather(gatherer, data)
    assert gatherer.is_empty == (found is not None)
    return gatherer.blocks() if found is None else found


def rows(blocks: Received) -> list[dict[str, object]]:
    run = BatchRun(blocks)
    return list(decode(run, select_rows(run, 0, 1 << 40), PART, COLUMNS).to_pylist())


#: `make test-inputs` tries more.
_FEWER = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])


@settings(_FEWER)
@given(st.lists(ANY_COLUMNS, min_size=1, max_size=9))
def test_split_bodies_are_the_same_rows(batches: list[Columns]) -> None:
    data = reply_of(batches)
    split = received(data)
    assert isinstance(split, SplitBodies)
    assert rows(split) == rows(data)


@settings(_FEWER)
@given(st.lists(ANY_COLUMNS, min_size=1, max_size=9), st.sets(st.integers(1, 8)))
def test_gathered_replies_are_the_same_rows_as_one(batches: list[Columns], cuts: set[int]) -> None:
    blocks = blocks_of(batches)
    borders = sorted({0, len(blocks), *(cut for cut in cuts if cut < len(blocks))})
    gatherer = BlockGatherer(1 << 20, 1 << 20)
    for start, end in pairwise(borders):
        assert gather(gatherer, b"".join(blocks[start:end])) is None
        assert gatherer.end_offset == Batch.decode(blocks[end - 1]).header.end_offset
    assert rows(gatherer.blocks()) == rows(b"".join(blocks))


@pytest.mark.parametrize("by", [-1, 0, 1])
def test_it_is_full_when_another_reply_like_the_largest_exceeds_a_limit(by: int) -> None:
    first, second = blocks_of([Columns([b"x"] * 3), Columns([b"y" * 999] * 2)])
    for max_bytes, max_messages in (
        (len(first) + 2 * len(second) + by, 1000),
        (1 << 20, 3 + 2 + 3 + by),
    ):
        gatherer = BlockGatherer(max_bytes, max_messages)
        assert not gatherer.is_full
        assert gather(gatherer, first) is None
        assert gather(gatherer, second) is None
        assert gatherer.is_full == (by < 0)


@pytest.mark.parametrize("by", [-1, 0, 1])
def test_a_reply_without_room_is_returned_unchanged(by: int) -> None:
    first, second = blocks_of([Columns([b"x"]), Columns([b"y"] * 99)])
    gatherer = BlockGatherer(len(first) + len(second) - by, 1000)
    assert gather(gatherer, first) is None
    found = gather(gatherer, second)
    assert (found is None) == (by <= 0)
    apart = rows(gatherer.blocks()) + (rows(found) if found is not None else [])
    assert apart == rows(first + second)


def test_a_truncated_reply_is_not_gathered_and_may_come_again() -> None:
    first, second = blocks_of([Columns([b"one"]), Columns([b"two", b"three"], ["k", None])])
    gatherer = BlockGatherer(1 << 20, 1000)
    assert gather(gatherer, first) is None
    for size in range(len(second)):
        stream = io.BytesIO(second[:size])

        def fill(buffer: memoryview, stream: io.BytesIO = stream) -> None:
            if stream.readinto(buffer) < len(buffer):
                raise ConnectionResetError

        with pytest.raises(ConnectionResetError):
            gatherer.receive(fill, len(second))
    assert gather(gatherer, second) is None
    assert rows(gatherer.blocks()) == rows(first + second)


@pytest.mark.parametrize("by", [-1, 0, 1])
def test_the_first_block_decides_whether_blocks_are_large(
    by: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = reply_of([Columns([b"x" * 999])])
    monkeypatch.setattr(block_receiver, "LARGE_BLOCK_BYTES", len(first) - by)
    found = received(reply_of([Columns([b"x" * 999]), Columns([b"y"])]))
    assert isinstance(found, SplitBodies) == (by >= 0)


def test_damaged_replies_are_unchanged_or_refused() -> None:
    data = reply_of(
        [Columns([b"one", b"two"], ["k", None]), Columns([b""]), Columns([b"x" * 40], None, ["t"])]
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
