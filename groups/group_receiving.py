"""What a member gets when it asks: chosen by fairness, leased, and told with receipts. Pure."""

from collections.abc import Iterable

from holdfast.groups.asking import Ask, Pick, Reply
from holdfast.groups.errors import FilterNotAllowed
from holdfast.groups.group_settling import GroupSettling
from holdfast.groups.heads import Head, NeedsRead
from holdfast.groups.lane import Lane
from holdfast.groups.leases import Lease
from holdfast.groups.standing import Receipt


class GroupReceiving(GroupSettling):
    """What members ask for."""

    def receive(self, ask: Ask, now_ms: int) -> Reply:
        """Return what a member gets now. Raises ExclusiveHeld, FilterNotAllowed."""
        if ask.filter is not None and self.config.mode == "keyed":
            raise FilterNotAllowed(self.config.mode)
        admission = self.activity.admit(ask.member, self._may_begin)
        self.members.seen(ask.member, now_ms)
        if not admission.is_active:
            return Reply(is_active=False)
        if admission.is_notice:
            return Reply(available=self.available(ask.topics), is_notice=True)
        if ask.attempt_id is not None:
            reply = self._repeat(ask, ask.attempt_id, now_ms)
            if reply is not None:
                return reply
        reply = Reply()
        self._fill(reply, ask, now_ms)
        reply.available = self.available(ask.topics)
        if ask.attempt_id is not None and reply.picks:
            self._repeats.note(ask.member, ask.attempt_id, reply.picks, now_ms)
        return reply

    def go_on(self, reply: Reply, ask: Ask, now_ms: int) -> None:
        """Fill a reply further that stopped where the source had to be read. What was served
        stands, so the order and the shares are those of a source that knew all. Nothing is added
        once any of it is not the member's any more."""
        reply.needs = None
        if self._has_all(reply, ask.member):
            self._fill(reply, ask, now_ms)
        reply.available = self.available(ask.topics)

    def available(self, topics: Iterable[int] | None = None) -> int:
        """Return how many messages could be delivered now: at most, where filters must look."""
        asked = self.topics if topics is None else topics
        return sum(self.topics[each].available for each in asked if each in self.topics)

    # -- inside ------------------------------------------------------------------------------

    def _fill(self, reply: Reply, ask: Ask, now_ms: int) -> None:
        room = ask.credit
        if not ask.settled:
            room = min(room, len(reply.picks) + self.in_flight.room(ask.member))
        deadline_ms = now_ms + self._lease_ms(ask.lease_ms)
        peeked: dict[int, tuple[Lane, Head] | None] = {}

        def head_cost(topic_id: int) -> int | None:
            if topic_id not in peeked:
                peeked[topic_id] = self._peek(topic_id, ask, now_ms)
            found = peeked[topic_id]
            return None if found is None else self._costs.at_delivery(topic_id, found[1])

        served: dict[Lane, None] = {}
        try:
            while len(reply.picks) < room:
                topic_id = self.fair.select(head_cost)
                if topic_id is None:
                    break
                found = peeked.pop(topic_id)
                assert found is not None
                lane, head = found
                if reply.picks and reply.size_bytes + head.size_bytes > ask.max_bytes:
                    break
                reply.size_bytes += head.size_bytes
                self._deliver(reply, ask, lane, head, deadline_ms, now_ms)
                served[lane] = None
                # Whether this was the last is found out now, whoever asks next.
                peeked[topic_id] = self._peek(topic_id, ask, now_ms)
        except NeedsRead as needed:
            reply.needs = needed.queue, needed.offset
        for lane in served:
            self._touch(lane)
        if reply.picks and not ask.settled:
            self.members.seen(ask.member, now_ms, deadline_ms)

    def _has_all(self, reply: Reply, member: str) -> bool:
        """Say whether a member is served, and every lease of a reply is still its."""
        if self.config.mode in ("single_active", "exclusive") and self.activity.active != member:
            return False
        for pick in reply.picks:
            if pick.receipt is not None:
                lane = self._lane(pick.queue)
                lease = None if lane is None else lane.cursor.leases.get(pick.offset)
                if lease is None or lease.number != pick.receipt.lease_number:
                    return False
        return True

    def _peek(self, topic_id: int, ask: Ask, now_ms: int) -> tuple[Lane, Head] | None:
        if ask.topics is not None and topic_id not in ask.topics:
            return None
        topic = self.topics[topic_id]
        found = topic.peek(ask.member, ask.filter, now_ms)
        if found is None and topic.is_drained():
            self.fair.deactivate(topic_id)
        return found

    def _deliver(
        self, reply: Reply, ask: Ask, lane: Lane, head: Head, deadline_ms: int, now_ms: int
    ) -> None:
        cursor, topic_id, offset = lane.cursor, lane.key[0], head.offset
        charge = self._costs.at_delivery(topic_id, head)
        redelivered, attempt = cursor.is_redelivery(offset), cursor.attempt(offset)
        receipt = None
        if ask.settled:
            lane.take_settled(head, ask.member)
            reply.commit_first = True
        else:
            lease = lane.take(head, ask.member, deadline_ms, now_ms, charge)
            receipt = self._receipt(lane, lease)
            self.in_flight.add(ask.member)
        # A restart must know how far deliveries went, and which lease of a message is the last.
        if (
            offset >= cursor.reserved_durable
            or redelivered
            or self._fencing_durable != self.activity.fencing_epoch
        ):
            reply.commit_first = True
        self.fair.charge(topic_id, charge)
        self.topics[topic_id].took(lane)
        reply.picks.append(Pick(lane.key, offset, attempt, redelivered, receipt))

    def _receipt(self, lane: Lane, lease: Lease) -> Receipt:
        topic_id, queue = lane.key
        return Receipt(
            self.group_id,
            topic_id,
            queue,
            lease.head.offset,
            lease.number,
            lane.cursor.epoch,
            lease.deadline_ms,
            lease.attempt,
            lease.member,
        )

    def _repeat(self, ask: Ask, attempt_id: str, now_ms: int) -> Reply | None:
        """Give an answer again, as far as its leases live: under the same leases, as long again."""
        picks = []
        for pick in self._repeats.find(ask.member, attempt_id, now_ms):
            lane = self._lane(pick.queue)
            if pick.receipt is None:
                picks.append(pick)
            elif lane is not None and lane.cursor.epoch == pick.receipt.epoch:
                lease = lane.cursor.leases.get(pick.offset)
                if lease is not None and lease.number == pick.receipt.lease_number:
                    deadline_ms = max(lease.deadline_ms, now_ms + self._lease_ms(ask.lease_ms))
                    lane.cursor.leases.extend(lease, deadline_ms)
                    self.members.seen(ask.member, now_ms, deadline_ms)
                    receipt = self._receipt(lane, lease)
                    picks.append(
                        Pick(pick.queue, pick.offset, pick.attempt, pick.redelivered, receipt)
                    )
                    self._touch(lane)
        if not picks:
            return None
        return Reply(picks, self.available(ask.topics), commit_first=True)

    def _may_begin(self, member: str) -> bool:
        """Say whether nothing is, or may be, leased to another member than this."""
        if self.in_flight.has_others(member):
            return False
        return not any(
            lane.cursor.grace_count
            for topic in self.topics.values()
            for lane in topic.lanes.values()
        )
