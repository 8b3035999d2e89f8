"""One segment file, open for reading: which one it is, and its bytes by physical offset.

Read by calls, never through a mapping: where a file system lets a deleted file go under its
readers, a mapping would kill the process that looks at it. For any thread.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

from holdfast.commitlog.disk import LinuxFile
from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.segment import Segment
from holdfast.commitlog.segment_format import SEGMENT_HEADER_SIZE, SegmentHeader, segment_name

LOG_DIRECTORY = "commitlog"
#: Stands for the time of creation where the header page is damaged: its name alone says which
#: file it is.
UNKNOWN_TIME_US = -1
_IOV_MAX = 1024  # Linux's UIO_MAXIOV


class FileChange(NamedTuple):
    """What tells a file, as it is, from every other, and from itself once it has changed. But a
    change that follows the last within milliseconds may not move the time `at_ns` of it."""

    device: int
    inode: int
    size: int
    at_ns: int


class SegmentFile:
    """An open segment file. Offsets are physical. It stays readable when it is deleted."""

    def __init__(self, path: Path, descriptor: int, header: SegmentHeader) -> None:
        self.path = path
        self.start_offset = header.start_offset
        self.end_offset = header.start_offset + header.size
        self.created_timestamp_us = header.created_timestamp_us
        self._fd = descriptor

    @classmethod
    def open(cls, directory: Path, start_offset: int) -> Self:
        """Open the segment of this name in `commitlog/`. Raises OSError, UnknownFormatVersion,
        and CorruptBatch for a file too short to be one. With a damaged header page, name and size
        say where it begins and ends."""
        path = directory / segment_name(start_offset)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            if size < SEGMENT_HEADER_SIZE:
                raise CorruptBatch("truncated-segment", f"{size} bytes are no segment")
            header = _header(os.pread(descriptor, SEGMENT_HEADER_SIZE, 0), start_offset, size)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor, header)

    @property
    def first_offset(self) -> int:
        """Where its first block is."""
        return self.start_offset + SEGMENT_HEADER_SIZE

    @property
    def identity(self) -> tuple[int, int]:
        """What no other segment has, though it be under the same name in another directory."""
        return self.start_offset, self.created_timestamp_us

    def last_change(self) -> FileChange:
        """Return which file this is, and when it changed last. OSError passes through."""
        found = os.fstat(self._fd)
        return FileChange(found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)

    def read(self, physical_offset: int, size: int) -> bytes:
        """Return bytes of the file; fewer only at its end. OSError passes through."""
        parts = []
        position = physical_offset - self.start_offset
        while size > 0 and (part := os.pread(self._fd, size, position)):
            parts.append(part)
            size -= len(part)
            position += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_into(self, physical_offset: int, buffers: Sequence[memoryview]) -> None:
        """Fill all of `buffers`, one after another. Raises CorruptBatch at the file's end;
        OSError passes through."""
        for at in range(0, len(buffers), _IOV_MAX):
            waiting = list(buffers[at : at + _IOV_MAX])
            while waiting:
                count = os.preadv(self._fd, waiting, physical_offset - self.start_offset)
                if count == 0:
                    raise CorruptBatch("truncated-segment", f"the file ends at {physical_offset}")
                physical_offset += count
                while waiting and count >= len(waiting[0]):
                    count -= len(waiting.pop(0))
                if count:
                    waiting[0] = waiting[0][count:]

    def sync(self) -> None:
        """Return once what is in the file is on the disk. OSError passes through."""
        os.fdatasync(self._fd)

    def as_segment(self) -> Segment:
        """Return it as those who search behind damage take it. Close its file after use."""
        return Segment(
            LinuxFile(os.dup(self._fd)),
            self.path,
            self.start_offset,
            self.end_offset - self.start_offset,
            self.first_offset,
        )

    def close(self) -> None:
        """Close it; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close


def _header(page: bytes, start_offset: int, size: int) -> SegmentHeader:
    try:
        header = SegmentHeader.decode(page)
    except CorruptBatch:
        return SegmentHeader(start_offset, size, UNKNOWN_TIME_US)
    if header.start_offset != start_offset:
        return SegmentHeader(start_offset, size, UNKNOWN_TIME_US)
    return header
