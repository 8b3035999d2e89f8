"""Every call on every file fails once: the broker recovers by itself or reports what helps. `python
-m tests.support.damage.call_faults` prints the table that docs/reliability.md discusses."""

import random
from pathlib import Path

import pytest

from tests.support.damage.call_faults import Case, Row, all_cases, batch_of, run, table
from tests.support.damage.system_faults import need_strace

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]

_SAMPLE = 8


def test_a_sample_of_the_table(memory_path: Path) -> None:
    need_strace()
    seed = random.randrange(2**32)
    cases = random.Random(seed).sample(all_cases(), _SAMPLE)
    rows: list[Row] = []
    while cases:
        batch = batch_of(cases)
        cases = [case for case in cases if case not in batch]
        folder = memory_path / str(len(cases))
        folder.mkdir()
        run(batch, folder, rows.append)
    print(f"seed {seed}\n{table(rows)}")
    assert all(row.is_met for row in rows), [str(row.case) for row in rows if not row.is_met]


def test_the_table_has_every_kind_of_file_and_call_once() -> None:
    cases = all_cases()
    assert len(set(cases)) == len(cases) >= 60
    assert {case.work for case in cases} == {"serve", "roll", "trim", "start", "stop"}
    assert str(Case("fsync", "", "EIO")) == "serve: fsync of . is EIO, time 1"
