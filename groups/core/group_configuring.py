"""How a change of a group's settings, topics or queues affects its existing state. Pure."""

from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.config import GroupConfig
from holdfast.groups.core.costs import Costs
from holdfast.groups.core.group_parts import GroupParts
from holdfast.groups.core.group_topic import GroupTopic
from holdfast.groups.core.modes import member_rule
from holdfast.groups.core.queue_lane import QueueLane
from holdfast.groups.core.receipt_state import Receipt
from holdfast.groups.core.requests import SelectedMessage
from holdfast.groups.cursor.cursor import Cursor, End
from holdfast.groups.cursor.leases import Lease
from holdfast.groups.fairness.fair_set import FairSet


class GroupConfiguring(GroupParts):
    """The part of a group that an operator changes."""

    def configure(self, config: GroupConfig) -> None:
        """Change the settings for future deliveries. The mode may change only while nothing is
        leased."""
        self.configure_group(config)
        for topic in self.topics.values():
            for lane in topic.lanes.values():
                self.configure_lane(lane)
        self._mark_all_dirty()

    def configure_lane(self, lane: QueueLane) -> None:
        """Apply the group's settings to a queue."""
        lane.configure(self.config)
        self._lane_changed(lane)

    def configure_group(self, config: GroupConfig) -> None:
        """Change the settings of the group, but not of its queues. The caller must then call
        `configure_lane` for each queue."""
        before, self.config = self.config, config
        self.in_flight.config = config
        self.members.ttl_ms = config.member_ttl_ms
        if config.engine != before.engine:
            weights = {topic_id: self.fair.weight(topic_id) for topic_id in self.topics}
            self.fair = FairSet(config.engine)
            for topic_id, weight in weights.items():
                self.fair.add(topic_id, weight)
        if config.cost != before.cost:
            self._costs = Costs(config.cost)
        if config.mode != before.mode:
            assert not self.lease_count
            self.activity = member_rule(config.mode)
            self._fencing_durable = 0

    def add_topic(
        self, topic_id: int, *, weight: int = 1, levels: int = 1, filter: object | None = None
    ) -> None:
        """Add a topic without queues; the caller adds these with `add_queue`."""
        self.topics[topic_id] = GroupTopic(topic_id, levels, filter)
        self.fair.add(topic_id, weight)

    def add_queue(self, key: QueueKey, cursor: Cursor) -> None:
        """Add a queue of a topic, at the position of its cursor."""
        topic = self.topics[key[0]]
        lane = QueueLane(
            self.group_id, key, cursor, self._source, self.config, topic.filter, self._update_lane
        )
        topic.add(lane)
        self._take_up(lane)
        cursor.notes.is_dirty = True
        self._update_lane(lane)
        self._mark_dirty(topic)

    def resume(self, member: str, now_ms: int) -> None:
        """Restore the active member after a restart. Other members wait until this member leaves or
        its time to live is over."""
        self._active_written = member
        self.activity.resume(member)
        self.members.seen(member, now_ms)
        if self.activity.active is None:
            return
        # Another member may have leases: it had just become active, but its name was not stored
        # yet, so its reply was not sent. Return its messages.
        for topic in self.topics.values():
            for lane in topic.lanes.values():
                for lease in lane.cursor.leases:
                    if lease.member != member:
                        offset = lease.head.offset
                        back = lane.give_back(offset, End.REVOKED, lease.number, now_ms)
                        self._end(lane, back, now_ms)

    def _take_up(self, lane: QueueLane) -> None:
        """Count the leases of a lane that are from before a restart. Restore the stored replies
        (`AnswerCache`) that contained the messages of these leases."""
        cursor = lane.cursor
        for lease in cursor.leases:
            self.in_flight.add(lease.member)
            self.members.seen(lease.member, lease.delivered_ms, lease.deadline_ms)
            if lease.attempt_id is not None:
                offset, number, attempt = lease.head.offset, lease.number, lease.attempt
                receipt = Receipt(
                    self.group_id, *lane.key, offset, number, cursor.epoch, lease.deadline_ms,
                    attempt, lease.member,
                )  # fmt: skip
                message = SelectedMessage(
                    lane.key, offset, attempt, cursor.is_redelivery(offset), receipt
                )
                self._answers.restore(lease.member, lease.attempt_id, [message], lease.delivered_ms)

    def remove_topic(self, topic_id: int) -> None:
        """Remove a topic and end its leases. The caller must delete its rows."""
        topic = self.topics.pop(topic_id)
        ended: list[Lease] = []
        may_deliver = False
        for lane in topic.lanes.values():
            ended += lane.cursor.leases
            may_deliver |= self.in_flight.count_returned(-lane.counted_returned)
            self._changed.pop(lane, None)
            self._lanes_with_notes.pop(lane, None)
            self._lanes_with_dead_letters.pop(lane, None)
        self.fair.remove(topic_id)
        self._ended(topic_id, ended, None)
        if may_deliver:
            self._mark_all_dirty()

    def set_filter(self, lane: QueueLane, filter: object | None) -> None:
        """Change the filter of a queue. Messages that the old filter skipped are offered again if
        they are at the queue's `next` or beyond. Below `next` they are not offered again, because
        later messages were already delivered."""
        lane.set_filter(filter)
        self._lane_changed(lane)

    def offer_skipped(self, lane: QueueLane) -> None:
        """Make skipped messages available again: those at `next` and beyond that the queue's filter
        does not match. The caller must do this before it stores another filter, so that a crash in
        between loses no message. The topic must be paused until then."""
        self.set_filter(lane, lane.view.filter)

    def set_weight(self, topic_id: int, weight: int) -> None:
        """Change a topic's weight for future deliveries."""
        self.fair.set_weight(topic_id, weight)

    def pause(self, topic_id: int, is_paused: bool) -> None:
        """Pause or resume the deliveries of a topic."""
        self.topics[topic_id].is_paused = is_paused
        self._mark_dirty(self.topics[topic_id])
