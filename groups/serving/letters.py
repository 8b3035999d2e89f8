"""Dead letters as messages: the properties that they add, and their producer ids. Pure.

Only the broker may write these properties. But older brokers let publishers write them, too. So a
reader must not trust the topic and queue that a letter names.
"""

from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from holdfast.commitlog.format.batch import Batch
from holdfast.consumequeue.errors import InvalidName
from holdfast.consumequeue.topics import check_name

#: Property names with this prefix are reserved for the broker.
RESERVED_PREFIX = "holdfast-dead-"


class NotADeadLetter(ValueError):
    """The message does not name the topic and queue from which it came."""


class Origin(msgspec.Struct, frozen=True):
    """The topic and queue from which a dead letter came, and the original message's properties."""

    topic: str
    queue: int
    properties: Mapping[str, str]


def letter_properties(
    *, topic: str, queue: int, offset: int, reason: str, attempts: int, group: str
) -> dict[str, str]:
    """Return the properties that a dead letter has in addition to the properties of its message."""
    return {
        f"{RESERVED_PREFIX}topic": topic,
        f"{RESERVED_PREFIX}queue": str(queue),
        f"{RESERVED_PREFIX}offset": str(offset),
        f"{RESERVED_PREFIX}reason": reason,
        f"{RESERVED_PREFIX}attempts": str(attempts),
        f"{RESERVED_PREFIX}group": group,
    }


def letters_condition(group: str) -> str:
    """Return the SQL92 condition that matches a group's dead letters."""
    return f"`{RESERVED_PREFIX}group` = '{group}'"


def read_origin(batch: Batch, row: int) -> Origin:
    """Return the origin that a dead letter names. Raises NotADeadLetter."""
    properties = batch.properties(row)
    try:
        topic = check_name("topic", properties[f"{RESERVED_PREFIX}topic"])
        queue = int(properties[f"{RESERVED_PREFIX}queue"])
    except (KeyError, ValueError, InvalidName) as error:
        raise NotADeadLetter from error
    if not 0 <= queue < 2**31:
        raise NotADeadLetter
    own = {name: text for name, text in properties.items() if not name.startswith(RESERVED_PREFIX)}
    return Origin(topic, queue, own)


def keyed_producer_id(key: bytes, purpose: str, name: str) -> int:
    """Return the producer id for `name`. The same arguments always give the same id; a different
    `purpose` gives a different id.

    The id cannot be computed without the key. If a client could compute it, the client could
    publish a message under this id before the broker does. The log would then drop the broker's
    message as a duplicate."""
    digest = blake2b(f"{purpose} {name}".encode(), digest_size=8, key=key[:64]).digest()
    return int.from_bytes(digest, "big") >> 1 or 1
