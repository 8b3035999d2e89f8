"""Which messages readers have pinned for a while. Pure: no clock, no loop, no locks.

A reader that has planned what to read takes a lease: while it lives, retention by age and size
leaves each of its queues from its start on. Leases are in memory alone; a time is a number of
seconds on whatever clock the caller keeps to.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.consumequeue.errors import TooManyReadLeases, UnknownReadLease


@dataclass(slots=True)
class _Lease:
    topic_id: int
    starts: Mapping[int, int]
    until_s: float


@dataclass(frozen=True, slots=True)
class Pinned:
    """What the living leases on one topic pin: queue -> the lowest start. The last of them ends
    at `until_s`."""

    starts: Mapping[int, int]
    lease_count: int
    until_s: float


class ReadLeases:
    """At most `max_leases` leases, which together pin at most `max_queues` queues."""

    def __init__(self, *, max_leases: int, max_queues: int) -> None:
        self._max_leases = max_leases
        self._max_queues = max_queues
        self._leases: dict[str, _Lease] = {}
        self.queue_count = 0
        """Queues that are pinned: one by two leases counts twice."""
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
        now_s: float,
        until_s: float,
    ) -> None:
        """Pin queues of a topic from their starts on. Raises TooManyReadLeases."""
        self.expire(now_s)
        for limit_name, limit, wanted in (
            ("max_read_leases", self._max_leases, len(self._leases) + 1),
            ("max_leased_queues", self._max_queues, self.queue_count + len(starts)),
        ):
            if wanted > limit:
                self.refused_total += 1
                raise TooManyReadLeases(limit_name, limit)
        self._leases[lease_id] = _Lease(topic_id, dict(starts), until_s)
        self.queue_count += len(starts)
        self.taken_total += 1

    def extend(self, lease_id: str, topic_id: int, *, now_s: float, until_s: float) -> float:
        """Let a lease live until then, if it would end earlier; return when it ends now. Raises
        UnknownReadLease for one that has ended, or is another topic's."""
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
        """End the leases whose time is over: one lives before its end, not at it."""
        over = [each for each, lease in self._leases.items() if lease.until_s <= now_s]
        self.expired_total += len(over)
        self._remove(over)

    def pinned(self, topic_id: int, *, now_s: float) -> Pinned | None:
        """Return what is pinned of a topic, None when nothing is."""
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
            self.queue_count -= len(self._leases.pop(lease_id).starts)
