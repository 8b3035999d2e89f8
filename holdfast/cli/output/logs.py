"""The broker's log: one line per event, as text or as JSON, on standard error."""

import atexit
import logging
import logging.handlers
import queue
import sys
from datetime import UTC, datetime
from textwrap import indent

from holdfast.cli.output.terminal import safe_text

_logger = logging.getLogger(__name__)

#: The name of the access log's logger, as in http_api/access/access_log.py, which is not imported,
#: because the import would slow the start of every command.
ACCESS_LOGGER = "holdfast.access"
#: At most this many lines of the access log wait to be written; further lines are dropped.
MAX_WAITING_ACCESS_LINES = 10_000

#: The attributes that every record has. A formatter also writes all other attributes of a record:
#: they come from `extra=`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class TextFormatter(logging.Formatter):
    """Formats a record as one line such as `2026-11-21T10:00:00.250Z WARNING holdfast.commitlog:
    message name=value`. A traceback follows in further lines, which are indented.

    All characters that are not printable are escaped, so text from a client cannot begin a new line
    or control the terminal.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname} {record.name}: {safe_text(record.getMessage())}"
        for name, value in _extras(record).items():
            line += f" {name}={safe_text(str(value))}"
        if record.exc_info:
            # The exception's message may contain line breaks, too.
            traceback = safe_text(self.formatException(record.exc_info), keep="\n")
            line += "\n" + indent(traceback, "    ")
        return line


class JsonFormatter(logging.Formatter):
    """Formats a record as one line with a JSON object, with the values of `extra=`."""

    def format(self, record: logging.LogRecord) -> str:
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
    """Write the lines of all loggers to standard error. `form` is "text" or "json"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    _start_access_log()


def _start_access_log() -> None:
    """Write the lines of the access log to standard error unchanged, in a separate thread, so that
    a slow reader of standard error does not delay requests."""
    plain = logging.StreamHandler(sys.stderr)
    plain.setFormatter(logging.Formatter("%(message)s"))
    waiting: queue.Queue[logging.LogRecord] = queue.Queue(MAX_WAITING_ACCESS_LINES)
    listener = logging.handlers.QueueListener(waiting, plain)
    logger = logging.getLogger(ACCESS_LOGGER)
    logger.handlers[:] = [DroppingQueueHandler(waiting)]
    logger.propagate = False
    logger.setLevel("INFO")
    listener.start()
    atexit.register(listener.stop)


class DroppingQueueHandler(logging.handlers.QueueHandler):
    """Puts lines into a queue while there is room. Drops other lines, and logs their number."""

    def __init__(self, waiting: "queue.Queue[logging.LogRecord]") -> None:
        super().__init__(waiting)
        self._dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self._dropped += 1
            return
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            _logger.warning("%d lines of the access log were dropped: too many waited", dropped)


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _extras(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}
