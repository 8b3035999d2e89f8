"""A flipped bit in any region of the log's files costs at most its own block, and is declared.
`TEST_FLIPS=all pytest -m fault` with this file flips every bit, in a segment of 1 MiB."""

import logging
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.damage.flipped_log import FlippedLog, FlippedReads, Region

_ALL = os.environ.get("TEST_FLIPS") == "all"
_SEED = int(os.environ.get("TEST_SEED", "1"))
_KIB = 1024
_STRIDE = 1 if _ALL else 31
"""Odd, so that every bit position of a byte is flipped."""

Record = Callable[[str, object], None]


@pytest.fixture(autouse=True)
def _keep_the_log_quiet() -> Iterator[None]:
    """Disable log output: each of a hundred thousand starts would warn."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def small(tmp_path: Path) -> FlippedLog:
    """A log with every kind of block, in the smallest segments."""
    return FlippedLog(tmp_path, 16 * _KIB)


@pytest.fixture
def large(tmp_path: Path) -> FlippedLog:
    """A log with one full segment of 1 MiB."""
    return FlippedLog(tmp_path, 1024 * _KIB, rows=60, body_bytes=400)


def _start_with_each(log: FlippedLog, bits: list[tuple[Region, int]]) -> dict[str, Counter[str]]:
    outcomes: dict[str, Counter[str]] = {}
    for region, bit in bits:
        try:
            outcome = log.start(region.path, bit)
        except Exception as error:
            error.add_note(f"bit {bit} of {region}")
            raise
        outcomes.setdefault(region.name, Counter())[outcome] += 1
    return outcomes


def _expect_what_each_region_costs(outcomes: dict[str, Counter[str]]) -> None:
    for name, counts in outcomes.items():
        if "above the durable mark" in name or name == "zeros after the last block":
            expected = {"cut"}
        elif name.startswith(("segment header", "rest of", "zeros before", "footer")):
            expected = {"harmless"}
        else:
            expected = {"declared"}
        assert set(counts) == expected, name


def test_a_flipped_bit_in_any_region_is_declared_and_costs_its_own_block_alone(
    small: FlippedLog,
) -> None:
    rng = random.Random(_SEED)
    bits = [(region, bit) for region in small.regions for bit in [rng.choice(region.bits)]]
    outcomes = _start_with_each(small, bits)
    assert len(outcomes) > 30
    _expect_what_each_region_costs(outcomes)


@pytest.mark.fault
@pytest.mark.timeout(3600 * 6)
def test_a_flip_in_a_header_or_a_mark_costs_what_it_may_and_no_more(
    small: FlippedLog, large: FlippedLog, record_property: Record
) -> None:
    """With TEST_FLIPS=all, one bit in 7 of the large segment is flipped as well."""
    for log, stride in ((small, _STRIDE), (large, 7))[: 2 if _ALL else 1]:
        bits = [
            (region, bit)
            for region in log.regions
            if region.name.startswith(("block header", "segment header", "end mark", "footer"))
            for bit in region.bits[_SEED % stride :: stride]
        ]
        outcomes = _start_with_each(log, bits)
        _expect_what_each_region_costs(outcomes)
        counts = {name: dict(count) for name, count in outcomes.items()}
        record_property("starts", counts)
        print(f"{len(log.blocks)} blocks, {len(bits)} starts: {counts}", flush=True)


@pytest.mark.fault
@pytest.mark.timeout(3600)
def test_no_block_is_read_with_any_of_its_bits_flipped(
    small: FlippedLog, large: FlippedLog, record_property: Record
) -> None:
    """Flip every bit of every block and call the check that every read uses.

    In the large segment, payload bits are checked only by checksum, except for one byte in 64.
    """
    log, read_each = (large, 64) if _ALL else (small, 1)
    reads = FlippedReads(log)
    indexes = range(len(log.blocks))
    bits = sum(reads.every_bit_of(index, read_each=read_each) for index in indexes)
    record_property("reads", {"blocks": len(log.blocks), "bits": bits})
    print(f"{len(log.blocks)} blocks, {bits} bits flipped and read", flush=True)
    assert bits == 8 * sum(batch.header.total_size for batch in log.blocks)
