"""Take a backup of a data directory, also while a broker writes to it.

The backup contains everything that was acknowledged before it began. It never changes a file that
an earlier manifest in the same folder lists. So the earlier backup stays complete until the new
manifest is in place, and from then on the new backup is complete.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.backup.files import (
    Progress,
    chunks,
    clone_file,
    fill_file,
    read_chunks,
    sha256_of,
    sum_progress,
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
from holdfast.backup.source import (
    STATE_FAILURES,
    LiveState,
    LogSnapshot,
    copy_cursors,
    identity,
    log_snapshot,
)
from holdfast.commitlog.disk.data_dir import (
    LAYOUT_VERSION,
    is_readable,
    read_version,
    require_data_dir,
)
from holdfast.commitlog.disk.disk import make_directory
from holdfast.commitlog.disk.owned_files import Folder, open_folder, read_file, refuse_planted
from holdfast.commitlog.errors import LogError, UnknownFormatVersion
from holdfast.commitlog.segments.log_scan import Damage, scan_segment
from holdfast.commitlog.segments.segment import Segment
from holdfast.consumequeue.lmdb_env.env import CORRUPT
from holdfast.consumequeue.state.journal import state_in_log
from holdfast.consumequeue.state.records import INCOMPLETE
from holdfast.consumequeue.state.store import StateStore
from holdfast.groups.storage.open import DIRECTORY as GROUPS_DIRECTORY

#: This file exists while a backup is being taken. If it is there and no backup runs, the backup was
#: interrupted, and its files may be removed.
UNFINISHED = "UNFINISHED"

_STATE_MAP_BYTES = 1024**3


@dataclass(eq=False, repr=False)
class BackupRefused(LogError):
    """A backup may not be put into the given folder. `reason` includes how to fix it."""

    sentence = "no backup is made in {where}: {reason}"
    where: Path
    reason: str


@dataclass(slots=True)
class BackupReport:
    """The result of a backup."""

    manifest: Manifest
    copied_bytes: int = 0
    reused_bytes: int = 0
    cloned_bytes: int = 0
    """Bytes that the file system shares with the source (copy on write)."""
    notes: list[str] = field(default_factory=list)
    """Harmless observations."""


def make_backup(
    data_dir: Path,
    target: Path,
    *,
    incremental: bool = False,
    holdfast_version: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> BackupReport:
    """Back up `data_dir` into the folder `target`.

    `target` must be new or empty, or have only the files of an interrupted backup. With
    `incremental` it may hold an earlier backup; sealed segments in it are reused if their checksum
    still matches. A damaged source is backed up as it is, and the manifest lists the damage.
    Raise NotADataDir, UnknownFormatVersion, BackupRefused or UnsafeFile; OSError (for example
    because the disk is full) and lmdb.Error propagate. After any error, an earlier backup in
    `target` is still complete.
    """
    data_dir, target = data_dir.resolve(), target.resolve()
    _check_source(data_dir, target)
    if target.is_relative_to(data_dir):
        raise BackupRefused(target, "it is inside the data directory; use another folder")
    with _locked_target(target) as (folder, previous):
        if previous is not None and not incremental:
            remedy = "add --incremental to update it, or use an empty folder"
            raise BackupRefused(target, f"it contains a backup; {remedy}")
        return _Backup(data_dir, folder, previous, holdfast_version, progress).run()


class _Backup:
    """One run of a backup."""

    def __init__(
        self,
        source: Path,
        target: Folder,
        previous: Manifest | None,
        holdfast_version: str,
        progress: Callable[[int, int], None],
    ) -> None:
        self._source = source
        self._target = target
        self._previous = {file.name: file for file in previous.files} if previous else {}
        self._version = holdfast_version
        self._progress = progress
        self._now_us = time.time_ns() // 1000
        self._id = f"{self._now_us:016d}"
        self._files: list[BackupFile] = []
        self._new: list[str] = []
        """The files that this run wrote, as names in the target."""
        self._damage: list[str] = []
        self._notes: list[str] = []
        self._copied = self._reused = self._cloned = 0
        self._advance: Progress = lambda count: None

    def run(self) -> BackupReport:
        os.close(self._target.open(UNFINISHED, os.O_WRONLY | os.O_CREAT))
        unfinished = f"{MANIFEST_NAME}.new"
        try:
            manifest = self._copy()
            self._write(unfinished, [encode_manifest(manifest)])
            sync_tree(".", self._target.descriptor)
        except BaseException:
            # Remove the copies: they only use space, perhaps on a full disk.
            for name in self._new:
                with contextlib.suppress(OSError):
                    self._target.remove(name)
            raise
        self._target.rename(unfinished, MANIFEST_NAME)
        os.fsync(self._target.descriptor)
        self._remove_others(manifest)
        return BackupReport(manifest, self._copied, self._reused, self._cloned, self._notes)

    def _copy(self) -> Manifest:
        # The state is read twice: before and after the end of the log is found. The stored offsets
        # come from the first read, so that the log contains all messages below them. The topics
        # come from the second read, so that every topic in the log is included. The first offsets
        # of queues also come from the second read, because retention stores them before it deletes
        # messages. The groups' cursors are read before the log, as the stored offsets are.
        state = self._open_state()
        try:
            self._copy_groups()
            offsets = self._records(state)
            with log_snapshot(self._source / "commitlog") as log:
                records = self._records(state)
                if records is None or offsets is None:
                    records = self._records_in_log(log)
                else:
                    records = _merge_records(offsets, records)
                self._copy_log(log)
                end, begin = log.end_offset, log.log.min_offset
        finally:
            if state is not None:
                state.close()
        self._write_state(records)
        self._copy_access()
        return Manifest(
            self._id,
            self._now_us,
            self._version,
            LAYOUT_VERSION,
            begin,
            end,
            tuple(self._files),
            tuple(self._damage),
        )

    # -- the log ---------------------------------------------------------------------------

    def _copy_log(self, snapshot: LogSnapshot) -> None:
        for path in snapshot.vanished:
            self._notes.append(f"retention deleted segment {path.name} during the backup")
        for path, reason in snapshot.log.damaged_headers:
            self._damage.append(f"commitlog/{path.name}: {reason}")
        row = [
            segment
            for segment in snapshot.log.segments
            if segment in snapshot.sealed or segment in snapshot.unsealed
        ]
        total = sum(min(s.size, snapshot.end_offset - s.start_offset) for s in row)
        self._advance = sum_progress(self._progress, total)
        for segment in row:
            if segment in snapshot.sealed:
                self._copy_sealed(segment)
            else:
                self._copy_unsealed(segment, snapshot.end_offset)
        for found in snapshot.damage:
            self._note_damage(found)

    def _copy_sealed(self, segment: Segment) -> None:
        name = f"commitlog/{segment.path.name}"
        found = identity(segment)
        if self._is_reused(name, found):
            return
        stored_as = name if not self._target.exists(name) else f"{name}.{self._id}"
        size, checksum = self._clone(stored_as, segment) or self._write_segment(
            stored_as, segment, segment.file.size()
        )
        self._files.append(
            BackupFile("segment", name, stored_as, segment.size, size, checksum, found)
        )
        for damage in scan_segment(segment):
            if isinstance(damage, Damage):
                self._note_damage(damage)

    def _is_reused(self, name: str, found: str) -> bool:
        """Reuse the copy of a sealed segment in the earlier backup if the copy is unchanged. Return
        whether it is reused."""
        earlier = self._previous.get(name)
        if earlier is None or earlier.identity != found:
            return False
        is_there = self._target.exists(earlier.stored_as)
        if not is_there or self._sha256_of(earlier.stored_as) != earlier.sha256:
            self._notes.append(f"{earlier.stored_as} was damaged in the backup: copied again")
            return False
        self._files.append(earlier)
        self._reused += earlier.stored_bytes
        self._advance(earlier.stored_bytes)
        return True

    def _copy_unsealed(self, segment: Segment, end_offset: int) -> None:
        """Copy a segment without an intact footer. Copy the last segment only up to the end of
        the log."""
        name = f"commitlog/{segment.path.name}"
        is_tail = end_offset < segment.end_offset
        stored = min(
            segment.file.size(),
            (end_offset if is_tail else segment.end_offset) - segment.start_offset,
        )
        stored_as = f"{name}.{self._id}"
        size, checksum = self._write_segment(stored_as, segment, stored)
        role = "tail" if is_tail else "segment"
        self._files.append(BackupFile(role, name, stored_as, segment.size, size, checksum))

    def _clone(self, stored_as: str, segment: Segment) -> tuple[int, str] | None:
        """Share the disk blocks of a sealed segment with the source. Return the segment's size and
        checksum, or None if the file system cannot share blocks."""
        self._new.append(stored_as)
        size = segment.file.size()
        copy = self._target.create(stored_as)
        try:
            is_whole = clone_file(segment.path, copy) and os.fstat(copy).st_size == size
        finally:
            os.close(copy)
        if not is_whole:
            return None
        self._cloned += size
        return size, self._sha256_of(stored_as, self._advance)

    def _write_segment(self, stored_as: str, segment: Segment, size: int) -> tuple[int, str]:
        written = self._write(stored_as, chunks(segment.file, size), self._advance)
        self._copied += written[0]
        return written

    def _write(
        self, stored_as: str, data: Iterable[bytes], progress: Progress = lambda count: None
    ) -> tuple[int, str]:
        self._new.append(stored_as)
        return fill_file(self._target.create(stored_as), data, progress=progress)

    def _sha256_of(self, stored_as: str, progress: Progress = lambda count: None) -> str:
        return sha256_of(read_chunks(self._target.open(stored_as, may_have_names=True)), progress)

    def _note_damage(self, damage: Damage) -> None:
        self._damage.append(
            f"the source's log from {damage.start} to {damage.end} is damaged: {damage.reason}"
        )

    # -- the state and access --------------------------------------------------------------

    def _open_state(self) -> LiveState | None:
        try:
            return LiveState(self._source / "state")
        except STATE_FAILURES as error:
            self._notes.append(f"state: {error}; it is read from the log")
            return None

    def _records(self, state: LiveState | None) -> dict[bytes, bytes] | None:
        """Return the records, or None if they are incomplete."""
        if state is None:
            return None
        try:
            records, damaged = state.records()
        except STATE_FAILURES as error:
            self._notes.append(f"state: {error}; it is read from the log")
            return None
        for key in damaged:
            self._notes.append(f"state: record {key!r} is damaged; it is read from the log")
        return None if damaged else records

    def _records_in_log(self, snapshot: LogSnapshot) -> dict[bytes, bytes]:
        records, is_whole = state_in_log(snapshot.log)
        if not is_whole:
            self._damage.append("state: it is damaged, and its copy in the log too")
            records[INCOMPLETE] = b""
        return records

    def _write_state(self, records: dict[bytes, bytes]) -> None:
        folder = f"state-{self._id}"
        self._new += [f"{folder}/data.mdb", f"{folder}/lock.mdb"]
        with self._target.new_folder(folder) as made:
            store = StateStore(made.path_by_descriptor, _STATE_MAP_BYTES)
            try:
                store.restore(records)
            finally:
                store.stop()
            made.remove("lock.mdb")
        self._add_written("state", "state/data.mdb", f"{folder}/data.mdb")

    def _add_written(self, role: str, name: str, stored_as: str) -> None:
        """Add to the manifest a file that LMDB has written."""
        descriptor = self._target.open(stored_as)
        size = os.fstat(descriptor).st_size
        checksum = sha256_of(read_chunks(descriptor))
        self._files.append(BackupFile(role, name, stored_as, size, size, checksum))
        self._copied += size

    def _copy_groups(self) -> None:
        """Copy the groups' cursors, if there are any. Without them a restored group continues
        from its stored offsets."""
        folder = f"groups-{self._id}"
        self._new += [f"{folder}/data.mdb", f"{folder}/lock.mdb"]
        source = self._source / "state" / GROUPS_DIRECTORY
        try:
            with self._target.new_folder(folder) as made:
                is_there = copy_cursors(source, made.path_by_descriptor)
        except FileNotFoundError:
            return
        except CORRUPT as error:
            self._notes.append(f"state/groups: {error}; groups continue from stored offsets")
            return
        if is_there:
            self._add_written("groups", f"state/{GROUPS_DIRECTORY}/data.mdb", f"{folder}/data.mdb")

    def _copy_access(self) -> None:
        """Copy the token files. Their writer replaces each file atomically, so each is complete."""
        folder = self._source / "access"
        if not folder.is_dir():
            return
        for path in sorted(folder.glob("tokens*")):
            if path.suffix in (".new", ".lock"):
                continue
            stored_as = f"access-{self._id}/{path.name}"
            size, checksum = self._write(stored_as, [read_file(path)])
            self._files.append(
                BackupFile("access", f"access/{path.name}", stored_as, size, size, checksum)
            )
            self._copied += size

    # -- the end ---------------------------------------------------------------------------

    def _remove_others(self, manifest: Manifest) -> None:
        """Remove the files of earlier or interrupted backups: the manifest does not list them."""
        kept = {file.stored_as for file in manifest.files}
        kept_folders = {name.partition("/")[0] for name in kept}
        for folder in _folders(self._target):
            if folder != "commitlog" and folder not in kept_folders:
                self._target.remove_folder(folder)
                continue
            for name in self._target.names(folder):
                if f"{folder}/{name}" not in kept:
                    self._target.remove(f"{folder}/{name}")
        self._target.remove(UNFINISHED)
        os.fsync(self._target.descriptor)


def _merge_records(first: dict[bytes, bytes], second: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the records of the second read of the state, but with the stored offsets of the first
    read. The end of the log was found between the two reads, so the log may lack messages below the
    stored offsets of the second read."""
    offsets = {key: value for key, value in first.items() if key.startswith(b"offsets/")}
    others = {key: value for key, value in second.items() if not key.startswith(b"offsets/")}
    return others | offsets


def _check_source(path: Path, target: Path) -> None:
    require_data_dir(path)
    refuse_planted(path)
    found = read_version(path)
    if not is_readable(found):
        raise UnknownFormatVersion(f"data directory {path}", found[:40], LAYOUT_VERSION)
    if not (path / "commitlog").is_dir():
        raise BackupRefused(target, f"{path} has no log: see 'holdfast check'")


@contextmanager
def _locked_target(target: Path) -> Iterator[tuple[Folder, Manifest | None]]:
    """Create the folder and lock it against other backups. Yield the folder, and the manifest of
    the earlier backup in it (None if there is none)."""
    make_directory(target)
    with open_folder(target) as folder:
        try:
            fcntl.flock(folder.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BackupRefused(target, "another backup is being made; wait for it") from error
        previous = _read_earlier_manifest(folder)
        _refuse_planted_target(folder)
        yield folder, previous


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
