"""The part of a check that walks the log: every block, every footer, and the gaps in between."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

import numpy as np

from holdfast.check.queue_cover import Evidence, QueueCover, lost_at, lost_in
from holdfast.check.report import CheckReport, DamagedPlace, LostOffsets, Offsets
from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_check import LimitExceeded, MessageLimits, check_batch
from holdfast.commitlog.format.batch_header import BatchHeader
from holdfast.commitlog.format.gap_block import GAP_TOPIC_ID
from holdfast.commitlog.format.segment_format import end_offset
from holdfast.commitlog.segments.commit_log import CommitLog
from holdfast.commitlog.segments.footer import block_tables, read_footer
from holdfast.commitlog.segments.log_scan import Damage, scan_log
from holdfast.commitlog.segments.segment import Segment, read_trailer
from holdfast.consumequeue.state.topic_table import TopicTable
from holdfast.consumequeue.topics import STATE_TOPIC_ID, QueueKey

_NO_LIMITS = MessageLimits(2**31, 2**31, 2**31, 2**31)

_RESTORE_FILE = "restore the file from a backup; 'holdfast repair' reports what is lost without it"
_REWRITE = "nothing to do; 'holdfast repair' rewrites it"


@dataclass
class LogCheck:
    """One scan of the log. `on_block` receives each intact block's header, in log order."""

    report: CheckReport
    log: CommitLog
    table: TopicTable
    accepted: Mapping[QueueKey, list[Offsets]]
    deep: bool
    progress: Callable[[int, int], None]
    on_block: Callable[[BatchHeader], None] = lambda header: None
    evidence: list[Evidence] = field(default_factory=list)
    reported: set[QueueKey] = field(default_factory=set)
    """Queues whose missing messages are already reported, because the index has their entries."""
    _timestamps: dict[QueueKey, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        begins = {
            (topic_id, queue): begin
            for topic_id, queues in self.table.kept.items()
            for queue, begin in queues.items()
        }
        self.cover = QueueCover(begins)

    # -- the walk --------------------------------------------------------------------------

    def walk(self, durable: int, limit: int | None) -> None:
        """Check every block. `durable` is a physical offset up to which the log is known to be
        durable. If a broker is running, `limit` is the physical offset where the walk ends."""
        report, log = self.report, self.log
        start = log.min_offset
        total = sum(segment.size for segment in log.segments)
        # From the first damage on, blocks and damage wait here until a later block proves that they
        # were durable, as in recovery. What remains unproven does not count, because the next start
        # cuts it off.
        unproven: deque[tuple[Segment, Batch | Damage]] = deque()
        for segment, found in scan_log(log.segments, start, verify_payload=self.deep):
            at = found.start if isinstance(found, Damage) else found.header.physical_offset
            if limit is not None and at >= limit:
                break
            unproven.append((segment, found))
            if isinstance(found, Batch):
                durable = max(durable, found.header.durable_offset)
                self.progress(at - start, total)
            while unproven and _is_certain(unproven[0][1], durable):
                self._report_block(*unproven.popleft())
        hole = next((found for _, found in unproven if _is_hole(found)), None)
        if hole is not None:
            self._report_segments_after(hole)
        for segment, found in unproven:
            if found is hole:
                break
            if isinstance(found, Damage) and found.reason != "unwritten":
                report.note(
                    f"commitlog/{segment.path.name}",
                    f"{found.reason} at {found.start}: a torn tail; the next start cuts it, it was "
                    "never acknowledged as durable",
                    "torn-tail",
                    start=found.start - segment.start_offset,
                )
        torn = unproven[0][1] if unproven else None
        cut = torn.start if isinstance(torn, Damage) else limit
        for segment in log.segments:
            if cut is None or segment.end_offset <= cut:
                self._check_footer(segment)

    def _report_segments_after(self, hole: Damage) -> None:
        for segment in self.log.segments:
            if segment.start_offset >= hole.end:
                self.report.damage(
                    f"commitlog/{segment.path.name}",
                    "a file before it is missing, which no crash causes: no file has the log from "
                    f"{hole.start} to {hole.end}",
                    "segment-behind-hole",
                    mend="restore the missing file from a backup; 'holdfast repair' moves this one "
                    "to the folder 'repaired'",
                )

    def _report_block(self, segment: Segment, found: Batch | Damage) -> None:
        if isinstance(found, Damage):
            is_missing = found.reason == "missing-segment"
            name = None if is_missing else segment.path.name
            self.report.places.append(
                DamagedPlace(name, found.start, found.end, found.reason, found.header)
            )
            if found.header is not None:
                self._add_evidence(found.header)
            return
        self._check_block(found)
        self.on_block(found.header)

    def _add_evidence(self, header: BatchHeader) -> None:
        key = (header.topic_id, header.queue_id)
        offsets = (header.base_offset, header.end_offset)
        self.evidence.append(Evidence(key, offsets, header.physical_offset))

    def _check_block(self, batch: Batch) -> None:
        report, header = self.report, batch.header
        report.blocks += 1
        if header.topic_id == GAP_TOPIC_ID:
            return
        if header.topic_id != STATE_TOPIC_ID:
            report.messages += header.message_count
        report.bytes += header.total_size
        where = f"block {header.physical_offset}"
        if self.deep:
            try:
                check_batch(batch, _NO_LIMITS)
            except (CorruptBatch, LimitExceeded) as error:
                report.damage(where, error, "block-columns", mend=_RESTORE_FILE)
        key = (header.topic_id, header.queue_id)
        end = self.cover.ends.get(key)
        if end is not None and header.base_offset < end:
            what = f"{self.name(key)} continues at {header.base_offset}, not at {end}"
            report.damage(where, what, "offsets-twice", mend=_RESTORE_FILE)
        if header.store_timestamp_us < self._timestamps.get(key, 0):
            what = f"the timestamps of {self.name(key)} decrease"
            report.damage(where, what, "time-back", mend=_RESTORE_FILE)
        self._timestamps[key] = header.store_timestamp_us
        self.cover.add(key, header.base_offset, header.end_offset, header.physical_offset)

    # -- footers ---------------------------------------------------------------------------

    def _check_footer(self, segment: Segment) -> None:
        where = f"commitlog/{segment.path.name}"
        note = self.report.note
        try:
            if read_trailer(segment) is None:
                return
        except CorruptBatch as error:
            note(where, f"{error}; no message is lost", "segment-footer", mend=_REWRITE)
            return
        tables = read_footer(segment)
        if tables is None:
            what = "its footer is damaged; no message is lost"
            note(where, what, "segment-footer", mend=_REWRITE)
            return
        damaged = [
            place
            for place in self.report.places
            if segment.start_offset <= place.start < segment.end_offset
        ]
        if damaged:
            for row in tables[0]:
                at = int(row["physical_offset"])
                if any(place.start <= at < place.end for place in damaged):
                    key = (int(row["topic_id"]), int(row["queue_id"]))
                    offsets = (int(row["base_offset"]), end_offset(row))
                    self.evidence.append(Evidence(key, offsets, at))
            return  # damaged blocks: what the footer should describe is unknown
        if not self.deep:
            return
        blocks, keys = block_tables(segment)
        if not (np.array_equal(blocks, tables[0]) and np.array_equal(keys, tables[1])):
            what = "its footer does not describe its blocks"
            mend = "'holdfast repair' rewrites it; no message is lost"
            self.report.damage(where, what, "segment-footer", mend=mend)

    # -- the loss --------------------------------------------------------------------------

    def conclude(self, known_ends: Mapping[QueueKey, int]) -> None:
        """Report the damage and the lost messages. Call this last. `known_ends` are the ends of
        queues that the index and the state have recorded."""
        report = self.report
        ends = dict(known_ends)
        for each in self.evidence:
            ends[each.key] = max(ends.get(each.key, 0), each.offsets[1])
        ends = {key: end for key, end in ends.items() if self._is_of_topic(key)}
        self.cover.end_at(ends)
        holes = [hole for hole in self.cover.holes if self._is_of_topic(hole.key)]
        report.lost = lost_in(holes, self.accepted)
        report.ends = {key: end for key, end in self.cover.ends.items() if self._is_of_topic(key)}
        report.queues = len(self.cover.ends)
        explained: set[tuple[QueueKey, Offsets]] = set()
        for place in report.places:
            lost = lost_at(place, report.lost, self.evidence, holes)
            explained.update(lost)
            self._report_place(place, lost)
        for hole in holes:
            for offsets in report.lost.get(hole.key, []):
                if hole.offsets[0] <= offsets[0] and offsets[1] <= hole.offsets[1]:
                    self._report_hole(hole.key, offsets, hole.low, (hole.key, offsets) in explained)

    def _report_place(self, place: DamagedPlace, lost: list[tuple[QueueKey, Offsets]]) -> None:
        size = place.end - place.start
        if place.name is None:
            where = "commitlog"
            what = f"{place.reason}: no file has the log from {place.start} to {place.end}"
            start = end = None
        else:
            where = f"commitlog/{place.name}"
            start = place.start - int(place.name)
            end = place.end - int(place.name)
            what = (
                f"{place.reason}: no intact block in bytes {start} to {end}, "
                f"{size} bytes of the log below its durable offset"
            )
        self.report.damage(
            where,
            what,
            place.reason,
            mend=_RESTORE_FILE,
            start=start,
            end=end,
            lost=tuple(self._describe_lost(key, offsets) for key, offsets in lost),
        )

    def _report_hole(self, key: QueueKey, offsets: Offsets, low: int, is_explained: bool) -> None:
        if is_explained or key in self.reported:
            return
        begin, end = offsets
        if not low:
            what = f"begins at {end}, not at {begin}"
        elif end == self.cover.ends.get(key):
            what = f"ends at {begin}, not at {end}"
        else:
            what = f"continues at {end}, not at {begin}"
        self.report.damage(
            self.name(key),
            what,
            "missing-messages",
            mend=_RESTORE_FILE,
            lost=(self._describe_lost(key, offsets),),
        )

    def _is_of_topic(self, key: QueueKey) -> bool:
        return key[0] != STATE_TOPIC_ID and self.table.by_id(key[0]) is not None

    def _describe_lost(self, key: QueueKey, offsets: Offsets) -> LostOffsets:
        topic = self.table.by_id(key[0])
        return LostOffsets(None if topic is None else topic.name, *key, *offsets)

    def name(self, key: QueueKey) -> str:
        """Return a queue's name for messages to people."""
        topic = self.table.by_id(key[0])
        return f"queue {key[1]} of {repr(topic.name) if topic else f'topic id {key[0]}'}"


def _is_hole(found: Batch | Damage) -> TypeGuard[Damage]:
    return isinstance(found, Damage) and found.reason == "missing-segment"


def _is_certain(found: Batch | Damage, durable: int) -> bool:
    return isinstance(found, Batch) or found.start < durable
