"""A broker that is killed while it upgrades layout 1 to 2 finds the groups as layout 1 left
them."""

import json
import sys
import tarfile
from pathlib import Path

import pytest

from holdfast.running_broker import RunningBroker
from tests.crash.restart_campaign import ARGUMENTS
from tests.support.clients.broker_calls import Calls
from tests.support.damage.failpoint_program import wait_until_stopped
from tests.support.storage.sound import assert_sound

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

GOLDEN = Path(__file__).parents[1] / "groups" / "golden"
HOLDFAST = (sys.executable, "-m", "holdfast")
#: Failpoints where the broker stops, in the order of its start, and the layout at that time.
OF_LAYOUT_1 = {
    "version written": "1",
    "version renamed": "2",
    "cursors not begun": "2",
    "cursors begun": "2",
    "page not replaced": "2",
    "page replaced": "2",
}


@pytest.mark.parametrize(
    ("place", "more_kills"),
    [
        ("page not replaced", 0),
        *(pytest.param(each, 2, marks=pytest.mark.fault) for each in OF_LAYOUT_1),
    ],
)
def test_a_kill_on_the_way_to_layout_2_changes_nothing(
    tmp_path: Path, place: str, more_kills: int
) -> None:
    with tarfile.open(GOLDEN / "data-1.tar.xz") as tar:
        tar.extractall(tmp_path, filter="data")
    data_dir = tmp_path / "data"
    broker = RunningBroker(data_dir, ARGUMENTS, start_timeout_s=60)
    broker.program = (sys.executable, "-m", "tests.support.damage.failpoint_program", place, "1")
    try:
        process = broker.launch()
        wait_until_stopped(process.pid)
        assert (data_dir / "VERSION").read_text() == f"{OF_LAYOUT_1[place]}\n"
        broker.kill()
        assert_sound(data_dir)
        broker.program = HOLDFAST
        for _ in range(more_kills):
            broker.start()
            broker.kill()
        broker.start()
        assert (data_dir / "VERSION").read_text() == "2\n"
        _assert_as_layout_1_left_it(Calls(broker.url))
        assert broker.stop() == 0
        assert_sound(data_dir)
    finally:
        broker.kill()


def _assert_as_layout_1_left_it(calls: Calls) -> None:
    """Both queues were delivered up to offset 5; three messages were acknowledged, one rejected."""
    messages = json.loads((GOLDEN / "data-1.json").read_text())["messages"]
    acked, rejected = messages[:3], messages[6]
    again = {"receipts": [each["receipt"] for each in acked]}
    answer = calls("POST", "/v1/groups/kitchen/ack", again)
    assert [each["status"] for each in answer.json["results"]] == ["done"] * 3
    # All leases from that time have ended by now.
    answer = calls("POST", "/v1/groups/kitchen/receive", {"member": "m", "max_messages": 100})
    found = {(each["queue"], each["offset"]): each for each in answer.json["messages"]}
    settled = {(each["queue"], each["offset"]) for each in [*acked, rejected]}
    assert set(found) == {(queue, at) for queue in (0, 1) for at in range(10)} - settled
    assert {place for place, each in found.items() if each["redelivered"]} == {
        (queue, at) for queue, at in found if at < 6
    }
