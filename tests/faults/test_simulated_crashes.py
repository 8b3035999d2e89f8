"""Simulated crashes, kills and disk errors at any moment.

Nothing acknowledged is lost or duplicated, no message that a durable topic delivered is taken back,
and written mode loses only its end. The daily tests run a few seeds. The fault tier runs the first
TEST_SEEDS, or as many as fit into TEST_SEED_SECONDS: the same seeds in every run. `make campaign`
runs many new seeds. For a certain seed: `TEST_FIRST_SEED=N TEST_SEEDS=1 pytest -s -m fault` with
this file.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.simulation.crash_run import run_seed
from tests.support.simulation.seed_runs import SeedRuns, run_seeds
from tests.support.storage.memory_folder import folder_in_memory

_FIRST = int(os.environ.get("TEST_FIRST_SEED", "0"))
_COUNT = int(os.environ.get("TEST_SEEDS", "12"))
_SECONDS = float(os.environ.get("TEST_SEED_SECONDS", "240"))
#: From this many runs on, at least one must lose messages in written mode; otherwise the runs prove
#: nothing about such losses.
_ENOUGH_RUNS = 20
#: More bytes than all runs at once have in files.
_NEEDED_BYTES = 512 * 1024 * 1024


@pytest.mark.parametrize("seed", range(_FIRST, _FIRST + min(_COUNT, 25)))
async def test_nothing_acknowledged_is_lost_whenever_the_disk_dies(
    seed: int, memory_path: Path
) -> None:
    await run_seed(seed, memory_path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> SeedRuns:
    """Seeded runs; the tests below check all of them."""
    base = folder_in_memory(_NEEDED_BYTES) or tmp_path_factory.mktemp("seeds")
    first = int(os.environ.get("TEST_FIRST_SEED", "1"))
    count = int(os.environ.get("TEST_SEEDS", "200"))
    return run_seeds(first, count, _SECONDS, base)


@pytest.mark.fault
@pytest.mark.machine
@pytest.mark.timeout(3600 * 2)
def test_no_seed_shows_a_loss(
    runs: SeedRuns, record_property: Callable[[str, object], None]
) -> None:
    print(runs.summary)
    record_property("runs", runs.summary)
    assert not runs.failures, "\n".join([*runs.failures.values(), runs.summary])
    assert runs.totals.runs > 0


@pytest.mark.fault
@pytest.mark.machine
def test_written_mode_loses_by_power_loss_alone_and_then_its_end(runs: SeedRuns) -> None:
    """Each run itself checks that only the end was lost, and that no kill lost anything."""
    if runs.totals.runs < _ENOUGH_RUNS:
        pytest.skip(f"{runs.totals.runs} runs do not show it for sure")
    assert runs.totals.lost_written > 0
    assert runs.totals.kills_unsynced > 0
