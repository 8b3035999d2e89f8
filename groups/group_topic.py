"""One topic of a group: which of its queues is next. Pure.

The highest level of priority that has something for whoever asks comes first; the queues of one
level take turns, a message each. Queues in which nobody can find anything are not looked at
until something happens in them.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from typing import TypeVar

from holdfast.commitlog.priority import level_of_queue
from holdfast.groups.heads import Head
from holdfast.groups.lane import Lane

T = TypeVar("T")

Offer = tuple[Lane, Head]
"""A message that may be delivered next, and its queue."""
Run = list[tuple[Lane, list[Head]]]
"""Messages of queues that take turns: the first of each, then the second of each, and so on."""


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
            self._lanes_beside(lane).append(lane)

    def peek(self, member: str, filter: object | None, now_ms: int) -> Offer | None:
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

    def run(self, offered: Offer, filter: object | None, now_ms: int, most: int) -> Run:
        """Return the message that was peeked at and those that `peek` would return next, each
        once the one before was taken: at most `most`, and no more than is known without a look."""
        lanes = list(islice(self._lanes_beside(offered[0]), most))
        rounds = -(-most // len(lanes))
        known = [(lane, lane.known(filter, now_ms, rounds)) for lane in lanes]
        if not known[0][1]:  # what comes back, or goes by its key, goes one by one
            return [(offered[0], [offered[1]])]
        # The first lane that knows no more when its turn comes ends it.
        turns = [index + len(lanes) * len(heads) for index, (_, heads) in enumerate(known)]
        return first_of(known, min(most, *turns))

    def took(self, run: Run) -> None:
        """Messages were taken: it is the turn of the queue behind the last."""
        lanes = self._lanes_beside(run[0][0])
        if len(lanes) > 1:
            lanes.rotate(-sum([len(heads) for _, heads in run]))

    def is_drained(self) -> bool:
        """Say whether no queue has anything for anybody, as far as was looked."""
        return not any(self._listed)

    def _lanes_beside(self, lane: Lane) -> deque[Lane]:
        """Return the lanes of a lane's level, in the order of their turns."""
        return self._listed[level_of_queue(lane.key[1], self.levels)]


def first_of(run: Run, count: int) -> Run:
    """Return as much of a run, at least one message of it."""
    if len(run) == 1:
        return [(run[0][0], run[0][1][:count])]
    return [
        (lane, heads[: -(-(count - index) // len(run))])
        for index, (lane, heads) in enumerate(run[:count])
    ]


def in_turn(columns: Sequence[Sequence[T]]) -> Iterator[T]:
    """Yield the first of each column, then the second of each, and so on."""
    return (each for row in zip_longest(*columns) for each in row if each is not None)
