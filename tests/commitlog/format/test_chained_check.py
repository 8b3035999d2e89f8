"""One calculation over many blocks has the result of verifying each block."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.batch import iter_batches
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.batch_header import HEADER_SIZE
from holdfast.commitlog.format.chained_check import have_valid_checksums

_CRCS = slice(12, 20)


def blocks_of(sizes: list[int]) -> bytes:
    return b"".join(encode_batch([bytes(range(size % 256)) * (size // 255 + 1)]) for size in sizes)


def starts_of(blocks: bytes) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    sizes = [batch.header.total_size for batch in iter_batches(blocks)]
    return np.cumsum([0, *sizes])[:-1]


def check(blocks: bytes, starts: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> bool:
    """Check blocks with the checksums that are in their headers."""
    crcs = [np.frombuffer(blocks[at:][_CRCS], "<u4") for at in starts.tolist()]
    header_crcs, payload_crcs = np.array(crcs).T
    return have_valid_checksums(blocks, starts, header_crcs, payload_crcs)


def is_each_intact(blocks: bytes) -> bool:
    try:
        return len(list(iter_batches(blocks))) > 0
    except CorruptBatch:
        return False


@pytest.mark.parametrize("sizes", [[0], [5], [100] * 50, [0, 1, 7, 8, 9, 250, 3000]])
def test_intact_blocks_match(sizes: list[int]) -> None:
    blocks = blocks_of(sizes)
    assert check(blocks, starts_of(blocks))
    assert check(memoryview(blocks), starts_of(blocks))  # type: ignore[arg-type]


def test_each_flipped_bit_is_found() -> None:
    blocks = blocks_of([3, 40, 0])
    starts = starts_of(blocks)
    for bit in range(8 * len(blocks)):
        damaged = bytearray(blocks)
        damaged[bit // 8] ^= 1 << bit % 8
        assert not check(bytes(damaged), starts), bit


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damage_is_found_like_block_by_block(data: st.DataObject) -> None:
    blocks = blocks_of(data.draw(st.lists(st.integers(0, 300), min_size=1, max_size=12)))
    starts = starts_of(blocks)
    damaged = bytearray(blocks)
    for _ in range(data.draw(st.integers(0, 4))):
        # The magic and the size before the checksums are verified by the caller.
        block = int(data.draw(st.sampled_from(starts.tolist())))
        size = int.from_bytes(blocks[block + 8 : block + 12], "little")
        at = data.draw(st.integers(12, size - 1))
        piece = data.draw(st.binary(min_size=1, max_size=min(64, size - at)))
        damaged[block + at : block + at + len(piece)] = piece
    assert check(bytes(damaged), starts) == is_each_intact(bytes(damaged))


def test_payloads_that_changed_places_are_found() -> None:
    one, other = (encode_batch([text * 30]) for text in (b"a", b"b"))
    swapped = one[:HEADER_SIZE] + other[HEADER_SIZE:] + other[:HEADER_SIZE] + one[HEADER_SIZE:]
    assert not check(swapped, starts_of(one + other))
