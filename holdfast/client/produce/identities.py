"""Producer ids, by which the broker recognizes a request that is sent again."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.commitlog.lazy_import import import_at_first_use

if TYPE_CHECKING:
    import secrets
else:
    import_at_first_use(globals(), secrets="secrets")


@dataclass(slots=True, eq=False)
class ProducerIdentity:
    """A random producer id and the next sequence number, by which the broker recognizes retries."""

    producer_id: int = field(default_factory=lambda: secrets.randbelow(2**63 - 1) + 1)
    next_sequence: int = 0


class IdentityPool:
    """Producer identities for single publish requests. Thread-safe.

    An identity numbers the requests to one topic, so only one request at a time can use it. After a
    failed request its identity is not used again, because the sequence number that the broker
    expects is unknown.
    """

    def __init__(self) -> None:
        self._idle: dict[str, list[ProducerIdentity]] = {}

    def acquire(self, topic: str) -> ProducerIdentity:
        """Return an identity for this topic that no other request is using."""
        try:
            return self._idle[topic].pop()
        except (KeyError, IndexError):  # none is idle, or another thread took the last
            return ProducerIdentity()

    def release(self, topic: str, identity: ProducerIdentity) -> None:
        """Return an identity to the pool after its request succeeded."""
        identity.next_sequence += 1
        self._idle.setdefault(topic, []).append(identity)
