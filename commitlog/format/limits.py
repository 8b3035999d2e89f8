"""The limits of one message, which clients and the broker check. Pure."""

from dataclasses import dataclass

#: The longest time to live. With it, an expiry time in microseconds is below 2^63.
MAX_TTL_MS = 10**15


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """Upper limits for one message, in bytes: body with envelope, key, tag, and the names and
    values of all its properties together."""

    max_message_bytes: int = 4 * 1024 * 1024
    max_key_bytes: int = 4096
    max_tag_bytes: int = 1024
    max_properties_bytes: int = 32 * 1024
