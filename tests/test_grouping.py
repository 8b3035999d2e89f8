"""The tests of a file run in one worker (see conftest.py)."""

import os

import pytest


def test_the_workers_know_the_groups(request: pytest.FixtureRequest) -> None:
    # Without groups each worker starts its own Spark, and the brokers that the tests of a file
    # share. A combination of pytest and pytest-xdist once lost the groups silently.
    if "PYTEST_XDIST_WORKER" not in os.environ:
        pytest.skip("only one process runs the tests")
    assert request.node.nodeid.endswith(f"@{request.path}")
