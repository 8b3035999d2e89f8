"""One segment file, open for reading: its identity, and its bytes by physical offset.

The file is read with system calls. `map` maps it into memory, too, but only on local file systems:
on others a deleted file disappears although it is open, and access to a mapping would then kill the
process (docs/adr/0039). Any thread may use a SegmentFile, but only one may call `add_verified`.
"""

import errno
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from holdfast.commitlog.disk.disk import LinuxFile
from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.header_table import Bools, Int64s
from holdfast.commitlog.format.segment_format import (
    SEGMENT_HEADER_SIZE,
    SegmentHeader,
    segment_name,
)
from holdfast.commitlog.segments.segment import Segment

LOG_DIRECTORY = "commitlog"
#: Creation time of a file with a damaged header page; only its name then identifies it.
UNKNOWN_TIME_US = -1
_IOV_MAX = 1024  # Linux's UIO_MAXIOV
#: File systems on which a deleted file keeps its bytes as long as it is mapped.
_LOCAL_FILE_SYSTEMS = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "tmpfs", "xfs"})
#: Linux's MADV_POPULATE_READ (since 5.14), which Python's mmap does not name.
_POPULATE_READ = 22
#: The search for written bytes reads this many bytes at once.
_ZEROS = bytes(1024 * 1024)


class FileChange(NamedTuple):
    """Identifies a file and its last change. If a file changes twice within milliseconds, the
    second change may not change `at_ns`."""

    device: int
    inode: int
    size: int
    at_ns: int


class SegmentFile:
    """An open segment file. All offsets are physical. On most file systems the file stays readable
    after it is deleted."""

    def __init__(
        self, path: Path, descriptor: int, header: SegmentHeader, *, may_map: bool = False
    ) -> None:
        self.path = path
        self.may_map = may_map
        """Whether readers may map the file into memory."""
        self.start_offset = header.start_offset
        self.end_offset = header.start_offset + header.size
        self.created_timestamp_us = header.created_timestamp_us
        self._fd = descriptor
        self._mapping: mmap.mmap | None = None
        self._verified: list[tuple[int, int]] = []

    @classmethod
    def open(cls, directory: Path, start_offset: int, *, may_map: bool = False) -> Self:
        """Open the segment with this start offset in `directory`. If the header page is damaged,
        the file's name and size give its range. With `may_map`, readers may map the file into
        memory. Raises OSError, UnknownFormatVersion, and CorruptBatch if the file is too short for
        a segment."""
        path = directory / segment_name(start_offset)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            if size < SEGMENT_HEADER_SIZE:
                raise CorruptBatch("truncated-segment", f"{size} bytes are too few for a segment")
            page = os.pread(descriptor, SEGMENT_HEADER_SIZE, 0)
            header = _decode_header(page, start_offset, size)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor, header, may_map=may_map)

    @property
    def first_offset(self) -> int:
        return self.start_offset + SEGMENT_HEADER_SIZE

    @property
    def identity(self) -> tuple[int, int]:
        """(start offset, creation time). No other segment has the same pair, not even a segment
        with the same name in another directory."""
        return self.start_offset, self.created_timestamp_us

    def last_change(self) -> FileChange:
        """Return the file's identity and last change. Raises OSError."""
        found = os.fstat(self._fd)
        return FileChange(found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)

    def read(self, physical_offset: int, size: int) -> bytes:
        """Return `size` bytes; fewer only at the end of the file. Raises OSError."""
        parts = []
        position = physical_offset - self.start_offset
        while size > 0 and (part := os.pread(self._fd, size, position)):
            parts.append(part)
            size -= len(part)
            position += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_into(self, physical_offset: int, buffers: Sequence[memoryview]) -> None:
        """Fill all of `buffers`, one after another. Raises CorruptBatch if the file ends first,
        and OSError."""
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

    def map(self, extents: Sequence[tuple[int, int]]) -> memoryview | None:
        """Return the whole file, mapped into memory; it stays usable after `close`. Return None if
        it cannot be mapped safely.

        The bytes in `extents`, each (first, end) in physical offsets, are in memory when this
        returns, so a disk that cannot read them cannot kill the process now. Use only these bytes.
        """
        try:
            if self._mapping is None:
                if file_system_of(self._fd) not in _LOCAL_FILE_SYSTEMS:
                    return None
                self._mapping = mmap.mmap(self._fd, 0, prot=mmap.PROT_READ)
            for first, end in extents:
                at = (first - self.start_offset) // mmap.PAGESIZE * mmap.PAGESIZE
                size = end - self.start_offset - at
                if at < 0 or at + size > len(self._mapping):
                    return None
                self._mapping.madvise(_POPULATE_READ, at, size)
        except OSError:
            return None  # an old kernel, a limit of this process, or a disk that cannot read
        return memoryview(self._mapping)

    def view(self, physical_offset: int, size: int) -> memoryview | bytes:
        """Return what `read` returns, without a copy if the file may and can be mapped. Raises
        OSError."""
        mapped = self.map([(physical_offset, physical_offset + size)]) if self.may_map else None
        if mapped is None:
            return self.read(physical_offset, size)
        at = physical_offset - self.start_offset
        return mapped[at : at + size]

    def is_zero(self, physical_offset: int) -> bool:
        """Return whether all bytes from `physical_offset` to the end of the file are zero. Room
        that was never written is not read. Raises OSError."""
        at, size = physical_offset - self.start_offset, self.end_offset - self.start_offset
        # The kernel reports unwritten room as data if it is in the page cache, for example because
        # it was read ahead. So every search would be longer than the search before it.
        os.posix_fadvise(self._fd, at, 0, os.POSIX_FADV_DONTNEED)
        while at < size:
            try:
                at = os.lseek(self._fd, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return True
                raise
            hole = min(os.lseek(self._fd, at, os.SEEK_HOLE), size)
            while at < hole:
                data = os.pread(self._fd, min(len(_ZEROS), hole - at), at)
                if data != _ZEROS[: len(data)]:
                    return False
                if not data:
                    return True
                at += len(data)
        return True

    def add_verified(self, first: int, end: int) -> None:
        """Record that the payloads of all blocks from `first` to before `end` were verified. Only
        files that may be mapped keep this record: each walk adds to it, and only readers of mapped
        blocks use it."""
        if self.may_map:
            self._verified.append((first, end))

    def are_verified(self, places: Int64s) -> Bools:
        """Return for each block at these physical offsets whether its payload was verified."""
        verified = np.zeros(len(places), np.bool_)
        for first, end in self._verified:
            verified |= (first <= places) & (places < end)
        return verified

    def sync(self) -> None:
        """Return once the file's content is on the disk. Raises OSError."""
        os.fdatasync(self._fd)

    def as_segment(self) -> Segment:
        """Return the file as a Segment, for `scan_segment`, which finds blocks after damage. Close
        the Segment's file after use."""
        return Segment(
            LinuxFile(os.dup(self._fd)),
            self.path,
            self.start_offset,
            self.end_offset - self.start_offset,
            self.first_offset,
        )

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._mapping = None

    __del__ = close


def file_system_of(descriptor: int) -> str:
    """Return the kind of the file system that an open file is on, such as "ext4"; "" if /proc does
    not tell. Raises OSError."""
    fields = dict(
        line.split(":", 1)
        for line in Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    )
    mount_id = fields.get("mnt_id", "").strip()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split(" ", 1)[0] == mount_id:
            return source.split(" ", 1)[0]
    return ""


def _decode_header(page: bytes, start_offset: int, size: int) -> SegmentHeader:
    with suppress(CorruptBatch):
        header = SegmentHeader.decode(page)
        if header.start_offset == start_offset:
            return header
    return SegmentHeader(start_offset, size, UNKNOWN_TIME_US)
