"""The rows that a cursor is kept in, byte by byte. Pure.

All numbers are big-endian, so that the rows of a queue lie together and in order. A key begins
with group id u32, topic id u32, queue u32.

    table   key, after that   value
    cur     -                 floor u64, reserved_next u64, epoch u32, oldest boot u32,
                              dead u64, expired u64, lost u64: to retention, to damage
    ack     chunk u64         1,024 bits, the lowest offset in the lowest bit of the first byte;
                              or one byte 1: all of them
    att     offset u64        failures u16 (65535: rejected), acquisitions u16, ready_at_ms u64
    dead    offset u64        position of its record in the dead-letter topic; 2^64-1: not kept

Checksums are the table's business, not the rows'.
"""

import struct
from dataclasses import astuple, dataclass
from typing import NamedTuple

from holdfast.groups.done_chunks import CHUNK, FULL

CUR, ACK, ATT, DEAD = TABLES = "cur", "ack", "att", "dead"
#: In place of a count of failures: rejected, whatever the count.
REJECTED = 0xFFFF
#: Where a dead message's record is when the group keeps no dead letters.
NOT_KEPT = 0xFFFF_FFFF_FFFF_FFFF

_FULL_MARKER = b"\x01"
_GROUP = struct.Struct(">I")
_PREFIX = struct.Struct(">III")
_NUMBER = struct.Struct(">Q")
#: Behind every key.
_BEYOND = b"\xff" * (_PREFIX.size + _NUMBER.size + 1)
_CUR = struct.Struct(">QQIIQQQ")
_ATT = struct.Struct(">HHQ")


CursorKey = tuple[int, int, int]
"""(group id, topic id, queue): one cursor."""


class Write(NamedTuple):
    """One row to put; `value` None: to delete."""

    table: str
    key: bytes
    value: bytes | None


class DeleteRange(NamedTuple):
    """Every row with start <= key < end goes."""

    table: str
    start: bytes
    end: bytes


@dataclass(frozen=True, slots=True)
class CursorRow:
    """What the `cur` row says."""

    floor: int
    reserved_next: int
    epoch: int
    #: Leases of earlier starts of the broker have ended.
    oldest_boot: int = 0
    dead: int = 0
    expired: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class AttemptsRow:
    """What an `att` row says."""

    failures: int
    acquisitions: int
    ready_at_ms: int


def key_prefix(group_id: int, topic_id: int, queue: int) -> bytes:
    """Return what every key of one cursor begins with: the whole key of its `cur` row."""
    return _PREFIX.pack(group_id, topic_id, queue)


def parse_prefix(key: bytes) -> tuple[int, int, int]:
    """Return (group id, topic id, queue) of any key."""
    group_id, topic_id, queue = _PREFIX.unpack_from(key)
    return group_id, topic_id, queue


def numbered_key(prefix: bytes, number: int) -> bytes:
    """Return the key of a chunk or an offset."""
    return prefix + _NUMBER.pack(number)


def key_number(key: bytes) -> int:
    """Return the chunk or offset that a key names."""
    number: int = _NUMBER.unpack_from(key, _PREFIX.size)[0]
    return number


def all_numbers(table: str, prefix: bytes, below: int = NOT_KEPT) -> DeleteRange:
    """Return the deletion of a cursor's rows in a table, up to a chunk or an offset."""
    return DeleteRange(table, numbered_key(prefix, 0), numbered_key(prefix, below))


def all_of(*owner: int) -> list[DeleteRange]:
    """Return the deletion of all that a group has (group id), that it has of a topic (group id,
    topic id), or of one queue (group id, topic id, queue)."""
    start = b"".join(map(_GROUP.pack, owner))
    number = int.from_bytes(start, "big") + 1
    is_last = number >> 8 * len(start)
    end = _BEYOND if is_last else number.to_bytes(len(start), "big")
    return [DeleteRange(table, start, end) for table in TABLES]


def encode_cursor(row: CursorRow) -> bytes:
    """Return a `cur` value."""
    return _CUR.pack(*astuple(row))


def decode_cursor(value: bytes) -> CursorRow:
    """Return what a `cur` value says. Raises struct.error for one of another size."""
    return CursorRow(*_CUR.unpack(value))


def encode_chunk(bits: int) -> bytes:
    """Return an `ack` value."""
    return _FULL_MARKER if bits == FULL else bits.to_bytes(CHUNK // 8, "little")


def decode_chunk(value: bytes) -> int:
    """Return the bits of an `ack` value. Raises ValueError for one of another size."""
    if value == _FULL_MARKER:
        return FULL
    if len(value) != CHUNK // 8:
        raise ValueError(f"a chunk has 1 or {CHUNK // 8} bytes, not {len(value)}")
    return int.from_bytes(value, "little")


def encode_attempts(row: AttemptsRow) -> bytes:
    """Return an `att` value; counts stop at what fits."""
    return _ATT.pack(row.failures, min(row.acquisitions, 0xFFFF), row.ready_at_ms)


def decode_attempts(value: bytes) -> AttemptsRow:
    """Return what an `att` value says. Raises struct.error for one of another size."""
    return AttemptsRow(*_ATT.unpack(value))


def encode_dead(position: int) -> bytes:
    """Return a `dead` value."""
    return _NUMBER.pack(position)


def decode_dead(value: bytes) -> int:
    """Return the position that a `dead` value says. Raises struct.error."""
    position: int = _NUMBER.unpack(value)[0]
    return position
