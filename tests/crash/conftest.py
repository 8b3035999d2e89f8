"""Fixtures shared by the tests with real processes."""

from collections.abc import Iterator

import pytest

from tests.support.loop_volume import FILE_SYSTEMS, CannotMount, LoopVolume, why_not


@pytest.fixture(params=FILE_SYSTEMS)
def volume(request: pytest.FixtureRequest) -> Iterator[LoopVolume]:
    """A file system that can lose its power. It is unmounted and deleted even if the test fails."""
    reason = why_not(request.param)
    if reason is not None:
        pytest.skip(reason)
    try:
        made = LoopVolume(request.param)
    except CannotMount as error:
        pytest.skip(f"no loop device can be mounted here: {error}")
    yield made
    made.remove()
