"""Defects planted on purpose, each a shortcut that a broker might take: the simulated crashes
must refuse every one of them, or that they pass says nothing."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.commitlog import log_scan, recovery
from holdfast.commitlog.batch import Batch
from holdfast.commitlog.batch_header import Buffer
from holdfast.commitlog.syncer import Syncer
from holdfast.consumequeue.index import Index
from holdfast.consumequeue.reput import ReputService
from tests.support.crash_run import OPERATIONS, CrashRun, Operations, run_seed
from tests.support.history import HistoryViolation
from tests.support.simulated_process import BrokerViolation

#: A defect that so many runs do not show is taken for one that no run shows.
MOST_SEEDS = 60


def _acknowledge_without_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Syncer, "_sync", lambda self, mark: None)


def _index_what_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    commit = ReputService.commit
    patch.setattr(ReputService, "commit", lambda self, durable_offset: commit(self, 2**63))


def _index_position_before_entries(patch: pytest.MonkeyPatch) -> None:
    commit = Index.commit
    held_back: dict[int, Any] = {}

    def commit_apart(self: Index, units: Any, position: Any, producers: Any = ()) -> None:
        commit(self, held_back.pop(id(self), ()), position, producers)
        held_back[id(self)] = units

    patch.setattr(Index, "commit", commit_apart)


def _trust_the_page_cache(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "_write_again", lambda log, durable: None)


def _recover_without_payload_crc(patch: pytest.MonkeyPatch) -> None:
    def decode(block: Buffer, *, verify_payload: bool) -> Batch:
        return Batch.decode(block, verify_payload=False)

    patch.setattr(log_scan, "Batch", SimpleNamespace(decode=decode))


def _cut_without_zeros(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "_cut", lambda log, offset: 0)


Plant = Callable[[pytest.MonkeyPatch], None]

_FAILING_DISK: Operations = {
    CrashRun.publish: 4,
    CrashRun.publish_on: 4,
    CrashRun.fail_sync: 2,
    CrashRun.consume: 2,
    CrashRun.crash: 1,
}

#: What is planted, and the operations that meet it soonest.
DEFECTS: dict[str, tuple[Plant, Operations]] = {
    "acknowledged without sync": (_acknowledge_without_sync, OPERATIONS),
    "indexed beyond the durable mark": (_index_what_is_not_durable, OPERATIONS),
    "index position committed before its entries": (_index_position_before_entries, OPERATIONS),
    "page cache trusted after a failed sync": (_trust_the_page_cache, _FAILING_DISK),
    "recovered without payload CRC": (_recover_without_payload_crc, OPERATIONS),
    "cut without zeros": (_cut_without_zeros, {CrashRun.crash_and_overwrite: 1}),
}


@pytest.mark.planted
@pytest.mark.parametrize("defect", DEFECTS)
async def test_a_planted_defect_is_refused(
    defect: str,
    memory_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    plant, operations = DEFECTS[defect]
    plant(monkeypatch)
    for seed in range(MOST_SEEDS):
        try:
            await run_seed(seed, memory_path / str(seed), operations=operations)
        except (BrokerViolation, HistoryViolation) as violation:
            record_property("refused", f"seed {seed}: {violation}")
            return
    pytest.fail(f"{MOST_SEEDS} runs did not notice: {defect}")
