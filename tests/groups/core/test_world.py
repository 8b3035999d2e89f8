"""Random histories of a whole group with crashes, compared with a simple model: I1 to I16.

TEST_OPERATIONS is the number of operations in each mode. The fault tier runs TEST_LONG_OPERATIONS
(50,000), with the same seeds in every run unless TEST_FIRST_SEED is set; `python -m
tests.groups.campaign` runs any number.
"""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.groups.config import FAIR_ENGINES, MODES
from tests.groups.campaign import run
from tests.groups.world import World

OPERATIONS = int(os.environ.get("TEST_OPERATIONS", "400"))
LONG_OPERATIONS = int(os.environ.get("TEST_LONG_OPERATIONS", "50000"))


@pytest.mark.parametrize("engine", FAIR_ENGINES)
@pytest.mark.parametrize(
    ("mode", "last_value"),
    [*((mode, False) for mode in MODES), pytest.param("competing", True, id="last_value")],
)
@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_group_does_what_its_model_does(
    mode: str, last_value: bool, engine: str, seed: int
) -> None:
    # Q24: topics with and without priority levels in one group
    print(f"seed {seed}, {mode}, {engine}, last value {last_value}")
    world = World(seed, mode=mode, engine=engine, last_value=last_value)
    for _ in range(OPERATIONS):
        world.step()
    world.drain()
    assert world.rescues == 0
    assert world.deliveries
    assert bool(world.superseded) == last_value


@pytest.mark.parametrize(
    ("seed", "share_bound"),
    [
        # A kill loses the fact that a message was dropped for its age. If an earlier message of its
        # key exists, the message is available again until it is examined, and later ones stay
        # leased.
        (43000021, 0.0),
        # A kill loses the fact that a message was settled when sent. The message waits for the
        # leases of later messages of its key, which count towards `max_in_flight_per_key`.
        (44000009, 0.0),
        # The same until a grace period ends: then the leases after such a message are returned.
        (43000025, 0.0),
        # A kill after an answer to a waiting request. Messages of another answer that were settled
        # when sent were committed together with it.
        (57000077, 0.0),
        # A kill undoes an acknowledgement in a grace period, and nothing is read between the kill
        # and the end of the grace: the leases of later messages of the key must still be returned.
        (5069, 0.3),
    ],
)
def test_a_history_that_once_differed_from_the_model(seed: int, share_bound: float) -> None:
    run(2_000, seed, share_bound=share_bound)


@pytest.mark.fault
@pytest.mark.timeout(3600)
def test_a_group_does_what_its_model_does_for_long() -> None:
    run(LONG_OPERATIONS, int(os.environ.get("TEST_FIRST_SEED", "12000000")))
