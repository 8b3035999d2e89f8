"""One broker per test run, shared by all tests that need any broker; each makes its own topic."""

from collections.abc import Iterator
from itertools import count

import pytest

from holdfast.testing import TEST_ARGUMENTS, RunningBroker

_numbers = count()


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker that no test stops or fills."""
    data_dir = tmp_path_factory.mktemp("shared") / "holdfast"
    with RunningBroker(data_dir, TEST_ARGUMENTS) as broker:
        yield broker


@pytest.fixture
def topic() -> str:
    """Return a topic name that only this test uses."""
    return f"topic-{next(_numbers)}"
