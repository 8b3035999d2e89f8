"""A sync, write or read of log, index or state fails once under a real broker. test_every_call.py
fails every call on every file."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.running_broker import RunningBroker
from tests.support.clients.broker_calls import Answer, Calls, wait_until
from tests.support.damage.system_faults import injected
from tests.support.storage.sound import assert_sound

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

_QUIET = (*("--commitlog-segment-bytes", "8MiB"), *("--consumequeue-commit-interval-ms", "600000"))
"""Background syncs are disabled: only those that a test requests happen."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    # No cache of blocks: each read goes to the disk.
    made = RunningBroker(
        tmp_path / "data",
        (*_QUIET, "--consumequeue-hot-cache-bytes", "0", "--commitlog-newest-blocks-bytes", "0"),
    )
    made.start()
    yield made
    made.kill()


def _filled(broker: RunningBroker) -> Calls:
    calls = Calls(broker.url)
    assert calls("PUT", "/v1/topics/t", {"queues": 1}).status == 201
    for number in range(20):
        assert calls.publish("t", f"before-{number}").status == 200
    return calls


_BEFORE = [f"before-{number}" for number in range(20)]


@pytest.mark.parametrize("call", ["fdatasync", "pwritev,pwritev2"])
def test_a_failed_sync_or_write_is_never_acknowledged_later(
    broker: RunningBroker, tmp_path: Path, call: str
) -> None:
    calls = _filled(broker)

    def publish(number: int) -> Answer:
        return Calls(broker.url).publish("t", f"failed-{number}")

    fault = f"{call}:error=EIO:when=1"
    with injected(broker.pid, fault, tmp_path / "strace.log"), ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(publish, range(8)))
    assert "EIO" in (tmp_path / "strace.log").read_text()
    # The first injected call fails, whichever request needs it; nothing is stored after it.
    assert {(answer.status, answer.problem) for answer in answers} == {(503, "read-only")}
    # The broker does not retry, though the disk would accept the call now; all else continues.
    later = calls.publish("t", "later")
    assert (later.status, later.problem) == (503, "read-only")
    ready = calls("GET", "/readyz")
    assert ready.status == 200
    assert "failed" in ready.json["read_only"]
    assert calls.metric("holdfast_read_only") == 1
    visible = calls.bodies("t")
    assert visible[:20] == _BEFORE
    assert calls("PUT", "/v1/groups/g/topics/t/offsets", {"offsets": {"0": 7}}).status == 200
    assert broker.stop() == 1, "it ended as if nothing had been wrong"
    assert_sound(broker.data_dir)
    with broker:
        after = calls.bodies("t")
        assert after[: len(visible)] == visible, "what was visible is gone"
        assert "later" not in after
        assert len(after) == len(set(after))
        assert calls("GET", "/v1/groups/g/topics/t/offsets").json["offsets"] == {"0": 7}
        assert calls.publish("t", "again").status == 200


def test_a_read_that_fails_is_an_error_of_that_read_alone(
    broker: RunningBroker, tmp_path: Path
) -> None:
    calls = _filled(broker)
    one = "/v1/topics/t/queues/0/messages?max_messages=1&offset="
    with broker:
        # The event loop's page cache lookup fails once, then the reader thread's read.
        fault = "preadv2,pread64:error=EIO:when=1"
        with injected(broker.pid, fault, tmp_path / "strace.log"):
            failed = calls("GET", f"{one}3")
            neighbour = calls("GET", f"{one}4")
        assert "EIO" in (tmp_path / "strace.log").read_text()
        assert (failed.status, failed.problem) == (500, "corrupt-record")
        assert (failed.json["reason"], failed.json["next_offset"]) == ("unreadable", 4)
        assert neighbour.json["messages"][0]["body"] == "before-4"
        assert calls("GET", "/readyz").json["degraded"][0]["reason"] == "unreadable"
        assert calls.bodies("t") == _BEFORE
        assert calls("GET", "/readyz").json["degraded"] == [], "it could be read again"
        assert calls.publish("t", "after").status == 200
        assert broker.stop() == 0


def test_a_failed_commit_of_the_state_refuses_that_change_alone(
    broker: RunningBroker, tmp_path: Path
) -> None:
    calls = _filled(broker)
    path = "/v1/groups/g/topics/t/offsets"
    with broker:
        assert calls("PUT", path, {"offsets": {"0": 3}}).status == 200
        # On this file alone: a timer may sync the log meanwhile.
        data = broker.data_dir / "state" / "data.mdb"
        with injected(broker.pid, "fdatasync:error=EIO:when=1", tmp_path / "strace.log", data):
            failed = calls("PUT", path, {"offsets": {"0": 4}})
        assert "EIO" in (tmp_path / "strace.log").read_text()
        assert (failed.status, failed.problem) == (503, "storage-unavailable")
        assert failed.retry_after_s > 0
        assert calls("GET", path).json["offsets"] == {"0": 3}
        wait_until(
            lambda: calls("PUT", path, {"offsets": {"0": 5}}).status == 200, "offsets are stored"
        )
        assert calls.publish("t", "after").status == 200
        assert broker.stop() == 0
    with broker:
        assert calls("GET", path).json["offsets"] == {"0": 5}


# D1: one failed write of LMDB's meta page ended groups, state or index until a restart


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
@pytest.mark.parametrize("environment", ["state", "state/groups", "consumequeue"])
def test_a_failed_meta_page_of_lmdb_costs_at_most_the_change_that_met_it(
    tmp_path: Path, environment: str, error: str
) -> None:
    arguments = (
        *("--commitlog-segment-bytes", "8MiB", "--consumequeue-commit-interval-ms", "10"),
        *("--groups-mirror-interval-ms", "600000"),
    )
    path, log = "/v1/groups/g/topics/t/offsets", tmp_path / "strace.log"
    with RunningBroker(tmp_path / "data", arguments) as broker:
        calls = _filled(broker)
        assert calls("PUT", "/v1/groups/leasing", {"topics": {"t": {}}}).status == 201
        wait_until(lambda: calls.metric("holdfast_index_uncommitted_entries") == 0, "commits")

        def change(number: int) -> list[Answer]:
            receive = {"member": "m", "max_messages": 1, "lease_ms": 30_000}
            received = calls("POST", "/v1/groups/leasing/receive", receive)
            if received.status != 200:
                return [received]
            receipts = [message["receipt"] for message in received.json["messages"]]
            return [
                received,
                calls("POST", "/v1/groups/leasing/ack", {"receipts": receipts}),
                calls("PUT", path, {"offsets": {"0": number}}),
                calls.publish("t", f"during-{number}"),
            ]

        data = broker.data_dir / environment / "data.mdb"
        # A commit writes some pages, then the meta page: one of these four writes is the meta page.
        for at in range(1, 5):
            fault = f"pwrite64:error={error}:when={at}"
            with injected(broker.pid, fault, log, data):
                for number in range(3):
                    change(number)
                wait_until(lambda: "INJECTED" in log.read_text(), "the fault")
            if ", 120, " in next(x for x in log.read_text().splitlines() if "INJECTED" in x):
                break
        else:
            raise AssertionError("no meta page was met")
        wait_until(lambda: all(answer.status == 200 for answer in change(7)), "all is stored again")
        wait_until(lambda: calls("GET", "/readyz").json["degraded"] == [], "nothing is degraded")
        wait_until(lambda: calls.metric("holdfast_index_uncommitted_entries") == 0, "commits")
        stored = calls.bodies("t")
        assert "opened again" in broker.log_path.read_text()
        broker.kill()
    assert_sound(broker.data_dir)
    with broker:
        assert calls.bodies("t") == stored
        assert calls("GET", path).json["offsets"] == {"0": 7}
        assert broker.stop() == 0
