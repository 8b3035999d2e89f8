"""H3: a third-party EventSource reads a stream of events across a restart of the broker."""

import subprocess
from pathlib import Path

from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.interop.toolchains import need, typescript_client


def test_an_event_source_goes_on_behind_its_last_event_after_a_restart(
    tmp_path: Path, document: bytes
) -> None:
    need("node", "npm")
    program = typescript_client(document) / "built" / "events.js"
    with RunningBroker(tmp_path / "data", TEST_ARGUMENTS) as broker:
        with broker.client() as client:
            client.create_topic("events", queues=2)
            for number in range(10):
                client.publish("events", f"before {number}", key=str(number))
        arguments = ["node", str(program), broker.url, "events", "20"]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as reading:
            assert reading.stdout is not None
            seen = [reading.stdout.readline() for _ in range(10)]
            broker.stop()
            broker.start()
            with broker.client() as client:
                for number in range(10):
                    client.publish("events", f"after {number}", key=str(number))
            rest, _ = reading.communicate(timeout=120)
            assert reading.returncode == 0
    bodies = [line.strip() for line in (*seen, *rest.splitlines())]
    assert sorted(bodies) == sorted(
        f"{when} {number}" for when in ("before", "after") for number in range(10)
    )
