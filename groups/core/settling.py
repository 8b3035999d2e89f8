"""What each verb does with a receipt in each state. Pure.

`receipt_state.ReceiptState` defines the states. In this table, "settled" and "returned" concern the
message of the receipt; a returned message goes back to the group, to be delivered again.

    state    ack, reject      nack, release        extend
    LIVE     settled          returned             a new deadline
    GRACE    settled          returned             the lease is live again
    LATE     settled (1)      stale                stale
    USED     done if the receipt was used with the same verb, otherwise stale
    STALE    stale            stale                stale

(1) Stale if the group has `strict_leases`, or if the member is not the active member any more.
In a keyed group, a GRACE or LATE receipt is stale once an earlier message of its key was returned.

A nack is a failure: the message is delayed by the given time, or by the group's backoff table. A
message becomes a dead letter after its last allowed failure, or after a reject. Each receipt gets
its own status, so one call may settle some messages and not others. If a receipt is used twice,
the second use changes nothing.
"""

from dataclasses import dataclass
from enum import Enum

from holdfast.groups.core.modes import MemberRule
from holdfast.groups.core.queue_lane import QueueLane
from holdfast.groups.core.receipt_state import Receipt, ReceiptState, receipt_state
from holdfast.groups.cursor.cursor import End
from holdfast.groups.cursor.leases import Lease


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


@dataclass(frozen=True, slots=True)
class Terms:
    """The parameters of one call to settle. If `delay_ms` is None, the group's backoff table sets
    the delay of a nack."""

    verb: Verb
    now_ms: int
    lease_ms: int
    delay_ms: int | None = None


def settle(
    lane: QueueLane, activity: MemberRule, receipt: Receipt, terms: Terms
) -> tuple[Status, list[Lease]]:
    """Apply a verb to one receipt of this lane; return its status and the leases that ended."""
    verb = terms.verb
    state, used = receipt_state(lane.cursor, receipt)
    if state is ReceiptState.USED:
        return (Status.DONE if used is ENDS.get(verb) else Status.STALE), []
    if state is ReceiptState.STALE:
        return Status.STALE, []
    if not _takes_effect(lane, activity, receipt, verb, state):
        return Status.STALE, []
    if state is ReceiptState.GRACE:
        activity.claim(receipt.member)
    if verb is Verb.EXTEND:
        _extend(lane, receipt, terms, state)
        return Status.DONE, []
    if verb is Verb.ACK:
        return Status.DONE, lane.finish(receipt.offset, End.ACKED, receipt.lease_number)
    if state is ReceiptState.LATE:
        lane.reject_late(receipt.offset, receipt.lease_number)
        return Status.DONE, []
    ready_at_ms = _ready_at(lane, receipt, terms) if verb is Verb.NACK else 0
    ended = lane.give_back(
        receipt.offset, ENDS[verb], receipt.lease_number, terms.now_ms, ready_at_ms
    )
    return Status.DONE, ended


def would_settle(lane: QueueLane, activity: MemberRule, receipt: Receipt, verb: Verb) -> bool:
    """Return whether this receipt, used with this verb, would change anything now."""
    state, _ = receipt_state(lane.cursor, receipt)
    if state in (ReceiptState.USED, ReceiptState.STALE):
        return False
    return _takes_effect(lane, activity, receipt, verb, state)


def _takes_effect(
    lane: QueueLane, activity: MemberRule, receipt: Receipt, verb: Verb, state: ReceiptState
) -> bool:
    if state is not ReceiptState.LIVE and not _is_in_order(lane, receipt):
        return False
    return state is not ReceiptState.LATE or _takes_effect_late(lane, activity, receipt, verb)


def _is_in_order(lane: QueueLane, receipt: Receipt) -> bool:
    return lane.selection.is_in_order(receipt.offset, receipt.lease_number)


def _takes_effect_late(lane: QueueLane, activity: MemberRule, receipt: Receipt, verb: Verb) -> bool:
    return (
        verb in (Verb.ACK, Verb.REJECT)
        and not lane.config.strict_leases
        and activity.may_settle(receipt.member)
    )


def _extend(lane: QueueLane, receipt: Receipt, terms: Terms, state: ReceiptState) -> None:
    deadline_ms = terms.now_ms + terms.lease_ms
    lease = lane.cursor.leases.get(receipt.offset)
    if lease is not None:
        lane.cursor.extend(lease, deadline_ms)
    else:
        lane.adopt(receipt.offset, receipt.member, receipt.lease_number, deadline_ms, terms.now_ms)


def _ready_at(lane: QueueLane, receipt: Receipt, terms: Terms) -> int:
    delay_ms = terms.delay_ms
    if delay_ms is None:
        delay_ms = lane.config.backoff(lane.cursor.failures(receipt.offset) + 1)
    return terms.now_ms + delay_ms if delay_ms > 0 else 0
