"""A reply of whole blocks received in pieces, beside the same bytes received at once."""

import io
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.commitlog.batch_encoding import encode_batch
from holdfast.commitlog.batch_run import BatchRun
from holdfast.commitlog.bodies_apart import BodiesApart
from holdfast.commitlog.errors import CorruptBatch, UnknownFormatVersion
from holdfast.spark import receiving
from holdfast.spark.decode import cut, decode
from holdfast.spark.offsets import QueueRange
from holdfast.spark.receiving import Received, receive_blocks
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


def stretch(batches: list[Sent]) -> bytes:
    """Return batches as they follow one another in a queue."""
    data, offset = b"", 0
    for each in batches:
        block = stamped(
            encode_batch(**vars(each)),
            physical_offset=8192 + len(data),
            topic_id=7,
            base_offset=offset,
        )
        data += bytes(block.block)
        offset = block.header.end_offset
    return data


def received(data: bytes) -> Received:
    stream = io.BytesIO(data)

    def fill(buffer: memoryview) -> None:
        assert stream.readinto(buffer) == len(buffer)

    found = receive_blocks(fill, len(data))
    assert stream.read() == b""
    return found


def rows(blocks: Received) -> list[dict[str, object]]:
    run = BatchRun(blocks)
    return list(decode(run, cut(run, 0, 1 << 40), PART, COLUMNS).to_pylist())


@settings(deadline=None)
@given(st.lists(sent(), min_size=1, max_size=9))
def test_bodies_apart_are_the_same_rows(batches: list[Sent]) -> None:
    data = stretch(batches)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(receiving, "LARGE_BLOCK_BYTES", 0)
        apart = received(data)
    assert isinstance(apart, BodiesApart)
    assert rows(apart) == rows(data)


@pytest.mark.parametrize("by", [-1, 0, 1])
def test_the_first_block_says_whether_blocks_are_large(
    by: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = stretch([Sent([b"x" * 999])])
    monkeypatch.setattr(receiving, "LARGE_BLOCK_BYTES", len(first) - by)
    found = received(stretch([Sent([b"x" * 999]), Sent([b"y"])]))
    assert isinstance(found, BodiesApart) == (by >= 0)


def test_what_is_damaged_comes_as_it_is_or_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "LARGE_BLOCK_BYTES", 0)
    data = stretch(
        [Sent([b"one", b"two"], ["k", None]), Sent([b""]), Sent([b"x" * 40], None, ["t"])]
    )
    rng = random.Random(3)
    for size in range(len(data)):
        changed = bytearray(data)
        changed[size] ^= 1 << rng.randrange(8)
        for each in (data[:size], bytes(changed), data + data[:size]):
            found = received(each)
            if not isinstance(found, BodiesApart):
                assert bytes(found) == each
        with pytest.raises((CorruptBatch, UnknownFormatVersion)):
            BatchRun(received(bytes(changed)))


def test_an_error_on_the_way_is_passed_on() -> None:
    def fill(_: memoryview) -> None:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        receive_blocks(fill, 1 << 20)
