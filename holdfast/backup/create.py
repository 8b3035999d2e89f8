"""Take a backup of a data directory, also while a broker writes to it.

The backup contains everything that was acknowledged before it began. A Target stores its files.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.backup.files import Progress, chunks, sum_progress
from holdfast.backup.folder_target import locked_target
from holdfast.backup.manifest import BackupFile, Manifest
from holdfast.backup.source import (
    STATE_FAILURES,
    LiveState,
    LogSnapshot,
    copy_cursors,
    identity,
    log_snapshot,
)
from holdfast.backup.target import Added, BackupRefused, Target
from holdfast.commitlog.disk.data_dir import (
    LAYOUT_VERSION,
    is_readable,
    read_version,
    require_data_dir,
)
from holdfast.commitlog.disk.owned_files import read_file, refuse_planted
from holdfast.commitlog.errors import UnknownFormatVersion
from holdfast.commitlog.segments.log_scan import Damage, scan_segment
from holdfast.commitlog.segments.segment import Segment
from holdfast.consumequeue.lmdb_env.env import CORRUPT
from holdfast.consumequeue.state.journal import state_in_log
from holdfast.consumequeue.state.records import INCOMPLETE
from holdfast.consumequeue.state.store import StateStore
from holdfast.groups.storage.open import DIRECTORY as GROUPS_DIRECTORY

_STATE_MAP_BYTES = 1024**3


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
    with locked_target(target) as place:
        if place.previous is not None and not incremental:
            remedy = "add --incremental to update it, or use an empty folder"
            raise BackupRefused(target, f"it contains a backup; {remedy}")
        return _Backup(data_dir, place, holdfast_version, progress).run()


def make_backup_in(
    target: Target,
    data_dir: Path,
    *,
    holdfast_version: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> BackupReport:
    """Back up `data_dir` into any target. Sealed segments of the target's previous backup are
    reused if they are intact. Raise what `make_backup` raises; the target's errors propagate."""
    data_dir = data_dir.resolve()
    _check_source(data_dir, "the given place")
    return _Backup(data_dir, target, holdfast_version, progress).run()


class _Backup:
    """One run of a backup."""

    def __init__(
        self,
        source: Path,
        target: Target,
        holdfast_version: str,
        progress: Callable[[int, int], None],
    ) -> None:
        self._source = source
        self._target = target
        previous = target.previous
        self._previous = {file.name: file for file in previous.files} if previous else {}
        self._version = holdfast_version
        self._progress = progress
        self._now_us = time.time_ns() // 1000
        self._files: list[BackupFile] = []
        self._damage: list[str] = []
        self._notes: list[str] = []
        self._copied = self._reused = self._cloned = 0
        self._advance: Progress = lambda count: None

    def run(self) -> BackupReport:
        self._target.begin()
        try:
            manifest = self._copy()
            self._target.finish(manifest)
        except BaseException:
            self._target.abandon()
            raise
        notes = [*self._notes, *self._target.notes]
        return BackupReport(manifest, self._copied, self._reused, self._cloned, notes)

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
            self._target.backup_id,
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
        added = self._target.add_sealed(name, segment, self._advance)
        self._append("segment", name, added, size=segment.size, identity=found)
        for damage in scan_segment(segment):
            if isinstance(damage, Damage):
                self._note_damage(damage)

    def _is_reused(self, name: str, found: str) -> bool:
        """Reuse the copy of a sealed segment in the earlier backup if the copy is unchanged. Return
        whether it is reused."""
        earlier = self._previous.get(name)
        if earlier is None or earlier.identity != found:
            return False
        if not self._target.has_intact(earlier):
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
        added = self._target.add(name, chunks(segment.file, stored), self._advance)
        self._append("tail" if is_tail else "segment", name, added, size=segment.size)

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
        def write(folder: Path) -> bool:
            store = StateStore(folder, _STATE_MAP_BYTES)
            try:
                store.restore(records)
            finally:
                store.stop()
            return True

        name = "state/data.mdb"
        added = self._target.add_environment(name, write)
        assert added is not None
        self._append("state", name, added)

    def _append(
        self, role: str, name: str, added: Added, *, size: int | None = None, identity: str = ""
    ) -> None:
        """Add a stored file to the manifest. `size` is its size in a data directory."""
        size = added.stored_bytes if size is None else size
        self._files.append(
            BackupFile(
                *(role, name, added.stored_as, size, added.stored_bytes, added.sha256),
                identity or None,
            )
        )
        if added.is_cloned:
            self._cloned += added.stored_bytes
        else:
            self._copied += added.stored_bytes

    def _copy_groups(self) -> None:
        """Copy the groups' cursors, if there are any. Without them a restored group continues
        from its stored offsets."""
        source = self._source / "state" / GROUPS_DIRECTORY
        name = f"state/{GROUPS_DIRECTORY}/data.mdb"
        try:
            added = self._target.add_environment(name, lambda folder: copy_cursors(source, folder))
        except FileNotFoundError:
            return
        except CORRUPT as error:
            self._notes.append(f"state/groups: {error}; groups continue from stored offsets")
            return
        if added is not None:
            self._append("groups", name, added)

    def _copy_access(self) -> None:
        """Copy the token files. Their writer replaces each file atomically, so each is complete."""
        folder = self._source / "access"
        if not folder.is_dir():
            return
        for path in sorted(folder.glob("tokens*")):
            if path.suffix in (".new", ".lock"):
                continue
            name = f"access/{path.name}"
            self._append("access", name, self._target.add(name, [read_file(path)], _ignore))


def _ignore(count: int) -> None:
    """Show no progress: the file is small."""


def _merge_records(first: dict[bytes, bytes], second: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the records of the second read of the state, but with the stored offsets of the first
    read. The end of the log was found between the two reads, so the log may lack messages below the
    stored offsets of the second read."""
    offsets = {key: value for key, value in first.items() if key.startswith(b"offsets/")}
    others = {key: value for key, value in second.items() if not key.startswith(b"offsets/")}
    return others | offsets


def _check_source(path: Path, target: object) -> None:
    require_data_dir(path)
    refuse_planted(path)
    found = read_version(path)
    if not is_readable(found):
        raise UnknownFormatVersion(f"data directory {path}", found[:40], LAYOUT_VERSION)
    if not (path / "commitlog").is_dir():
        raise BackupRefused(target, f"{path} has no log: see 'holdfast check'")
