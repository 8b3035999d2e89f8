"""How a publisher's name is stored with its messages. Pure.

The name is the producer's name over HTTP, or the container-id over AMQP. Batches contain only
numbers: FORMAT.md 1.5 has the producer id, and 1.7 the number in an envelope.
"""

import hashlib

from holdfast.commitlog.format.checksum import crc32c

_LARGEST_ID = 2**63 - 1


def producer_id_of(name: str) -> int:
    """Return the producer id of a name, from 1 to 2^63 - 1. A whole number in this range is its own
    id."""
    if name.isascii() and name.isdigit() and len(name) <= 19 and 1 <= int(name) <= _LARGEST_ID:
        return int(name)
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") >> 1 or 1


def publisher_hash(name: str) -> int:
    """Return the number that stands for a container in envelopes. Different containers may have
    the same number."""
    return crc32c(name.encode("utf-8", "surrogatepass"))
