"""A broker under load receives stop signals, or is paused (SIGSTOP) and continued. TEST_PAUSE_S
sets the length of the pause in seconds (default 6; 30 by hand)."""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.running_broker import RunningBroker
from tests.support.broker_calls import Answer, fetch, wait_until
from tests.support.sound import assert_sound
from tests.support.workload import ARGUMENTS, Workload

pytestmark = [pytest.mark.fault, pytest.mark.crash, pytest.mark.timeout(300)]

PAUSE_S = float(os.environ.get("TEST_PAUSE_S", "6"))
SEED = int(os.environ.get("TEST_SEED", "20261121"))
STOP_S = 5.0


class HeldPull(threading.Thread):
    """A pull that waits on a topic where no message arrives."""

    def __init__(self, url: str, wait_ms: int) -> None:
        super().__init__(daemon=True)
        self._url = f"{url}/v1/topics/idle/queues/0/messages?from=latest&wait_ms={wait_ms}"
        self.answer: Answer | None = None
        self.took_s = 0.0

    def run(self) -> None:
        started = time.monotonic()
        self.answer = fetch(self._url, timeout_s=90)
        self.took_s = time.monotonic() - started


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    started = RunningBroker(tmp_path / "data", ARGUMENTS, start_timeout_s=60)
    started.start()
    yield started
    started.kill()


def _hold(broker: RunningBroker, count: int, wait_ms: int) -> list[HeldPull]:
    with broker.client() as client:
        client.create_topic("idle", queues=1)
    pulls = [HeldPull(broker.url, wait_ms) for _ in range(count)]
    for pull in pulls:
        pull.start()
    wait_until(lambda: _held(broker) >= count, "the pulls are held")
    return pulls


def _held(broker: RunningBroker) -> int:
    for line in fetch(f"{broker.url}/metrics").raw.decode().splitlines():
        if line.startswith("holdfast_long_poll_parked "):
            return int(float(line.split()[1]))
    raise AssertionError("no such metric")


@pytest.mark.parametrize("again", [None, signal.SIGTERM, signal.SIGINT])
def test_sigterm_under_load_ends_everything_in_order(
    broker: RunningBroker, again: signal.Signals | None
) -> None:
    with Workload(broker.url) as load:
        pulls = _hold(broker, 20, wait_ms=60_000)
        load.wait_for_more(100)
        started = time.monotonic()
        os.kill(broker.pid, signal.SIGTERM)
        if again is not None:
            time.sleep(0.05)  # at some moment of the stop
            os.kill(broker.pid, again)
        assert broker.wait(20) == 0
        assert time.monotonic() - started < STOP_S
        for pull in pulls:
            pull.join(5)
            assert pull.answer is not None, "a held pull was not answered"
            assert pull.answer.status in (200, 503), pull.answer
        assert_sound(broker.data_dir)
        broker.start()
        load.wait_for_more()
        load.pause()
        print(load.judge())
        load.resume()


def test_sigterm_at_any_moment_of_a_start(broker: RunningBroker) -> None:
    with Workload(broker.url) as load:
        load.wait_for_more(300)
        load.pause()
        acknowledged = load.judge().acknowledged
        load.resume()
    broker.kill()
    rng = random.Random(SEED)
    for _ in range(8):
        process = broker.launch()
        time.sleep(rng.uniform(0.05, 1.5))  # at some moment of the start
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        # Before the broker installs its handlers, a signal ends Python as it ends any program.
        assert broker.wait(20) in (0, -signal.SIGTERM)
        assert time.monotonic() - started < STOP_S
    assert_sound(broker.data_dir)
    broker.start()
    with broker.client() as client:
        topics = [topic["topic"] for topic in client.topics() if topic["topic"] != "churn"]
        assert {"durable", "plain", "written", "trimmed"} <= set(topics)
        durable = sum(1 for _ in client.pull("durable", follow=False))
    assert durable > 0
    assert acknowledged > 0


def test_a_paused_broker_goes_on_where_it_was(broker: RunningBroker) -> None:
    with Workload(broker.url, timeout_s=min(1.0, PAUSE_S / 3)) as load:
        load.wait_for_more(100)
        # Long enough that all are held at once; short enough that they end during the pause.
        pulls = _hold(broker, 20, wait_ms=int(PAUSE_S * 750))
        os.kill(broker.pid, signal.SIGSTOP)
        time.sleep(PAUSE_S)  # deadlines pass; clients time out and reconnect
        os.kill(broker.pid, signal.SIGCONT)
        continued = time.monotonic()
        for pull in pulls:
            pull.join(10)
            assert pull.answer is not None, "a held pull was not answered"
            assert pull.answer.status == 200, pull.answer
        assert time.monotonic() - continued < 5.0
        load.wait_for_more(100)
        load.pause()
        print(f"paused for {PAUSE_S:g} s: {load.judge()}")
        load.resume()
        load.wait_for_more()
    wait_until(lambda: _held(broker) == 0, "nobody is held in vain")
    assert broker.stop() == 0
