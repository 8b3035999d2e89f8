import json
import logging
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.http_api.access import audit as audit_module
from holdfast.http_api.access.audit import AuditFile, AuditLog, audit_line


class Clock:
    now_s = 1_790_000_000.25

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> AuditFile:
    return AuditFile(tmp_path / "access" / "audit.log", 1 << 20, 3)


Started = Callable[..., AuditLog]


@pytest.fixture
def started(file: AuditFile, clock: Clock) -> Iterator[Started]:
    """Yield a function that starts an audit log; the log is stopped at the end in any case."""
    logs: list[AuditLog] = []

    def start(*, max_denied_per_second: int = 3) -> AuditLog:
        log = AuditLog(file, max_denied_per_second=max_denied_per_second, now_s=clock)
        log.start()
        logs.append(log)
        return log

    yield start
    for log in logs:
        log.stop()


def events(file: AuditFile) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.path.read_text().splitlines()]


def test_an_event_is_one_line() -> None:
    line = audit_line(
        1_790_000_000.25,
        act="topic.create",
        about='a\n"\x1b[31m\u2028é',
        outcome="done",
        principal="token:1",
        client="::1",
        details={"status": 201},
    )
    assert line.count(b"\n") == 1
    assert b"\x1b" not in line
    assert json.loads(line) == {
        "time": "2026-09-21T14:13:20.250Z",
        "act": "topic.create",
        "object": 'a\n"\x1b[31m\u2028é',
        "outcome": "done",
        "principal": "token:1",
        "client": "::1",
        "status": 201,
    }


def test_recorded_events_are_written_before_the_stop(started: Started, file: AuditFile) -> None:
    log = started()
    for number in range(100):
        log.record("topic.create", f"t{number}", details={"n": number})
    log.stop()
    log.stop()
    assert [event["object"] for event in events(file)] == [f"t{n}" for n in range(100)]
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700


def test_events_are_appended_to_an_existing_file(started: Started, file: AuditFile) -> None:
    for number in range(3):
        log = started()
        log.record("topic.create", f"t{number}")
        log.stop()
    assert [event["object"] for event in events(file)] == ["t0", "t1", "t2"]


@pytest.mark.parametrize(("size", "is_put_aside"), [(99, False), (100, True), (101, True)])
def test_a_file_is_rotated_at_its_maximum_size(
    tmp_path: Path, size: int, is_put_aside: bool
) -> None:
    file = AuditFile(tmp_path / "audit.log", 100, 2)
    file.append(b"x" * (size - 1) + b"\n")
    assert file.path.exists() is not is_put_aside
    assert (tmp_path / "audit.log.1").exists() is is_put_aside


def test_the_number_of_rotated_files_is_limited(tmp_path: Path) -> None:
    file = AuditFile(tmp_path / "audit.log", 1, 2)
    for letter in b"abcd":
        file.append(bytes([letter]))
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert found == {"audit.log.1": b"d", "audit.log.2": b"c"}


@pytest.mark.parametrize(("count", "named"), [(2, 2), (3, 3), (4, 3)])
def test_the_denied_requests_recorded_per_second_are_limited(
    started: Started, file: AuditFile, clock: Clock, count: int, named: int
) -> None:
    log = started(max_denied_per_second=3)
    for _ in range(count):
        log.denied("GET /v1/topics", principal="unknown", client="a", details={"status": 401})
    clock.now_s += 1
    log.denied("GET /", principal="unknown", client="a", details={})
    log.stop()
    written = events(file)
    counted = [event["count"] for event in written if "count" in event]
    assert counted == ([count - named] if count > named else [])
    assert sum("count" not in event for event in written) == named + 1
    assert all(event["outcome"] == "denied" for event in written)


def test_counted_requests_are_recorded_at_the_stop(started: Started, file: AuditFile) -> None:
    log = started(max_denied_per_second=0)
    for _ in range(7):
        log.denied("GET /", principal="unknown", client="a", details={})
    log.stop()
    assert [event["count"] for event in events(file)] == [7]


def test_an_event_that_cannot_be_written_is_logged(
    started: Started, file: AuditFile, caplog: pytest.LogCaptureFixture
) -> None:
    file.path.mkdir(parents=True)
    log = started()
    with caplog.at_level(logging.ERROR, "holdfast.audit"):
        log.record("topic.delete", "orders")
        log.stop()
    assert "topic.delete" in caplog.text
    assert "cannot be written" in caplog.text


def test_callers_do_not_wait_for_a_slow_disk(
    started: Started, file: AuditFile, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(audit_module, "MAX_WAITING", 10)
    is_stuck, may_go_on = threading.Event(), threading.Event()
    append = file.append

    def stuck(lines: bytes) -> None:
        is_stuck.set()
        may_go_on.wait(30)
        append(lines)

    monkeypatch.setattr(file, "append", stuck)
    log = started()
    log.record("topic.create", "first")
    assert is_stuck.wait(30)
    for number in range(15):
        log.record("topic.create", f"t{number}")
    assert log.lost == 5
    assert caplog.text.count("more events than the disk can write") == 1
    may_go_on.set()
    log.stop()
    assert [event["object"] for event in events(file)] == ["first", *(f"t{n}" for n in range(10))]
