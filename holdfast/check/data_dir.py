"""Verify a data directory or a backup without changing it: every block of the log, every footer,
the index against the log, the records of the state, and the tokens."""

import bisect
import os
from collections.abc import Callable
from pathlib import Path

from holdfast.backup.source import STATE_FAILURES, LiveState, log_snapshot
from holdfast.backup.stored import BackupFiles, is_backup, read_manifest, verify_files
from holdfast.check.groups_check import check_groups, live_cursors, stopped_cursors
from holdfast.check.log_check import LogCheck
from holdfast.check.queue_cover import Evidence
from holdfast.check.report import CheckReport, Offsets
from holdfast.commitlog.disk.data_dir import (
    LAYOUT_VERSION,
    hold_lock,
    is_readable,
    read_version,
    require_data_dir,
)
from holdfast.commitlog.disk.owned_files import refuse_planted
from holdfast.commitlog.disk.read_only import Readable
from holdfast.commitlog.errors import UnknownFormatVersion
from holdfast.commitlog.format.batch_header import BatchHeader
from holdfast.commitlog.format.segment_format import parse_segment_name
from holdfast.commitlog.segments.commit_log import CommitLog, open_read_only
from holdfast.consumequeue.index.consume_queue import CqUnit
from holdfast.consumequeue.index.index import Index, IndexCorrupt
from holdfast.consumequeue.state.journal import state_in_log
from holdfast.consumequeue.state.records import (
    DAMAGE,
    INCOMPLETE,
    MalformedRecord,
    decode_lost,
    parse_key,
)
from holdfast.consumequeue.state.store import StateCorrupt, StateStore
from holdfast.consumequeue.state.topic_table import TopicTable
from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.storage.group_table import GroupTable
from holdfast.groups.storage.open import DIRECTORY as GROUPS_DIRECTORY

_KNOWN = {
    *("commitlog", "consumequeue", "state", "access", "repaired"),
    *("lock", "VERSION", "reserve", "lost+found"),
}
_REBUILD = "stop the broker and delete the folder, it is rebuilt from the log"
_AUTOMATIC = "nothing to do: the broker does it at its next start"
_READ_FROM_LOG = "it is read from the log at the next start"
_RESTORE = "restore a backup"
_UNKNOWN_FILE = "unknown file, ignored"

Progress = Callable[[int, int], None]
Records = dict[bytes, bytes]


def check_data_dir(
    path: Path,
    *,
    deep: bool = True,
    live: bool = False,
    is_locked: bool = False,
    progress: Progress = lambda done, total: None,
    disk: Readable | None = None,
) -> CheckReport:
    """Check a backup, or a data directory that no broker has open. Return the findings.

    With `deep`, compare every payload with its CRC and check its columns; otherwise read only the
    headers. With `live`, a broker may be running: check the state, and the log up to its end when
    the check began, but not the index. With `is_locked`, the caller has already locked the
    directory against brokers. `progress` is called with the bytes done and the total. `disk` gives
    access to the log's files; the default is this machine's disk. Raise DataDirInUse, NotADataDir,
    NotABackup or UnknownFormatVersion; OSError propagates.
    """
    path = path.resolve()
    if is_backup(path):
        return _check_backup(path, deep, progress)
    report = CheckReport()
    _check_version(path, report)
    check = _Check(path, deep, progress, report)
    if live:
        return check.check_live()
    if is_locked or not (path / "lock").exists():  # no lock file: no broker runs
        return check.check_stopped(disk)
    remedy = "stop that one, or add --live to check the log while it runs"
    with hold_lock(path, os.O_RDONLY, remedy):
        return check.check_stopped(disk)


def _check_version(path: Path, report: CheckReport) -> None:
    require_data_dir(path)
    refuse_planted(path)
    version = read_version(path)
    if is_readable(version):
        return
    if version.isascii() and version.isdecimal():
        raise UnknownFormatVersion(f"data directory {path}", version[:40], LAYOUT_VERSION)
    report.damage(
        "VERSION",
        f"it contains {version[:40]!r}, which is not a version: no broker starts here",
        "version",
        mend=f"'holdfast repair' writes {LAYOUT_VERSION!r} if the log is of that version",
    )


def _check_backup(path: Path, deep: bool, progress: Progress) -> CheckReport:
    manifest = read_manifest(path)
    report = CheckReport(scope="backup")
    for wrong in verify_files(path, manifest, progress):
        mend = "take another backup; with --incremental it copies the damaged files again"
        report.damage(wrong.partition(" ")[0], wrong, "backup-file", mend=mend)
    for damage in manifest.damage:
        what = f"{damage}; the source was damaged when the backup was taken"
        report.note("MANIFEST", what, "backed-up-damage")
    (state,) = manifest.of_role("state")
    state_dir = (path / state.stored_as).parent
    groups_dirs = [(path / file.stored_as).parent for file in manifest.of_role("groups")]
    check = _Check(path, deep, progress, report)
    return check.check_backup(BackupFiles(path, manifest), state_dir, next(iter(groups_dirs), None))


class _Check:
    """One check of one directory."""

    def __init__(self, path: Path, deep: bool, progress: Progress, report: CheckReport) -> None:
        self._path = path
        self._deep = deep
        self._progress = progress
        self._report = report
        self._accepted: dict[QueueKey, list[Offsets]] = {}
        self._known_ends: dict[QueueKey, int] = {}
        self._is_from_log = False
        """Whether some or all of the state had to be read from the log."""
        self._intact: Records = {}
        """The undamaged records of the state."""
        self._groups = GroupTable({})

    # -- which parts -----------------------------------------------------------------------

    def check_stopped(self, disk: Readable | None) -> CheckReport:
        """Check everything. The caller must have locked the directory against brokers."""
        self._check_names()
        self._check_access()
        records = self._check_state(self._path / "state")
        if not (self._path / "commitlog").exists():
            self._check_records(records or {}, None)
            what = "missing: no other file contains the messages"
            self._report.damage("commitlog", what, "no-log", mend=_RESTORE)
            return self._report
        index = self._open_index()
        try:
            groups_dir = self._path / "state" / GROUPS_DIRECTORY
            return self._check_files(disk, records, index, groups_dir)
        finally:
            if index is not None:
                index.close()

    def check_live(self) -> CheckReport:
        """Check everything that can be checked while a broker runs."""
        self._report.scope = "log"
        self._check_names()
        self._check_access()
        found = live_cursors(self._path / "state" / GROUPS_DIRECTORY)
        with log_snapshot(self._path / "commitlog") as snapshot:
            # Read the state after the log: before retention deletes messages, it stores the new
            # first offsets of their queues.
            table = self._check_records(self._live_state(), snapshot.log)
            self._check_log(snapshot.log, table, None, limit=snapshot.end_offset)
        check_groups(found, self._groups, table, self._report.ends, self._report)
        return self._report

    def check_backup(
        self, files: Readable, state_dir: Path, groups_dir: Path | None
    ) -> CheckReport:
        """Check the log of a backup, the state in `state_dir` and the groups' cursors."""
        return self._check_files(files, self._check_state(state_dir), None, groups_dir)

    def _check_files(
        self,
        files: Readable | None,
        records: Records | None,
        index: Index | None,
        groups_dir: Path | None,
    ) -> CheckReport:
        """Check the log, and compare it with the records, the index and the groups' cursors."""
        with open_read_only(self._path / "commitlog", files) as log:
            table = self._check_records(records, log)
            self._check_log(log, table, index, limit=None)
        if groups_dir is not None:
            found = stopped_cursors(groups_dir)
            check_groups(found, self._groups, table, self._report.ends, self._report)
        return self._report

    # -- files -----------------------------------------------------------------------------

    def _check_names(self) -> None:
        for entry in sorted(self._path.iterdir()):
            if entry.name.startswith("state.corrupt-"):
                what = "a damaged state that was set aside; nothing reads it"
                self._report.note(entry.name, what, "set-aside", mend="delete it at any time")
            elif entry.name not in _KNOWN:
                self._report.note(entry.name, _UNKNOWN_FILE, "unknown-file")
        log = self._path / "commitlog"
        for entry in sorted(log.iterdir()) if log.is_dir() else ():
            if parse_segment_name(entry.name) is None:
                self._report.note(f"commitlog/{entry.name}", _UNKNOWN_FILE, "unknown-file")

    def _check_access(self) -> None:
        if not (self._path / "access").is_dir():
            return
        from holdfast.http_api.access.token_file import TokenFile, TokensUnreadable

        where = "access/tokens"
        try:
            read = TokenFile(self._path).read()
        except TokensUnreadable as error:
            what, mend = "; ".join(error.faults), "restore it from a backup"
            self._report.damage(where, what, "tokens", mend=mend)
            return
        for fault in read.faults:
            if read.content.generation:
                mend = "the next 'holdfast token create' or 'revoke' rewrites both"
                self._report.note(where, f"{fault}; the other copy is intact", "tokens", mend=mend)

    # -- the state -------------------------------------------------------------------------

    def _check_state(self, directory: Path) -> Records | None:
        """Return the intact records, or None if some or all records must be read from the log."""
        note, damage = self._report.note, self._report.damage
        if not (directory / "data.mdb").exists():
            note("state", f"missing; {_READ_FROM_LOG}", "state-missing", mend=_AUTOMATIC)
            return None
        try:
            size = (directory / "data.mdb").stat().st_size
            state = StateStore(directory, size + 2**24, readonly=True)
        except StateCorrupt as error:
            damage("state", f"{error}; {_READ_FROM_LOG}", "state-damaged", mend=_AUTOMATIC)
            return None
        if state.is_new:
            note("state", f"unfinished; {_READ_FROM_LOG}", "state-missing", mend=_AUTOMATIC)
        records, damaged, is_new = dict(state.records), list(state.damaged), state.is_new
        state.stop()
        return self._report_damaged(records, damaged, is_new=is_new)

    def _live_state(self) -> Records | None:
        try:
            state = LiveState(self._path / "state")
            try:
                records, damaged = state.records()
            finally:
                state.close()
        except STATE_FAILURES as error:
            self._report.damage("state", error, "state-damaged", mend=_AUTOMATIC)
            return None
        return self._report_damaged(records, damaged, is_new=False)

    def _report_damaged(
        self, records: Records, damaged: list[bytes], *, is_new: bool
    ) -> Records | None:
        """Report the damaged records. Return None if any is damaged or the state is new, otherwise
        `records`."""
        for key in damaged:
            what = f"record {key!r} is damaged"
            self._report.damage("state", what, "state-record", mend=_AUTOMATIC)
        self._intact = records
        return None if damaged or is_new else records

    def _check_records(self, records: Records | None, log: CommitLog | None) -> TopicTable:
        """Return the topics of the records; read missing records from the log."""
        report = self._report
        is_complete = True
        if records is None:
            self._is_from_log = True
            in_log, is_complete = state_in_log(log) if log is not None else ({}, False)
            records = in_log | self._intact
        if INCOMPLETE in records or not is_complete:
            self._report_incomplete()
        try:
            table = TopicTable(records)
            self._groups = GroupTable(records)
            self._read_lost(records, table)
        except MalformedRecord as error:
            report.damage("state", error, "state-malformed", mend=_RESTORE)
            return TopicTable({})
        report.topics = len(table)
        with_leases = {group.name for group in self._groups.all()}
        report.groups = len(with_leases | set(table.groups()))
        return table

    def _report_incomplete(self) -> None:
        self._report.damage(
            "state",
            "read from a damaged log: topics and stored offsets may be missing",
            "state-incomplete",
            mend="restore a backup, or accept their loss with 'holdfast repair'",
        )

    def _read_lost(self, records: Records, table: TopicTable) -> None:
        """Collect the ranges that the state records as lost; report those that were accepted."""
        if DAMAGE in records:
            self._report.note("state", "the broker has found damage in the log", "known-damage")
        for record, value in sorted(records.items()):
            kind, *rest = parse_key(record)
            topic = table.by_id(int(rest[0])) if kind == "lost" else None
            if topic is None:
                continue
            for queue, ranges in sorted(decode_lost(value).items()):
                key = (topic.topic_id, queue)
                begin = table.kept.get(key[0], {}).get(queue, 0)
                for each in ranges:
                    self._add_known_end(key, each.end_offset)
                    if not each.accepted:
                        continue
                    offsets = (each.start_offset, each.end_offset)
                    self._accepted.setdefault(key, []).append(offsets)
                    if each.end_offset > begin:
                        what = f"the loss of offsets {offsets[0]} to {offsets[1]} was accepted"
                        where = f"queue {queue} of {topic.name!r}"
                        self._report.note(where, f"{what} ({each.reason})", "let-go")

    def _add_known_end(self, key: QueueKey, end_offset: int) -> None:
        self._known_ends[key] = max(self._known_ends.get(key, 0), end_offset)

    # -- the log and its index -------------------------------------------------------------

    def _check_log(
        self, log: CommitLog, table: TopicTable, index: Index | None, limit: int | None
    ) -> None:
        report = self._report
        report.segments = len(log.segments)
        self._report_headers(log)
        check = LogCheck(
            report,
            log,
            table,
            self._accepted,
            deep=self._deep,
            progress=self._progress,
            on_block=lambda header: self._check_entry(index, header, table, check),
        )
        self._reput_offset = 0
        try:
            if index is not None:
                self._reput_offset = index.position().physical_offset
            check.walk(self._reput_offset, limit)
            if index is not None:
                self._check_index(index, log, check, table)
                kinds = {finding.kind for finding in report.findings}
                if not kinds & {"index-damaged", "index-disagrees"}:
                    report.indexed_to = self._reput_offset
        except IndexCorrupt as error:
            report.damage("consumequeue", f"{error}; {_REBUILD}", "index-damaged", mend=_REBUILD)
        check.conclude(self._known_ends)
        kinds = {finding.kind for finding in report.findings}
        if self._is_from_log and (report.places or report.lost) and "state-incomplete" not in kinds:
            # The log seemed complete when the state was read from it, but the index or the state
            # shows that messages are missing. Then records may be missing, too.
            self._report_incomplete()

    def _report_headers(self, log: CommitLog) -> None:
        opened = {segment.path for segment in log.segments}
        for path, reason in log.damaged_headers:
            where = f"commitlog/{path.name}"
            if path in opened:
                what, mend = f"{reason}; no message is lost", "'holdfast repair' rewrites it"
                self._report.note(where, what, "segment-header", mend=f"nothing to do; {mend}")
            else:
                mend = "'holdfast repair' moves it to the folder 'repaired'"
                self._report.note(where, f"{reason}; ignored", "segment-unusable", mend=mend)

    def _open_index(self) -> Index | None:
        directory = self._path / "consumequeue"
        if not (directory / "data.mdb").exists():
            what, kind = "missing", "index-missing"
        else:
            try:
                size = (directory / "data.mdb").stat().st_size
                return Index(directory, size + 2**24, readonly=True)
            except IndexCorrupt as error:
                what, kind = str(error), "index-damaged"
        what = f"{what}; it is rebuilt at the next start"
        self._report.note("consumequeue", what, kind, mend=_AUTOMATIC)
        return None

    def _check_entry(
        self, index: Index | None, header: BatchHeader, table: TopicTable, check: LogCheck
    ) -> None:
        key = (header.topic_id, header.queue_id)
        if index is None or header.physical_offset >= self._reput_offset:
            return
        if table.by_id(key[0]) is None:
            return  # a deleted topic, or the broker's own topic: nothing reads its index
        if header.end_offset <= check.cover.begins.get(key, 0):
            return
        unit = next(index.units(key, header.base_offset), None)
        if unit is None or unit.base_offset > header.base_offset:
            what = f"no entry for block {header.physical_offset}"
        elif not _describes(unit, header):
            what = f"the entry for block {header.physical_offset} does not describe it"
        else:
            return
        self._report.damage(
            "consumequeue",
            f"{what}, offset {header.base_offset} of {check.name(key)}; {_REBUILD}",
            "index-disagrees",
            mend=_REBUILD,
        )

    def _check_index(
        self, index: Index, log: CommitLog, check: LogCheck, table: TopicTable
    ) -> None:
        """Report the index entries whose blocks the log does not have: these messages are lost."""
        starts = [place.start for place in self._report.places]
        for key in index.queues():
            kept = check.cover.begins.get(key, 0)
            gone: list[CqUnit] = []
            count = 0
            for unit in index.units(key, 0):
                count += 1
                if unit.end_offset > kept and not self._is_readable(unit, log, starts):
                    gone.append(unit)
            self._report.index_entries += count
            if not gone or table.by_id(key[0]) is None:
                continue
            self._add_known_end(key, gone[-1].end_offset)
            check.reported.add(key)
            for unit in gone:
                offsets = (max(unit.base_offset, kept), unit.end_offset)
                check.evidence.append(Evidence(key, offsets, unit.physical_offset))
            self._report.damage(
                check.name(key),
                f"{len(gone)} indexed batches are missing or damaged in the log, "
                f"between offsets {gone[0].base_offset} and {gone[-1].end_offset}",
                "index-beyond-log",
                mend="see the other findings; without any, delete the index: it is rebuilt",
            )

    def _is_readable(self, unit: CqUnit, log: CommitLog, starts: list[int]) -> bool:
        if log.segment_at(unit.physical_offset) is None:
            return False
        after = bisect.bisect_right(starts, unit.physical_offset)
        return not after or self._report.places[after - 1].end <= unit.physical_offset


def _describes(unit: CqUnit, header: BatchHeader) -> bool:
    return unit == CqUnit(
        header.base_offset,
        header.physical_offset,
        header.total_size,
        header.message_count,
        header.store_timestamp_us,
        header.tag_summary,
        unit.queue_bytes,
    )
