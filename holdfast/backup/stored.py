"""A backup as it lies: is every byte of it what was written, and its log as a data directory's."""

import os
from collections.abc import Callable
from pathlib import Path

from holdfast.backup.files import sha256_of
from holdfast.backup.manifest import MANIFEST_NAME, Manifest, NotABackup, decode_manifest
from holdfast.commitlog.data_dir import LAYOUT_VERSION
from holdfast.commitlog.disk import File, LinuxFile
from holdfast.commitlog.errors import UnknownFormatVersion


def is_backup(path: Path) -> bool:
    """Return whether a folder holds a backup, sound or not."""
    return (path / MANIFEST_NAME).exists()


def read_manifest(path: Path) -> Manifest:
    """Return a backup's manifest. Raises NotABackup, and UnknownFormatVersion for a backup of a
    data directory that this Holdfast could not read; OSError passes through."""
    try:
        raw = (path / MANIFEST_NAME).read_bytes()
    except FileNotFoundError as error:
        reason = f"it has no {MANIFEST_NAME}, which is written last: the backup was not finished"
        raise NotABackup(path, reason) from error
    manifest = decode_manifest(raw, path)
    if manifest.layout_version != LAYOUT_VERSION:
        raise UnknownFormatVersion(f"backup {path}", manifest.layout_version, LAYOUT_VERSION)
    return manifest


def verify_files(
    path: Path,
    manifest: Manifest,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[str]:
    """Read every file of a backup and return what is wrong with it, by file; nothing if all is
    as it was written. OSError passes through."""
    wrong = []
    total = sum(file.stored_bytes for file in manifest.files)
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(min(done, total), total)

    for file in manifest.files:
        stored = path / file.stored_as
        if not stored.is_file():
            wrong.append(f"{file.stored_as} is missing")
        elif stored.stat().st_size != file.stored_bytes:
            size = stored.stat().st_size
            wrong.append(f"{file.stored_as} has {size} bytes, not {file.stored_bytes}")
        elif sha256_of(stored, advance) != file.sha256:
            wrong.append(f"{file.stored_as} is not what was written: its SHA-256 differs")
    return wrong


class BackupFiles:
    """The log's files as they were in the data directory. Look at it through a ReadOnlyDisk."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self._path = path
        self._files = {Path(file.name).name: file for file in manifest.of_role("segment", "tail")}

    def names(self, directory: Path) -> list[str]:
        """Return the names of the segments, sorted; `directory` is not looked at."""
        return sorted(self._files)

    def open(self, path: Path) -> File:
        """Open a segment."""
        file = self._files[path.name]
        descriptor = os.open(self._path / file.stored_as, os.O_RDONLY | os.O_CLOEXEC)
        return _StoredFile(LinuxFile(descriptor), file.stored_bytes, file.size)


class _StoredFile:
    """A file that reads as zeros from where it was stored to its size."""

    def __init__(self, file: LinuxFile, stored_bytes: int, size: int) -> None:
        self._file = file
        self._stored_bytes = stored_bytes
        self._size = size

    def read(self, size: int, position: int) -> bytes:
        """Return up to `size` bytes; fewer only at the end of the file."""
        size = max(min(size, self._size - position), 0)
        return self._file.read(size, position).ljust(size, b"\0")

    def read_nowait(self, size: int, position: int) -> bytes | None:
        """Return what `read` does: nobody here minds to wait."""
        return self.read(size, position)

    def size(self) -> int:
        """Return the size that the file had."""
        return self._size

    def data_end(self, position: int) -> int:
        """Return where the last data at or after `position` ends."""
        return self._file.data_end(position) if position < self._stored_bytes else position

    def write(self, buffers: object, position: int) -> None:
        """A backup is only looked at."""
        raise AssertionError(f"nothing is written: at {position}")

    def sync(self) -> None:
        """Nothing was written."""

    def close(self) -> None:
        """Give the descriptor back; may be called twice."""
        self._file.close()
