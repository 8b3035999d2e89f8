"""Power losses on real file systems: durably acknowledged or received messages stay, and written
mode loses only its end. TEST_POWER_LOSSES (default 3) sets the losses per file system, TEST_SEED
the seed."""

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from holdfast.running_broker import RunningBroker
from tests.crash.test_kill_storm import START_S, end_during_start
from tests.support.clients.broker_calls import fetch, wait_until
from tests.support.damage.loop_volume import LoopVolume
from tests.support.histories.workload import ARGUMENTS, Judged, Workload
from tests.support.storage.sound import assert_sound

pytestmark = [pytest.mark.fault, pytest.mark.crash, pytest.mark.timeout(1800)]

LOSSES = int(os.environ.get("TEST_POWER_LOSSES", "3"))
SEED = int(os.environ.get("TEST_SEED", "20261121"))


def test_power_losses_take_nothing_that_was_acknowledged_as_durable(volume: LoopVolume) -> None:
    rng = random.Random(SEED)
    lost = starting = 0
    with _broker_on(volume) as broker, Workload(broker.url) as load:
        for _ in range(LOSSES):
            time.sleep(rng.uniform(0.1, 1.0))  # let the load run until the power fails
            load.disk_fails()
            volume.cut_power()
            if rng.random() < 0.5:
                wait_until(lambda: _is_read_only(broker), "the broker says that it is read-only")
            load.close_gate()
            broker.kill()
            volume.restore_power()
            if rng.random() < 0.3:
                lose_power = partial(volume.lose_power, broker.kill)
                end_during_start(broker, rng.uniform(0.2, START_S), lose_power)
                starting += 1
            judged = _judge_after_restart(broker, load)
            lost += judged.lost
    print(
        f"seed {SEED}, {LOSSES} losses under load, {starting} at a start: {judged}, in all {lost}"
    )


def test_power_losses_in_written_mode_take_the_end_of_the_log_alone(volume: LoopVolume) -> None:
    rng = random.Random(SEED)
    lost = []
    seldom = ("--commitlog-flush-interval-ms", "1000")
    with _broker_on(volume, *seldom) as broker, Workload(broker.url, written_only=True) as load:
        for _ in range(LOSSES):
            time.sleep(rng.uniform(0.3, 1.5))  # let the load run until the power fails
            load.lose_power(volume, broker)
            judged = _judge_after_restart(broker, load)
            lost.append(judged.lost)
    print(f"seed {SEED}, {LOSSES} losses: {judged}; each time {lost}")
    assert sum(lost) > 0, "nothing is lost though nothing is synced: was the power cut at all?"


@contextmanager
def _broker_on(volume: LoopVolume, *arguments: str) -> Iterator[RunningBroker]:
    broker = RunningBroker(volume.path, (*ARGUMENTS, *arguments), start_timeout_s=60)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


def _is_read_only(broker: RunningBroker) -> bool:
    try:
        answer = fetch(f"{broker.url}/readyz")
    except ConnectionError:
        return True  # the process has ended
    return answer.status == 200 and "Input/output error" in (answer.json["read_only"] or "")


def _judge_after_restart(broker: RunningBroker, load: Workload) -> Judged:
    assert_sound(broker.data_dir)
    broker.start()
    assert fetch(f"{broker.url}/readyz").json["degraded"] == []
    load.pause()
    judged = load.judge(power_was_lost=True)
    load.resume()
    load.wait_for_more()
    return judged
