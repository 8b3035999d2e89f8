"""A message before it is published: its form in a request, and the checks of its fields. Pure.

The client checks a message before it shares a batch or a request with other messages, because the
broker would refuse all of them for one invalid message.
"""

from collections.abc import Mapping

import msgspec

from holdfast.client.errors import MessageTooLarge
from holdfast.client.produce.options import Body as Body
from holdfast.client.produce.options import check_priority as check_priority
from holdfast.client.timestamps import Time, as_timestamp_ms
from holdfast.commitlog.format.limits import MAX_TTL_MS, MessageLimits

#: A larger message gets its own request, because sharing saves only the fixed cost of a request.
MAX_SHARED_BYTES = 32 * 1024

_LIMITS = MessageLimits()
#: The latest time that a batch can store.
_LATEST_US = 2**63 - 1


class NewMessage(msgspec.Struct, omit_defaults=True):
    """A message in the form in which a publish request contains it."""

    body: bytes
    key: str | None = None
    tag: str | None = None
    properties: dict[str, str] | None = None
    queue: int | None = None
    ttl_ms: int | None = None
    priority: int | None = None

    def encode(self) -> bytes:
        """Return the message as msgpack. Raises TypeError or ValueError if that is not possible."""
        return msgspec.msgpack.encode(self)


def can_share_request(message: NewMessage, size_bytes: int) -> bool:
    """Return whether a message may share a request: it is small, and passes all checks that the
    client can do."""
    if size_bytes > MAX_SHARED_BYTES:
        return False
    try:
        if message.queue is not None and (type(message.queue) is not int or message.queue < 0):
            return False
        if message.ttl_ms is not None:
            check_ttl(message.ttl_ms)
        if message.priority is not None:
            check_priority(message.priority)
        if message.key is not None:
            check_text("key", message.key, _LIMITS.max_key_bytes)
        if message.tag is not None:
            check_text("tag", message.tag, _LIMITS.max_tag_bytes)
        properties_bytes = (
            0 if message.properties is None else measure_properties(message.properties)
        )
    except (TypeError, ValueError, MessageTooLarge):
        return False
    return properties_bytes <= _LIMITS.max_properties_bytes


def encode_body(body: Body) -> bytes:
    """Return a message's body as bytes; text becomes UTF-8. Raises TypeError for other types."""
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise TypeError(f"a body is bytes or text, not {type(body).__name__}")


def check_text(what: str, text: str, limit: int) -> None:
    """Check a key or tag. Raises TypeError, ValueError (empty, not UTF-8) or MessageTooLarge."""
    if not isinstance(text, str):
        raise TypeError(f"a {what} is text, not {type(text).__name__}")
    if not text:
        raise ValueError(f"an empty {what}: leave it out instead")
    size = len(text.encode())
    if size > limit:
        raise message_too_large(what, size, limit)


def measure_properties(properties: Mapping[str, str]) -> int:
    """Return the total size of the names and values in bytes. Raises TypeError or ValueError."""
    size = 0
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError("the names and values of properties are text")
        if not name:
            raise ValueError("an empty property name")
        size += len(name.encode()) + len(value.encode())
    return size


def check_ttl(ttl_ms: int) -> None:
    if type(ttl_ms) is not int:
        raise TypeError(f"ttl_ms is a whole number, not {type(ttl_ms).__name__}")
    if not 1 <= ttl_ms <= MAX_TTL_MS:
        raise ValueError(f"ttl_ms is 1 to {MAX_TTL_MS}, not {ttl_ms}")


def message_too_large(what: str, size: int, limit: int) -> MessageTooLarge:
    """Return the same error that the broker would return."""
    return MessageTooLarge(
        413,
        "message-too-large",
        "Message too large",
        f"a {what} of {size} bytes; the limit is {limit} bytes",
        {"limit": limit},
    )


def as_born_us(born_timestamp_ms: Time) -> int:
    """Return a born time in microseconds since 1970. Raises TypeError, and ValueError for a time
    that a batch cannot store."""
    born_us = as_timestamp_ms(born_timestamp_ms) * 1000
    if born_us > _LATEST_US:
        raise ValueError(f"born_timestamp_ms is at most {_LATEST_US // 1000}: {born_timestamp_ms}")
    return born_us
