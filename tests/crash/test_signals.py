"""A broker under load receives stop signals, or is paused (SIGSTOP) and continued. TEST_PAUSE_S
sets the length of the pause in seconds (default 6; 30 by hand)."""

import os
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.running_broker import RunningBroker
from tests.support.clients.broker_calls import Answer, Calls, fetch, wait_until
from tests.support.histories.workload import ARGUMENTS, Workload
from tests.support.storage.sound import assert_sound

pytestmark = [pytest.mark.fault, pytest.mark.crash, pytest.mark.timeout(300)]

PAUSE_S = float(os.environ.get("TEST_PAUSE_S", "6"))
SEED = int(os.environ.get("TEST_SEED", "20261121"))
STOP_S = 5.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    started = RunningBroker(tmp_path / "data", ARGUMENTS, start_timeout_s=60)
    started.start()
    yield started
    started.kill()


def _hold(broker: RunningBroker, count: int, wait_ms: int) -> list[Future[Answer]]:
    """Start pulls that wait on a topic where no message arrives."""
    with broker.client() as client:
        client.create_topic("idle", queues=1)
    url = f"{broker.url}/v1/topics/idle/queues/0/messages?from=latest&wait_ms={wait_ms}"
    pool = ThreadPoolExecutor(count)
    pulls = [pool.submit(fetch, url, timeout_s=90) for _ in range(count)]
    pool.shutdown(wait=False)
    wait_until(lambda: _held(broker) >= count, "the pulls are held")
    return pulls


def _held(broker: RunningBroker) -> float:
    return Calls(broker.url).metric("holdfast_long_poll_parked")


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
            assert pull.result(5).status in (200, 503)
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
            assert pull.result(10).status == 200
        assert time.monotonic() - continued < 5.0
        load.wait_for_more(100)
        load.pause()
        print(f"paused for {PAUSE_S:g} s: {load.judge()}")
        load.resume()
        load.wait_for_more()
    wait_until(lambda: _held(broker) == 0, "nobody is held in vain")
    assert broker.stop() == 0
