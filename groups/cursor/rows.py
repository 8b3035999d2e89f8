"""The rows in which a cursor is stored, byte by byte. Pure.

All numbers are big-endian, so that the rows of a queue are adjacent and in order. A key begins
with group id u32, topic id u32, queue u32.

    table   key, after that   value
    cur     -                 floor u64, reserved_next u64, epoch u32, oldest boot u32,
                              dead u64, expired u64, lost u64: to retention, to damage
    ack     chunk u64         1,024 bits, the lowest offset in the lowest bit of the first byte;
                              or one byte 1 if all bits are set
    att     offset u64        failures u16 (65535: rejected), acquisitions u32, ready_at_ms u64,
                              the last lease that ended u64 (0: unknown), its end u8, boot u32
    dead    offset u64        position of its record in the dead-letter topic (2^64-1: none) u64,
                              the lease that settled it u64, its end u8
    act     (the key is the   the active member of a single active or exclusive group, in UTF-8
            group id only)

The end of a lease is 1 acked, 2 nacked, 3 released, 4 rejected, 5 expired, 6 revoked, 7 dropped, or
0 unknown. In layout 1 an `att` value has 12 bytes (failures u16, acquisitions u16, ready_at_ms u64)
and a `dead` value has 8 bytes (the position). Old `att` rows are still decoded, old `dead` rows are
deleted.

storage/cursor_store.py adds a checksum to each value.
"""

import struct
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import NamedTuple

from holdfast.groups.cursor.settled_offsets import CHUNK, FULL

CUR, ACK, ATT, DEAD, ACTIVE = TABLES = "cur", "ack", "att", "dead", "act"
#: Stored instead of the number of failures if the message was rejected.
REJECTED = 0xFFFF
#: The position of a dead message that is not in a dead-letter topic.
NOT_KEPT = 0xFFFF_FFFF_FFFF_FFFF

_FULL_MARKER = b"\x01"
_GROUP = struct.Struct(">I")
_PREFIX = struct.Struct(">III")
_NUMBER = struct.Struct(">Q")
#: Larger than every key.
_BEYOND = b"\xff" * (_PREFIX.size + _NUMBER.size + 1)
_CUR = struct.Struct(">QQIIQQQ")
_ATT = struct.Struct(">HIQQBI")
_OLD_ATT = struct.Struct(">HHQ")
_DEAD = struct.Struct(">QQB")


CursorKey = tuple[int, int, int]
"""(group id, topic id, queue): identifies a cursor."""


class Write(NamedTuple):
    """One row to write. If `value` is None, the row is deleted."""

    table: str
    key: bytes
    value: bytes | None


class DeleteRange(NamedTuple):
    """The deletion of every row with start <= key < end."""

    table: str
    start: bytes
    end: bytes


@dataclass(frozen=True, slots=True)
class CursorRow:
    """The fields of a `cur` row."""

    floor: int
    reserved_next: int
    epoch: int
    #: All leases from broker starts with a lower number than this have ended.
    oldest_boot: int = 0
    dead: int = 0
    expired: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class AttemptsRow:
    """The fields of an `att` row."""

    failures: int
    acquisitions: int
    ready_at_ms: int
    #: The number of the last lease that ended; 0 if unknown.
    last_lease: int = 0
    #: How that lease ended, as a number; 0 if unknown.
    last_end: int = 0
    #: The start of the broker in which this row was last changed.
    boot: int = 0


class SettledRow(NamedTuple):
    """The fields of a `dead` row."""

    position: int
    lease: int
    end: int


def key_prefix(group_id: int, topic_id: int, queue: int) -> bytes:
    """Return the prefix of the keys of one cursor's rows. The key of the `cur` row is only this
    prefix."""
    return _PREFIX.pack(group_id, topic_id, queue)


def parse_prefix(key: bytes) -> tuple[int, int, int]:
    """Return (group id, topic id, queue) of a key."""
    group_id, topic_id, queue = _PREFIX.unpack_from(key)
    return group_id, topic_id, queue


def numbered_key(prefix: bytes, number: int) -> bytes:
    """Return the key of a chunk or an offset."""
    return prefix + _NUMBER.pack(number)


def key_number(key: bytes) -> int:
    """Return the chunk or offset in a key."""
    number: int = _NUMBER.unpack_from(key, _PREFIX.size)[0]
    return number


def all_numbers(table: str, prefix: bytes, below: int = NOT_KEPT) -> DeleteRange:
    """Return the deletion of the rows of one cursor in a table whose chunk number or offset is
    below `below`."""
    return DeleteRange(table, numbered_key(prefix, 0), numbered_key(prefix, below))


def all_of(*owner: int) -> list[DeleteRange]:
    """Return the deletion of all rows of a group; `owner` is its id. With (group id, topic id),
    delete only the rows of that topic; with (group id, topic id, queue), only those of one
    cursor."""
    start = b"".join(map(_GROUP.pack, owner))
    number = int.from_bytes(start, "big") + 1
    is_last = number >> 8 * len(start)
    end = _BEYOND if is_last else number.to_bytes(len(start), "big")
    return [DeleteRange(table, start, end) for table in TABLES]


#: Functions that return the fields of a row in the order of their bytes. dataclasses.astuple would
#: also copy the fields, which takes 50 microseconds.
_CURSOR_FIELDS = attrgetter(*(each.name for each in fields(CursorRow)))
_ATTEMPTS_FIELDS = attrgetter(*(each.name for each in fields(AttemptsRow)))


def encode_cursor(row: CursorRow) -> bytes:
    """Return a `cur` value."""
    return _CUR.pack(*_CURSOR_FIELDS(row))


def decode_cursor(value: bytes) -> CursorRow:
    """Return the row of a `cur` value. Raises struct.error if the size is wrong."""
    return CursorRow(*_CUR.unpack(value))


def encode_chunk(bits: int) -> bytes:
    """Return an `ack` value."""
    return _FULL_MARKER if bits == FULL else bits.to_bytes(CHUNK // 8, "little")


def decode_chunk(value: bytes) -> int:
    """Return the bits of an `ack` value. Raises ValueError if the size is wrong."""
    if value == _FULL_MARKER:
        return FULL
    if len(value) != CHUNK // 8:
        raise ValueError(f"a chunk has 1 or {CHUNK // 8} bytes, not {len(value)}")
    return int.from_bytes(value, "little")


def encode_attempts(row: AttemptsRow) -> bytes:
    """Return an `att` value; a count that does not fit is stored as the largest value."""
    failures, acquisitions, *rest = _ATTEMPTS_FIELDS(row)
    return _ATT.pack(failures, min(acquisitions, 0xFFFF_FFFF), *rest)


def decode_attempts(value: bytes) -> AttemptsRow:
    """Return the row of an `att` value. Raises struct.error if the size is wrong."""
    if len(value) == _OLD_ATT.size:
        return AttemptsRow(*_OLD_ATT.unpack(value))
    return AttemptsRow(*_ATT.unpack(value))


def encode_settled(row: SettledRow) -> bytes:
    """Return a `dead` value."""
    return _DEAD.pack(*row)


def decode_settled(value: bytes) -> SettledRow | None:
    """Return the row of a `dead` value; None if it is of layout 1. Raises struct.error if the size
    is wrong."""
    return None if len(value) == _NUMBER.size else SettledRow(*_DEAD.unpack(value))


def group_key(group_id: int) -> bytes:
    """Return the key of a group's `act` row."""
    return _GROUP.pack(group_id)


def parse_group(key: bytes) -> int:
    """Return the group id of an `act` row's key."""
    group_id: int = _GROUP.unpack(key)[0]
    return group_id
