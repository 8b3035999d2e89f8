"""The rows of all cursors on the disk: `state/groups/`, an LMDB environment of its own.

    key                                        value
    \0format                                   holdfast-groups-1 (without a CRC)
    \0boot                                     how often a broker has opened it, u64
    \0clock                                    the greatest broker time of any change, ms, u64
    \0copied                                   there in a copy until it is first opened: u64 0
    table 1 to 4 | key of rows.py              value of rows.py: cur, ack, att, dead

A table is one byte; all numbers are big-endian. A value ends in the CRC (u32, little-endian) of
key and value. What is damaged is named and left out; what that means for a cursor is said in
restoring.py.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import lmdb

from holdfast.commitlog.checksum import crc32c
from holdfast.consumequeue.errors import StateUnavailable
from holdfast.consumequeue.group_commit import Done, GroupCommit, write_with_room
from holdfast.consumequeue.lmdb_env import CORRUPT, open_env
from holdfast.groups import rows
from holdfast.groups.rows import ACK, ATT, CUR, DEAD, CursorKey, DeleteRange, Write
from holdfast.groups.stored_cursors import StoredCursors

FORMAT = b"holdfast-groups-1"
#: Changes of groups that one synced transaction takes at most.
MAX_GROUP = 1024

Writes = Sequence[Write | DeleteRange]

_FORMAT_KEY, _BOOT_KEY, _CLOCK_KEY, _COPIED_KEY = b"\0format", b"\0boot", b"\0clock", b"\0copied"
#: In their order: `cur` comes first, so that a cursor is known before its other rows.
_NUMBERS = {CUR: b"\1", ACK: b"\2", ATT: b"\3", DEAD: b"\4"}
_TABLES = {number[0]: table for table, number in _NUMBERS.items()}
_NUMBER = struct.Struct(">Q")
_CRC = struct.Struct("<I")


class CursorsCorrupt(Exception):
    """The environment cannot be trusted as a whole: every cursor begins anew."""


class _Change(NamedTuple):
    writes: Writes
    now_ms: int


class CursorStore:
    """The rows. `commit` may be called from any thread; `done` is called in the store's own."""

    def __init__(
        self,
        directory: Path,
        map_size_bytes: int,
        *,
        readonly: bool = False,
        disk_full: Callable[[], None] = lambda: None,
    ) -> None:
        """Open or create; with `readonly` it must exist, and is left as it is.

        `disk_full` is called, in the store's thread, when the disk refused a change; the change
        is tried once more then. Raises CursorsCorrupt for what is no such environment; other
        lmdb.Errors and OSError pass through.
        """
        self._disk_full = disk_full
        self._commits: GroupCommit[_Change] = GroupCommit(
            "holdfast-groups", MAX_GROUP, self._commit_group
        )
        try:
            self._env = open_env(directory, map_size_bytes, readonly=readonly)
        except CORRUPT as error:
            raise CursorsCorrupt(str(error)) from error
        try:
            with self._env.begin() as txn:
                self._read_head(txn)
        except CORRUPT as error:
            self._env.close()
            raise CursorsCorrupt(str(error)) from error
        except CursorsCorrupt:
            self._env.close()
            raise

    def _read_head(self, txn: "lmdb.Transaction[bytes]") -> None:
        found = txn.get(_FORMAT_KEY)
        self.is_new = found is None
        """Whether it has never been opened for writing."""
        if found not in (None, FORMAT):
            raise CursorsCorrupt(f"format {found!r}, not {FORMAT!r}")
        self.boot = 0 if self.is_new else _number(txn, _BOOT_KEY)
        """How often it was opened: the broker's starts, this one included after `begin`."""
        self.clock_ms = 0 if self.is_new else _number(txn, _CLOCK_KEY)
        """The greatest `now_ms` of a change that was committed before it was opened."""
        self.is_copy = txn.get(_COPIED_KEY) is not None
        """Whether it is from a backup: offsets may have gone another way since."""

    def load(self) -> StoredCursors:
        """Return what all rows say. CursorsCorrupt: the pages are damaged."""
        with self._env.begin() as txn:
            try:
                return load_rows(txn)
            except CORRUPT as error:
                raise CursorsCorrupt(str(error)) from error

    def dead_letters(self, key: CursorKey, start: int = 0) -> Iterator[tuple[int, int]]:
        """Yield (offset, position of its record) of a cursor's dead letters, from an offset on.
        Any thread but the event loop; damaged rows are passed over."""
        prefix = _NUMBERS[DEAD] + rows.key_prefix(*key)
        with self._env.begin() as txn, txn.cursor() as cursor:
            if not cursor.set_range(rows.numbered_key(prefix, start)):
                return
            for at, value in cursor:
                if not at.startswith(prefix):
                    return
                intact = _checked(at, value)
                if intact is not None:
                    yield rows.key_number(at[1:]), rows.decode_dead(intact)

    # -- writing ---------------------------------------------------------------------------

    def begin(self, writes: Writes, damaged: Sequence[bytes] = ()) -> None:
        """Note another start of the broker and store `writes`, durably; before `start`. Rows
        named by `damaged` go first. Raises StateFull, StateUnavailable."""

        def put() -> None:
            with self._env.begin(write=True) as txn:
                for key in damaged:
                    txn.delete(key)
                txn.put(_FORMAT_KEY, FORMAT)
                _put(txn, _BOOT_KEY, _NUMBER.pack(self.boot + 1))
                _put(txn, _CLOCK_KEY, _NUMBER.pack(self.clock_ms))
                txn.delete(_COPIED_KEY)
                _apply(txn, writes)

        write_with_room(self._env, put, self._disk_full)
        self.boot += 1
        self.is_new = self.is_copy = False

    def forget(self, damaged: Sequence[bytes], cursors: Iterable[CursorKey]) -> None:
        """Delete damaged rows, and all rows of some cursors, durably; before `start`. Raises
        StateFull, StateUnavailable."""
        ranges = [each for key in cursors for each in rows.all_of(*key)]

        def put() -> None:
            with self._env.begin(write=True) as txn:
                for key in damaged:
                    txn.delete(key)
                _apply(txn, ranges)

        write_with_room(self._env, put, self._disk_full)

    def start(self) -> None:
        """Start the thread that commits."""
        self._commits.start()

    def stop(self) -> None:
        """Commit what waits, end the thread, close the environment; may be called twice."""
        self._commits.stop()
        self._env.close()

    def commit(self, writes: Writes, done: Done, *, now_ms: int = 0) -> None:
        """Queue writes: all of them are stored, in this order, or none. `done` is called in the
        store's thread: None, StateFull or StateUnavailable. `now_ms`: the broker's time now."""
        self._commits.submit(_Change(writes, now_ms), done)

    # -- the store's thread ----------------------------------------------------------------

    def _commit_group(self, group: list[tuple[_Change, Done]]) -> None:
        error: Exception | None = None
        try:
            self._write([change for change, _ in group])
        except StateUnavailable as failure:
            error = failure
        for _, done in group:
            done(error)

    def _write(self, changes: list[_Change]) -> None:
        write_with_room(self._env, lambda: self._put(changes), self._disk_full)
        self.clock_ms = max(self.clock_ms, *(change.now_ms for change in changes))

    def _put(self, changes: list[_Change]) -> None:
        clock_ms = max(change.now_ms for change in changes)
        with self._env.begin(write=True) as txn:
            if clock_ms > self.clock_ms:
                _put(txn, _CLOCK_KEY, _NUMBER.pack(clock_ms))
            for change in changes:
                _apply(txn, change.writes)


# -- rows, byte by byte ----------------------------------------------------------------------


def load_rows(txn: "lmdb.Transaction[bytes]") -> StoredCursors:
    """Return what all rows say. CORRUPT is raised where pages are damaged."""
    found = StoredCursors()
    for key, value in txn.cursor():
        if key[0]:
            _take(found, key, value)
    return found


def _take(found: StoredCursors, key: bytes, value: bytes) -> None:
    """Add one row to what was found, or its key to what is damaged."""
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
    """Return the key and the value that a row has on the disk; the value None: it is deleted."""
    key = _NUMBERS[write.table] + write.key
    value = write.value
    return key, None if value is None else value + _CRC.pack(crc32c(key + value))


def _delete_range(txn: "lmdb.Transaction[bytes]", start: bytes, end: bytes) -> None:
    with txn.cursor() as cursor:
        cursor.set_range(start)
        while cursor.key() and cursor.key() < end:  # b"": there is no more
            cursor.delete()


def has_rows(txn: "lmdb.Transaction[bytes]") -> bool:
    """Say whether an environment has any cursor. CORRUPT is raised for what is none of ours."""
    if txn.get(_FORMAT_KEY) != FORMAT:
        raise lmdb.InvalidError("no cursors of this format")
    with txn.cursor() as cursor:
        return bool(cursor.set_range(b"\1"))


def mark_as_copy(directory: Path) -> None:
    """Note in a copy of an environment that it is one. lmdb.Error and OSError pass through."""
    size = (directory / "data.mdb").stat().st_size
    env = lmdb.open(str(directory), map_size=size + 2**24)
    try:
        with env.begin(write=True) as txn:
            _put(txn, _COPIED_KEY, _NUMBER.pack(0))
    finally:
        env.close()


def _put(txn: "lmdb.Transaction[bytes]", key: bytes, value: bytes) -> None:
    txn.put(key, value + _CRC.pack(crc32c(key + value)))


def _checked(key: bytes, value: bytes) -> bytes | None:
    """Return a value without its CRC, None when that does not fit."""
    intact = value[:-4]
    return intact if value[-4:] == _CRC.pack(crc32c(key + intact)) else None


def _number(txn: "lmdb.Transaction[bytes]", key: bytes) -> int:
    value = txn.get(key)
    intact = None if value is None else _checked(key, value)
    if intact is None or len(intact) != _NUMBER.size:
        raise CursorsCorrupt(f"{key!r} is damaged")
    number: int = _NUMBER.unpack(intact)[0]
    return number
