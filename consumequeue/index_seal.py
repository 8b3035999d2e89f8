"""The seal on an index that was closed in order: the CRC of its whole file.

LMDB has no page checksums, and to look through every page of a large file takes long. A file whose
seal is intact is bit for bit what was closed, which is quickly seen; one without a seal was in use
when its broker ended, and is looked through. The seal is broken before the file is opened, so no
stale one is ever believed.

    magic "HFIS"  4 | reserved 4 | file size 8 | CRC of the file 4 | CRC of the 20 bytes before 4
"""

import contextlib
import os
import struct
from pathlib import Path

import google_crc32c
import lmdb

from holdfast.commitlog.checksum import crc32c
from holdfast.commitlog.disk import sync_directory

SEAL = "seal"

_MAGIC = b"HFIS"
_SEAL = struct.Struct("<4sIQI")
_CHUNK_BYTES = 4 * 1024 * 1024
#: A larger file is closed without a seal: a stop must not take seconds.
MAX_SEALED_BYTES = 1024 * 1024 * 1024


def seal(directory: Path) -> None:
    """Seal the closed file in `directory`. What keeps that from being done costs nothing but a
    slower start."""
    data = directory / "data.mdb"
    with contextlib.suppress(OSError):
        if data.stat().st_size > MAX_SEALED_BYTES:
            return
        fields = _SEAL.pack(_MAGIC, 0, data.stat().st_size, _crc_of(data))
        unfinished = directory / f"{SEAL}.new"
        with unfinished.open("wb") as file:
            file.write(fields + struct.pack("<I", crc32c(fields)))
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(directory / SEAL)
        sync_directory(directory)


def break_seal(directory: Path) -> bool:
    """Take the seal off; return whether there was one and the file is as it was sealed. Raises
    lmdb.CorruptedError when it is not; OSError passes through."""
    path, data = directory / SEAL, directory / "data.mdb"
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return False
    path.unlink()
    sync_directory(directory)
    if len(raw) != _SEAL.size + 4 or struct.pack("<I", crc32c(raw[:-4])) != raw[-4:]:
        return False  # a damaged seal says nothing of the file
    magic, _, size, crc = _SEAL.unpack(raw[:-4])
    if magic != _MAGIC or not data.exists():
        return False
    if data.stat().st_size != size or _crc_of(data) != crc:
        raise lmdb.CorruptedError("the file has changed since it was closed")
    return True


def _crc_of(path: Path) -> int:
    found = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            found = google_crc32c.extend(found, chunk)
    return found
