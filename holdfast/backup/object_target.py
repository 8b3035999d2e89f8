"""A backup in an object store, next to the earlier ones. object_backup.py has a diagram of the
names.

Every name is new, so nothing is overwritten. The manifest is created last, under the next number,
and only if no other backup has created it. So of two backups at the same time one fails, and an
interrupted backup is never taken for a complete one.
"""

import contextlib
import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from holdfast.backup.files import Progress, chunks, file_chunks
from holdfast.backup.manifest import BackupFile, Manifest, NotABackup, encode_manifest
from holdfast.backup.object_backup import (
    FOLDERS,
    MANIFESTS,
    first_of,
    load_manifest,
    manifest_name,
    manifests,
    wrong_files,
)
from holdfast.backup.object_store import ObjectExists, ObjectStore, StoreFailed
from holdfast.backup.target import Added, BackupRefused
from holdfast.commitlog.errors import LogError
from holdfast.commitlog.segments.segment import Segment

_UPLOADED_BY = re.compile(r".*\.(\d{10})-[0-9a-f]{8}")


@dataclass(eq=False, repr=False)
class BackupOvertaken(LogError):
    """Another backup to the same URL ended first. This one is not kept."""

    sentence = "{where}: another backup ended while this one was made; make backups one at a time"
    where: str


class ObjectTarget:
    """A Target below a URL. `keep` is the number of backups that are kept, this one included;
    None keeps all."""

    def __init__(self, store: ObjectStore, *, keep: int | None = None) -> None:
        """Read the latest manifest. Raise BackupRefused, NotABackup or StoreFailed."""
        if foreign := set(store.top_names()) - {MANIFESTS, *FOLDERS}:
            reason = f"it contains {min(foreign)!r}; use a prefix without other objects"
            raise BackupRefused(store.where, reason)
        found = manifests(store)
        latest = max(found, default=0)
        try:
            self.previous = load_manifest(store, latest, found[latest]) if found else None
        except NotABackup as error:
            raise BackupRefused(store.where, f"{error.reason}; use another prefix") from error
        self.number = latest + 1
        self.backup_id = f"{self.number:010d}-{secrets.token_hex(4)}"
        self.notes: list[str] = []
        self._store = store
        self._keep = keep
        self._there = store.sizes("commitlog") if found else {}
        self._new: list[str] = []
        """The names of the objects that this backup uploaded."""

    def begin(self) -> None:
        """Do nothing. A backup is unfinished until `finish` creates its manifest."""

    def has_intact(self, earlier: BackupFile) -> bool:
        """Compare the size only: the content would have to be downloaded."""
        return self._there.get(earlier.stored_as) == earlier.stored_bytes

    def add_sealed(self, name: str, segment: Segment, progress: Progress) -> Added:
        return self.add(name, chunks(segment.file, segment.file.size()), progress)

    def add(self, name: str, data: Iterable[bytes], progress: Progress) -> Added:
        *_, folder, file = name.split("/")
        stored_as = f"{folder}/{file}.{self.backup_id}"
        self._new.append(stored_as)
        checksum, size = hashlib.sha256(), 0

        def measured() -> Iterator[bytes]:
            nonlocal size
            for chunk in data:
                checksum.update(chunk)
                size += len(chunk)
                yield chunk
                progress(len(chunk))

        self._store.put(stored_as, measured())
        return Added(stored_as, size, checksum.hexdigest())

    def add_environment(self, name: str, write: Callable[[Path], bool]) -> Added | None:
        with TemporaryDirectory(prefix="holdfast-backup-") as folder:
            if not write(Path(folder)):
                return None
            return self.add(name, file_chunks(Path(folder) / "data.mdb"), lambda count: None)

    def finish(self, manifest: Manifest) -> None:
        """Check that every file is there, create the manifest, and remove old backups. Raise
        BackupOvertaken or StoreFailed."""
        if wrong := wrong_files(self._store, manifest):
            raise StoreFailed(self._store.where, f"after the upload {first_of(wrong)}")
        if max(manifests(self._store), default=0) >= self.number:
            raise BackupOvertaken(self._store.where)
        # If the creation fails, the manifest may be there all the same. So the files then stay.
        new, self._new = self._new, []
        # The check above and the creation are two requests. Between them, another backup may create
        # the manifest with this number, and a later one may remove it as an old backup. Then the
        # creation here succeeds, but too late.
        is_mine = self._create_manifest(encode_manifest(manifest))
        if max(manifests(self._store), default=self.number) > self.number:
            if is_mine:
                self._store.delete([manifest_name(self.number)])
            is_mine = False
        if not is_mine:
            self._new = new
            raise BackupOvertaken(self._store.where)
        if self._keep is not None:
            self._remove_old(self._keep)

    def abandon(self) -> None:
        with contextlib.suppress(StoreFailed):
            self._store.delete(self._new)

    def _create_manifest(self, raw: bytes) -> bool:
        """Return False if another backup has created the manifest with this number."""
        name = manifest_name(self.number)
        try:
            self._store.create(name, raw)
        except ObjectExists:
            # A retry finds the manifest that its first attempt has created.
            return b"".join(self._store.read(name, len(raw))) == raw
        return True

    def _remove_old(self, keep: int) -> None:
        """Remove all but the latest `keep` backups, and the files that no manifest lists. Files of
        a backup with a higher number are left alone: that backup may be running now."""
        try:
            found = manifests(self._store)
            kept = list(found)[-keep:]
            listed = {
                file.stored_as
                for number in kept
                for file in load_manifest(self._store, number, found[number]).files
            }
            # The manifests first: no manifest may list files that are gone.
            self._store.delete([manifest_name(each) for each in found if each not in kept])
            for folder in FOLDERS:
                self._store.delete(
                    [
                        name
                        for name in self._store.sizes(folder)
                        if name not in listed and self._is_old(name)
                    ]
                )
        except (StoreFailed, NotABackup) as error:
            self.notes.append(f"this backup is complete, but old ones were not removed: {error}")

    def _is_old(self, name: str) -> bool:
        match = _UPLOADED_BY.fullmatch(name)
        return match is not None and int(match[1]) <= self.number
