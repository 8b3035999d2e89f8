"""Executes the steps of a repair. Each step may be interrupted and repeated.

First, the data that will be overwritten is copied to `repaired/TIME/` and synced. Then the accepted
loss is recorded in the state, then the log is changed, and finally the index is dropped. So after
an interrupted repair, the next repair finds the rest of the damage, and every gap is recorded.
"""

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from holdfast.backup.files import chunks, write_file
from holdfast.check.report import CheckReport
from holdfast.commitlog.config import CommitLogConfig
from holdfast.commitlog.disk.data_dir import LAYOUT_VERSION
from holdfast.commitlog.disk.disk import LinuxDisk, make_directory, sync_directory
from holdfast.commitlog.disk.owned_files import open_file
from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.gap_block import gap_blocks
from holdfast.commitlog.format.segment_format import (
    BLOCK_DTYPE,
    END_MARK_SIZE,
    KEY_DTYPE,
    SEGMENT_HEADER_SIZE,
    SegmentHeader,
    encode_end_mark,
    encode_footer,
    segment_name,
)
from holdfast.commitlog.segments.commit_log import CommitLog
from holdfast.commitlog.segments.footer import block_tables
from holdfast.commitlog.segments.log_scan import Damage
from holdfast.commitlog.segments.segment import Segment
from holdfast.consumequeue.lost_ranges import LostRange, LostRanges, with_lost
from holdfast.consumequeue.state.journal import state_in_log
from holdfast.consumequeue.state.records import (
    DAMAGE,
    INCOMPLETE,
    decode_lost,
    encode_lost,
    lost_key,
    parse_key,
)
from holdfast.consumequeue.state.store import StateCorrupt, StateStore, set_aside
from holdfast.groups.storage.cursor_store import CursorsCorrupt, CursorStore
from holdfast.groups.storage.open import DIRECTORY as GROUPS_DIRECTORY
from holdfast.repair.plan import Loss, Step, StepKind

_ZEROS = bytes(1024 * 1024)
_STATE_MAP_BYTES = 1024**3


class Repair:
    """One repair of a directory. The caller must have locked the directory against brokers."""

    def __init__(self, path: Path, disk: LinuxDisk | None = None) -> None:
        self._path = path
        self._disk = disk or LinuxDisk()
        self._now_us = time.time_ns() // 1000
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(self._now_us // 1_000_000))
        self.copies = path / "repaired" / f"{stamp}-{self._now_us % 1_000_000:06d}"
        """The folder for copies of overwritten data."""

    # -- copies ----------------------------------------------------------------------------

    @property
    def existing_copies(self) -> Path | None:
        """The folder for copies if it exists, else None."""
        return self.copies if self.copies.exists() else None

    def keep_copies(self, report: CheckReport, loss: Loss, steps: Iterable[Step]) -> None:
        """Copy the data that the steps will overwrite, and write the findings into a file,
        durably."""
        make_directory(self.copies)
        for step in steps:
            if step.kind not in (StepKind.WRITE_GAP, StepKind.END_SEGMENT):
                continue
            with self._open_segment(step.name) as segment:
                start, end = step.start - segment.start_offset, step.end - segment.start_offset
                size = min(end, segment.file.size()) - start
                if size > 0:
                    data = chunks(segment.file, size, start)
                    write_file(self.copies / f"{step.name}-from-{start}", data)
        found = {
            "findings": [finding.as_row() for finding in report.findings],
            "let_go": [{"offsets": str(each), "reason": reason} for each, reason in loss.lost],
        }
        write_file(self.copies / "report.json", [msgspec.json.encode(found)])
        sync_directory(self.copies)

    # -- steps -----------------------------------------------------------------------------

    def do(self, steps: Iterable[Step], loss: Loss) -> None:
        """Execute the steps in order. OSError and lmdb.Error propagate."""
        for step in steps:
            match step.kind:
                case StepKind.WRITE_VERSION:
                    self._write_version()
                case StepKind.MOVE_FILE:
                    self._move_file(self._path / "commitlog" / step.name)
                case StepKind.WRITE_HEADER:
                    self._write_header(step.name)
                case StepKind.WRITE_FOOTER:
                    self._write_footer(step.name)
                case StepKind.WRITE_GAP:
                    self._write_gap(step)
                case StepKind.END_SEGMENT:
                    self._end_segment(step)
                case StepKind.CREATE_SEGMENT:
                    self._create_segment(step.start, step.end)
                case StepKind.RENEW_STATE:
                    self._renew_state(loss)
                case StepKind.REPAIR_GROUPS:
                    self._repair_groups()
                case StepKind.DROP_INDEX:
                    shutil.rmtree(self._path / "consumequeue", ignore_errors=True)
                    sync_directory(self._path)

    def _write_version(self) -> None:
        unfinished = self._path / "VERSION.new"
        write_file(unfinished, [f"{LAYOUT_VERSION}\n".encode()])
        unfinished.rename(self._path / "VERSION")
        sync_directory(self._path)

    def _move_file(self, path: Path) -> None:
        make_directory(self.copies)
        path.rename(self.copies / path.name)
        sync_directory(self.copies)
        sync_directory(path.parent)

    def _write_header(self, name: str) -> None:
        start = int(name)
        with self._open_log() as log:
            segment = _find_segment(log, name)
            following = [each.start_offset for each in log.segments if each.start_offset > start]
            size = segment.size
            try:
                SegmentHeader.decode(segment.file.read(SEGMENT_HEADER_SIZE, 0))
            except CorruptBatch:
                # The size in the header is unknown; the segment ended where the next one begins.
                size = max(size, following[0] - start) if following else size
            if size > segment.file.size():
                descriptor = open_file(segment.path, os.O_RDWR)
                try:
                    os.ftruncate(descriptor, size)
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            segment.file.write([SegmentHeader(start, size, self._now_us).encode()], 0)
            segment.file.sync()

    def _write_footer(self, name: str) -> None:
        """Write the footer of a segment that has ended. Do not write it if the segment has not
        ended yet, or if the footer does not fit into the segment."""
        with self._open_segment(name) as segment:
            damage: list[Damage] = []
            blocks, keys = block_tables(segment, damage.append)
            if damage:
                if damage[-1].reason == "unwritten":
                    _zero(segment, damage[-1].start, segment.end_offset)
                    segment.file.sync()
                return
            footer = encode_footer(segment.start_offset, blocks, keys)
            ends = [int(row["physical_offset"]) + int(row["size"]) for row in blocks]
            end_mark = max(ends, default=segment.first_offset)
            _zero(segment, end_mark + END_MARK_SIZE, segment.end_offset)
            if end_mark + END_MARK_SIZE + len(footer) <= segment.end_offset:
                segment.file.write([footer], segment.size - len(footer))
            segment.file.sync()

    def _write_gap(self, step: Step) -> None:
        with self._open_segment(step.name) as segment:
            for at, block in gap_blocks(step.start, step.end):
                segment.file.write([block], at - segment.start_offset)
            segment.file.sync()

    def _end_segment(self, step: Step) -> None:
        with self._open_segment(step.name) as segment:
            _zero(segment, step.start, step.end)
            segment.file.sync()
            mark = encode_end_mark(step.start)
            segment.file.write([mark], step.start - segment.start_offset)
            segment.file.sync()

    def _create_segment(self, start: int, end: int) -> None:
        """Create a sparse segment file whose footer lists no blocks."""
        path = self._path / "commitlog" / segment_name(start)
        footer = encode_footer(start, np.zeros(0, BLOCK_DTYPE), np.zeros(0, KEY_DTYPE))
        header = SegmentHeader(start, end - start, self._now_us).encode()
        mark = encode_end_mark(start + SEGMENT_HEADER_SIZE)
        unfinished = path.with_suffix(".new")
        write_file(unfinished, [header, mark], size=end - start)
        with os.fdopen(open_file(unfinished, os.O_RDWR), "r+b") as file:
            file.seek(end - start - len(footer))
            file.write(footer)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
        sync_directory(path.parent)

    def _renew_state(self, loss: Loss) -> None:
        state = self._open_state()
        try:
            changes: dict[bytes, bytes | None] = {DAMAGE: None, INCOMPLETE: None}
            by_topic = _read_accepted(state.records)
            for key in state.records:
                if parse_key(key)[0] == "lost":
                    changes[key] = None
            for each, reason in loss.lost:
                queues = by_topic.setdefault(each.topic_id, {})
                found = LostRange(each.start_offset, each.end_offset, reason, accepted=True)
                queues[each.queue] = with_lost(queues.get(each.queue, ()), found)
            for topic_id, queues in by_topic.items():
                changes[lost_key(topic_id)] = encode_lost(queues)
            state.commit_now(changes)
        finally:
            state.stop()

    def _repair_groups(self) -> None:
        """Drop the damaged rows of the groups' cursors, as the broker does at a start. Messages
        that these rows recorded as settled are delivered again."""
        directory = self._path / "state" / GROUPS_DIRECTORY
        try:
            store = CursorStore(directory, _STATE_MAP_BYTES)
            try:
                found = store.load()
                store.forget(found.damaged, found.headless)
            finally:
                store.stop()
        except CursorsCorrupt:
            set_aside(directory, self.copies / "state" / GROUPS_DIRECTORY)

    def _open_state(self) -> StateStore:
        """Open the state, and add missing records from the log, as the broker does at a start."""
        directory = self._path / "state"
        try:
            state = StateStore(directory, _STATE_MAP_BYTES)
        except StateCorrupt:
            set_aside(directory, self.copies / "state")
            state = StateStore(directory, _STATE_MAP_BYTES)
        if state.is_new or state.damaged:
            with self._open_log() as log:
                records, _ = state_in_log(log)
            known = state.records
            state.restore({key: value for key, value in records.items() if key not in known})
        return state

    # -- the log's files -------------------------------------------------------------------

    @contextmanager
    def _open_log(self) -> Iterator[CommitLog]:
        folder = self._path / "commitlog"
        log = CommitLog(folder, CommitLogConfig(), self._disk, now_us=lambda: self._now_us)
        log.open()
        try:
            yield log
        finally:
            log.close()

    @contextmanager
    def _open_segment(self, name: str) -> Iterator[Segment]:
        with self._open_log() as log:
            yield _find_segment(log, name)


def _zero(segment: Segment, start: int, end: int) -> None:
    """Fill the log from `start` to `end` (physical offsets) with zeros. Do not write chunks that
    are zero already."""
    for at in range(start, end, len(_ZEROS)):
        size = min(len(_ZEROS), end - at)
        if segment.read(at, size).count(0) != size:
            segment.file.write([_ZEROS[:size]], at - segment.start_offset)


def _find_segment(log: CommitLog, name: str) -> Segment:
    return next(segment for segment in log.segments if segment.path.name == name)


def _read_accepted(records: dict[bytes, bytes]) -> dict[int, dict[int, LostRanges]]:
    """Return the losses that earlier repairs recorded as accepted, by topic id and queue."""
    found: dict[int, dict[int, LostRanges]] = {}
    for key, value in records.items():
        kind, *rest = parse_key(key)
        if kind != "lost":
            continue
        for queue, ranges in decode_lost(value).items():
            accepted = tuple(each for each in ranges if each.accepted)
            if accepted:
                found.setdefault(int(rest[0]), {})[queue] = accepted
    return found
