"""Holdfast's media types for schemathesis, which loads this file (SCHEMATHESIS_HOOKS)."""

from typing import Any

import msgpack
import msgspec
import schemathesis

from holdfast.commitlog.format.batch_encoding import encode_batch


@schemathesis.serializer("application/msgpack")
def to_msgpack(ctx: Any, value: Any) -> bytes:
    """Return a generated body as msgpack, or its repr if that fails; return bytes unchanged."""
    if isinstance(value, bytes):
        return value
    try:
        return msgspec.msgpack.encode(value)
    except (TypeError, ValueError, OverflowError):
        return repr(value).encode(errors="replace")


@schemathesis.serializer("application/x-ndjson")
def to_lines(ctx: Any, value: Any) -> bytes:
    """Return a generated body as two lines, the first of which is a valid message."""
    text = value if isinstance(value, str) else repr(value)
    good = msgspec.json.encode({"body": text.encode(errors="replace").decode()})
    return good + b"\n" + text.encode(errors="replace")


@schemathesis.serializer("application/vnd.holdfast.batch")
def to_batch(ctx: Any, value: Any) -> bytes:
    """Return a generated body in a valid batch or as raw bytes."""
    raw = value if isinstance(value, bytes) else repr(value).encode(errors="replace")
    return raw if len(raw) % 2 else encode_batch([raw])


@schemathesis.deserializer("application/msgpack", "application/vnd.holdfast.batch")
def from_msgpack(ctx: Any, response: Any) -> Any:
    """Return a decoded reply with texts in place of bytes, as JSON has them; {} for a batch."""
    if "batch" in response.headers["content-type"][0]:
        return {}
    return _texts(msgpack.unpackb(response.content))


def _texts(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, dict):
        return {name: _texts(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_texts(each) for each in value]
    return value
