"""Fixtures shared by the tests with real processes."""

from collections.abc import Iterator

import pytest

from tests.support.damage.loop_volume import FILE_SYSTEMS, LoopVolume, loop_volume


@pytest.fixture(params=FILE_SYSTEMS)
def volume(request: pytest.FixtureRequest) -> Iterator[LoopVolume]:
    """A file system that can lose its power."""
    with loop_volume(request.param) as volume:
        yield volume
