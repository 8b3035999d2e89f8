"""Which held pulls to wake. Pure: no clock, no loop, no locks.

One HoldTable belongs to one event loop. Offsets are queue offsets; a pull waits on a queue
while max_offset <= its offset there, and wakes once, by whichever of its queues comes first.

Pulls on one queue that stand at the same offset with equal filters form a group. A group is
looked at as one: an arrival costs the groups it reaches and the pulls it wakes, never the
pulls held, and a filter scans new messages once for all who share it. What a filter passes
over moves the group on, so nothing is scanned twice.

An arrival is noted at once and looked at in steps, so that a large one need not be done in one
turn of the loop:

    table.message_arriving(key, max_offset)
    while table.has_arrivals:
        for pull in table.wake_some(scan): ...
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from sys import maxsize
from typing import Any, Generic, TypeVar

from holdfast.consumequeue.topics import QueueKey
from holdfast.holdservice.config import HoldServiceConfig
from holdfast.holdservice.deadlines import Deadlines
from holdfast.holdservice.errors import HoldLimitExceeded

#: Offsets that one step scans for a filter at most: half a millisecond with a usual one.
SCAN_STEP = 256

T = TypeVar("T")

Scan = Callable[[QueueKey, int, int, Any], int | None]
"""(queue, start, end, filter) -> the first match in [start, end), `end` when there is none, or
None when that cannot be told without waiting for the disk."""


@dataclass(slots=True, eq=False)
class HeldPull(Generic[T]):
    """One pull that waits. `ticket` is the caller's, to know whom to answer."""

    number: int
    ticket: T
    client: str
    deadline: float
    is_held: bool = True
    _groups: tuple["_Group[T]", ...] = ()

    @property
    def scanned(self) -> dict[QueueKey, int]:
        """The offset reached in each of its queues: no message before it matches."""
        return {group.queue.key: group.offset for group in self._groups}


@dataclass(slots=True, eq=False)
class _Group(Generic[T]):
    """The pulls on one queue with equal filters that stand at the same offset."""

    queue: "_Queue[T]"
    filter: object | None
    offset: int
    pulls: dict[HeldPull[T], None] = field(default_factory=dict)
    #: In the table's list of groups that an arrival has reached.
    is_reached: bool = False


@dataclass(slots=True, eq=False)
class _Queue(Generic[T]):
    """One queue that somebody waits on: here from its first pull to its last."""

    key: QueueKey
    groups: dict[tuple[object | None, int], _Group[T]] = field(default_factory=dict)
    pull_count: int = 0
    #: The highest end that was told of. Every group before it has been reached.
    max_offset: int = 0


class HoldTable(Generic[T]):
    """The held pulls, within the limits of `config`."""

    def __init__(
        self, config: HoldServiceConfig, step: Callable[[Any], int] = lambda filter: SCAN_STEP
    ) -> None:
        """`step` says how many offsets one step scans for a filter."""
        self._config = config
        self._step = step
        self._queues: dict[QueueKey, _Queue[T]] = {}
        self._clients: dict[str, int] = {}
        self._deadlines: Deadlines[HeldPull[T]] = Deadlines()
        self._reached: deque[_Group[T]] = deque()
        self._place_count = 0
        #: Requests of other kinds that wait elsewhere, within the same limits.
        self.other_count = 0
        self._last_number = 0
        #: How often a filter kept a pull asleep while messages came.
        self.filtered_total = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    # -- coming and going ------------------------------------------------------------------

    def suspend(
        self,
        waits: Mapping[QueueKey, int],
        *,
        deadline: float,
        client: str,
        ticket: T,
        filter: object | None = None,
    ) -> HeldPull[T]:
        """Hold a pull that waits on each queue from the offset given.

        Nothing is woken here: tell the queues' ends (`message_arriving`) before the turn is
        over, or a message that came before this call is missed. Filters are hashable, and equal
        ones match the same messages. Raises HoldLimitExceeded; then nothing has changed.
        """
        self._check_limits(waits, client)
        self._last_number += 1
        pull = HeldPull(self._last_number, ticket, client, deadline)
        pull._groups = tuple(self._join(pull, key, filter, offset) for key, offset in waits.items())
        self._place_count += len(waits)
        self._clients[client] = self._clients.get(client, 0) + 1
        self._deadlines.add(pull, deadline)
        return pull

    def enter(self, client: str) -> None:
        """Count a request of another kind that begins to wait. Raises HoldLimitExceeded."""
        self._check_limits({}, client)
        self.other_count += 1
        self._clients[client] = self._clients.get(client, 0) + 1

    def leave(self, client: str) -> None:
        """Count a request of another kind that waits no more."""
        self.other_count -= 1
        self._leave(client)

    def cancel(self, pull: HeldPull[T]) -> bool:
        """Free the place of a pull. False: it was answered before."""
        if not pull.is_held:
            return False
        self._deadlines.remove(pull, pull.deadline)
        self._release(pull)
        return True

    # -- arrivals --------------------------------------------------------------------------

    def message_arriving(self, key: QueueKey, max_offset: int) -> None:
        """Note a queue's end. An end that was told of before costs nothing."""
        queue = self._queues.get(key)
        if queue is None or max_offset <= queue.max_offset:
            return
        queue.max_offset = max_offset
        for group in queue.groups.values():
            if group.offset < max_offset:
                self._note(group)

    @property
    def has_arrivals(self) -> bool:
        """Whether `wake_some` has something to look at."""
        return bool(self._reached)

    def wake_some(self, scan: Scan) -> list[HeldPull[T]]:
        """Look at one group that an arrival has reached; return whom to wake, oldest first.

        Groups without a filter come first. When `scan` cannot tell, the pulls wake: they can
        read for themselves. When it raises, nothing has changed.
        """
        group = self._reached[0]  # without pulls when they went away, or on with another group
        queue = group.queue
        is_match = True
        reached: int | None = group.offset
        if group.filter is not None and group.pulls:
            end = min(group.offset + self._step(group.filter), queue.max_offset)
            reached = scan(queue.key, group.offset, end, group.filter)
            is_match = reached is None or reached < end
        self._reached.popleft()
        group.is_reached = False
        if reached is not None and reached > group.offset:
            self._move(group, reached)
        if is_match:
            return self._wake(list(group.pulls))
        self.filtered_total += len(group.pulls)
        if group.offset < queue.max_offset:
            self._note(group)
        return []

    def is_behind(self, key: QueueKey, max_offset: int) -> bool:
        """Whether somebody waits on a queue that ends further on than was told."""
        queue = self._queues.get(key)
        return queue is not None and queue.max_offset < max_offset

    @property
    def queue_count(self) -> int:
        """How many queues somebody waits on."""
        return len(self._queues)

    def queue_keys(self) -> list[QueueKey]:
        """The queues that somebody waits on."""
        return list(self._queues)

    # -- other ends ------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return when to call `expire` next; None when nobody waits."""
        return self._deadlines.next()

    def next_crowd(self) -> int:
        """Return how many pulls end together at the next deadline."""
        return self._deadlines.crowd()

    def expire(self, now: float, most: int = maxsize) -> list[HeldPull[T]]:
        """Release and return up to `most` pulls whose deadline has come, by deadline."""
        pulls = self._deadlines.due(now, most)
        for pull in pulls:
            self._release(pull)
        return pulls

    def release_topic(self, topic_id: int) -> list[HeldPull[T]]:
        """Release and return the pulls that wait on any queue of a topic, oldest first."""
        pulls = {
            pull
            for key, queue in self._queues.items()
            if key[0] == topic_id
            for group in queue.groups.values()
            for pull in group.pulls
        }
        return self._wake(list(pulls))

    def release_all(self) -> list[HeldPull[T]]:
        """Release and return every pull, oldest first."""
        return self._wake(list(self._deadlines))

    # -- inside ----------------------------------------------------------------------------

    def _check_limits(self, waits: Mapping[QueueKey, int], client: str) -> None:
        config = self._config
        if len(self) + self.other_count >= config.max_held:
            raise HoldLimitExceeded("max_held", config.max_held)
        if self._clients.get(client, 0) >= config.max_held_per_client:
            raise HoldLimitExceeded("max_held_per_client", config.max_held_per_client)
        if self._place_count + len(waits) > config.max_held_places:
            raise HoldLimitExceeded("max_held_places", config.max_held_places)
        for key in waits:
            queue = self._queues.get(key)
            if queue is not None and queue.pull_count >= config.max_held_per_queue:
                raise HoldLimitExceeded("max_held_per_queue", config.max_held_per_queue)

    def _join(
        self, pull: HeldPull[T], key: QueueKey, filter: object | None, offset: int
    ) -> _Group[T]:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(key)
        group = queue.groups.get((filter, offset))
        if group is None:
            group = queue.groups[filter, offset] = _Group(queue, filter, offset)
        group.pulls[pull] = None
        queue.pull_count += 1
        if offset < queue.max_offset:
            self._note(group)
        return group

    def _note(self, group: _Group[T]) -> None:
        if group.is_reached:
            return
        group.is_reached = True
        if group.filter is None:  # costs no scan: nobody should wait behind one
            self._reached.appendleft(group)
        else:
            self._reached.append(group)

    def _move(self, group: _Group[T], offset: int) -> None:
        """Move a group on; it takes in the one that stands there already, if any."""
        groups = group.queue.groups
        del groups[group.filter, group.offset]
        group.offset = offset
        other = groups.get((group.filter, offset))
        groups[group.filter, offset] = group
        if other is not None:
            for pull in other.pulls:
                pull._groups = tuple(group if each is other else each for each in pull._groups)
            group.pulls.update(other.pulls)
            other.pulls = {}

    def _wake(self, pulls: list[HeldPull[T]]) -> list[HeldPull[T]]:
        pulls.sort(key=attrgetter("number"))
        for pull in pulls:
            self.cancel(pull)
        return pulls

    def _release(self, pull: HeldPull[T]) -> None:
        pull.is_held = False
        for group in pull._groups:
            queue = group.queue
            del group.pulls[pull]
            queue.pull_count -= 1
            if not group.pulls:
                del queue.groups[group.filter, group.offset]
                if not queue.groups:
                    del self._queues[queue.key]
        self._place_count -= len(pull._groups)
        self._leave(pull.client)

    def _leave(self, client: str) -> None:
        remaining = self._clients[client] - 1
        if remaining:
            self._clients[client] = remaining
        else:
            del self._clients[client]
