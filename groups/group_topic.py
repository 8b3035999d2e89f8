"""One topic of a group: which of its queues is next. Pure.

The highest level of priority that has something for whoever asks comes first; the queues of one
level take turns, a message each. Queues in which nobody can find anything are not looked at
until something happens in them.
"""

from collections import deque

from holdfast.commitlog.priority import level_of_queue
from holdfast.groups.heads import Head
from holdfast.groups.lane import Lane


class GroupTopic:
    """The lanes of one topic, by queue."""

    def __init__(self, topic_id: int, levels: int, filter: object | None) -> None:
        self.topic_id = topic_id
        self.levels = levels
        self.filter = filter
        self.lanes: dict[int, Lane] = {}
        self.is_paused = False
        self.available = 0
        self._listed: list[deque[Lane]] = [deque() for _ in range(levels)]

    def add(self, lane: Lane) -> None:
        """Take in a lane that is new."""
        self.lanes[lane.key[1]] = lane
        self.stir(lane)

    def stir(self, lane: Lane) -> None:
        """Something happened in a lane: look at it again."""
        if not lane.is_listed:
            lane.is_listed = True
            self._listed[level_of_queue(lane.key[1], self.levels)].append(lane)

    def peek(self, member: str, filter: object | None, now_ms: int) -> tuple[Lane, Head] | None:
        """Return the message that a member would get next. Raises NeedsRead."""
        if self.is_paused:
            return None
        for lanes in reversed(self._listed):
            for _ in range(len(lanes)):
                lane = lanes[0]
                head = lane.peek(member, filter, now_ms)
                if head is not None:
                    return lane, head
                if lane.selection.is_drained():
                    lanes.popleft()
                    lane.is_listed = False
                else:
                    lanes.rotate(-1)
        return None

    def took(self, lane: Lane) -> None:
        """A message of this lane was taken: the next queue's turn."""
        lanes = self._listed[level_of_queue(lane.key[1], self.levels)]
        if lanes and lanes[0] is lane:
            lanes.rotate(-1)

    def is_drained(self) -> bool:
        """Say whether no queue has anything for anybody, as far as was looked."""
        return not any(self._listed)
