"""Rows of a stored batch as encoded AMQP messages. Pure.

Every delivery has a new header (durable, priority, ttl, first-acquirer, and delivery-count: the
failures) and the annotations x-opt-offset, x-opt-queue, x-opt-enqueued-time and x-opt-attempt, and
x-opt-topic from a source that may have several topics.
Then a message of an AMQP client has its own annotations, and all its other sections byte for byte
(envelope.py). A message of another protocol has these sections:

| section                | content                                                              |
|------------------------|----------------------------------------------------------------------|
| properties             | message-id, subject (the tag), content-type (the property of this    |
|                        | name), creation-time, group-id (the key)                             |
| application-properties | the other properties                                                 |
| data                   | the body                                                             |

The parts that are equal for all messages of a batch are encoded once.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from holdfast.amqp.messages.envelope import Envelope, data_head, decode_envelope
from holdfast.amqp.wire.performatives import Header, encode_composite
from holdfast.amqp.wire.types import (
    Symbol,
    UInt,
    compound,
    decode,
    encode,
    sized,
    skip,
)
from holdfast.commitlog.format.batch import Batch, Int32s
from holdfast.commitlog.format.batch_header import ENVELOPES, Section

#: The columns of a batch are split into rows for this many rows at a time.
ROWS_AT_ONCE = 256

#: It takes as long to find out what messages have in common as to encode this many.
_LEAST_RUN = 4

_CONTENT_TYPE = "content-type"
_U32 = struct.Struct(">I").pack
_U64 = struct.Struct(">Q").pack
#: The code of a timestamp, and its milliseconds.
_TIMESTAMP = struct.Struct(">Bq").pack
#: Each byte, and its two hexadecimal digits.
_BYTES = [bytes((each,)) for each in range(256)]
_HEX = [b"%02X" % each for each in range(256)]
_NO_HEX = [b""] * 256
_NULL = b"\x40"
_SECTION = b"\x00\x53\x72"
_SMALL_ULONG, _MAP32 = 0x53, 0xD1
_NAMES = (
    b"x-opt-offset",
    b"x-opt-queue",
    b"x-opt-enqueued-time",
    b"x-opt-attempt",
    b"x-opt-topic",
)
_NO_ENVELOPE = Envelope(0)
#: is_durable, is_first -> the header of a message without failures and without ttl.
_HEADERS = {
    (durable, first): encode_composite(Header(durable, first_acquirer=first))
    for durable in (False, True)
    for first in (False, True)
}


class _Alike(NamedTuple):
    """The parts that messages have in common."""

    before: bytes
    """Up to the offset in the annotations."""
    between: bytes
    """From that offset to the offset in the message-id. If there is no message-id that the broker
    makes, up to the body."""
    id_end: bytes | None = None
    """From the end of the message-id to the data section; None without such a message-id."""
    data: bytes | None = None
    """The sections up to the body; None for the beginning of a data section."""
    after: bytes = b""
    """What follows the body."""


class RowEncoder:
    """Encodes the rows of one batch from `first_row` on: at most ROWS_AT_ONCE rows, and at most
    `most`.

    With `topic`, the messages have the annotation x-opt-topic.
    """

    __slots__ = (
        "_alike", "_annotated", "_attempt", "_base", "_batch", "_bodies", "_body_at", "_created",
        "_envelope", "_envelopes", "_expires", "_first_attempt", "_has_properties", "_headers",
        "_id_prefix", "_is_durable", "_is_examined", "_keys", "_octets", "_tags", "end_row",
        "first_row",
    )  # fmt: skip

    def __init__(
        self, batch: Batch, first_row: int, *, is_durable: bool, topic: str | None = None,
        most: int = ROWS_AT_ONCE,
    ) -> None:  # fmt: skip
        header = batch.header
        end = min(header.message_count, first_row + min(most, ROWS_AT_ONCE))
        self.first_row, self.end_row = first_row, end
        self._batch = batch
        self._base = header.base_offset
        self._is_durable = is_durable
        self._headers = _HEADERS[is_durable, False], _HEADERS[is_durable, True]
        before, between, after = _annotations(header.queue_id, topic)
        self._annotated = before
        self._attempt = between + _TIMESTAMP(0x83, header.store_timestamp_us // 1000) + after
        self._first_attempt = self._attempt + _U32(1)
        self._id_prefix = b"\xa1\x20%08X%08X" % (header.topic_id, header.queue_id)
        is_alone = header.message_count == 1
        if is_alone:  # the sections of the batch have what its columns say
            self._bodies = _section(batch, batch.layout.bodies)
            #: Where each body begins in `_bodies`.
            self._body_at: list[int] = [0, header.body_bytes]
        else:
            body_at = batch.body_offsets[first_row : end + 1].tolist()
            first = body_at[0]
            self._bodies = batch.bodies[first : body_at[-1]]
            self._body_at = [each - first for each in body_at] if first else body_at
        self._created: Sequence[int] | bytes = _TIMESTAMP(0x83, header.born_timestamp_us // 1000)
        self._tags: list[bytes] | None = None
        self._keys: list[bytes] | None = None
        self._envelopes: list[bytes] | None = None
        self._expires = self._has_properties = False
        if header.flags & ~ENVELOPES:
            self._read_columns(batch)
        if header.flags & ENVELOPES and is_alone:
            assert batch.layout.envelopes is not None
            self._envelopes = [bytes(_section(batch, batch.layout.envelopes))]
        elif header.flags & ENVELOPES:
            self._envelopes = _texts(batch.envelope_offsets, batch.envelopes, first_row, end)
        #: The last envelope. Often the next message has the same.
        self._octets, self._envelope = b"", _NO_ENVELOPE
        self._alike: _Alike | None = None
        self._is_examined = False
        """Whether `_alike` was determined."""

    def _read_columns(self, batch: Batch) -> None:
        """Read the other columns. A message that was published alone seldom has them."""
        first, end = self.first_row, self.end_row
        self._tags = _texts(batch.tag_offsets, batch.tags, first, end)
        self._keys = _texts(batch.key_offsets, batch.keys, first, end)
        self._expires = batch.expires_timestamps_us is not None
        self._has_properties = batch.property_list is not None
        born = batch.born_timestamps_us
        if born is not None:
            self._created = born[first:end].tolist()

    def encode(
        self, row: int, attempt: int, failures: int, now_ms: int, modified: bytes = b""
    ) -> bytes:
        """Return one message as it is delivered now: for the `attempt`th time (from 1), after this
        many failures. `modified` is an encoded map of annotations, which replace those of the
        message."""
        index = row - self.first_row
        start, end = self._body_at[index], self._body_at[index + 1]
        body, offset = self._bodies[start:end], self._base + row
        octets = self._envelopes[index] if self._envelopes is not None else b""
        if not octets:
            envelope = None
            rest = self._properties(row, index, offset) + data_head(end - start)
        else:
            if octets != self._octets:
                self._octets, self._envelope = octets, decode_envelope(octets)
            envelope = self._envelope
            rest = data_head(end - start) if envelope.before is None else envelope.before
        is_first = attempt == 1
        if failures or self._expires or (envelope is not None and envelope.priority != 4):
            header = self._header(row, attempt, failures, now_ms, envelope)
        elif envelope is None:
            header = self._headers[is_first]
        else:
            header = _HEADERS[envelope.is_durable, is_first]
        tries = self._first_attempt if is_first else self._attempt + _U32(attempt)
        theirs, after = (b"", b"") if envelope is None else (envelope.annotations, envelope.after)
        if modified:
            theirs = _replaced(theirs, modified)
        if theirs:
            annotations = _merged(b"".join((self._annotated, _U64(offset), tries)), theirs)
            return b"".join((header, annotations, rest, body, after))
        return b"".join((header, self._annotated, _U64(offset), tries, rest, body, after))

    def encode_run(self, first_row: int, end_row: int, now_ms: int) -> list[bytes]:
        """Return the messages of the rows from `first_row` up to `end_row`, as they are delivered
        for the first time. This is faster than `encode`, if the messages differ only in their
        offsets and bodies."""
        if end_row - first_row >= _LEAST_RUN and not self._is_examined:
            self._alike, self._is_examined = self._what_is_alike(), True
        if self._alike is None:
            return [self.encode(row, 1, 0, now_ms) for row in range(first_row, end_row)]
        before, between, id_end, data, after = self._alike
        at = self._body_at[first_row - self.first_row : end_row - self.first_row + 1]
        rests = {
            size: (id_end or b"") + (data_head(size) if data is None else data)
            for size in {stop - start for start, stop in pairwise(at)}
        }
        digits, bodies, join = _NO_HEX if id_end is None else _HEX, self._bodies, b"".join
        offset, end = self._base + first_row, self._base + end_row
        messages: list[bytes] = []
        while offset < end:  # up to the next offset with another byte above the lowest one
            index, low, high = len(messages), offset & 0xFF, offset >> 8
            top = min(0x100, low + end - offset)
            begin = before + _U64(offset)[:7]
            middle = between if id_end is None else between + b"%014X" % high
            messages += [
                join((begin, byte, middle, digit, rests[stop - start], bodies[start:stop], after))
                for byte, digit, start, stop in zip(
                    _BYTES[low:top], digits[low:top], at[index:], at[index + 1 :], strict=False
                )
            ]
            offset += top - low
        return messages

    def _what_is_alike(self) -> "_Alike | None":
        """Return what first deliveries of all messages have in common, if these differ only in
        their offsets and bodies. Otherwise return None."""
        if self._expires:
            return None
        before = self._headers[True] + self._annotated
        if self._envelopes is not None:
            octets = self._envelopes[0]
            if not octets or self._envelopes.count(octets) < len(self._envelopes):
                return None
            envelope = decode_envelope(octets)
            if envelope.annotations or envelope.priority != 4:
                return None
            before = _HEADERS[envelope.is_durable, True] + self._annotated
            return _Alike(before, self._first_attempt, None, envelope.before, envelope.after)
        if self._has_properties or (self._tags, self._keys) != (None, None):
            return None
        if type(self._created) is not bytes:
            return None
        properties = self._properties(self.first_row, 0, 0)
        at = properties.index(self._id_prefix) + len(self._id_prefix)
        return _Alike(before, self._first_attempt + properties[:at], properties[at + 16 :])

    def _header(
        self, row: int, attempt: int, failures: int, now_ms: int, envelope: Envelope | None
    ) -> bytes:
        is_durable, priority = self._is_durable, 4
        if envelope is not None:
            is_durable, priority = envelope.is_durable, envelope.priority
        expires_at_ms = self._batch.expires_at_ms(row) if self._expires else 0
        if not (expires_at_ms or failures) and priority == 4:
            return _HEADERS[is_durable, attempt == 1]
        ttl = min(max(0, expires_at_ms - now_ms), 0xFFFF_FFFF) if expires_at_ms else None
        return encode_composite(Header(is_durable, priority, ttl, attempt == 1, failures))

    def _properties(self, row: int, index: int, offset: int) -> bytes:
        """Return the properties section and, if there are any, the application-properties."""
        subject = group = content_type = _NULL
        application = b""
        if self._tags is not None and (tag := self._tags[index]):
            subject = sized(0xA1, 0xB1, tag)
        if self._keys is not None and (key := self._keys[index]):
            group = sized(0xA1, 0xB1, key)
        if self._has_properties:
            properties = self._batch.properties(row)
            named = properties.get(_CONTENT_TYPE)
            if named is not None and named.isascii():
                content_type = encode(Symbol(properties.pop(_CONTENT_TYPE)))
            if properties:
                application = b"\x00\x53\x74" + encode(properties)
        created = self._created
        if type(created) is not bytes:
            created = _TIMESTAMP(0x83, created[index] // 1000)
        fields = b"%b%016X\x40\x40%b\x40\x40%b\x40\x40%b%b" % (
            self._id_prefix,
            offset,
            subject,
            content_type,
            created,
            group,
        )
        return b"\x00\x53\x73" + compound(0xC0, 0xD0, 11, fields) + application


def _section(batch: Batch, place: Section) -> memoryview:
    return batch.block[place.start : place.end]


def _replaced(section: bytes, modified: bytes) -> bytes:
    """Return the section of a message's annotations (it may be empty) with the annotations of an
    encoded map, which replace annotations of the same names."""
    found: dict[Any, Any] = {}
    if section:
        value = 3 if section[1] == _SMALL_ULONG else skip(section, 1)
        found, _ = decode(section, value)
    changed, _ = decode(modified)
    return _SECTION + encode(found | changed)


def _merged(ours: bytes, theirs: bytes) -> bytes:
    """Return one section with the broker's annotations and those of the message. An annotation of
    the broker replaces an annotation of the same name."""
    value = 3 if theirs[1] == _SMALL_ULONG else skip(theirs, 1)
    wide = 4 if theirs[value] == _MAP32 else 1
    entries = theirs[value + 1 + 2 * wide :]
    count = int.from_bytes(theirs[value + 1 + wide : value + 1 + 2 * wide], "big")
    if any(name in entries for name in _NAMES):
        others, _ = decode(theirs, value)
        mine, _ = decode(ours, 3)
        merged = mine | {name: each for name, each in others.items() if name not in mine}
        return _SECTION + encode(merged)
    begin = 12 if ours[3] == _MAP32 else 6
    return _SECTION + compound(0xC1, 0xD1, ours[begin - 1] + count, ours[begin:] + entries)


@lru_cache(maxsize=1024)
def _annotations(queue: int, topic: str | None) -> tuple[bytes, bytes, bytes]:
    """Return the encoded annotations up to the offset, from after it to the time at which the
    message was stored, and from after that to the attempt."""
    named = b"" if topic is None else encode(Symbol("x-opt-topic")) + encode(topic)
    offset = named + encode(Symbol("x-opt-offset")) + b"\x80"
    between = b"".join((
        encode(Symbol("x-opt-queue")),
        encode(UInt(queue)),
        encode(Symbol("x-opt-enqueued-time")),
    ))  # fmt: skip
    after = encode(Symbol("x-opt-attempt")) + b"\x70"
    size = len(offset) + 8 + len(between) + 9 + len(after) + 4
    head = compound(0xC1, 0xD1, 10 if named else 8, bytes(size))[:-size]
    return _SECTION + head + offset, between, after


def _texts(
    offsets: Int32s | None, data: memoryview, first_row: int, end: int
) -> list[bytes] | None:
    """Return a column of texts, one for each row; None if the batch does not have the column."""
    if offsets is None:
        return None
    at = offsets[first_row : end + 1].tolist()
    low, size, count = at[0], at[1] - at[0], end - first_row
    raw = bytes(data[low : at[-1]])
    if count > 1 and size and at == [*range(low, at[-1] + 1, size)] and raw == raw[:size] * count:
        return [raw[:size]] * count  # often all messages have the same envelope
    return [raw[start - low : stop - low] for start, stop in pairwise(at)]
