import struct
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.commitlog.errors import CorruptBatch, UnknownFormatVersion
from holdfast.commitlog.format.checksum import crc32c
from holdfast.commitlog.format.segment_format import (
    BLOCK_DTYPE,
    END_MARK_SIZE,
    KEY_DTYPE,
    SEGMENT_HEADER_SIZE,
    TRAILER_SIZE,
    FooterTrailer,
    SegmentHeader,
    decode_footer,
    encode_end_mark,
    encode_footer,
    footer_size,
    is_end_mark,
    parse_segment_name,
    segment_name,
)
from tests.commitlog.golden.make import (
    PHYSICAL_OFFSET,
    SEGMENT_SIZE,
    SEGMENT_START,
    STORED_US,
    golden,
)

U64 = st.integers(0, 2**64 - 1)
MARK_AT = PHYSICAL_OFFSET + 360


def resealed(raw: bytes, at: int, data: bytes, crc_at: int) -> bytes:
    """Return bytes with a change and a correct checksum, which covers all bytes before it."""
    changed = bytearray(raw)
    changed[at : at + len(data)] = data
    struct.pack_into("<I", changed, crc_at, crc32c(bytes(changed[:crc_at])))
    return bytes(changed)


# -- names -----------------------------------------------------------------------------------


def test_a_segment_is_named_by_its_start() -> None:
    assert segment_name(0) == "0" * 20
    assert segment_name(1024**3) == "00000000001073741824"
    assert parse_segment_name("00000000001073741824") == 1024**3
    assert sorted(map(segment_name, (10**9, 9, 10**15))) == [
        segment_name(n) for n in (9, 10**9, 10**15)
    ]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "0",
        "0" * 19,
        "0" * 21,
        "0" * 20 + ".new",
        "x" * 20,
        "-" + "0" * 19,
        "\u0660" * 20,
        "lock",
    ],
)
def test_other_names_are_not_segments(name: str) -> None:
    assert parse_segment_name(name) is None


# -- header page -----------------------------------------------------------------------------


def test_the_golden_header_is_read_from_its_places() -> None:
    raw = golden("segment_header.bin")
    assert struct.unpack_from("<4sHHQQq", raw) == (
        b"HFSG",
        1,
        0,
        SEGMENT_START,
        SEGMENT_SIZE,
        STORED_US,
    )
    assert struct.unpack_from("<I", raw, 32) == (crc32c(raw[:32]),)
    assert not any(raw[36:])
    assert SegmentHeader.decode(raw) == SegmentHeader(SEGMENT_START, SEGMENT_SIZE, STORED_US)


@given(U64, U64, st.integers(-(2**63), 2**63 - 1))
def test_header_round_trip(start: int, size: int, created: int) -> None:
    header = SegmentHeader(start, size, created)
    page = header.encode()
    assert len(page) == SEGMENT_HEADER_SIZE == 4096
    assert not any(page[36:])
    assert SegmentHeader.decode(page) == header


def test_a_damaged_header_is_refused() -> None:
    raw = golden("segment_header.bin")
    for size in range(36):
        with pytest.raises(CorruptBatch):
            SegmentHeader.decode(raw[:size])
    for bit in range(8 * 36):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBatch) as raised:
            SegmentHeader.decode(damaged)
        assert raised.value.reason == "segment-header"
    with pytest.raises(CorruptBatch):
        SegmentHeader.decode(bytes(4096))


def test_a_newer_header_is_not_damage() -> None:
    with pytest.raises(UnknownFormatVersion) as raised:
        SegmentHeader.decode(resealed(golden("segment_header.bin"), 4, b"\x02\0", 32))
    assert raised.value.found == 2


# -- end mark --------------------------------------------------------------------------------


def test_the_golden_end_mark_is_read_from_its_places() -> None:
    raw = golden("end_mark.bin")
    assert len(raw) == END_MARK_SIZE == 32
    assert struct.unpack_from("<4sIQI", raw) == (b"HFND", 0, MARK_AT, crc32c(raw[:16]))
    assert not any(raw[20:])
    assert is_end_mark(raw, MARK_AT)


def test_only_an_intact_end_mark_at_its_offset_counts() -> None:
    raw = golden("end_mark.bin")
    assert not is_end_mark(raw, MARK_AT + 8)
    assert is_end_mark(raw + b"what follows", MARK_AT)
    for size in range(END_MARK_SIZE):
        assert not is_end_mark(raw[:size], MARK_AT)
    for bit in range(8 * END_MARK_SIZE):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        assert not is_end_mark(damaged, MARK_AT)


@given(U64)
def test_an_end_mark_can_have_any_offset(offset: int) -> None:
    assert is_end_mark(encode_end_mark(offset), offset)
    assert not is_end_mark(bytes(END_MARK_SIZE), offset)


# -- footer ----------------------------------------------------------------------------------


def test_the_golden_footer_is_read_from_its_places() -> None:
    raw = golden("footer.bin")
    assert BLOCK_DTYPE.itemsize == 56
    assert KEY_DTYPE.itemsize == 8
    assert len(raw) == 56 + 2 * 8 + TRAILER_SIZE == footer_size(1, 2)
    assert struct.unpack_from("<IIqQIIqQII", raw) == (
        7,  # topic
        2,  # queue
        1000,  # base offset
        PHYSICAL_OFFSET,
        360,  # size
        3,  # messages
        STORED_US,
        1 << 0x20 | 1 << 0x2A,  # tag summary
        11,  # body bytes
        0x1F,  # flags
    )
    assert struct.unpack_from("<4I", raw, 56) == (0x1A86_F347, 0, 0x9809_6BAE, 0)
    trailer = raw[72:]
    assert len(trailer) == TRAILER_SIZE == 64
    assert (
        struct.unpack_from("<4sHHQQQII", trailer)
        == (
            b"HFFT",
            1,
            0,
            SEGMENT_START,
            1,  # blocks
            2,  # keys
            crc32c(raw[:72]),
            crc32c(trailer[:36]),
        )
    )
    assert not any(trailer[40:])


@given(
    U64,
    st.lists(
        st.tuples(
            *[st.integers(0, 2**32 - 1)] * 2,
            st.integers(0, 2**63 - 1),
            U64,
            *[st.integers(0, 2**32 - 1)] * 2,
            st.integers(0, 2**63 - 1),
            U64,
            *[st.integers(0, 2**32 - 1)] * 2,
        ),
        max_size=4,
    ),
    st.lists(st.tuples(*[st.integers(0, 2**32 - 1)] * 2), max_size=6),
)
def test_footer_round_trip(start: int, blocks: list[object], keys: list[object]) -> None:
    block_table, key_table = np.array(blocks, BLOCK_DTYPE), np.array(keys, KEY_DTYPE)
    raw = encode_footer(start, block_table, key_table)
    assert len(raw) == footer_size(len(blocks), len(keys))
    trailer = FooterTrailer.decode(raw[-TRAILER_SIZE:])
    assert trailer is not None
    assert (trailer.start_offset, trailer.footer_size) == (start, len(raw))
    found_blocks, found_keys = decode_footer(trailer, raw[:-TRAILER_SIZE])
    assert np.array_equal(found_blocks, block_table)
    assert np.array_equal(found_keys, key_table)


def test_a_missing_footer_is_not_damage() -> None:
    assert FooterTrailer.decode(bytes(TRAILER_SIZE)) is None
    with pytest.raises(CorruptBatch):
        FooterTrailer.decode(bytes(TRAILER_SIZE - 1))
    with pytest.raises(CorruptBatch):
        FooterTrailer.decode(bytes(TRAILER_SIZE - 1) + b"\x01")


def test_a_newer_footer_is_not_damage() -> None:
    with pytest.raises(UnknownFormatVersion):
        FooterTrailer.decode(resealed(golden("footer.bin")[72:], 4, b"\x02\0", 36))


def test_every_flipped_bit_of_a_footer_is_refused() -> None:
    raw = golden("footer.bin")
    for bit in range(8 * (72 + 40)):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBatch) as raised:
            _decode(damaged)
        assert raised.value.reason == "footer"


@pytest.mark.parametrize("cut", [lambda tables: tables[:-1], lambda tables: tables + b"\0"])
def test_tables_of_another_size_are_refused(cut: Callable[[bytes], bytes]) -> None:
    raw = golden("footer.bin")
    trailer = FooterTrailer.decode(raw[72:])
    assert trailer is not None
    with pytest.raises(CorruptBatch):
        decode_footer(trailer, cut(raw[:72]))


def _decode(footer: bytes | bytearray) -> None:
    trailer = FooterTrailer.decode(footer[-TRAILER_SIZE:])
    assert trailer is not None
    decode_footer(trailer, footer[:-TRAILER_SIZE])
