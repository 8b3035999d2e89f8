"""The hashes of keys and tags, and what is derived from them. Pure."""

from collections.abc import Iterable

from holdfast.commitlog.format.checksum import crc32c


def key_hash(key: str) -> int:
    """Return the crc32c of the key's UTF-8 bytes. This hash also selects the queue of the key."""
    return crc32c(key.encode())


def tags_code(tag: str) -> int:
    """Return the crc32c of the tag's UTF-8 bytes. Equal codes do not prove equal tags."""
    return crc32c(tag.encode())


def queue_for_key(key: str, queue_count: int) -> int:
    """Return the queue of messages with this key. The broker and all clients use this rule."""
    return key_hash(key) % queue_count


def tag_summary(codes: Iterable[int]) -> int:
    """Return the 64-bit summary of tag codes: for each code, bit (code mod 64) is set."""
    summary = 0
    for code in codes:
        summary |= 1 << (code & 63)
    return summary
