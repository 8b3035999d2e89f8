"""A disk that fails once, under real brokers: a sync, a write, a read of the log; a sync of the
index and of the state. What was not acknowledged then is never acknowledged later."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.check import check_data_dir
from holdfast.running_broker import RunningBroker
from tests.support.broker_calls import Answer, Calls, wait_until
from tests.support.system_faults import injected, need_strace

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

_QUIET = (
    *("--commitlog-segment-bytes", "8MiB"),
    *("--consumequeue-commit-interval-ms", "600000"),
)
"""No sync but those that a test asks for."""


@pytest.fixture(autouse=True)
def _needs() -> None:
    need_strace()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    # Blocks that were read are not kept: each read is one of the disk.
    made = RunningBroker(tmp_path / "data", (*_QUIET, "--consumequeue-hot-cache-bytes", "0"))
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
    answers: list[Answer] = []

    def publish(number: int) -> None:
        answers.append(Calls(broker.url).publish("t", f"failed-{number}"))

    with injected(broker.pid, f"{call}:error=EIO:when=1", tmp_path / "strace.log"):
        threads = [threading.Thread(target=publish, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert "EIO" in (tmp_path / "strace.log").read_text()
    # The first call after all that was before fails, whoever it is for; nothing is stored after it.
    assert {(answer.status, answer.problem) for answer in answers} == {(503, "read-only")}
    # No second try, though the disk would say yes now; all else goes on.
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
    assert check_data_dir(broker.data_dir).is_sound
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
        # The event loop's look at the page cache fails once, then the reader thread's read.
        fault = "preadv2,pread64:error=EIO:when=1"
        with injected(broker.pid, fault, tmp_path / "strace.log"):
            failed = calls("GET", f"{one}3")
            neighbour = calls("GET", f"{one}4")
        assert "EIO" in (tmp_path / "strace.log").read_text()
        assert (failed.status, failed.problem) == (500, "corrupt-record")
        assert (failed.json["reason"], failed.json["next_offset"]) == ("unreadable", 4)
        assert neighbour.json["messages"][0]["body"] == "before-4"
        assert calls.bodies("t") == _BEFORE
        assert calls.publish("t", "after").status == 200
        assert broker.stop() == 0


def test_a_failed_commit_of_the_state_refuses_that_change_alone(
    broker: RunningBroker, tmp_path: Path
) -> None:
    calls = _filled(broker)
    path = "/v1/groups/g/topics/t/offsets"
    with broker:
        assert calls("PUT", path, {"offsets": {"0": 3}}).status == 200
        with injected(broker.pid, "fdatasync:error=EIO:when=1", tmp_path / "strace.log"):
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
