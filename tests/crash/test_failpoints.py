"""The power goes at the worst moments there are: a broker stops dead at a named place of its
work, the power is cut, and the next start must find everything that was acknowledged."""

import sys

import pytest

from holdfast.check import check_data_dir
from holdfast.running_broker import RunningBroker
from tests.support.failpoint_program import PLACES, wait_until_stopped
from tests.support.gate import fetch
from tests.support.loop_volume import LoopVolume
from tests.support.workload import ARGUMENTS, Workload

pytestmark = [pytest.mark.fault, pytest.mark.crash, pytest.mark.timeout(300)]

HOLDFAST = (sys.executable, "-m", "holdfast")

#: Where a broker stops under load, and at the how manieth time it comes there.
UNDER_LOAD = {
    "segment allocated": 3,
    "segment header written": 3,
    "segment synced": 3,
    "segment renamed": 3,
    "segment entered": 3,
    "segment ended": 2,
    "footer written": 1,
    "footer synced": 1,
    "segment unlinked": 2,
    "index not committed": 5,
    "index committed": 5,
    "state not committed": 20,
    "state committed": 20,
}

#: The same for the first start of a broker, on an empty disk.
AT_FIRST_START = [
    ("version written", 1),
    ("version renamed", 1),
    ("version entered", 1),
    ("folder made", 1),
    ("folder made", 2),
    ("LMDB made", 1),
    ("LMDB made", 2),
]


def test_every_place_is_tried() -> None:
    assert set(PLACES) == {*UNDER_LOAD, *dict(AT_FIRST_START)}


@pytest.mark.parametrize("place", UNDER_LOAD)
def test_power_loss_at_a_named_place_under_load(volume: LoopVolume, place: str) -> None:
    arguments = [*ARGUMENTS, "--consumequeue-commit-interval-ms", "50"]
    if place == "segment unlinked":
        arguments += ["--commitlog-max-total-bytes", "3MiB"]
    broker = RunningBroker(volume.path, arguments, start_timeout_s=60)
    broker.program = _stopping_at(place, UNDER_LOAD[place])
    broker.start()
    try:
        with Workload(broker.url, written_only=place == "segment unlinked") as load:
            wait_until_stopped(broker.pid)
            load.disk_fails()
            volume.cut_power()
            load.close_gate()
            broker.kill()
            volume.restore_power()
            broker.program = HOLDFAST
            _assert_sound_start(broker)
            load.pause()
            print(load.judge(power_was_lost=True))
            load.resume()
            load.wait_for_more()
        assert broker.stop() == 0
        _assert_sound(broker)
    finally:
        broker.kill()


@pytest.mark.parametrize(("place", "count"), AT_FIRST_START)
def test_power_loss_at_the_first_start(volume: LoopVolume, place: str, count: int) -> None:
    broker = RunningBroker(volume.path, ARGUMENTS, start_timeout_s=60)
    broker.program = _stopping_at(place, count)
    try:
        process = broker.launch()
        wait_until_stopped(process.pid)
        volume.cut_power()
        broker.kill()
        volume.restore_power()
        broker.program = HOLDFAST
        broker.start()
        with broker.client() as client:
            assert client.publish("t", b"x").durable
        broker.kill()
        _assert_sound_start(broker)
        with broker.client() as client:
            (message,) = client.pull("t", follow=False)
        assert bytes(message.body) == b"x"
    finally:
        broker.kill()


def _stopping_at(place: str, count: int) -> tuple[str, ...]:
    return (sys.executable, "-m", "tests.support.failpoint_program", place, str(count))


def _assert_sound_start(broker: RunningBroker) -> None:
    _assert_sound(broker)
    broker.start()
    assert fetch(f"{broker.url}/readyz").json["degraded"] == []


def _assert_sound(broker: RunningBroker) -> None:
    report = check_data_dir(broker.data_dir)
    assert report.is_sound, report.findings
