"""One segment file, open: where its blocks end and how much room is left.

Appended to by the appender thread alone; read by any thread. A deleted segment's descriptor
closes when its last reader lets go of it.
"""

import threading
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.commitlog.batch_header import BatchFlag, BatchHeader
from holdfast.commitlog.disk import Disk, File
from holdfast.commitlog.header_table import Headers, block_ends, keyed_message_count
from holdfast.commitlog.segment_format import (
    END_MARK_SIZE,
    SEGMENT_HEADER_SIZE,
    TRAILER_SIZE,
    FooterTrailer,
    SegmentHeader,
    footer_size,
    segment_name,
)


@dataclass(slots=True, eq=False)
class Segment:
    """A segment file. Offsets are physical; `written` is where the next block goes."""

    file: File
    path: Path
    start_offset: int
    size: int
    written: int
    block_count: int = 0
    key_count: int = 0
    ended: bool = False
    """Its end mark is written: it takes no more blocks."""
    sealed: bool = False
    """Its footer is written."""
    _sync_lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _sync_error: OSError | None = None

    @property
    def first_offset(self) -> int:
        """Where its first block is."""
        return self.start_offset + SEGMENT_HEADER_SIZE

    @property
    def end_offset(self) -> int:
        """Where the next segment starts."""
        return self.start_offset + self.size

    def has_room(self, size: int, keys: int, blocks: int) -> bool:
        """Return whether `blocks` blocks of `size` bytes in all, with `keys` keyed messages,
        fit so that the end mark and the footer still do."""
        reserved = END_MARK_SIZE + footer_size(self.block_count + blocks, self.key_count + keys)
        return not self.ended and self.written + size + reserved <= self.end_offset

    def count(self, header: BatchHeader) -> None:
        """Take note of a block that was appended or found."""
        self.block_count += 1
        self.key_count += keyed_messages(header)
        self.written = header.end_physical_offset

    def count_all(self, headers: Headers) -> None:
        """Take note of blocks that were found one after another, one at least."""
        self.block_count += len(headers)
        self.key_count += keyed_message_count(headers)
        self.written = int(block_ends(headers)[-1])

    def sync(self) -> None:
        """Make all that was written to the file durable. The first failure is final for every
        caller: the kernel tells it once, drops the pages, and a later sync would lie."""
        with self._sync_lock:
            if self._sync_error is not None:
                raise OSError(self._sync_error.errno, "an earlier sync failed", str(self.path))
            try:
                self.file.sync()
            except OSError as error:
                self._sync_error = error
                raise

    def read(self, physical_offset: int, size: int) -> bytes:
        """Return bytes of the file by physical offset; fewer only at its end."""
        return self.file.read(size, physical_offset - self.start_offset)

    def read_nowait(self, physical_offset: int, size: int) -> bytes | None:
        """Return bytes by physical offset if that needs no disk, else None."""
        return self.file.read_nowait(size, physical_offset - self.start_offset)


def keyed_messages(header: BatchHeader) -> int:
    """Return the most entries that a batch adds to a footer's key table."""
    return header.message_count if header.flags & BatchFlag.KEYS else 0


def largest_batch(segment_bytes: int) -> int:
    """Return the size of the largest batch that an empty segment of this size takes.

    A keyed message takes at least 12 bytes of its batch and 8 of the footer, so that half of
    the room is enough for any batch.
    """
    return (segment_bytes - SEGMENT_HEADER_SIZE - END_MARK_SIZE - footer_size(1, 0)) // 2


def create_segment(
    disk: Disk, directory: Path, start_offset: int, size: int, now_us: int
) -> Segment:
    """Create, allocate and sync an empty segment; it is under its name only when whole. A file
    that has the name, too damaged to be opened as a segment, is kept under another."""
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
        # It has its name where only the sync of that failed: nobody is to find it there.
        disk.remove(unfinished if unfinished.name in disk.names(directory) else path)
        raise
    return Segment(file, path, start_offset, size, start_offset + SEGMENT_HEADER_SIZE)


def read_trailer(segment: Segment) -> FooterTrailer | None:
    """Return the segment's footer trailer, None without one. Raises CorruptBatch if damaged."""
    return FooterTrailer.decode(segment.read(segment.end_offset - TRAILER_SIZE, TRAILER_SIZE))
