"""The records of the progress page: leases of a cursor, and how far it has delivered. Pure.

A record has leases of one member with one deadline, or no lease. If a lease is in several records,
the newest of them is valid. The newest record of a cursor in an epoch also stores how far
deliveries went. Whether a lease has ended is stored in the rows of the cursor (rows.py), not here.

    offset  size  field
         0     4  CRC of the rest of the record, which has `length` bytes in all
         4     4  length
         8    12  group id, topic id, queue
        20     4  epoch
        24     8  sequence number: each record has a higher one
        32     8  next
        40     8  deadline_ms of the leases; 0 if they are over at the next start
        48     8  when the leases were given, ms
        56     2  number of ranges
        58     2  flags: 1 GRACE, 2 HEADS
        60     1  length of the member's name in bytes
        61     1  length of the attempt id in bytes, 0 if there is none
        62     2  zero
        64        with GRACE: seen_below u64, bound u64, end_ms u64, boot u32, oldest boot u32
                  for each range: offset u64, first lease number u64, count u32, attempt u32
                  with HEADS, for each lease: key u64, size u32, expires_at_ms u64
                  member, attempt id, in UTF-8

All numbers are little-endian. A record begins at a multiple of 64 bytes, and takes 64 bytes or a
larger power of two. Where a reader finds no record, it continues 64 bytes later.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from holdfast.commitlog.format.checksum import crc32c
from holdfast.groups.cursor.cursor import Cursor, CursorKey
from holdfast.groups.cursor.heads import UNKNOWN_SIZE, Head
from holdfast.groups.cursor.leases import NO_DEADLINE, OVER, Lease

UNIT = 64
#: A range has at most this many leases. This is more than one receive can request.
_MOST_LEASES = 1 << 24
_GRACE, _HEADS = 1, 2
_CRC = struct.Struct("<I")
_HEADER = struct.Struct("<IIIIIIQQQQHHBBH")
_GRACE_FIELDS = struct.Struct("<QQQII")
_RANGE = struct.Struct("<QQII")
_HEAD = struct.Struct("<QIQ")


@dataclass(slots=True)
class Progress:
    """The state of a cursor in one epoch, as stored in the progress page."""

    epoch: int
    next: int
    # With the flag GRACE, the record has the next five fields, in this order.
    #: Offsets below `seen_below` that are not done may have been delivered before.
    seen_below: int = 0
    grace_bound: int = 0
    grace_end_ms: int = 0
    grace_boot: int = 0
    oldest_boot: int = 0
    leases: dict[int, Lease] = field(default_factory=dict)


class Record(msgspec.Struct, frozen=True):
    """One record, decoded."""

    key: CursorKey
    sequence: int
    progress: Progress


def size_of(length: int) -> int:
    """Return how many bytes of the page a record of `length` bytes takes."""
    return max(UNIT, 1 << (length - 1).bit_length())


def encode_record(key: CursorKey, cursor: Cursor, sequence: int, leases: Sequence[Lease]) -> bytes:
    """Return the bytes of a record. The leases must have the same member, deadline, delivery time
    and attempt id. There may be no lease."""
    first = leases[0] if leases else None
    deadline_ms = 0 if first is None else first.deadline_ms
    if deadline_ms == NO_DEADLINE:
        deadline_ms = OVER
    member = b"" if first is None else first.member.encode()
    attempt_id = b"" if first is None else (first.attempt_id or "").encode()
    parts, flags = [b""], 0
    # Store seen_below even if the floor is above it: a kill may lose settlements not yet written.
    if cursor.seen_below or cursor.grace_bound:
        flags |= _GRACE
        end_ms = cursor.grace_end_ms if cursor.grace_bound else 0
        grace = cursor.seen_below, cursor.grace_bound, end_ms, cursor.grace_boot, cursor.oldest_boot
        parts.append(_GRACE_FIELDS.pack(*grace))
    ranges = _ranges(leases)
    parts += ranges
    heads = [each.head for each in leases]
    if cursor.keeps_heads or any([head.key or head.expires_at_ms for head in heads]):  # noqa: C419
        flags |= _HEADS
        parts += [
            _HEAD.pack(head.key, min(head.size_bytes, UNKNOWN_SIZE), head.expires_at_ms)
            for head in heads
        ]
    parts += [member, attempt_id]
    length = _HEADER.size + sum(map(len, parts))
    parts[0] = _HEADER.pack(
        0, length, *key, cursor.epoch, sequence, cursor.next,
        deadline_ms, 0 if first is None else first.delivered_ms,
        len(ranges), flags, len(member), len(attempt_id), 0,
    )  # fmt: skip
    body = b"".join(parts)[_CRC.size :]
    return (_CRC.pack(crc32c(body)) + body).ljust(size_of(length), b"\0")


def _ranges(leases: Sequence[Lease]) -> list[bytes]:
    """Return the leases as encoded ranges. Leases with consecutive offsets and numbers and the same
    attempt share a range."""
    if not leases:
        return []
    if len(leases) == 1:
        (one,) = leases
        return [_RANGE.pack(one.head.offset, one.number, 1, min(one.attempt, 0xFFFF_FFFF))]
    begins = [0]
    begins += [
        at
        for at, (one, other) in enumerate(pairwise(leases), 1)
        if other.head.offset != one.head.offset + 1
        or other.number != one.number + 1
        or other.attempt != one.attempt
    ]
    ranges = []
    for begin, end in pairwise([*begins, len(leases)]):
        first = leases[begin]
        attempt = min(first.attempt, 0xFFFF_FFFF)
        ranges.append(_RANGE.pack(first.head.offset, first.number, end - begin, attempt))
    return ranges


def read_records(content: bytes, start: int) -> Iterator[Record]:
    """Yield every record from the position `start` on, in the order of their positions."""
    at = start
    while at + UNIT <= len(content):
        length = int.from_bytes(content[at + 4 : at + 8], "little")
        record = _decode(content[at : at + length]) if length >= _HEADER.size else None
        if record is not None:
            yield record
        at += UNIT if record is None else size_of(length)


def _decode(image: bytes) -> Record | None:
    """Return the record, or None if the bytes are not a record."""
    (crc,) = _CRC.unpack_from(image)
    if crc != crc32c(image[_CRC.size :]):
        return None
    try:
        return _parse(image)
    except (struct.error, UnicodeDecodeError):
        return None


def _parse(image: bytes) -> Record:
    """Return the record whose checksum is correct. Raises struct.error, UnicodeDecodeError."""
    _, length, group_id, topic_id, queue, epoch, sequence, next_, deadline_ms, delivered_ms, \
        ranges, flags, member_bytes, attempt_bytes, _ = _HEADER.unpack_from(image)  # fmt: skip
    if length != len(image):
        raise struct.error(f"{len(image)} bytes, not {length}")
    at, progress = _HEADER.size, Progress(epoch, next_)
    if flags & _GRACE:
        progress = Progress(epoch, next_, *_GRACE_FIELDS.unpack_from(image, at))
        at += _GRACE_FIELDS.size
    found: list[tuple[int, int, int]] = []
    for _ in range(ranges):
        offset, number, count, attempt = _RANGE.unpack_from(image, at)
        at += _RANGE.size
        if count > _MOST_LEASES:
            raise struct.error("more leases than there can be")
        found += [(offset + each, number + each, attempt) for each in range(count)]
    heads = [Head(offset) for offset, _, _ in found]
    if flags & _HEADS:
        for index, (offset, _, _) in enumerate(found):
            key, size_bytes, expires_at_ms = _HEAD.unpack_from(image, at)
            at += _HEAD.size
            heads[index] = Head(offset, size_bytes, key, expires_at_ms)
    member = image[at : at + member_bytes].decode()
    at += member_bytes
    attempt_id = image[at : at + attempt_bytes].decode() or None
    for (offset, number, attempt), head in zip(found, heads, strict=True):
        progress.leases[offset] = Lease(
            head, member, number, deadline_ms, delivered_ms, attempt, attempt_id=attempt_id
        )
    return Record((group_id, topic_id, queue), sequence, progress)


def progress_by_epoch(records: Iterator[Record]) -> dict[CursorKey, dict[int, Progress]]:
    """Merge records into the progress of each cursor in each of its epochs."""
    found: dict[CursorKey, dict[int, Progress]] = {}
    for record in sorted(records, key=lambda each: each.sequence):
        epochs = found.setdefault(record.key, {})
        newest, before = record.progress, epochs.get(record.progress.epoch)
        if before is not None:
            newest.leases = before.leases | newest.leases
        epochs[newest.epoch] = newest
    return found
