"""Fuzzing for a while, each target in a process of its own. TEST_SECONDS is how long each."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.__main__ import TARGETS

ROOT = Path(__file__).parents[2]
SECONDS = {"batches": 60, "filters": 60, "recovery": 60, "requests": 45, "records": 15}


@pytest.mark.fault
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", TARGETS)
def test_nothing_is_found_that_a_reader_should_not_do(name: str, tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris, of the extra `fuzz`, is not installed")
    seconds = int(os.environ.get("TEST_SECONDS", SECONDS[name]))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.fuzz", name),
            *("--seconds", str(seconds), "--findings", str(tmp_path)),
        ],
        cwd=ROOT,
        capture_output=True,
        timeout=seconds + 120,
        check=False,
    )
    said = done.stderr.decode(errors="replace")
    assert done.returncode == 0, said[-6000:]
    assert "stat::number_of_executed_units" in said
    assert not list(tmp_path.iterdir())
