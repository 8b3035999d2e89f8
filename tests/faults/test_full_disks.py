"""On a full disk only publishing is refused, until any cause makes room again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.running_broker import RunningBroker
from tests.support.clients.broker_calls import Calls, wait_until
from tests.support.damage.small_disk import MIB, SmallDisk
from tests.support.storage.sound import assert_sound

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

_BODY = b"x" * 100_000
_SMALL = (
    *("--commitlog-segment-bytes", "1MiB"),
    *("--commitlog-reserve-bytes", "4MiB"),
    *("--commitlog-retention-interval-ms", "100"),
    *("--consumequeue-commit-interval-ms", "10"),
)
_NO_ALARM = ("--commitlog-min-free-bytes", "0")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "disk", 40 * MIB) as made:
        yield made


def _everything_else_works(calls: Calls, topic: str, stored: int) -> None:
    assert len(calls.bodies(topic)) == stored
    for number in range(50):
        put = calls("PUT", f"/v1/groups/g{number}/topics/{topic}/offsets", {"offsets": {"0": 1}})
        assert put.status == 200, put
    assert calls("GET", f"/v1/groups/g7/topics/{topic}/offsets").json["offsets"] == {"0": 1}
    assert calls("PUT", "/v1/topics/short-lived", {"queues": 1}).status == 201
    assert calls("DELETE", "/v1/topics/short-lived?confirm=short-lived").status == 200
    assert calls("GET", "/healthz").status == 200


def test_a_full_disk_stops_publishers_alone_until_there_is_room(disk: SmallDisk) -> None:
    data_dir = disk.path / "data"
    with RunningBroker(data_dir, (*_SMALL, *_NO_ALARM)) as broker:
        calls = Calls(broker.url)
        assert calls("PUT", "/v1/topics/t", {"queues": 1}).status == 201
        assert calls.publish("t", "first").status == 200
        disk.fill()
        stored = 1 + calls.publish_until("t", _BODY, 507)
        refused = calls.publish("t", _BODY)
        assert (refused.status, refused.problem, refused.retry_after_s) == (507, "disk-full", 10)
        assert not (data_dir / "reserve").exists(), "the reserve was not given up"
        _everything_else_works(calls, "t", stored)
        assert calls("GET", "/readyz").json["read_only"] is None
        disk.release()
        wait_until(lambda: calls.publish("t", "after").status == 200, "publishing resumes")
        assert broker.stop() == 0
    assert_sound(data_dir)


@pytest.mark.parametrize("mend", ["retention", "delete"])
def test_publishing_comes_back_when_room_comes_from_the_log_itself(
    disk: SmallDisk, mend: str
) -> None:
    data_dir = disk.path / "data"
    with RunningBroker(data_dir, (*_SMALL, *_NO_ALARM)) as broker:
        calls = Calls(broker.url)
        for topic in ("old", "t"):
            assert calls("PUT", f"/v1/topics/{topic}", {"queues": 1}).status == 201
        calls.publish_until("old", _BODY, 507)
        assert calls.publish("t", _BODY).status == 507
        if mend == "retention":
            changed = calls("PATCH", "/v1/topics/old", {"retention_bytes": 2 * MIB})
            assert changed.status == 200, changed
        else:
            assert calls("DELETE", "/v1/topics/old?confirm=old").status == 200
        wait_until(lambda: calls.publish("t", "after").status == 200, "publishing resumes")
        assert calls.bodies("t")[-1] == "after"
        assert broker.stop() == 0
    assert_sound(data_dir)


def test_an_alarm_stops_publishers_before_the_disk_is_full(disk: SmallDisk) -> None:
    data_dir = disk.path / "data"
    least = 8 * MIB
    arguments = (*_SMALL, "--commitlog-min-free-bytes", str(least))
    with RunningBroker(data_dir, arguments) as broker:
        calls = Calls(broker.url)
        assert calls("PUT", "/v1/topics/t", {"queues": 1}).status == 201
        assert calls.publish("t", "first").status == 200
        disk.fill(leave_bytes=least - 4096)
        wait_until(lambda: "disk" in calls.alarms(), "the alarm is raised")
        refused = calls.publish("t", "refused")
        assert (refused.status, refused.problem) == (507, "disk-full")
        assert refused.json["min_free_bytes"] == least
        assert calls.metric('holdfast_alarm{alarm="disk"}') == 1
        _everything_else_works(calls, "t", 1)
        assert (data_dir / "reserve").exists(), "there was room, and the reserve was given up"
        disk.release()
        wait_until(lambda: calls.publish("t", "after").status == 200, "publishing resumes")
        assert calls.alarms() == {}
        # The broker fills the disk by itself, and stops before the last bytes.
        calls.publish_until("t", _BODY, 507)
        assert disk.free_bytes >= least - MIB
        assert broker.stop() == 0
    assert_sound(data_dir)


def test_an_index_without_room_lags_behind_and_catches_up(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with SmallDisk(data_dir / "consumequeue", 2 * MIB) as disk:
        # Otherwise it is not a data directory: a new directory is empty.
        (data_dir / "VERSION").write_text("1\n")
        arguments = (*_SMALL, *_NO_ALARM, "--consumequeue-max-uncommitted-entries", "500")
        with RunningBroker(data_dir, arguments) as broker:
            calls = Calls(broker.url)
            assert calls("PUT", "/v1/topics/t", {"queues": 1}).status == 201
            assert calls.publish("t", "0").status == 200
            wait_until(lambda: calls.metric("holdfast_index_uncommitted_entries") == 0, "commits")
            disk.fill()
            stored = 1
            while (answer := calls.publish("t", str(stored))).status == 200:
                stored += 1
                assert stored < 5000
            assert (answer.status, answer.problem) == (503, "overloaded")
            assert answer.json["limit_name"] == "max_uncommitted_entries"
            assert calls.bodies("t") == [str(number) for number in range(stored)]
            assert "index" in calls.alarms()
            disk.release()
            wait_until(lambda: calls.publish("t", str(stored)).status == 200, "it catches up")
            assert calls.bodies("t") == [str(number) for number in range(stored + 1)]
            wait_until(lambda: calls.metric("holdfast_index_uncommitted_entries") == 0, "commits")
            assert broker.stop() == 0
        assert_sound(data_dir)


def test_a_state_without_room_refuses_offsets_clearly_and_reads_go_on(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with SmallDisk(data_dir / "state", 2 * MIB) as disk:
        (data_dir / "VERSION").write_text("1\n")
        with RunningBroker(data_dir, (*_SMALL, *_NO_ALARM)) as broker:
            calls = Calls(broker.url)
            assert calls("PUT", "/v1/topics/t", {"queues": 1}).status == 201
            assert calls.publish("t", "first").status == 200
            path = "/v1/groups/g/topics/t/offsets"
            assert calls("PUT", path, {"offsets": {"0": 1}}).status == 200
            disk.fill()
            number = 0
            while True:
                answer = calls(
                    "PUT", f"/v1/groups/g{number}/topics/t/offsets", {"offsets": {"0": 1}}
                )
                if answer.status != 200:
                    break
                number += 1
                assert number < 10_000
            assert (answer.status, answer.problem) == (507, "disk-full")
            assert answer.retry_after_s > 0
            assert calls("GET", path).json["offsets"] == {"0": 1}
            assert calls.publish("t", "it goes on").status == 200
            assert calls.bodies("t") == ["first", "it goes on"]
            disk.release()
            assert calls("PUT", path, {"offsets": {"0": 2}}).status == 200
            assert broker.stop() == 0
        assert_sound(data_dir)
