"""Check whether a batch from a client may be stored. Pure.

The structure is checked with vector operations over whole columns. Key hashes and tag codes are
not verified: a wrong hash or code only hides its own message from look-ups. Look-ups do not return
a wrong message, because they also compare the texts.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.commitlog.errors import CorruptBatch, LogError
from holdfast.commitlog.format.batch import Batch, Int32s
from holdfast.commitlog.format.batch_header import HEADER_SIZE, SECTION_NAMES
from holdfast.commitlog.format.limits import MAX_TTL_MS as MAX_TTL_MS
from holdfast.commitlog.format.limits import MessageLimits as MessageLimits

#: This many bytes of an envelope are the broker's own; a message whose size is at the limit needs
#: them as well.
ENVELOPE_HEAD_BYTES = 14


@dataclass(eq=False, repr=False)
class LimitExceeded(LogError):
    """A message exceeds the limit `limit_name`. `row` is its index in the batch, from 0."""

    sentence = "message {row}: {found} bytes exceed {limit_name} ({limit})"
    limit_name: str
    limit: int
    found: int
    row: int


def check_batch(batch: Batch, limits: MessageLimits) -> None:
    """Check that a batch's columns are consistent, valid UTF-8 and within `limits`.

    Raise CorruptBatch for an inconsistent column, and LimitExceeded for a message that is too
    large. The header and the payload CRC are not checked here, because `Batch.decode` checks them.
    """
    header = batch.header
    if not np.all(np.frombuffer(_padding(batch), np.uint8) == 0):
        raise CorruptBatch("padding", "the gaps between the columns are not zero")
    sizes = _check_offsets("body", batch.body_offsets, header.body_bytes)
    if batch.key_offsets is not None:
        key_sizes = _check_text("key", batch.key_offsets, batch.keys)
        _check_limit("max_key_bytes", limits.max_key_bytes, key_sizes)
    if batch.tag_offsets is not None:
        tag_sizes = _check_text("tag", batch.tag_offsets, batch.tags)
        _check_limit("max_tag_bytes", limits.max_tag_bytes, tag_sizes)
    if batch.property_list is not None:
        property_sizes = _check_properties(batch)
        _check_limit("max_properties_bytes", limits.max_properties_bytes, property_sizes)
    elif header.property_count or header.property_name_bytes or header.property_value_bytes:
        raise CorruptBatch("properties", "counted in the header, but there is no such column")
    if batch.key_offsets is None and header.key_bytes:
        raise CorruptBatch("key-offsets", "key bytes without a key column")
    if batch.tag_offsets is None and header.tag_bytes:
        raise CorruptBatch("tag-offsets", "tag bytes without a tag column")
    for name, column in (
        ("born", batch.born_timestamps_us),
        ("expires", batch.expires_timestamps_us),
    ):
        if column is not None and bool(np.any(column < 0)):
            raise CorruptBatch(f"{name}-timestamp", "a negative timestamp")
    if header.born_timestamp_us < 0:
        raise CorruptBatch("born-timestamp", "a negative timestamp")
    if batch.envelope_offsets is not None:
        envelopes = _check_offsets("envelope", batch.envelope_offsets, header.envelope_bytes)
        sizes = sizes + np.maximum(envelopes - ENVELOPE_HEAD_BYTES, 0)
    _check_limit("max_message_bytes", limits.max_message_bytes, sizes)


def _padding(batch: Batch) -> bytes:
    """Return the bytes that lie between the columns, joined together."""
    gaps = []
    at = HEADER_SIZE
    for name in SECTION_NAMES:
        section = getattr(batch.layout, name)
        if section is not None:
            gaps.append(batch.block[at : section.start])
            at = section.end
    gaps.append(batch.block[at:])
    return b"".join(gaps)


def _check_offsets(name: str, offsets: Int32s, data_bytes: int) -> Int32s:
    """Check a column's offsets and return the size of each value. Raise CorruptBatch."""
    if offsets[0] != 0 or offsets[-1] != data_bytes:
        raise CorruptBatch(
            f"{name}-offsets", f"from {offsets[0]} to {offsets[-1]} over {data_bytes} bytes"
        )
    # 64-bit differences, so that a huge step cannot overflow to a small one.
    sizes = np.diff(offsets.astype(np.int64))
    if bool(np.any(sizes < 0)):
        raise CorruptBatch(f"{name}-offsets", "they decrease")
    return sizes.astype(np.int32)


def _check_text(name: str, offsets: Int32s, data: memoryview) -> Int32s:
    """Check the offsets and the UTF-8 of a text column; return the size of each text. The whole
    column must be valid UTF-8, and no offset may cut a character in two. Raise CorruptBatch."""
    sizes = _check_offsets(name, offsets, len(data))
    raw = bytes(data)
    if not raw.isascii():
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            raise CorruptBatch(f"{name}-text", "not UTF-8") from error
        octets = np.frombuffer(raw, np.uint8)
        starts = offsets[offsets < len(raw)]
        if bool(np.any((octets[starts] & 0xC0) == 0x80)):
            raise CorruptBatch(f"{name}-text", "an offset cuts a character in two")
    return sizes


def _check_properties(batch: Batch) -> npt.NDArray[np.int64]:
    """Check the columns of properties; return for each message the total bytes of its property
    names and values. Raise CorruptBatch."""
    listed, name_offsets, value_offsets = (
        batch.property_list,
        batch.name_offsets,
        batch.value_offsets,
    )
    assert listed is not None and name_offsets is not None and value_offsets is not None
    counts = _check_offsets("property-list", listed, batch.header.property_count)
    name_sizes = _check_text("property-name", name_offsets, batch.names)
    value_sizes = _check_text("property-value", value_offsets, batch.values)
    if bool(np.any(name_sizes == 0)):
        raise CorruptBatch("property-name", "an empty property name")
    if bool(np.any(counts > 1)):
        _check_names_differ(batch, np.repeat(np.arange(len(batch)), counts))
    per_entry = np.concatenate(([0], np.cumsum(name_sizes.astype(np.int64) + value_sizes)))
    return per_entry[listed[1:]] - per_entry[listed[:-1]]


def _check_names_differ(batch: Batch, rows: npt.NDArray[np.int64]) -> None:
    assert batch.name_offsets is not None
    offsets = batch.name_offsets.tolist()
    names = bytes(batch.names)
    seen = {
        (row, names[start:end])
        for row, start, end in zip(rows.tolist(), offsets[:-1], offsets[1:], strict=True)
    }
    if len(seen) != batch.header.property_count:
        raise CorruptBatch("property-name", "a message has the same property name twice")


def _check_limit(
    name: str, limit: int, sizes: npt.NDArray[np.int32] | npt.NDArray[np.int64]
) -> None:
    worst = int(np.argmax(sizes))
    if sizes[worst] > limit:
        raise LimitExceeded(name, limit, int(sizes[worst]), worst)
