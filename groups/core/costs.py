"""The cost of a delivery: a count, the message's bytes, or its processing time. Pure.

A flow is a topic of a group. Processing time is not known at delivery. So the average time of the
flow is charged at delivery. When the lease ends, the difference from the real time is charged. A
delivery costs at most the time that its lease lasted.
"""

from holdfast.groups.cursor.heads import Head
from holdfast.groups.cursor.leases import Lease

#: The cost of a message in addition to its bytes, so that many small messages are not free.
OVERHEAD_BYTES = 64
#: If the cost is time, its unit is a tenth of a millisecond, to tell fast handlers apart.
UNITS_PER_MS = 10
#: If the cost is time, the first message of a flow is charged one millisecond.
FIRST_TIME = UNITS_PER_MS
#: In the average of a flow the newest time has the weight 1/8, as in TCP's estimate of the
#: round-trip time.
SMOOTHING = 8


class Costs:
    """The costs of one group's flows. `kind` is "count", "bytes" or "time"."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._averages: dict[int, float] = {}

    def at_delivery(self, flow: int, head: Head) -> int:
        """Return the charge for a delivery, at least 1."""
        if self.kind == "count":
            return 1
        if self.kind == "bytes":
            return head.size_bytes + OVERHEAD_BYTES
        return max(1, round(self._averages.get(flow, FIRST_TIME)))

    @property
    def are_alike(self) -> bool:
        """Whether all messages of a flow would have the same cost now. If False, only messages of
        equal size have the same cost."""
        return self.kind != "bytes"

    def difference(self, flow: int, lease: Lease, now_ms: int, used_ms: float | None) -> int:
        """Return the additional charge for a lease that ended. It is negative if the charge at
        delivery was too high.

        `used_ms` is the processing time that the member reported. If it is None, the time since
        the delivery is used instead.
        """
        if self.kind != "time":
            return 0
        longest_ms = max(0, min(now_ms, lease.deadline_ms) - lease.delivered_ms)
        taken_ms = longest_ms if used_ms is None else min(max(used_ms, 0.0), longest_ms)
        taken = taken_ms * UNITS_PER_MS
        average = self._averages.get(flow)
        self._averages[flow] = taken if average is None else average + (taken - average) / SMOOTHING
        return round(taken) - lease.charge
