from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.batch import (
    Batch,
    iter_batches,
    key_hash,
    queue_for_key,
    tag_summary,
    tags_code,
)
from holdfast.commitlog.format.batch_check import MessageLimits, check_batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.batch_header import HEADER_SIZE, BatchFlag, BatchHeader
from tests.commitlog.golden.make import BORN_US, golden
from tests.support.storage.batches import Columns, columns


def test_the_golden_messages_are_read() -> None:
    batch = Batch.decode(golden("batch_stored.bin"))
    assert len(batch) == 3
    assert [batch.body(row) for row in range(3)] == [b"one", b"", b"\x00\xff three"]
    assert [batch.key(row) for row in range(3)] == ["k1", None, "ключ"]
    assert [batch.tag(row) for row in range(3)] == ["red", "blue", None]
    assert [batch.properties(row) for row in range(3)] == [{"a": "1", "bc": ""}, {}, {"a": "é"}]
    assert [batch.born_timestamp_us(row) - BORN_US for row in range(3)] == [0, 1, 2]
    assert [batch.expires_timestamp_us(row) for row in range(3)] == [0, BORN_US + 60_000_000, 0]
    lone = Batch.decode(golden("batch_lone.bin"))
    assert (lone.body(0), lone.key(0), lone.tag(0), lone.properties(0)) == (
        b"hello",
        None,
        None,
        {},
    )
    assert (lone.born_timestamp_us(0), lone.expires_timestamp_us(0)) == (BORN_US, 0)
    assert lone.expires_at_ms(0) == 0
    assert [lone.envelope(0), batch.envelope(0)] == [b"", b""]
    enveloped = Batch.decode(golden("batch_envelopes.bin"))
    assert [enveloped.body(row) for row in range(3)] == [b"one", b"", b"three"]
    assert [enveloped.envelope(row) for row in range(3)] == [
        bytes.fromhex("110419036f72"),
        b"",
        bytes(range(30)),
    ]


def test_a_message_expires_at_the_first_whole_millisecond() -> None:  # T32
    times_us = [0, 1, 999, 1000, 1001, BORN_US + 1]
    batch = Batch.decode(encode_batch([b""] * 6, expires_timestamps_us=times_us))
    assert [batch.expires_at_ms(row) for row in range(6)] == [0, 1, 1, 1, 2, BORN_US // 1000 + 1]


def test_hashes_codes_and_routing_are_pinned() -> None:
    assert key_hash("k1") == tags_code("k1") == 0x1A86_F347
    assert queue_for_key("k1", 4) == 0x1A86_F347 % 4 == 3
    assert queue_for_key("k1", 1) == 0
    assert tag_summary([tags_code("red"), tags_code("blue")]) == 1 << 0x20 | 1 << 0x2A
    assert tag_summary([]) == 0
    assert tag_summary([0, 63, 64]) == 1 | 1 << 63


# -- round trip ------------------------------------------------------------------------------


@given(columns())
def test_decoding_returns_the_encoded_messages(sent: Columns) -> None:
    batch = Batch.decode(sent.encode())
    n = len(sent.bodies)
    rows = range(n)
    assert len(batch) == n
    assert [batch.body(row) for row in rows] == list(sent.bodies)
    assert [batch.key(row) for row in rows] == list(sent.keys or [None] * n)
    assert [batch.tag(row) for row in rows] == list(sent.tags or [None] * n)
    assert [batch.properties(row) for row in rows] == [p or {} for p in sent.properties or [{}] * n]
    born = sent.born_timestamps_us or [sent.born_timestamp_us] * n
    assert [batch.born_timestamp_us(row) for row in rows] == list(born)
    expires = sent.expires_timestamps_us or [0] * n
    assert [batch.expires_timestamp_us(row) for row in rows] == list(expires)
    assert [batch.envelope(row) for row in rows] == list(sent.envelopes or [b""] * n)
    check_batch(batch, MessageLimits())


@given(columns())
def test_hashes_and_summary_fit_the_texts(sent: Columns) -> None:
    batch = Batch.decode(sent.encode())
    if batch.key_hashes is not None and sent.keys is not None:
        assert batch.key_hashes.tolist() == [key_hash(key) if key else 0 for key in sent.keys]
    tags = [tag for tag in sent.tags or [] if tag]
    if batch.tag_codes is not None and sent.tags is not None:
        assert batch.tag_codes.tolist() == [tags_code(tag) if tag else 0 for tag in sent.tags]
    assert batch.header.tag_summary == tag_summary(map(tags_code, tags))


@given(st.lists(columns(max_messages=3), min_size=1, max_size=4))
def test_adjacent_batches_are_iterated(sent: list[Columns]) -> None:
    blocks = [each.encode() for each in sent]
    assert [bytes(batch.block) for batch in iter_batches(b"".join(blocks))] == blocks


def test_columns_are_views_of_the_block() -> None:
    raw = golden("batch_full.bin")
    batch = Batch.decode(raw)
    assert isinstance(batch.bodies.obj, bytes)
    assert batch.bodies.obj is raw
    assert batch.body_offsets.dtype == np.dtype("<i4")
    assert not batch.body_offsets.flags.owndata
    with pytest.raises(TypeError):
        batch.block[0] = 1


# -- invalid batches -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["batch_lone.bin", "batch_full.bin", "batch_stored.bin", "batch_envelopes.bin"]
)
def test_every_truncation_is_refused(name: str) -> None:
    raw = golden(name)
    for size in range(len(raw)):
        with pytest.raises(CorruptBatch) as raised:
            Batch.decode(raw[:size])
        expected = "header-truncated" if size < HEADER_SIZE else "truncated"
        assert raised.value.reason == expected, size


def test_a_truncated_batch_is_not_completed_by_the_next_one() -> None:
    raw = golden("batch_full.bin")
    for size in range(HEADER_SIZE, len(raw), 8):
        with pytest.raises(CorruptBatch):
            Batch.decode(raw[:size] + golden("batch_stored.bin"))


@pytest.mark.parametrize("name", ["batch_full.bin", "batch_stored.bin", "batch_envelopes.bin"])
def test_every_flipped_bit_is_refused(name: str) -> None:
    raw = golden(name)
    for bit in range(8 * len(raw)):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBatch) as raised:
            Batch.decode(damaged)
        if bit >= 8 * HEADER_SIZE:
            assert raised.value.reason == "payload-crc", bit


def test_the_payload_is_verified_unless_disabled() -> None:
    damaged = bytearray(golden("batch_lone.bin"))
    damaged[-8] ^= 1
    assert Batch.decode(damaged, verify_payload=False).body(0) == b"iello"
    assert len(list(iter_batches(damaged, verify_payload=False))) == 1


@pytest.mark.parametrize(
    "field",
    [
        "message_count",
        "body_bytes",
        "key_bytes",
        "tag_bytes",
        "property_count",
        "property_name_bytes",
        "property_value_bytes",
    ],
)
@pytest.mark.parametrize("lie", [lambda n: n + 16, lambda n: 2**32 - 1])
def test_a_wrong_size_is_refused_before_the_layout(field: str, lie: Any) -> None:
    header = BatchHeader.decode(golden("batch_full.bin"))
    raw = _with_header(golden("batch_full.bin"), **{field: lie(getattr(header, field))})
    with pytest.raises(CorruptBatch) as raised:
        Batch.decode(raw)
    assert raised.value.reason == "bad-size"


@pytest.mark.parametrize("flag", [f for f in BatchFlag if f < BatchFlag.REQUEST_SEQUENCE])
def test_a_flag_without_its_column_is_refused(flag: BatchFlag) -> None:
    with pytest.raises(CorruptBatch) as raised:
        Batch.decode(_with_header(golden("batch_lone.bin"), flags=int(flag)))
    assert raised.value.reason == "bad-size"


def test_bytes_after_the_last_batch_are_refused() -> None:
    raw = golden("batch_lone.bin")
    batches = iter_batches(raw + raw[:100])
    assert len(next(batches)) == 1
    with pytest.raises(CorruptBatch):
        next(batches)
    assert list(iter_batches(b"")) == []


def _with_header(raw: bytes, **fields: int) -> bytes:
    """Return a block with other header values and a correct checksum."""
    header = BatchHeader.decode(raw)
    kept = {name: getattr(header, name) for name in header.__slots__}
    return bytes(BatchHeader(**{**kept, **fields}).encode()) + raw[HEADER_SIZE:]
