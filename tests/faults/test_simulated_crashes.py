"""Crashes, kills and disk errors at any moment: nothing acknowledged is lost or comes twice,
nothing that a durable topic showed is taken back, and written mode loses only its end.

The tests of every day run a few seeds; the fault tier the first TEST_SEEDS, or as many as fit into
TEST_SEED_SECONDS: the same in every run. New ones, by hand:
`TEST_FIRST_SEED=$(date +%s)000 TEST_SEEDS=100000 TEST_SEED_SECONDS=3600 pytest -s -m fault` with
this file.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.crash_run import run_seed
from tests.support.memory_folder import folder_in_memory
from tests.support.seed_runs import SeedRuns, run_seeds

_FIRST = int(os.environ.get("TEST_FIRST_SEED", "0"))
_COUNT = int(os.environ.get("TEST_SEEDS", "25"))
_SECONDS = float(os.environ.get("TEST_SEED_SECONDS", "240"))
#: A run of which written mode lost nothing at all would prove nothing of what it may lose.
_ENOUGH_RUNS = 20
#: More than all runs at once have in files.
_NEEDED_BYTES = 512 * 1024 * 1024


@pytest.mark.parametrize("seed", range(_FIRST, _FIRST + min(_COUNT, 25)))
async def test_nothing_acknowledged_is_lost_whenever_the_disk_dies(
    seed: int, memory_path: Path
) -> None:
    await run_seed(seed, memory_path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> SeedRuns:
    """Seeded runs, all of which the tests below judge."""
    base = folder_in_memory(_NEEDED_BYTES) or tmp_path_factory.mktemp("seeds")
    first = int(os.environ.get("TEST_FIRST_SEED", "1"))
    count = int(os.environ.get("TEST_SEEDS", "600"))
    return run_seeds(first, count, _SECONDS, base)


@pytest.mark.fault
@pytest.mark.timeout(3600 * 2)
def test_no_seed_shows_a_loss(
    runs: SeedRuns, record_property: Callable[[str, object], None]
) -> None:
    print(runs.summary)
    record_property("runs", runs.summary)
    assert not runs.failures, "\n".join([*runs.failures.values(), runs.summary])
    assert runs.totals.runs > 0


@pytest.mark.fault
def test_written_mode_loses_by_power_loss_alone_and_then_its_end(runs: SeedRuns) -> None:
    """That it was the end, and that no kill took anything, is judged in each run."""
    if runs.totals.runs < _ENOUGH_RUNS:
        pytest.skip(f"{runs.totals.runs} runs do not show it for sure")
    assert runs.totals.lost_written > 0
    assert runs.totals.kills_unsynced > 0
