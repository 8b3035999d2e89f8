"""For tests of what uses Holdfast: a pytest plugin with the fixture `holdfast_broker`.

pytest finds it by itself where Holdfast is installed.

    def test_orders_are_published(holdfast_broker):
        with holdfast_broker.client() as client:
            client.publish("orders", "hello")
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.running_broker import BrokerDidNotStart, RunningBroker

__all__ = ["BrokerDidNotStart", "RunningBroker", "holdfast_broker"]

#: Small files: a broker prepares two segments, whatever it stores.
TEST_ARGUMENTS = ("--commitlog-segment-bytes", "16MiB")


@pytest.fixture
def holdfast_broker(tmp_path: Path) -> Iterator[RunningBroker]:
    """A broker of this test's own, on a free port and in a directory of its own.

    Durable, as brokers are by default. It is stopped after the test.
    """
    with RunningBroker(tmp_path / "holdfast", TEST_ARGUMENTS) as broker:
        yield broker
