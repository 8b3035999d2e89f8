"""File descriptors run out: only requests that need one are refused, and only meanwhile."""

import contextlib
import resource
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.running_broker import BrokerDidNotStart, RunningBroker
from tests.support.clients.broker_calls import Calls, wait_until
from tests.support.damage.system_faults import injected
from tests.support.storage.sound import assert_sound

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

_BODY = b"x" * 100_000
_ARGUMENTS = ("--commitlog-segment-bytes", "1MiB", "--commitlog-min-free-bytes", "0")
_MAX_LOG_LINES = 60


@contextlib.contextmanager
def _no_more_files(broker: RunningBroker) -> Iterator[None]:
    """Set the limit so that the broker can open no further file."""
    before = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (0, before[1]))
    yield
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("whose", ["process", "system"])
def test_a_roll_without_descriptors_is_refused_and_recovers(tmp_path: Path, whose: str) -> None:
    with RunningBroker(tmp_path / "data", _ARGUMENTS) as broker:
        calls = Calls(broker.url, keep_alive=True)
        assert calls("PUT", "/v1/topics/t", {"queues": 1}).status == 201
        assert calls.publish("t", _BODY).status == 200
        fault = (
            _no_more_files(broker)
            if whose == "process"
            else injected(broker.pid, "openat:error=ENFILE", tmp_path / "strace.log")
        )
        with fault:
            # The active segment and the prepared segment are still filled.
            stored = 1 + calls.publish_until("t", _BODY, 503, most=40)
            refused = calls.publish("t", _BODY)
            assert (refused.status, refused.problem) == (503, "storage-unavailable")
            assert refused.retry_after_s > 0
            assert len(calls.bodies("t")) == stored
            put = calls("PUT", "/v1/groups/g/topics/t/offsets", {"offsets": {"0": 1}})
            assert put.status == 200
            assert calls("GET", "/readyz").json["read_only"] is None
        wait_until(lambda: calls.publish("t", "after").status == 200, "publishing resumes")
        for _ in range(30):
            assert calls.publish("t", _BODY).status == 200
        assert broker.stop() == 0
    assert len(broker.log_path.read_text().splitlines()) < _MAX_LOG_LINES
    assert_sound(broker.data_dir)


def test_a_crowd_of_connections_leaves_files_for_the_storage(tmp_path: Path) -> None:
    program = ("bash", "-c", 'ulimit -n 96; exec "$0" -m holdfast "$@"', sys.executable)
    with RunningBroker(tmp_path / "data", _ARGUMENTS, program=program) as broker:
        calls = Calls(broker.url, keep_alive=True)
        assert calls("PUT", "/v1/topics/t", {"queues": 1}).status == 201
        port = int(broker.url.rpartition(":")[2])
        crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(400)]
        # Segments roll meanwhile. A burst may be accepted before the refusals begin.
        stored = 40
        for _ in range(stored):
            wait_until(lambda: calls.publish("t", _BODY).status == 200, "it is stored")
        assert calls("GET", "/readyz").json["read_only"] is None
        for each in crowd:
            each.close()

        def answers_a_newcomer() -> bool:
            with contextlib.suppress(OSError):
                return Calls(broker.url).publish("t", "after").status == 200
            return False

        wait_until(answers_a_newcomer, "new connections are taken again")
        assert len(calls.bodies("t")) >= stored + 1
        assert broker.stop() == 0
    assert len(broker.log_path.read_text().splitlines()) < _MAX_LOG_LINES, "the log was flooded"
    assert_sound(broker.data_dir)


# M5: each segment took a descriptor, so a log of 409 segments did not start with a limit of 100


def test_a_log_of_more_segments_than_descriptors_is_served(tmp_path: Path) -> None:
    broker = RunningBroker(tmp_path / "data", _ARGUMENTS)
    with broker:
        calls = Calls(broker.url, keep_alive=True)
        assert calls("PUT", "/v1/topics/t", {"queues": 1}).status == 201
        while calls.metric("holdfast_log_segments") < 130:
            answer = calls("POST", "/v1/topics/t/messages", b"x" * 400_000)
            assert answer.status == 200
        stored = calls("GET", "/v1/topics/t").json["queues"][0]["max_offset"]
    broker.program = ("prlimit", "--nofile=100:100", *broker.program)
    with broker:
        calls = Calls(broker.url, keep_alive=True)
        assert sum(1 for _ in Path(f"/proc/{broker.pid}/fd").iterdir()) < 70
        assert len(calls.bodies("t")) == stored
        assert calls.publish("t", "after").status == 200
        assert calls("GET", "/readyz").json["degraded"] == []
        assert broker.stop() == 0
    broker.program = ("prlimit", "--nofile=20:20", *broker.program[2:])
    with pytest.raises(BrokerDidNotStart, match="ulimit -n"):
        broker.start()
