import struct
from collections.abc import Sequence

import pytest
from hypothesis import given

from holdfast.commitlog.format.batch import Batch, payload_crc
from holdfast.commitlog.format.batch_header import HEADER_SIZE, BatchFlag, BatchHeader
from holdfast.commitlog.format.batch_layout import layout_of
from holdfast.commitlog.format.checksum import crc32c
from tests.commitlog.golden.make import BORN_US, golden
from tests.support.batches import Columns, columns

# Every section of batch_full.bin, written by hand: (name, kind, first byte, values).
SECTIONS: list[tuple[str, str, int, Sequence[int] | bytes]] = [
    ("body_offsets", "<4i", 128, (0, 3, 3, 11)),
    ("bodies", "11s", 144, b"one\x00\xff three"),
    ("key_hashes", "<3I", 160, (0x1A86_F347, 0, 0x9809_6BAE)),
    ("key_offsets", "<4i", 176, (0, 2, 2, 10)),
    ("keys", "10s", 192, b"k1" + "ключ".encode()),
    ("tag_codes", "<3I", 208, (0x0260_2FE0, 0xBD6B_686A, 0)),
    ("tag_offsets", "<4i", 224, (0, 3, 7, 7)),
    ("tags", "7s", 240, b"redblue"),
    ("property_list", "<4i", 248, (0, 2, 2, 3)),
    ("name_offsets", "<4i", 264, (0, 1, 3, 4)),
    ("names", "4s", 280, b"abca"),
    ("value_offsets", "<4i", 288, (0, 1, 1, 3)),
    ("values", "3s", 304, b"1\xc3\xa9"),
    ("born", "<3q", 312, (BORN_US, BORN_US + 1, BORN_US + 2)),
    ("expires", "<3q", 336, (0, BORN_US + 60_000_000, 0)),
]


@pytest.mark.parametrize(
    ("name", "kind", "at", "values"), SECTIONS, ids=[section[0] for section in SECTIONS]
)
def test_every_golden_section_is_where_it_is_drawn(
    name: str, kind: str, at: int, values: Sequence[int] | bytes
) -> None:
    raw = golden("batch_full.bin")
    found = struct.unpack_from(kind, raw, at)
    assert found == ((values,) if isinstance(values, bytes) else values)
    section = getattr(layout_of(BatchHeader.decode(raw)), name)
    assert (section.start, section.end) == (at, at + struct.calcsize(kind))


def test_the_golden_gaps_are_zero_and_the_end_is_the_end() -> None:
    raw = golden("batch_full.bin")
    ends = [at + struct.calcsize(kind) for _, kind, at, _ in SECTIONS]
    starts = [at for _, _, at, _ in SECTIONS[1:]] + [len(raw)]
    for end, start in zip(ends, starts, strict=True):
        assert not any(raw[end:start])
        assert start - end < 8
        assert start % 8 == 0
    assert BatchHeader.decode(raw).payload_crc == crc32c(raw[128:]) == payload_crc(raw)


@given(columns())
def test_sections_are_aligned_in_order_and_free_when_absent(sent: Columns) -> None:
    raw = sent.encode()
    batch = Batch.decode(raw)
    at = HEADER_SIZE
    for name in [section[0] for section in SECTIONS]:
        section = getattr(batch.layout, name)
        if section is not None:
            assert section.start % 8 == 0
            assert section.start == (at + 7) // 8 * 8
            at = section.end
    assert batch.header.total_size == len(raw) == (at + 7) // 8 * 8
    for column, flag, there in [
        (batch.key_offsets, BatchFlag.KEYS, any(sent.keys or [])),
        (batch.tag_offsets, BatchFlag.TAGS, any(sent.tags or [])),
        (batch.property_list, BatchFlag.PROPERTIES, any(sent.properties or [])),
        (batch.born_timestamps_us, BatchFlag.BORN, sent.born_timestamps_us is not None),
        (batch.expires_timestamps_us, BatchFlag.EXPIRES, any(sent.expires_timestamps_us or [])),
    ]:
        assert (column is not None) == bool(batch.header.flags & flag) == there
