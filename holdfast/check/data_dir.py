"""Verify a data directory or a backup without changing it: every block of the log, every footer,
the index against the log, the records of the state, and the tokens."""

import bisect
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from holdfast.backup.source import STATE_FAILURES, LiveState, log_snapshot
from holdfast.backup.stored import BackupFiles, is_backup, read_manifest, verify_files
from holdfast.check.groups_check import check_groups, live_cursors, stopped_cursors
from holdfast.check.log_check import LogCheck
from holdfast.check.queue_cover import Evidence
from holdfast.check.report import CheckReport, Offsets
from holdfast.commitlog.config import CommitLogConfig
from holdfast.commitlog.disk.data_dir import (
    LAYOUT_VERSION,
    DataDirInUse,
    is_readable,
    read_version,
    require_data_dir,
)
from holdfast.commitlog.disk.owned_files import open_file, refuse_planted
from holdfast.commitlog.disk.read_only import Readable, ReadOnlyDisk
from holdfast.commitlog.errors import UnknownFormatVersion
from holdfast.commitlog.format.batch_header import BatchHeader
from holdfast.commitlog.format.segment_format import parse_segment_name
from holdfast.commitlog.segments.commit_log import CommitLog
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
_BY_ITSELF = "nothing to do: the broker does it at its next start"

Progress = Callable[[int, int], None]
Records = dict[bytes, bytes]


class BrokerRuns(DataDirInUse):
    """A broker is writing to the directory, so the whole directory cannot be checked."""

    def __str__(self) -> str:
        return (
            f"{self.path} is in use by another broker (process {self.holder or 'unknown'}); "
            "stop that one, or add --live to check the log beside it"
        )


def check_data_dir(
    path: Path,
    *,
    deep: bool = True,
    live: bool = False,
    is_locked: bool = False,
    progress: Progress = lambda done, total: None,
    disk: Readable | None = None,
) -> CheckReport:
    """Check a backup, or a data directory that no broker has open.

    With `deep`, compare every payload with its CRC and validate its columns; otherwise read only
    the headers. With `live`, a broker may be running: check the state, and the log up to its end
    when the check began, but not the index. With `is_locked`, the caller has already locked the
    directory against brokers. `progress` is called with the bytes done and the total. `disk` gives
    access to the log's files; the default is this machine's disk. Return the findings in the
    report. Raises DataDirInUse, NotADataDir, NotABackup, UnknownFormatVersion; OSError passes
    through.
    """
    path = path.resolve()
    if is_backup(path):
        return _check_backup(path, deep, progress)
    report = CheckReport()
    _check_version(path, report)
    check = _Check(path, deep, progress, report)
    if live:
        return check.live()
    with nullcontext() if is_locked else _hold_lock(path):
        return check.stopped(disk)


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
        f"it says {version[:40]!r}, which is no version: no broker starts here",
        "version",
        mend=f"'holdfast repair' writes {LAYOUT_VERSION!r} if the log is of that version",
    )


@contextmanager
def _hold_lock(path: Path) -> Iterator[None]:
    """Lock the lock file, so that no broker starts. If the file is missing, no broker runs."""
    try:
        descriptor = open_file(path / "lock")
    except FileNotFoundError:
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            raise BrokerRuns(path, holder) from error
        yield
    finally:
        os.close(descriptor)


def _check_backup(path: Path, deep: bool, progress: Progress) -> CheckReport:
    manifest = read_manifest(path)
    report = CheckReport(scope="backup")
    for wrong in verify_files(path, manifest, progress):
        report.damage(
            wrong.partition(" ")[0],
            wrong,
            "backup-file",
            mend="take another backup; with --incremental what is damaged is copied again",
        )
    for damage in manifest.damage:
        report.note(
            "MANIFEST", f"{damage}; it was so when the backup was taken", "backed-up-damage"
        )
    (state,) = manifest.of_role("state")
    state_dir = (path / state.stored_as).parent
    check = _Check(path, deep, progress, report)
    groups_dirs = [(path / file.stored_as).parent for file in manifest.of_role("groups")]
    check.log_of(BackupFiles(path, manifest), state_dir, next(iter(groups_dirs), None))
    return report


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

    def stopped(self, disk: Readable | None) -> CheckReport:
        """Check everything. The caller must have locked the directory against brokers."""
        self._check_names()
        self._check_access()
        records = self._check_state(self._path / "state")
        if not (self._path / "commitlog").exists():
            self._check_records(records or {}, None)
            self._report.damage(
                "commitlog",
                "missing: the log is all that messages are in",
                "no-log",
                mend="restore a backup",
            )
            return self._report
        log = CommitLog(
            self._path / "commitlog", CommitLogConfig(), ReadOnlyDisk(disk), now_us=lambda: 0
        )
        index = self._open_index()
        try:
            log.open()
            table = self._check_records(records, log)
            self._check_log(log, table, index, limit=None)
            found = stopped_cursors(self._path / "state" / GROUPS_DIRECTORY)
            check_groups(found, self._groups, table, self._report.ends, self._report)
        finally:
            log.close()
            if index is not None:
                index.close()
        return self._report

    def live(self) -> CheckReport:
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

    def log_of(self, files: Readable, state_dir: Path, groups_dir: Path | None) -> None:
        """Check the log of a backup, the state in `state_dir` and the groups' cursors."""
        records = self._check_state(state_dir)
        log = CommitLog(
            self._path / "commitlog", CommitLogConfig(), ReadOnlyDisk(files), now_us=lambda: 0
        )
        try:
            log.open()
            table = self._check_records(records, log)
            self._check_log(log, table, None, limit=None)
            if groups_dir is not None:
                found = stopped_cursors(groups_dir)
                check_groups(found, self._groups, table, self._report.ends, self._report)
        finally:
            log.close()

    # -- files -----------------------------------------------------------------------------

    def _check_names(self) -> None:
        for entry in sorted(self._path.iterdir()):
            if entry.name.startswith("state.corrupt-"):
                what = "a damaged state that was set aside; nothing reads it"
                self._report.note(entry.name, what, "set-aside", mend="remove it at will")
            elif entry.name not in _KNOWN:
                self._report.note(entry.name, "unknown file, left alone", "unknown-file")
        log = self._path / "commitlog"
        for entry in sorted(log.iterdir()) if log.is_dir() else ():
            if parse_segment_name(entry.name) is None:
                where = f"commitlog/{entry.name}"
                self._report.note(where, "unknown file, left alone", "unknown-file")

    def _check_access(self) -> None:
        if not (self._path / "access").is_dir():
            return
        from holdfast.http_api.access.token_file import TokenFile, TokensUnreadable

        try:
            read = TokenFile(self._path).read()
        except TokensUnreadable as error:
            self._report.damage(
                "access/tokens", "; ".join(error.faults), "tokens", mend="restore it from a backup"
            )
            return
        for fault in read.faults:
            if read.content.generation:
                what = f"{fault}; the other copy is whole"
                mend = "any 'holdfast token create' or 'revoke' writes both anew"
                self._report.note("access/tokens", what, "tokens", mend=mend)

    # -- the state -------------------------------------------------------------------------

    def _check_state(self, directory: Path) -> Records | None:
        """Return the intact records, or None if some or all records must be read from the log."""
        note, damage = self._report.note, self._report.damage
        if not (directory / "data.mdb").exists():
            what = "missing; it is read from the log at the next start"
            note("state", what, "state-missing", mend=_BY_ITSELF)
            return None
        try:
            size = (directory / "data.mdb").stat().st_size
            state = StateStore(directory, size + 2**24, readonly=True)
        except StateCorrupt as error:
            what = f"{error}; it is read from the log at the next start"
            damage("state", what, "state-damaged", mend=_BY_ITSELF)
            return None
        if state.is_new:
            what = "unfinished; it is read from the log at the next start"
            note("state", what, "state-missing", mend=_BY_ITSELF)
        records, damaged, is_new = dict(state.records), list(state.damaged), state.is_new
        state.stop()
        return self._whole(records, damaged, is_new=is_new)

    def _live_state(self) -> Records | None:
        try:
            state = LiveState(self._path / "state")
            try:
                records, damaged = state.records()
            finally:
                state.close()
        except STATE_FAILURES as error:
            self._report.damage("state", error, "state-damaged", mend=_BY_ITSELF)
            return None
        return self._whole(records, damaged, is_new=False)

    def _whole(self, records: Records, damaged: list[bytes], *, is_new: bool) -> Records | None:
        for key in damaged:
            what = f"record {key!r} is damaged"
            self._report.damage("state", what, "state-record", mend=_BY_ITSELF)
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
            report.damage("state", error, "state-malformed", mend="restore a backup")
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
            mend="restore a backup, or give them up with 'holdfast repair'",
        )

    def _read_lost(self, records: dict[bytes, bytes], table: TopicTable) -> None:
        """Collect the ranges that the state records as lost; report those that were accepted."""
        if DAMAGE in records:
            self._report.note("state", "the broker has met damage in the log", "known-damage")
        for record, value in sorted(records.items()):
            kind, *rest = parse_key(record)
            topic = table.by_id(int(rest[0])) if kind == "lost" else None
            if topic is None:
                continue
            for queue, ranges in sorted(decode_lost(value).items()):
                key = (topic.topic_id, queue)
                begin = table.kept.get(key[0], {}).get(queue, 0)
                for each in ranges:
                    self._known_ends[key] = max(self._known_ends.get(key, 0), each.end_offset)
                    if each.accepted:
                        offsets = (each.start_offset, each.end_offset)
                        self._accepted.setdefault(key, []).append(offsets)
                    if each.accepted and each.end_offset > begin:
                        self._report.note(
                            f"queue {queue} of {topic.name!r}",
                            f"offsets {each.start_offset} to {each.end_offset} were given up "
                            f"({each.reason})",
                            "let-go",
                        )

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
                self._report.note(
                    where,
                    f"{reason}; costs no message",
                    "segment-header",
                    mend="nothing to do; 'holdfast repair' writes it anew",
                )
            else:
                self._report.note(
                    where,
                    f"{reason}; left alone",
                    "segment-unusable",
                    mend="'holdfast repair' sets it aside",
                )

    def _open_index(self) -> Index | None:
        directory = self._path / "consumequeue"
        note = self._report.note
        if not (directory / "data.mdb").exists():
            what = "missing; it is rebuilt at the next start"
            note("consumequeue", what, "index-missing", mend=_BY_ITSELF)
            return None
        try:
            size = (directory / "data.mdb").stat().st_size
            return Index(directory, size + 2**24, readonly=True)
        except IndexCorrupt as error:
            what = f"{error}; it is rebuilt at the next start"
            note("consumequeue", what, "index-damaged", mend=_BY_ITSELF)
            return None

    def _check_entry(
        self, index: Index | None, header: BatchHeader, table: TopicTable, check: LogCheck
    ) -> None:
        key = (header.topic_id, header.queue_id)
        if index is None or header.physical_offset >= self._reput_offset:
            return
        if table.by_id(key[0]) is None:
            return  # a deleted topic, or the broker's own: not read through the index
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
                if unit.end_offset > kept and not self._is_there(unit, log, starts):
                    gone.append(unit)
            self._report.index_entries += count
            if not gone or table.by_id(key[0]) is None:
                continue
            self._known_ends[key] = max(self._known_ends.get(key, 0), gone[-1].end_offset)
            check.told.add(key)
            for unit in gone:
                offsets = (max(unit.base_offset, kept), unit.end_offset)
                check.evidence.append(Evidence(key, offsets, unit.physical_offset))
            self._report.damage(
                check.name(key),
                f"batches that the log no longer has, or has damaged: {len(gone)}, "
                f"between offsets {gone[0].base_offset} and {gone[-1].end_offset}",
                "index-beyond-log",
                mend="see what else was found; an index alone is deleted and rebuilt",
            )

    def _is_there(self, unit: CqUnit, log: CommitLog, starts: list[int]) -> bool:
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
