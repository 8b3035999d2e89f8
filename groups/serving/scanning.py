"""The periodic scan for requests that wait although messages are available.

Each request that the scan finds is a defect of the broker: its wake-up was lost. One call of
`scan_some` scans a limited number of queues, and the next call continues there. With very many
groups or queues a round over all groups takes several calls. On the event loop.
"""

from collections.abc import Callable, Iterable, Iterator

from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.serving.group_server import GroupServer

#: One call of `scan_some` scans about this many queues, which takes a few milliseconds.
QUEUES_A_CALL = 5_000
#: `_scan_round` yields after this many queues.
_STEP = 500


class Scan:
    """Scans the groups that `groups` returns. `max_offset` returns the end of a queue; None if the
    queue does not exist any more."""

    def __init__(
        self,
        groups: Callable[[], Iterable[GroupServer]],
        max_offset: Callable[[QueueKey], int | None],
    ) -> None:
        self._groups = groups
        self._max_offset = max_offset
        #: The ends of queues that the groups did not know yet in the last round.
        self._behind: dict[tuple[GroupServer, QueueKey], int] = {}
        self._round: Iterator[tuple[int, int]] | None = None

    def scan_some(self) -> int:
        """Continue the scan, at most to the end of the round. Serve the requests found and return
        their number."""
        if self._round is None:
            self._round = self._scan_round()
        left, rescued = QUEUES_A_CALL, 0
        while left > 0:
            step = next(self._round, None)
            if step is None:
                self._round = None
                break
            left -= step[0]
            rescued += step[1]
        return rescued

    def _scan_round(self) -> Iterator[tuple[int, int]]:
        """Scan every group once. Yield repeatedly how many queues (or groups without waiting
        requests) were scanned since the last yield, and how many requests were found and served."""
        behind: dict[tuple[GroupServer, QueueKey], int] = {}
        skipped = 0
        for group in list(self._groups()):
            if not len(group.core.waiters):
                skipped += 1
                if skipped == _STEP:
                    yield skipped, 0
                    skipped = 0
                continue
            rescued = group.scan()
            scanned = 1
            for lane in group.lanes():
                end = self._max_offset(lane.key)
                if end is not None and end > lane.cursor.end:
                    # A message is readable a moment before groups are informed. It is a defect if
                    # the group still does not know the message one round later.
                    if lane.cursor.end < self._behind.get((group, lane.key), 0):
                        rescued += 1
                        group.note_end(lane.key, end)
                    else:
                        behind[group, lane.key] = end
                scanned += 1
                if scanned >= _STEP:
                    yield scanned, rescued
                    scanned = rescued = 0
            yield scanned, rescued
        self._behind = behind
