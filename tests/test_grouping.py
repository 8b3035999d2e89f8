"""The tests of a file run in one worker, and so do all tests that measure (see conftest.py)."""

import os

import pytest


def _group(request: pytest.FixtureRequest) -> str:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        pytest.skip("only one process runs the tests")
    return str(request.node.nodeid).rpartition("@")[2]


def test_the_workers_know_the_groups(request: pytest.FixtureRequest) -> None:
    # Without groups each worker starts its own Spark, and the brokers that the tests of a file
    # share. A combination of pytest and pytest-xdist once lost the groups silently.
    assert _group(request) == str(request.path)


@pytest.mark.machine
def test_a_test_that_measures_runs_beside_no_other_that_does(
    request: pytest.FixtureRequest,
) -> None:
    assert _group(request) == "machine"
