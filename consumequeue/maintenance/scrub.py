"""The scrub: reads the sealed segments repeatedly and slowly, to find bit rot before a reader does.

The scrub has its own thread, and runs only if a rate is configured. It changes nothing, except that
a damaged footer is rebuilt from its segment's blocks. It reports damage to the damage book, on the
event loop. Its position is only in memory, so after a restart it begins with the first segment.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from time import monotonic
from typing import cast

import msgspec

from holdfast.commitlog.disk.disk import File, forget
from holdfast.commitlog.errors import UNKNOWN_VERSION, CorruptBatch, UnknownFormatVersion
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_header import BatchHeader
from holdfast.commitlog.format.segment_format import SEGMENT_HEADER_SIZE, SegmentHeader
from holdfast.commitlog.segments.commit_log import CommitLog
from holdfast.commitlog.segments.footer import read_footer
from holdfast.commitlog.segments.log_scan import Damage, scan_segment
from holdfast.commitlog.segments.recovery import split_damage
from holdfast.commitlog.segments.scrub_pace import ScrubPace, next_start
from holdfast.commitlog.segments.segment import Segment
from holdfast.consumequeue.damage.damage_book import DamageBook, Fault
from holdfast.consumequeue.errors import IndexCorrupt
from holdfast.consumequeue.index.consume_queue import ConsumeQueue
from holdfast.consumequeue.index.index import Index
from holdfast.consumequeue.maintenance.damage_at_start import lost_between, note_damage
from holdfast.consumequeue.topics import QueueKey

_logger = logging.getLogger(__name__)

#: The size of one read. Before each read the scrub waits as `ScrubPace` requires.
CHUNK_BYTES = 256 * 1024
#: The pause between two passes.
PASS_PAUSE_S = 60.0


class ScrubStopped(Exception):
    """The thread must end, in the middle of a segment."""


class ScrubProgress(msgspec.Struct):
    """What the scrub has done so far. Any thread may read this."""

    bytes: int = 0
    """Bytes checked since the start."""
    passes: int = 0
    """The number of complete passes over the log."""
    physical_offset: int = 0
    """The current position in the log."""


@dataclass(eq=False)
class Scrub:
    """The scrub of one log. `run_on_loop` runs a function on the event loop. `is_busy` returns
    whether the disk has other work. `reseal` starts the rebuild of a segment's footer."""

    log: CommitLog
    index: Index
    queues: Mapping[QueueKey, ConsumeQueue]
    book: DamageBook
    _: KW_ONLY
    bytes_per_s: int
    run_on_loop: Callable[[Callable[[], None]], None]
    is_busy: Callable[[], bool]
    reseal: Callable[[Segment], None]
    pass_pause_s: float = PASS_PAUSE_S

    def __post_init__(self) -> None:
        self.progress = ScrubProgress()
        self._pace = ScrubPace(self.bytes_per_s) if self.bytes_per_s else None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-scrub", daemon=True)

    def start(self) -> None:
        """Start the thread, if a rate is configured."""
        if self._pace is not None:
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread; may be called twice."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._make_pass()
                self.progress.passes += 1
                self._stopping.wait(self.pass_pause_s)
        except ScrubStopped:
            pass
        except Exception:
            _logger.exception("the scrub failed; the broker works without it")

    def _make_pass(self) -> None:
        at: int | None = None
        while True:
            sealed = {each.start_offset: each for each in self.log.segments if each.sealed}
            at = next_start(list(sealed), at)
            if at is None:
                return
            segment = sealed[at]
            try:
                self._check(segment)
            except OSError as error:
                self._note_file(segment, "unreadable-file", str(error))
            except UnknownFormatVersion as error:
                self._note_file(segment, UNKNOWN_VERSION, str(error))

    # -- one segment -----------------------------------------------------------------------

    def _check(self, segment: Segment) -> None:
        size = segment.file.size()
        if size < segment.size:
            self._note_hole(segment, segment.start_offset + size)
        paced = Segment(
            cast(File, _PacedFile(segment.file, self._read)),  # the segment is only read
            segment.path,
            segment.start_offset,
            segment.size,
            segment.written,
        )
        try:
            header = SegmentHeader.decode(paced.read(segment.start_offset, SEGMENT_HEADER_SIZE))
            if (header.start_offset, header.size) != (segment.start_offset, segment.size):
                raise CorruptBatch("segment-header", f"it is that of {header.start_offset}")
        except CorruptBatch as error:
            self._note_file(segment, "damaged-file", str(error))
        is_indexed = self._is_indexed(segment)
        for found in scan_segment(paced):
            if isinstance(found, Damage):
                self.progress.physical_offset = found.end
                self._note(segment, found)
            else:
                self.progress.physical_offset = found.header.end_physical_offset
                is_indexed = is_indexed and self._matches_index(found)
        if read_footer(segment) is None and self._is_kept(segment):
            _logger.warning("the footer of %s is damaged: it is written again", segment.path.name)
            self.run_on_loop(lambda: self.book.counts.update(["footer"]))
            self.reseal(segment)

    def _read(self, size: int, position: int, file: File) -> bytes:
        """Wait until the pace allows a read, then read a chunk. If the chunk was not in the page
        cache before, drop it from there again, so that the data of readers stays cached."""
        assert self._pace is not None
        while pause_s := self._pace.pause_s(monotonic(), is_busy=self.is_busy()):
            if self._stopping.wait(pause_s):
                raise ScrubStopped
        if self._stopping.is_set():
            raise ScrubStopped
        self._pace.has_read(monotonic(), size)
        self.progress.bytes += size
        data = file.read_nowait(size, position)
        if data is None:
            data = file.read(size, position)
            forget(file, size, position)
        return data

    def _is_kept(self, segment: Segment) -> bool:
        return segment in self.log.segments

    # -- the index -------------------------------------------------------------------------

    def _is_indexed(self, segment: Segment) -> bool:
        try:
            return self.index.position().segment_start >= segment.end_offset
        except IndexCorrupt:
            return False

    def _matches_index(self, batch: Batch) -> bool:
        """Compare a block with the index. If the index is damaged or does not have the block,
        condemn the index and return False: no more blocks need to be compared. Otherwise return
        True."""
        header = batch.header
        key = (header.topic_id, header.queue_id)
        cq = self.queues.get(key)
        if cq is None or header.end_offset <= cq.min_offset or self.index.is_condemned:
            return True
        try:
            unit = next(self.index.units(key, header.base_offset), None)
        except IndexCorrupt:
            return False  # the index is condemned now
        if unit is not None and unit.physical_offset == header.physical_offset:
            return True
        if header.end_offset <= cq.min_offset or key not in self.queues:
            return True  # retention deleted the block meanwhile
        is_given_again = unit is not None and (
            unit.physical_offset > header.physical_offset and unit.base_offset <= header.base_offset
        )
        if is_given_again:
            return True  # damage hid the block at a start, so a later block got its offsets
        self._condemn(header)
        return False

    def _condemn(self, header: BatchHeader) -> None:
        _logger.error(
            "damage: the index lacks offset %d of queue %d of the topic with id %d; it is rebuilt "
            "at the next start",
            header.base_offset,
            header.queue_id,
            header.topic_id,
        )
        self.index.condemn()
        self.run_on_loop(lambda: self.book.counts.update(["damaged-index"]))

    # -- reporting damage ------------------------------------------------------------------

    def _note(self, segment: Segment, damage: Damage) -> None:
        if not self._is_kept(segment):
            return
        found = split_damage(segment, damage)

        def note() -> None:
            for each in found:
                note_damage(each, self.book)

        self.run_on_loop(note)

    def _note_file(self, segment: Segment, reason: str, detail: str) -> None:
        if self._is_kept(segment):
            fault = Fault(reason, f"{segment.path.name}: {detail}")
            self.run_on_loop(lambda: self.book.note_file(fault))

    def _note_hole(self, segment: Segment, start: int) -> None:
        """Record the messages that a segment lost because its file was truncated while in use."""
        try:
            lost = lost_between(self.index, dict(self.queues), start, segment.end_offset)
            found = list(lost)
        except IndexCorrupt:
            found = []
        self._note_file(segment, "truncated-segment", f"it ends at {start - segment.start_offset}")

        def note() -> None:
            for key, lost_start, lost_end in found:
                self.book.record_lost(key, lost_start, lost_end, "truncated-segment")

        if self._is_kept(segment):
            self.run_on_loop(note)


class _PacedFile(msgspec.Struct, frozen=True):
    """A segment's file for the scrub. It is read in chunks, as fast as the pace allows."""

    file: File
    read_chunk: Callable[[int, int, File], bytes]

    def read(self, size: int, position: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = self.read_chunk(
                min(CHUNK_BYTES, size - len(data)), position + len(data), self.file
            )
            data += chunk
            if not chunk:
                break
        return bytes(data)

    def data_end(self, position: int) -> int:
        return self.file.data_end(position)
