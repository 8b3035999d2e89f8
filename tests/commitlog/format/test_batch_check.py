"""Batches with false contents and correct checksums, as a hostile client may send them."""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace

import pytest
from hypothesis import given

from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.batch import Batch, payload_crc
from holdfast.commitlog.format.batch_check import LimitExceeded, MessageLimits, check_batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.batch_header import HEADER_SIZE, BatchFlag, BatchHeader, layout_of
from tests.commitlog.golden.make import golden
from tests.support.storage.batches import Columns, columns

LIMITS = MessageLimits()


def forge(raw: bytes, written: Mapping[int, bytes] | None = None, /, **fields: int) -> Batch:
    """Return a batch with other bytes at some positions, other header fields, and correct
    checksums."""
    changed = bytearray(raw)
    for at, data in (written or {}).items():
        changed[at : at + len(data)] = data
    fields.setdefault("payload_crc", payload_crc(changed))
    header = BatchHeader(**{**asdict(BatchHeader.decode(raw)), **fields})
    return Batch.decode(bytes(header.encode()) + changed[HEADER_SIZE:])


def refusal(batch: Batch) -> str:
    """Return the reason of the refusal."""
    with pytest.raises(CorruptBatch) as raised:
        check_batch(batch, LIMITS)
    return raised.value.reason


def ints(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


# batch_full.bin: three messages. For each column: the position of its offsets, their values, and
# the name in the error.
OFFSETS = {
    "body": (128, (0, 3, 3, 11)),
    "key": (176, (0, 2, 2, 10)),
    "tag": (224, (0, 3, 7, 7)),
    "property-list": (248, (0, 2, 2, 3)),
    "property-name": (264, (0, 1, 3, 4)),
    "property-value": (288, (0, 1, 1, 3)),
}


Wrong = tuple[int, ...]


def wrong_offsets() -> Iterator[tuple[str, int, Wrong]]:
    """Yield (column, position, offsets) for every kind of wrong offsets."""
    for name, (at, (first, second, third, last)) in OFFSETS.items():
        for start in (1, -1):
            yield name, at, (start, second, third, last)
        for end in (last + 1, last - 1, -1):
            yield name, at, (first, second, third, end)
        for middle in (
            (second, second - 1),
            (last + 1, third),
            (-1, third),
            (2**31 - 1, -(2**31)),
            (2**31 - 1, -2),  # no step is negative after a 32-bit overflow
            (2**31 - 1, third),
        ):
            yield name, at, (first, *middle, last)


def test_wrong_offsets_are_refused() -> None:
    for name, at, wrong in wrong_offsets():
        batch = forge(golden("batch_full.bin"), {at: ints(*wrong)})
        assert refusal(batch) == f"{name}-offsets", (name, at, wrong)


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        # -- texts: keys at 192 (10 bytes), tags at 240 (7), names at 280 (4), values at 304 (3)
        ({192: b"\xff"}, "key-text"),
        ({192: b"\xc0\x80"}, "key-text"),  # an overlong NUL
        ({194: b"\xed\xa0\x80"}, "key-text"),  # a surrogate
        ({201: b"\xd0"}, "key-text"),  # begins an unfinished character
        ({176: ints(0, 3, 3, 10)}, "key-text"),  # cuts the first Cyrillic letter in two
        ({240: b"\x80"}, "tag-text"),
        ({240: "é".encode(), 224: ints(0, 1, 7, 7)}, "tag-text"),
        ({280: b"\xfe"}, "property-name-text"),
        ({281: "é".encode(), 264: ints(0, 2, 3, 4)}, "property-name-text"),
        ({306: b"\x28"}, "property-value-text"),
        ({288: ints(0, 1, 2, 3)}, "property-value-text"),
        # -- properties
        ({264: ints(0, 0, 3, 4)}, "property-name"),  # the first name is empty
        ({264: ints(0, 1, 4, 4)}, "property-name"),  # the last name is empty
        ({280: b"aaaa", 264: ints(0, 1, 2, 4)}, "property-name"),  # the same name twice
        # -- gaps
        ({155: b"\x01"}, "padding"),  # after the bodies
        ({172: b"\x01"}, "padding"),  # after the key hashes
        ({202: b"\x01"}, "padding"),  # after the keys
        ({247: b"\x80"}, "padding"),  # after the tags
        ({284: b"\x00\x00\x01"}, "padding"),  # after the names
        ({311: b"\x01"}, "padding"),  # after the values
        # -- timestamps
        ({312: struct.pack("<q", -1)}, "born-timestamp"),
        ({328: struct.pack("<q", -(2**63))}, "born-timestamp"),
        ({352: struct.pack("<q", -1)}, "expires-timestamp"),
    ],
)
def test_wrong_columns_are_refused(written: dict[int, bytes], reason: str) -> None:
    assert refusal(forge(golden("batch_full.bin"), written)) == reason


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"born_timestamp_us": -1}, "born-timestamp"),
        ({"key_bytes": 1}, "key-offsets"),
        ({"tag_bytes": 1}, "tag-offsets"),
        ({"property_count": 1}, "properties"),
        ({"property_name_bytes": 1}, "properties"),
        ({"property_value_bytes": 1}, "properties"),
        # The padded size is right, but the size differs from the last offset.
        ({"body_bytes": 4}, "padding"),
        ({"body_bytes": 8}, "body-offsets"),
    ],
)
def test_a_wrong_header_is_refused(fields: dict[str, int], reason: str) -> None:
    assert refusal(forge(golden("batch_lone.bin"), **fields)) == reason


def test_every_byte_of_a_gap_is_checked() -> None:
    raw = golden("batch_full.bin")
    layout = layout_of(BatchHeader.decode(raw))
    covered: set[int] = set()
    for name in layout.__slots__:
        section = getattr(layout, name)
        if name != "total_size" and section is not None:
            covered.update(range(section.start, section.end))
    gaps = set(range(HEADER_SIZE, len(raw))) - covered
    assert gaps
    for at in gaps:
        assert refusal(forge(raw, {at: b"\x01"})) == "padding", at


def test_two_messages_may_have_the_same_property_name() -> None:
    raw = encode_batch([b"1", b"2"], properties=[{"a": "1"}, {"a": "2"}])
    check_batch(Batch.decode(raw), LIMITS)


def test_hashes_and_codes_are_not_verified() -> None:
    wrong = {160: b"\xff" * 12, 208: b"\xff" * 12}
    check_batch(forge(golden("batch_full.bin"), wrong, tag_summary=1), LIMITS)


@given(columns())
def test_every_encoded_batch_passes(sent: Columns) -> None:
    check_batch(Batch.decode(sent.encode()), LIMITS)


# -- limits ----------------------------------------------------------------------------------


def columns_with(name: str, size: int) -> Columns:
    """Return three messages; the second one has this size in the column that `name` limits."""
    text = "x" * size
    return {
        "max_message_bytes": Columns([b"a", b"x" * size, b"c"]),
        # The envelope counts too, except for its head.
        "max_message_bytes with envelope": Columns(
            [b"", b"x", b""], envelopes=[bytes(14), bytes(14 + size - 1), b"e"]
        ),
        "max_key_bytes": Columns([b""] * 3, keys=["k", text, None]),
        "max_tag_bytes": Columns([b""] * 3, tags=[None, text, "t"]),
        # The name counts too.
        "max_properties_bytes": Columns([b""] * 3, properties=[{"a": "b"}, {"n": text[1:]}, None]),
    }[name]


@pytest.mark.parametrize(
    "column",
    [
        *("max_message_bytes", "max_message_bytes with envelope"),
        *("max_key_bytes", "max_tag_bytes", "max_properties_bytes"),
    ],
)
@pytest.mark.parametrize("limit", [100, 1000])
def test_a_value_at_the_limit_passes_and_a_larger_one_does_not(column: str, limit: int) -> None:
    name = column.split()[0]
    limits = replace(MessageLimits(*[2**31] * 4), **{name: limit})
    for size in (limit - 1, limit):
        check_batch(Batch.decode(columns_with(column, size).encode()), limits)
    with pytest.raises(LimitExceeded) as raised:
        check_batch(Batch.decode(columns_with(column, limit + 1).encode()), limits)
    error = raised.value
    assert (error.limit_name, error.limit, error.found, error.row) == (name, limit, limit + 1, 1)


def test_only_the_body_counts_as_the_size_of_a_message() -> None:
    """H5: key, tag and properties have their own limits, as in RocketMQ."""
    batch = Batch.decode(golden("batch_full.bin"))
    sizes = [len(batch.body(row)) for row in range(len(batch))]
    largest = max(sizes)
    check_batch(batch, replace(LIMITS, max_message_bytes=largest))
    with pytest.raises(LimitExceeded) as raised:
        check_batch(batch, replace(LIMITS, max_message_bytes=largest - 1))
    assert (raised.value.found, raised.value.row) == (largest, sizes.index(largest))


def test_the_examples_have_all_flags() -> None:
    # A new column must be added to the tests above.
    columns_of = BatchHeader.decode(golden("batch_full.bin")).flags
    assert columns_of == sum(f for f in BatchFlag if f < BatchFlag.REQUEST_SEQUENCE)
