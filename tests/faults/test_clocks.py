"""A wall clock that libfaketime sets forward and back changes no order, no wait and no
retention."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.running_broker import RunningBroker
from tests.support.clients.broker_calls import Answer, Calls, wait_until
from tests.support.storage.sound import assert_sound

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

_HOUR_S = 3600
#: Long enough to see a pull held on a busy machine, and tiny compared with an hour.
_WAIT_S = 4
_ARGUMENTS = (
    *("--commitlog-segment-bytes", "1MiB"),
    *("--commitlog-retention-interval-ms", "50"),
    *("--commitlog-producer-expiry-ms", "60000"),
)


class _Clock:
    """The wall clock of a broker."""

    def __init__(self, folder: Path) -> None:
        libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
        if not libraries:
            pytest.skip("libfaketime is missing (package faketime)")
        self._file = folder / "faketime"
        self.set(0)
        self.program = (
            "env",
            f"LD_PRELOAD={libraries[0]}",
            f"FAKETIME_TIMESTAMP_FILE={self._file}",
            "FAKETIME_NO_CACHE=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
            *(sys.executable, "-m", "holdfast"),
        )

    def set(self, ahead_s: int) -> None:
        """Set the clock `ahead_s` seconds ahead of the true time (negative: behind)."""
        unfinished = self._file.with_suffix(".new")
        unfinished.write_text(f"{ahead_s:+d}s\n")
        unfinished.rename(self._file)


def _messages(calls: Calls, topic: str) -> list[dict[str, int]]:
    path = f"/v1/topics/{topic}/queues/0/messages?from=earliest&max_messages=10000"
    found: list[dict[str, int]] = calls("GET", path).json["messages"]
    return found


def _publish_once(calls: Calls, sequence: int) -> Answer:
    return calls(
        "POST",
        "/v1/topics/t/messages",
        {"messages": [{"body": f"once-{sequence}", "queue": 0}]},
        Holdfast_Producer_Id="p",
        Holdfast_Producer_Epoch="0",
        Holdfast_Producer_Sequence=str(sequence),
    )


def _let_retention_pass(calls: Calls) -> None:
    """Publish to a topic that is trimmed by size until retention has trimmed it."""

    def begin() -> int:
        offset: int = calls("GET", "/v1/topics/small").json["queues"][0]["min_offset"]
        return offset

    for _ in range(2):
        before = begin()
        for _ in range(4):
            assert calls.publish("small", b"x" * 1000).status == 200
        wait_until(lambda before=before: begin() > before, "retention passes")  # type: ignore[misc]


def test_jumps_of_the_clock_neither_reorder_nor_delete_nor_wait(tmp_path: Path) -> None:
    clock = _Clock(tmp_path)
    with RunningBroker(tmp_path / "data", _ARGUMENTS, program=clock.program) as broker:
        calls = Calls(broker.url)
        made = calls("PUT", "/v1/topics/t", {"queues": 1, "retention_ms": 600_000})
        assert made.status == 201
        made = calls("PUT", "/v1/topics/small", {"queues": 1, "retention_bytes": 2000})
        assert made.status == 201
        first = _publish_once(calls, 0).json["results"]
        count = 1
        for ahead_s in (_HOUR_S, -_HOUR_S, 25 * _HOUR_S, 1):
            clock.set(ahead_s)
            for _ in range(5):
                assert calls.publish("t", f"{count}").status == 200
                count += 1
            _let_retention_pass(calls)
            found = _messages(calls, "t")
            assert [each["offset"] for each in found] == list(range(count)), "deleted early"
            stamps = [each["store_timestamp_ms"] for each in found]
            assert stamps == sorted(stamps)
            again = _publish_once(calls, 0).json["results"]
            assert again == first, "the producer was forgotten: the message is there twice"
        assert "the clock jumped" in broker.log_path.read_text()
        assert broker.stop() == 0
        assert_sound(broker.data_dir)
        clock.set(-_HOUR_S)  # the broker starts on a clock that is behind the log
        broker.start()
        assert calls.publish("t", "after").status == 200
        found = _messages(calls, "t")
        assert [each["offset"] for each in found] == list(range(count + 1))
        stamps = [each["store_timestamp_ms"] for each in found]
        assert stamps == sorted(stamps)


def test_a_wait_takes_as_long_as_it_was_to_whatever_the_clock_says(tmp_path: Path) -> None:
    clock = _Clock(tmp_path)
    with RunningBroker(tmp_path / "data", _ARGUMENTS, program=clock.program) as broker:
        calls = Calls(broker.url)
        assert calls("PUT", "/v1/topics/t", {"queues": 1}).status == 201
        for ahead_s in (_HOUR_S, -_HOUR_S):
            clock.set(0)
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(_pull_nothing, broker.url)
                wait_until(lambda: calls.metric("holdfast_long_poll_parked") == 1, "a held pull")
                clock.set(ahead_s)
            assert _WAIT_S - 0.1 < waiting.result() < 2 * _WAIT_S + 20


def _pull_nothing(url: str) -> float:
    """Return the duration of a pull that waits in vain."""
    started = time.monotonic()
    path = f"/v1/topics/t/queues/0/messages?offset=0&wait_ms={_WAIT_S * 1000}"
    assert Calls(url)("GET", path).json["messages"] == []
    return time.monotonic() - started
