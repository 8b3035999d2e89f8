"""Read leases in a running broker: readers take them, retention waits for them.

On the event loop. A lease pins what a plan for parallel readers covers (`GET .../splits`), so that
retention by a topic's own limits does not take it while it is read. A restart forgets every lease.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdfast.consumequeue.read_leases import Pinned, ReadLeases
from holdfast.consumequeue.topics import Topic


@dataclass(frozen=True, slots=True)
class ReadLease:
    """A lease that was granted. It ends at `until_ms` by the wall clock unless it is extended."""

    lease_id: str
    until_ms: int


class ReadLeasing:
    """`readable(topic, queue, offset)` raises where a queue cannot be read from an offset."""

    def __init__(
        self,
        *,
        readable: Callable[[Topic, int, int], object],
        max_leases: int,
        max_queues: int,
        now_ms: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._readable = readable
        self._now_ms = now_ms
        self._monotonic = monotonic
        self.leases = ReadLeases(max_leases=max_leases, max_queues=max_queues)
        self.trimming = asyncio.Lock()
        """Held by retention from its look at the leases until the queues begin elsewhere, and by
        whoever takes a lease: none is granted on what is about to go."""

    async def take(self, topic: Topic, starts: Mapping[int, int], lease_ms: int) -> ReadLease:
        """Pin queues of a topic from their starts on, for so long. Raises TooManyReadLeases,
        UnknownQueue, OffsetTrimmed, OffsetBeyondEnd."""
        async with self.trimming:
            for queue, start in starts.items():
                self._readable(topic, queue, start)
            lease_id = secrets.token_hex(16)
            now_s = self._monotonic()
            until_s = now_s + lease_ms / 1000
            self.leases.take(lease_id, topic.topic_id, starts, now_s=now_s, until_s=until_s)
        return ReadLease(lease_id, self.wall_ms(until_s))

    def extend(self, topic: Topic, lease_id: str, lease_ms: int) -> ReadLease:
        """Let a lease live for so long from now, if that is longer. Raises UnknownReadLease."""
        now_s = self._monotonic()
        until_s = self.leases.extend(
            lease_id, topic.topic_id, now_s=now_s, until_s=now_s + lease_ms / 1000
        )
        return ReadLease(lease_id, self.wall_ms(until_s))

    def end(self, topic: Topic, lease_id: str) -> bool:
        """End a lease; return whether there was one."""
        return self.leases.end(lease_id, topic.topic_id)

    def pinned(self, topic_id: int) -> Pinned | None:
        """Return what is pinned of a topic now, None when nothing is."""
        return self.leases.pinned(topic_id, now_s=self._monotonic())

    def count(self) -> int:
        """Return how many leases live now."""
        self.leases.expire(self._monotonic())
        return len(self.leases)

    def wall_ms(self, until_s: float) -> int:
        """Return what the wall clock will say then."""
        return self._now_ms() + round((until_s - self._monotonic()) * 1000)
