"""The broker's log lines: one line an event, as text or as JSON, on standard error."""

import logging
import sys
from datetime import UTC, datetime
from textwrap import indent

from holdfast.cli.output import safe_text

#: What every record has; anything else was given with `extra=` and is written too.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class TextFormatter(logging.Formatter):
    """`2026-11-21T10:00:00.250Z WARNING holdfast.commitlog: message name=value`, one line.

    A name that a client chose can neither begin a line of its own nor colour the terminal: all
    that is not printable is escaped. Only a traceback takes further lines, which are indented.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without a line break at its end."""
        line = f"{_time(record)} {record.levelname} {record.name}: {safe_text(record.getMessage())}"
        for name, value in _extras(record).items():
            line += f" {name}={safe_text(str(value))}"
        if record.exc_info:
            # The exception's own words may hold a line break, too.
            traceback = safe_text(self.formatException(record.exc_info), keep="\n")
            line += "\n" + indent(traceback, "    ")
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, what `extra=` gave, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without a line break at its end."""
        import msgspec

        event: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(event, enc_hook=str).decode()


def start_logging(form: str, level: str) -> None:
    """Send every logger's lines to standard error in this form ("text" or "json")."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _extras(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}
