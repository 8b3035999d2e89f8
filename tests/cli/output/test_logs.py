"""The broker's log lines."""

import json
import logging
import queue
import sys

import pytest

from holdfast.cli.output import logs
from holdfast.cli.output.logs import JsonFormatter, TextFormatter


def record(
    message: str, *arguments: object, failed: bool = False, **extra: object
) -> logging.LogRecord:
    exc_info = None
    if failed:
        try:
            raise ValueError("no\n2026-11-21T10:00:00.250Z INFO all is well\x1b[2J")
        except ValueError:
            exc_info = sys.exc_info()
    made = logging.LogRecord(
        "holdfast.x", logging.WARNING, __file__, 1, message, arguments, exc_info
    )
    made.created = 1_795_255_200.25
    vars(made).update(extra)
    return made


def test_text_is_one_line() -> None:
    line = TextFormatter().format(record("topic %s", "orders", queue=3))
    assert line == "2026-11-21T10:00:00.250Z WARNING holdfast.x: topic orders queue=3"


def test_a_name_from_outside_cannot_forge_a_line() -> None:
    hostile = "a\n2026-11-21T10:00:00.250Z INFO holdfast.x: all is well\x1b[2J"
    line = TextFormatter().format(record("topic %s", hostile, key=hostile))
    assert "\n" not in line
    assert "\x1b" not in line
    assert "topic a\\n2026" in line


def test_json_holds_what_text_does() -> None:
    line = JsonFormatter().format(record("topic %s", "or\nders", queue=3, path=logging))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2026-11-21T10:00:00.250Z",
        "level": "warning",
        "logger": "holdfast.x",
        "message": "topic or\nders",
        "queue": 3,
        "path": str(logging),
    }


def test_an_exception_cannot_forge_a_line_either() -> None:
    lines = TextFormatter().format(record("x", failed=True)).split("\n")
    assert len(lines) > 3
    assert all(line.startswith("    ") for line in lines[1:])
    assert not any("\x1b" in line for line in lines)


def test_a_traceback_is_kept() -> None:
    assert "ValueError: no" in TextFormatter().format(record("x", failed=True))
    assert (
        "ValueError: no"
        in json.loads(JsonFormatter().format(record("x", failed=True)))["exception"]
    )


# O5: there was no access log; a request must not wait for a slow reader of the log.
def test_a_line_of_the_access_log_that_finds_no_room_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    waiting: queue.Queue[logging.LogRecord] = queue.Queue(2)
    handler = logs.DroppingQueueHandler(waiting)
    for number in range(5):
        handler.handle(record(f"line {number}"))
    assert [waiting.get_nowait().getMessage() for _ in range(2)] == ["line 0", "line 1"]
    handler.handle(record("line 5"))
    assert waiting.get_nowait().getMessage() == "line 5"
    assert "3 lines of the access log were dropped" in caplog.text
