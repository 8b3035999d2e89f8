import pytest

from holdfast.testing import RunningBroker


@pytest.fixture(scope="session")
def broker(holdfast_session_broker: RunningBroker) -> RunningBroker:
    """A broker that no test stops. Each file uses its own topics and groups."""
    return holdfast_session_broker
