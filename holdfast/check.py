"""Verify a data directory, changing nothing: every block of the log, every footer, the index
against the log, the state's records. What `holdfast check` runs, and tests after every crash."""

import bisect
import fcntl
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from holdfast.commitlog.batch import Batch
from holdfast.commitlog.batch_check import LimitExceeded, MessageLimits, check_batch
from holdfast.commitlog.batch_header import BatchHeader
from holdfast.commitlog.commit_log import CommitLog, block_tables
from holdfast.commitlog.config import CommitLogConfig
from holdfast.commitlog.data_dir import LAYOUT_VERSION, DataDirInUse, NotADataDir
from holdfast.commitlog.disk import Disk, File, LinuxDisk
from holdfast.commitlog.errors import CorruptBatch, UnknownFormatVersion
from holdfast.commitlog.log_scan import Damage, scan_log
from holdfast.commitlog.segment import Segment, read_trailer
from holdfast.commitlog.segment_format import parse_segment_name
from holdfast.consumequeue.consume_queue import CqUnit
from holdfast.consumequeue.index import Index, IndexCorrupt
from holdfast.consumequeue.state_records import INCOMPLETE
from holdfast.consumequeue.state_store import StateCorrupt, StateStore
from holdfast.consumequeue.topic_table import TopicTable
from holdfast.consumequeue.topics import QueueKey

_NO_LIMITS = MessageLimits(2**31, 2**31, 2**31, 2**31)
_KNOWN = {"commitlog", "consumequeue", "state", "lock", "VERSION", "reserve"}
_REBUILD = "stop the broker and delete the folder, it is rebuilt from the log"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be. `damage`: messages or state are affected; else it
    is a note: the broker mends it by itself, or it harms nothing."""

    where: str
    what: str
    damage: bool


@dataclass(slots=True)
class CheckReport:
    """What was looked at and what was found."""

    segments: int = 0
    blocks: int = 0
    messages: int = 0
    bytes: int = 0
    queues: int = 0
    index_entries: int = 0
    topics: int = 0
    groups: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether nothing is damaged; notes may be there."""
        return not any(finding.damage for finding in self.findings)

    def note(self, where: object, what: object) -> None:
        """Add something harmless."""
        self.findings.append(Finding(str(where), str(what), damage=False))

    def damage(self, where: object, what: object) -> None:
        """Add something that affects messages or state."""
        self.findings.append(Finding(str(where), str(what), damage=True))


def check_data_dir(
    path: Path,
    *,
    deep: bool = True,
    progress: Callable[[int, int], None] = lambda done, total: None,
    disk: Disk | None = None,
) -> CheckReport:
    """Check a data directory that no broker has open.

    `deep` also compares every payload with its CRC and proves its columns; without it headers
    alone are read. `progress` gets bytes done and in all; `disk` is where the log's files are,
    the machine's own if not given. Raises DataDirInUse, NotADataDir, UnknownFormatVersion;
    OSError passes through. Findings are in the report.
    """
    if not (path / "VERSION").exists():
        raise NotADataDir(path, next((entry.name for entry in path.iterdir()), "nothing"))
    version = (path / "VERSION").read_text("ascii", "replace").strip()
    if version != LAYOUT_VERSION:
        raise UnknownFormatVersion(f"data directory {path}", version[:40], LAYOUT_VERSION)
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataDirInUse(path, os.pread(descriptor, 32, 0).decode().strip()) from error
        return _Check(path, deep, progress, disk or LinuxDisk()).run()
    finally:
        os.close(descriptor)


class _Check:
    """One run over one directory."""

    def __init__(
        self, path: Path, deep: bool, progress: Callable[[int, int], None], disk: Disk
    ) -> None:
        self._path = path
        self._deep = deep
        self._disk = _ReadOnly(disk)
        self._progress = progress
        self._report = CheckReport()
        self._table = TopicTable({})
        self._ends: dict[QueueKey, int] = {}
        self._timestamps: dict[QueueKey, int] = {}
        self._damaged: list[Damage] = []
        """What of the log cannot be read, in log order."""

    def run(self) -> CheckReport:
        report = self._report
        for entry in sorted(self._path.iterdir()):
            if entry.name not in _KNOWN:
                report.note(entry.name, "unknown file, left alone")
        self._table = self._check_state()
        if not (self._path / "commitlog").exists():
            report.damage("commitlog", "missing: the log is all that messages are in")
            return report
        log = CommitLog(self._path / "commitlog", CommitLogConfig(), self._disk, now_us=lambda: 0)
        for entry in sorted((self._path / "commitlog").glob("*")):
            if parse_segment_name(entry.name) is None:
                report.note(f"commitlog/{entry.name}", "unknown file, left alone")
        index = self._open_index()
        try:
            log.open()
            report.segments = len(log.segments)
            opened = {segment.path for segment in log.segments}
            for segment_path, reason in log.damaged_headers:
                mend = "costs no message" if segment_path in opened else "left alone"
                report.note(f"commitlog/{segment_path.name}", f"{reason}; {mend}")
            reput_offset = index.position().physical_offset if index is not None else 0
            torn = self._check_log(log, index, reput_offset)
            for segment in log.segments:
                if torn is None or segment.end_offset <= torn:
                    self._check_footer(log, segment)
            if index is not None:
                self._check_index(index, log)
        except IndexCorrupt as error:
            report.damage("consumequeue", f"{error}; {_REBUILD}")
        finally:
            log.close()
            if index is not None:
                index.close()
        report.queues = len(self._ends)
        return report

    # -- parts -----------------------------------------------------------------------------

    def _check_state(self) -> TopicTable:
        directory = self._path / "state"
        if not (directory / "data.mdb").exists():
            self._report.note("state", "missing; it is read from the log at the next start")
            return TopicTable({})
        try:
            size = (directory / "data.mdb").stat().st_size
            state = StateStore(directory, size + 2**24, readonly=True)
        except StateCorrupt as error:
            self._report.damage("state", f"{error}; it is read from the log at the next start")
            return TopicTable({})
        if state.is_new:
            self._report.note("state", "unfinished; it is read from the log at the next start")
        for key in state.damaged:
            self._report.damage("state", f"record {key!r} is damaged")
        if INCOMPLETE in state.records:
            self._report.damage("state", "read from a damaged log: topics may be missing")
        table = TopicTable(state.records)
        state.stop()
        self._report.topics = len(table)
        self._report.groups = len(table.groups())
        return table

    def _open_index(self) -> Index | None:
        directory = self._path / "consumequeue"
        if not (directory / "data.mdb").exists():
            self._report.note("consumequeue", "missing; it is rebuilt at the next start")
            return None
        try:
            size = (directory / "data.mdb").stat().st_size
            return Index(directory, size + 2**24, readonly=True)
        except IndexCorrupt as error:
            self._report.note("consumequeue", f"{error}; it is rebuilt at the next start")
            return None

    def _check_log(self, log: CommitLog, index: Index | None, reput_offset: int) -> int | None:
        """Check every block; return where the next start will cut, None where nothing is cut."""
        report = self._report
        start = log.min_offset
        total = sum(segment.size for segment in log.segments)
        durable = reput_offset
        # From the first damage on, what is found waits here until it is proven durable, as in
        # recovery: what is not will be cut, and says nothing.
        unproven: deque[tuple[Segment, Batch | Damage]] = deque()
        for segment, found in scan_log(log.segments, start, verify_payload=self._deep):
            unproven.append((segment, found))
            if isinstance(found, Batch):
                durable = max(durable, found.header.durable_offset)
                self._progress(found.header.physical_offset - start, total)
            while unproven and _is_certain(unproven[0][1], durable):
                self._check_found(*unproven.popleft(), index, reput_offset)
        for segment, found in unproven:
            if isinstance(found, Damage) and found.reason != "unwritten":
                report.note(
                    f"commitlog/{segment.path.name}", f"{found}: a torn tail, cut at the next start"
                )
        torn = unproven[0][1] if unproven else None
        return torn.start if isinstance(torn, Damage) else None

    def _check_found(
        self, segment: Segment, found: Batch | Damage, index: Index | None, reput_offset: int
    ) -> None:
        if isinstance(found, Damage):
            self._damaged.append(found)
            self._report.damage(
                f"commitlog/{segment.path.name}", f"{found} below the durable offset"
            )
            return
        self._check_block(found)
        if index is not None and found.header.physical_offset < reput_offset:
            self._check_entry(index, found.header)

    def _check_block(self, batch: Batch) -> None:
        report, header = self._report, batch.header
        report.blocks += 1
        report.messages += header.message_count
        report.bytes += header.total_size
        where = f"block {header.physical_offset}"
        if self._deep:
            try:
                check_batch(batch, _NO_LIMITS)
            except (CorruptBatch, LimitExceeded) as error:
                report.damage(where, error)
        key = (header.topic_id, header.queue_id)
        end = self._ends.get(key)
        begin = self._begin(key)
        if end is None:
            if header.base_offset > begin and self._table.by_id(key[0]) is not None:
                report.damage(
                    where, f"{self._name(key)} begins at {header.base_offset}, not {begin}"
                )
        elif header.base_offset != end and header.base_offset > begin:
            report.damage(where, f"{self._name(key)} goes on at {header.base_offset}, not {end}")
        if header.store_timestamp_us < self._timestamps.get(key, 0):
            report.damage(where, f"{self._name(key)} goes back in time")
        self._timestamps[key] = header.store_timestamp_us
        self._ends[key] = header.end_offset

    def _check_entry(self, index: Index, header: BatchHeader) -> None:
        key = (header.topic_id, header.queue_id)
        if self._table.by_id(key[0]) is None:
            return  # it is gone, or the broker's own: nobody reads that through the index
        if header.end_offset <= self._begin(key):
            return
        unit = next(index.units(key, header.base_offset), None)
        if unit is None or unit.base_offset > header.base_offset:
            what = f"no entry for block {header.physical_offset}"
        elif not _describes(unit, header):
            what = f"the entry for block {header.physical_offset} does not describe it"
        else:
            return
        self._report.damage(
            "consumequeue", f"{what}, offset {header.base_offset} of {self._name(key)}; {_REBUILD}"
        )

    def _check_footer(self, log: CommitLog, segment: Segment) -> None:
        where = f"commitlog/{segment.path.name}"
        try:
            if read_trailer(segment) is None:
                return
        except CorruptBatch as error:
            self._report.note(where, f"{error}; costs no message")
            return
        tables = log.footer(segment)
        if tables is None:
            self._report.note(where, "its footer is damaged; costs no message")
            return
        is_damaged = any(
            segment.start_offset <= damage.start < segment.end_offset for damage in self._damaged
        )
        if is_damaged or not self._deep:
            return  # what it should describe is not known
        blocks, keys = block_tables(segment)
        if not (np.array_equal(blocks, tables[0]) and np.array_equal(keys, tables[1])):
            self._report.damage(where, "its footer does not describe its blocks")

    def _check_index(self, index: Index, log: CommitLog) -> None:
        """Name what the index has and the log has not: what readers will miss."""
        for key in index.queues():
            kept = self._begin(key)
            count = gone = 0
            low = high = 0
            for unit in index.units(key, 0):
                count += 1
                if unit.end_offset > kept and not self._is_there(unit, log):
                    low = unit.base_offset if not gone else low
                    high = unit.end_offset
                    gone += 1
            self._report.index_entries += count
            if gone and self._table.by_id(key[0]) is not None:
                self._report.damage(
                    self._name(key),
                    f"{gone} of its batches are not in the log any more, or damaged there: "
                    f"between offsets {low} and {high}",
                )

    def _begin(self, key: QueueKey) -> int:
        return self._table.kept.get(key[0], {}).get(key[1], 0)

    def _name(self, key: QueueKey) -> str:
        topic = self._table.by_id(key[0])
        return f"queue {key[1]} of {repr(topic.name) if topic else f'topic id {key[0]}'}"

    def _is_there(self, unit: CqUnit, log: CommitLog) -> bool:
        if log.segment_at(unit.physical_offset) is None:
            return False
        after = bisect.bisect_right(self._damaged, unit.physical_offset, key=lambda d: d.start)
        return not after or self._damaged[after - 1].end <= unit.physical_offset


class _ReadOnly:
    """A Disk that leaves everything as it is."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.names = disk.names
        self.open = disk.open

    def create(self, path: Path, size: int) -> File:
        raise AssertionError(f"nothing is created: {path}, {size} bytes")

    def rename(self, source: Path, target: Path) -> None:
        raise AssertionError(f"nothing is renamed: {source} to {target}")

    def remove(self, path: Path) -> None:
        """A file that a crash left unfinished stays."""


def _is_certain(found: Batch | Damage, durable: int) -> bool:
    return isinstance(found, Batch) or found.start < durable


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
