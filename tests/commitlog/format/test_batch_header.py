import dataclasses
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.commitlog.errors import CorruptBatch, UnknownFormatVersion
from holdfast.commitlog.format.batch import Batch, payload_crc
from holdfast.commitlog.format.batch_header import (
    ANY_QUEUE,
    FORMAT_VERSION,
    HEADER_SIZE,
    KNOWN_FLAGS,
    MAGIC,
    SECTION_NAMES,
    BatchFlag,
    BatchHeader,
    layout_of,
)
from holdfast.commitlog.format.checksum import crc32c
from tests.commitlog.golden.make import BORN_US, golden
from tests.support.storage.batches import Columns, columns

# The position of every field, copied by hand from FORMAT.md.
PLACES: dict[str, tuple[str, int]] = {
    "flags": ("<H", 6),
    "total_size": ("<I", 8),
    "payload_crc": ("<I", 16),
    "message_count": ("<I", 20),
    "physical_offset": ("<Q", 24),
    "durable_offset": ("<Q", 32),
    "base_offset": ("<q", 40),
    "topic_id": ("<I", 48),
    "queue_id": ("<I", 52),
    "store_timestamp_us": ("<q", 56),
    "born_timestamp_us": ("<q", 64),
    "producer_id": ("<Q", 72),
    "sequence": ("<q", 80),
    "producer_epoch": ("<I", 88),
    "body_bytes": ("<I", 92),
    "tag_summary": ("<Q", 96),
    "key_bytes": ("<I", 104),
    "tag_bytes": ("<I", 108),
    "property_count": ("<I", 112),
    "property_name_bytes": ("<I", 116),
    "property_value_bytes": ("<I", 120),
    "envelope_bytes": ("<I", 124),
}
EXAMPLES = ["batch_lone.bin", "batch_full.bin", "batch_stored.bin", "batch_envelopes.bin"]


def resealed(raw: bytes | bytearray, at: int, field: str, value: int | bytes) -> bytes:
    """Return a header with other bytes at one position and a correct checksum."""
    changed = bytearray(raw[:HEADER_SIZE])
    struct.pack_into(field, changed, at, value)
    struct.pack_into("<I", changed, 12, 0)
    struct.pack_into("<I", changed, 12, crc32c(bytes(changed)))
    return bytes(changed)


def headers() -> st.SearchStrategy[BatchHeader]:
    """Return a strategy for all consistent headers."""
    u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
    i64 = st.integers(-(2**63), 2**63 - 1)
    kinds = {"<I": u32, "<Q": u64, "<q": i64}
    fields = {name: kinds[kind] for name, (kind, _) in PLACES.items() if kind in kinds}
    fields["flags"] = st.integers(0, KNOWN_FLAGS).map(lambda flags: flags & KNOWN_FLAGS)
    fields["total_size"] = st.integers(HEADER_SIZE // 8, 2**29 - 1).map(lambda n: 8 * n)
    fields["message_count"] = st.integers(1, 2**32 - 1)
    fields["base_offset"] = st.integers(0, 2**62)
    return st.builds(BatchHeader, **fields).map(_without_uncounted_envelopes)


def _without_uncounted_envelopes(header: BatchHeader) -> BatchHeader:
    if header.flags & BatchFlag.ENVELOPES:
        return header
    return dataclasses.replace(header, envelope_bytes=0)


def test_every_field_has_its_place() -> None:
    of_bytes = {field.name for field in dataclasses.fields(BatchHeader)} - {"requests"}
    assert set(PLACES) == of_bytes
    taken = [range(4), range(4, 6), range(12, 16)]
    taken += [range(at, at + struct.calcsize(kind)) for kind, at in PLACES.values()]
    assert sorted(at for place in taken for at in place) == list(range(128))


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_golden_headers_are_read_from_their_places(name: str) -> None:
    raw = golden(name)
    header = BatchHeader.decode(raw)
    assert raw[:4] == MAGIC == b"HFBT"
    assert struct.unpack_from("<H", raw, 4) == (FORMAT_VERSION,) == (1,)
    for field, (kind, at) in PLACES.items():
        assert struct.unpack_from(kind, raw, at) == (getattr(header, field),), field
    zeroed = raw[:12] + bytes(4) + raw[16:128]
    assert struct.unpack_from("<I", raw, 12) == (crc32c(zeroed),)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_golden_headers_are_encoded_identically(name: str) -> None:
    raw = golden(name)
    assert BatchHeader.decode(raw).encode() == raw[:HEADER_SIZE]


@given(headers())
def test_round_trip(header: BatchHeader) -> None:
    raw = header.encode()
    assert len(raw) == HEADER_SIZE == 128
    assert BatchHeader.decode(raw) == header
    assert BatchHeader.decode(b"ab" + raw + b"c", 2) == header


def test_every_truncation_is_refused() -> None:
    for size in range(HEADER_SIZE):
        with pytest.raises(CorruptBatch) as raised:
            BatchHeader.decode(golden("batch_stored.bin")[:size])
        assert raised.value.reason == "header-truncated", size


def test_every_flipped_bit_is_refused() -> None:
    raw = golden("batch_stored.bin")[:HEADER_SIZE]
    for bit in range(8 * HEADER_SIZE):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBatch) as raised:
            BatchHeader.decode(damaged)
        assert raised.value.reason == ("bad-magic" if bit < 32 else "header-crc"), bit


@pytest.mark.parametrize(
    ("at", "field", "value", "reason"),
    [
        (20, "<I", 0, "bad-count"),
        (40, "<q", -1, "bad-count"),
        (8, "<I", 0, "bad-size"),
        (8, "<I", HEADER_SIZE - 8, "bad-size"),
        (8, "<I", HEADER_SIZE + 1, "bad-size"),
        (8, "<I", HEADER_SIZE + 4, "bad-size"),
        (124, "<I", 1, "envelopes"),
        (0, "<4s", b"HFBU", "bad-magic"),
        (0, "<4s", bytes(4), "bad-magic"),
    ],
)
def test_an_invalid_field_is_refused(at: int, field: str, value: int | bytes, reason: str) -> None:
    with pytest.raises(CorruptBatch) as raised:
        BatchHeader.decode(resealed(golden("batch_lone.bin"), at, field, value))
    assert raised.value.reason == reason


@pytest.mark.parametrize("version", [0, 2, 0xFFFF])
def test_another_version_differs_from_damage_by_its_checksum(version: int) -> None:
    raw = golden("batch_lone.bin")
    with pytest.raises(UnknownFormatVersion) as raised:
        BatchHeader.decode(resealed(raw, 4, "<H", version))
    assert (raised.value.found, raised.value.known) == (version, 1)
    damaged = bytearray(raw)
    struct.pack_into("<H", damaged, 4, version)
    with pytest.raises(CorruptBatch):
        BatchHeader.decode(damaged)


@pytest.mark.parametrize("flag", [1 << bit for bit in range(16) if not KNOWN_FLAGS & 1 << bit])
def test_a_flag_of_a_newer_version_differs_from_damage_by_its_checksum(flag: int) -> None:
    raw = golden("batch_full.bin")
    flags = BatchHeader.decode(raw).flags | flag
    with pytest.raises(UnknownFormatVersion, match="newer"):
        BatchHeader.decode(resealed(raw, 6, "<H", flags))
    damaged = bytearray(raw)
    struct.pack_into("<H", damaged, 6, flags)
    with pytest.raises(CorruptBatch):
        BatchHeader.decode(damaged)


def test_the_flags_have_their_bits() -> None:
    assert {flag.name: int(flag) for flag in BatchFlag} == {
        "KEYS": 0x01,
        "TAGS": 0x02,
        "PROPERTIES": 0x04,
        "BORN": 0x08,
        "EXPIRES": 0x10,
        "REQUEST_SEQUENCE": 0x20,
        "NULL_BODIES": 0x40,
        "PRODUCERS": 0x80,
        "ENVELOPES": 0x1000,
        "REBUILT": 0x2000,
    }
    assert KNOWN_FLAGS == 0x10BF


def test_stamping_changes_only_the_fields_of_the_broker() -> None:
    header = BatchHeader.decode(golden("batch_full.bin"))
    given_values = {
        "physical_offset": 1,
        "durable_offset": 2,
        "base_offset": 3,
        "topic_id": 4,
        "queue_id": 5,
        "store_timestamp_us": 6,
        "tag_summary": 7,
    }
    stamped = header.copy().stamp(**given_values)
    changed = {
        field: value
        for field, value in dataclasses.asdict(stamped).items()
        if value != getattr(header, field)
    }
    assert changed == given_values


def test_the_ends_follow_the_starts() -> None:
    header = BatchHeader.decode(golden("batch_stored.bin"))
    assert header.end_offset == 1003
    assert header.end_physical_offset == header.physical_offset + 360
    assert BatchHeader.decode(golden("batch_lone.bin")).queue_id == ANY_QUEUE == 0xFFFF_FFFF


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


def test_the_golden_gaps_are_zero() -> None:
    raw = golden("batch_full.bin")
    ends = [at + struct.calcsize(kind) for _, kind, at, _ in SECTIONS]
    starts = [at for _, _, at, _ in SECTIONS[1:]] + [len(raw)]
    for end, start in zip(ends, starts, strict=True):
        assert not any(raw[end:start])
        assert start - end < 8
        assert start % 8 == 0
    assert BatchHeader.decode(raw).payload_crc == crc32c(raw[128:]) == payload_crc(raw)


@given(columns())
def test_sections_are_aligned_and_absent_ones_take_no_room(sent: Columns) -> None:
    raw = sent.encode()
    batch = Batch.decode(raw)
    at = HEADER_SIZE
    for name in SECTION_NAMES:
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
        (batch.envelope_offsets, BatchFlag.ENVELOPES, any(sent.envelopes or [])),
    ]:
        assert (column is not None) == bool(batch.header.flags & flag) == there
