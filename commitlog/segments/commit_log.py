"""The log as a sequence of segment files: open, append, read, delete the oldest.

Threads: only the appender calls append and roll, from one thread at a time; only the segment
thread calls prepare_next; any thread may call retry_refused; only one thread at a time may call
delete_before; any thread may read. The tuple of segments is replaced as a whole and never changed
in place, so readers need no lock. Threads that replace the tuple hold `_row_lock`.
"""

import bisect
import errno
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path

from holdfast.commitlog.config import CommitLogConfig
from holdfast.commitlog.disk.disk import Disk, PooledDisk, make_directory, most_open_files
from holdfast.commitlog.disk.read_only import Readable, ReadOnlyDisk
from holdfast.commitlog.errors import (
    MISSING_SEGMENT,
    UNKNOWN_VERSION,
    UNREADABLE,
    BatchTooLarge,
    CorruptBatch,
    CorruptRecord,
    DiskFull,
    DiskLow,
    LogError,
    NoSegment,
    UnknownFormatVersion,
)
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_header import HEADER_SIZE, BatchHeader, Buffer, place_of
from holdfast.commitlog.format.segment_format import (
    END_MARK_SIZE,
    SEGMENT_HEADER_SIZE,
    SegmentHeader,
    encode_end_mark,
    footer_size,
    parse_segment_name,
    segment_name,
)
from holdfast.commitlog.segments.newest_blocks import NewestBlocks
from holdfast.commitlog.segments.segment import Segment, create_segment, largest_batch

_start_offset = attrgetter("start_offset")

#: If the disk was full, the log waits for this time before it tries again to create a segment.
DISK_FULL_RETRY_S = 1.0


class CommitLog:
    """The segment files of one data directory."""

    def __init__(
        self,
        directory: Path,
        config: CommitLogConfig,
        disk: Disk,
        *,
        now_us: Callable[[], int],
        disk_full: Callable[[], None] = lambda: None,
        has_reserve: Callable[[], bool] = lambda: True,
        free_bytes: Callable[[], int] = lambda: 2**63,
    ) -> None:
        """`now_us` returns the wall clock. `disk_full` is called when the disk has no room for a
        segment, in the thread that tried to create it. `has_reserve` is called before a segment is
        created. It allocates the disk reserve again if that was released; if it returns False, no
        segment is created, because the reserve is more important. `free_bytes` returns the free
        bytes of the disk; no segment is created that would leave less than min_free_bytes."""
        self.directory = directory
        self.largest_batch = largest_batch(config.segment_bytes)
        self.newest = NewestBlocks(config.newest_blocks_bytes)
        """The blocks that were appended last."""
        self._config = config
        self._disk = PooledDisk(disk, most_open_files(config.max_open_segments))
        self.refusal: LogError | None = None
        """The error of the last `roll` or `retry_refused` that could not create a segment; None
        after a segment was created."""
        self._now_us = now_us
        self._disk_full = disk_full
        self._has_reserve = has_reserve
        self._free_bytes = free_bytes
        self.segments: tuple[Segment, ...] = ()
        """The segments, oldest first. Appends go to the last segment."""
        self._prepared: Segment | None = None
        #: Held while `segments` or `_prepared` is read and replaced. Without the lock, two
        #: threads could create the same segment, or one could overwrite the other's change.
        self._row_lock = threading.Lock()
        self._no_room_until = 0.0
        #: The files whose header or name is wrong, as `open` found: (path, reason).
        self.damaged_headers: list[tuple[Path, str]] = []

    # -- opening ---------------------------------------------------------------------------

    def open(self) -> None:
        """Open every segment. Raise UnknownFormatVersion for a newer format.

        A file with a damaged header is added to `damaged_headers`. Its name then determines where
        the segment starts, and its size where the segment ends, but not beyond the start of the
        next segment. A file that overlaps the segment before it, or is too short for a header, is
        added to `damaged_headers` and not opened as a segment."""
        make_directory(self.directory)
        # A killed process may have renamed a segment without syncing the directory.
        self._disk.sync_names(self.directory)
        segments: list[Segment] = []
        names = self._disk.names(self.directory)
        starts = [start for name in names if (start := parse_segment_name(name)) is not None]
        for name in names:
            path = self.directory / name
            if name.endswith(".new"):
                self._disk.remove(path)
                continue
            start = parse_segment_name(name)
            if start is None:
                continue
            if segments and start < segments[-1].end_offset:
                self.damaged_headers.append((path, f"lies over {segments[-1].path.name}"))
                continue
            following = filter(self._may_be_segment, starts[bisect.bisect_right(starts, start) :])
            segment = self._open_segment(path, start, following)
            if segment is not None:
                segments.append(segment)
        self.segments = tuple(segments)

    def _may_be_segment(self, start: int) -> bool:
        file = self._disk.open(self.directory / segment_name(start))
        try:
            return file.size() >= SEGMENT_HEADER_SIZE
        finally:
            file.close()

    def _open_segment(self, path: Path, start: int, following: Iterator[int]) -> Segment | None:
        file = self._disk.open(path)
        size = file.size()
        if size < SEGMENT_HEADER_SIZE:
            file.close()
            self.damaged_headers.append((path, f"{size} bytes: too short for a segment"))
            return None
        try:
            head = file.read(SEGMENT_HEADER_SIZE + HEADER_SIZE, 0)
            _refuse_newer_block(head[SEGMENT_HEADER_SIZE:], start + SEGMENT_HEADER_SIZE)
            header = SegmentHeader.decode(head[:SEGMENT_HEADER_SIZE])
            if header.start_offset != start:
                raise CorruptBatch("segment-header", f"its start offset is {header.start_offset}")
            if header.size != size:
                self.damaged_headers.append((path, f"{size} bytes of {header.size}"))
            size = header.size
        except CorruptBatch as error:
            self.damaged_headers.append((path, str(error)))
            end = next(following, None)
            if end is not None and end - start >= SEGMENT_HEADER_SIZE:
                # Do not overlap the next file: its blocks may prove which bytes were durable.
                size = min(size, end - start)
        return Segment(file, path, start, size, start + SEGMENT_HEADER_SIZE)

    def end_at(self, active: Segment) -> None:
        """Make `active` the last segment. The segments after it must be empty.

        The segment directly after it becomes the prepared segment, if its file has the size that
        a new segment would have. The other segments are deleted, the last one first, so that a
        power failure leaves no hole in the log."""
        index = self.segments.index(active)
        following = self.segments[index + 1 :]
        self.segments = self.segments[: index + 1]
        for position, segment in reversed(list(enumerate(following))):
            is_next = position == 0 and segment.start_offset == active.end_offset
            if is_next and segment.file.size() == segment.size == self._next_size():
                segment.written = segment.first_offset
                self._prepared = segment
            else:
                self._disk.remove(segment.path)

    def leave_out(self, first: Segment) -> list[Path]:
        """Remove this segment and all later segments from the log. Close their files and return
        the paths; the files stay unchanged on the disk."""
        index = self.segments.index(first)
        left_out = self.segments[index:]
        self.segments = self.segments[:index]
        for segment in left_out:
            segment.file.close()
        return [segment.path for segment in left_out]

    def close(self) -> None:
        """Close every file; may be called twice."""
        for segment in (*self.segments, *([self._prepared] if self._prepared else [])):
            segment.file.close()
        self._prepared = None
        self.segments = ()

    # -- segments and offsets --------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        """Physical offset of the first byte that the log still has; 0 without segments."""
        return self.segments[0].start_offset if self.segments else 0

    @property
    def written_offset(self) -> int:
        """Physical offset of the next block to be written; 0 without segments."""
        return self.segments[-1].written if self.segments else 0

    @property
    def size_bytes(self) -> int:
        """Total size of the segments."""
        return sum(segment.size for segment in self.segments)

    def segment_at(self, physical_offset: int) -> Segment | None:
        """Return the segment that contains this physical offset, None if there is none."""
        segments = self.segments
        index = bisect.bisect_right(segments, physical_offset, key=_start_offset) - 1
        if index < 0 or physical_offset >= segments[index].end_offset:
            return None
        return segments[index]

    def segment_start(self, physical_offset: int) -> int:
        """Return the start of the segment that contains this physical offset, 0 if there is
        none."""
        segment = self.segment_at(physical_offset)
        return 0 if segment is None else segment.start_offset

    def segment_after(self, physical_offset: int) -> Segment | None:
        """Return the first segment that starts after this physical offset, None if there is
        none."""
        segments = self.segments
        index = bisect.bisect_right(segments, physical_offset, key=_start_offset)
        return segments[index] if index < len(segments) else None

    # -- appending (one thread at a time) --------------------------------------------------

    def check_size(self, size: int) -> None:
        """Raise BatchTooLarge for a batch that does not fit an empty segment of full size."""
        if size > self.largest_batch:
            raise BatchTooLarge(size, self.largest_batch)

    def has_room(self, size: int, keys: int, blocks: int) -> bool:
        """Return whether `blocks` blocks of `size` bytes in total, with `keys` keyed messages, fit
        the active segment."""
        return bool(self.segments) and self.segments[-1].has_room(size, keys, blocks)

    def fits_segment(self, size: int, keys: int, blocks: int) -> bool:
        """Return whether `blocks` blocks of `size` bytes in total, with `keys` keyed messages, fit
        an empty segment of full size."""
        return _room(size, keys, blocks) <= self._config.segment_bytes

    def roll(self, size: int = 0, keys: int = 0, blocks: int = 0) -> Segment | None:
        """End the active segment and start the next one. Return the ended segment, None if the log
        had no segment.

        The next segment is the prepared segment if there is one, even if it is small. Otherwise it
        is a new segment with room for `blocks` blocks of `size` bytes in total, with `keys` keyed
        messages, if segment_bytes allows that.

        Raise DiskFull, DiskLow or NoSegment if the next segment cannot be created; the log is then
        unchanged. For DISK_FULL_RETRY_S after a full disk, raise DiskFull without another try.
        """
        with self._row_lock:
            try:
                following = self._prepared or self._create_next(_room(size, keys, blocks))
            except LogError as error:
                self.refusal = error
                raise
            self._prepared = None
            ended = self.segments[-1] if self.segments else None
            if ended is not None and not ended.ended:
                position = ended.written - ended.start_offset
                ended.file.write([encode_end_mark(ended.written)], position)
                ended.ended = True
            self.segments = (*self.segments, following)
        return ended

    def append(self, buffers: Sequence[Buffer], headers: Sequence[BatchHeader]) -> None:
        """Write blocks to the end of the active segment; `has_room` must have returned True for
        them. `buffers` has two buffers for each of the `headers`: its bytes, and the payload.

        OSError propagates; it is then unknown which bytes were written."""
        active = self.segments[-1]
        active.file.write(buffers, active.written - active.start_offset)
        for header in headers:
            active.count(header)
        self.newest.add(headers, buffers)

    def _next_size(self, least: int = 0) -> int:
        """Return the size of the next segment. The size is first_segment_bytes, or twice that of
        the last segment if that is larger. It is doubled until it is at least `least`. It is never
        more than segment_bytes."""
        size = self._config.first_segment_bytes
        if self.segments:
            size = max(size, 2 * self.segments[-1].size)
        while size < least:
            size *= 2
        return min(size, self._config.segment_bytes)

    def _create_next(self, least: int = 0) -> Segment:
        size = self._next_size(least)
        if time.monotonic() < self._no_room_until:
            raise DiskFull(size)
        start = self.segments[-1].end_offset if self.segments else 0
        try:
            if not self._has_reserve():
                raise DiskFull(size)
            self._refuse_low_disk(size)
            made = create_segment(self._disk, self.directory, start, size, self._now_us())
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                # No other part knows this segment yet, so a later retry is safe: descriptors
                # may become free, and the disk may work again.
                raise NoSegment(str(error)) from error
            self._no_room_until = time.monotonic() + DISK_FULL_RETRY_S
            self._disk_full()
            raise DiskFull(size) from error
        self.refusal = None
        return made

    def _refuse_low_disk(self, size: int) -> None:
        """Raise DiskLow if a new segment of this size would leave less than min_free_bytes."""
        least = self._config.min_free_bytes
        if least and (free := self._free_bytes()) - size < least:
            raise DiskLow(str(self.directory), free, least, size)

    # -- outside the publish path (the segment thread) -------------------------------------

    def prepare_next(self) -> None:
        """Create the segment after the active one before it is needed. Raise what `roll` raises.

        Do nothing if a segment is prepared already. If the log has no segment, do nothing unless
        an earlier creation failed (`refusal` is set)."""
        with self._row_lock:
            if self._prepared is None and (self.segments or self.refusal is not None):
                self._prepared = self._create_next()

    def retry_refused(self) -> None:
        """If `refusal` is set, try again to create the segment; else do nothing. A new LogError is
        stored in `refusal`, not raised."""
        if self.refusal is None:
            return
        try:
            self.prepare_next()
        except LogError as error:
            self.refusal = error

    def delete_before(self, physical_offset: int) -> list[Segment]:
        """Delete the segments that end at or before this offset, oldest first, and return them.

        The active segment is never deleted. Reads in progress can still finish. OSError
        propagates; the segment whose deletion failed and all later segments then stay in the log,
        so that the log has no hole."""
        with self._row_lock:
            row = self.segments
            gone = [segment for segment in row[:-1] if segment.end_offset <= physical_offset]
            self.segments = row[len(gone) :]
        for index, segment in enumerate(gone):
            try:
                self._disk.remove(segment.path)
            except OSError:
                with self._row_lock:
                    self.segments = (*gone[index:], *self.segments)
                raise
        return gone

    # -- reading ---------------------------------------------------------------------------

    def read_batch(self, physical_offset: int, size: int) -> Batch:
        """Return the intact batch at this physical offset. Raise CorruptRecord if it is damaged,
        its segment was deleted, or the disk fails to read it."""
        return _decode_checked(self.read_bytes(physical_offset, size), physical_offset)

    def read_bytes(self, physical_offset: int, size: int) -> bytes:
        """Return `size` bytes of one segment, unverified; fewer only at the segment's end. Raise
        CorruptRecord if the segment was deleted, or the disk fails to read it."""
        segment = self.segment_at(physical_offset)
        if segment is None:
            raise CorruptRecord(physical_offset, MISSING_SEGMENT, "no segment contains it")
        try:
            return segment.read(physical_offset, size)
        except OSError as error:
            raise CorruptRecord(physical_offset, UNREADABLE, str(error)) from error

    def read_batch_nowait(self, physical_offset: int, size: int) -> Batch | None:
        """Do what `read_batch` does, but return None if the read would wait for the disk, or if
        the disk fails to read."""
        segment = self.segment_at(physical_offset)
        if segment is None:
            raise CorruptRecord(physical_offset, MISSING_SEGMENT, "no segment contains it")
        try:
            block = segment.read_nowait(physical_offset, size)
        except OSError:
            return None  # the blocking read that follows reports the error
        return None if block is None else _decode_checked(block, physical_offset)


@contextmanager
def open_read_only(directory: Path, disk: Readable | None = None) -> Iterator[CommitLog]:
    """Open the log in `directory` for reading, and close it at the end of the context. Nothing is
    changed. `disk` gives access to the files; by default the machine's own disk. Raise
    UnknownFormatVersion; OSError propagates."""
    log = CommitLog(directory, CommitLogConfig(), ReadOnlyDisk(disk), now_us=lambda: 0)
    try:
        log.open()
        yield log
    finally:
        log.close()


def _refuse_newer_block(raw: Buffer, physical_offset: int) -> None:
    """Raise UnknownFormatVersion if a newer Holdfast wrote the segment's first block."""
    try:
        BatchHeader.decode(raw)
    except CorruptBatch:
        return
    except UnknownFormatVersion:
        if place_of(raw) == physical_offset:
            raise


def _room(size: int, keys: int, blocks: int) -> int:
    """Return the size of a segment for `blocks` blocks of `size` bytes in total, with `keys` keyed
    messages."""
    return SEGMENT_HEADER_SIZE + size + END_MARK_SIZE + footer_size(blocks, keys)


def _decode_checked(block: bytes, physical_offset: int) -> Batch:
    """Decode a block read from the log. Raise CorruptRecord for every kind of failure."""
    try:
        batch = Batch.decode(block)
    except CorruptBatch as error:
        raise CorruptRecord(physical_offset, error.reason, error.detail) from error
    except UnknownFormatVersion as error:
        # Opening and recovery refuse blocks of a newer version, but they do not read every block.
        raise CorruptRecord(physical_offset, UNKNOWN_VERSION, str(error)) from error
    if batch.header.physical_offset != physical_offset:
        raise CorruptRecord(
            physical_offset,
            "misplaced",
            f"its header has offset {batch.header.physical_offset}",
        )
    return batch
