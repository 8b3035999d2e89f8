"""The consume queues' index in LMDB: an entry a batch. It can be deleted and is rebuilt.

Keys are big-endian, so that LMDB's order is queue order. LMDB has no page checksums; every
value carries its own CRC, and a value that fails it means that the index is rebuilt.

    entries    topic id 4 | queue id 4 | base offset 8  ->  physical 8 | queue bytes 8 |
               store timestamp 8 | tag summary 8 | size 4 | count 4 | crc 4
    meta       "reput"                                  ->  how far the log is indexed
    producers  producer id 8 | topic id 4               ->  msgpack of a ProducerState

What is committed together is consistent: the reput offset, the entries below it, and the
producers as they were there. Only what the log has synced is committed, so the index is never
ahead of the log.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb
import msgpack

from holdfast.commitlog.checksum import crc32c
from holdfast.commitlog.producer_sequences import ProducerKey, ProducerState, StoredSequence
from holdfast.consumequeue.consume_queue import CqUnit
from holdfast.consumequeue.topics import QueueKey

FORMAT = b"holdfast-index-1"

_KEY = struct.Struct(">IIQ")
_QUEUE = struct.Struct(">II")
_VALUE = struct.Struct("<QQqQII")
_VALUE_SIZE = _VALUE.size + 4
_REPUT = struct.Struct("<QQQQ")
_PRODUCER = struct.Struct(">QI")


class IndexCorrupt(Exception):
    """The index on disk cannot be trusted: delete it and rebuild it from the log."""


@dataclass(frozen=True, slots=True)
class ReputPosition:
    """How far the log is indexed, and what the segment there holds up to that place."""

    physical_offset: int = 0
    segment_start: int = 0
    block_count: int = 0
    key_count: int = 0


class Index:
    """The index's LMDB environment. Reads from any thread; writes from one at a time.

    Every read may raise IndexCorrupt.
    """

    def __init__(self, directory: Path, map_size_bytes: int) -> None:
        """Open or create. Raises IndexCorrupt for what is no index of this format."""
        directory.mkdir(parents=True, exist_ok=True)
        try:
            self._env = lmdb.open(
                str(directory), map_size=map_size_bytes, max_dbs=4, max_readers=512, metasync=True
            )
            self._entries = self._env.open_db(b"entries")
            self._meta = self._env.open_db(b"meta")
            self._producers = self._env.open_db(b"producers")
            with self._env.begin(write=True, db=self._meta) as txn:
                found = txn.get(b"format")
                if found is None:
                    txn.put(b"format", FORMAT)
                elif found != FORMAT:
                    raise IndexCorrupt(f"format {found!r}, not {FORMAT!r}")
        except (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError) as error:
            raise IndexCorrupt(str(error)) from error

    def close(self) -> None:
        """Close the environment; no read may be under way."""
        self._env.close()

    # -- writing ---------------------------------------------------------------------------

    def commit(
        self,
        units: Sequence[tuple[QueueKey, CqUnit]],
        position: ReputPosition,
        producers: Sequence[tuple[ProducerKey, ProducerState | None]] = (),
    ) -> None:
        """Add entries, move the reput offset, store producers (None: forget it), durably and
        all or nothing. lmdb.Error passes through (a full disk or map): nothing has changed."""
        with self._env.begin(write=True) as txn:
            items = [(_KEY.pack(*key, unit.base_offset), _encode_unit(unit)) for key, unit in units]
            items.sort()
            if items:
                with txn.cursor(self._entries) as cursor:
                    cursor.putmulti(items)
            for producer_key, state in producers:
                raw = _PRODUCER.pack(*producer_key)
                if state is None:
                    txn.delete(raw, db=self._producers)
                else:
                    txn.put(raw, _encode_producer(state), db=self._producers)
            txn.put(b"reput", _with_crc(_encode_position(position)), db=self._meta)

    def delete_before(self, key: QueueKey, offset: int, most: int = 10_000) -> int:
        """Delete up to `most` of a queue's entries that end at or before `offset`; return how
        many there were."""
        deleted = 0
        with self._env.begin(write=True, db=self._entries) as txn, txn.cursor() as cursor:
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
        with self._env.begin(write=True) as txn:
            for db in (self._entries, self._producers):
                txn.drop(db, delete=False)
            txn.delete(b"reput", db=self._meta)

    # -- reading ---------------------------------------------------------------------------

    def position(self) -> ReputPosition:
        """Return how far the log is indexed; all zeros when it is not."""
        with self._env.begin(db=self._meta) as txn:
            raw = txn.get(b"reput")
            return ReputPosition() if raw is None else ReputPosition(*_REPUT.unpack(_checked(raw)))

    def producers(self) -> list[tuple[ProducerKey, ProducerState]]:
        """Return every producer, the one heard of longest ago first."""
        with self._env.begin(db=self._producers) as txn:
            found = [
                (_PRODUCER.unpack(raw), _decode_producer(value)) for raw, value in txn.cursor()
            ]
        return sorted(found, key=lambda item: item[1].last_timestamp_us)

    def queues(self) -> list[QueueKey]:
        """Return every queue that has entries."""
        found: list[QueueKey] = []
        with self._env.begin(db=self._entries) as txn, txn.cursor() as cursor:
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
        with self._env.begin(db=self._entries) as txn, txn.cursor() as cursor:
            return _at_or_before(cursor, key, 2**64 - 1)

    def units(self, key: QueueKey, offset: int) -> Iterator[CqUnit]:
        """Yield a queue's entries from the one that holds `offset` on, or the next one if it
        falls in a gap. The transaction is open until the iterator is closed."""
        with self._env.begin(db=self._entries) as txn, txn.cursor() as cursor:
            unit = _at_or_before(cursor, key, offset)
            if unit is None or unit.end_offset <= offset:
                found = cursor.set_range(_KEY.pack(*key, offset))
                unit = _current(cursor, key) if found else None
            while unit is not None:
                yield unit
                unit = _current(cursor, key) if cursor.next() else None

    def first_reaching(
        self, key: QueueKey, attribute: Callable[[CqUnit], int], value: int, start: int, end: int
    ) -> CqUnit | None:
        """Return the first entry from offset `start` to before `end` whose `attribute`, which
        never decreases along a queue, is at least `value`. A binary search."""
        with self._env.begin(db=self._entries) as txn, txn.cursor() as cursor:
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


def _encode_unit(unit: CqUnit) -> bytes:
    return _with_crc(
        _VALUE.pack(
            unit.physical_offset,
            unit.queue_bytes,
            unit.store_timestamp_us,
            unit.tag_summary,
            unit.size,
            unit.message_count,
        )
    )


def _decode_unit(raw_key: bytes, value: bytes) -> CqUnit:
    base_offset = _KEY.unpack(raw_key)[2]
    physical, queue_bytes, timestamp, summary, size, count = _VALUE.unpack(_checked(value))
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
                s.sequence,
                s.base_offset,
                s.message_count,
                s.end_physical_offset,
                s.store_timestamp_us,
            )
            for s in stored
        ]
        for queue, stored in state.queues.copy().items()
    }
    fields = (state.epoch, state.last_request, state.last_timestamp_us, queues)
    return _with_crc(msgpack.packb(fields))


def _decode_producer(value: bytes) -> ProducerState:
    epoch, last_request, timestamp, queues = msgpack.unpackb(_checked(value), strict_map_key=False)
    return ProducerState(
        epoch,
        last_request,
        timestamp,
        {
            queue: tuple(StoredSequence(*entry) for entry in stored)
            for queue, stored in queues.items()
        },
    )


def _with_crc(value: bytes) -> bytes:
    return value + struct.pack("<I", crc32c(value))


def _checked(value: bytes) -> bytes:
    if len(value) < 4 or struct.unpack("<I", value[-4:])[0] != crc32c(bytes(value[:-4])):
        raise IndexCorrupt("an entry's checksum does not match its bytes")
    return value[:-4]
