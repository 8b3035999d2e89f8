"""The seal of an index that was closed cleanly: a CRC of its whole file.

LMDB has no page checksums, and checking every page of a large file takes long. Comparing one CRC is
fast: if the seal matches the file, the file is as it was closed. A file without a seal was in use
when its broker ended, or was too large to seal; then its pages are checked. The seal is removed
before the file is opened, so an outdated seal is never trusted.

    magic "HFIS"  4 | reserved 4 | file size 8 | CRC of the file 4 | CRC of the 20 bytes before 4
"""

import contextlib
import os
import struct
from pathlib import Path

import google_crc32c
import lmdb

from holdfast.commitlog.disk.disk import sync_directory
from holdfast.commitlog.disk.owned_files import create_file, open_file, read_file
from holdfast.commitlog.format.checksum import crc32c

SEAL = "seal"

_MAGIC = b"HFIS"
_SEAL = struct.Struct("<4sIQI")
_CHUNK_BYTES = 4 * 1024 * 1024
#: A larger file gets no seal, because stopping the broker must not take seconds.
MAX_SEALED_BYTES = 1024 * 1024 * 1024


def seal(directory: Path) -> None:
    """Seal the closed file in `directory`. If that fails, only the next start is slower."""
    data = directory / "data.mdb"
    with contextlib.suppress(OSError):
        if data.stat().st_size > MAX_SEALED_BYTES:
            return
        fields = _SEAL.pack(_MAGIC, 0, data.stat().st_size, _crc_of(data))
        unfinished = directory / f"{SEAL}.new"
        with os.fdopen(create_file(unfinished), "wb") as file:
            file.write(fields + struct.pack("<I", crc32c(fields)))
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(directory / SEAL)
        sync_directory(directory)


def was_closed_in_order(directory: Path) -> bool | None:
    """Return whether an index that is not open was closed cleanly. Return None if that is unknown,
    because there is no index yet or the index is too large for a seal."""
    try:
        size = (directory / "data.mdb").stat().st_size
    except OSError:
        return None
    if (directory / SEAL).exists():
        return True
    return None if size > MAX_SEALED_BYTES else False


def break_seal(directory: Path) -> bool:
    """Remove the seal. Return True if it matched the file, False if there was none or it was
    damaged. Raises lmdb.CorruptedError if an intact seal does not match the file; OSError
    propagates."""
    path, data = directory / SEAL, directory / "data.mdb"
    try:
        raw = read_file(path)
    except FileNotFoundError:
        return False
    path.unlink()
    sync_directory(directory)
    if len(raw) != _SEAL.size + 4 or struct.pack("<I", crc32c(raw[:-4])) != raw[-4:]:
        return False  # a damaged seal proves nothing about the file
    magic, _, size, crc = _SEAL.unpack(raw[:-4])
    if magic != _MAGIC or not data.exists():
        return False
    if data.stat().st_size != size or _crc_of(data) != crc:
        raise lmdb.CorruptedError("the file has changed since it was closed")
    return True


def _crc_of(path: Path) -> int:
    found = 0
    with os.fdopen(open_file(path), "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            found = google_crc32c.extend(found, chunk)
    return found
