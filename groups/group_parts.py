"""What a group consists of, and what follows from any change in it. Pure.

Its topics with their lanes, who takes part, what is shared by weight, and what is kept beside the
lanes: counts, timers, what is stirred, what is to be written. The layers above say what happens:

    GroupParts <- GroupConfiguring <- GroupSettling <- GroupReceiving <- Group
"""

from heapq import heappush

from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.activity import activity_for
from holdfast.groups.asking import Repeats
from holdfast.groups.config import SHORTEST_LEASE_MS, GroupConfig
from holdfast.groups.costs import Costs
from holdfast.groups.cursor import Cursor
from holdfast.groups.cursor_rows import has_changes, take_writes
from holdfast.groups.fair_set import FairSet
from holdfast.groups.group_topic import GroupTopic
from holdfast.groups.heads import HeadSource
from holdfast.groups.in_flight import InFlight
from holdfast.groups.lane import Lane
from holdfast.groups.leases import Lease
from holdfast.groups.members import Members
from holdfast.groups.rows import DeleteRange, Write, key_prefix
from holdfast.groups.waiters import Waiters

#: Timers that are kept before those that are out of date are looked for.
MIN_TIMERS = 64


class WriteBatch:
    """Rows of one transaction, and the reserves that they make durable."""

    def __init__(self) -> None:
        self.writes: list[Write | DeleteRange] = []
        #: Of each cursor the epoch, and how far deliveries may go in it.
        self.reserves: dict[Cursor, tuple[int, int]] = {}
        self.fencing_epoch = 0


class GroupParts:
    """The state of one group. What begins with an underscore is for the layers above."""

    def __init__(self, group_id: int, config: GroupConfig, source: HeadSource) -> None:
        self.group_id = group_id
        self.config = config
        self.topics: dict[int, GroupTopic] = {}
        self.fair = FairSet(config.engine)
        self.activity = activity_for(config.mode)
        self.members = Members(config.member_ttl_ms)
        self.waiters = Waiters()
        self.in_flight = InFlight(config)
        #: Leases that ended by their time, or with one of their key that did.
        self.expired_leases = 0
        self._source = source
        self._costs = Costs(config.cost)
        self._repeats = Repeats(config.repeat_ms)
        self._changed: dict[Lane, None] = {}
        #: Lanes with dead letters to be appended.
        self._mourning: dict[Lane, None] = {}
        self._stirred: set[int] = set()
        #: What the predecessor of this active member lost is written down.
        self._fencing_durable = 0
        #: A heap; what is not its lane's timer any more is thrown away when it is met, or once
        #: there are more than `_most_timers`.
        self._timers: list[tuple[int, QueueKey]] = []
        self._most_timers = MIN_TIMERS

    @property
    def lease_count(self) -> int:
        """How many messages are leased now."""
        return self.in_flight.total

    # -- what is to be written ---------------------------------------------------------------

    @property
    def has_changes(self) -> bool:
        """Whether `take_writes` would return anything."""
        return bool(self._changed)

    def take_writes(self) -> WriteBatch:
        """Return everything that changed since the last call, for one transaction."""
        batch = WriteBatch()
        batch.fencing_epoch = self.activity.fencing_epoch
        for lane in self._changed:
            prefix = key_prefix(self.group_id, *lane.key)
            batch.writes += take_writes(lane.cursor, prefix)
            batch.reserves[lane.cursor] = lane.cursor.epoch, lane.cursor.reserved_next
        self._changed.clear()
        return batch

    def committed(self, batch: WriteBatch) -> None:
        """A batch is durable."""
        self._fencing_durable = batch.fencing_epoch
        for cursor, (epoch, reserved_next) in batch.reserves.items():
            if cursor.epoch == epoch:
                cursor.reserved_durable = max(cursor.reserved_durable, reserved_next)

    # -- what follows from a change ----------------------------------------------------------

    def _happened(self, lane: Lane) -> None:
        """Something in a lane may be available to somebody now."""
        topic = self.topics[lane.key[0]]
        topic.stir(lane)
        self._touch(lane)
        self._stir(topic)

    def _stir(self, topic: GroupTopic) -> None:
        if not topic.is_drained():
            self.fair.activate(topic.topic_id)
        self._stirred.add(topic.topic_id)

    def _stir_all(self) -> None:
        for topic in self.topics.values():
            self._stir(topic)

    def _touch(self, lane: Lane) -> None:
        """Bring up to date what is kept of a lane: its count, its timer, what it has to write."""
        available = lane.cursor.available
        if available != lane.counted:
            self.topics[lane.key[0]].available += available - lane.counted
            lane.counted = available
        deadline_ms = lane.next_deadline()
        if deadline_ms != lane.timer:
            lane.timer = deadline_ms
            if deadline_ms is not None:
                heappush(self._timers, (deadline_ms, lane.key))
                if len(self._timers) > self._most_timers:
                    self._make_timers()
        if lane.dead_letters:
            self._mourning[lane] = None
        if has_changes(lane.cursor):
            self._changed[lane] = None

    def _make_timers(self) -> None:
        lanes = [lane for topic in self.topics.values() for lane in topic.lanes.values()]
        self._timers = sorted((each.timer, each.key) for each in lanes if each.timer is not None)
        self._most_timers = 2 * len(self._timers) + MIN_TIMERS

    def _run_out(self, lane: Lane, now_ms: int) -> None:
        """End in a lane what has run out by now."""
        ended = lane.tick(now_ms)
        self.expired_leases += len(ended)
        self._end(lane, ended, now_ms)

    def _end(self, lane: Lane, ended: list[Lease], now_ms: int) -> None:
        """Account for leases that ended, and offer what that makes available."""
        self._ended(lane.key[0], ended, now_ms)
        self._happened(lane)

    def _ended(
        self, topic_id: int, ended: list[Lease], now_ms: int | None, used_ms: float | None = None
    ) -> None:
        is_room_made = False
        for lease in ended:
            is_room_made |= self.in_flight.remove(lease.member)
            if now_ms is not None:
                difference = self._costs.difference(topic_id, lease, now_ms, used_ms)
                self.fair.correct(topic_id, difference)
        if is_room_made or (not self.lease_count and self.config.mode == "single_active"):
            self._stir_all()

    def _lease_ms(self, lease_ms: int | None) -> int:
        asked = self.config.lease_ms if lease_ms is None else lease_ms
        return min(max(asked, SHORTEST_LEASE_MS), self.config.longest_lease_ms)

    def _lane(self, key: QueueKey) -> Lane | None:
        topic = self.topics.get(key[0])
        return None if topic is None else topic.lanes.get(key[1])
