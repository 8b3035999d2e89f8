"""How a message is printed: as json, raw or pretty, or in a format with % fields, as in kcat."""

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from holdfast.cli.output.terminal import is_terminal, safe_text

if TYPE_CHECKING:
    from holdfast.client import Message

Formatter = Callable[["Message"], bytes]

NAMES = ("json", "raw", "pretty")

#: The meaning and the formatter of each character after a percent sign. If a message has no key or
#: tag, an empty text is printed for it.
FIELDS: dict[str, tuple[str, Formatter]] = {
    "n": ("topic", lambda message: message.topic.encode()),
    "q": ("queue", lambda message: b"%d" % message.queue),
    "o": ("offset", lambda message: b"%d" % message.offset),
    "i": ("message id", lambda message: message.message_id.encode()),
    "k": ("key", lambda message: (message.key or "").encode()),
    "t": ("tag", lambda message: (message.tag or "").encode()),
    "p": ("properties, as JSON", lambda message: _json(dict(message.properties))),
    "b": ("body, byte for byte", lambda message: message.body),
    "S": ("size of the body in bytes", lambda message: b"%d" % len(message.body)),
    "T": ("store timestamp, epoch ms", lambda message: b"%d" % message.store_timestamp_ms),
    "B": ("born timestamp, epoch ms", lambda message: b"%d" % message.born_timestamp_ms),
    "%": ("a percent sign", lambda message: b"%"),
}

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PIECE = re.compile(r"%(?P<field>.?)|\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escape>.?)|(?P<text>[^%\\]+)")


def make_formatter(form: str) -> Formatter:
    """Return the function that formats messages in this form: one of NAMES, or a format with %
    fields. Raises ValueError for an unknown field or escape."""
    named: dict[str, Formatter] = {"json": _json_line, "raw": _raw_line, "pretty": _pretty}
    if form in named:
        return named[form]
    if "%" not in form:
        raise ValueError(f"{form!r} is neither {', '.join(NAMES)} nor a format with % in it")
    pieces = [_parse_piece(matched) for matched in _PIECE.finditer(form)]

    def format_message(message: "Message") -> bytes:
        return b"".join(piece if isinstance(piece, bytes) else piece(message) for piece in pieces)

    return format_message


def message_object(message: "Message") -> dict[str, object]:
    """Return a message as the HTTP API shows it. A body that is not UTF-8 becomes base64."""
    try:
        body: dict[str, object] = {"body": str(message.body, "utf-8")}
    except UnicodeDecodeError:
        body = {"body_base64": bytes(message.body)}  # msgspec writes bytes as base64
    names = ("topic", "queue", "offset", "message_id", "key", "tag")
    return {
        **{name: getattr(message, name) for name in names},
        "properties": dict(message.properties),
        **body,
        "born_timestamp_ms": message.born_timestamp_ms,
        "store_timestamp_ms": message.store_timestamp_ms,
    }


def _parse_piece(matched: re.Match[str]) -> bytes | Formatter:
    if matched["text"] is not None:
        return matched["text"].encode()
    if matched["hex"] is not None:
        return bytes.fromhex(matched["hex"])
    if matched["field"] is not None:
        if matched["field"] not in FIELDS:
            known = " ".join(f"%{sign}" for sign in FIELDS)
            raise ValueError(f"%{matched['field']} is unknown; known are {known}")
        return FIELDS[matched["field"]][1]
    if matched["escape"] not in _ESCAPES:
        known = r"\n \t \r \0 \\ \xHH"
        raise ValueError(f"\\{matched['escape']} is unknown; known are {known}")
    return _ESCAPES[matched["escape"]]


def _json(value: object) -> bytes:
    import msgspec

    encoded: bytes = msgspec.json.encode(value)
    return encoded


def _json_line(message: "Message") -> bytes:
    return _json(message_object(message)) + b"\n"


def _raw_line(message: "Message") -> bytes:
    return message.body + b"\n"


def _pretty(message: "Message") -> bytes:
    """Return a heading and the body as text, with control characters escaped."""
    stored = datetime.fromtimestamp(message.store_timestamp_ms / 1000, UTC).astimezone()
    heading = f"{message.queue}:{message.offset}  {stored.isoformat(' ', 'milliseconds')}"
    for name, value in (("key", message.key), ("tag", message.tag)):
        if value is not None:
            heading += f"  {name}={safe_text(value)}"
    for name, value in message.properties.items():
        heading += f"  {safe_text(name)}={safe_text(value)}"
    body = safe_text(str(message.body, "utf-8", "backslashreplace"), keep="\n\t")
    return f"{_dim(heading)}\n{body}\n".encode()


def _dim(text: str) -> str:
    if not is_terminal() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[2m{text}\x1b[0m"
