"""What a message may be, checked before it joins others that it would fail with it. Pure."""

from collections.abc import Mapping

from holdfast.client.errors import MessageTooLarge

Body = bytes | bytearray | memoryview | str


def as_bytes(body: Body) -> bytes:
    """Return a message's body as bytes: text as UTF-8. Raises TypeError for anything else."""
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise TypeError(f"a body is bytes or text, not {type(body).__name__}")


def check_text(what: str, text: str, limit: int) -> None:
    """Pass a key or tag. Raises TypeError, ValueError (empty, not UTF-8) or MessageTooLarge."""
    if not isinstance(text, str):
        raise TypeError(f"a {what} is text, not {type(text).__name__}")
    if not text:
        raise ValueError(f"an empty {what}: leave it out instead")
    size = len(text.encode())
    if size > limit:
        raise too_large(what, size, limit)


def properties_size(properties: Mapping[str, str]) -> int:
    """Return the size of all names and values. Raises TypeError or ValueError."""
    size = 0
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError("properties are texts by name")
        if not name:
            raise ValueError("an empty property name")
        size += len(name.encode()) + len(value.encode())
    return size


def too_large(what: str, size: int, limit: int) -> MessageTooLarge:
    """Return the error that the broker would answer."""
    return MessageTooLarge(
        413,
        "message-too-large",
        "Message too large",
        f"a {what} of {size} bytes; at most {limit} are taken",
        {"limit": limit},
    )
