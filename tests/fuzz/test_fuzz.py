"""Fuzz each target in a process for at most TEST_SECONDS, with the same inputs for a TEST_SEED."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fuzz.__main__ import TARGETS

ROOT = Path(__file__).parents[2]
SECONDS = 90
#: The numbers of inputs that take about half a minute of one core. `make campaign` tries other
#: inputs, for minutes.
RUNS = {
    "amqp_frames": 40_000,
    "amqp_messages": 250_000,
    "batches": 40_000,
    "filters": 40_000,
    "recovery": 2_000,
    "requests": 15_000,
    "records": 1_000_000,
    "websockets": 20_000,
}

Runs = Mapping[str, "Future[subprocess.CompletedProcess[bytes]]"]


def _fuzz(name: str, findings: Path) -> subprocess.CompletedProcess[bytes]:
    seconds = int(os.environ.get("TEST_SECONDS", SECONDS))
    return subprocess.run(
        [
            *(sys.executable, "-m", "tests.fuzz", name),
            *("--seconds", str(seconds), "--findings", str(findings)),
            *("--runs", str(RUNS[name])),
            *("--seed", os.environ.get("TEST_SEED", "1")),
        ],
        cwd=ROOT,
        # The fuzzer ends its process without clean-up, so its temporary files go here.
        env={**os.environ, "TMPDIR": str(findings)},
        capture_output=True,
        timeout=seconds + 180,
        check=False,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Start every target; each test waits for its own."""
    pytest.importorskip("atheris", reason="atheris, of the extra `fuzz`, is not installed")
    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(_fuzz, name, tmp_path_factory.mktemp(name)) for name in TARGETS}


@pytest.mark.fault
@pytest.mark.machine
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", TARGETS)
def test_nothing_is_found_that_a_reader_should_not_do(name: str, runs: Runs) -> None:
    done = runs[name].result()
    said = done.stderr.decode(errors="replace")
    assert done.returncode == 0, said[-6000:]
    assert "stat::number_of_executed_units" in said
