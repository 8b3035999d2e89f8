"""Random histories of a whole group with crashes, against a naive model: I1 to I16.

TEST_OPERATIONS says how many operations each mode gets. The fault tier lets TEST_LONG_OPERATIONS
(50,000) happen, the same in every run unless TEST_FIRST_SEED names others; `python -m
tests.groups.campaign` runs for as long as it is told.
"""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.groups.config import FAIR_ENGINES, MODES
from tests.groups.campaign import run
from tests.groups.world import World

OPERATIONS = int(os.environ.get("TEST_OPERATIONS", "800"))
LONG_OPERATIONS = int(os.environ.get("TEST_LONG_OPERATIONS", "50000"))


@pytest.mark.parametrize("engine", FAIR_ENGINES)
@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_group_does_what_its_model_does(mode: str, engine: str, seed: int) -> None:
    print(f"seed {seed}, {mode}, {engine}")
    world = World(seed, mode=mode, engine=engine)
    for _ in range(OPERATIONS):
        world.step()
    world.drain()
    assert world.rescues == 0
    assert world.deliveries


@pytest.mark.fault
@pytest.mark.timeout(3600)
def test_a_group_does_what_its_model_does_for_long() -> None:
    run(LONG_OPERATIONS, int(os.environ.get("TEST_FIRST_SEED", "12000000")))
