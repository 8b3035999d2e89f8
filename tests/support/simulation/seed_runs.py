"""Run many seeds in parallel, with one process per core, until all are done or the time is over."""

import asyncio
import logging
import multiprocessing
import os
import shutil
import tempfile
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from holdfast.commitlog.segments import commit_log
from tests.support.simulation.crash_run import run_seed
from tests.support.simulation.simulated_broker import Totals


@dataclass(slots=True)
class SeedRuns:
    """The results of the runs."""

    first_seed: int
    totals: Totals = field(default_factory=Totals)
    failures: dict[int, str] = field(default_factory=dict)
    """The end of the traceback of each failed seed."""

    @property
    def summary(self) -> str:
        """One line with the seeds and the totals."""
        last = self.first_seed + self.totals.runs + len(self.failures) - 1
        return f"seeds {self.first_seed} to {last}: {self.totals}, failed {sorted(self.failures)}"


def run_seeds(first_seed: int, count: int, most_s: float, base: Path) -> SeedRuns:
    """Run `count` seeds from `first_seed` on; start none after `most_s` seconds."""
    runs = SeedRuns(first_seed)
    ends_at = time.monotonic() + most_s
    seeds = iter(range(first_seed, first_seed + count))
    context = multiprocessing.get_context("spawn")
    workers = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        waiting = {pool.submit(_run, seed, base) for seed in islice(seeds, workers)}
        while waiting:
            done = next(as_completed(waiting))
            waiting.remove(done)
            seed, found = done.result()
            if isinstance(found, Totals):
                runs.totals.add(found)
            else:
                runs.failures[seed] = found
            if time.monotonic() < ends_at:
                waiting |= {pool.submit(_run, seed, base) for seed in islice(seeds, 1)}
    return runs


def _run(seed: int, base: Path) -> tuple[int, Totals | str]:
    """Run one seed in a process of the pool."""
    logging.disable(logging.CRITICAL)  # every fault is on purpose
    commit_log.DISK_FULL_RETRY_S = 0.0  # the test decides when the disk has room again
    directory = Path(tempfile.mkdtemp(prefix=f"seed-{seed}-", dir=base))
    try:
        return seed, asyncio.run(run_seed(seed, directory)).totals
    except BaseException:
        return seed, traceback.format_exc()[-3000:]
    finally:
        shutil.rmtree(directory, ignore_errors=True)
