"""Reading a queue from the disk, in a reader thread.

Small batches are read and checked many at a time, as runs of consecutive batches. If the batches of
a run are close together in the log, only the first entries are read from the index
(`read_queue_runs`), otherwise all entries (`read_runs`). `collect` reads the other batches one by
one: damaged batches, batches next to a gap, and batches of which only a part is wanted.
"""

import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from time import sleep
from typing import TypeVar

import msgspec
import numpy as np

from holdfast.commitlog.errors import CorruptRecord
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_run import BatchRun
from holdfast.commitlog.format.block_merge import merge_blocks
from holdfast.commitlog.segments.commit_log import CommitLog
from holdfast.commitlog.segments.run_reader import FEW, read_queue_runs, read_runs
from holdfast.consumequeue.index.consume_queue import CqUnit
from holdfast.consumequeue.index.entry_columns import EntryColumns
from holdfast.consumequeue.index.index import Index
from holdfast.consumequeue.index.queue_lookup import (
    PHYSICAL_OFFSET,
    columns_from,
    first_unit_reaching,
    units_from,
)
from holdfast.consumequeue.reading.fetched import (
    BatchSlice,
    Fetched,
    Piece,
    RunSlice,
    Shares,
    Wanted,
)
from holdfast.consumequeue.reading.reader import Place, collect, verified
from holdfast.consumequeue.topics import QueueKey

#: After this many short reads, other threads may run. The reads take about a millisecond together.
READS_IN_A_ROW = 16
#: Blocks are found faster in the log than in the index if they have at most this many bytes on
#: average, and if the other bytes between them are few (MAX_SPREAD).
MAX_DENSE_BYTES = 4096
#: The most bytes of the log from the first block to the last one, per byte of the queue's blocks.
MAX_SPREAD = 1.5
#: After runs of this many bytes, other threads may run. Reading them takes about a millisecond.
PAUSE_BYTES = 1024 * 1024


_F = TypeVar("_F", bound="BatchRun | Batch")


class DiskReader(msgspec.Struct, frozen=True):
    """Reads from the disk. Any thread may call it; every call may wait for the disk."""

    log: CommitLog
    index: Index

    def read(self, place: Place, wanted: Wanted) -> Fetched:
        """Return messages from a place on, with the same result and errors as `collect`."""
        newest = self._read_newest(place, wanted)
        if newest is not None:
            return newest
        key, cq = place.key, place.cq
        units = units_from(self.index, key, cq, place.offset)
        first = _take_first_units(units, wanted)
        ahead = None
        if len(first) == FEW:
            units.close()
            ahead = self._read_ahead(place, wanted, EntryColumns.of_units(first))
            first, units = [], units_from(self.index, key, cq, ahead.next_offset)
        return collect(
            chain(first, units),
            self._read_block,
            place,
            wanted,
            ahead=ahead,
            gap_end=lambda unit: self._gap_end(place, unit),
            pause=_yield_interpreter,
        )

    def read_many(self, places: Iterable[Place], shares: Shares) -> list[Fetched | CorruptRecord]:
        """Read from each place, in order, as much as its share of the limits allows. If a read
        finds damage, its result is the CorruptRecord."""
        found: list[Fetched | CorruptRecord] = []
        for number, place in enumerate(places, 1):
            wanted = shares.next_share()
            if wanted is None:
                found.append(place.nothing())
                continue
            try:
                fetched = self.read(place, wanted)
            except CorruptRecord as error:
                shares.subtract(None)
                found.append(error)
                continue
            shares.subtract(fetched)
            found.append(fetched)
            if number % READS_IN_A_ROW == 0:
                _yield_interpreter()
        return found

    def _read_newest(self, place: Place, wanted: Wanted) -> Fetched | None:
        """Return the result if the read gets exactly the newest batch of the queue. Return None if
        it does not, or if this batch is damaged."""
        unit = place.newest_only(wanted)
        if unit is None:
            return None
        try:
            return place.whole(verified(self._read_block(unit), unit, place.key))
        except CorruptRecord:
            return None  # `collect` finds the end of the damage

    def _read_ahead(self, place: Place, wanted: Wanted, first: EntryColumns) -> Fetched:
        """Read whole batches from a place on, many at a time; `first` has the first entries. Stop
        at the limits, before a gap, before damage, and when fewer than FEW batches are left."""
        pieces: list[Piece] = []
        at, left = place.offset, wanted

        def add(piece: Piece) -> None:
            nonlocal at, left
            pieces.append(piece)
            at += piece.message_count
            left = left._replace(
                max_messages=left.max_messages - piece.message_count,
                max_bytes=left.max_bytes - len(piece.blocks),
            )

        entries: EntryColumns | None = first.within(
            at, place.max_offset, left.max_messages, left.max_bytes
        )
        while entries is not None and len(entries) >= FEW:
            start = at
            for run in _with_pauses(self._dense_runs(place, entries, left)):
                add(_as_piece(run, at, rebuilt=wanted.rebuilt))
            if at == start:
                entries = self._entries(place, at, left)
                if entries is None:
                    break
                done = 0
                runs = read_runs(self.log, entries.physical_offsets, entries.sizes)
                for found in _with_pauses(runs):
                    count = len(found) if isinstance(found, BatchRun) else 1
                    part = entries.cut(done, done + count)
                    piece = _select_piece(found, part, place.key, at, rebuilt=wanted.rebuilt)
                    if piece is None:
                        break
                    add(piece)
                    done += count
                if done < len(entries):
                    break
            entries = self._entries(place, at, left, most=FEW)
        cq = place.cq
        return Fetched(pieces, at, cq.min_offset, place.max_offset, at - place.offset)

    def _entries(
        self, place: Place, offset: int, wanted: Wanted, *, most: int = sys.maxsize
    ) -> EntryColumns | None:
        """Return the entries from an offset on, as `columns_from` does; at most `most`."""
        return columns_from(
            self.index,
            place.key,
            place.cq,
            offset,
            end_offset=place.max_offset,
            max_messages=wanted.max_messages,
            max_bytes=wanted.max_bytes,
            max_entries=most,
        )

    def _dense_runs(
        self, place: Place, entries: EntryColumns, wanted: Wanted
    ) -> Iterator[BatchRun]:
        """Yield blocks from the first of these entries on, without the entries of the other
        blocks. Yield nothing if that is not faster, or if the log does not match these entries."""
        span = int(entries.physical_offsets[-1] + entries.sizes[-1] - entries.physical_offsets[0])
        own = int(entries.sizes.sum())
        if own > MAX_DENSE_BYTES * len(entries) or span > MAX_SPREAD * own:
            return
        first_offset = int(entries.base_offsets[0])
        end_offset = min(place.max_offset, first_offset + wanted.max_messages)
        count = len(entries) + entries.lacking(end_offset - first_offset, wanted.max_bytes)
        runs = read_queue_runs(
            self.log,
            int(entries.physical_offsets[0]),
            span * (count + FEW) // len(entries),
            place.key,
            end_offset=end_offset,
            max_bytes=wanted.max_bytes,
        )
        first = next(runs, None)
        if first is not None and np.array_equal(
            first.end_offsets[: len(entries)], entries.end_offsets[: len(first)]
        ):
            yield first
            yield from runs

    def _read_block(self, unit: CqUnit) -> Batch:
        return self.log.read_batch(unit.physical_offset, unit.size)

    def _gap_end(self, place: Place, unit: CqUnit) -> int:
        """Return the offset where a queue continues after the missing segment of `unit`."""
        following = self.log.segment_after(unit.physical_offset)
        if following is None:
            return place.max_offset
        found = first_unit_reaching(
            self.index, place.key, place.cq, PHYSICAL_OFFSET, following.start_offset
        )
        return place.max_offset if found is None else found.base_offset


def _take_first_units(units: Iterator[CqUnit], wanted: Wanted) -> list[CqUnit]:
    """Take at most FEW entries, and stop as soon as they hold all wanted messages. If there is a
    filter, take none, because `collect` filters batch by batch."""
    first: list[CqUnit] = []
    messages, size = wanted.max_messages, wanted.max_bytes
    while wanted.filter is None and messages > 0 and size > 0 and len(first) < FEW:
        unit = next(units, None)
        if unit is None:
            break
        first.append(unit)
        messages -= unit.message_count
        size -= unit.size
    return first


def _select_piece(
    found: BatchRun | Batch, entries: EntryColumns, key: QueueKey, offset: int, *, rebuilt: bool
) -> Piece | None:
    """Return the part of `found` from `offset` on, or None if it does not match its index
    entries. With `rebuilt` the blocks of a run are merged, if possible."""
    if isinstance(found, Batch):
        header = found.header
        base_offset, count = int(entries.base_offsets[0]), int(entries.message_counts[0])
        if (header.topic_id, header.queue_id, header.base_offset, len(found)) != (
            *key,
            base_offset,
            count,
        ):
            return None
        return BatchSlice(found, range(offset - base_offset, count))
    is_meant = (
        bool((found.field("topic_id") == key[0]).all())
        and bool((found.field("queue_id") == key[1]).all())
        and np.array_equal(found.base_offsets, entries.base_offsets)
        and np.array_equal(found.message_counts, entries.message_counts)
    )
    if not is_meant:
        return None
    return _as_piece(found, offset, rebuilt=rebuilt)


def _as_piece(run: BatchRun, offset: int, *, rebuilt: bool) -> Piece:
    """Return the messages of a run from `offset` on. With `rebuilt` they are merged into one block,
    if possible; the memory of the run is then free for the next run."""
    merged = merge_blocks(run) if rebuilt else None
    if merged is None:
        return RunSlice(run, offset)
    batch = Batch.decode(merged, verify_payload=False, rebuilt=True)
    return BatchSlice(batch, range(max(0, offset - batch.header.base_offset), len(batch)))


def _with_pauses(found: Iterable[_F]) -> Iterator[_F]:
    """Yield what was found. Let other threads run between runs, after PAUSE_BYTES of them."""
    size = 0
    for each in found:
        if size >= PAUSE_BYTES:
            _yield_interpreter()
            size = 0
        yield each
        size += len(each.buffer) if isinstance(each, BatchRun) else 0


def _yield_interpreter() -> None:
    """Give the interpreter lock to the event loop, which would otherwise wait 5 ms for it. This
    costs the calling thread 60 to 100 us, the length of the shortest sleep."""
    sleep(0)
