"""A stored offset beyond the end that a power loss left must not skip the next messages."""

from collections.abc import Iterator

import pytest

from holdfast.running_broker import RunningBroker
from tests.support.clients.broker_calls import Calls
from tests.support.damage.loop_volume import LoopVolume, loop_volume

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

_NO_SYNC = (
    *("--commitlog-segment-bytes", "8MiB"),
    *("--commitlog-flush-interval-ms", "3600000"),
    *("--consumequeue-commit-interval-ms", "3600000"),
)
_MESSAGES = "/v1/topics/t/queues/0/messages"
_OFFSETS = "/v1/groups/g/topics/t/offsets"


@pytest.fixture
def volume() -> Iterator[LoopVolume]:
    with loop_volume("ext4") as volume:
        yield volume


def test_a_group_passes_over_nothing_that_takes_the_place_of_what_was_lost(
    volume: LoopVolume,
) -> None:
    broker = RunningBroker(volume.path / "data", _NO_SYNC)
    with broker:
        calls = Calls(broker.url)
        made = calls("PUT", "/v1/topics/t", {"queues": 1, "durability": "written"})
        assert made.status == 201
        assert calls.publish("t", "synced", "?durability=fsync").status == 200
        for number in range(30):
            assert calls.publish("t", f"lost-{number}").status == 200
        assert len(calls.bodies("t")) == 31
        stored = calls("PUT", _OFFSETS, {"offsets": {"0": 31}})
        assert stored.status == 200
        # The sync of the state may have written the log's pages to the journal of the same file
        # system, but not its data: the log was never synced after the first message.
        volume.lose_power(broker.kill)
    with broker:
        end = calls("GET", "/v1/topics/t").json["queues"][0]["max_offset"]
        if end == 31:
            pytest.skip("the power loss took nothing")
        assert calls("GET", _OFFSETS).json["offsets"] == {"0": end}
        # A running consumer gets the error when it stores its next offset.
        etag = stored.headers["ETag"]
        refused = calls("PUT", _OFFSETS, {"offsets": {"0": 32}}, If_Match=etag)
        assert (refused.status, refused.problem) == (412, "offsets-changed")
        # A consumer that keeps its offset itself gets the error that it is beyond the end.
        beyond = calls("GET", f"{_MESSAGES}?offset=31")
        assert (beyond.status, beyond.problem) == (416, "offset-beyond-end")
        for number in range(40):
            assert calls.publish("t", f"new-{number}").status == 200
        found = calls("GET", f"{_MESSAGES}?offset={end}&max_messages=100").json["messages"]
        assert [each["body"] for each in found] == [f"new-{number}" for number in range(40)]
        assert broker.stop() == 0
