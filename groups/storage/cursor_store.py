"""Stores the rows of all cursors in `state/groups/`, a separate LMDB environment.

    key                                        value
    \0format                                   holdfast-groups-1 (without a CRC)
    \0boot                                     the number of broker starts, u64
    \0clock                                    the latest broker time of any change, ms, u64
    \0copied                                   u64 0; only in a backup, until a broker opens it
    table 1 to 5 | key of cursor/rows.py           value of cursor/rows.py: cur, ack, att, dead, act

A table is one byte. All numbers are big-endian. A value ends with the CRC (u32, little-endian) of
key and value. Damaged rows are reported and ignored; restore.py decides how to restore their
cursors.
"""

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import lmdb

from holdfast.commitlog.disk.owned_files import FILE_MODE
from holdfast.commitlog.format.checksum import crc32c
from holdfast.consumequeue.lmdb_env.env import CORRUPT, check_env_files
from holdfast.consumequeue.lmdb_env.synced_store import FORMAT_KEY, Done, SyncedStore
from holdfast.groups.cursor import rows
from holdfast.groups.cursor.cursor import CursorKey
from holdfast.groups.cursor.rows import ACK, ACTIVE, ATT, CUR, DEAD, DeleteRange, Write
from holdfast.groups.storage.restore import StoredCursors

Writes = Sequence[Write | DeleteRange]

_BOOT_KEY, _CLOCK_KEY, _COPIED_KEY = b"\0boot", b"\0clock", b"\0copied"
#: The bytes of the tables. `cur` is the first table, so a cursor's `cur` row is read before its
#: other rows.
_NUMBERS = {CUR: b"\1", ACK: b"\2", ATT: b"\3", DEAD: b"\4", ACTIVE: b"\5"}
_TABLES = {number[0]: table for table, number in _NUMBERS.items()}
_NUMBER = struct.Struct(">Q")
_CRC = struct.Struct("<I")


class CursorsCorrupt(Exception):
    """The environment is damaged as a whole, so every cursor must begin again."""


class _Change(NamedTuple):
    writes: Writes
    now_ms: int


class CursorStore(SyncedStore[_Change]):
    """The rows of all cursors. Any thread may call `commit`; its `done` is called in the store's
    own thread."""

    FORMAT = b"holdfast-groups-1"
    THREAD_NAME = "holdfast-groups"
    CORRUPT_ERROR = CursorsCorrupt

    def _read(self, txn: "lmdb.Transaction[bytes]") -> None:
        self.boot = 0 if self.is_new else _number(txn, _BOOT_KEY)
        """How many starts of the broker have opened the environment. `begin` counts this start."""
        self.clock_ms = 0 if self.is_new else _number(txn, _CLOCK_KEY)
        """The largest `now_ms` of all committed changes."""
        self.is_copy = txn.get(_COPIED_KEY) is not None
        """Whether the environment is from a backup. Then the offsets may belong to other messages
        now."""

    def load(self) -> StoredCursors:
        """Return the content of all rows. Raises CursorsCorrupt if LMDB's pages are damaged."""
        with self.env.transaction() as txn:
            try:
                return load_rows(txn)
            except CORRUPT as error:
                raise CursorsCorrupt(str(error)) from error

    # -- writing ---------------------------------------------------------------------------

    def begin(self, writes: Writes, damaged: Sequence[bytes] = ()) -> None:
        """Count a start of the broker, delete the rows whose keys are in `damaged`, and store
        `writes`, durably. Must be called before `start`. Raises StateFull, StateUnavailable."""

        def put() -> None:
            with self.env.transaction(write=True) as txn:
                for key in damaged:
                    txn.delete(key)
                txn.put(FORMAT_KEY, self.FORMAT)
                _put(txn, _BOOT_KEY, _NUMBER.pack(self.boot + 1))
                _put(txn, _CLOCK_KEY, _NUMBER.pack(self.clock_ms))
                txn.delete(_COPIED_KEY)
                _apply(txn, writes)

        self._write_with_room(put)
        self.boot += 1
        self.is_new = self.is_copy = False

    def forget(self, damaged: Sequence[bytes], cursors: Iterable[CursorKey]) -> None:
        """Delete the rows whose keys are in `damaged`, and all rows of `cursors`, durably. Must be
        called before `start`. Raises StateFull, StateUnavailable."""
        ranges = [each for key in cursors for each in rows.all_of(*key)]

        def put() -> None:
            with self.env.transaction(write=True) as txn:
                for key in damaged:
                    txn.delete(key)
                _apply(txn, ranges)

        self._write_with_room(put)

    def commit(self, writes: Writes, done: Done, *, now_ms: int = 0) -> None:
        """Queue writes for the next transaction. Either all are stored, in this order, or none.
        `done` is called in the store's thread, with None when they are durable, or with StateFull
        or StateUnavailable. `now_ms` is the broker's time."""
        self._waiting.put((_Change(writes, now_ms), done))

    def _put(self, changes: Sequence[_Change]) -> None:
        clock_ms = max((change.now_ms for change in changes), default=0)
        with self.env.transaction(write=True) as txn:
            if not changes:
                txn.put(FORMAT_KEY, self.FORMAT)
            if clock_ms > self.clock_ms:
                _put(txn, _CLOCK_KEY, _NUMBER.pack(clock_ms))
            for change in changes:
                _apply(txn, change.writes)

    def _on_commit(self, change: _Change) -> None:
        self.clock_ms = max(self.clock_ms, change.now_ms)


# -- rows, byte by byte ----------------------------------------------------------------------


def load_rows(txn: "lmdb.Transaction[bytes]") -> StoredCursors:
    """Return the content of all rows. Raises one of CORRUPT if LMDB's pages are damaged."""
    found = StoredCursors()
    for key, value in txn.cursor():
        if key[0]:
            _take(found, key, value)
    return found


def _take(found: StoredCursors, key: bytes, value: bytes) -> None:
    """Add one row to `found`. If it is damaged, add its key to `found.damaged`."""
    intact, table = _checked(key, value), _TABLES.get(key[0])
    try:
        if intact is None or table is None:
            raise ValueError
        found.add(table, key[1:], intact)
    except (ValueError, struct.error):
        found.damaged.append(key)


def _apply(txn: "lmdb.Transaction[bytes]", writes: Writes) -> None:
    for write in writes:
        if isinstance(write, DeleteRange):
            number = _NUMBERS[write.table]
            _delete_range(txn, number + write.start, number + write.end)
            continue
        key, value = stored_row(write)
        if value is None:
            txn.delete(key)
        else:
            txn.put(key, value)


def stored_row(write: Write) -> tuple[bytes, bytes | None]:
    """Return the key and value of a row as stored. The value is None if the row must be deleted."""
    key = _NUMBERS[write.table] + write.key
    value = write.value
    return key, None if value is None else value + _CRC.pack(crc32c(key + value))


def _delete_range(txn: "lmdb.Transaction[bytes]", start: bytes, end: bytes) -> None:
    with txn.cursor() as cursor:
        cursor.set_range(start)
        while cursor.key() and cursor.key() < end:  # the key b"" means the end
            cursor.delete()


def has_rows(txn: "lmdb.Transaction[bytes]") -> bool:
    """Return whether an environment has any cursor. Raises one of CORRUPT if it has another
    format."""
    if txn.get(FORMAT_KEY) != CursorStore.FORMAT:
        raise lmdb.InvalidError("no cursors of this format")
    with txn.cursor() as cursor:
        return bool(cursor.set_range(b"\1"))


def mark_as_copy(directory: Path) -> None:
    """Mark an environment as a copy, for a backup. Raises lmdb.Error, OSError."""
    check_env_files(directory)
    size = (directory / "data.mdb").stat().st_size
    env = lmdb.open(str(directory), map_size=size + 2**24, mode=FILE_MODE)
    try:
        with env.begin(write=True) as txn:
            _put(txn, _COPIED_KEY, _NUMBER.pack(0))
    finally:
        env.close()


def _put(txn: "lmdb.Transaction[bytes]", key: bytes, value: bytes) -> None:
    txn.put(key, value + _CRC.pack(crc32c(key + value)))


def _checked(key: bytes, value: bytes) -> bytes | None:
    """Return a value without its CRC; None if the CRC is wrong."""
    intact = value[:-4]
    return intact if value[-4:] == _CRC.pack(crc32c(key + intact)) else None


def _number(txn: "lmdb.Transaction[bytes]", key: bytes) -> int:
    value = txn.get(key)
    intact = None if value is None else _checked(key, value)
    if intact is None or len(intact) != _NUMBER.size:
        raise CursorsCorrupt(f"{key!r} is damaged")
    number: int = _NUMBER.unpack(intact)[0]
    return number
