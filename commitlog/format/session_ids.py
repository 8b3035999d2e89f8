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
    if _is_id(name):
        return int(name)
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") >> 1 or 1


def producer_ids_of(session: str) -> tuple[int, int]:
    """Return the first and the last producer id of a session over HTTP.

    A session is a producer, by its name or id, or a range of producer ids, such as "100-199".
    """
    first, dash, last = session.partition("-")
    if dash and _is_id(first) and _is_id(last) and int(first) <= int(last):
        return int(first), int(last)
    producer_id = producer_id_of(session)
    return producer_id, producer_id


def publisher_hash(name: str) -> int:
    """Return the number that stands for a container in envelopes. Different containers may have
    the same number."""
    return crc32c(name.encode("utf-8", "surrogatepass"))


def _is_id(text: str) -> bool:
    is_number = text.isascii() and text.isdigit() and len(text) <= 19
    return is_number and 1 <= int(text) <= _LARGEST_ID
