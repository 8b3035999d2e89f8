"""Decide which held pulls to wake. Pure: no clock, no loop, no locks.

One HoldTable belongs to one event loop. Offsets are queue offsets. A pull waits on a queue while
the queue's end (max_offset) is not higher than the pull's offset on this queue. A pull
wakes only one time: when the first of its queues has a message.

Pulls on one queue with the same offset and equal filters form a pull group (this is not a consumer
group). An arrival reaches a pull group if the queue's new end is higher than the group's offset.
The cost of an arrival depends on the number of reached groups and woken pulls, not on the number of
held pulls. A filter scans new messages once for all pulls of a group. Messages that do not match
advance the group's offset, so no message is scanned twice.

`message_arriving` only records an arrival. `wake_some` processes it in steps, so that a large
arrival does not block the loop in one iteration:

    table.message_arriving(key, max_offset)
    while table.has_arrivals:
        for pull in table.wake_some(scan): ...
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil
from operator import attrgetter
from sys import maxsize
from typing import Any, Generic, TypeVar

from holdfast.consumequeue.topics import QueueKey
from holdfast.holdservice.config import HoldServiceConfig
from holdfast.holdservice.errors import HoldLimitExceeded

#: The most offsets that one step scans for a filter. With a usual filter, this takes 0.5 ms.
SCAN_STEP = 256
#: The ticks per second of `Deadlines`. A power of two, so that the time of a tick in seconds is an
#: exact float. A rounded time could be a little before the deadline.
TICKS_PER_S = 128
#: `Deadlines.crowd` counts the items that are due within this number of ticks (62.5 ms).
CROWD_TICKS = 8

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)

Scan = Callable[[QueueKey, int, int, Any], int | None]
"""(queue, start, end, filter) -> the first match in [start, end), `end` if there is none, or None
if the scan would have to wait for the disk or take too long."""


@dataclass(slots=True, eq=False)
class HeldPull(Generic[T]):
    """One waiting pull. `ticket` is an object of the caller, which identifies the request."""

    number: int
    ticket: T
    client: str
    deadline: float
    is_held: bool = True
    _groups: tuple["_PullGroup[T]", ...] = ()

    @property
    def scanned(self) -> dict[QueueKey, int]:
        """For each queue of the pull, the offset up to which no message matches its filter."""
        return {group.queue.key: group.offset for group in self._groups}


@dataclass(slots=True, eq=False)
class _PullGroup(Generic[T]):
    """The pulls on one queue with the same offset and equal filters."""

    queue: "_Queue[T]"
    filter: object | None
    offset: int
    pulls: dict[HeldPull[T], None] = field(default_factory=dict)
    #: True while the pull group is in `HoldTable._reached`.
    is_reached: bool = False


@dataclass(slots=True, eq=False)
class _Queue(Generic[T]):
    """One queue with waiting pulls. It is removed with its last pull."""

    key: QueueKey
    groups: dict[tuple[object | None, int], _PullGroup[T]] = field(default_factory=dict)
    pull_count: int = 0
    #: The highest end that `message_arriving` recorded. Every pull group with a lower offset is in
    #: `HoldTable._reached`.
    max_offset: int = 0


class HoldTable(Generic[T]):
    """The held pulls, within the limits of `config`."""

    def __init__(
        self, config: HoldServiceConfig, step: Callable[[Any], int] = lambda filter: SCAN_STEP
    ) -> None:
        """`step(filter)` returns how many offsets one step scans for a filter."""
        self._config = config
        self._step = step
        self._queues: dict[QueueKey, _Queue[T]] = {}
        self._clients: dict[str, int] = {}
        self._deadlines = Deadlines[HeldPull[T]]()
        #: The pull groups with arrivals that `wake_some` has not processed yet.
        self._reached: deque[_PullGroup[T]] = deque()
        #: Queues of all pulls together; a queue counts once for each pull that waits on it.
        self.place_count = 0
        self._places_of: dict[str, int] = {}
        #: Requests of other kinds that wait elsewhere and count against the same limits.
        self.other_count = 0
        self._last_number = 0
        #: How often a pull stayed held because no message scanned in a step matched its filter.
        self.filtered_total = 0

    def __len__(self) -> int:
        return self._deadlines.count

    # -- adding and removing ---------------------------------------------------------------

    def suspend(
        self,
        waits: Mapping[QueueKey, int],
        *,
        deadline: float,
        client: str,
        ticket: T,
        filter: object | None = None,
    ) -> HeldPull[T]:
        """Hold a pull until one of the queues has a message at or after the queue's offset in
        `waits`.

        This wakes no pull. The caller must pass the queues' current ends to `message_arriving` in
        the same loop iteration; otherwise messages that are already there are missed. Filters must
        be hashable, and equal filters must match the same messages. Raise HoldLimitExceeded if a
        limit is reached; the table is then unchanged.
        """
        self._check_limits(waits, client)
        self._last_number += 1
        pull = HeldPull(self._last_number, ticket, client, deadline)
        pull._groups = tuple(self._join(pull, key, filter, offset) for key, offset in waits.items())
        self.place_count += len(waits)
        self._places_of[client] = self._places_of.get(client, 0) + len(waits)
        self._clients[client] = self._clients.get(client, 0) + 1
        self._deadlines.add(pull, deadline)
        return pull

    def enter(self, client: str) -> None:
        """Count a request of another kind that starts to wait. Raise HoldLimitExceeded."""
        self._check_limits({}, client)
        self.other_count += 1
        self._clients[client] = self._clients.get(client, 0) + 1

    def leave(self, client: str) -> None:
        """Count a request of another kind that has stopped waiting."""
        self.other_count -= 1
        self._leave(client)

    def cancel(self, pull: HeldPull[T]) -> bool:
        """Remove a pull, so that it no longer counts in the limits. Return False if it was removed
        before."""
        if not pull.is_held:
            return False
        self._deadlines.remove(pull, pull.deadline)
        self._release(pull)
        return True

    # -- arrivals --------------------------------------------------------------------------

    def message_arriving(self, key: QueueKey, max_offset: int) -> None:
        """Record `max_offset` as the end of a queue. Do nothing if the recorded end is equal or
        higher."""
        queue = self._queues.get(key)
        if queue is None or max_offset <= queue.max_offset:
            return
        queue.max_offset = max_offset
        for group in queue.groups.values():
            if group.offset < max_offset:
                self._mark_reached(group)

    @property
    def has_arrivals(self) -> bool:
        """Whether `wake_some` has arrivals to process. Call `wake_some` only if this is True."""
        return bool(self._reached)

    def wake_some(self, scan: Scan) -> list[HeldPull[T]]:
        """Process one pull group with arrivals: scan at most `step(filter)` offsets. Release and
        return the pulls to wake, oldest first.

        Pull groups without a filter come first. If `scan` returns None, all pulls of the group wake
        and must read the messages themselves. If `scan` raises, the table is unchanged.
        """
        # The pull group is empty if its pulls were released, or were moved to another pull group.
        group = self._reached[0]
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
            self._advance(group, reached)
        if is_match:
            return self._wake(list(group.pulls))
        self.filtered_total += len(group.pulls)
        if group.offset < queue.max_offset:
            self._mark_reached(group)
        return []

    def is_behind(self, key: QueueKey, max_offset: int) -> bool:
        """Return whether pulls wait on this queue and `max_offset` is higher than the end that
        `message_arriving` recorded."""
        queue = self._queues.get(key)
        return queue is not None and queue.max_offset < max_offset

    @property
    def client_count(self) -> int:
        """The number of clients with waiting requests."""
        return len(self._clients)

    @property
    def queue_count(self) -> int:
        """The number of queues with waiting pulls."""
        return len(self._queues)

    def queue_keys(self) -> list[QueueKey]:
        """Return the queues with waiting pulls."""
        return list(self._queues)

    # -- deadlines and releases --------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return when to call `expire` next; None if no pull is held."""
        return self._deadlines.next()

    def next_crowd(self) -> int:
        """Return how many pulls expire together at the next deadline."""
        return self._deadlines.crowd()

    def expire(self, now: float, most: int = maxsize) -> list[HeldPull[T]]:
        """Release and return up to `most` pulls whose deadline has come, in order of deadline."""
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

    # -- internal --------------------------------------------------------------------------

    def _check_limits(self, waits: Mapping[QueueKey, int], client: str) -> None:
        config = self._config
        if self._deadlines.count + self.other_count >= config.max_held:
            raise HoldLimitExceeded("max_held", config.max_held)
        if self._clients.get(client, 0) >= config.max_held_per_client:
            raise HoldLimitExceeded("max_held_per_client", config.max_held_per_client)
        if self._places_of.get(client, 0) + len(waits) > config.max_held_places_per_client:
            raise HoldLimitExceeded("max_held_places_per_client", config.max_held_places_per_client)
        if self.place_count + len(waits) > config.max_held_places:
            raise HoldLimitExceeded("max_held_places", config.max_held_places)
        for key in waits:
            queue = self._queues.get(key)
            if queue is not None and queue.pull_count >= config.max_held_per_queue:
                raise HoldLimitExceeded("max_held_per_queue", config.max_held_per_queue)

    def _join(
        self, pull: HeldPull[T], key: QueueKey, filter: object | None, offset: int
    ) -> _PullGroup[T]:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(key)
        group = queue.groups.get((filter, offset))
        if group is None:
            group = queue.groups[filter, offset] = _PullGroup(queue, filter, offset)
        group.pulls[pull] = None
        queue.pull_count += 1
        if offset < queue.max_offset:
            self._mark_reached(group)
        return group

    def _mark_reached(self, group: _PullGroup[T]) -> None:
        if group.is_reached:
            return
        group.is_reached = True
        if group.filter is None:  # this group needs no scan, so it is processed first
            self._reached.appendleft(group)
        else:
            self._reached.append(group)

    def _advance(self, group: _PullGroup[T], offset: int) -> None:
        """Advance a pull group to `offset`. If another group has this offset and an equal filter,
        merge the other group into this group."""
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
        self.place_count -= len(pull._groups)
        left = self._places_of[pull.client] - len(pull._groups)
        if left:
            self._places_of[pull.client] = left
        else:
            del self._places_of[pull.client]
        self._leave(pull.client)

    def _leave(self, client: str) -> None:
        remaining = self._clients[client] - 1
        if remaining:
            self._clients[client] = remaining
        else:
            del self._clients[client]


# -- deadlines -----------------------------------------------------------------------------


class Deadlines(Generic[H]):
    """Items with deadlines, in seconds of the caller's clock.

    Deadlines are stored in buckets (ticks) of 1/128 s. So the cost of `add` and `remove` does not
    depend on the number of items, and a removed item leaves no entry. A deadline never fires early,
    and at most one tick late.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, dict[H, float]] = {}
        # A heap with the tick of each bucket once. An empty bucket stays until its time has come,
        # so there are never more buckets than ticks in the longest wait.
        self._ticks: list[int] = []
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[H]:
        for bucket in self._buckets.values():
            yield from bucket

    def add(self, item: H, deadline: float) -> None:
        """Add an item. It must not be present."""
        tick = _tick(deadline)
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = {}
            heappush(self._ticks, tick)
        bucket[item] = deadline
        self.count += 1

    def remove(self, item: H, deadline: float) -> None:
        """Remove an item. `deadline` must be the deadline that was passed to `add`."""
        del self._buckets[_tick(deadline)][item]
        self.count -= 1

    def next(self) -> float | None:
        """Return the time at which the first item is due, rounded up to a tick; None if there is
        no item."""
        while self._ticks:
            if self._buckets[self._ticks[0]]:
                return self._ticks[0] / TICKS_PER_S
            del self._buckets[heappop(self._ticks)]
        return None

    def crowd(self) -> int:
        """Return how many items are due within CROWD_TICKS from the first due item; 0 if there is
        no item."""
        if self.next() is None:
            return 0
        first = self._ticks[0]
        return sum(len(self._buckets.get(first + n, ())) for n in range(CROWD_TICKS))

    def due(self, now: float, most: int = maxsize) -> list[H]:
        """Remove and return at most `most` due items in order of deadline. Items with equal
        deadlines are in the order in which they were added."""
        found: list[H] = []
        while len(found) < most and self._ticks and self._ticks[0] <= now * TICKS_PER_S:
            bucket = self._buckets[self._ticks[0]]
            taken = sorted(bucket, key=bucket.__getitem__)[: most - len(found)]
            found += taken
            if len(taken) == len(bucket):
                del self._buckets[heappop(self._ticks)]
            else:
                for item in taken:
                    del bucket[item]
        self.count -= len(found)
        return found


def _tick(deadline: float) -> int:
    return ceil(deadline * TICKS_PER_S)
