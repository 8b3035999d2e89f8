"""The index of the consume queues in LMDB: one entry per batch. If deleted, it is rebuilt.

Keys are big-endian, so that LMDB's order is queue order. LMDB has no page checksums, so every
value ends in a CRC over the key and the value. If a CRC does not match, the index is rebuilt.

    entries    topic id 4 | queue id 4 | base offset 8  ->  physical 8 | queue bytes 8 |
               store timestamp 8 | tag summary 8 | size 4 | count 4 | crc 4
    meta       "reput"                                  ->  how far the log is indexed
    producers  producer id 8 | topic id 4               ->  msgpack of a ProducerState

Each commit is consistent: the reput offset, the entries below that offset, and the state of the
producers at that offset. Only data that the log has synced is committed, so the index is never
ahead of the log.
"""

import contextlib
import os
import struct
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
import msgpack

from holdfast.commitlog.append.producer_sequences import ProducerKey, ProducerState, StoredSequence
from holdfast.commitlog.disk.owned_files import open_file
from holdfast.commitlog.format.checksum import crc32c
from holdfast.consumequeue.errors import IndexCorrupt
from holdfast.consumequeue.index.check import check_in_child, find_damage
from holdfast.consumequeue.index.consume_queue import CqUnit
from holdfast.consumequeue.index.entry_columns import EntryColumns, Units, encode_units
from holdfast.consumequeue.index.seal import break_seal, seal
from holdfast.consumequeue.lmdb_env.env import CORRUPT, open_env, verify_file
from holdfast.consumequeue.lmdb_env.live_env import LiveEnv
from holdfast.consumequeue.topics import QueueKey

FORMAT = b"holdfast-index-1"

_KEY = struct.Struct(">IIQ")
_QUEUE = struct.Struct(">II")
_VALUE = struct.Struct("<QQqQII")
_REPUT = struct.Struct("<QQQQ")
_PRODUCER = struct.Struct(">QI")

__all__ = ["Index", "IndexCorrupt", "ReputPosition"]

#: An unsealed file up to this size is verified in this process. For a larger file a child
#: process is faster.
SMALL_BYTES = 4 * 1024 * 1024

#: `columns` first reads at most this many entries. Each later read reads at most eight times as
#: many entries as the read before.
_FIRST_COLUMNS = 16

_CONDEMNED = "condemned"

_META, _ENTRIES, _PRODUCERS = b"meta", b"entries", b"producers"


class ReputPosition(NamedTuple):
    """The physical offset up to which the log is indexed, and the start of the segment with the
    last indexed block. The counts are those of the indexed blocks of that segment."""

    physical_offset: int = 0
    segment_start: int = 0
    block_count: int = 0
    key_count: int = 0


class Index:
    """The index's LMDB environment. Any thread may read; only one thread at a time may write.

    Every access may raise IndexCorrupt. This error condemns the index: reads still work where
    possible, but the index cannot be opened again, and is rebuilt at the next start.
    """

    def __init__(self, directory: Path, map_size_bytes: int, *, readonly: bool = False) -> None:
        """Open or create the index. With `readonly` it must exist and is not changed.

        Raises IndexCorrupt if the files are damaged or have another format; lmdb.Error and OSError
        propagate.
        """
        self._directory = directory
        self._condemned_file = directory / _CONDEMNED
        self._is_writable = False
        self._is_readonly = readonly
        self.is_condemned = self._condemned_file.exists()
        if self.is_condemned:
            raise IndexCorrupt("it was found damaged while it was in use")
        is_first = True

        def opened() -> lmdb.Environment:
            """Open the environment. Verify the file only the first time, not when the environment
            is reopened after LMDB has failed in use."""
            nonlocal is_first
            is_trusted = not is_first or _is_sound(directory, readonly=readonly)
            is_first = False
            return open_env(
                directory, map_size_bytes, max_dbs=3, readonly=readonly, is_trusted=is_trusted
            )

        try:
            self._env = LiveEnv(opened, (_META, _ENTRIES, _PRODUCERS))
        except (*CORRUPT, lmdb.NotFoundError) as error:
            raise IndexCorrupt(str(error)) from error
        try:
            with self._env.transaction(_META, write=not readonly) as txn:
                found = txn.get(b"format")
                if found is None and not readonly:
                    txn.put(b"format", FORMAT)
                elif found != FORMAT:
                    raise IndexCorrupt(f"format {found!r}, not {FORMAT!r}")
        except CORRUPT as error:
            self.close()
            raise IndexCorrupt(str(error)) from error
        except Exception:
            self.close()
            raise
        self._is_writable = not readonly

    def close(self) -> None:
        """Close the environment; may be called twice. Reads in progress fail with lmdb.Error."""
        self._env.close()
        if self._is_writable and not self.is_condemned:
            seal(self._directory)
        self._is_writable = False

    @property
    def env(self) -> LiveEnv:
        """The LMDB environment, for code that checks its reader slots."""
        return self._env

    # -- writing ---------------------------------------------------------------------------

    def commit(
        self,
        units: Sequence[tuple[QueueKey, CqUnit]],
        position: ReputPosition,
        producers: Sequence[tuple[ProducerKey, ProducerState | None]] = (),
    ) -> None:
        """Add entries, advance the reput offset and store producers, in one durable transaction. A
        producer whose state is None is deleted. If the map is full, it grows. Raises IndexCorrupt,
        or lmdb.Error (the disk is full, for example); after lmdb.Error nothing has changed."""
        items = sorted(_encode_unit(key, unit) for key, unit in units)
        self._env.write(lambda: self._commit(items, position, producers))

    def commit_table(
        self,
        units: Units,
        position: ReputPosition,
        producers: Sequence[tuple[ProducerKey, ProducerState | None]] = (),
    ) -> None:
        """Commit as `commit` does, but with the entries as a table."""
        items = encode_units(units)
        self._env.write(lambda: self._commit(items, position, producers))

    def _commit(
        self,
        items: Sequence[tuple[bytes, bytes]],
        position: ReputPosition,
        producers: Sequence[tuple[ProducerKey, ProducerState | None]],
    ) -> None:
        with self._transaction(_ENTRIES, write=True) as txn:
            meta, known = self._env.database(_META), self._env.database(_PRODUCERS)
            if items:
                with txn.cursor() as cursor:
                    cursor.putmulti(items)
            for producer_key, state in producers:
                raw = _PRODUCER.pack(*producer_key)
                if state is None:
                    txn.delete(raw, db=known)
                else:
                    txn.put(raw, _with_crc(raw, _encode_producer(state)), db=known)
            txn.put(b"reput", _with_crc(b"reput", _REPUT.pack(*position)), db=meta)

    def delete_before(self, key: QueueKey, offset: int, most: int = 10_000) -> int:
        """Delete at most `most` entries of a queue that end at or before `offset`; return how many
        were deleted. If the map is full, it grows, because deleting needs pages, too."""
        return self._env.write(lambda: self._delete_before(key, offset, most))

    def _delete_before(self, key: QueueKey, offset: int, most: int) -> int:
        deleted = 0
        with self._transaction(_ENTRIES, write=True) as txn, txn.cursor() as cursor:
            found = cursor.set_range(_KEY.pack(*key, 0))
            while found and deleted < most:
                raw = cursor.key()
                if raw[:8] != _QUEUE.pack(*key):
                    break
                if _decode_unit(raw, cursor.value()).end_offset > offset:
                    break
                found = cursor.delete() and cursor.key() != b""
                deleted += 1
        return deleted

    def clear(self) -> None:
        """Delete everything, so that the log is indexed again from its start."""
        self._env.write(self._clear)

    def _clear(self) -> None:
        with self._transaction(_META, write=True) as txn:
            for name in (_ENTRIES, _PRODUCERS):
                txn.drop(self._env.database(name), delete=False)
            txn.delete(b"reput")

    # -- reading ---------------------------------------------------------------------------

    def position(self) -> ReputPosition:
        """Return how far the log is indexed; all zeros if nothing is indexed."""
        with self._transaction(_META) as txn:
            raw = txn.get(b"reput")
            if raw is None:
                return ReputPosition()
            return ReputPosition(*_REPUT.unpack(_verify_crc(b"reput", raw)))

    def producers(self) -> list[tuple[ProducerKey, ProducerState]]:
        """Return every producer, the least recently active one first."""
        with self._transaction(_PRODUCERS) as txn:
            found = [
                (_PRODUCER.unpack(raw), _decode_producer(_verify_crc(raw, value)))
                for raw, value in txn.cursor()
            ]
        return sorted(found, key=lambda item: item[1].last_timestamp_us)

    def queues(self) -> list[QueueKey]:
        found: list[QueueKey] = []
        with self._transaction(_ENTRIES) as txn, txn.cursor() as cursor:
            more = cursor.first()
            while more:
                topic_id, queue_id = _QUEUE.unpack(cursor.key()[:8])
                found.append((topic_id, queue_id))
                more = cursor.set_range(_QUEUE.pack(topic_id, queue_id) + b"\xff" * 9)
        return found

    def first(self, key: QueueKey) -> CqUnit | None:
        """Return a queue's oldest entry, or None if there is none."""
        return next(self.units(key, 0), None)

    def last(self, key: QueueKey) -> CqUnit | None:
        """Return a queue's newest entry, or None if there is none."""
        with self._transaction(_ENTRIES) as txn, txn.cursor() as cursor:
            return _entry_at_or_before(cursor, key, 2**64 - 1)

    def units(self, key: QueueKey, offset: int) -> Generator[CqUnit, None, None]:
        """Yield a queue's entries, starting with the one that holds `offset`, or with the next one
        if none holds it. A transaction is open until the iterator is closed or exhausted."""
        with self._transaction(_ENTRIES) as txn, txn.cursor() as cursor:
            unit = _entry_at_or_before(cursor, key, offset)
            if unit is None or unit.end_offset <= offset:
                found = cursor.set_range(_KEY.pack(*key, offset))
                unit = _entry_at(cursor, key) if found else None
            while unit is not None:
                yield unit
                unit = _entry_at(cursor, key) if cursor.next() else None

    def columns(
        self,
        key: QueueKey,
        offset: int,
        *,
        max_messages: int,
        max_bytes: int,
        max_entries: int = sys.maxsize,
    ) -> EntryColumns | None:
        """Return a queue's entries, starting with the one that holds `offset`, until they hold
        about `max_messages` messages or `max_bytes` bytes; at most `max_entries`. Return None if
        no entry holds `offset`. Only the first entry's checksum is verified."""
        with self._transaction(_ENTRIES) as txn, txn.cursor() as cursor:
            unit = _entry_at_or_before(cursor, key, offset)
            if unit is None or unit.end_offset <= offset:
                return None
            items = cursor.iternext()
            found = EntryColumns.of_units([])
            count = min(_FIRST_COLUMNS, max_messages, max_entries)
            while more := list(islice(items, count)):
                following = EntryColumns.of_items(key, more)
                found = found.joined(following)
                if len(following) < count:
                    break
                lacking = found.lacking(max_messages, max_bytes)
                count = min(8 * count, lacking, max_entries - len(found))
            return found

    def first_reaching(
        self, key: QueueKey, attribute: Callable[[CqUnit], int], value: int, start: int, end: int
    ) -> CqUnit | None:
        """Return the first entry from offset `start` to before `end` whose `attribute` is at least
        `value`, or None if there is none. A binary search: `attribute` must never decrease along a
        queue."""
        with self._transaction(_ENTRIES) as txn, txn.cursor() as cursor:
            best = None
            while start < end:
                middle = (start + end) // 2
                unit = _entry_at_or_before(cursor, key, middle)
                if unit is None or unit.end_offset <= start:
                    # No entry holds `middle`: take the next entry after it.
                    found = cursor.set_range(_KEY.pack(*key, middle))
                    unit = _entry_at(cursor, key) if found else None
                    if unit is None or unit.base_offset >= end:
                        end = middle
                        continue
                if attribute(unit) >= value:
                    best, end = unit, min(unit.base_offset, middle)
                else:
                    start = max(unit.end_offset, middle + 1)
            return best

    @contextlib.contextmanager
    def _transaction(
        self, database: bytes, *, write: bool = False
    ) -> Iterator["lmdb.Transaction[bytes]"]:
        try:
            with self._env.transaction(database, write=write) as txn:
                yield txn
        except CORRUPT as error:
            self.condemn()
            raise IndexCorrupt(str(error)) from error
        except IndexCorrupt:
            self.condemn()
            raise

    def condemn(self) -> None:
        """Make the next start rebuild the index, which is damaged or does not match the log."""
        if not self.is_condemned and not self._is_readonly:
            self.is_condemned = True
            with contextlib.suppress(OSError):  # disk full: a later read finds the damage again
                os.close(open_file(self._condemned_file, os.O_WRONLY | os.O_CREAT))


def _is_sound(directory: Path, *, readonly: bool) -> bool:
    """Return True if the file was verified: it is sealed, or was searched for damage. Return False
    if there is no file yet. Raises one of the errors in CORRUPT if the file is damaged."""
    if not readonly and break_seal(directory):
        return True
    data = directory / "data.mdb"
    if not data.exists():
        return False
    if not readonly and data.stat().st_size > SMALL_BYTES:
        check_in_child(directory)
        return True
    # If every page is well-formed, LMDB can read the file safely, even if the data is wrong.
    verify_file(data)
    if damage := find_damage(directory, values=False):
        raise lmdb.CorruptedError(damage)
    return True


def _entry_at_or_before(cursor: Any, key: QueueKey, offset: int) -> CqUnit | None:
    """Return a queue's last entry that begins at or before `offset`, or None if there is none."""
    raw = _KEY.pack(*key, offset)
    found = cursor.set_range(raw)
    if found and cursor.key() == raw:
        return _entry_at(cursor, key)
    if not (cursor.prev() if found else cursor.last()):
        return None
    return _entry_at(cursor, key)


def _entry_at(cursor: Any, key: QueueKey) -> CqUnit | None:
    """Return the entry at the cursor, or None if it belongs to another queue."""
    raw = cursor.key()
    if raw[:8] != _QUEUE.pack(*key):
        return None
    return _decode_unit(raw, cursor.value())


def _encode_unit(key: QueueKey, unit: CqUnit) -> tuple[bytes, bytes]:
    raw_key = _KEY.pack(*key, unit.base_offset)
    value = _VALUE.pack(
        unit.physical_offset,
        unit.queue_bytes,
        unit.store_timestamp_us,
        unit.tag_summary,
        unit.size,
        unit.message_count,
    )
    return raw_key, _with_crc(raw_key, value)


def _decode_unit(raw_key: bytes, value: bytes) -> CqUnit:
    found = _verify_crc(raw_key, value)
    base_offset = _KEY.unpack(raw_key)[2]
    physical, queue_bytes, timestamp, summary, size, count = _VALUE.unpack(found)
    return CqUnit(base_offset, physical, size, count, timestamp, summary, queue_bytes)


def _encode_producer(state: ProducerState) -> bytes:
    packed = msgpack.packb((state.epoch, state.last_request, state.last_timestamp_us, state.queues))
    assert isinstance(packed, bytes)
    return packed


def _decode_producer(value: bytes) -> ProducerState:
    epoch, last_request, timestamp, queues = msgpack.unpackb(value, strict_map_key=False)
    return ProducerState(
        epoch,
        last_request,
        timestamp,
        {
            queue: tuple(StoredSequence(*entry) for entry in stored)
            for queue, stored in queues.items()
        },
    )


def _with_crc(key: bytes, value: bytes) -> bytes:
    return value + struct.pack("<I", crc32c(key + value))


def _verify_crc(key: bytes, value: bytes) -> bytes:
    """Return a value without its CRC. Raises IndexCorrupt if the CRC does not match."""
    found = value[:-4]
    if len(value) < 4 or _with_crc(key, found) != value:
        raise IndexCorrupt(f"the checksum of {key.hex()} does not match its value")
    return found
