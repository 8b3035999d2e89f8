"""Fuzz the small formats: message ids, state records and journal, segment headers, footers, names.

Each input is refused with the documented error, or equals the encoding of its decoded value. The
first byte of the input selects the format.
"""

from collections.abc import Callable

import numpy as np

from holdfast.commitlog.errors import CorruptBatch, UnknownFormatVersion
from holdfast.commitlog.format.message_id import format_message_id, parse_message_id
from holdfast.commitlog.format.segment_format import (
    BLOCK_DTYPE,
    KEY_DTYPE,
    TRAILER_SIZE,
    FooterTrailer,
    SegmentHeader,
    decode_footer,
    encode_end_mark,
    encode_footer,
    is_end_mark,
    parse_segment_name,
    segment_name,
)
from holdfast.consumequeue.state import records
from holdfast.consumequeue.state.records import MalformedRecord, StoredOffsets
from holdfast.consumequeue.topics import Topic, TopicConfig

_TOPIC = Topic("t", 7, 4, TopicConfig("fsync", 1000, None, 4096), 12)


def seeds() -> list[bytes]:
    """Return an intact example of each format."""
    footer = encode_footer(4096, np.zeros(2, BLOCK_DTYPE), np.zeros(1, KEY_DTYPE))
    return [
        b"\0" + format_message_id(1, 2, 3).encode(),
        b"\1" + SegmentHeader(0, 1 << 20, 5).encode()[:64],
        b"\2" + footer[-TRAILER_SIZE:],
        b"\3" + footer,
        b"\4" + encode_end_mark(4096),
        b"\5" + segment_name(4096).encode(),
        b"\6" + records.encode_topic(_TOPIC),
        b"\7" + records.encode_kept({0: 5, 3: 9}),
        b"\x08" + records.encode_offsets(StoredOffsets({0: 7}, 2)),
        b"\x09" + records.encode_number(9),
        b"\x0a" + records.offsets_key("g", 5),
    ]


def check(data: bytes) -> None:
    """Raise for any behaviour that the decoders must not show."""
    if data:
        _CHECKS[data[0] % len(_CHECKS)](data[1:])


def _message_id(data: bytes) -> None:
    text = data.decode(errors="surrogateescape")
    try:
        parts = parse_message_id(text)
    except ValueError:
        return
    assert format_message_id(*parts) == text.upper()


def _segment_header(data: bytes) -> None:
    try:
        header = SegmentHeader.decode(data)
    except (CorruptBatch, UnknownFormatVersion):
        return
    assert SegmentHeader.decode(header.encode()) == header


def _trailer(data: bytes) -> None:
    try:
        FooterTrailer.decode(data)
    except (CorruptBatch, UnknownFormatVersion):
        return


def _footer(data: bytes) -> None:
    try:
        trailer = FooterTrailer.decode(data[-TRAILER_SIZE:])
        if trailer is not None:
            blocks, keys = decode_footer(trailer, data[:-TRAILER_SIZE])
            assert (len(blocks), len(keys)) == (trailer.block_count, trailer.key_count)
    except (CorruptBatch, UnknownFormatVersion):
        return


def _end_mark(data: bytes) -> None:
    if is_end_mark(data, 4096):
        assert data[:32] == encode_end_mark(4096)


def _segment_name(data: bytes) -> None:
    text = data.decode(errors="surrogateescape")
    start = parse_segment_name(text)
    if start is not None:
        assert segment_name(start) == text


def _record(decode: Callable[[bytes], object]) -> Callable[[bytes], None]:
    def check_record(data: bytes) -> None:
        try:
            decode(data)
        except MalformedRecord:
            return

    return check_record


_CHECKS: tuple[Callable[[bytes], None], ...] = (
    _message_id,
    _segment_header,
    _trailer,
    _footer,
    _end_mark,
    _segment_name,
    _record(lambda data: records.decode_topic("t", data)),
    _record(records.decode_kept),
    _record(records.decode_offsets),
    _record(records.decode_number),
    _record(records.parse_key),
)
