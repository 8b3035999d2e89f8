"""The state of a group, and the updates that every change requires. Pure.

The state consists of topics with their lanes, members, the fair set, and data derived from the
lanes: counts, timers, pending writes, and dirty topics. A topic is dirty if more of its messages
may be available than when `Group.serve` last offered them to the waiting requests. The subclasses
report the changes:

    GroupParts <- GroupConfiguring <- GroupSettling <- GroupReceiving <- Group
"""

from heapq import heappush

from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.config import SHORTEST_LEASE_MS, GroupConfig
from holdfast.groups.core.costs import Costs
from holdfast.groups.core.group_topic import GroupTopic
from holdfast.groups.core.in_flight import AllInFlight, InFlight
from holdfast.groups.core.members import Members
from holdfast.groups.core.modes import member_rule
from holdfast.groups.core.queue_lane import QueueLane
from holdfast.groups.core.requests import AnswerCache
from holdfast.groups.core.waiters import Waiters
from holdfast.groups.cursor.cursor import Cursor
from holdfast.groups.cursor.cursor_rows import has_changes, take_writes
from holdfast.groups.cursor.heads import HeadSource
from holdfast.groups.cursor.leases import Grant, Lease
from holdfast.groups.cursor.rows import ACTIVE, DeleteRange, Write, group_key, key_prefix
from holdfast.groups.fairness.fair_set import FairSet

#: Outdated entries below the top of the heap of timers are removed only when the heap has more
#: entries than this.
MIN_TIMERS = 64
#: At most this many leases end in one event loop iteration because their deadline passed or their
#: member left. Each takes about 10 microseconds. The same limit holds for delays that end, and for
#: queues whose timers are checked.
ENDED_A_TURN = 500


class WriteBatch:
    """The rows of one transaction, and what becomes true when they are durable."""

    def __init__(self) -> None:
        self.writes: list[Write | DeleteRange] = []
        #: For each cursor: its epoch, and the offset below which messages may be delivered once
        #: the rows are durable.
        self.reserves: dict[Cursor, tuple[int, int]] = {}
        #: How often the active member had changed when the rows were made.
        self.fencing_epoch = 0
        #: Records of the progress page that are not needed once the rows are durable.
        self.ended_grants: list[Grant] = []


class GroupParts:
    """The state of one group. Subclasses also use the names that begin with an underscore."""

    def __init__(
        self,
        group_id: int,
        config: GroupConfig,
        source: HeadSource,
        everyone: AllInFlight | None = None,
    ) -> None:
        """`everyone` counts the leases of all groups."""
        self.group_id = group_id
        self.config = config
        self.topics: dict[int, GroupTopic] = {}
        self.fair = FairSet(config.engine)
        self.activity = member_rule(config.mode)
        self.members = Members(config.member_ttl_ms)
        self.waiters = Waiters()
        self.in_flight = InFlight(config, everyone)
        #: How many leases have expired, or were revoked because an earlier lease of their key
        #: expired.
        self.expired_leases = 0
        self._source = source
        self._costs = Costs(config.cost)
        self._answers = AnswerCache(config.repeat_ms)
        #: Lanes with rows to write.
        self._changed: dict[QueueLane, None] = {}
        #: Lanes with messages to append to the dead-letter topic.
        self._lanes_with_dead_letters: dict[QueueLane, None] = {}
        #: The dirty topics.
        self._dirty_topics: set[int] = set()
        #: The value of `activity.fencing_epoch` in the last commit. If it equals the current value,
        #: it is durable that the previous active member has lost its leases.
        self._fencing_durable = 0
        #: The active member as last written.
        self._active_written: str | None = None
        #: Lanes with changes that the progress page does not have yet.
        self._lanes_with_notes: dict[QueueLane, None] = {}
        #: Records of the progress page that are no longer needed.
        self._free_grants: list[Grant] = []
        #: A heap of (deadline, queue). An entry that is not its lane's current timer is removed
        #: when it reaches the top, or when the heap has more than `_most_timers` entries.
        self._timers: list[tuple[int, QueueKey]] = []
        self._most_timers = MIN_TIMERS

    @property
    def lease_count(self) -> int:
        """The number of leased messages."""
        return self.in_flight.total

    # -- pending writes ----------------------------------------------------------------------

    @property
    def has_changes(self) -> bool:
        """Whether `take_writes` would return rows."""
        return bool(self._changed) or self.activity.active != self._active_written

    def take_writes(self) -> WriteBatch:
        """Return everything that changed since the last call, for one transaction."""
        batch = WriteBatch()
        batch.fencing_epoch = self.activity.fencing_epoch
        for lane in self._changed:
            prefix = key_prefix(self.group_id, *lane.key)
            batch.writes += take_writes(lane.cursor, prefix)
            batch.reserves[lane.cursor] = lane.cursor.epoch, lane.cursor.reserved_next
            batch.ended_grants += lane.cursor.leases.ended_grants
            lane.cursor.leases.ended_grants = []
        self._changed.clear()
        active = self.activity.active
        if active != self._active_written:
            value = None if active is None else active.encode()
            batch.writes.append(Write(ACTIVE, group_key(self.group_id), value))
            self._active_written = active
        return batch

    def mark_committed(self, batch: WriteBatch) -> None:
        """Record that a batch is durable."""
        self._fencing_durable = batch.fencing_epoch
        for cursor, (epoch, reserved_next) in batch.reserves.items():
            if cursor.epoch == epoch:
                cursor.reserved_durable = max(cursor.reserved_durable, reserved_next)
        self._free_grants += batch.ended_grants

    # -- changes for the progress page -------------------------------------------------------

    def take_lanes_with_notes(self) -> list[QueueLane]:
        """Return the lanes with changes for the progress page since the last call."""
        lanes = [lane for lane in self._lanes_with_notes if lane.cursor.notes]
        self._lanes_with_notes.clear()
        return lanes

    def take_free_grants(self) -> list[Grant]:
        """Return the page records of leases whose end is committed to the disk."""
        grants, self._free_grants = self._free_grants, []
        return grants

    # -- effects of a change -----------------------------------------------------------------

    def _lane_changed(self, lane: QueueLane) -> None:
        """Update the group's data about a lane (see `_update_lane`), and mark its topic as dirty:
        messages of the lane may be available now."""
        topic = self.topics[lane.key[0]]
        topic.add_to_rotation(lane)
        self._update_lane(lane)
        self._mark_dirty(topic)

    def _mark_dirty(self, topic: GroupTopic) -> None:
        if not topic.is_drained():
            self.fair.activate(topic.topic_id)
        self._dirty_topics.add(topic.topic_id)

    def _mark_all_dirty(self) -> None:
        for topic in self.topics.values():
            self._mark_dirty(topic)

    def _update_lane(self, lane: QueueLane) -> None:
        """Update the group's data about a lane: counts, timer and pending writes."""
        available = lane.cursor.available
        if available != lane.counted:
            self.topics[lane.key[0]].available += available - lane.counted
            lane.counted = available
        returned = len(lane.cursor.attempts)
        if returned != lane.counted_returned:
            may_deliver = self.in_flight.count_returned(returned - lane.counted_returned)
            lane.counted_returned = returned
            if may_deliver:
                self._mark_all_dirty()
        deadline_ms = lane.next_deadline()
        if deadline_ms != lane.timer:
            lane.timer = deadline_ms
            if deadline_ms is not None:
                heappush(self._timers, (deadline_ms, lane.key))
                if len(self._timers) > self._most_timers:
                    self._make_timers()
        if lane.dead_letters:
            self._lanes_with_dead_letters[lane] = None
        if lane.cursor.notes:
            self._lanes_with_notes[lane] = None
        if has_changes(lane.cursor):
            self._changed[lane] = None

    def _make_timers(self) -> None:
        lanes = [lane for topic in self.topics.values() for lane in topic.lanes.values()]
        self._timers = sorted((each.timer, each.key) for each in lanes if each.timer is not None)
        self._most_timers = 2 * len(self._timers) + MIN_TIMERS

    def _expire_due(self, lane: QueueLane, now_ms: int, most: int = ENDED_A_TURN) -> int:
        """End the leases and the delays of a lane that are due, at most `most` leases and `most`
        delays. Return how many ended."""
        delays = lane.cursor.delays
        delayed = len(delays)
        ended = lane.tick(now_ms, most)
        self.expired_leases += len(ended)
        self._end(lane, ended, now_ms)
        return len(ended) + delayed - len(delays)

    def _end(self, lane: QueueLane, ended: list[Lease], now_ms: int) -> None:
        """Account for leases that ended, and offer the messages that are now available."""
        self._ended(lane.key[0], ended, now_ms)
        self._lane_changed(lane)

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
            self._mark_all_dirty()

    def _lease_ms(self, lease_ms: int | None) -> int:
        asked = self.config.lease_ms if lease_ms is None else lease_ms
        return min(max(asked, SHORTEST_LEASE_MS), self.config.longest_lease_ms)

    def _lane(self, key: QueueKey) -> QueueLane | None:
        topic = self.topics.get(key[0])
        return None if topic is None else topic.lanes.get(key[1])
