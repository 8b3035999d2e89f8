"""SIGKILLs under load, during start, recovery and stop lose nothing that was acknowledged.
TEST_KILLS sets the number of kills (default 20), TEST_SEED the seed."""

import os
import random
import signal
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.running_broker import RunningBroker
from tests.support.histories.workload import ARGUMENTS, Workload
from tests.support.storage.sound import assert_sound

pytestmark = [pytest.mark.fault, pytest.mark.crash, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("TEST_KILLS", "20"))
SEED = int(os.environ.get("TEST_SEED", "20261121"))
#: A start of a broker takes about this long; a kill comes at any time within it.
START_S = 1.5


def test_a_storm_of_kills_loses_nothing(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    kills = {"load": 0, "start": 0, "stop": 0}
    starts_s: list[float] = []
    broker = RunningBroker(tmp_path / "data", ARGUMENTS, start_timeout_s=60)
    broker.start()
    try:
        with Workload(broker.url) as load:
            while sum(kills.values()) < KILLS:
                time.sleep(rng.uniform(0.05, 0.6))  # let the load run until a random kill
                moment = rng.choices(("load", "start", "stop"), (4, 1, 1))[0]
                if moment == "stop":
                    os.kill(broker.pid, signal.SIGTERM)
                    time.sleep(rng.uniform(0, 0.2))  # at some moment of the stop
                broker.kill()
                kills[moment if moment == "stop" else "load"] += 1
                while rng.random() < 0.2 and sum(kills.values()) < KILLS:
                    end_during_start(broker, rng.uniform(0.1, START_S))
                    kills["start"] += 1
                if rng.random() < 0.2:
                    assert_sound(broker.data_dir)
                started = time.monotonic()
                broker.start()
                starts_s.append(time.monotonic() - started)
                load.wait_for_more()
            load.pause()
            judged = load.judge()
            load.resume()
            load.wait_for_more()
        print(f"seed {SEED}, kills {kills}: {judged}")
        print(f"starts: median {statistics.median(starts_s):.2f} s, most {max(starts_s):.2f} s")
        assert judged.lost == 0
    finally:
        status = broker.stop()
    assert status == 0
    assert_sound(broker.data_dir)


def test_kills_at_the_first_start_leave_nothing_in_the_way(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    for number in range(max(KILLS // 5, 2)):
        broker = RunningBroker(tmp_path / f"data-{number}", ARGUMENTS, start_timeout_s=60)
        try:
            for _ in range(2):
                end_during_start(broker, rng.uniform(0.3, START_S))
            broker.start()
            with broker.client() as client:
                assert client.publish("t", b"x").durable
        finally:
            assert broker.stop() == 0
        assert_sound(broker.data_dir)


def end_during_start(
    broker: RunningBroker, after_s: float, end: Callable[[], object] | None = None
) -> None:
    """Start the broker, and call `end` (default: kill the broker) after this time."""
    process = broker.launch()
    try:
        process.wait(after_s)
    except subprocess.TimeoutExpired:
        (end or broker.kill)()
        return
    raise AssertionError(f"the broker ended by itself: {broker.log_path.read_text()[-4000:]}")
