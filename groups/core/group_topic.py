"""One topic of a group: which of its queues is served next. Pure.

Queues of a higher priority level come first, if they have a message for the member. The queues of
one level take turns, one message each. A queue without a message for any member is taken out of
this rotation until something changes in it.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, zip_longest
from typing import TypeVar

from holdfast.commitlog.format.priority import level_of_queue
from holdfast.groups.core.limits import Room
from holdfast.groups.core.queue_lane import QueueLane
from holdfast.groups.cursor.heads import Head

T = TypeVar("T")

Offer = tuple[QueueLane, Head]
"""A message that may be delivered next, and its queue."""
Run = list[tuple[QueueLane, list[Head]]]
"""Messages of queues that take turns, to be delivered together: first the first message of each
queue, then the second message of each, and so on."""


class GroupTopic:
    """The lanes of one topic, by queue."""

    def __init__(self, topic_id: int, levels: int, filter: object | None) -> None:
        self.topic_id = topic_id
        self.levels = levels
        self.filter = filter
        self.lanes: dict[int, QueueLane] = {}
        self.is_paused = False
        self.available = 0
        self._rotations: list[deque[QueueLane]] = [deque() for _ in range(levels)]

    def add(self, lane: QueueLane) -> None:
        """Add a new lane."""
        self.lanes[lane.key[1]] = lane
        if lane.cursor.available:
            self.add_to_rotation(lane)

    def add_to_rotation(self, lane: QueueLane) -> None:
        """Put a lane back into the rotation: something has changed in it."""
        if not lane.is_in_rotation:
            lane.is_in_rotation = True
            self._rotation_of(lane).append(lane)

    def peek(
        self, member: str, filter: object | None, now_ms: int, room: Room | None = None
    ) -> Offer | None:
        """Return the message that a member would get next, within `room`; None if there is none.
        Raises NeedsRead."""
        if self.is_paused:
            return None
        for lanes in reversed(self._rotations):
            for _ in range(len(lanes)):
                lane = lanes[0]
                if room is not None and not room.of_queue(lane.key):
                    lanes.rotate(-1)
                    continue
                head = lane.peek(member, filter, now_ms, room)
                if head is not None:
                    return lane, head
                if lane.selection.is_drained():
                    lanes.popleft()
                    lane.is_in_rotation = False
                else:
                    lanes.rotate(-1)
        return None

    def run(
        self,
        offered: Offer,
        filter: object | None,
        now_ms: int,
        most: int,
        room: Room | None = None,
    ) -> Run:
        """Return the message that `peek` offered, and those that successive calls of `peek` would
        offer if each were taken: at most `most` messages, and only those that need no read of a
        queue."""
        beside: Iterable[QueueLane] = self._rotation_of(offered[0])
        if room is not None:
            beside = (lane for lane in beside if room.of_queue(lane.key))
        rounds = -(-most // min(len(self._rotation_of(offered[0])), most))
        known: Run = []
        ends = False
        for lane in islice(beside, most):
            heads = lane.known_heads(filter, now_ms, _within_room(rounds, lane, room))
            if not heads:  # the run ends at this lane's turn
                ends = True
                break
            known.append((lane, heads))
        if not known:  # returned messages, and messages of keyed groups, are taken one by one
            return [(offered[0], [offered[1]])]
        if ends:
            return first_of(known, len(known))
        # The run ends at the first lane that has no known message left at its turn.
        turns = [index + len(known) * len(heads) for index, (_, heads) in enumerate(known)]
        return first_of(known, min(most, *turns))

    def advance(self, run: Run, *, has_left_out: bool = False) -> None:
        """Advance the rotation after these messages were taken: the queue after the queue of the
        last message is served next. Set `has_left_out` if the run may have skipped queues."""
        lanes = self._rotation_of(run[0][0])
        if len(lanes) < 2:
            return
        if not has_left_out:
            lanes.rotate(-sum([len(heads) for _, heads in run]))
            return
        rounds = len(run[0][1])
        last = [lane for lane, heads in run if len(heads) == rounds][-1]
        lanes.rotate(-1 - lanes.index(last))

    def is_drained(self) -> bool:
        """Return whether all queues have been taken out of the rotation."""
        return not any(self._rotations)

    def _rotation_of(self, lane: QueueLane) -> deque[QueueLane]:
        """Return the rotation that this lane is in: the lanes of its priority level. The first lane
        in it is served next."""
        return self._rotations[level_of_queue(lane.key[1], self.levels)]


def _within_room(rounds: int, lane: QueueLane, room: Room | None) -> int:
    return rounds if room is None else min(rounds, room.of_queue(lane.key))


def first_of(run: Run, count: int) -> Run:
    """Return the first `count` messages of a run, at least one."""
    if len(run) == 1:
        return [(run[0][0], run[0][1][:count])]
    return [
        (lane, heads[: -(-(count - index) // len(run))])
        for index, (lane, heads) in enumerate(run[:count])
    ]


def interleave(columns: Sequence[Sequence[T]]) -> Iterator[T]:
    """Yield the first of each column, then the second of each, and so on."""
    return (each for row in zip_longest(*columns) for each in row if each is not None)
