"""One broker for all tests of a run that only need some broker; each makes its own topic."""

from collections.abc import Iterator
from itertools import count

import pytest

from holdfast.testing import TEST_ARGUMENTS, RunningBroker

_numbers = count()


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker that nobody stops or fills."""
    data_dir = tmp_path_factory.mktemp("shared") / "holdfast"
    with RunningBroker(data_dir, TEST_ARGUMENTS) as broker:
        yield broker


@pytest.fixture
def topic() -> str:
    """A name for this test's own topic."""
    return f"topic-{next(_numbers)}"
