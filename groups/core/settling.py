"""What each verb does with a receipt in each state. Pure.

`receipts.ReceiptState` defines the states. In this table, "settled" and "returned" concern the
message of the receipt; a returned message goes back to the group, to be delivered again.

    state    ack, reject      nack, release        extend
    LIVE     settled          returned             a new deadline
    GRACE    settled          returned             the lease is live again
    LATE     settled (1)      stale                stale
    USED     done if the receipt was used with the same verb, otherwise stale
    STALE    stale            stale                stale

A bound lease has no deadline, so an extend of it changes nothing.

(1) Stale if the group has `strict_leases`, or if the member is not the active member any more.
In a keyed group, a GRACE or LATE receipt is stale once an earlier message of its key was returned.

A nack is a failure: the message is delayed by the given time, or by the group's backoff table. A
message becomes a dead letter after its last allowed failure, or after a reject. Each receipt gets
its own status, so one call may settle some messages and not others. If a receipt is used twice,
the second use changes nothing.
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import islice

import msgspec

from holdfast.groups.core.group import Group
from holdfast.groups.core.group_topic import QueueLane
from holdfast.groups.core.members import MemberRule
from holdfast.groups.core.receipts import Receipt, ReceiptState, receipt_state
from holdfast.groups.core.requests import SelectedMessage
from holdfast.groups.cursor.cursor import End
from holdfast.groups.cursor.leases import NO_DEADLINE, Lease


class Verb(Enum):
    """An action of a member on a message."""

    ACK = "ack"
    NACK = "nack"
    RELEASE = "release"
    EXTEND = "extend"
    REJECT = "reject"


class Status(Enum):
    """The result for one receipt."""

    DONE = "done"
    STALE = "stale"
    INVALID = "invalid"


ENDS = {
    Verb.ACK: End.ACKED,
    Verb.NACK: End.NACKED,
    Verb.RELEASE: End.RELEASED,
    Verb.REJECT: End.REJECTED,
}


class Terms(msgspec.Struct, gc=False):
    """The parameters of one call to settle. If `delay_ms` is None, the group's backoff table sets
    the delay of a nack. `reason` is why messages are rejected."""

    verb: Verb
    now_ms: int
    lease_ms: int
    delay_ms: int | None
    used_ms: float | None
    reason: str | None


def settle(
    group: Group,
    verb: Verb,
    receipts: Sequence[Receipt | None],
    now_ms: int,
    *,
    delay_ms: int | None = None,
    lease_ms: int | None = None,
    used_ms: float | None = None,
    reason: str | None = None,
    cumulative: bool = False,
) -> list[Status]:
    """Apply a verb to each receipt, and return a status for each. A receipt that could not be
    decoded is given as None. The results are durable once the rows of the next `take_writes`
    are.

    `used_ms` is the time that the member worked on each message, if known. The dead letters of
    rejected messages name the `reason`. If `cumulative` is true, each acknowledged receipt also
    acknowledges the messages that its member has leased at lower offsets of the same queue."""
    if cumulative and verb is Verb.ACK:
        settle(group, verb, receipts_below(group, receipts, now_ms), now_ms, used_ms=used_ms)
    terms = Terms(verb, now_ms, group.allowed_lease_ms(lease_ms), delay_ms, used_ms, reason)
    touched: dict[QueueLane, None] = {}
    statuses: list[Status] = []
    last = len(receipts) - 1
    while (index := len(statuses)) <= last:
        may_run = verb is Verb.ACK and index < last
        count = _ack_run(group, receipts, index, terms, touched) if may_run else 0
        if count:
            statuses += [Status.DONE] * count
        else:
            statuses.append(_settle_one(group, receipts[index], terms, touched))
    for lane in touched:
        group.update_lane(lane)
    return statuses


def receipts_below(group: Group, receipts: Iterable[Receipt | None], now_ms: int) -> list[Receipt]:
    """For each receipt, find the messages that its member has leased at lower offsets of the
    same queue. Return receipts for these messages. Ignore a given receipt with which an ack
    would change nothing."""
    highest: dict[tuple[QueueLane, str], int] = {}
    looked: set[QueueLane] = set()
    for receipt in receipts:
        if receipt is None or receipt.group_id != group.group_id:
            continue
        lane = group.lane((receipt.topic_id, receipt.queue))
        if lane is None:
            continue
        _expire(group, lane, receipt.offset, now_ms, is_first=lane not in looked)
        looked.add(lane)
        if _would_settle(lane, group.activity, receipt, Verb.ACK):
            offset = highest.get((lane, receipt.member), 0)
            highest[lane, receipt.member] = max(offset, receipt.offset)
    return [
        lane.receipt(lease)
        for (lane, member), offset in highest.items()
        for lease in lane.cursor.leases.of_member(member, offset)
    ]


def release_undelivered(group: Group, receipts: Sequence[Receipt | None], now_ms: int) -> int:
    """Release the messages of a reply that was not delivered; return how many.

    Leave out messages whose leases have another deadline since: the member has these messages from
    the reply to a repeat of the request."""
    undelivered = [
        each for each in receipts if each is not None and not _has_new_deadline(group, each)
    ]
    settle(group, Verb.RELEASE, undelivered, now_ms)
    return len(undelivered)


def settle_unreadable(group: Group, messages: Sequence[SelectedMessage], now_ms: int) -> None:
    """Settle selected messages that can no longer be read, and count them as lost."""
    receipts = [message.receipt for message in messages if message.receipt is not None]
    settle(group, Verb.ACK, receipts, now_ms)
    for message in messages:
        lane = group.lane(message.queue)
        if lane is not None:
            lane.cursor.count_lost()
            group.update_lane(lane)


def _has_new_deadline(group: Group, receipt: Receipt) -> bool:
    lease = group.lease((receipt.topic_id, receipt.queue), receipt.offset, receipt.lease_number)
    return lease is not None and lease.deadline_ms != receipt.deadline_ms


def _ack_run(
    group: Group,
    receipts: Sequence[Receipt | None],
    start: int,
    terms: Terms,
    touched: dict[QueueLane, None],
) -> int:
    """Acknowledge together the receipts from `start` on that have live leases of adjacent offsets
    of one queue, as `_settle_one` would one by one. Return their number; 0 if it would be 1."""
    first = receipts[start]
    lane = None if first is None else group.lane((first.topic_id, first.queue))
    if first is None or lane is None:
        return 0
    if first.group_id != group.group_id or first.epoch != lane.cursor.epoch:
        return 0
    _expire(group, lane, first.offset, terms.now_ms, is_first=lane not in touched)
    touched[lane] = None
    group_id, topic_id, queue = first.group_id, first.topic_id, first.queue
    offset, epoch = first.offset, first.epoch
    ended: list[Lease] = []
    find_lease, now_ms = lane.cursor.leases.get, terms.now_ms
    for receipt in islice(receipts, start, None):
        if receipt is None or receipt.offset != offset or receipt.queue != queue:
            break
        if receipt.topic_id != topic_id or receipt.epoch != epoch or receipt.group_id != group_id:
            break
        lease = find_lease(offset)
        if lease is None or lease.number != receipt.lease_number or lease.deadline_ms <= now_ms:
            break
        ended.append(lease)
        offset += 1
    if len(ended) < 2:
        return 0
    lane.finish_run(ended)
    for member in {lease.member for lease in ended}:
        group.members.mark_seen(member, terms.now_ms)
    group.account_ended(lane.key[0], ended, terms.now_ms, terms.used_ms)
    if group.config.mode == "keyed":
        group.lane_changed(lane)
    return len(ended)


def _settle_one(
    group: Group, receipt: Receipt | None, terms: Terms, touched: dict[QueueLane, None]
) -> Status:
    """Settle one receipt and add its lane to `touched`. The caller updates each of these lanes
    once, after all receipts of the call."""
    if receipt is None or receipt.group_id != group.group_id:
        return Status.INVALID
    lane = group.lane((receipt.topic_id, receipt.queue))
    if lane is None:
        return Status.STALE
    _expire(group, lane, receipt.offset, terms.now_ms, is_first=lane not in touched)
    leases = lane.cursor.leases.by_offset
    leases_before, active = len(leases), group.activity.active
    status, ended = settle_receipt(lane, group.activity, receipt, terms)
    adopted = len(leases) - leases_before + len(ended)
    if adopted:
        group.in_flight.add(receipt.member)
    if status is Status.DONE:
        until = terms.now_ms + terms.lease_ms if terms.verb is Verb.EXTEND else 0
        group.members.mark_seen(receipt.member, terms.now_ms, until)
        group.account_ended(lane.key[0], ended, terms.now_ms, terms.used_ms)
        if terms.verb in (Verb.NACK, Verb.RELEASE) or group.config.mode == "keyed":
            group.lane_changed(lane)
    # Even if the receipt was stale, its check may have settled unwanted messages.
    touched[lane] = None
    if group.activity.active != active:  # the member has proven that it was active before
        group.mark_all_dirty()
    return status


def _expire(group: Group, lane: QueueLane, offset: int, now_ms: int, *, is_first: bool) -> None:
    """Expire the lease of `offset` if it is due, before its receipt is checked. If `is_first`
    (this is the first receipt of the call for this lane), also expire other leases that are
    due, as many as one event loop iteration may expire."""
    leases = lane.cursor.leases
    if (first := leases.next_deadline()) is None or first > now_ms:
        return
    if is_first:
        group.expire_due(lane, now_ms)
    lease = leases.get(offset)
    if lease is not None and lease.deadline_ms <= now_ms:
        ended = lane.expire(lease, now_ms)
        group.expired_leases += len(ended)
        group.finish_leases(lane, ended, now_ms)


def settle_receipt(
    lane: QueueLane, activity: MemberRule, receipt: Receipt, terms: Terms
) -> tuple[Status, list[Lease]]:
    """Apply a verb to one receipt of this lane; return its status and the leases that ended."""
    verb = terms.verb
    state, used = receipt_state(lane.cursor, receipt)
    if state is ReceiptState.USED:
        return (Status.DONE if used is ENDS.get(verb) else Status.STALE), []
    if state is ReceiptState.STALE:
        return Status.STALE, []
    if state is not ReceiptState.LIVE and not _takes_effect(lane, activity, receipt, verb, state):
        return Status.STALE, []
    if state is ReceiptState.GRACE:
        activity.claim(receipt.member)
    if verb is Verb.EXTEND:
        _extend(lane, receipt, terms, state)
        return Status.DONE, []
    if verb is Verb.ACK:
        return Status.DONE, lane.finish(receipt.offset, End.ACKED, receipt.lease_number)
    if state is ReceiptState.LATE:
        lane.reject_late(receipt.offset, receipt.lease_number, terms.reason)
        return Status.DONE, []
    ready_at_ms = _ready_at(lane, receipt, terms) if verb is Verb.NACK else 0
    return Status.DONE, lane.give_back(
        receipt.offset, ENDS[verb], receipt.lease_number, terms.now_ms, ready_at_ms, terms.reason
    )


def _would_settle(lane: QueueLane, activity: MemberRule, receipt: Receipt, verb: Verb) -> bool:
    """Return whether this receipt, used with this verb, would change anything now."""
    state, _ = receipt_state(lane.cursor, receipt)
    if state in (ReceiptState.USED, ReceiptState.STALE):
        return False
    return state is ReceiptState.LIVE or _takes_effect(lane, activity, receipt, verb, state)


def _takes_effect(
    lane: QueueLane, activity: MemberRule, receipt: Receipt, verb: Verb, state: ReceiptState
) -> bool:
    """Return whether a GRACE or LATE receipt may be used with this verb."""
    if not lane.selection.is_in_order(receipt.offset, receipt.lease_number):
        return False
    return state is ReceiptState.GRACE or (
        verb in (Verb.ACK, Verb.REJECT)
        and not lane.config.strict_leases
        and activity.active in (None, receipt.member)
    )


def _extend(lane: QueueLane, receipt: Receipt, terms: Terms, state: ReceiptState) -> None:
    deadline_ms = terms.now_ms + terms.lease_ms
    lease = lane.cursor.leases.get(receipt.offset)
    if lease is not None:
        if lease.deadline_ms != NO_DEADLINE:
            lane.cursor.extend(lease, deadline_ms)
    else:
        lane.adopt(receipt.offset, receipt.member, receipt.lease_number, deadline_ms, terms.now_ms)


def _ready_at(lane: QueueLane, receipt: Receipt, terms: Terms) -> int:
    delay_ms = terms.delay_ms
    if delay_ms is None:
        delay_ms = lane.config.backoff(lane.cursor.failures(receipt.offset) + 1)
    return terms.now_ms + delay_ms if delay_ms > 0 else 0
