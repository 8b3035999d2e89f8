from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from holdfast.spark.broker.client import BrokerClient
from holdfast.spark.errors import JavaMissing
from holdfast.spark.options.location import Address
from holdfast.spark.session import local_session, require_java
from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.support.servers.fake_broker import FakeBroker, running_fake_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with running_fake_broker() as broker:
        yield broker


@pytest.fixture
def client(broker: FakeBroker) -> Iterator[BrokerClient]:
    with BrokerClient.open(Address(broker.url)) as client:
        yield client


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A real broker, shared by the tests of a module."""
    with RunningBroker(tmp_path_factory.mktemp("broker") / "data", TEST_ARGUMENTS) as broker:
        yield broker


@pytest.fixture
def topic(running: RunningBroker, request: pytest.FixtureRequest) -> str:
    """A topic of three queues on the real broker, only for this test."""
    name = request.node.name.replace("[", ".").replace("]", "")[:100]
    with running.client() as client:
        client.create_topic(name, queues=3, durability="written")
    return str(name)


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """The one session of the test run; its start takes some ten seconds."""
    pytest.importorskip("pyspark")
    try:
        require_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    spark = local_session(
        2,
        settings={
            "spark.sql.shuffle.partitions": "2",
            # To compile code for a query takes longer than to run it on a few rows.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            # This starts quickly but does not run quickly.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    yield spark
    spark.stop()
