"""How far each cursor has delivered, in a mapped file that is not synced: `state/groups.page`.

What is noted here outlives the broker, also one that is killed, but not the machine: so a page is
believed in the same boot of the kernel that wrote it, or after it was closed in order (and synced
then). Not believed, or without a slot, a cursor goes by its rows, which know less (cursor_rows.py).

    header, 64 bytes                          slot, 40 bytes, from 64 on
    offset  size  field                       offset  size  field
         0     4  magic HFGP                       0     4  group id
         4     2  version: 1                       4     4  topic id
         6     2  1: closed in order               8     4  queue
         8    16  boot id                         12     4  epoch
        24     4  CRC of the 24 bytes before      16     8  next
        28    36  zero                            24     8  lease_end_ms
                                                  32     4  CRC of the 32 bytes before
                                                  36     4  zero

All little-endian. A slot of zeros is free; one whose CRC does not fit was being written.
"""

import logging
import mmap
import os
import struct
import uuid
from collections.abc import Mapping
from pathlib import Path

from holdfast.commitlog.checksum import crc32c
from holdfast.commitlog.disk import sync_directory
from holdfast.groups.cursor_rows import Page
from holdfast.groups.rows import CursorKey

_logger = logging.getLogger(__name__)

MAGIC, VERSION, CLOSED = b"HFGP", 1, 1
HEADER_BYTES, SLOT_BYTES = 64, 40
_HEADER = struct.Struct("<4sHH16s")
_SLOT = struct.Struct("<IIIIQQ")
_CRC = struct.Struct("<I")
_FREE = bytes(SLOT_BYTES)
#: The first size: room for 407 cursors. It is doubled when it is full.
_FIRST_BYTES = 16 * 1024

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def kernel_boot_id() -> bytes:
    """Return what tells this boot of the machine from any other: 16 bytes; zeros where the kernel
    does not say, which fit no boot."""
    try:
        return uuid.UUID(_BOOT_ID.read_text("ascii").strip()).bytes
    except (OSError, ValueError):
        return bytes(16)


class ProgressPage:
    """The page. `note` and `drop` are the event loop's; a file of no room is none: nothing is
    noted then, and nothing goes wrong but for the coarser start after a crash."""

    def __init__(self, path: Path, boot_id: bytes) -> None:
        """Read what is there. OSError passes through; no file is an empty one."""
        self._path = path
        self._boot_id = boot_id
        self._map: mmap.mmap | None = None
        self._file = -1
        self._slots: dict[CursorKey, int] = {}
        self._free: list[int] = []
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            content = b""
        flags, found_boot_id = _read_header(content)
        self.is_believed = bool(flags & CLOSED) or (found_boot_id == boot_id != bytes(16))
        """Whether what was found is what was noted last."""
        self.found = _read_slots(content) if found_boot_id is not None else {}
        """What was found, also where it is not to be believed: each was true once."""

    def begin(self, pages: Mapping[CursorKey, Page]) -> None:
        """Note these, and nothing that was found, from now on as of this boot. OSError passes
        through, but for want of room."""
        size = _FIRST_BYTES
        while (size - HEADER_BYTES) // SLOT_BYTES < len(pages):
            size *= 2
        unfinished = self._path.with_name(f"{self._path.name}.new")
        self._file = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        self._reach(size)
        if self._map is not None:
            for key, page in pages.items():
                self.note(key, page)
            self._map[:HEADER_BYTES] = _header(0, self._boot_id)
        unfinished.replace(self._path)
        # One closed in order may not come back after a power loss: it would be believed.
        sync_directory(self._path.parent)

    def note(self, key: CursorKey, page: Page) -> None:
        """Note how far a cursor is. It is there after a kill at any moment from now on, or what
        was noted before, or nothing."""
        at = self._slots.get(key)
        if at is None:
            at = self._taken(key)
            if at is None:
                return
        body = _SLOT.pack(*key, page.epoch, page.next, page.lease_end_ms)
        assert self._map is not None
        self._map[at : at + 36] = body + _CRC.pack(crc32c(body))

    def drop(self, key: CursorKey) -> None:
        """Forget a cursor."""
        at = self._slots.pop(key, None)
        if at is not None and self._map is not None:
            self._map[at : at + SLOT_BYTES] = _FREE
            self._free.append(at)

    def close(self) -> None:
        """Close it so that it is believed at the next start, if it was begun; may be called
        twice. It blocks: the file is synced."""
        if self._map is not None:
            try:
                self._map.flush()
                self._map[:HEADER_BYTES] = _header(CLOSED, self._boot_id)
                self._map.flush()
            except OSError as error:
                _logger.warning("%s could not be closed in order: %s", self._path, error)
            self._map.close()
            self._map = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    # -- room ------------------------------------------------------------------------------

    def _taken(self, key: CursorKey) -> int | None:
        """Return the place of a new slot, None if there is no room."""
        if not self._free and self._map is not None:
            self._reach(2 * len(self._map))
        if not self._free:
            return None
        self._slots[key] = at = self._free.pop()
        return at

    def _reach(self, size: int) -> None:
        """Make the file this large, if the disk has room: all of it, since a write through the
        map could not fail in any other way than by a signal."""
        before = HEADER_BYTES if self._map is None else len(self._map)
        try:
            os.posix_fallocate(self._file, 0, size)
        except OSError as error:
            _logger.warning("%s has no room for more cursors: %s", self._path, error)
            return
        if self._map is not None:
            self._map.close()
        self._map = mmap.mmap(self._file, size)
        first = before - (before - HEADER_BYTES) % SLOT_BYTES
        self._free += reversed(range(first, size - SLOT_BYTES + 1, SLOT_BYTES))


# -- what a file says ------------------------------------------------------------------------


def _header(flags: int, boot_id: bytes) -> bytes:
    fields = _HEADER.pack(MAGIC, VERSION, flags, boot_id)
    return (fields + _CRC.pack(crc32c(fields))).ljust(HEADER_BYTES, b"\0")


def _read_header(content: bytes) -> tuple[int, bytes | None]:
    """Return (flags, boot id), (0, None) for what is no header of this version."""
    if len(content) < HEADER_BYTES:
        return 0, None
    magic, version, flags, boot_id = _HEADER.unpack_from(content)
    if (magic, version) != (MAGIC, VERSION) or _header(flags, boot_id) != content[:HEADER_BYTES]:
        return 0, None
    return flags, boot_id


def _read_slots(content: bytes) -> dict[CursorKey, Page]:
    found: dict[CursorKey, Page] = {}
    for at in range(HEADER_BYTES, len(content) - SLOT_BYTES + 1, SLOT_BYTES):
        body = content[at : at + _SLOT.size]
        (crc,) = _CRC.unpack_from(content, at + _SLOT.size)
        if crc == crc32c(body):
            group_id, topic_id, queue, *page = _SLOT.unpack(body)
            found[group_id, topic_id, queue] = Page(*page)
    return found
