"""A message that is published by itself, and whether it may share a request with others. Pure."""

import msgspec

from holdfast.client.errors import MessageTooLarge
from holdfast.client.message_checks import (
    check_priority,
    check_text,
    check_ttl,
    properties_size,
)
from holdfast.commitlog.batch_check import MessageLimits

#: A larger message goes by itself: sharing saves what a request costs beside its bytes.
MAX_SHARED_BYTES = 32 * 1024

_LIMITS = MessageLimits()


class NewMessage(msgspec.Struct, omit_defaults=True):
    """A message on its way to the broker, which says what it must not be."""

    body: bytes
    key: str | None = None
    tag: str | None = None
    properties: dict[str, str] | None = None
    queue: int | None = None
    ttl_ms: int | None = None
    priority: int | None = None

    def encode(self) -> bytes:
        """Return it as msgpack. Raises TypeError or ValueError for what msgpack cannot say."""
        return msgspec.msgpack.encode(self)


def may_share(message: NewMessage, size_bytes: int) -> bool:
    """Return whether a message may go with others: it is small, and as far as can be told here
    the broker would not refuse a request for it."""
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
        properties_bytes = 0 if message.properties is None else properties_size(message.properties)
    except (TypeError, ValueError, MessageTooLarge):
        return False
    return properties_bytes <= _LIMITS.max_properties_bytes
