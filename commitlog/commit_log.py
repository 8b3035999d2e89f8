"""The log as a row of segment files: open, append, sync, read, delete the oldest.

Who may call what: append and roll are the appender thread's; sync is the sync
thread's; prepare_next and seal the segment thread's; delete_before is for one caller at a time;
reads are anyone's. The row of segments is replaced as a whole, never changed, so readers need no
lock, and those who replace it share one.
"""

import bisect
import errno
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from holdfast.commitlog.batch import Batch, UInt32s
from holdfast.commitlog.batch_header import BatchFlag, BatchHeader, Buffer
from holdfast.commitlog.config import CommitLogConfig
from holdfast.commitlog.disk import Disk, make_directory
from holdfast.commitlog.errors import (
    MISSING_SEGMENT,
    BatchTooLarge,
    CorruptBatch,
    CorruptRecord,
    DiskFull,
    DiskLow,
    NoSegment,
)
from holdfast.commitlog.log_scan import Damage, scan_headers, scan_segment
from holdfast.commitlog.segment import (
    Segment,
    create_segment,
    largest_batch,
    read_trailer,
)
from holdfast.commitlog.segment_format import (
    BLOCK_DTYPE,
    END_MARK_SIZE,
    KEY_DTYPE,
    SEGMENT_HEADER_SIZE,
    TRAILER_SIZE,
    Blocks,
    Keys,
    SegmentHeader,
    decode_footer,
    encode_end_mark,
    encode_footer,
    footer_size,
    parse_segment_name,
    segment_name,
)

_logger = logging.getLogger(__name__)

#: After a full disk, the next try to allocate a segment waits this long.
DISK_FULL_RETRY_S = 1.0

_ROWS_AT_ONCE = 4096
_NO_HASHES = np.zeros(0, "<u4")


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
        """`now_us` gives the wall clock; `disk_full` is called, in the thread that noticed,
        when there was no room for a segment. `has_reserve` takes the reserve back that was
        given up then, if it can: no segment is made of room that is kept for other things, nor
        one that would leave less than min_free_bytes of `free_bytes`."""
        self.directory = directory
        self.largest_batch = largest_batch(config.segment_bytes)
        self._config = config
        self._disk = disk
        self._now_us = now_us
        self._disk_full = disk_full
        self._has_reserve = has_reserve
        self._free_bytes = free_bytes
        self._segments: tuple[Segment, ...] = ()
        self._prepared: Segment | None = None
        #: Held by who changes the row or the prepared segment, from looking at it to the end:
        #: else two would make the same segment, or one lose the other's change.
        self._row_lock = threading.Lock()
        self._no_room_until = 0.0
        #: Files that are not what their headers or names say, noted at opening: (path, reason).
        self.damaged_headers: list[tuple[Path, str]] = []

    # -- opening ---------------------------------------------------------------------------

    def open(self) -> None:
        """Open every segment. Raises UnknownFormatVersion for a newer format; a damaged
        header is noted in `damaged_headers` and the file's name and size are used instead, the
        size as far as the next file lets it. A file that lies over the one before it, or has no
        room for a header, is noted too, and left alone."""
        make_directory(self.directory)
        # A killed process may have renamed a segment, and not synced that any more.
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
        self._segments = tuple(segments)

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
            header = SegmentHeader.decode(file.read(SEGMENT_HEADER_SIZE, 0))
            if header.start_offset != start:
                raise CorruptBatch("segment-header", f"it says it starts at {header.start_offset}")
            if header.size != size:
                self.damaged_headers.append((path, f"{size} bytes of {header.size}"))
            size = header.size
        except CorruptBatch as error:
            self.damaged_headers.append((path, str(error)))
            end = next(following, None)
            if end is not None and end - start >= SEGMENT_HEADER_SIZE:
                # The next file may prove what was durable: it is not to be left out.
                size = min(size, end - start)
        return Segment(file, path, start, size, start + SEGMENT_HEADER_SIZE)

    def end_at(self, active: Segment) -> None:
        """Make `active` the last segment. The empty one after it is kept as the prepared one, if
        its file has the size that a new one would have; any further ones are deleted, the last one
        first: should the power go meanwhile, there is no hole before what is left."""
        index = self._segments.index(active)
        following = self._segments[index + 1 :]
        self._segments = self._segments[: index + 1]
        for position, segment in reversed(list(enumerate(following))):
            is_next = position == 0 and segment.start_offset == active.end_offset
            if is_next and segment.file.size() == segment.size == self._config.segment_bytes:
                segment.written = segment.first_offset
                self._prepared = segment
            else:
                self._disk.remove(segment.path)

    def leave_out(self, first: Segment) -> list[Path]:
        """Take this segment and all after it for none of the log's; return their files, which
        stay as they are."""
        index = self._segments.index(first)
        left_out = self._segments[index:]
        self._segments = self._segments[:index]
        for segment in left_out:
            segment.file.close()
        return [segment.path for segment in left_out]

    def close(self) -> None:
        """Close every file; may be called twice."""
        for segment in (*self._segments, *([self._prepared] if self._prepared else [])):
            segment.file.close()
        self._prepared = None
        self._segments = ()

    # -- what there is ---------------------------------------------------------------------

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, oldest first; the last one takes the appends."""
        return self._segments

    @property
    def min_offset(self) -> int:
        """Physical offset of the first byte kept."""
        return self._segments[0].start_offset if self._segments else 0

    @property
    def written_offset(self) -> int:
        """Physical offset where the next block goes."""
        return self._segments[-1].written if self._segments else 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all segment files."""
        return sum(segment.size for segment in self._segments)

    def segment_at(self, physical_offset: int) -> Segment | None:
        """Return the segment that holds this physical offset, None if there is none."""
        segments = self._segments
        index = bisect.bisect_right(segments, physical_offset, key=_start_offset) - 1
        if index < 0 or physical_offset >= segments[index].end_offset:
            return None
        return segments[index]

    def segment_after(self, physical_offset: int) -> Segment | None:
        """Return the first segment that starts behind this physical offset."""
        segments = self._segments
        index = bisect.bisect_right(segments, physical_offset, key=_start_offset)
        return segments[index] if index < len(segments) else None

    # -- appending (the appender thread) ---------------------------------------------------

    def check_size(self, size: int) -> None:
        """Raise BatchTooLarge for a batch that no segment would ever take."""
        if size > self.largest_batch:
            raise BatchTooLarge(size, self.largest_batch)

    def has_room(self, size: int, keys: int, blocks: int) -> bool:
        """Return whether the active segment takes so many blocks of this size in all."""
        return bool(self._segments) and self._segments[-1].has_room(size, keys, blocks)

    def fits_segment(self, size: int, keys: int, blocks: int) -> bool:
        """Return whether an empty segment takes so many blocks of this size in all."""
        reserved = SEGMENT_HEADER_SIZE + END_MARK_SIZE + footer_size(blocks, keys)
        return reserved + size <= self._config.segment_bytes

    def roll(self) -> Segment | None:
        """End the active segment and begin the next; return the one that ended.

        Raises DiskFull, DiskLow or NoSegment when the next one cannot be made; nothing has
        changed then, and after DiskFull the disk is not even asked again within
        DISK_FULL_RETRY_S.
        """
        with self._row_lock:
            following = self._prepared if self._prepared is not None else self._create_next()
            self._prepared = None
            ended = self._segments[-1] if self._segments else None
            if ended is not None and not ended.ended:
                position = ended.written - ended.start_offset
                ended.file.write([encode_end_mark(ended.written)], position)
                ended.ended = True
            self._segments = (*self._segments, following)
        return ended

    def append(self, buffers: Sequence[Buffer], headers: Sequence[BatchHeader]) -> None:
        """Write blocks that `has_room` allowed, one after another, at the end of the active
        segment. OSError passes through: what was written then is unknown."""
        active = self._segments[-1]
        active.file.write(buffers, active.written - active.start_offset)
        for header in headers:
            active.count(header)

    def _create_next(self) -> Segment:
        if time.monotonic() < self._no_room_until:
            raise DiskFull(self._config.segment_bytes)
        start = self._segments[-1].end_offset if self._segments else 0
        try:
            if not self._has_reserve():
                raise DiskFull(self._config.segment_bytes)
            self._refuse_low_disk()
            return create_segment(
                self._disk, self.directory, start, self._config.segment_bytes, self._now_us()
            )
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                # Nobody has been told of this segment: descriptors may come back, and so may
                # the disk.
                raise NoSegment(str(error)) from error
            self._no_room_until = time.monotonic() + DISK_FULL_RETRY_S
            self._disk_full()
            raise DiskFull(self._config.segment_bytes) from error

    def _refuse_low_disk(self) -> None:
        """Raise DiskLow when a segment more would leave too little."""
        least, segment_bytes = self._config.min_free_bytes, self._config.segment_bytes
        if least and (free := self._free_bytes()) - segment_bytes < least:
            raise DiskLow(str(self.directory), free, least, segment_bytes)

    # -- beside the appender (the segment thread) ------------------------------------------

    def prepare_next(self) -> None:
        """Create the segment after the active one ahead of need; raises as `roll` does."""
        with self._row_lock:
            if self._prepared is None and self._segments:
                self._prepared = self._create_next()

    def seal(self, segment: Segment) -> None:
        """Write an ended segment's footer and sync it. `Segment.has_room` kept room for it.
        Damage is left alone: a segment that cannot be walked to its end mark gets no footer."""
        if segment.sealed or not segment.ended:
            return
        damage: list[Damage] = []
        # Keys are all that a footer takes from payloads. Rot is the scrub's to find.
        blocks, keys = _tables_of(scan_headers(segment, _has_keys), damage.append)
        if any(found.end == segment.end_offset for found in damage):
            _logger.error("%s has no end mark, so no footer either", segment.path.name)
            return
        footer = encode_footer(segment.start_offset, blocks, keys)
        segment.file.write([footer], segment.size - len(footer))
        segment.sync()
        segment.sealed = True

    def delete_before(self, physical_offset: int) -> list[Segment]:
        """Delete the segments that end at or before this offset, oldest first; never the
        active one. Returns them; reads under way go on. OSError passes through: that segment
        and those after it are still in the row, lest a later call leaves a hole behind it."""
        with self._row_lock:
            row = self._segments
            gone = [segment for segment in row[:-1] if segment.end_offset <= physical_offset]
            self._segments = row[len(gone) :]
        for index, segment in enumerate(gone):
            try:
                self._disk.remove(segment.path)
            except OSError:
                with self._row_lock:
                    self._segments = (*gone[index:], *self._segments)
                raise
        return gone

    # -- reading ---------------------------------------------------------------------------

    def read_batch(self, physical_offset: int, size: int) -> Batch:
        """Return the intact batch at this physical offset. Raises CorruptRecord when it is
        damaged, gone with its segment, or on a part of the disk that fails to read."""
        return _checked(self.read_bytes(physical_offset, size), physical_offset)

    def read_bytes(self, physical_offset: int, size: int) -> bytes:
        """Return bytes of one segment, fewer only at its end, and not to be trusted. Raises
        CorruptRecord when the segment is gone, or on a part of the disk that fails to read."""
        segment = self.segment_at(physical_offset)
        if segment is None:
            raise CorruptRecord(physical_offset, MISSING_SEGMENT, "no segment holds it")
        try:
            return segment.read(physical_offset, size)
        except OSError as error:
            raise CorruptRecord(physical_offset, "unreadable", str(error)) from error

    def read_batch_nowait(self, physical_offset: int, size: int) -> Batch | None:
        """As read_batch, but None when that would have to wait for the disk."""
        segment = self.segment_at(physical_offset)
        if segment is None:
            raise CorruptRecord(physical_offset, MISSING_SEGMENT, "no segment holds it")
        try:
            block = segment.read_nowait(physical_offset, size)
        except OSError:
            return None  # the reader that waits for the disk shall say what is wrong
        return None if block is None else _checked(block, physical_offset)

    def footer(self, segment: Segment) -> tuple[Blocks, Keys] | None:
        """Return a sealed segment's tables, None when it has no intact footer, or one on a part of
        the disk that fails to read: blocks can be found without it."""
        try:
            trailer = read_trailer(segment)
            if trailer is None or trailer.start_offset != segment.start_offset:
                return None
            start = segment.end_offset - trailer.footer_size
            if start < segment.first_offset:
                return None
            return decode_footer(trailer, segment.read(start, trailer.footer_size - TRAILER_SIZE))
        except (CorruptBatch, OSError) as error:
            _logger.warning("segment %s: %s", segment.path.name, error)
            return None


def _start_offset(segment: Segment) -> int:
    return segment.start_offset


def _checked(block: bytes, physical_offset: int) -> Batch:
    """Decode a block read from the log; every failure is a CorruptRecord."""
    try:
        batch = Batch.decode(block)
    except CorruptBatch as error:
        raise CorruptRecord(physical_offset, error.reason, error.detail) from error
    if batch.header.physical_offset != physical_offset:
        raise CorruptRecord(
            physical_offset, "misplaced", f"it belongs at {batch.header.physical_offset}"
        )
    return batch


def block_tables(
    segment: Segment, damaged: Callable[[Damage], None] = lambda damage: None
) -> tuple[Blocks, Keys]:
    """Return the footer's tables of a segment, by walking it. What is damaged is handed to
    `damaged`; where its header is intact it is in the tables all the same, without keys, so
    that no reader passes over it unawares."""
    return _tables_of(scan_segment(segment), damaged)


def _tables_of(
    walk: Iterable[Batch | BatchHeader | Damage], damaged: Callable[[Damage], None]
) -> tuple[Blocks, Keys]:
    # A segment may hold millions of blocks: a few thousand at a time are objects.
    parts: list[tuple[Blocks, UInt32s, UInt32s]] = []
    rows: list[tuple[int, ...]] = []
    hashes: list[UInt32s] = []
    for found in walk:
        if isinstance(found, Damage):
            damaged(found)
        header = found if isinstance(found, BatchHeader) else found.header
        if header is not None:
            rows.append(_block_row(header))
            if isinstance(found, BatchHeader | Damage):
                hashes.append(_NO_HASHES)
            else:
                hashes.append(_hashes_of_keys(found))
        if len(rows) == _ROWS_AT_ONCE:
            parts.append(_packed(rows, hashes))
            rows, hashes = [], []
    parts.append(_packed(rows, hashes))
    blocks = np.concatenate([part[0] for part in parts])
    key_counts = np.concatenate([part[1] for part in parts])
    key_hashes = np.concatenate([part[2] for part in parts])
    del parts
    order = np.lexsort((blocks["base_offset"], blocks["queue_id"], blocks["topic_id"]))
    place = np.empty(len(order), "<u4")
    place[order] = np.arange(len(order))
    keys = np.zeros(len(key_hashes), KEY_DTYPE)
    keys["key_hash"] = key_hashes
    keys["block"] = np.repeat(place, key_counts)
    return blocks[order], keys[np.lexsort((keys["block"], keys["key_hash"]))]


def _packed(rows: list[tuple[int, ...]], hashes: list[UInt32s]) -> tuple[Blocks, UInt32s, UInt32s]:
    """Return rows of a block table, how many keys each has, and all of the keys' hashes."""
    counts = np.array([len(each) for each in hashes], "<u4")
    return np.array(rows, BLOCK_DTYPE), counts, np.concatenate([_NO_HASHES, *hashes])


def _has_keys(header: BatchHeader) -> bool:
    return bool(header.flags & BatchFlag.KEYS)


def _hashes_of_keys(batch: Batch) -> UInt32s:
    """Return the hashes of the messages that have a key; a key's hash may be 0."""
    if batch.key_hashes is None or batch.key_offsets is None:
        return _NO_HASHES
    return batch.key_hashes[np.diff(batch.key_offsets) > 0]


def _block_row(header: BatchHeader) -> tuple[int, ...]:
    """Return one row of a footer's block table."""
    return (
        header.topic_id,
        header.queue_id,
        header.base_offset,
        header.physical_offset,
        header.total_size,
        header.message_count,
        header.store_timestamp_us,
        header.tag_summary,
        header.body_bytes,
        header.flags,
    )


def block_header(row: np.void) -> BatchHeader:
    """Return what one row of a footer's block table tells of a block's header."""
    return BatchHeader(
        flags=int(row["flags"]),
        total_size=int(row["size"]),
        payload_crc=0,
        message_count=int(row["message_count"]),
        body_bytes=int(row["body_bytes"]),
        physical_offset=int(row["physical_offset"]),
        base_offset=int(row["base_offset"]),
        topic_id=int(row["topic_id"]),
        queue_id=int(row["queue_id"]),
        store_timestamp_us=int(row["store_timestamp_us"]),
        tag_summary=int(row["tag_summary"]),
    )
