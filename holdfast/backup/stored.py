"""A stored backup: verify its files, and read its log as if it were in a data directory."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from holdfast.backup.files import file_chunks, sha256_of, sum_progress
from holdfast.backup.manifest import (
    MANIFEST_NAME,
    BackupFile,
    Manifest,
    NotABackup,
    decode_manifest,
)
from holdfast.commitlog.disk.data_dir import LAYOUT_VERSION, is_readable
from holdfast.commitlog.disk.disk import File, LinuxFile
from holdfast.commitlog.disk.owned_files import open_file
from holdfast.commitlog.errors import UnknownFormatVersion


class StoredBackup(Protocol):
    """A backup that can be restored: in a folder, or in an object store (object_backup.py)."""

    @property
    def where(self) -> object:
        """The place, for messages."""

    def read_manifest(self) -> Manifest:
        """Return the manifest. Raise NotABackup or UnknownFormatVersion."""

    def chunks(self, file: BackupFile) -> Iterator[bytes]:
        """Yield the bytes of a file. Raise NotABackup if it is missing."""


class FolderBackup:
    """The backup in a folder. OSError propagates from its methods."""

    def __init__(self, path: Path) -> None:
        self.where = path

    def read_manifest(self) -> Manifest:
        return read_manifest(self.where)

    def chunks(self, file: BackupFile) -> Iterator[bytes]:
        stored = self.where / file.stored_as
        try:
            yield from file_chunks(stored)
        except FileNotFoundError as error:
            if stored.exists():
                raise
            raise NotABackup(self.where, f"{file.stored_as} is missing") from error


def is_backup(path: Path) -> bool:
    """Return whether a folder holds a backup, sound or not."""
    return os.path.lexists(path / MANIFEST_NAME)


def read_manifest(path: Path) -> Manifest:
    """Return a backup's manifest. Raise NotABackup, or UnknownFormatVersion if this Holdfast cannot
    read the format of the backup's data directory; OSError propagates."""
    try:
        raw = b"".join(file_chunks(path / MANIFEST_NAME))
    except FileNotFoundError as error:
        reason = f"it has no {MANIFEST_NAME}, its last file: the backup was not finished"
        raise NotABackup(path, reason) from error
    manifest = decode_manifest(raw, path)
    if not is_readable(manifest.layout_version):
        raise UnknownFormatVersion(f"backup {path}", manifest.layout_version, LAYOUT_VERSION)
    return manifest


def verify_files(
    path: Path, manifest: Manifest, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[str]:
    """Read every file of a backup; return one text per file that is missing or has changed. An
    empty list means that the backup is intact. OSError propagates."""
    wrong = []
    advance = sum_progress(progress, sum(file.stored_bytes for file in manifest.files))
    for file in manifest.files:
        stored = path / file.stored_as
        if not stored.is_file():
            wrong.append(f"{file.stored_as} is missing")
        elif stored.stat().st_size != file.stored_bytes:
            size = stored.stat().st_size
            wrong.append(f"{file.stored_as} has {size} bytes, not {file.stored_bytes}")
        elif sha256_of(file_chunks(stored), advance) != file.sha256:
            wrong.append(f"{file.stored_as} has changed: its SHA-256 differs")
    return wrong


class BackupFiles:
    """The log's files as they were in the data directory. Read them through a ReadOnlyDisk."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self._path = path
        self._files = {Path(file.name).name: file for file in manifest.of_role("segment", "tail")}

    def names(self, directory: Path) -> list[str]:
        """Return the names of the segments, sorted; `directory` is ignored."""
        return sorted(self._files)

    def open(self, path: Path) -> File:
        file = self._files[path.name]
        descriptor = open_file(self._path / file.stored_as, may_have_names=True)
        return _StoredFile(LinuxFile(descriptor), file.stored_bytes, file.size)


class _StoredFile:
    """A file that is padded with zeros from its stored size to its original size."""

    def __init__(self, file: LinuxFile, stored_bytes: int, size: int) -> None:
        self._file = file
        self._stored_bytes = stored_bytes
        self._size = size

    def read(self, size: int, position: int) -> bytes:
        size = max(min(size, self._size - position), 0)
        return self._file.read(size, position).ljust(size, b"\0")

    # No event loop runs here, so a read may wait for the disk.
    read_nowait = read

    def size(self) -> int:
        return self._size

    def data_end(self, position: int) -> int:
        return self._file.data_end(position) if position < self._stored_bytes else position

    def write(self, buffers: object, position: int) -> None:
        raise AssertionError(f"nothing is written: at {position}")

    def sync(self) -> None:
        """Do nothing: a backup is read-only."""

    def close(self) -> None:
        self._file.close()
