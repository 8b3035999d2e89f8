"""Simulated crashes, or the smallest check of a promise, must detect each planted defect."""

import asyncio
import contextlib
import copy
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from holdfast.commitlog.append.producer_sequences import ProducerSequences
from holdfast.commitlog.append.syncer import Syncer
from holdfast.commitlog.disk import data_dir, disk
from holdfast.commitlog.format import header_table
from holdfast.commitlog.format.batch import Batch, iter_batches
from holdfast.commitlog.format.batch_header import Buffer
from holdfast.commitlog.format.segment_format import (
    BLOCK_DTYPE,
    KEY_DTYPE,
    Blocks,
    FooterTrailer,
    Keys,
)
from holdfast.commitlog.segments import commit_log, footer, log_scan, recovery
from holdfast.commitlog.segments.commit_log import CommitLog
from holdfast.commitlog.segments.segment import Segment
from holdfast.consumequeue.index.reput import IndexCommitter, ReputService
from holdfast.consumequeue.lmdb_env import env
from holdfast.groups.cursor.cursor import Cursor
from holdfast.groups.cursor.settled_offsets import SettledOffsets
from holdfast.groups.serving import dead_letters
from holdfast.holdservice.pull_request_hold_service import HoldResult, PullRequestHoldService
from holdfast.http_api.endpoints import publish_batches
from tests.faults import planted_checks as checks
from tests.support.damage import defective_program as defects
from tests.support.histories.history import HistoryViolation
from tests.support.simulation.crash_run import OPERATIONS, CrashRun, Operations, run_seed
from tests.support.simulation.simulated_process import BrokerViolation

#: Give up after this many runs: the defect then counts as not detected.
MOST_SEEDS = 60


def _index_what_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    commit = IndexCommitter.commit
    patch.setattr(IndexCommitter, "commit", lambda self, durable_offset: commit(self, 2**63))


def _trust_the_page_cache(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "_write_again", lambda log, durable: None)


def _recover_without_payload_crc(patch: pytest.MonkeyPatch) -> None:
    def decode(block: Buffer, *, verify_payload: bool) -> Batch:
        return Batch.decode(block, verify_payload=False)

    patch.setattr(log_scan, "Batch", SimpleNamespace(decode=decode))
    patch.setattr(header_table, "_count_of_payloads", lambda data, starts, table: len(table))


def _cut_without_zeros(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "_cut", lambda log, offset: 0)


def _acknowledge_before_writing(patch: pytest.MonkeyPatch) -> None:
    """Write acknowledged messages only with the next append."""
    append = CommitLog.append
    held_back: dict[int, tuple[Segment, list[bytes], int]] = {}

    def append_later(self: CommitLog, buffers: Any, headers: Any) -> None:
        for segment, data, position in [held_back.pop(id(self))] if id(self) in held_back else []:
            segment.file.write(data, position)
        active = self.segments[-1]
        position = active.written - active.start_offset
        held_back[id(self)] = active, [bytes(buffer) for buffer in buffers], position
        append(self, [b""] * len(buffers), headers)
        self.newest.add(headers, buffers)

    patch.setattr(CommitLog, "append", append_later)


def _show_before_durable(patch: pytest.MonkeyPatch) -> None:
    index_block = ReputService._index_block

    def index_at_once(self: ReputService, header: Any, advanced: Any, **how: Any) -> None:
        index_block(self, header, advanced, visible=True)

    patch.setattr(ReputService, "_index_block", index_at_once)


def _forget_the_idempotence_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerSequences, "restore", lambda self, key, state: None)


def _pass_over_a_failed_removal(patch: pytest.MonkeyPatch) -> None:
    """Remove a segment from the list although its file could not be deleted."""

    def delete_before(self: CommitLog, physical_offset: int) -> list[Segment]:
        row = self.segments
        gone = [segment for segment in row[:-1] if segment.end_offset <= physical_offset]
        self.segments = row[len(gone) :]
        for segment in gone:
            self._disk.remove(segment.path)
        return gone

    patch.setattr(CommitLog, "delete_before", delete_before)


def _try_a_failed_sync_again(patch: pytest.MonkeyPatch) -> None:
    """Repeat a failed sync: the kernel reports success the second time, but the pages are lost."""
    patch.setattr(Segment, "sync", lambda self: self.file.sync())

    def sync_twice(self: Syncer, mark: int) -> None:
        for segment in self._log.segments:
            with contextlib.suppress(OSError):
                segment.sync()
                continue
            segment.sync()

    patch.setattr(Syncer, "_sync", sync_twice)


def _recheck_before_registering(patch: pytest.MonkeyPatch) -> None:
    hold = PullRequestHoldService.hold

    async def hold_late(self: PullRequestHoldService, waits: Any, **how: Any) -> HoldResult:
        ends = {key: self._max_offset(key) for key in waits}
        await asyncio.sleep(0)
        stale = copy.copy(self)
        stale._max_offset = ends.get
        return await hold(stale, waits, **how)

    patch.setattr(PullRequestHoldService, "hold", hold_late)


def _read_without_payload_crc(patch: pytest.MonkeyPatch) -> None:
    def decode(block: Buffer) -> Batch:
        return Batch.decode(block, verify_payload=False)

    patch.setattr(commit_log, "Batch", SimpleNamespace(decode=decode))


def _take_in_without_payload_crc(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(publish_batches, "iter_batches", partial(iter_batches, verify_payload=False))


def _trust_footers(patch: pytest.MonkeyPatch) -> None:
    def decode_footer(trailer: FooterTrailer, tables: Buffer) -> tuple[Blocks, Keys]:
        split = trailer.block_count * BLOCK_DTYPE.itemsize
        return np.frombuffer(tables[:split], BLOCK_DTYPE), np.frombuffer(tables[split:], KEY_DTYPE)

    patch.setattr(footer, "decode_footer", decode_footer)


def _cut_below_the_durable_mark(patch: pytest.MonkeyPatch) -> None:
    """Ignore the durable offset in blocks, which says how far the log was durable."""

    def scan(segments: Any, start: int) -> Any:
        for segment, found in log_scan.scan_runs(segments, start):
            if not isinstance(found, log_scan.Damage):
                headers = found.headers.copy()
                headers["durable_offset"] = 0
                found = header_table.Run(headers, found.publishes)
            yield segment, found

    patch.setattr(recovery, "scan_runs", scan)


def _leave_directories_unsynced(patch: pytest.MonkeyPatch) -> None:
    for module in (disk, data_dir, env):
        patch.setattr(module, "sync_directory", lambda directory: None)


def _deliver_beyond_the_reserve(patch: pytest.MonkeyPatch) -> None:
    """Deliver messages without recording before that they may have been delivered."""

    def reach(self: Cursor, offset: int) -> None:
        self.next = max(self.next, offset + 1)

    patch.setattr(Cursor, "reach", reach)


def _keep_what_was_settled_beyond_the_end(patch: pytest.MonkeyPatch) -> None:
    restore = SettledOffsets.restore
    patch.setattr(
        SettledOffsets, "restore", lambda floor, chunks, end: restore(floor, chunks, 1 << 62)
    )


def _send_letters_under_no_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dead_letters, "keyed_producer_id", lambda key, purpose, name: 0)


Plant = Callable[[pytest.MonkeyPatch], None]
Check = Callable[[Path], Awaitable[None]]

_FAILING_DISK: Operations = {
    CrashRun.publish: 4,
    CrashRun.publish_on: 4,
    CrashRun.fail_sync: 2,
    CrashRun.consume: 2,
    CrashRun.crash: 1,
}
_SLOW_DISK: Operations = {
    CrashRun.publish: 1,
    CrashRun.publish_on: 4,
    CrashRun.hold_syncs: 4,
    CrashRun.consume: 4,
    CrashRun.crash: 2,
}
_KILLS: Operations = {CrashRun.publish: 4, CrashRun.publish_on: 2, CrashRun.kill: 1}
_RETRIES: Operations = {CrashRun.publish_on: 4, CrashRun.quiesce: 1, CrashRun.kill: 2}
_FAILING_RETENTION: Operations = {
    CrashRun.publish: 6,
    CrashRun.fail_trim: 2,
    CrashRun.trim: 2,
    CrashRun.kill: 1,
}

_MEMBERS: Operations = {
    CrashRun.publish: 6,
    CrashRun.receive: 6,
    CrashRun.settle: 4,
    CrashRun.settle_on: 2,
    CrashRun.let_time_pass: 1,
    CrashRun.hold_syncs: 1,
    CrashRun.kill: 1,
    CrashRun.crash: 1,
}

#: Each defect, and what detects it: crashes in runs of these operations, or a check.
DEFECTS: dict[str, tuple[Plant, Operations | Check]] = {
    "acknowledged without sync": (defects.acknowledge_without_sync, OPERATIONS),
    "acknowledged before it is written": (_acknowledge_before_writing, _KILLS),
    "shown before it is durable": (_show_before_durable, _SLOW_DISK),
    "indexed beyond the durable mark": (_index_what_is_not_durable, OPERATIONS),
    "index position committed before its entries": (defects.commit_position_first, OPERATIONS),
    "idempotence window not restored": (_forget_the_idempotence_window, _RETRIES),
    "failed sync tried again": (_try_a_failed_sync_again, _FAILING_DISK),
    "page cache trusted after a failed sync": (_trust_the_page_cache, _FAILING_DISK),
    "recovered without payload CRC": (_recover_without_payload_crc, OPERATIONS),
    "cut without zeros": (_cut_without_zeros, {CrashRun.crash_and_overwrite: 1}),
    "failed removal passed over": (_pass_over_a_failed_removal, _FAILING_RETENTION),
    "settled without a commit": (defects.settle_without_commit, _MEMBERS),
    "leases forgotten": (defects.forget_leases, _MEMBERS),
    "delivered beyond the reserve": (_deliver_beyond_the_reserve, _MEMBERS),
    "settled beyond the end of the log": (_keep_what_was_settled_beyond_the_end, _MEMBERS),
    "dead letters without a name": (_send_letters_under_no_name, _MEMBERS),
    "recheck before registration": (_recheck_before_registering, checks.no_wake_up_is_lost),
    "read without payload CRC": (_read_without_payload_crc, checks.no_flipped_bit_is_served),
    "taken in without payload CRC": (
        _take_in_without_payload_crc,
        checks.no_flipped_bit_is_taken_in,
    ),
    "footer trusted unchecked": (_trust_footers, checks.no_flipped_footer_is_believed),
    "cut below the durable mark": (_cut_below_the_durable_mark, checks.nothing_durable_is_cut),
    "directories not synced": (_leave_directories_unsynced, checks.every_name_is_durable),
}


#: Where the search begins: no run with an earlier seed notices this defect.
FIRST_SEEDS = {"dead letters without a name": 59}

#: Defects that take long to detect.
_SLOW = {
    "shown before it is durable",
    "idempotence window not restored",
    "failed sync tried again",
    "failed removal passed over",
    "settled beyond the end of the log",
}


@pytest.mark.planted
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "defect",
    [
        pytest.param(defect, marks=[pytest.mark.fault] if defect in _SLOW else [])
        for defect in DEFECTS
    ],
)
async def test_a_planted_defect_is_refused(
    defect: str,
    memory_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    plant, catcher = DEFECTS[defect]
    plant(monkeypatch)
    if isinstance(catcher, Mapping):
        refused = await _refused_by_crashes(catcher, memory_path, FIRST_SEEDS.get(defect, 0))
    else:
        refused = await _refused_by_check(catcher, memory_path)
    if refused is None:
        pytest.fail(f"nothing notices: {defect}")
    print(f"{defect}: refused by {refused}")
    record_property("refused", refused)


async def _refused_by_crashes(operations: Operations, directory: Path, first: int) -> str | None:
    for seed in range(first, first + MOST_SEEDS):
        try:
            await run_seed(seed, directory / str(seed), operations=operations)
        except (BrokerViolation, HistoryViolation) as violation:
            return f"simulated crashes, seed {seed}: {str(violation)[:200]}"
    return None


async def _refused_by_check(check: Check, directory: Path) -> str | None:
    try:
        await check(directory)
    except AssertionError as violation:
        return f"{check.__name__}: {str(violation)[:200]}"
    return None


@pytest.mark.parametrize(
    "check", [each for _, each in DEFECTS.values() if not isinstance(each, Mapping)]
)
async def test_without_a_defect_its_check_passes(check: Check, memory_path: Path) -> None:
    await check(memory_path)
