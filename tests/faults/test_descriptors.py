"""Open files that run out: the broker's own limit at a roll, the system's, and a crowd of
connections. Whoever needs one is told to come back; the rest goes on, and all of it recovers."""

import contextlib
import resource
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.check import check_data_dir
from holdfast.running_broker import RunningBroker
from tests.support.broker_calls import Calls, wait_until
from tests.support.system_faults import injected, need_strace

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

_BODY = b"x" * 100_000
_ARGUMENTS = ("--commitlog-segment-bytes", "1MiB", "--commitlog-min-free-bytes", "0")
_MAX_LOG_LINES = 60


@contextlib.contextmanager
def _no_more_files(broker: RunningBroker) -> Iterator[None]:
    """Let the broker open no file more than it has open now."""
    before = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (0, before[1]))
    yield
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def _system_has_no_more(broker: RunningBroker, log: Path) -> Iterator[None]:
    need_strace()
    with injected(broker.pid, "openat:error=ENFILE", log):
        yield


@pytest.mark.parametrize("whose", ["process", "system"])
def test_a_roll_without_descriptors_is_refused_and_recovers(tmp_path: Path, whose: str) -> None:
    with RunningBroker(tmp_path / "data", _ARGUMENTS) as broker:
        calls = Calls(broker.url, keep_alive=True)
        assert calls("PUT", "/v1/topics/t", {"queues": 1}).status == 201
        assert calls.publish("t", _BODY).status == 200
        fault = (
            _no_more_files(broker)
            if whose == "process"
            else _system_has_no_more(broker, tmp_path / "strace.log")
        )
        with fault:
            # The active segment and the one that is prepared are still filled.
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
    assert check_data_dir(broker.data_dir).is_sound


def test_a_crowd_of_connections_leaves_files_for_the_storage(tmp_path: Path) -> None:
    program = ("bash", "-c", 'ulimit -n 96; exec "$0" -m holdfast "$@"', sys.executable)
    with RunningBroker(tmp_path / "data", _ARGUMENTS, program=program) as broker:
        calls = Calls(broker.url, keep_alive=True)
        assert calls("PUT", "/v1/topics/t", {"queues": 1}).status == 201
        port = int(broker.url.rpartition(":")[2])
        crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(400)]
        # Segments roll meanwhile. A burst may be accepted before it is refused.
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
    assert check_data_dir(broker.data_dir).is_sound
