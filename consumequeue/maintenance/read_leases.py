"""Read leases: readers pin messages for a limited time. Pure: no clock, no loop, no locks.

A reader takes a lease with the queues and the start offsets of its plan. Until the lease ends,
retention by age and size keeps the messages of these queues from the start offsets on. Leases are
only in memory. Times are seconds on the caller's clock. The leases of each client are limited.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.consumequeue.errors import TooManyReadLeases, UnknownReadLease


@dataclass(slots=True)
class _Lease:
    topic_id: int
    starts: Mapping[int, int]
    until_s: float
    client: str


@dataclass(frozen=True, slots=True)
class LeaseLimits:
    """The largest numbers of leases and of pinned queues: in total, and for each client."""

    max_read_leases: int
    max_leased_queues: int
    max_read_leases_per_client: int
    max_leased_queues_per_client: int


@dataclass(frozen=True, slots=True)
class Pinned:
    """The messages of one topic that active leases pin. `starts` has the lowest start offset of
    each pinned queue. The last lease ends at `until_s`."""

    starts: Mapping[int, int]
    lease_count: int
    until_s: float


class ReadLeases:
    """The active leases, as many as `limits` allow."""

    def __init__(self, limits: LeaseLimits) -> None:
        self._limits = limits
        self._leases: dict[str, _Lease] = {}
        self._leases_of: Counter[str] = Counter()
        self._queues_of: Counter[str] = Counter()
        self.queue_count = 0
        """Pinned queues. A queue that two leases pin counts twice."""
        self.taken_total = 0
        self.refused_total = 0
        self.expired_total = 0

    def __len__(self) -> int:
        return len(self._leases)

    def take(
        self,
        lease_id: str,
        topic_id: int,
        starts: Mapping[int, int],
        *,
        client: str = "",
        now_s: float,
        until_s: float,
    ) -> None:
        """Pin queues of a topic from their start offsets on. Raises TooManyReadLeases."""
        self.expire(now_s)
        leases, queues = self._leases_of[client] + 1, self._queues_of[client] + len(starts)
        for limit_name, wanted in (
            ("max_read_leases_per_client", leases),
            ("max_leased_queues_per_client", queues),
            ("max_read_leases", len(self._leases) + 1),
            ("max_leased_queues", self.queue_count + len(starts)),
        ):
            if wanted > (limit := getattr(self._limits, limit_name)):
                self.refused_total += 1
                raise TooManyReadLeases(limit_name, limit)
        self._leases[lease_id] = _Lease(topic_id, dict(starts), until_s, client)
        self._leases_of[client], self._queues_of[client] = leases, queues
        self.queue_count += len(starts)
        self.taken_total += 1

    def extend(self, lease_id: str, topic_id: int, *, now_s: float, until_s: float) -> float:
        """Extend a lease so that it ends at `until_s`. A lease that ends later does not change.
        Return when the lease ends. Raises UnknownReadLease if the lease has ended or belongs to
        another topic."""
        self.expire(now_s)
        lease = self._leases.get(lease_id)
        if lease is None or lease.topic_id != topic_id:
            raise UnknownReadLease(lease_id)
        lease.until_s = max(lease.until_s, until_s)
        return lease.until_s

    def end(self, lease_id: str, topic_id: int) -> bool:
        """End a lease of a topic; return whether there was one."""
        lease = self._leases.get(lease_id)
        if lease is None or lease.topic_id != topic_id:
            return False
        self._remove([lease_id])
        return True

    def end_topic(self, topic_id: int) -> None:
        """End all leases on a topic."""
        self._remove([each for each, lease in self._leases.items() if lease.topic_id == topic_id])

    def expire(self, now_s: float) -> None:
        """Remove expired leases. At its end time a lease is expired."""
        over = [each for each, lease in self._leases.items() if lease.until_s <= now_s]
        self.expired_total += len(over)
        self._remove(over)

    def pinned(self, topic_id: int, *, now_s: float) -> Pinned | None:
        """Return which messages of a topic are pinned, or None if none are."""
        self.expire(now_s)
        leases = [lease for lease in self._leases.values() if lease.topic_id == topic_id]
        if not leases:
            return None
        starts: dict[int, int] = {}
        for lease in leases:
            for queue, start in lease.starts.items():
                starts[queue] = min(start, starts.get(queue, start))
        return Pinned(starts, len(leases), max(lease.until_s for lease in leases))

    def _remove(self, lease_ids: list[str]) -> None:
        for lease_id in lease_ids:
            lease = self._leases.pop(lease_id)
            self.queue_count -= len(lease.starts)
            self._queues_of[lease.client] -= len(lease.starts)
            self._leases_of[lease.client] -= 1
            if not self._leases_of[lease.client]:
                del self._leases_of[lease.client], self._queues_of[lease.client]
