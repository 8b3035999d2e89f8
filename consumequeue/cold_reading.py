"""Reading a queue from the disk, in a reader thread.

Small batches are read and checked many at a time (`read_runs`). What that does not take, because
it is damaged, cut by a bound or in a gap, `collect` reads block by block, and judges.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from time import sleep
from typing import NamedTuple

import numpy as np

from holdfast.commitlog.batch import Batch
from holdfast.commitlog.batch_run import BatchRun
from holdfast.commitlog.commit_log import CommitLog
from holdfast.commitlog.errors import CorruptRecord
from holdfast.commitlog.run_reading import FEW, read_runs
from holdfast.consumequeue.consume_queue import ConsumeQueue, CqUnit
from holdfast.consumequeue.entry_columns import EntryColumns
from holdfast.consumequeue.fetched import BatchSlice, Fetched, Piece, RunSlice
from holdfast.consumequeue.index import Index
from holdfast.consumequeue.lost_ranges import LostRanges
from holdfast.consumequeue.queue_lookup import (
    PHYSICAL_OFFSET,
    columns_from,
    first_unit_reaching,
    units_from,
)
from holdfast.consumequeue.reader import Wanted, collect
from holdfast.consumequeue.shares import Shares
from holdfast.consumequeue.topics import QueueKey

#: So many short reads take about a millisecond; then others have the interpreter.
READS_IN_A_ROW = 16


class Place(NamedTuple):
    """Where a read begins in its queue, and how the queue was when it was asked for."""

    key: QueueKey
    cq: ConsumeQueue
    offset: int
    max_offset: int
    lost: LostRanges

    def nothing(self) -> Fetched:
        """Return the answer of a read that delivers nothing here."""
        return Fetched((), self.offset, self.cq.min_offset, self.max_offset, 0)


class ColdReading:
    """Reads what is on the disk. For any thread; may wait for the disk."""

    def __init__(self, log: CommitLog, index: Index) -> None:
        self._log = log
        self._index = index

    def read(self, place: Place, wanted: Wanted) -> Fetched:
        """Deliver messages from a place on, as `collect` does, which also says what is raised."""
        key, cq, max_offset = place.key, place.cq, place.max_offset
        units = units_from(self._index, key, cq, place.offset)
        first = _first_units(units, wanted)
        ahead = None
        if len(first) == FEW:
            units.close()
            ahead = self._read_ahead(place, wanted)
            first, units = [], units_from(self._index, key, cq, ahead.next_offset)
        return collect(
            chain(first, units),
            self._read_block,
            key,
            place.offset,
            min_offset=cq.min_offset,
            max_offset=max_offset,
            max_messages=wanted.max_messages,
            max_bytes=wanted.max_bytes,
            message_filter=wanted.filter,
            skip_corrupt=wanted.skip_corrupt,
            lost=place.lost,
            ahead=ahead,
            gap_end=lambda unit: self._gap_end(place, unit),
            pause=_let_others,
        )

    def read_many(self, places: Iterable[Place], shares: Shares) -> list[Fetched | CorruptRecord]:
        """Deliver from one place after another what its share allows; damage at a place stands
        where what was found would."""
        found: list[Fetched | CorruptRecord] = []
        for number, place in enumerate(places, 1):
            wanted = shares.wanted()
            if wanted is None:
                found.append(place.nothing())
                continue
            try:
                fetched = self.read(place, wanted)
            except CorruptRecord as error:
                shares.taken(None)
                found.append(error)
                continue
            shares.taken(fetched)
            found.append(fetched)
            if number % READS_IN_A_ROW == 0:
                _let_others()
        return found

    def _read_ahead(self, place: Place, wanted: Wanted) -> Fetched:
        """Return what whole, sound batches there are at once from a place on."""
        pieces: list[Piece] = []
        at, count, size = place.offset, 0, 0
        while True:
            entries = columns_from(
                self._index,
                place.key,
                place.cq,
                at,
                end_offset=place.max_offset,
                max_messages=wanted.max_messages - count,
                max_bytes=wanted.max_bytes - size,
            )
            if entries is None or len(entries) < FEW:
                break
            done = 0
            for found in read_runs(self._log, entries.physical_offsets, entries.sizes):
                part = entries.cut(done, done + (len(found) if isinstance(found, BatchRun) else 1))
                piece = _piece(found, part, place.key, at)
                if piece is None:
                    break
                pieces.append(piece)
                count += piece.message_count
                size += len(piece.blocks)
                at += piece.message_count
                done += len(part)
                if isinstance(found, BatchRun):
                    _let_others()
            if done < len(entries):
                break
        cq = place.cq
        return Fetched(pieces, at, cq.min_offset, place.max_offset, count)

    def _read_block(self, unit: CqUnit) -> Batch:
        return self._log.read_batch(unit.physical_offset, unit.size)

    def _gap_end(self, place: Place, unit: CqUnit) -> int:
        """Return where a queue goes on behind the missing segment that had an entry's block."""
        following = self._log.segment_after(unit.physical_offset)
        if following is None:
            return place.max_offset
        found = first_unit_reaching(
            self._index, place.key, place.cq, PHYSICAL_OFFSET, following.start_offset
        )
        return place.max_offset if found is None else found.base_offset


def _first_units(units: Iterator[CqUnit], wanted: Wanted) -> list[CqUnit]:
    """Take entries until they have all that is wanted, FEW at most; none for a filter, which
    `collect` tries on one after another."""
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


def _piece(
    found: BatchRun | Batch, entries: EntryColumns, key: QueueKey, offset: int
) -> Piece | None:
    """Return what was read, from `offset` on, if it is what the index means."""
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
    return RunSlice(found, offset) if is_meant else None


def _let_others() -> None:
    """Let the event loop have the interpreter: it would get it after 5 ms, each time anew. Costs
    this thread 60 to 100 us: so long the shortest sleep lasts."""
    sleep(0)
