import socket
from pathlib import Path

import pytest

from holdfast.spark.errors import JavaMissing
from holdfast.spark.session import require_java
from tests.cluster.clusters import python_with
from tests.cluster.spark_processes import SparkDidNotStart, clean_environment, running

pytestmark = pytest.mark.cluster

MASTER = (
    "org.apache.spark.deploy.master.Master",
    *("--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    pytest.importorskip("pyspark")
    try:
        require_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    return clean_environment(python_with((), tmp_path / "python"))


def test_a_program_ends_with_what_uses_it_also_when_that_fails(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    ready = r"Starting Spark master at spark://127.0.0.1:(\d+)"
    with (
        pytest.raises(ZeroDivisionError),
        running(MASTER, environment, tmp_path / "log", ready=ready) as started,
    ):
        address = ("127.0.0.1", int(started[1]))
        socket.create_connection(address).close()
        raise ZeroDivisionError
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def test_a_program_that_ends_before_it_is_ready_says_why(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with (
        pytest.raises(SparkDidNotStart, match=r"no\.such\.Program: it ended with status"),
        running(["no.such.Program"], environment, tmp_path / "log", ready="never"),
    ):
        pass
