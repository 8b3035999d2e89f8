"""Producer ids that only this broker can compute. Pure.

The broker publishes each dead letter, and each letter that it puts back, under a separate producer
id, so that the log stores the letter only once. If a client could compute such an id, it could
publish a message of its own under this id first. The log would then drop the letter as a duplicate.
"""

from hashlib import blake2b


def keyed_producer_id(key: bytes, purpose: str, name: str) -> int:
    """Return the producer id for `name`; it is always the same. A different `purpose` gives a
    different id. The id cannot be computed without the key."""
    digest = blake2b(f"{purpose} {name}".encode(), digest_size=8, key=key[:64]).digest()
    return int.from_bytes(digest, "big") >> 1 or 1
