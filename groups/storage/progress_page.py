"""The progress page `state/groups.page`: all live leases, and how far each cursor has delivered.

The page is written in place and not synced. What was written survives a kill of the broker, but not
a crash of the machine. So a page is trusted only if it was written since the last boot of the
kernel, or if it was closed cleanly, which includes a sync. A cursor without a trusted record is
restored from its rows alone, which are less precise (cursor/rows.py).

    header, 64 bytes
    offset  size  field
         0     4  magic HFPG
         4     2  version: 2
         6     2  flags: 1 closed cleanly
         8    16  boot id
        24     4  CRC of the 24 bytes before
        28    36  zero

All numbers are little-endian. Records follow the header (cursor/page_records.py).

A page of version 1 (magic HFGP) has the same header, and then a slot of 40 bytes for each cursor:
group id, topic id, queue and epoch (u32 each), next u64, lease_end_ms u64, the CRC of these 32
bytes, 4 bytes of zero. Such a page is read, and then replaced by a new one.
"""

import logging
import os
import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic

from holdfast.commitlog.disk.disk import sync_directory
from holdfast.commitlog.disk.owned_files import create_file, read_file
from holdfast.commitlog.format.checksum import crc32c
from holdfast.groups.cursor.cursor import Cursor, CursorKey, PageNotes
from holdfast.groups.cursor.leases import Grant, Lease
from holdfast.groups.cursor.page_records import (
    UNIT,
    Progress,
    Record,
    encode_record,
    progress_by_epoch,
    read_records,
)

_logger = logging.getLogger(__name__)

MAGIC, VERSION, CLOSED = b"HFPG", 2, 1
OLD_MAGIC, OLD_VERSION = b"HFGP", 1
HEADER_BYTES, OLD_SLOT_BYTES = 64, 40
_HEADER = struct.Struct("<4sHH16s")
_OLD_SLOT = struct.Struct("<IIIIQQ")
_CRC = struct.Struct("<I")
#: The first size. A full page is doubled in size.
FIRST_BYTES = 64 * 1024
#: After a failed write, wait this long before a new page is made.
RETRY_S = 1.0
#: The grace boot of records from a page of version 1. It is later than any start of the broker, so
#: no message counts as returned since that start.
_NEVER = 0xFFFF_FFFF

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def kernel_boot_id() -> bytes:
    """Return 16 bytes that identify this boot of the kernel; zeros if the kernel does not provide
    an id. Zeros never make a page trusted."""
    try:
        return uuid.UUID(_BOOT_ID.read_text("ascii").strip()).bytes
    except (OSError, ValueError):
        return bytes(16)


class ProgressPage:
    """The progress page. After `begin`, its methods may be called on the event loop only.

    If a write fails, or another program has changed the file, the page becomes void: the file is
    truncated, and a new page is made a second later. If the broker is killed in between, cursors
    are restored from their rows alone.
    """

    def __init__(self, path: Path, boot_id: bytes) -> None:
        """Read the present file; a missing file is treated as empty. Raises OSError."""
        self._path = path
        self._boot_id = boot_id
        self._file = -1
        self._size = 0
        self._room = PageRoom(HEADER_BYTES)
        #: How many files were made. The position of a record is valid in one file only.
        self._generation = 0
        #: The sequence number of the last record.
        self._sequence = 0
        #: All cursors.
        self._cursors: dict[CursorKey, Cursor] = {}
        #: The newest record of each cursor.
        self._newest: dict[CursorKey, Grant] = {}
        #: The bytes that the next `write` writes, each with its position.
        self._images: list[tuple[int, bytes]] = []
        #: The records that the next `write` frees.
        self._ended_grants: list[Grant] = []
        self.retry_s = 0.0
        """When `write` replaces a void page by a new page; 0 if the page is not void."""
        try:
            content = read_file(path)
        except FileNotFoundError:
            content = b""
        version, flags, found_boot_id = _read_header(content)
        self.is_trusted = bool(flags & CLOSED) or (found_boot_id == boot_id != bytes(16))
        """Whether the page is trusted, so that the records in it are up to date."""
        self.found = progress_by_epoch(_records(content, version))
        """cursor -> epoch -> the progress that the page contained. If the page is not trusted, each
        entry was true at some earlier time."""

    def begin(self, cursors: Mapping[CursorKey, Cursor]) -> None:
        """Replace the page by a new one with these cursors, for this boot of the kernel. If there
        is no space, the new page is void. Raises other OSErrors."""
        self._cursors = dict(cursors)
        self._create()
        # Without this sync, an old page that was closed cleanly could reappear after a power loss,
        # and would be trusted.
        sync_directory(self._path.parent)

    def note(self, key: CursorKey, cursor: Cursor) -> None:
        """Add the changes of a cursor that the page does not have yet to the next `write`."""
        notes, cursor.notes = cursor.notes, PageNotes()
        self._cursors[key] = cursor
        if self._file >= 0 and not self.retry_s:
            self._note(key, cursor, notes.leases)

    def write(self) -> None:
        """Write what was added since the last call. After that it survives a kill of the broker."""
        if self._file < 0:
            return
        if self.retry_s:
            self._recover()
            return
        if not self._images:
            return
        try:
            self._check_file()
            if self._room.end > self._size:
                self._grow()
            _write(self._file, self._images)
        except OSError as error:
            self._invalidate(error)
            return
        self._images = []
        over, self._ended_grants = self._ended_grants, []
        for grant in over:
            self._free_place(grant)

    def free(self, grants: Iterable[Grant]) -> None:
        """Record the end of a commit for which these records were kept. Free the records that are
        no longer needed. A record is still needed if it waits for another commit, or is the newest
        of its cursor."""
        for grant in grants:
            grant.commits_left -= 1
            if grant.is_over and not grant.is_newest:
                self._free_place(grant)

    def drop(self, key: CursorKey) -> None:
        """Remove a cursor, with the next `write`."""
        cursor, newest = self._cursors.pop(key, None), self._newest.pop(key, None)
        grants = set() if cursor is None else {each.grant for each in cursor.leases}
        for grant in grants | {newest}:
            if grant is not None and self._is_in_file(grant):
                self._images.append((grant.place, bytes(UNIT)))
                self._ended_grants.append(grant)

    def close(self) -> None:
        """Close the page cleanly, so that the next start trusts it. Before `begin`, do nothing. May
        be called twice. This blocks, because the file is synced."""
        if self._file < 0:
            return
        try:
            if self.retry_s:
                self._create()
            if not self.retry_s:
                os.fsync(self._file)
                os.pwrite(self._file, _header(CLOSED, self._boot_id), 0)
                os.fsync(self._file)
        except OSError as error:
            _logger.warning("%s could not be closed in order: %s", self._path, error)
        os.close(self._file)
        self._file = -1

    # -- records ---------------------------------------------------------------------------

    def _note(self, key: CursorKey, cursor: Cursor, leases: Iterable[Sequence[Lease]]) -> None:
        """Make records of the given leases, except those that have ended. If none is left, make one
        record without leases."""
        alike: dict[object, list[Lease]] = {}
        for row in leases:
            live = cursor.leases.find_live(row)
            if live:
                one = live[0]
                how = one.member, one.deadline_ms, one.delivered_ms, one.attempt_id
                alike.setdefault(how, []).extend(live)
        for each in alike.values():
            grant = self._add(key, cursor, each)
            for before in cursor.leases.attach(each, grant):
                if before.is_over and not before.is_newest:
                    self._ended_grants.append(before)
        if not alike:
            self._add(key, cursor, [])

    def _add(self, key: CursorKey, cursor: Cursor, leases: Sequence[Lease]) -> Grant:
        self._sequence += 1
        image = encode_record(key, cursor, self._sequence, leases)
        size = len(image)
        place = self._room.allocate(size)
        grant = Grant(0, place, size, self._generation, cursor.epoch, is_newest=True)
        self._images.append((grant.place, image))
        before = self._newest.get(key)
        if before is not None:
            before.is_newest = False
            if before.epoch != cursor.epoch:  # keep it: until a commit the rows have the old epoch
                cursor.leases.keep_until_commit(before)
            if before.is_over:
                self._ended_grants.append(before)
        self._newest[key] = grant
        return grant

    def _is_in_file(self, grant: Grant) -> bool:
        return grant.generation == self._generation and grant.size > 0

    def _free_place(self, grant: Grant) -> None:
        if self._is_in_file(grant):
            self._room.release(grant.place, grant.size)
            grant.size = 0

    # -- the file --------------------------------------------------------------------------

    def _create(self) -> None:
        """Replace the file by a new one with all cursors. If there is no space, the new page is
        void. Raises other OSErrors."""
        self._generation += 1
        self._room = PageRoom(HEADER_BYTES)
        self._newest, self._images, self._ended_grants = {}, [], []
        for key, cursor in self._cursors.items():
            cursor.notes = PageNotes()
            for lease in cursor.leases:
                lease.grant = None
            self._note(key, cursor, [[each] for each in cursor.leases])
        images, self._images = self._images, []
        self._size = FIRST_BYTES
        while self._size < 2 * self._room.end:
            self._size *= 2
        unfinished = self._path.with_name(f"{self._path.name}.new")
        file = create_file(unfinished, os.O_RDWR)
        try:
            os.posix_fallocate(file, 0, self._size)
            _write(file, [(0, _header(0, self._boot_id)), *images])
            self.retry_s = 0.0
        except OSError as error:
            _logger.warning("%s has no room for the cursors: %s", self._path, error)
            os.ftruncate(file, 0)
            self.retry_s = monotonic() + RETRY_S
        unfinished.replace(self._path)
        if self._file >= 0:
            os.close(self._file)
        self._file = file

    def _grow(self) -> None:
        """Make the file larger, and allocate its space, so that later writes do not fail because
        the disk is full."""
        size = self._size
        while size < self._room.end:
            size *= 2
        os.posix_fallocate(self._file, 0, size)
        self._size = size

    def _check_file(self) -> None:
        """Raise OSError if another program has truncated, replaced or deleted the file."""
        found = os.fstat(self._file)
        if found.st_size != self._size or not found.st_nlink:
            raise OSError(f"it has {found.st_size} bytes instead of {self._size}, or is deleted")

    def _invalidate(self, error: OSError) -> None:
        """Make the page void: truncate or delete the file, so that no start trusts it. A new page
        is made later."""
        _logger.warning("%s is not valid until it is written again: %s", self._path, error)
        self.retry_s = monotonic() + RETRY_S
        self._images, self._ended_grants = [], []
        try:
            os.ftruncate(self._file, 0)
        except OSError:
            self._path.unlink(missing_ok=True)

    def _recover(self) -> None:
        if monotonic() >= self.retry_s:
            try:
                self._create()
            except OSError as error:
                _logger.warning("%s could not be written again: %s", self._path, error)
                self.retry_s = monotonic() + RETRY_S


class PageRoom:
    """The places for records from the position `start` on.

    A place is a range of bytes; its size is the size of its record, a power of two. A freed place
    is reused only for a record of the same size. The place that was freed last is reused first.
    """

    def __init__(self, start: int) -> None:
        self.end = start
        """No place at this position or beyond was ever used."""
        self._free: dict[int, list[int]] = {}

    def allocate(self, size: int) -> int:
        """Allocate a place for a record of this size; return its position."""
        places = self._free.get(size)
        if places:
            return places.pop()
        place, self.end = self.end, self.end + size
        return place

    def release(self, place: int, size: int) -> None:
        """Free a place."""
        self._free.setdefault(size, []).append(place)


def _write(file: int, images: list[tuple[int, bytes]]) -> None:
    """Write bytes at positions, in order. Join adjacent ones into one write. Raises OSError."""
    at, joined = images[0][0], [images[0][1]]
    if len(images) == 1:
        _write_all(file, joined[0], at)
        return
    end = at + len(joined[0])
    for place, image in images[1:]:
        if place != end:
            _write_all(file, b"".join(joined), at)
            at, joined, end = place, [], place
        joined.append(image)
        end += len(image)
    _write_all(file, b"".join(joined), at)


def _write_all(file: int, image: bytes, at: int) -> None:
    written = os.pwrite(file, image, at)
    if written != len(image):
        raise OSError(f"only {written} of {len(image)} bytes were written")


# -- reading a file --------------------------------------------------------------------------


def _header(flags: int, boot_id: bytes) -> bytes:
    fields = _HEADER.pack(MAGIC, VERSION, flags, boot_id)
    return (fields + _CRC.pack(crc32c(fields))).ljust(HEADER_BYTES, b"\0")


def _read_header(content: bytes) -> tuple[int, int, bytes | None]:
    """Return (version, flags, boot id); (0, 0, None) if there is no header of a known version."""
    if len(content) < HEADER_BYTES:
        return 0, 0, None
    magic, version, flags, boot_id = _HEADER.unpack_from(content)
    (crc,) = _CRC.unpack_from(content, _HEADER.size)
    is_known = (magic, version) in ((MAGIC, VERSION), (OLD_MAGIC, OLD_VERSION))
    if not is_known or crc != crc32c(content[: _HEADER.size]):
        return 0, 0, None
    return version, flags, boot_id


def _records(content: bytes, version: int) -> Iterator[Record]:
    if version == VERSION:
        yield from read_records(content, HEADER_BYTES)
    elif version == OLD_VERSION:
        yield from _old_records(content)


def _old_records(content: bytes) -> Iterator[Record]:
    """Yield a record for each slot of a page of version 1. Its leases are unknown, so all messages
    below `next` that are not done are in grace until lease_end_ms."""
    for at in range(HEADER_BYTES, len(content) - OLD_SLOT_BYTES + 1, OLD_SLOT_BYTES):
        body = content[at : at + _OLD_SLOT.size]
        (crc,) = _CRC.unpack_from(content, at + _OLD_SLOT.size)
        if crc == crc32c(body):
            group_id, topic_id, queue, epoch, next_, lease_end_ms = _OLD_SLOT.unpack(body)
            progress = Progress(epoch, next_, next_, next_, lease_end_ms, _NEVER)
            yield Record((group_id, topic_id, queue), 0, progress)
