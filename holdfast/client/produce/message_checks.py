"""Checks of a message before it is added to a batch, because the broker would refuse a whole batch
for one invalid message. Pure."""

from collections.abc import Mapping

from holdfast.client.errors import MessageTooLarge
from holdfast.commitlog.format.batch_check import MAX_TTL_MS
from holdfast.commitlog.format.priority import HIGHEST_PRIORITY

Body = bytes | bytearray | memoryview | str


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
    """Return the total size of names and values. Raises TypeError or ValueError."""
    size = 0
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError("properties are texts by name")
        if not name:
            raise ValueError("an empty property name")
        size += len(name.encode()) + len(value.encode())
    return size


def check_priority(priority: int) -> None:
    """Check a priority. Raises TypeError or ValueError."""
    if type(priority) is not int:
        raise TypeError(f"a priority is a whole number, not {type(priority).__name__}")
    if not 0 <= priority <= HIGHEST_PRIORITY:
        raise ValueError(f"a priority is 0 to {HIGHEST_PRIORITY}, not {priority}")


def check_ttl(ttl_ms: int) -> None:
    """Check a time to live. Raises TypeError or ValueError."""
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
        f"a {what} of {size} bytes; at most {limit} are taken",
        {"limit": limit},
    )
