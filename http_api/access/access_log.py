"""The access log: one line per request, on the logger `holdfast.access`. Off by default.

A line contains no secret: it has the path without the query, and the id of a token, not the token.
"""

import logging
from datetime import UTC, datetime

import msgspec

from holdfast.http_api.access.tokens import redact_secrets
from holdfast.http_api.wire.reply import Reply
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
        self._is_json = form == "json"

    def log_request(self, request: Request, principal: str, reply: Reply, seconds: float) -> None:
        """Log a request. `seconds` is the time from the start of its processing to its reply.

        This time includes `reply.held_s`, for which the request waited for a message.
        """
        client, method, now = request.peer.client, request.method, datetime.now(UTC)
        path = _safe(redact_secrets(request.url.raw_path))[:_MAX_PATH]
        version = f"HTTP/{request.version.major}.{request.version.minor}"
        if self._is_json:
            event = {
                "time": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
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
            line = msgspec.json.encode(event).decode()
        else:
            user = _safe(principal).replace(" ", "_")
            line = (
                f'{client or "-"} - {user} [{now:%d/%b/%Y:%H:%M:%S +0000}] "{_safe(method)} {path} '
                f'{version}" {reply.status} {reply.size} {seconds:.6f}'
            )
        _logger.info("%s", line)


def _safe(text: str) -> str:
    """Escape `text`, so that `text` can end neither a log line nor a quoted string in a line."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return text
    escaped = text.encode("unicode_escape").decode("ascii")
    return escaped.replace('"', "\\x22")
