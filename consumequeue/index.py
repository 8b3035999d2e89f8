"""The consume queues' index in LMDB: an entry a batch. It can be deleted and is rebuilt.

Keys are big-endian, so that LMDB's order is queue order. LMDB has no page checksums; every
value ends in a CRC over its key and itself, and one that fails means that the index is rebuilt.

    entries    topic id 4 | queue id 4 | base offset 8  ->  physical 8 | queue bytes 8 |
               store timestamp 8 | tag summary 8 | size 4 | count 4 | crc 4
    meta       "reput"                                  ->  how far the log is indexed
    producers  producer id 8 | topic id 4               ->  msgpack of a ProducerState

What is committed together is consistent: the reput offset, the entries below it, and the
producers as they were there. Only what the log has synced is committed, so the index is never
ahead of the log.
"""

import contextlib
import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import lmdb
import msgpack

from holdfast.commitlog.checksum import crc32c
from holdfast.commitlog.producer_sequences import ProducerKey, ProducerState, StoredSequence
from holdfast.consumequeue.consume_queue import CqUnit
from holdfast.consumequeue.entry_columns import EntryColumns
from holdfast.consumequeue.errors import IndexCorrupt
from holdfast.consumequeue.index_check import check_apart, find_damage
from holdfast.consumequeue.index_seal import break_seal, seal
from holdfast.consumequeue.lmdb_env import CORRUPT, open_env, verify_file
from holdfast.consumequeue.map_growth import MapGuard
from holdfast.consumequeue.topics import QueueKey
from holdfast.consumequeue.unit_table import Units, encode_units

FORMAT = b"holdfast-index-1"

_KEY = struct.Struct(">IIQ")
_QUEUE = struct.Struct(">II")
_VALUE = struct.Struct("<QQqQII")
_REPUT = struct.Struct("<QQQQ")
_PRODUCER = struct.Struct(">QI")

_T = TypeVar("_T")

__all__ = ["Index", "IndexCorrupt", "ReputPosition"]

#: A file without a seal is verified in this process up to this size; a larger one is looked
#: through in a child, which is quicker then.
SMALL_BYTES = 4 * 1024 * 1024

#: Entries that are looked at before it is known how much they hold; then eight times as many.
_FIRST_COLUMNS = 16

_CONDEMNED = "condemned"


class ReputPosition(NamedTuple):
    """How far the log is indexed, and what the segment there holds up to that place."""

    physical_offset: int = 0
    segment_start: int = 0
    block_count: int = 0
    key_count: int = 0


class Index:
    """The index's LMDB environment. Reads from any thread; writes from one at a time.

    Whatever looks at the index may raise IndexCorrupt. From then on it is condemned: it goes on
    answering where it can, but cannot be opened again.
    """

    def __init__(self, directory: Path, map_size_bytes: int, *, readonly: bool = False) -> None:
        """Open or create; with `readonly` it must exist, and is left as it is.

        Raises IndexCorrupt for what is no index of this format; lmdb.Error and OSError pass
        through.
        """
        self._directory = directory
        self._condemned_file = directory / _CONDEMNED
        self._is_writable = False
        self._is_readonly = readonly
        self.is_condemned = self._condemned_file.exists()
        if self.is_condemned:
            raise IndexCorrupt("it was found damaged while it was in use")
        try:
            self._env = open_env(
                directory,
                map_size_bytes,
                max_dbs=3,
                readonly=readonly,
                is_trusted=_is_sound(directory, readonly=readonly),
            )
        except CORRUPT as error:
            raise IndexCorrupt(str(error)) from error
        self._guard = MapGuard(self._env)
        try:
            self._meta = self._env.open_db(b"meta", create=not readonly)
            self._entries = self._env.open_db(b"entries", create=not readonly)
            self._producers = self._env.open_db(b"producers", create=not readonly)
            with self._env.begin(write=not readonly, db=self._meta) as txn:
                found = txn.get(b"format")
                if found is None and not readonly:
                    txn.put(b"format", FORMAT)
                elif found != FORMAT:
                    raise IndexCorrupt(f"format {found!r}, not {FORMAT!r}")
        except (*CORRUPT, lmdb.NotFoundError) as error:
            self.close()
            raise IndexCorrupt(str(error)) from error
        except Exception:
            self.close()
            raise
        self._is_writable = not readonly

    def close(self) -> None:
        """Close the environment; may be called twice. Reads under way end in lmdb.Error."""
        self._env.close()
        if self._is_writable and not self.is_condemned:
            seal(self._directory)
        self._is_writable = False

    # -- writing ---------------------------------------------------------------------------

    def commit(
        self,
        units: Sequence[tuple[QueueKey, CqUnit]],
        position: ReputPosition,
        producers: Sequence[tuple[ProducerKey, ProducerState | None]] = (),
    ) -> None:
        """Add entries, move the reput offset, store producers (None: forget it), durably and
        all or nothing. A full map grows. lmdb.Error passes through (a full disk): nothing has
        changed. Raises IndexCorrupt."""
        items = sorted(_encode_unit(key, unit) for key, unit in units)
        self._growing(lambda: self._commit(items, position, producers))

    def commit_table(
        self,
        units: Units,
        position: ReputPosition,
        producers: Sequence[tuple[ProducerKey, ProducerState | None]] = (),
    ) -> None:
        """As `commit`, of a table of entries."""
        items = encode_units(units)
        self._growing(lambda: self._commit(items, position, producers))

    def _commit(
        self,
        items: Sequence[tuple[bytes, bytes]],
        position: ReputPosition,
        producers: Sequence[tuple[ProducerKey, ProducerState | None]],
    ) -> None:
        with self._transaction(self._entries, write=True) as txn:
            if items:
                with txn.cursor() as cursor:
                    cursor.putmulti(items)
            for producer_key, state in producers:
                raw = _PRODUCER.pack(*producer_key)
                if state is None:
                    txn.delete(raw, db=self._producers)
                else:
                    txn.put(raw, _with_crc(raw, _encode_producer(state)), db=self._producers)
            txn.put(b"reput", _with_crc(b"reput", _encode_position(position)), db=self._meta)

    def delete_before(self, key: QueueKey, offset: int, most: int = 10_000) -> int:
        """Delete up to `most` of a queue's entries that end at or before `offset`; return how
        many there were. As `commit`, a full map grows: a deletion needs pages, too."""
        return self._growing(lambda: self._delete_before(key, offset, most))

    def _delete_before(self, key: QueueKey, offset: int, most: int) -> int:
        deleted = 0
        with self._transaction(self._entries, write=True) as txn, txn.cursor() as cursor:
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
        """Forget everything, so that the log is indexed again from its start."""
        self._growing(self._clear)

    def _clear(self) -> None:
        with self._transaction(self._meta, write=True) as txn:
            for db in (self._entries, self._producers):
                txn.drop(db, delete=False)
            txn.delete(b"reput")

    def _growing(self, change: Callable[[], _T]) -> _T:
        """Make a change in one transaction; again in a larger map as often as that is full."""
        while True:
            try:
                return change()
            except lmdb.MapFullError:
                if not self._guard.grow():
                    raise

    # -- reading ---------------------------------------------------------------------------

    def position(self) -> ReputPosition:
        """Return how far the log is indexed; all zeros when it is not."""
        with self._transaction(self._meta) as txn:
            raw = txn.get(b"reput")
            if raw is None:
                return ReputPosition()
            return ReputPosition(*_REPUT.unpack(_checked(b"reput", raw)))

    def producers(self) -> list[tuple[ProducerKey, ProducerState]]:
        """Return every producer, the one heard of longest ago first."""
        with self._transaction(self._producers) as txn:
            found = [
                (_PRODUCER.unpack(raw), _decode_producer(_checked(raw, value)))
                for raw, value in txn.cursor()
            ]
        return sorted(found, key=lambda item: item[1].last_timestamp_us)

    def queues(self) -> list[QueueKey]:
        """Return every queue that has entries."""
        found: list[QueueKey] = []
        with self._transaction(self._entries) as txn, txn.cursor() as cursor:
            more = cursor.first()
            while more:
                topic_id, queue_id = _QUEUE.unpack(cursor.key()[:8])
                found.append((topic_id, queue_id))
                more = cursor.set_range(_QUEUE.pack(topic_id, queue_id) + b"\xff" * 9)
        return found

    def first(self, key: QueueKey) -> CqUnit | None:
        """Return a queue's oldest entry."""
        return next(self.units(key, 0), None)

    def last(self, key: QueueKey) -> CqUnit | None:
        """Return a queue's newest entry."""
        with self._transaction(self._entries) as txn, txn.cursor() as cursor:
            return _at_or_before(cursor, key, 2**64 - 1)

    def units(self, key: QueueKey, offset: int) -> Generator[CqUnit, None, None]:
        """Yield a queue's entries from the one that holds `offset` on, or the next one if it
        falls in a gap. The transaction is open until the iterator is closed."""
        with self._transaction(self._entries) as txn, txn.cursor() as cursor:
            unit = _at_or_before(cursor, key, offset)
            if unit is None or unit.end_offset <= offset:
                found = cursor.set_range(_KEY.pack(*key, offset))
                unit = _current(cursor, key) if found else None
            while unit is not None:
                yield unit
                unit = _current(cursor, key) if cursor.next() else None

    def columns(
        self, key: QueueKey, offset: int, *, max_messages: int, max_bytes: int
    ) -> EntryColumns | None:
        """Return a queue's entries from the one that holds `offset` on: about as many as have so
        many messages or bytes. None if it falls in a gap. Only the first one's checksum is
        compared."""
        with self._transaction(self._entries) as txn, txn.cursor() as cursor:
            unit = _at_or_before(cursor, key, offset)
            if unit is None or unit.end_offset <= offset:
                return None
            items = cursor.iternext()
            found, count = EntryColumns.of_units([]), min(_FIRST_COLUMNS, max_messages)
            while more := list(islice(items, count)):
                following = EntryColumns.of_items(key, more)
                found = found.joined(following)
                if len(following) < count:
                    break
                count = min(8 * count, found.lacking(max_messages, max_bytes))
            return found

    def first_reaching(
        self, key: QueueKey, attribute: Callable[[CqUnit], int], value: int, start: int, end: int
    ) -> CqUnit | None:
        """Return the first entry from offset `start` to before `end` whose `attribute`, which
        never decreases along a queue, is at least `value`. A binary search."""
        with self._transaction(self._entries) as txn, txn.cursor() as cursor:
            best = None
            while start < end:
                middle = (start + end) // 2
                unit = _at_or_before(cursor, key, middle)
                if unit is None or unit.end_offset <= start:
                    # `middle` is in a gap, or before the first entry: look to its right.
                    found = cursor.set_range(_KEY.pack(*key, middle))
                    unit = _current(cursor, key) if found else None
                    if unit is None or unit.base_offset >= end:
                        end = middle
                        continue
                if attribute(unit) >= value:
                    best, end = unit, min(unit.base_offset, middle)
                else:
                    start = max(unit.end_offset, middle + 1)
            return best

    @contextlib.contextmanager
    def _transaction(self, db: Any, *, write: bool = False) -> Iterator["lmdb.Transaction[bytes]"]:
        try:
            with self._guard.transaction(), self._env.begin(db=db, write=write) as txn:
                yield txn
        except CORRUPT as error:
            self.condemn()
            raise IndexCorrupt(str(error)) from error
        except IndexCorrupt:
            self.condemn()
            raise

    def condemn(self) -> None:
        """Have it rebuilt at the next start: it was found damaged, or not to be the log's."""
        if not self.is_condemned and not self._is_readonly:
            self.is_condemned = True
            with contextlib.suppress(OSError):  # a full disk: the damage is met again
                self._condemned_file.touch()


def _is_sound(directory: Path, *, readonly: bool) -> bool:
    """Return whether searches in the file are known to come where they should: it is sealed, or was
    looked through; a new one is not. Raises one of CORRUPT when it is damaged."""
    if not readonly and break_seal(directory):
        return True
    data = directory / "data.mdb"
    if not data.exists():
        return False
    if not readonly and data.stat().st_size > SMALL_BYTES:
        check_apart(directory)
        return True
    # With every page in its form, LMDB comes to its end whatever the pages say.
    verify_file(data)
    if damage := find_damage(directory, values=False):
        raise lmdb.CorruptedError(damage)
    return True


def _at_or_before(cursor: Any, key: QueueKey, offset: int) -> CqUnit | None:
    """Return the last entry of a queue that begins at or before `offset`."""
    raw = _KEY.pack(*key, offset)
    found = cursor.set_range(raw)
    if found and cursor.key() == raw:
        return _current(cursor, key)
    if not (cursor.prev() if found else cursor.last()):
        return None
    return _current(cursor, key)


def _current(cursor: Any, key: QueueKey) -> CqUnit | None:
    """Return the entry under the cursor, None if it is another queue's."""
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
    found = _checked(raw_key, value)
    base_offset = _KEY.unpack(raw_key)[2]
    physical, queue_bytes, timestamp, summary, size, count = _VALUE.unpack(found)
    return CqUnit(base_offset, physical, size, count, timestamp, summary, queue_bytes)


def _encode_position(position: ReputPosition) -> bytes:
    return _REPUT.pack(
        position.physical_offset,
        position.segment_start,
        position.block_count,
        position.key_count,
    )


def _encode_producer(state: ProducerState) -> bytes:
    queues = {
        queue: [
            (
                entry.sequence,
                entry.base_offset,
                entry.message_count,
                entry.end_physical_offset,
                entry.store_timestamp_us,
            )
            for entry in stored
        ]
        for queue, stored in state.queues.items()
    }
    packed = msgpack.packb((state.epoch, state.last_request, state.last_timestamp_us, queues))
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


def _checked(key: bytes, value: bytes) -> bytes:
    """Return a value without its CRC. Raises IndexCorrupt when that does not match."""
    found = value[:-4]
    if len(value) < 4 or _with_crc(key, found) != value:
        raise IndexCorrupt(f"the checksum of {key.hex()} does not match its value")
    return found
