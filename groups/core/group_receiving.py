"""How a group serves a request: choose messages by fairness, lease them, issue receipts. Pure."""

from dataclasses import dataclass

from holdfast.groups.core.group_settling import GroupSettling
from holdfast.groups.core.group_topic import Offer, Run, first_of, in_turn
from holdfast.groups.core.limits import Limits, Room
from holdfast.groups.core.queue_lane import Lane
from holdfast.groups.core.receipt_state import Receipt
from holdfast.groups.core.requests import Ask, Pick, Reply
from holdfast.groups.cursor.heads import Head, NeedsRead
from holdfast.groups.errors import FilterNotAllowed

#: At most this many messages are chosen ("picked") for one reply in one event loop iteration.
#: Each takes about 10 microseconds.
PICKS_A_TURN = 500


class GroupReceiving(GroupSettling):
    """The part of a group that serves requests for messages."""

    def receive(self, ask: Ask, now_ms: int) -> Reply:
        """Return what a member gets now. Raises ExclusiveHeld, FilterNotAllowed."""
        if ask.filter is not None and self.config.mode == "keyed":
            raise FilterNotAllowed(self.config.mode)
        admission = self.activity.admit(ask.member, self._may_begin)
        self.members.seen(ask.member, now_ms)
        if not admission.is_active:
            return Reply(is_active=False)
        if admission.is_notice:
            return Reply(available=self.available(ask), is_notice=True)
        if ask.attempt_id is not None:
            reply = self._repeat(ask, ask.attempt_id, now_ms)
            if reply is not None:
                return reply
        reply = Reply()
        self._fill(reply, ask, now_ms)
        reply.available = self.available(ask)
        return reply

    def go_on(self, reply: Reply, ask: Ask, now_ms: int) -> None:
        """Continue to fill a reply that stopped early: at PICKS_A_TURN messages, or because a
        message had to be read from the log first. The messages already picked stay, so their
        order and the topics' shares are the same as without the stop. Add nothing if the member
        has lost any of the reply's leases meanwhile."""
        reply.needs, reply.is_cut = None, False
        if self._has_all(reply, ask.member):
            self._fill(reply, ask, now_ms)
        reply.available = self.available(ask)

    def available(self, ask: Ask | None = None) -> int:
        """Return how many messages this request could get now. If `ask` is None, count the
        messages of all topics. The result is an upper bound, because filters may not have been
        applied to all messages yet."""
        if ask is None or (ask.topics is None and ask.may_receive is None):
            return sum(topic.available for topic in self.topics.values())
        asked = self.topics if ask.topics is None else ask.topics & self.topics.keys()
        return sum(self.topics[each].available for each in asked if ask.takes(each))

    # -- inside ------------------------------------------------------------------------------

    def _fill(self, reply: Reply, ask: Ask, now_ms: int) -> None:
        room = ask.credit
        if not ask.settled:
            room = min(room, len(reply.picks) + self.in_flight.room(ask.member))
        most = min(room, len(reply.picks) + PICKS_A_TURN)
        returned_only = not (ask.settled or self.in_flight.may_deliver_new)
        if reply.room is None and (returned_only or ask.limits is not None):
            reply.room = Room(ask.limits or Limits())
        if reply.room is not None:
            reply.room.returned_only = returned_only
        order = _Order(reply, ask, now_ms, now_ms + self._lease_ms(ask.lease_ms))
        peeked: dict[int, Offer | None] = {}

        def head_cost(topic_id: int) -> int | None:
            if topic_id not in peeked:
                is_taken = ask.takes(topic_id)
                peeked[topic_id] = (
                    self._peek(topic_id, ask, now_ms, reply.room) if is_taken else None
                )
            found = peeked[topic_id]
            return None if found is None else self._costs.at_delivery(topic_id, found[1])

        served: dict[Lane, None] = {}
        try:
            while len(reply.picks) < most:
                topic_id = self.fair.select(head_cost)
                if topic_id is None:
                    break
                found = peeked.pop(topic_id)
                assert found is not None
                if reply.picks and reply.size_bytes + found[1].size_bytes > ask.max_bytes:
                    break
                run = self._run(order, found, most - len(reply.picks))
                self._deliver(order, run)
                for lane, _ in run:
                    served[lane] = None
                # Peek even if the reply is full now: if the topic has no messages left for any
                # member, the peek makes the topic inactive, and `serve` relies on that.
                peeked[topic_id] = self._peek(topic_id, ask, now_ms, reply.room)
            reply.is_cut = len(reply.picks) == most < room
        except NeedsRead as needed:
            reply.needs = needed.queue, needed.offset
        finally:
            if reply.room is not None:
                reply.room.put_back()
        for lane in served:
            self._touch(lane)
        if reply.picks and not ask.settled:
            self.members.seen(ask.member, now_ms, order.deadline_ms)
        if reply.picks and ask.attempt_id is not None:
            self._repeats.note(ask.member, ask.attempt_id, reply.picks, now_ms, ask.client)

    def _has_all(self, reply: Reply, member: str) -> bool:
        """Return whether a member may be served and still has every lease of a reply."""
        if self.config.mode in ("single_active", "exclusive") and self.activity.active != member:
            return False
        for pick in reply.picks:
            if pick.receipt is not None:
                lane = self._lane(pick.queue)
                lease = None if lane is None else lane.cursor.leases.get(pick.offset)
                if lease is None or lease.number != pick.receipt.lease_number:
                    return False
        return True

    def _peek(self, topic_id: int, ask: Ask, now_ms: int, room: Room | None) -> Offer | None:
        topic = self.topics[topic_id]
        found = topic.peek(ask.member, ask.filter, now_ms, room)
        if found is None and topic.is_drained():
            self.fair.deactivate(topic_id)
        return found

    def _run(self, order: "_Order", offered: Offer, room: int) -> Run:
        """Return the run of messages to deliver together: the offered message, and those that
        successive requests for one message each would get next. All messages of a run are of one
        topic and have the same cost."""
        lane, first = offered
        topic_id = lane.key[0]
        most, limits = 1, order.reply.room
        if room > 1 and not (limits is not None and limits.returned_only):
            most = min(room, self.fair.turns(topic_id, self._costs.at_delivery(topic_id, first)))
        if most == 1:
            return [(lane, [first])]
        run = self.topics[topic_id].run(offered, order.ask.filter, order.now_ms, most, limits)
        size_bytes = sum([head.size_bytes for _, heads in run for head in heads])
        if order.reply.size_bytes + size_bytes > order.ask.max_bytes or not self._costs.are_alike:
            run = first_of(run, self._fitting(order, [heads for _, heads in run]))
        return run

    def _fitting(self, order: "_Order", columns: list[list[Head]]) -> int:
        """Return how many messages from the beginning of a run have the cost of the first message
        and fit into the bytes that the request allows. The result is at least 1."""
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
        if reply.room is not None:
            for lane, heads in run:
                for head in heads:
                    reply.room.take(lane.key, head.key)
        count = len(reply.picks) - before
        if not ask.settled:
            self.in_flight.add(ask.member, count)
        self.fair.charge(topic_id, charge, count)
        self.topics[topic_id].took(run, has_left_out=reply.room is not None)

    def _take(self, order: "_Order", lane: Lane, heads: list[Head], charge: int) -> list[Pick]:
        """Lease messages of one lane; settle them if the request asked for that (`settled`)."""
        reply, ask, deadline_ms = order.reply, order.ask, order.deadline_ms
        key, cursor, member = lane.key, lane.cursor, ask.member
        # If the last offset is beyond the durable reserve, commit before the reply is sent: after a
        # restart the broker must know that these messages may have been delivered.
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
        leases = lane.take(heads, member, deadline_ms, order.now_ms, charge, ask.attempt_id)
        for lease in leases:
            offset, number, attempt = lease.head.offset, lease.number, lease.attempt
            redelivered = were_seen and cursor.is_redelivery(offset)
            if redelivered:  # after a restart the broker must know the end of the earlier lease
                reply.commit_first = True
            receipt = Receipt(
                group_id, topic_id, queue, offset, number, epoch, deadline_ms, attempt, member
            )
            picks.append(Pick(key, offset, attempt, redelivered, receipt))
        return picks

    def _repeat(self, ask: Ask, attempt_id: str, now_ms: int) -> Reply | None:
        """Return the earlier reply to this attempt id again, without the messages whose leases
        have ended. Extend the other leases. Return None if no message is left.

        Leave out messages that this request does not ask for or may not get: the first attempt
        may have come from another client, with more permissions."""
        picks = []
        found = self._repeats.find(ask.member, attempt_id, now_ms)
        taken = {each for each in {pick.queue[0] for pick in found} if ask.takes(each)}
        for pick in found:
            if pick.queue[0] not in taken:
                continue
            lane = self._lane(pick.queue)
            if pick.receipt is None:
                picks.append(pick)
            elif lane is not None and lane.cursor.epoch == pick.receipt.epoch:
                lease = lane.cursor.leases.get(pick.offset)
                if lease is not None and lease.number == pick.receipt.lease_number:
                    # Always later, which distinguishes the receipts of the two replies.
                    deadline_ms = max(lease.deadline_ms + 1, now_ms + self._lease_ms(ask.lease_ms))
                    lane.cursor.extend(lease, deadline_ms)
                    self.members.seen(ask.member, now_ms, deadline_ms)
                    receipt = pick.receipt._replace(deadline_ms=deadline_ms)
                    picks.append(pick._replace(receipt=receipt))
                    self._touch(lane)
        if not picks:
            return None
        return Reply(picks, self.available(ask), commit_first=True)

    def _may_begin(self, member: str) -> bool:
        """Return whether a member may become active: True if no other member has a lease and no
        message is in grace."""
        if self.in_flight.has_others(member):
            return False
        return not any(
            lane.cursor.grace_count
            for topic in self.topics.values()
            for lane in topic.lanes.values()
        )


@dataclass(slots=True)
class _Order:
    """A request while its reply is being filled."""

    reply: Reply
    ask: Ask
    now_ms: int
    deadline_ms: int
