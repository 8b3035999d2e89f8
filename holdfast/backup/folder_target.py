"""A backup in a folder. One backup is in it; the next one replaces it."""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.backup.files import (
    Progress,
    chunks,
    clone_file,
    fill_file,
    read_chunks,
    sha256_of,
    sync_tree,
)
from holdfast.backup.manifest import (
    MANIFEST_NAME,
    BackupFile,
    Manifest,
    NotABackup,
    decode_manifest,
    encode_manifest,
)
from holdfast.backup.target import Added, BackupRefused
from holdfast.commitlog.disk.disk import make_directory
from holdfast.commitlog.disk.owned_files import Folder, open_folder
from holdfast.commitlog.segments.segment import Segment

#: This file exists while a backup is being taken. If it is there and no backup runs, the backup was
#: interrupted, and its files may be removed.
UNFINISHED = "UNFINISHED"


class FolderTarget:
    """A Target in a folder of the file system, locked by `locked_target`."""

    def __init__(self, folder: Folder, previous: Manifest | None) -> None:
        self.backup_id = f"{time.time_ns() // 1000:016d}"
        self.previous = previous
        self.notes: list[str] = []
        self._folder = folder
        self._new: list[str] = []
        """The files that this backup wrote, as names in the folder."""

    def begin(self) -> None:
        os.close(self._folder.open(UNFINISHED, os.O_WRONLY | os.O_CREAT))

    def has_intact(self, earlier: BackupFile) -> bool:
        is_there = self._folder.exists(earlier.stored_as)
        return is_there and self._sha256_of(earlier.stored_as) == earlier.sha256

    def add_sealed(self, name: str, segment: Segment, progress: Progress) -> Added:
        stored_as = name if not self._folder.exists(name) else f"{name}.{self.backup_id}"
        size = segment.file.size()
        return self._clone(stored_as, segment, progress) or self._write(
            stored_as, chunks(segment.file, size), progress
        )

    def add(self, name: str, data: Iterable[bytes], progress: Progress) -> Added:
        part, _, rest = name.partition("/")
        if part == "commitlog":
            stored_as = f"{name}.{self.backup_id}"
        else:
            stored_as = f"{part}-{self.backup_id}/{rest}"
        return self._write(stored_as, data, progress)

    def add_environment(self, name: str, write: Callable[[Path], bool]) -> Added | None:
        *_, part, file = name.split("/")
        folder = f"{part}-{self.backup_id}"
        self._new += [f"{folder}/{file}", f"{folder}/lock.mdb"]
        with self._folder.new_folder(folder) as made:
            if not write(made.path_by_descriptor):
                return None
            made.remove("lock.mdb")
        stored_as = f"{folder}/{file}"
        descriptor = self._folder.open(stored_as)
        size = os.fstat(descriptor).st_size
        return Added(stored_as, size, sha256_of(read_chunks(descriptor)))

    def finish(self, manifest: Manifest) -> None:
        unfinished = f"{MANIFEST_NAME}.new"
        self._write(unfinished, [encode_manifest(manifest)])
        sync_tree(".", self._folder.descriptor)
        self._folder.rename(unfinished, MANIFEST_NAME)
        self._new.clear()
        os.fsync(self._folder.descriptor)
        self._remove_others(manifest)

    def abandon(self) -> None:
        # The copies only use space, perhaps on a full disk.
        for name in self._new:
            with contextlib.suppress(OSError):
                self._folder.remove(name)

    def _clone(self, stored_as: str, segment: Segment, progress: Progress) -> Added | None:
        """Share the disk blocks of a sealed segment with the source. Return None if the file system
        cannot share blocks."""
        self._new.append(stored_as)
        size = segment.file.size()
        copy = self._folder.create(stored_as)
        try:
            is_whole = clone_file(segment.path, copy) and os.fstat(copy).st_size == size
        finally:
            os.close(copy)
        if not is_whole:
            return None
        return Added(stored_as, size, self._sha256_of(stored_as, progress), is_cloned=True)

    def _write(
        self, stored_as: str, data: Iterable[bytes], progress: Progress = lambda count: None
    ) -> Added:
        self._new.append(stored_as)
        size, checksum = fill_file(self._folder.create(stored_as), data, progress=progress)
        return Added(stored_as, size, checksum)

    def _sha256_of(self, stored_as: str, progress: Progress = lambda count: None) -> str:
        return sha256_of(read_chunks(self._folder.open(stored_as, may_have_names=True)), progress)

    def _remove_others(self, manifest: Manifest) -> None:
        """Remove the files of earlier or interrupted backups: the manifest does not list them."""
        kept = {file.stored_as for file in manifest.files}
        kept_folders = {name.partition("/")[0] for name in kept}
        for folder in _folders(self._folder):
            if folder != "commitlog" and folder not in kept_folders:
                self._folder.remove_folder(folder)
                continue
            for name in self._folder.names(folder):
                if f"{folder}/{name}" not in kept:
                    self._folder.remove(f"{folder}/{name}")
        self._folder.remove(UNFINISHED)
        os.fsync(self._folder.descriptor)


@contextmanager
def locked_target(target: Path) -> Iterator[FolderTarget]:
    """Create the folder and lock it against other backups. Yield it as a Target. Raise
    BackupRefused or UnsafeFile; OSError propagates."""
    make_directory(target)
    with open_folder(target) as folder:
        try:
            fcntl.flock(folder.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BackupRefused(target, "another backup is being made; wait for it") from error
        previous = _read_earlier_manifest(folder)
        _refuse_planted_target(folder)
        yield FolderTarget(folder, previous)


def _read_earlier_manifest(target: Folder) -> Manifest | None:
    found = set(target.names()) - {"lost+found"}
    if MANIFEST_NAME in found:
        try:
            raw = b"".join(read_chunks(target.open(MANIFEST_NAME, may_have_names=True)))
            return decode_manifest(raw, target.path)
        except NotABackup as error:
            raise BackupRefused(target.path, f"{error.reason}; use an empty folder") from error
    if found and UNFINISHED not in found:
        raise BackupRefused(target.path, f"it contains {min(found)!r}; use an empty folder")
    return None


def _refuse_planted_target(target: Folder) -> None:
    """Check that all files and folders of backups in the target are regular files and folders. Call
    this before anything in the target is changed. Raise UnsafeFile; OSError propagates."""
    for name in {UNFINISHED, MANIFEST_NAME, f"{MANIFEST_NAME}.new"}.intersection(target.names()):
        target.check(name)
    for folder in _folders(target):
        for name in target.names(folder):
            target.check(f"{folder}/{name}")


def _folders(target: Folder) -> list[str]:
    """Return the names of the folders in the target that belong to a backup: this one, an earlier
    one or an interrupted one."""
    return [
        name
        for name in target.names()
        if name == "commitlog" or name.startswith(("state-", "groups-", "access-"))
    ]
