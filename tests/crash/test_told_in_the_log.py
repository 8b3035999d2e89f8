"""What a real broker logs about its starts; and no signal ends the broker uncleanly."""

import os
import signal
from pathlib import Path

import pytest

from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.support.clients.broker_calls import wait_until
from tests.support.clients.certificates import Certificates

pytestmark = pytest.mark.crash


# O5: neither a stop nor a start after kill -9 was logged; SIGHUP ended the broker uncleanly.
def test_a_start_says_how_the_broker_before_it_ended(tmp_path: Path) -> None:
    broker = RunningBroker(tmp_path / "data", TEST_ARGUMENTS)
    broker.start()
    with broker.client() as client:
        client.publish("orders", b"x")
    broker.kill()
    broker.start()
    assert broker.stop() == 0
    broker.start()
    assert broker.stop() == 0
    log = broker.log_path.read_text()
    starts = [line for line in log.splitlines() if " recovered" in line]
    assert len(starts) == 3
    assert "did not stop cleanly" in starts[1]
    assert "after a clean stop" in starts[2]
    assert (
        log.splitlines()[0]
        .split("holdfast.cli.process.broker_process: ")[1]
        .startswith("holdfast ")
    )
    assert log.count("stopping: SIGTERM") == log.count(": stopped ") == 2


def test_a_hang_up_takes_a_new_certificate_and_serves_on(tmp_path: Path) -> None:
    ca = Certificates(tmp_path)
    certificate, key = ca.issue("server", "127.0.0.1")
    arguments = [
        *TEST_ARGUMENTS,
        *("--http-api-tls-certificate", str(certificate), "--http-api-tls-key", str(key)),
        *("--http-api-tls-reload-interval-ms", "1h"),
    ]
    with RunningBroker(tmp_path / "data", arguments) as broker:
        ca.issue("server", "127.0.0.1")
        os.kill(broker.pid, signal.SIGHUP)
        for text in (
            "new connections use the certificate",
            "reloaded the TLS files and the access tokens",
        ):
            wait_until(lambda text=text: text in broker.log_path.read_text(), text)  # type: ignore[misc]
        with broker.client(ca_file=ca.ca_file) as client:
            assert client.publish("orders", b"x").durable
        assert broker.stop() == 0
