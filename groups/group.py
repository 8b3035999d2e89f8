"""One group: its topics, its members and what they get. Pure: the caller says the time.

Belongs to one event loop; the shell tells it what happens and does what it says:

    reply = group.receive(ask, now)         # nothing in it: hold it with group.park(ask, ...)
    statuses = group.settle(verb, receipts, now)
    group.arrived(queue, end); group.tick(now); ...        # what happens in the world
    for waiter, answer in group.serve(now): ...            # after any of these, in the same turn
    batch = group.take_writes(); write; group.committed(batch)

`now_ms` never falls, also over a restart: receipts carry deadlines. No wake-up is lost: whatever
makes a message available to somebody stirs its topic, `park` stirs those it waits for, and
`serve` offers what was stirred to those who wait until nobody can have any of it.
"""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from holdfast.consumequeue.topics import QueueKey
from holdfast.groups import settling
from holdfast.groups.activity import SingleActive, activity_for
from holdfast.groups.asking import Ask, Pick, Repeats, Reply
from holdfast.groups.config import SHORTEST_LEASE_MS, GroupConfig
from holdfast.groups.costs import Costs
from holdfast.groups.cursor import Cursor, End
from holdfast.groups.cursor_rows import has_changes, take_writes
from holdfast.groups.errors import FilterNotAllowed, GroupError
from holdfast.groups.fair_set import FairSet
from holdfast.groups.group_topic import GroupTopic
from holdfast.groups.heads import Head, HeadSource, NeedsRead
from holdfast.groups.in_flight import InFlight
from holdfast.groups.lane import DeadLetter, Lane
from holdfast.groups.leases import Lease
from holdfast.groups.members import Members
from holdfast.groups.rows import DeleteRange, Write, key_prefix
from holdfast.groups.settling import Status, Terms, Verb
from holdfast.groups.standing import Receipt
from holdfast.groups.waiters import Waiter, Waiters


class WriteBatch:
    """Rows of one transaction, and the reserves that they make durable."""

    def __init__(self) -> None:
        self.writes: list[Write | DeleteRange] = []
        self.reserves: list[tuple[Cursor, int, int]] = []
        self.fencing_epoch = 0


class Group:
    """The state of one group. Its cursors are made, or restored, by the caller."""

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
        self._timers: list[tuple[int, QueueKey]] = []

    @property
    def lease_count(self) -> int:
        """How many messages are leased now."""
        return self.in_flight.total

    # -- what it consists of -----------------------------------------------------------------

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

    # -- receiving ---------------------------------------------------------------------------

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

    def park(
        self,
        ask: Ask,
        ticket: object,
        now_ms: int,
        deadline_ms: int,
        *,
        has_looked: bool = False,
    ) -> Waiter:
        """Hold a request that got nothing. `serve` comes next: it looks once more, unless
        `has_looked` says that it found nothing, and needed no read, in this very turn."""
        self.members.seen(ask.member, now_ms, deadline_ms)
        if has_looked:
            return self.waiters.add(ask, ticket, deadline_ms)
        for topic_id in self.topics if ask.topics is None else ask.topics & self.topics.keys():
            self._stirred.add(topic_id)
        return self.waiters.add(ask, ticket, deadline_ms)

    def cancel(self, waiter: Waiter) -> bool:
        """Its client went away. False: it was answered before."""
        return self.waiters.remove(waiter)

    def serve(self, now_ms: int) -> list[tuple[Waiter, Reply | GroupError]]:
        """Answer those who wait for what was stirred; the others go on waiting.

        An answer without picks that `needs` a read is not final: the waiter is still held.
        Read there, `stir` the topic, and serve again.
        """
        answered: list[tuple[Waiter, Reply | GroupError]] = []
        while self._stirred and len(self.waiters):
            stirred, self._stirred = self._stirred, set()
            in_vain: set[object] = set()
            for waiter in self.waiters:
                likeness = self._likeness(waiter.ask)
                if likeness in in_vain or not self._hopes(waiter, stirred):
                    continue
                answer: Reply | GroupError
                try:
                    answer = self.receive(waiter.ask, now_ms)
                except GroupError as error:
                    answer = error
                if isinstance(answer, GroupError) or answer.is_answer:
                    self.waiters.remove(waiter)
                    answered.append((waiter, answer))
                    if self._is_taken(stirred):
                        break
                elif answer.needs is not None:
                    answered.append((waiter, answer))
                    self._stirred |= stirred
                    return answered
                else:
                    in_vain.add(likeness)
        self._stirred.clear()
        return answered

    def stir(self, topic_id: int) -> None:
        """Look at a topic again, for those who wait: the source can tell more now."""
        if topic_id in self.topics:
            self._stir(self.topics[topic_id])

    # -- settling ----------------------------------------------------------------------------

    def settle(
        self,
        verb: Verb,
        receipts: Sequence[Receipt | None],
        now_ms: int,
        *,
        delay_ms: int | None = None,
        lease_ms: int | None = None,
        used_ms: float | None = None,
        cumulative: bool = False,
    ) -> list[Status]:
        """Settle each receipt; None stands for one that could not be read. Durable once
        `take_writes` is. `used_ms`: how long each message was worked on, if that is known."""
        terms = Terms(verb, now_ms, self._lease_ms(lease_ms), delay_ms, cumulative)
        return [self._settle(receipt, terms, used_ms) for receipt in receipts]

    def take_dead_letters(self) -> list[DeadLetter]:
        """Return the messages that are to be appended to the dead letters, each once."""
        letters = []
        for lane in self._mourning:
            letters += lane.dead_letters
            lane.dead_letters = []
        self._mourning.clear()
        return letters

    def retry_dead_letter(self, letter: DeadLetter) -> None:
        """A dead letter could not be appended: it is among the next that are taken."""
        lane = self._lane(letter.queue)
        if lane is not None and letter.offset in lane.cursor.dying:
            lane.dead_letters.append(letter)
            self._mourning[lane] = None

    def dead_lettered(self, key: QueueKey, offset: int, position: int) -> bool:
        """A dead letter is durable at `position`. False: it was not waited for."""
        lane = self._lane(key)
        if lane is None or not lane.dead_lettered(offset, position):
            return False
        self._touch(lane)
        return True

    # -- what happens in the world -----------------------------------------------------------

    def arrived(self, key: QueueKey, end: int) -> None:
        """A queue reaches to `end`, durably."""
        lane = self._lane(key)
        if lane is not None and lane.arrived(end):
            self._happened(lane)

    def trimmed(self, key: QueueKey, log_start: int, now_ms: int) -> None:
        """A queue begins at `log_start` now."""
        lane = self._lane(key)
        if lane is not None:
            self._end(lane, lane.trim(log_start), now_ms)

    def seek(self, key: QueueKey, target: int) -> None:
        """Start a queue again at an offset; receipts of it are stale."""
        lane = self._lane(key)
        if lane is not None:
            ended = list(lane.cursor.leases)
            lane.seek(target)
            self._ended(key[0], ended, None)
            self._happened(lane)

    def leave(self, member: str, now_ms: int) -> list[Waiter]:
        """A member has gone, or is fenced: its messages are available again, in their places.
        Returns its requests, to be answered with nothing."""
        waiters = [each for each in self.waiters if each.ask.member == member]
        for waiter in waiters:
            self.waiters.remove(waiter)
        for topic in self.topics.values():
            for lane in topic.lanes.values():
                for lease in lane.cursor.leases.of_member(member):
                    if lane.cursor.leases.get(lease.head.offset) is lease:
                        back = lane.give_back(lease.head.offset, End.REVOKED, lease.number, now_ms)
                        self._end(lane, back, now_ms)
        self.members.forget(member)
        if self.activity.leave(member):
            self._stir_all()
        return waiters

    def retire(self, member: str) -> None:
        """The active member wants no more but settles what it has; then the next begins."""
        if isinstance(self.activity, SingleActive) and self.activity.retire(member):
            self._stir_all()

    def next_deadline(self) -> int | None:
        """Return when to call `tick`; None: nothing is waited for. It may be somewhat early."""
        while self._timers:
            deadline_ms, key = self._timers[0]
            lane = self._lane(key)
            if lane is not None and lane.timer == deadline_ms:
                break
            heappop(self._timers)
        times = [self._timers[0][0]] if self._timers else []
        times += filter(None, (self.waiters.next_deadline(), self.members.next_end()))
        return min(times, default=None)

    def tick(self, now_ms: int) -> list[Waiter]:
        """Note what has run out by now; return the waiters to be answered with nothing."""
        while self._timers and self._timers[0][0] <= now_ms:
            deadline_ms, key = heappop(self._timers)
            lane = self._lane(key)
            if lane is not None and lane.timer == deadline_ms:
                lane.timer = None
                self._run_out(lane, now_ms)
        due = self.waiters.due(now_ms)
        for member in self.members.silent(now_ms):
            due += self.leave(member, now_ms)
        return due

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
            batch.reserves.append((lane.cursor, lane.cursor.epoch, lane.cursor.reserved_next))
        self._changed.clear()
        return batch

    def committed(self, batch: WriteBatch) -> None:
        """A batch is durable."""
        self._fencing_durable = batch.fencing_epoch
        for cursor, epoch, reserved_next in batch.reserves:
            if cursor.epoch == epoch:
                cursor.reserved_durable = max(cursor.reserved_durable, reserved_next)

    # -- inside: receiving -------------------------------------------------------------------

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

    def _lease_ms(self, lease_ms: int | None) -> int:
        asked = self.config.lease_ms if lease_ms is None else lease_ms
        return min(max(asked, SHORTEST_LEASE_MS), self.config.longest_lease_ms)

    def _may_begin(self, member: str) -> bool:
        """Say whether nothing is, or may be, leased to another member than this."""
        if self.in_flight.has_others(member):
            return False
        return not any(
            lane.cursor.grace_count
            for topic in self.topics.values()
            for lane in topic.lanes.values()
        )

    # -- inside: settling --------------------------------------------------------------------

    def _settle(self, receipt: Receipt | None, terms: Terms, used_ms: float | None) -> Status:
        if receipt is None or receipt.group_id != self.group_id:
            return Status.INVALID
        lane = self._lane((receipt.topic_id, receipt.queue))
        if lane is None:
            return Status.STALE
        if (first := lane.cursor.leases.next_deadline()) is not None and first <= terms.now_ms:
            self._run_out(lane, terms.now_ms)
        leases_before, active = len(lane.cursor.leases), self.activity.active
        status, ended = settling.settle(lane, self.activity, receipt, terms)
        adopted = len(lane.cursor.leases) - leases_before + len(ended)
        if adopted:
            self.in_flight.add(receipt.member)
        if status is Status.DONE:
            until = terms.now_ms + terms.lease_ms if terms.verb is Verb.EXTEND else 0
            self.members.seen(receipt.member, terms.now_ms, until)
            self._ended(lane.key[0], ended, terms.now_ms, used_ms)
            if terms.verb in (Verb.NACK, Verb.RELEASE) or self.config.mode == "keyed":
                self._happened(lane)
            else:
                self._touch(lane)
        else:  # judging it may have settled unwanted messages on the way
            self._touch(lane)
        if self.activity.active != active:  # it has proven itself after a restart
            self._stir_all()
        return status

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

    # -- inside: wake-ups --------------------------------------------------------------------

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

    def _is_taken(self, stirred: set[int]) -> bool:
        """Say whether nothing of what was stirred is left for anybody."""
        is_about_messages = self.config.mode != "single_active"
        return is_about_messages and not any(map(self.fair.is_active, stirred))

    def _likeness(self, ask: Ask) -> object:
        """Return what is equal for requests that get nothing for the same reason."""
        if self.config.mode == "competing":
            return ask.topics, ask.filter, self.in_flight.room(ask.member) > 0, ask.settled
        return ask.member, ask.topics, ask.filter, ask.settled

    def _hopes(self, waiter: Waiter, stirred: set[int]) -> bool:
        """Say whether what was stirred may be for this waiter."""
        active = self.activity.active
        if active is not None and waiter.ask.member != active:
            return False
        topics = waiter.ask.topics
        return topics is None or not topics.isdisjoint(stirred)

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
        if lane.dead_letters:
            self._mourning[lane] = None
        if has_changes(lane.cursor):
            self._changed[lane] = None

    def _lane(self, key: QueueKey) -> Lane | None:
        topic = self.topics.get(key[0])
        return None if topic is None else topic.lanes.get(key[1])
