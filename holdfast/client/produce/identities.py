"""Producer ids, by which the broker recognizes a request that is sent again."""

import itertools
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from holdfast.commitlog.lazy_import import import_at_first_use

if TYPE_CHECKING:
    import secrets
else:
    import_at_first_use(globals(), secrets="secrets")


#: A client numbers its producers in a block of 2^24 ids. There are 2^39 - 1 blocks.
_NUMBER_BITS = 24
_BLOCKS = 2**39 - 1


class ProducerIds:
    """The producer ids of one client: numbers in a random block, from a random number on, so that
    two clients practically never use the same id. Thread-safe.

    The block and the first number are drawn at the first use.
    """

    def __init__(self) -> None:
        self._block: tuple[int, itertools.count[int]] | None = None
        self._lock = Lock()

    def create(self) -> int:
        """Return a new producer id. After 2^24 ids, the first one is used again."""
        first, numbers = self._drawn()
        return first + next(numbers) % (1 << _NUMBER_BITS)

    @property
    def session(self) -> str:
        """The name of all these producers together, for a receive with `no_local`."""
        first, _ = self._drawn()
        return f"{first}-{first + (1 << _NUMBER_BITS) - 1}"

    def _drawn(self) -> "tuple[int, itertools.count[int]]":
        if self._block is None:
            with self._lock:
                if self._block is None:
                    first = (secrets.randbelow(_BLOCKS) + 1) << _NUMBER_BITS
                    numbers = itertools.count(secrets.randbelow(1 << _NUMBER_BITS))
                    self._block = first, numbers
        return self._block


@dataclass(slots=True, eq=False)
class ProducerIdentity:
    """A producer id and the next sequence number, by which the broker recognizes retries."""

    producer_id: int
    next_sequence: int = 0


class IdentityPool:
    """Producer identities for single publish requests. Thread-safe.

    An identity numbers the requests to one topic, so only one request at a time can use it. After a
    failed request its identity is not used again, because the sequence number that the broker
    expects is unknown.
    """

    def __init__(self, ids: ProducerIds) -> None:
        self._ids = ids
        self._idle: dict[str, list[ProducerIdentity]] = {}

    def acquire(self, topic: str) -> ProducerIdentity:
        """Return an identity for this topic that no other request is using."""
        try:
            return self._idle[topic].pop()
        except (KeyError, IndexError):  # none is idle, or another thread took the last
            return ProducerIdentity(self._ids.create())

    def release(self, topic: str, identity: ProducerIdentity) -> None:
        """Return an identity to the pool after its request succeeded."""
        identity.next_sequence += 1
        self._idle.setdefault(topic, []).append(identity)
