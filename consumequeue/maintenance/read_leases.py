"""Read leases: readers pin messages for a limited time, and retention respects the leases.

A lease pins the messages in the plan of a parallel reader (`GET .../splits`): until the lease ends,
the topic's own retention limits delete no message of the plan's queues at or after the plan's start
offsets. The leases of each client are limited. Leases are only in memory and do not survive a
restart. Belongs to the event loop.
"""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from holdfast.consumequeue.config import ConsumeQueueConfig
from holdfast.consumequeue.errors import TooManyReadLeases, UnknownReadLease
from holdfast.consumequeue.topics import Topic


class ReadLease(msgspec.Struct, frozen=True):
    """A granted lease. It ends at `until_ms` by the wall clock unless it is extended."""

    lease_id: str
    until_ms: int


class _Lease(msgspec.Struct):
    topic_id: int
    starts: Mapping[int, int]
    until_s: float
    client: str


class Pinned(msgspec.Struct, frozen=True):
    """The messages of one topic that active leases pin. `starts` has the lowest start offset of
    each pinned queue. The last lease ends at `until_ms` by the wall clock."""

    starts: Mapping[int, int]
    lease_count: int
    until_ms: int


@dataclass(eq=False, kw_only=True)
class ReadLeases:
    """The active leases, as many as `limits` allow. `readable(topic, queue, offset)` raises if a
    queue cannot be read from an offset. `now_ms` is the wall clock."""

    readable: Callable[[Topic, int, int], object]
    limits: ConsumeQueueConfig
    now_ms: Callable[[], int]
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.trimming = asyncio.Lock()
        """`take` holds this lock. Retention holds it from reading the leases until it has raised
        the queues' min offsets, so that no lease is granted on messages that will be deleted."""
        self._leases: dict[str, _Lease] = {}
        self._leases_of: Counter[str] = Counter()
        self._queues_of: Counter[str] = Counter()
        self.queue_count = 0
        """Pinned queues. A queue that two leases pin counts twice."""
        self.taken_total = 0
        self.refused_total = 0
        self.expired_total = 0

    async def take(
        self, topic: Topic, starts: Mapping[int, int], lease_ms: int, *, client: str = ""
    ) -> ReadLease:
        """Pin queues of a topic from their start offsets on, for `lease_ms`. Raises
        TooManyReadLeases, UnknownQueue, OffsetTrimmed, OffsetBeyondEnd."""
        async with self.trimming:
            for queue, start in starts.items():
                self.readable(topic, queue, start)
            leases = self.count() + 1
            leases_of, queues_of = (
                self._leases_of[client] + 1,
                self._queues_of[client] + len(starts),
            )
            for limit_name, wanted in (
                ("max_read_leases_per_client", leases_of),
                ("max_leased_queues_per_client", queues_of),
                ("max_read_leases", leases),
                ("max_leased_queues", self.queue_count + len(starts)),
            ):
                if wanted > (limit := getattr(self.limits, limit_name)):
                    self.refused_total += 1
                    raise TooManyReadLeases(limit_name, limit)
            lease_id, until_s = secrets.token_hex(16), self.monotonic() + lease_ms / 1000
            self._leases[lease_id] = _Lease(topic.topic_id, dict(starts), until_s, client)
            self._leases_of[client], self._queues_of[client] = leases_of, queues_of
            self.queue_count += len(starts)
            self.taken_total += 1
        return ReadLease(lease_id, self._wall_ms(until_s))

    def extend(self, topic: Topic, lease_id: str, lease_ms: int) -> ReadLease:
        """Extend a lease so that it ends `lease_ms` from now. A lease that ends later does not
        change. Raises UnknownReadLease if the lease has ended or belongs to another topic."""
        self._expire()
        lease = self._leases.get(lease_id)
        if lease is None or lease.topic_id != topic.topic_id:
            raise UnknownReadLease(lease_id)
        lease.until_s = max(lease.until_s, self.monotonic() + lease_ms / 1000)
        return ReadLease(lease_id, self._wall_ms(lease.until_s))

    def end(self, topic: Topic, lease_id: str) -> bool:
        """End a lease of a topic; return whether there was one."""
        lease = self._leases.get(lease_id)
        if lease is None or lease.topic_id != topic.topic_id:
            return False
        self._remove([lease_id])
        return True

    def end_topic(self, topic_id: int) -> None:
        self._remove([each for each, lease in self._leases.items() if lease.topic_id == topic_id])

    def count(self) -> int:
        """Return the number of active leases."""
        self._expire()
        return len(self._leases)

    def pinned(self, topic_id: int) -> Pinned | None:
        """Return which messages of a topic are pinned now, or None if none are."""
        self._expire()
        leases = [lease for lease in self._leases.values() if lease.topic_id == topic_id]
        if not leases:
            return None
        starts: dict[int, int] = {}
        for lease in leases:
            for queue, start in lease.starts.items():
                starts[queue] = min(start, starts.get(queue, start))
        until_s = max(lease.until_s for lease in leases)
        return Pinned(starts, len(leases), self._wall_ms(until_s))

    def _expire(self) -> None:
        """Remove expired leases. At its end time a lease is expired."""
        now_s = self.monotonic()
        expired = [each for each, lease in self._leases.items() if lease.until_s <= now_s]
        self.expired_total += len(expired)
        self._remove(expired)

    def _remove(self, lease_ids: list[str]) -> None:
        for lease_id in lease_ids:
            lease = self._leases.pop(lease_id)
            self.queue_count -= len(lease.starts)
            self._queues_of[lease.client] -= len(lease.starts)
            self._leases_of[lease.client] -= 1
            if not self._leases_of[lease.client]:
                del self._leases_of[lease.client], self._queues_of[lease.client]

    def _wall_ms(self, until_s: float) -> int:
        """Convert a monotonic time to the wall clock, in milliseconds."""
        return self.now_ms() + round((until_s - self.monotonic()) * 1000)
