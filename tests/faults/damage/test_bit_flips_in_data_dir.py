"""A flipped bit in any file of a data directory is survived or reported, and deletes nothing.
`TEST_FLIPS=10000 pytest -m fault` with this file tries more flips; the first has seed TEST_SEED."""

import asyncio
import os
import pickle
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.damage.damage_worker import DamageWorker
from tests.support.damage.damaged_directory import DamageViolation, make_directory
from tests.support.storage.small_log import flip_bit

_SEED = int(os.environ.get("TEST_SEED", "1"))
_FLIPS = os.environ.get("TEST_FLIPS", "150")
_COUNT = int(_FLIPS) if _FLIPS.isdigit() else 10_000


#: Weights of kinds of files in the draw; other kinds have weight 1.
_WEIGHTS = {"commitlog": 6, "consumequeue/data.mdb": 4, "state/data.mdb": 4}


def _kind(path: Path) -> str:
    """Return the kind of a file, given by its path in the data directory."""
    return "commitlog" if path.parts[0] == "commitlog" else str(path)


def _place(rng: random.Random, pristine: Path) -> tuple[Path, int]:
    """Draw a file and one of its bits, mostly from its part before the zeros."""
    kinds: dict[str, list[Path]] = {}
    for path in sorted(pristine.rglob("*")):
        if path.is_file() and path.stat().st_size:
            kinds.setdefault(_kind(path.relative_to(pristine)), []).append(path)
    weights = [_WEIGHTS.get(kind, 1) for kind in sorted(kinds)]
    path = rng.choice(kinds[rng.choices(sorted(kinds), weights)[0]])
    size = path.stat().st_size
    if rng.random() < 0.8:
        size = len(path.read_bytes().rstrip(b"\0")) or size
    return path.relative_to(pristine), rng.randrange(size * 8)


@pytest.mark.fault
@pytest.mark.timeout(3600 * 6)
def test_a_flipped_bit_anywhere_is_never_served_and_deletes_nothing(
    memory_path: Path, record_property: Callable[[str, object], None]
) -> None:
    pristine = memory_path / "pristine"
    truth = memory_path / "truth"
    truth.write_bytes(pickle.dumps(asyncio.run(make_directory(pristine))))
    outcomes: Counter[tuple[str, str]] = Counter()
    violations = []
    with DamageWorker(truth) as worker:
        for seed in range(_SEED, _SEED + _COUNT):
            path, bit = _place(random.Random(seed), pristine)
            data_dir = memory_path / "data"
            shutil.rmtree(data_dir, ignore_errors=True)
            shutil.copytree(pristine, data_dir)
            flip_bit(data_dir / path, bit // 8, bit % 8)
            try:
                outcome = worker.examine(data_dir)
            except DamageViolation as error:
                violations.append(f"seed {seed}, bit {bit} of {path}: {error}")
                print(violations[-1], flush=True)
            else:
                outcomes[_kind(path), outcome.split(":")[0]] += 1
            if (seed - _SEED) % 500 == 499:
                print(f"seeds {_SEED} to {seed}: {dict(outcomes)}", flush=True)
    record_property("seeds", f"{_SEED} to {_SEED + _COUNT}")
    record_property("outcomes", dict(outcomes))
    assert not violations, f"{len(violations)} of {_COUNT}: {violations[:3]}"
