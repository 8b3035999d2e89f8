"""What serving a message costs: a count, its bytes, or the time that it is worked on. Pure.

Time is not known when a message is delivered, so the flow's moving average is charged and the
difference settled when the lease ends. A lease's own length is the most that it can cost.
"""

from holdfast.groups.heads import Head
from holdfast.groups.leases import Lease

#: What a message costs beside its bytes, so that many small ones are not free.
OVERHEAD_BYTES = 64
#: A time's unit: a tenth of a millisecond, so that quick handlers differ too.
UNITS_PER_MS = 10
#: What is charged for the first message of a flow when cost is time: a millisecond.
FIRST_TIME = UNITS_PER_MS
#: The newest time counts an eighth, as in TCP's estimate of a round trip.
SMOOTHING = 8


class Costs:
    """The costs of one group's flows. `kind` is "count", "bytes" or "time"."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._averages: dict[int, float] = {}

    def at_delivery(self, flow: int, head: Head) -> int:
        """Return what a delivery is charged, at least 1."""
        if self.kind == "count":
            return 1
        if self.kind == "bytes":
            return head.size_bytes + OVERHEAD_BYTES
        return max(1, round(self._averages.get(flow, FIRST_TIME)))

    @property
    def are_alike(self) -> bool:
        """Whether all messages of a flow cost the same if they are delivered now; if not, those
        of one size do."""
        return self.kind != "bytes"

    def difference(self, flow: int, lease: Lease, now_ms: int, used_ms: float | None) -> int:
        """Return what is still to be charged, or given back, for a lease that ended.

        `used_ms` is what the member says that it took; without it, the time since delivery.
        """
        if self.kind != "time":
            return 0
        longest_ms = max(0, min(now_ms, lease.deadline_ms) - lease.delivered_ms)
        taken_ms = longest_ms if used_ms is None else min(max(used_ms, 0.0), longest_ms)
        taken = taken_ms * UNITS_PER_MS
        average = self._averages.get(flow)
        self._averages[flow] = taken if average is None else average + (taken - average) / SMOOTHING
        return round(taken) - lease.charge
