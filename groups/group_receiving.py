"""What a member gets when it asks: chosen by fairness, leased, and told with receipts. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.groups.asking import Ask, Pick, Reply
from holdfast.groups.errors import FilterNotAllowed
from holdfast.groups.group_settling import GroupSettling
from holdfast.groups.group_topic import Offer, Run, first_of, in_turn
from holdfast.groups.heads import Head, NeedsRead
from holdfast.groups.lane import Lane
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
        order = _Order(reply, ask, now_ms, now_ms + self._lease_ms(ask.lease_ms))
        peeked: dict[int, Offer | None] = {}

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
                if reply.picks and reply.size_bytes + found[1].size_bytes > ask.max_bytes:
                    break
                run = self._run(order, found, room - len(reply.picks))
                self._deliver(order, run)
                for lane, _ in run:
                    served[lane] = None
                # Whether this was the last is found out now, whoever asks next.
                peeked[topic_id] = self._peek(topic_id, ask, now_ms)
        except NeedsRead as needed:
            reply.needs = needed.queue, needed.offset
        for lane in served:
            self._touch(lane)
        if reply.picks and not ask.settled:
            self.members.seen(ask.member, now_ms, order.deadline_ms)
        if reply.picks and ask.attempt_id is not None:
            self._repeats.note(ask.member, ask.attempt_id, reply.picks, now_ms)

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

    def _peek(self, topic_id: int, ask: Ask, now_ms: int) -> Offer | None:
        if ask.topics is not None and topic_id not in ask.topics:
            return None
        topic = self.topics[topic_id]
        found = topic.peek(ask.member, ask.filter, now_ms)
        if found is None and topic.is_drained():
            self.fair.deactivate(topic_id)
        return found

    def _run(self, order: "_Order", offered: Offer, room: int) -> Run:
        """Return the message that is offered and those behind it that would be chosen next, one
        after the other, if each was asked for by itself: of one topic, and of one cost each."""
        lane, first = offered
        topic_id = lane.key[0]
        most = 1
        if room > 1:
            most = min(room, self.fair.turns(topic_id, self._costs.at_delivery(topic_id, first)))
        if most == 1:
            return [(lane, [first])]
        run = self.topics[topic_id].run(offered, order.ask.filter, order.now_ms, most)
        size_bytes = sum([head.size_bytes for _, heads in run for head in heads])
        if order.reply.size_bytes + size_bytes > order.ask.max_bytes or not self._costs.are_alike:
            run = first_of(run, self._fitting(order, [heads for _, heads in run]))
        return run

    def _fitting(self, order: "_Order", columns: list[list[Head]]) -> int:
        """Return how many messages of a run, at least one, cost what the first does and are
        within the bytes that a member asks for."""
        first = columns[0][0]
        size_bytes = order.reply.size_bytes
        for count, head in enumerate(in_turn(columns)):
            size_bytes += head.size_bytes
            is_equal = self._costs.are_alike or head.size_bytes == first.size_bytes
            if count and (size_bytes > order.ask.max_bytes or not is_equal):
                return count
        return sum(map(len, columns))

    def _deliver(self, order: "_Order", run: Run) -> None:
        reply, ask, topic_id = order.reply, order.ask, run[0][0].key[0]
        charge = self._costs.at_delivery(topic_id, run[0][1][0])
        if ask.settled or self._fencing_durable != self.activity.fencing_epoch:
            reply.commit_first = True
        before = len(reply.picks)
        if len(run) == 1:
            reply.picks += self._take(order, *run[0], charge)
        else:
            reply.picks += in_turn([self._take(order, *each, charge) for each in run])
        count = len(reply.picks) - before
        if not ask.settled:
            self.in_flight.add(ask.member, count)
        self.fair.charge(topic_id, charge, count)
        self.topics[topic_id].took(run)

    def _take(self, order: "_Order", lane: Lane, heads: list[Head], charge: int) -> list[Pick]:
        """Lease messages of one lane, or settle them."""
        reply, ask, deadline_ms = order.reply, order.ask, order.deadline_ms
        key, cursor, member = lane.key, lane.cursor, ask.member
        # A restart must know how far deliveries went, and which lease of a message is the last.
        if heads[-1].offset >= cursor.reserved_durable:
            reply.commit_first = True
        for head in heads:
            reply.size_bytes += head.size_bytes
        picks = []
        if ask.settled:
            for offset, *_ in heads:
                redelivered = cursor.is_redelivery(offset)
                picks.append(Pick(key, offset, cursor.attempt(offset), redelivered, None))
            lane.take_settled(heads, member)
            return picks
        group_id, epoch, (topic_id, queue) = self.group_id, cursor.epoch, key
        were_seen = bool(cursor.attempts) or heads[0].offset < cursor.seen_below
        for lease in lane.take(heads, member, deadline_ms, order.now_ms, charge):
            offset, number, attempt = lease.head.offset, lease.number, lease.attempt
            redelivered = were_seen and cursor.is_redelivery(offset)
            if redelivered:
                reply.commit_first = True
            receipt = Receipt(
                group_id, topic_id, queue, offset, number, epoch, deadline_ms, attempt, member
            )
            picks.append(Pick(key, offset, attempt, redelivered, receipt))
        return picks

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
                    receipt = pick.receipt._replace(deadline_ms=deadline_ms)
                    picks.append(pick._replace(receipt=receipt))
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


@dataclass(slots=True)
class _Order:
    """A request while its reply is filled."""

    reply: Reply
    ask: Ask
    now_ms: int
    deadline_ms: int
