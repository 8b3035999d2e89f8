"""A pytest plugin for tests of programs that use Holdfast. It has two fixtures: `holdfast_broker`,
a broker for one test, and `holdfast_session_broker`, one broker for all tests of a run.

If Holdfast is installed, pytest finds the plugin without any configuration.

    def test_orders_are_published(holdfast_broker):
        with holdfast_broker.client() as client:
            client.publish("orders", "hello")
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.running_broker import BrokerDidNotStart, RunningBroker

__all__ = ["BrokerDidNotStart", "RunningBroker", "holdfast_broker", "holdfast_session_broker"]

#: The segments are small, because a broker always has at least two segment files.
TEST_ARGUMENTS = (
    *("--commitlog-segment-bytes", "16MiB"),
    *("--commitlog-sync-timeout-ms", "60000"),  # a busy disk may stall for longer than usual
)


@pytest.fixture
def holdfast_broker(tmp_path: Path) -> Iterator[RunningBroker]:
    """A broker for one test, on a free port and in its own directory.

    Its topics are durable by default, like those of every broker. It is stopped after the test.
    """
    with RunningBroker(tmp_path / "holdfast", TEST_ARGUMENTS) as broker:
        yield broker


@pytest.fixture(scope="session")
def holdfast_session_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker that all tests of a run share. It starts only once, which saves time. Each test
    must use its own topics and groups.

    Its topics are durable by default, like those of every broker. It is stopped after the last
    test; no test may stop it.
    """
    with RunningBroker(tmp_path_factory.mktemp("holdfast") / "data", TEST_ARGUMENTS) as broker:
        yield broker
