import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.testing import TEST_ARGUMENTS, BrokerDidNotStart, RunningBroker


def test_the_fixture_is_a_broker_for_one_test(holdfast_broker: RunningBroker) -> None:
    with holdfast_broker.client() as client:
        assert client.topics() == []
        assert client.publish("orders", b"hello").durable


def test_the_port_is_none_that_the_kernel_gives_to_others(holdfast_broker: RunningBroker) -> None:
    """A restarted broker needs it again."""
    # net.ipv4.ip_local_port_range begins here, unless an administrator has changed it.
    assert int(holdfast_broker.url.rpartition(":")[2]) < 32_768


@pytest.mark.crash
def test_a_restarted_broker_keeps_its_port_and_data(holdfast_broker: RunningBroker) -> None:
    url = holdfast_broker.url
    with holdfast_broker.client() as client:
        placed = client.publish("orders", b"hello")
        holdfast_broker.kill()
        holdfast_broker.start()
        assert client.message(placed.message_id).body == b"hello"
        holdfast_broker.restart()
        assert client.message(placed.message_id).body == b"hello"
    assert holdfast_broker.url == url
    assert holdfast_broker.stop() == 0
    assert holdfast_broker.stop() == 0


def test_a_broker_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(BrokerDidNotStart, match="--no-such-flag"):
        RunningBroker(tmp_path / "data", ["--no-such-flag"]).start()
    with RunningBroker(tmp_path / "data", TEST_ARGUMENTS) as running:
        second = RunningBroker(tmp_path / "data", TEST_ARGUMENTS)
        with pytest.raises(BrokerDidNotStart, match="ended with status"):
            second.start()
        with pytest.raises(AttributeError):
            _ = second.pid
        with socket.create_connection(("127.0.0.1", int(running.url.rpartition(":")[2]))):
            pass


def test_a_broker_that_was_not_started_has_no_url(tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match="not been started"):
        _ = RunningBroker(tmp_path / "data").url


def test_importing_the_package_imports_no_client() -> None:
    # Spark's executors and the command line's help do not need these modules.
    code = "import sys, holdfast, holdfast.client, holdfast.client.errors; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert not {"aiohttp", "uvloop", "msgspec", "numpy"} & set(done.stdout.split())


#: Program in place of `holdfast`: log that the start goes on, several times, then report "serving".
_SLOW = """
import sys, time
for step in range(int(sys.argv[1])):
    print("going on", file=sys.stderr, flush=True)
    time.sleep(0.2)
time.sleep(float(sys.argv[2]))
print("holdfast: serving on http://127.0.0.1:1", flush=True)
time.sleep(60)
"""


def _slow(
    tmp_path: Path, steps: int, silent_s: float, start_timeout_s: float = 4.0
) -> RunningBroker:
    program = (sys.executable, "-c", _SLOW, str(steps), str(silent_s))
    return RunningBroker(tmp_path / "data", start_timeout_s=start_timeout_s, program=program)


def test_a_start_that_logs_may_take_long(tmp_path: Path) -> None:
    with _slow(tmp_path, steps=24, silent_s=0) as broker:
        assert broker.url == "http://127.0.0.1:1"


def test_a_silent_start_fails(tmp_path: Path) -> None:
    with pytest.raises(BrokerDidNotStart, match="it was silent"):
        _slow(tmp_path, steps=1, silent_s=30, start_timeout_s=0.5).start()


def test_the_session_fixture_is_one_broker(holdfast_session_broker: RunningBroker) -> None:
    # C8
    with holdfast_session_broker.client() as client:
        assert client.ready()


def test_a_client_can_wait_for_its_broker(holdfast_broker: RunningBroker) -> None:
    # C8
    with holdfast_broker.client() as client:
        assert client.ready() is True
        holdfast_broker.kill()
        assert client.ready() is False
        assert client.ready(wait_ms=10) is False
        starting = threading.Thread(target=holdfast_broker.start)
        starting.start()
        assert client.ready(wait_ms=30_000) is True
        starting.join()
