"""A group's settings, topics and queues: what a change of them does to what is there. Pure."""

from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.activity import activity_for
from holdfast.groups.config import GroupConfig
from holdfast.groups.costs import Costs
from holdfast.groups.cursor import Cursor
from holdfast.groups.fair_set import FairSet
from holdfast.groups.group_parts import GroupParts
from holdfast.groups.group_topic import GroupTopic
from holdfast.groups.lane import Lane


class GroupConfiguring(GroupParts):
    """What changes by an operator's will."""

    def configure(self, config: GroupConfig) -> None:
        """Change the settings, for what comes from now on. The mode changes only while nothing
        is leased."""
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
            self.activity = activity_for(config.mode)
            self._fencing_durable = 0
        for topic in self.topics.values():
            for lane in topic.lanes.values():
                lane.configure(config)
                topic.stir(lane)
        self._stir_all()

    def add_topic(
        self, topic_id: int, *, weight: int = 1, levels: int = 1, filter: object | None = None
    ) -> None:
        """Subscribe to a topic; its queues come with `add_queue`."""
        self.topics[topic_id] = GroupTopic(topic_id, levels, filter)
        self.fair.add(topic_id, weight)

    def add_queue(self, key: QueueKey, cursor: Cursor) -> None:
        """Take in a queue of a topic, where its cursor stands."""
        topic = self.topics[key[0]]
        lane = Lane(
            self.group_id, key, cursor, self._source, self.config, topic.filter, self._touch
        )
        topic.add(lane)
        self._touch(lane)
        self._stir(topic)

    def remove_topic(self, topic_id: int) -> None:
        """Forget a topic; its leases are worthless. Its rows are the caller's to delete."""
        topic = self.topics.pop(topic_id)
        for lane in topic.lanes.values():
            self._ended(topic_id, list(lane.cursor.leases), None)
            self._changed.pop(lane, None)
            self._mourning.pop(lane, None)
        self.fair.remove(topic_id)
        self._stir_all()

    def set_filter(self, topic_id: int, filter: object | None) -> None:
        """Change what the group wants of a topic; what was passed over stays settled."""
        topic = self.topics[topic_id]
        topic.filter = filter
        for lane in topic.lanes.values():
            lane.set_filter(filter)
            topic.stir(lane)
        self._stir(topic)

    def set_weight(self, topic_id: int, weight: int) -> None:
        """Change a topic's weight, for what is served from now on."""
        self.fair.set_weight(topic_id, weight)

    def pause(self, topic_id: int, is_paused: bool) -> None:
        """Deliver nothing of a topic for a while."""
        self.topics[topic_id].is_paused = is_paused
        self._stir(self.topics[topic_id])
