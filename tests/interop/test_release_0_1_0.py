"""Programs of release 0.1.0 work with this broker: the clients, and Spark with the sent archive.

Their package is in release_0_1_0/release.tar.xz. They run in processes whose Python has only the
libraries that the package needs, and not this checkout.
"""

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import RunningBroker
from tests.cluster.clusters import python_with
from tests.interop.toolchains import HERE, need, run

PROGRAMS = HERE / "release_0_1_0"
CLIENT_NEEDS = ("msgspec", "msgpack", "numpy", "google-crc32c", "uvloop")
SPARK_NEEDS = ("pyarrow", "numpy", "msgpack", "google-crc32c", "pyspark", "py4j")
JOB_S = 900


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that contains the package `holdfast` of 0.1.0."""
    folder = tmp_path_factory.mktemp("release")
    with tarfile.open(PROGRAMS / "release.tar.xz") as tar:
        tar.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize("program", ["sync_client", "async_client"])
def test_a_client_publishes_pulls_and_consumes(
    broker: RunningBroker, package: Path, tmp_path: Path, program: str
) -> None:
    topic = f"release-0.1.0-{program}"
    python = python_with(CLIENT_NEEDS, tmp_path / "python")
    source = PROGRAMS / f"{program}.py"
    printed = run([python, source, broker.url, topic], PYTHONPATH=str(package), timeout_s=300)
    seen: Any = json.loads(printed)
    assert seen.pop("version") == "0.1.0"
    assert seen.pop("file") == f"{package}/holdfast/__init__.py"
    assert seen == {
        "published": [1, 0, True],
        "pulled": [[n, f"number {n}", f"k{n % 3}"] for n in range(990, 1000)],
        "message": ["grüße", "t", {"region": "EU"}],
        "found": 1,
        "all": 1001,
        "in_batches": 1000,
        "held": ["late"],
        "settled": [["done"], ["done"], ["done"], ["done"], ["done"]],
        "again": [2, 2],
        "are_the_same": True,
        "consumed": 1002,
        "lag": 0,
        "stored": True,
        "by_offsets": ["grüße", "late"],
        "unknown": True,
    }
    with broker.client() as client:
        bodies = [bytes(each.body) for each in client.pull(topic, 0, 0, follow=False)]
    assert bodies == [b"number %d" % number for number in range(1000)]


def test_a_client_reads_what_is_published_in_every_format_of_today(
    broker: RunningBroker, package: Path, tmp_path: Path
) -> None:
    topic = "release-0.1.0-formats"
    with broker.client() as client:
        client.create_topic(topic, queues=1)
        client.publish(topic, b"one", key="k", properties={"a": "b"})
        with client.producer(topic) as producer:
            producer.send(b"two", tag="t")
    python = python_with(CLIENT_NEEDS, tmp_path / "python")
    program = (
        "import sys, holdfast\n"
        "with holdfast.Client(sys.argv[1]) as client:\n"
        "    for each in client.pull(sys.argv[2], follow=False, start='earliest'):\n"
        "        print(each.offset, each.body.decode(), each.key, each.tag, each.properties)\n"
        "    for batch in client.pull_batches(sys.argv[2], 0, 0, follow=False):\n"
        "        for each in batch: print(each.offset, each.body.decode())\n"
    )
    printed = run([python, "-c", program, broker.url, topic], PYTHONPATH=str(package))
    assert printed.splitlines() == [
        "0 one k None {'a': 'b'}",
        "1 two None t {}",
        "0 one",
        "1 two",
    ]


def test_a_spark_job_reads_a_range_and_writes_with_the_sent_archive(
    broker: RunningBroker, package: Path, tmp_path: Path
) -> None:
    need("java")
    topic = "release-0.1.0-spark"
    with broker.client() as client:
        client.create_topic(topic, queues=2)
        for queue in (0, 1):
            with client.producer(topic, queue=queue) as producer:
                for number in range(50):
                    producer.send(b"%d in %d" % (number, queue), key=f"k{number % 3}", tag="t")
    python = python_with(SPARK_NEEDS, tmp_path / "python")
    archive = tmp_path / "holdfast.zip"
    run([python, "-m", "holdfast.spark", archive], PYTHONPATH=str(package), cwd=tmp_path)
    (spark,) = python.parents[1].glob("lib/python*/site-packages/pyspark")
    printed = run(
        [
            *(spark / "bin" / "spark-submit", "--master", "local-cluster[1,1,1024]"),
            *("--conf", "spark.executor.memory=800m", "--conf", "spark.ui.enabled=false"),
            *("--conf", "spark.driver.host=127.0.0.1"),
            *("--conf", "spark.driver.bindAddress=127.0.0.1"),
            *("--py-files", archive, PROGRAMS / "spark_job.py", broker.url, topic),
        ],
        cwd=tmp_path,
        timeout_s=JOB_S,
        SPARK_HOME=str(spark),
        SPARK_LOCAL_IP="127.0.0.1",
        PYSPARK_PYTHON=str(python),
        PYSPARK_DRIVER_PYTHON=str(python),
        PATH=f"{python.parent}:{os.environ['PATH']}",
        PYTHONPATH="",
    )
    seen: Any = json.loads(printed.splitlines()[-1])
    assert seen["version"] == "0.1.0"
    assert all("holdfast.zip/" in file for file in seen["files"]), seen["files"]
    expected = [
        [queue, offset, f"{offset} in {queue}", f"k{offset % 3}", "t"]
        for queue, offsets in ((0, range(10, 40)), (1, range(20, 30)))
        for offset in offsets
    ]
    assert seen["count"] == 100
    assert seen["rows"] == expected
    with broker.client() as client:
        written = client.pull(f"{topic}.written", start="earliest", follow=False)
        found = sorted((bytes(each.body).decode(), each.key) for each in written)
    assert found == sorted((f"again {body}", key) for _, _, body, key, _ in expected)
