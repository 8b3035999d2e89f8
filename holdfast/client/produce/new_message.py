"""A message that is published without a producer, and whether it may share a request with other
messages. Pure."""

import msgspec

from holdfast.client.errors import MessageTooLarge
from holdfast.client.produce.message_checks import (
    check_priority,
    check_text,
    check_ttl,
    measure_properties,
)
from holdfast.commitlog.format.batch_check import MessageLimits

#: A larger message gets its own request, because sharing saves only the fixed cost of a request.
MAX_SHARED_BYTES = 32 * 1024

_LIMITS = MessageLimits()


class NewMessage(msgspec.Struct, omit_defaults=True):
    """A message to be published, in the form in which it is encoded."""

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
    """Return whether a message may share a request. It must be small. It must also pass all checks
    that a client can do, because the broker refuses a whole request for one invalid message."""
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
