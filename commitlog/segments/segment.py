"""One open segment file: where its blocks end and how much room is left.

Only the appender appends to it, from one thread at a time; any thread may read. The descriptor of a
deleted segment closes when its last reader is done.
"""

import threading
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.commitlog.disk.disk import Disk, File
from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.batch_header import KEYS, BatchHeader
from holdfast.commitlog.format.header_table import Headers, block_ends, keyed_message_count
from holdfast.commitlog.format.segment_format import (
    BLOCK_ROW_SIZE,
    END_MARK_SIZE,
    KEY_ROW_SIZE,
    SEGMENT_HEADER_SIZE,
    TRAILER_SIZE,
    FooterTrailer,
    SegmentHeader,
    footer_size,
    segment_name,
)


@dataclass(slots=True, eq=False)
class Segment:
    """A segment file. Offsets are physical; `written` is the offset of the next block."""

    file: File
    path: Path
    start_offset: int
    size: int
    written: int
    block_count: int = 0
    key_count: int = 0
    ended: bool = False
    """True if the segment takes no more blocks; normally its end mark is written."""
    sealed: bool = False
    """True if the footer is written."""
    _sync_lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _sync_error: OSError | None = None

    @property
    def first_offset(self) -> int:
        """Physical offset of the first block."""
        return self.start_offset + SEGMENT_HEADER_SIZE

    @property
    def end_offset(self) -> int:
        """Physical offset where the next segment starts."""
        return self.start_offset + self.size

    def has_room(self, size: int, keys: int, blocks: int) -> bool:
        """Return whether `blocks` blocks of `size` bytes in total, with `keys` keyed messages, fit
        together with the end mark and the footer. Return False for an ended segment."""
        # This is `footer_size`, without a call for each publish.
        rows = (self.block_count + blocks) * BLOCK_ROW_SIZE + (self.key_count + keys) * KEY_ROW_SIZE
        end = self.written + size + END_MARK_SIZE + rows + TRAILER_SIZE
        return not self.ended and end <= self.start_offset + self.size

    def count(self, header: BatchHeader) -> None:
        """Count a block that was appended, or found by recovery."""
        self.block_count += 1
        self.key_count += keyed_messages(header)
        self.written = header.end_physical_offset

    def count_all(self, headers: Headers) -> None:
        """Count adjacent blocks that recovery found; `headers` must not be empty."""
        self.block_count += len(headers)
        self.key_count += keyed_message_count(headers)
        self.written = int(block_ends(headers)[-1])

    def sync(self) -> None:
        """Make all writes to the file durable. After the first OSError every later call fails too.
        The kernel reports the error only once and drops the pages, so a later success would be
        false."""
        with self._sync_lock:
            if self._sync_error is not None:
                raise OSError(self._sync_error.errno, "an earlier sync failed", str(self.path))
            try:
                self.file.sync()
            except OSError as error:
                self._sync_error = error
                raise

    def read(self, physical_offset: int, size: int) -> bytes:
        """Return `size` bytes at this physical offset; fewer only at the end of the file."""
        return self.file.read(size, physical_offset - self.start_offset)

    def read_nowait(self, physical_offset: int, size: int) -> bytes | None:
        """Return what `read` would return, or None if that is not all in the page cache."""
        return self.file.read_nowait(size, physical_offset - self.start_offset)


def keyed_messages(header: BatchHeader) -> int:
    """Return the largest number of entries that a batch can add to a footer's key table."""
    return header.message_count if header.flags & KEYS else 0


def largest_batch(segment_bytes: int) -> int:
    """Return the size of the largest batch that an empty segment of this size can hold.

    A keyed message needs at least 12 bytes in its batch and 8 in the footer. So a batch that fits
    half of the room always leaves enough for the footer.
    """
    return (segment_bytes - SEGMENT_HEADER_SIZE - END_MARK_SIZE - footer_size(1, 0)) // 2


def create_segment(
    disk: Disk, directory: Path, start_offset: int, size: int, now_us: int
) -> Segment:
    """Create, allocate and sync an empty segment. The file gets its name only when it is complete.

    If a file has that name already, it was too damaged to be opened as a segment; it is renamed to
    `<name>.damaged-<now_us>`. OSError propagates; the new file is then removed."""
    path = directory / segment_name(start_offset)
    unfinished = path.with_suffix(".new")
    disk.remove(unfinished)
    file = disk.create(unfinished, size)
    try:
        file.write([SegmentHeader(start_offset, size, now_us).encode()], 0)
        file.sync()
        if path.name in disk.names(directory):
            disk.rename(path, path.with_name(f"{path.name}.damaged-{now_us}"))
        disk.rename(unfinished, path)
    except OSError:
        file.close()
        # If only the sync of the rename failed, the file has its final name: remove it there.
        disk.remove(unfinished if unfinished.name in disk.names(directory) else path)
        raise
    return Segment(file, path, start_offset, size, start_offset + SEGMENT_HEADER_SIZE)


def read_trailer(segment: Segment) -> FooterTrailer | None:
    """Return the segment's footer trailer, None if no footer was written. Raise CorruptBatch if
    the trailer is damaged or belongs to another segment, UnknownFormatVersion if a newer Holdfast
    wrote it."""
    raw = segment.read(segment.end_offset - TRAILER_SIZE, TRAILER_SIZE)
    trailer = FooterTrailer.decode(raw)
    if trailer is not None and trailer.start_offset != segment.start_offset:
        raise CorruptBatch("footer", f"it belongs to the segment at {trailer.start_offset}")
    return trailer
