"""Random histories of a whole group with crashes, against a naive model: I1 to I16.

TEST_OPERATIONS says how many operations each mode gets; `python -m tests.groups.campaign` runs
for long by hand.
"""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.groups.config import FAIR_ENGINES, MODES
from tests.groups.world import World

OPERATIONS = int(os.environ.get("TEST_OPERATIONS", "800"))


@pytest.mark.parametrize("engine", FAIR_ENGINES)
@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_group_does_what_its_model_does(mode: str, engine: str, seed: int) -> None:
    print(f"seed {seed}, {mode}, {engine}")
    world = World(seed, mode=mode, engine=engine)
    for _ in range(OPERATIONS):
        world.step()
    assert world.rescues == 0
    assert world.deliveries
