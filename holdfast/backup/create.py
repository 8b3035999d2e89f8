"""Take a backup of a data directory, also while a broker writes to it.

Everything that was acknowledged before the backup began is in it. It never changes a file that
an earlier manifest of the same folder names: until the new manifest is in place, the earlier
backup is whole, and after that the new one.
"""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.backup.files import (
    chunks,
    clone_file,
    file_chunks,
    sha256_of,
    sync_tree,
    write_file,
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
from holdfast.commitlog.data_dir import LAYOUT_VERSION, require_data_dir
from holdfast.commitlog.disk import make_directory, sync_directory
from holdfast.commitlog.errors import LogError, UnknownFormatVersion
from holdfast.commitlog.log_scan import Damage, scan_segment
from holdfast.commitlog.segment import Segment
from holdfast.consumequeue.lmdb_env import CORRUPT
from holdfast.consumequeue.state_journal import state_in_log
from holdfast.consumequeue.state_records import INCOMPLETE
from holdfast.consumequeue.state_store import StateStore
from holdfast.groups.opening import DIRECTORY as GROUPS_DIRECTORY

#: There while a backup is being taken; what it leaves if it is cut short may be removed.
UNFINISHED = "UNFINISHED"

_STATE_MAP_BYTES = 1024**3


class BackupRefused(LogError):
    """The folder given is not one that a backup may be put into. `reason` names the mend."""

    def __init__(self, where: Path, reason: str) -> None:
        super().__init__(where, reason)
        self.where = where
        self.reason = reason

    def __str__(self) -> str:
        return f"no backup is put into {self.where}: {self.reason}"


@dataclass(slots=True)
class BackupReport:
    """What was done."""

    manifest: Manifest
    copied_bytes: int = 0
    reused_bytes: int = 0
    cloned_bytes: int = 0
    """Shared with the source's file system, which copies what is changed."""
    notes: list[str] = field(default_factory=list)
    """What is worth knowing and harms nothing."""


def make_backup(
    data_dir: Path,
    target: Path,
    *,
    incremental: bool = False,
    holdfast_version: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> BackupReport:
    """Back up `data_dir` into the folder `target`.

    `target` is new, empty, or holds what a backup that was cut short left; with `incremental` it
    may hold an earlier backup, of which sealed segments are used again where their checksum still
    fits. A source with damage is backed up as it is, and the manifest says so. Raises
    NotADataDir, UnknownFormatVersion, BackupRefused; OSError (a full disk) and lmdb.Error pass
    through. Whatever happens, an earlier backup in `target` stays whole.
    """
    _check_source(data_dir, target)
    if target.resolve().is_relative_to(data_dir.resolve()):
        raise BackupRefused(target, "it lies in the data directory itself; name another folder")
    with _locked_target(target) as previous:
        if previous is not None and not incremental:
            raise BackupRefused(
                target,
                "it holds a backup; add --incremental to bring that up to date, or name an empty "
                "folder",
            )
        return _Backup(data_dir, target, previous, holdfast_version, progress).run()


class _Backup:
    """One run."""

    def __init__(
        self,
        source: Path,
        target: Path,
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
        self._new: list[Path] = []
        """What this run wrote."""
        self._damage: list[str] = []
        self._notes: list[str] = []
        self._copied = self._reused = self._cloned = 0
        self._done = self._total = 0

    def run(self) -> BackupReport:
        (self._target / UNFINISHED).touch()
        try:
            manifest = self._copy()
            unfinished = self._target / f"{MANIFEST_NAME}.new"
            self._new.append(unfinished)
            write_file(unfinished, [encode_manifest(manifest)])
            sync_tree(self._target)
        except BaseException:
            # What was copied so far would only take up room, on a disk that may be full.
            for path in self._new:
                with contextlib.suppress(OSError):
                    path.unlink()
            raise
        unfinished.rename(self._target / MANIFEST_NAME)
        sync_directory(self._target)
        self._remove_others(manifest)
        return BackupReport(manifest, self._copied, self._reused, self._cloned, self._notes)

    def _copy(self) -> Manifest:
        # The first look at the state has stored offsets that the log to be read next has the
        # messages of; the second has every topic that the log has messages of, and the begins
        # of queues as retention moved them before it deleted what the log no longer has.
        # The cursors of groups are taken first of all, for the same reason.
        state = self._open_state()
        try:
            self._copy_groups()
            offsets = self._records(state)
            with log_snapshot(self._source / "commitlog") as log:
                records = self._records(state)
                if records is None or offsets is None:
                    records = self._records_in_log(log)
                else:
                    records = _merged(offsets, records)
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
            self._notes.append(f"retention deleted segment {path.name} meanwhile")
        for path, reason in snapshot.log.damaged_headers:
            self._damage.append(f"commitlog/{path.name}: {reason}")
        row = [
            segment
            for segment in snapshot.log.segments
            if segment in snapshot.sealed or segment in snapshot.unsealed
        ]
        self._total = sum(min(s.size, snapshot.end_offset - s.start_offset) for s in row)
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
        stored_as = name if not (self._target / name).exists() else f"{name}.{self._id}"
        size, checksum = self._clone(stored_as, segment) or self._write(
            stored_as, segment, segment.file.size()
        )
        self._files.append(
            BackupFile("segment", name, stored_as, segment.size, size, checksum, found)
        )
        for damage in scan_segment(segment):
            if isinstance(damage, Damage):
                self._note_damage(damage)

    def _is_reused(self, name: str, found: str) -> bool:
        """Use what an earlier backup has of a sealed segment, if it is still what it was."""
        earlier = self._previous.get(name)
        if earlier is None or earlier.identity != found:
            return False
        path = self._target / earlier.stored_as
        if not path.exists() or sha256_of(path) != earlier.sha256:
            self._notes.append(f"{earlier.stored_as} was damaged in the backup: copied again")
            return False
        self._files.append(earlier)
        self._reused += earlier.stored_bytes
        self._advance(earlier.stored_bytes)
        return True

    def _copy_unsealed(self, segment: Segment, end_offset: int) -> None:
        """Copy a segment whose footer is not written yet, or is damaged; the last one only to
        where the log ends."""
        name = f"commitlog/{segment.path.name}"
        is_tail = end_offset < segment.end_offset
        stored = min(
            segment.file.size(),
            (end_offset if is_tail else segment.end_offset) - segment.start_offset,
        )
        stored_as = f"{name}.{self._id}"
        size, checksum = self._write(stored_as, segment, stored)
        role = "tail" if is_tail else "segment"
        self._files.append(BackupFile(role, name, stored_as, segment.size, size, checksum))

    def _clone(self, stored_as: str, segment: Segment) -> tuple[int, str] | None:
        """Share the blocks of a segment that never changes, where the file system can."""
        path = self._target / stored_as
        self._new.append(path)
        size = segment.file.size()
        if not clone_file(segment.path, path) or path.stat().st_size != size:
            return None
        self._cloned += size
        return size, sha256_of(path, self._advance)

    def _write(self, stored_as: str, segment: Segment, size: int) -> tuple[int, str]:
        path = self._target / stored_as
        self._new.append(path)
        written = write_file(path, chunks(segment.file, size), progress=self._advance)
        self._copied += written[0]
        return written

    def _note_damage(self, damage: Damage) -> None:
        self._damage.append(
            f"the log from {damage.start} to {damage.end} is damaged at its source: {damage.reason}"
        )

    # -- the state and access --------------------------------------------------------------

    def _open_state(self) -> LiveState | None:
        try:
            return LiveState(self._source / "state")
        except STATE_FAILURES as error:
            self._notes.append(f"state: {error}; it is taken from the log")
            return None

    def _records(self, state: LiveState | None) -> dict[bytes, bytes] | None:
        """Return the records, None when they are not all there."""
        if state is None:
            return None
        try:
            records, damaged = state.records()
        except STATE_FAILURES as error:
            self._notes.append(f"state: {error}; it is taken from the log")
            return None
        for key in damaged:
            self._notes.append(f"state: record {key!r} is damaged; it is taken from the log")
        return None if damaged else records

    def _records_in_log(self, snapshot: LogSnapshot) -> dict[bytes, bytes]:
        records, is_whole = state_in_log(snapshot.log)
        if not is_whole:
            self._damage.append("state: it is damaged, and so is the log that has it too")
            records[INCOMPLETE] = b""
        return records

    def _write_state(self, records: dict[bytes, bytes]) -> None:
        stored_as = f"state-{self._id}/data.mdb"
        directory = (self._target / stored_as).parent
        self._new += [directory / "data.mdb", directory / "lock.mdb"]
        store = StateStore(directory, _STATE_MAP_BYTES)
        try:
            store.restore(records)
        finally:
            store.stop()
        (directory / "lock.mdb").unlink(missing_ok=True)
        path = self._target / stored_as
        size = path.stat().st_size
        self._files.append(
            BackupFile("state", "state/data.mdb", stored_as, size, size, sha256_of(path))
        )
        self._copied += size

    def _copy_groups(self) -> None:
        """Copy the cursors of groups, if there are any. Without them a restored group goes on
        from its stored offsets."""
        stored_as = f"groups-{self._id}/data.mdb"
        path = self._target / stored_as
        self._new += [path, path.with_name("lock.mdb")]
        make_directory(path.parent)
        try:
            is_there = copy_cursors(self._source / "state" / GROUPS_DIRECTORY, path.parent)
        except FileNotFoundError:
            return
        except CORRUPT as error:
            self._notes.append(f"state/groups: {error}; groups go on from their stored offsets")
            return
        if not is_there:
            return
        size = path.stat().st_size
        name = f"state/{GROUPS_DIRECTORY}/data.mdb"
        self._files.append(BackupFile("groups", name, stored_as, size, size, sha256_of(path)))
        self._copied += size

    def _copy_access(self) -> None:
        """Copy the tokens' files. Each is replaced whole by its writer, so each is whole."""
        folder = self._source / "access"
        if not folder.is_dir():
            return
        for path in sorted(folder.glob("tokens*")):
            if path.suffix in (".new", ".lock") or not path.is_file():
                continue
            stored_as = f"access-{self._id}/{path.name}"
            target = self._target / stored_as
            self._new.append(target)
            size, checksum = write_file(target, file_chunks(path))
            target.chmod(0o600)
            self._files.append(
                BackupFile("access", f"access/{path.name}", stored_as, size, size, checksum)
            )
            self._copied += size

    # -- the end ---------------------------------------------------------------------------

    def _remove_others(self, manifest: Manifest) -> None:
        """Remove what the manifest does not name: of earlier backups, or cut short."""
        kept = {self._target / file.stored_as for file in manifest.files}
        for folder in (self._target / "commitlog", *self._target.glob("access-*")):
            for path in folder.glob("*"):
                if path not in kept:
                    path.unlink()
        for folder in self._target.glob("*-*"):
            if folder.name.partition("-")[0] not in ("state", "groups", "access"):
                continue
            if not any(path.parent == folder for path in kept):
                shutil.rmtree(folder)
        (self._target / UNFINISHED).unlink(missing_ok=True)
        sync_directory(self._target)

    def _advance(self, count: int) -> None:
        self._done += count
        self._progress(min(self._done, self._total), self._total)


def _merged(first: dict[bytes, bytes], second: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the second look, but with stored offsets as they were at the first: the log was
    read in between, and may not have the messages that offsets point behind at the second."""
    offsets = {key: value for key, value in first.items() if key.startswith(b"offsets/")}
    others = {key: value for key, value in second.items() if not key.startswith(b"offsets/")}
    return others | offsets


def _check_source(path: Path, target: Path) -> None:
    require_data_dir(path)
    found = (path / "VERSION").read_text("ascii", "replace").strip()
    if found != LAYOUT_VERSION:
        raise UnknownFormatVersion(f"data directory {path}", found[:40], LAYOUT_VERSION)
    if not (path / "commitlog").is_dir():
        raise BackupRefused(target, f"{path} has no log: 'holdfast check' says more")


@contextmanager
def _locked_target(target: Path) -> Iterator[Manifest | None]:
    """Make the folder and keep other backups out of it; yield the backup that it holds."""
    make_directory(target)
    descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BackupRefused(target, "another backup is being put there; wait for it") from error
        yield _earlier(target)
    finally:
        os.close(descriptor)


def _earlier(target: Path) -> Manifest | None:
    found = {entry.name for entry in target.iterdir()} - {"lost+found"}
    if MANIFEST_NAME in found:
        try:
            return decode_manifest((target / MANIFEST_NAME).read_bytes(), target)
        except NotABackup as error:
            raise BackupRefused(target, f"{error.reason}, so name an empty folder") from error
    if found and UNFINISHED not in found:
        raise BackupRefused(target, f"it holds {min(found)!r}; name a new or an empty folder")
    return None
