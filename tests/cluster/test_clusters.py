"""The same job on four kinds of cluster, each in a process of its own: the same results."""

import zlib
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast.running_broker import RunningBroker
from holdfast.spark.errors import JavaMissing
from holdfast.spark.session import require_java
from tests.cluster.clusters import CLUSTERS
from tests.cluster.contracts import CONTRACTS
from tests.cluster.job import Found, run_job
from tests.cluster.published import (
    BEFORE,
    BROKER_ARGUMENTS,
    ORDERS,
    Published,
    publish,
)

#: Two jobs may be one test's: its own, and the one that it is compared with.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

JOB_TIMEOUT_S = 600.0
SHIPPED = ("standalone", "connect")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    pytest.importorskip("pyspark")
    try:
        require_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    data_dir = tmp_path_factory.mktemp("broker") / "data"
    with RunningBroker(data_dir, BROKER_ARGUMENTS) as broker:
        yield publish(broker)


@pytest.fixture(scope="module")
def runs(published: Published, tmp_path_factory: pytest.TempPathFactory) -> "Runs":
    return Runs(published, tmp_path_factory)


class Runs:
    """The job's findings by cluster, each run when it is first asked for."""

    def __init__(self, published: Published, folders: pytest.TempPathFactory) -> None:
        self._published = published
        self._folders = folders
        self._found: dict[str, Found] = {}

    def __getitem__(self, name: str) -> Found:
        if name not in self._found:
            if name == "connect":
                pytest.importorskip("grpc", reason="needs pip install 'holdfast[connect]'")
            folder = self._folders.mktemp(name)
            with CLUSTERS[name](folder) as cluster:
                found = run_job(name, cluster, self._published, folder, timeout_s=JOB_TIMEOUT_S)
            self._found[name] = found
            seconds = ", ".join(f"{each} {took:.1f}" for each, took in found.seconds.items())
            print(f"{name}: {sum(found.seconds.values()):.0f} s ({seconds})")
        return self._found[name]


def test_one_machine_reads_what_a_plain_client_reads(runs: Runs, published: Published) -> None:
    results = runs["local"].results
    assert results["every_row_once"] == plain_summary(published.url)
    assert results["the_files_have_the_same_rows"] == results["every_row_once"]
    assert sum(count for _, count, *_ in results["a_bound_read_is_replayed"][0]) == BEFORE
    assert results["a_group_goes_on_where_it_saved"] == [[300, 0], [150, 300], [0, None]]
    assert results["tags_and_filters"] == [13_333, 999]
    assert len(results["one_queue_by_several_tasks"]) >= 5
    assert results["a_stream_goes_on_where_it_ended"] == [
        [count, count, sum(range(count))] for count in (300, 450)
    ]
    assert results["what_is_written_twice_is_stored_once"][:2] == [10_000, 5_000]
    assert results["a_batch_that_a_stream_repeats_is_stored_once"] == [400, 400]
    piped, distinct = results["a_stream_writes_what_it_read_once"]
    assert (sum(count for _, count, *_ in piped), distinct) == (450, 450)
    lost, first_kept = results["trimmed_rows_fail_the_job"]
    assert f"from offset 0 to {first_kept} (trimmed by retention)" in lost
    assert "did you mean 'startingOffsets'" in results["a_wrong_option_is_named"]


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_same_job_has_the_same_results_everywhere(runs: Runs, name: str) -> None:
    assert not runs[name].failures, "\n".join(runs[name].failures.values())
    found, expected = runs[name].results, runs["local"].results
    assert found.keys() == CONTRACTS.keys()
    for contract in CONTRACTS:
        assert found[contract] == expected[contract], contract


@pytest.mark.parametrize("name", SHIPPED)
def test_before_the_package_is_sent_a_read_says_that_it_is_missing(runs: Runs, name: str) -> None:
    assert runs[name].unshipped == "ModuleNotFoundError: No module named 'holdfast'"


def plain_summary(url: str) -> list[list[Any]]:
    """Return `contracts.summary` of a topic as a client without Spark sees it."""
    found = []
    with holdfast.Client(url) as client:
        for queue in range(client.describe_topic(ORDERS)["queue_count"]):
            messages = list(client.pull(ORDERS, queue=queue, offset=0, follow=False))
            names = [f"{each.key or '-'}/{each.tag or '-'}".encode() for each in messages]
            found.append(
                [
                    queue,
                    len(messages),
                    messages[0].offset,
                    messages[-1].offset,
                    sum(zlib.crc32(each.body) for each in messages),
                    sum(map(zlib.crc32, names)),
                ]
            )
    return found
