"""Fuzz the decoders of batches: in the broker, in the client and in Spark.

All readers must read every row of an accepted batch in the same way, and encoding the rows again
must give the same rows. The first byte of the input selects how the rest is used:

- as it is;
- with correct checksums, to reach the later checks;
- with correct checksums and sizes;
- as edits of the numbers in the columns of a seed.
"""

from dataclasses import replace
from itertools import pairwise
from typing import cast

from holdfast.client.read.message import MessageBatch
from holdfast.commitlog.errors import CorruptBatch, UnknownFormatVersion
from holdfast.commitlog.format.batch import Batch, iter_batches, payload_crc
from holdfast.commitlog.format.batch_check import LimitExceeded, MessageLimits, check_batch
from holdfast.commitlog.format.batch_encoding import Rows, as_batch, encode_batch
from holdfast.commitlog.format.batch_header import HEADER_SIZE, BatchHeader, layout_of
from holdfast.commitlog.format.batch_run import BatchRun
from holdfast.commitlog.format.checksum import crc32c
from holdfast.consumequeue.errors import UnknownQueue
from holdfast.consumequeue.reading.fetched import BatchSlice, message_sizes
from holdfast.consumequeue.topics import Topic, TopicConfig
from holdfast.holdservice.filters import parse_filter
from holdfast.http_api.endpoints.publish_batches import check_batches, decode_batches
from holdfast.http_api.endpoints.rendering import make_messages
from holdfast.http_api.routing.codecs import JSON, MSGPACK
from holdfast.http_api.schemas.messages import PackedMessage
from holdfast.http_api.wire.problems import Problem

LIMITS = MessageLimits(4096, 64, 32, 256)
TOPIC = Topic("t", 0, 4, TopicConfig("fsync", None, None, 4096), 0)
MAX_BYTES = 64 * 1024

AS_IT_IS, WITH_CHECKSUMS, WITH_SIZES, EDITED = range(4)

_FILTERS = (parse_filter("red,blue", None), parse_filter(None, "a = 'x' OR TAGS IS NULL"))


def seeds() -> list[bytes]:
    """Return batches of every shape, once for each mode of correction, and one edit of each."""
    put_right = [bytes([mode]) + each for each in _raw() for mode in range(EDITED)]
    return [*put_right, *(bytes([EDITED, number, 0, 0, 0]) for number in range(len(_raw())))]


def _raw() -> list[bytes]:
    raw = [
        encode_batch([b"one"]),
        encode_batch([b"", b"two", b"\xff"], keys=["k", None, "é"], queue_id=1),
        encode_batch([b"x"] * 3, tags=["red", "blue", None], born_timestamps_us=[1, 2, 3]),
        bytes(
            as_batch(
                Rows(1, [b"x", b"", b"y"], 1, tags=["red"] * 3, envelopes=[b"", b"one", b"two"])
            ).block
        ),
        encode_batch(
            [b"x"] * 2,
            properties=[{"a": "x", "b": ""}, None],
            expires_timestamps_us=[0, 7],
            producer_id=5,
            queue_id=0,
            sequence=9,
        ),
    ]
    raw.append(raw[0] + raw[4])
    return raw


def check(data: bytes) -> None:
    """Raise for any behaviour that a reader of batches must not show."""
    if not data:
        return
    mode, body = data[0] % 4, data[1:]
    if mode == EDITED:
        body = _edited(body)
    elif mode != AS_IT_IS:
        body = _put_right(body, with_sizes=mode == WITH_SIZES)
    try:
        batches = list(iter_batches(body))
    except (CorruptBatch, UnknownFormatVersion) as error:
        _refused_alike(body, error)
        return
    if body:
        BatchRun(body)
    accepted = [batch for batch in batches if _is_accepted(batch)]
    try:
        check_batches(decode_batches(body, 1000, 1000), TOPIC, LIMITS)
        assert len(accepted) == len(batches)
        assert all(batch.envelope_offsets is None for batch in batches)
    except (Problem, UnknownQueue):
        pass
    for batch in accepted:
        _read(batch)


def _edited(edits: bytes) -> bytes:
    """Return a seed with slightly changed numbers: each edit is column, place and difference."""
    raws = _raw()
    raw = bytearray(raws[edits[0] % len(raws)]) if edits else bytearray(raws[0])
    batch = Batch.decode(bytes(raw))
    columns = [
        section
        for name in ("body", "key", "tag", "name", "value", "envelope")
        if (section := getattr(batch.layout, f"{name}_offsets")) is not None
    ]
    if batch.layout.property_list is not None:
        columns.append(batch.layout.property_list)
    for column, place, difference in zip(edits[1::3], edits[2::3], edits[3::3], strict=False):
        start, end = columns[column % len(columns)]
        at = start + 4 * (place % ((end - start) // 4))
        number = int.from_bytes(raw[at : at + 4], "little") + difference % 7 - 3
        raw[at : at + 4] = (number % 2**32).to_bytes(4, "little")
    return _put_right(bytes(raw), with_sizes=False)


def _put_right(body: bytes, *, with_sizes: bool) -> bytes:
    """Return the batches in `body` with correct checksums, as a hostile client could send them."""
    done = bytearray()
    at = 0
    while len(body) - at >= HEADER_SIZE and len(done) < MAX_BYTES:
        head = bytearray(body[at : at + HEADER_SIZE])
        head[:6] = b"HFBT\1\0"
        size = int.from_bytes(head[8:12], "little")
        if with_sizes:
            head[12:16] = bytes(4)
            head[12:16] = crc32c(bytes(head)).to_bytes(4, "little")
            try:
                size = layout_of(BatchHeader.decode(head)).total_size
            except (CorruptBatch, UnknownFormatVersion):
                size = 0
            if size > MAX_BYTES:
                size = HEADER_SIZE
            head[8:12] = size.to_bytes(4, "little")
        size = max(size, HEADER_SIZE)
        payload = body[at + HEADER_SIZE : at + size]
        if with_sizes:
            payload = payload.ljust(size - HEADER_SIZE, b"\0")
        head[12:20] = bytes(4) + crc32c(payload).to_bytes(4, "little")
        head[12:16] = crc32c(bytes(head)).to_bytes(4, "little")
        done += head + payload
        at += size
    return bytes(done) + body[at:]


def _refused_alike(body: bytes, error: Exception) -> None:
    try:
        BatchRun(body)
    except (CorruptBatch, UnknownFormatVersion):
        pass
    else:
        raise AssertionError(f"Spark takes what the log refuses: {error}")
    try:
        decode_batches(body, 1000, 1000)
    except Problem as problem:
        assert problem.encode()
    else:
        raise AssertionError(f"the API takes what the log refuses: {error}")


def _is_accepted(batch: Batch) -> bool:
    try:
        check_batch(batch, LIMITS)
    except (CorruptBatch, LimitExceeded):
        return False
    return True


def _read(batch: Batch) -> None:
    """Read an accepted batch in every way, and compare the results."""
    rows = range(len(batch))
    batch = _stored(batch)
    packed = cast("list[PackedMessage]", make_messages(MSGPACK, "t", [BatchSlice(batch, rows)]))
    assert [_fields(each) for each in packed] == [_row(batch, row) for row in rows]
    assert len(make_messages(JSON, "t", [BatchSlice(batch, rows)])) == len(rows)
    assert b"".join(batch.envelope(row) for row in rows) == bytes(batch.envelopes)
    every_other = list(rows)[::2]
    assert make_messages(MSGPACK, "t", [BatchSlice(batch, every_other)]) == packed[::2]
    client = [
        (each.body, each.key, each.tag, each.properties)
        for each in MessageBatch("t", batch, 0, len(batch))
    ]
    assert client == [(each.body, each.key, each.tag, each.properties) for each in packed]
    assert message_sizes(batch).tolist() == [_size(each) for each in packed]
    for message_filter in _FILTERS:
        assert message_filter is not None
        found = list(message_filter.matching_rows(batch, 0, len(batch)))
        assert all(a < b for a, b in pairwise(found))
        assert found == [r for r in rows if message_filter.matching_rows(batch, r, r + 1)]
    _read_again(batch, packed)


def _read_again(batch: Batch, packed: list[PackedMessage]) -> None:
    again = Batch.decode(
        encode_batch(
            [each.body for each in packed],
            keys=[each.key for each in packed],
            tags=[each.tag for each in packed],
            properties=[each.properties for each in packed],
        )
    )
    check_batch(again, LIMITS)
    for one, other in zip(range(len(batch)), range(len(again)), strict=True):
        assert _row(batch, one)[:4] == _row(again, other)[:4]


def _stored(batch: Batch) -> Batch:
    header = batch.header
    stamped = replace(header, physical_offset=4096, base_offset=7, topic_id=3, queue_id=1)
    stored = Batch.decode(bytes(stamped.encode()) + bytes(batch.block[HEADER_SIZE:]))
    assert payload_crc(stored.block) == header.payload_crc
    return stored


def _row(batch: Batch, row: int) -> tuple[object, ...]:
    return (
        batch.body(row),
        batch.key(row),
        batch.tag(row),
        batch.properties(row),
        batch.born_timestamp_us(row) // 1000,
        batch.header.base_offset + row,
    )


def _fields(message: PackedMessage) -> tuple[object, ...]:
    return (
        message.body,
        message.key,
        message.tag,
        message.properties,
        message.born_timestamp_ms,
        message.offset,
    )


def _size(message: PackedMessage) -> int:
    texts = [
        message.key or "",
        message.tag or "",
        *message.properties,
        *message.properties.values(),
    ]
    return len(message.body) + sum(len(text.encode()) for text in texts)
