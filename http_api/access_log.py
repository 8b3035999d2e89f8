"""The access log: one line per request, on the logger `holdfast.access`. Off by default.

A line contains no secret: it has the path without the query, and the id of a token, not the token.
"""

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from holdfast.http_api.access.tokens import redact_secrets
from holdfast.http_api.wire.reply import Reply

if TYPE_CHECKING:
    from holdfast.http_api.wire.request import Request

LOGGER = "holdfast.access"

_logger = logging.getLogger(LOGGER)

#: A longer path is cut to this many characters.
_MAX_PATH = 1000


class AccessLog:
    """Writes a line for each answered request. `form` is "common" or "json".

    "common" is the common log format, followed by the duration in seconds.
    """

    def __init__(self, form: str) -> None:
        self._line = _json_line if form == "json" else _common_line

    def log_request(self, request: "Request", principal: str, reply: Reply, seconds: float) -> None:
        """Log a request. `seconds` is the time from the start of its processing to its reply.

        This time includes `reply.held_s`, for which the request waited for a message.
        """
        path = _safe(redact_secrets(request.url.raw_path))[:_MAX_PATH]
        version = f"HTTP/{request.version.major}.{request.version.minor}"
        answered = _Answered(
            request.peer.client, principal, request.method, path, version, reply, seconds
        )
        _logger.info("%s", self._line(answered, datetime.now(UTC)))


class _Answered(NamedTuple):
    """The values of one log line."""

    client: str
    principal: str
    method: str
    path: str
    version: str
    reply: Reply
    seconds: float


def _common_line(answered: _Answered, now: datetime) -> str:
    client, principal, method, path, version, reply, seconds = answered
    at = now.strftime("%d/%b/%Y:%H:%M:%S +0000")
    return (
        f'{client or "-"} - {_safe(principal).replace(" ", "_")} [{at}] "{_safe(method)} {path} '
        f'{version}" {reply.status} {reply.size} {seconds:.6f}'
    )


def _json_line(answered: _Answered, now: datetime) -> str:
    client, principal, method, path, version, reply, seconds = answered
    at = now.isoformat(timespec="milliseconds")
    event = {
        "time": at.replace("+00:00", "Z"),
        "client": client,
        "principal": principal,
        "method": method,
        "path": path,
        "version": version,
        "status": reply.status,
        "bytes": reply.size,
        "seconds": round(seconds, 6),
        "held_seconds": round(reply.held_s, 6),
    }
    return msgspec.json.encode(event).decode()


def _safe(text: str) -> str:
    """Escape `text`, so that `text` can end neither a log line nor a quoted string in a line."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return text
    escaped = text.encode("unicode_escape").decode("ascii")
    return escaped.replace('"', "\\x22")
