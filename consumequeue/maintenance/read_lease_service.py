"""Read leases in a running broker: readers take them, and retention respects them.

Belongs to the event loop. A lease pins the messages in the plan of a parallel reader (`GET
.../splits`), so that a topic's own retention limits do not delete these messages while the reader
needs them. Leases do not survive a restart.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdfast.consumequeue.maintenance.read_leases import LeaseLimits, Pinned, ReadLeases
from holdfast.consumequeue.topics import Topic


@dataclass(frozen=True, slots=True)
class ReadLease:
    """A granted lease. It ends at `until_ms` by the wall clock unless it is extended."""

    lease_id: str
    until_ms: int


class ReadLeaseService:
    """Grants read leases. `readable(topic, queue, offset)` raises if a queue cannot be read from
    an offset."""

    def __init__(
        self,
        *,
        readable: Callable[[Topic, int, int], object],
        limits: LeaseLimits,
        now_ms: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._readable = readable
        self._now_ms = now_ms
        self._monotonic = monotonic
        self.leases = ReadLeases(limits)
        self.trimming = asyncio.Lock()
        """`take` holds this lock. Retention holds it from reading the leases until it has raised
        the queues' min offsets, so that no lease is granted on messages that will be deleted."""

    async def take(
        self, topic: Topic, starts: Mapping[int, int], lease_ms: int, *, client: str = ""
    ) -> ReadLease:
        """Pin queues of a topic from their start offsets on, for `lease_ms`. Raises
        TooManyReadLeases, UnknownQueue, OffsetTrimmed, OffsetBeyondEnd."""
        async with self.trimming:
            for queue, start in starts.items():
                self._readable(topic, queue, start)
            lease_id = secrets.token_hex(16)
            now_s = self._monotonic()
            until_s = now_s + lease_ms / 1000
            self.leases.take(
                lease_id, topic.topic_id, starts, client=client, now_s=now_s, until_s=until_s
            )
        return ReadLease(lease_id, self.wall_ms(until_s))

    def extend(self, topic: Topic, lease_id: str, lease_ms: int) -> ReadLease:
        """Extend a lease so that it ends `lease_ms` from now. A lease that ends later does not
        change. Raises UnknownReadLease."""
        now_s = self._monotonic()
        until_s = self.leases.extend(
            lease_id, topic.topic_id, now_s=now_s, until_s=now_s + lease_ms / 1000
        )
        return ReadLease(lease_id, self.wall_ms(until_s))

    def end(self, topic: Topic, lease_id: str) -> bool:
        """End a lease; return whether there was one."""
        return self.leases.end(lease_id, topic.topic_id)

    def pinned(self, topic_id: int) -> Pinned | None:
        """Return which messages of a topic are pinned now, or None if none are."""
        return self.leases.pinned(topic_id, now_s=self._monotonic())

    def count(self) -> int:
        """Return the number of active leases."""
        self.leases.expire(self._monotonic())
        return len(self.leases)

    def wall_ms(self, until_s: float) -> int:
        """Convert a monotonic time to the wall clock, in milliseconds."""
        return self._now_ms() + round((until_s - self._monotonic()) * 1000)
