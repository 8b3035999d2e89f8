"""How a group serves requests: choose messages by fairness, lease them, issue receipts. Pure."""

from collections.abc import Iterable
from itertools import repeat
from operator import attrgetter

import msgspec

from holdfast.groups.core.group import Group
from holdfast.groups.core.group_topic import Offer, QueueLane, Run, interleave, truncate_run
from holdfast.groups.core.members import Admission
from holdfast.groups.core.receipts import Receipt
from holdfast.groups.core.requests import (
    Limits,
    ReceiveRequest,
    Reply,
    Room,
    SelectedMessage,
    Waiter,
)
from holdfast.groups.cursor.heads import Head, NeedsRead
from holdfast.groups.cursor.leases import NO_DEADLINE
from holdfast.groups.errors import FilterNotAllowed, GroupError

#: At most this many messages are chosen ("selected") for one reply in one event loop iteration.
#: Each takes about 10 microseconds.
SELECTED_A_TURN = 500
_SIZE_OF, _OFFSET_OF = attrgetter("size_bytes"), attrgetter("offset")


def receive(group: Group, request: ReceiveRequest, now_ms: int) -> Reply:
    """Return what a member gets now. Raises ExclusiveHeld, FilterNotAllowed."""
    if request.filter is not None and group.config.mode == "keyed":
        raise FilterNotAllowed(group.config.mode)
    admission = Admission.SERVED
    if not group.activity.serves_all:
        admission = group.activity.admit(request.member, group.may_become_active)
    if request.bound:
        group.members.bind(request.member)
    else:
        group.members.mark_seen(request.member, now_ms)
    if admission is Admission.WAITS:
        return Reply(is_active=False)
    if admission is Admission.NOTICE:
        return Reply(available=group.available(request), is_notice=True)
    if request.attempt_id is not None:
        reply = _repeat_answer(group, request, request.attempt_id, now_ms)
        if reply is not None:
            return reply
    reply = Reply()
    if group.fair.has_active:
        _fill(group, reply, request, now_ms)
    reply.available = group.available(request)
    return reply


def continue_reply(group: Group, reply: Reply, request: ReceiveRequest, now_ms: int) -> None:
    """Continue to fill a reply that stopped early: at SELECTED_A_TURN messages, or because a
    message had to be read from the log first. The messages already selected stay, so their
    order and the topics' shares are the same as without the stop. Add nothing if the member
    has lost any of the reply's leases meanwhile."""
    reply.needs, reply.is_cut = None, False
    if _has_all(group, reply, request.member):
        _fill(group, reply, request, now_ms)
    reply.available = group.available(request)


def serve(group: Group, now_ms: int) -> list[tuple[Waiter, Reply | GroupError]]:
    """Return the waiting requests that can be answered now, with their answers. The others
    continue to wait.

    If an answer has no messages and its `needs` is set, the answer is not final, and its
    request is still held. The caller must then read the queue at the offset in `needs`,
    `mark_dirty` the topic, and call `serve` again.
    """
    answered: list[tuple[Waiter, Reply | GroupError]] = []
    while group.dirty_topics and len(group.waiters):
        dirty, group.dirty_topics = group.dirty_topics, set()
        without_result: set[object] = set()
        for waiter in group.waiters:
            if without_result and _equivalence_key(group, waiter.request) in without_result:
                continue
            if not _may_match(group, waiter, dirty):
                continue
            answer: Reply | GroupError
            try:
                answer = receive(group, waiter.request, now_ms)
            except GroupError as error:
                answer = error
            if isinstance(answer, GroupError) or answer.is_answer:
                group.waiters.remove(waiter)
                answered.append((waiter, answer))
                if _are_exhausted(group, dirty):
                    break
            elif answer.needs is not None:
                answered.append((waiter, answer))
                group.dirty_topics |= dirty
                return answered
            else:
                without_result.add(_equivalence_key(group, waiter.request))
    group.dirty_topics.clear()
    return answered


def _are_exhausted(group: Group, dirty: set[int]) -> bool:
    """Return whether the dirty topics have no messages left for any member. In single active
    mode always return False, because a waiting request may also get a notice."""
    is_about_messages = group.config.mode != "single_active"
    return is_about_messages and not any(map(group.fair.is_active, dirty))


def _equivalence_key(group: Group, request: ReceiveRequest) -> object:
    """Return a value that is equal for similar requests: if one of them gets nothing now, the
    others get nothing either."""
    is_competing = group.config.mode == "competing"
    return (
        group.in_flight.room(request.member) > 0 if is_competing else request.member,
        request.topics,
        request.may_receive,
        request.filter,
        request.settled,
        request.limits,
    )


def _may_match(group: Group, waiter: Waiter, dirty: set[int]) -> bool:
    """Return whether this waiting request may get messages of the dirty topics."""
    active = group.activity.active
    if active is not None and waiter.request.member != active:
        return False
    request = waiter.request
    if request.topics is not None and request.topics.isdisjoint(dirty):
        return False
    return request.may_receive is None or any(map(request.may_receive, dirty))


class _FillState(msgspec.Struct):
    """A request while its reply is being filled."""

    reply: Reply
    request: ReceiveRequest
    now_ms: int
    deadline_ms: int


def _fill(group: Group, reply: Reply, request: ReceiveRequest, now_ms: int) -> None:
    """Add messages to a reply, until it is full or no message is available. If a message must be
    read from the log first, stop and set `reply.needs`."""
    room = _limit_reply(group, reply, request)
    most = min(room, len(reply.messages) + SELECTED_A_TURN)
    is_timed = not request.bound
    deadline_ms = now_ms + group.allowed_lease_ms(request.lease_ms) if is_timed else NO_DEADLINE
    fill = _FillState(reply, request, now_ms, deadline_ms)
    peeked: dict[int, Offer | None] = {}

    def head_cost(topic_id: int) -> int | None:
        if topic_id not in peeked:
            peeked[topic_id] = _peek(group, fill, topic_id) if request.takes(topic_id) else None
        found = peeked[topic_id]
        return None if found is None else group.costs.at_delivery(topic_id, found[1])

    served: dict[QueueLane, None] = {}
    try:
        while len(reply.messages) < most:
            topic_id = group.fair.select(head_cost)
            if topic_id is None:
                break
            found = peeked.pop(topic_id)
            assert found is not None
            if reply.messages and reply.size_bytes + found[1].size_bytes > request.max_bytes:
                break
            run = _select_run(group, fill, found, most - len(reply.messages))
            _deliver(group, fill, run)
            for lane, _ in run:
                served[lane] = None
            # Peek even if the reply is full now: if the topic has no messages left for any
            # member, the peek makes the topic inactive, and `serve` relies on that.
            peeked[topic_id] = _peek(group, fill, topic_id)
        reply.is_cut = len(reply.messages) == most < room
    except NeedsRead as needed:
        reply.needs = needed.queue, needed.offset
    finally:
        if reply.room is not None:
            reply.room.put_back()
    for lane in served:
        group.update_lane(lane)
    if reply.messages and is_timed and not request.settled:
        group.members.mark_seen(request.member, now_ms, deadline_ms)
    if reply.messages and request.attempt_id is not None:
        key = request.member, request.attempt_id
        group.answers.store(*key, reply.messages, now_ms, request.client)


def _limit_reply(group: Group, reply: Reply, request: ReceiveRequest) -> int:
    """Set `reply.room`. Return how many messages the reply may have in all."""
    returned_only = not (request.settled or group.in_flight.may_deliver_new)
    if reply.room is None and (returned_only or request.limits is not None):
        reply.room = Room(request.limits or Limits())
    if reply.room is not None:
        reply.room.returned_only = returned_only
    if request.settled:
        return request.max_messages
    return min(request.max_messages, len(reply.messages) + group.in_flight.room(request.member))


def _has_all(group: Group, reply: Reply, member: str) -> bool:
    """Return whether a member may be served and still has every lease of a reply."""
    if group.config.mode in ("single_active", "exclusive") and group.activity.active != member:
        return False
    return all(
        message.receipt is None
        or group.lease(message.queue, message.offset, message.receipt.lease_number) is not None
        for message in reply.messages
    )


def _peek(group: Group, fill: _FillState, topic_id: int) -> Offer | None:
    topic, request = group.topics[topic_id], fill.request
    found = None
    if topic.available > 0:  # an upper bound
        found = topic.peek(request.member, request.filter, fill.now_ms, fill.reply.room)
    if found is None and (topic.available <= 0 or topic.is_drained()):
        group.fair.deactivate(topic_id)
    return found


def _select_run(group: Group, fill: _FillState, offered: Offer, room: int) -> Run:
    """Return the run of messages to deliver together: the offered message, and those that
    successive requests for one message each would get next. All messages of a run are of one
    topic and have the same cost."""
    lane, first = offered
    topic_id = lane.key[0]
    most, limits = 1, fill.reply.room
    room = min(room, group.topics[topic_id].available)
    if room > 1 and not (limits is not None and limits.returned_only):
        most = min(room, group.fair.turns(topic_id, group.costs.at_delivery(topic_id, first)))
    if most == 1:
        return [(lane, [first])]
    run = group.topics[topic_id].select_run(offered, fill.request.filter, fill.now_ms, most, limits)
    size_bytes = sum([head.size_bytes for _, heads in run for head in heads])
    if fill.reply.size_bytes + size_bytes > fill.request.max_bytes or not group.costs.are_alike:
        run = truncate_run(run, _count_fitting(group, fill, topic_id, [heads for _, heads in run]))
    return run


def _count_fitting(group: Group, fill: _FillState, topic_id: int, columns: list[list[Head]]) -> int:
    """Return how many messages from the beginning of a run have the cost of the first message
    and fit into the bytes that the request allows. The result is at least 1."""
    costs, first, size_bytes = group.costs, columns[0][0], fill.reply.size_bytes
    cost = costs.at_delivery(topic_id, first)
    for count, head in enumerate(interleave(columns)):
        size_bytes += head.size_bytes
        is_equal = costs.are_alike or costs.at_delivery(topic_id, head) == cost
        if count and (size_bytes > fill.request.max_bytes or not is_equal):
            return count
    return sum(map(len, columns))


def _deliver(group: Group, fill: _FillState, run: Run) -> None:
    reply, request, topic_id = fill.reply, fill.request, run[0][0].key[0]
    charge = group.costs.at_delivery(topic_id, run[0][1][0])
    if request.settled or group.outbox.durable_fencing_epoch != group.activity.fencing_epoch:
        reply.commit_first = True
    before = len(reply.messages)
    if len(run) == 1:
        reply.messages += _lease_messages(group, fill, *run[0], charge)
    else:
        reply.messages += interleave([_lease_messages(group, fill, *each, charge) for each in run])
    if reply.room is not None:
        for lane, heads in run:
            for head in heads:
                reply.room.take(lane.key, head.key)
    count = len(reply.messages) - before
    topic = group.topics[topic_id]
    topic.available -= count
    for lane, heads in run:
        lane.counted -= len(heads)
    if not request.settled:
        group.in_flight.add(request.member, count)
    group.fair.charge(topic_id, charge, count)
    if len(topic.lanes) > 1:
        topic.advance(run, has_left_out=reply.room is not None)


def _lease_messages(
    group: Group, fill: _FillState, lane: QueueLane, heads: list[Head], charge: int
) -> list[SelectedMessage]:
    """Lease messages of one lane; settle them if the request asked for that (`settled`)."""
    reply, request, deadline_ms = fill.reply, fill.request, fill.deadline_ms
    key, cursor, member = lane.key, lane.cursor, request.member
    # If the last offset is beyond the durable reserve, commit before the reply is sent: after a
    # restart the broker must know that these messages may have been delivered. The same holds for
    # the first timed lease, after which a restart may have to wait.
    if heads[-1].offset >= cursor.reserved_durable or not (
        cursor.may_lease_timed or request.bound or request.settled
    ):
        reply.commit_first = True
    reply.size_bytes += sum(map(_SIZE_OF, heads))
    if request.settled:
        messages = []
        for offset in [head.offset for head in heads]:
            redelivered, failed = cursor.is_redelivery(offset), cursor.failures(offset)
            attempt = cursor.attempt(offset)
            messages.append(SelectedMessage(key, offset, attempt, redelivered, None, failed))
        lane.take_settled(heads, member)
        return messages
    group_id, epoch, (topic_id, queue) = group.group_id, cursor.epoch, key
    were_seen = bool(cursor.attempts) or heads[0].offset < cursor.seen_below
    leases = lane.lease(heads, member, deadline_ms, fill.now_ms, charge, request.attempt_id)
    offsets, number = [*map(_OFFSET_OF, heads)], leases[0].number
    attempts: Iterable[int] = repeat(1)
    are_redelivered: Iterable[bool] = repeat(False)
    failures: Iterable[int] = repeat(0)
    if were_seen:
        attempts = [lease.attempt for lease in leases]
        are_redelivered = [cursor.is_redelivery(each) for each in offsets]
        failures = [cursor.failures(each) for each in offsets]
        if any(are_redelivered):
            # After a restart the broker must know the end of the earlier lease.
            reply.commit_first = True
    elif len(leases) == 1:  # without the columns, which only a run needs
        offset = offsets[0]
        place = group_id, topic_id, queue, offset
        receipt = Receipt(*place, number, epoch, deadline_ms, 1, member)
        return [SelectedMessage(key, offset, 1, False, receipt)]
    receipts = map(
        Receipt,
        *(repeat(group_id), repeat(topic_id), repeat(queue), offsets),
        *(range(number, number + len(leases)), repeat(epoch), repeat(deadline_ms)),
        *(attempts, repeat(member)),
    )
    columns = offsets, attempts, are_redelivered, receipts, failures
    return list(map(SelectedMessage, repeat(key), *columns))


def _repeat_answer(
    group: Group, request: ReceiveRequest, attempt_id: str, now_ms: int
) -> Reply | None:
    """Return the earlier reply to this attempt id again, without the messages whose leases
    have ended. Extend the other leases. Return None if no message is left.

    Leave out messages that this request does not ask for or may not get: the first attempt
    may have come from another client, with more permissions."""
    messages = []
    found = group.answers.find(request.member, attempt_id, now_ms)
    taken = {each for each in {message.queue[0] for message in found} if request.takes(each)}
    for message in found:
        receipt, lane = message.receipt, group.lane(message.queue)
        if message.queue[0] not in taken:
            continue
        if receipt is None:
            messages.append(message)
            continue
        lease = group.lease(message.queue, message.offset, receipt.lease_number)
        if lane is None or lease is None or lane.cursor.epoch != receipt.epoch:
            continue
        deadline_ms = now_ms + group.allowed_lease_ms(request.lease_ms)
        if deadline_ms <= max(lease.deadline_ms, receipt.deadline_ms):
            # A repeated reply needs another deadline; a later one could exceed the longest lease.
            deadline_ms = lease.deadline_ms - 1
        lane.cursor.extend(lease, deadline_ms)
        group.members.mark_seen(request.member, now_ms, deadline_ms)
        receipt = msgspec.structs.replace(receipt, deadline_ms=deadline_ms)
        messages.append(msgspec.structs.replace(message, receipt=receipt))
        group.update_lane(lane)
    return Reply(messages, group.available(request), commit_first=True) if messages else None
