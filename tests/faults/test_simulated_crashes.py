"""Crashes, kills and disk errors at any moment: nothing acknowledged is lost or comes twice,
nothing that a durable topic showed is taken back, and written mode loses only its end.

`TEST_SEEDS=1000 pytest tests/faults/test_simulated_crashes.py` tries more of them, from
TEST_FIRST_SEED on.
"""

import os
from pathlib import Path

import pytest

from tests.support.crash_run import run_seed

_FIRST = int(os.environ.get("TEST_FIRST_SEED", "0"))
_COUNT = int(os.environ.get("TEST_SEEDS", "30"))


@pytest.mark.parametrize("seed", range(_FIRST, _FIRST + _COUNT))
async def test_nothing_acknowledged_is_lost_whenever_the_disk_dies(
    seed: int, memory_path: Path
) -> None:
    await run_seed(seed, memory_path)
