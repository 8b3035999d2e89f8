"""The kill and power-loss tests must detect every planted defect of a real broker."""

import sys
import time
from pathlib import Path

import pytest

from holdfast.client.errors import ApiError
from holdfast.running_broker import RunningBroker
from tests.support.damage.loop_volume import LoopVolume
from tests.support.histories.workload import ARGUMENTS, Workload

pytestmark = [pytest.mark.fault, pytest.mark.crash, pytest.mark.planted, pytest.mark.timeout(900)]

#: Give up after this many kills or power losses: the defect then counts as not detected. Two or
#: three are enough, but on a busy machine little happens between two of them.
MOST_ENDS = 30
#: Errors of the checker, or of the broker when messages or topics are missing.
REFUSALS = (AssertionError, ApiError)


def test_acknowledging_without_a_sync_is_refused(volume: LoopVolume) -> None:
    with pytest.raises(REFUSALS) as refused:
        _end_again_and_again("acknowledge without sync", volume.path, volume)
    print(f"no sync: {str(refused.value)[:200]}")


@pytest.mark.parametrize(
    "defect",
    ["acknowledge offsets without commit", "index position before its entries", "forget producers"],
)
def test_a_defect_is_refused_by_kills(tmp_path: Path, defect: str) -> None:
    with pytest.raises(REFUSALS) as refused:
        _end_again_and_again(defect, tmp_path / "data", None)
    print(f"{defect}: {str(refused.value)[:200]}")


def _end_again_and_again(defect: str, data_dir: Path, volume: LoopVolume | None) -> None:
    broker = RunningBroker(data_dir, ARGUMENTS, start_timeout_s=60)
    broker.program = (sys.executable, "-m", "tests.support.damage.defective_program", defect)
    broker.start()
    try:
        with Workload(broker.url) as load:
            for _ in range(MOST_ENDS):
                time.sleep(0.3)  # let the load run
                if volume is not None:
                    load.lose_power(volume, broker)
                else:
                    load.close_gate()
                    broker.kill()
                broker.start()
                load.pause()
                load.judge(power_was_lost=volume is not None)
                load.resume()
                load.wait_for_more()
    finally:
        broker.kill()
