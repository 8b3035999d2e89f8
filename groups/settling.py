"""What a settling does with each receipt, by how the receipt stands. Pure.

    stands   ack, reject      nack, release        extend
    LIVE     settled          given back           a new deadline
    GRACE    settled          given back           a live lease again
    LATE     settled, unless  stale                stale
             leases are strict or the member is not the active one any more
             (keyed groups: what is not LIVE is stale once an earlier one of its key came back)
    USED     done if it was used in this way, else stale
    STALE    stale            stale                stale

A failure (nack) keeps its message back for the delay given, or by the group's table; the last
one allowed, and a reject, make it a dead letter. Nothing is all or nothing: each receipt has a
status of its own, and a receipt used again changes nothing.
"""

from dataclasses import dataclass
from enum import Enum

from holdfast.groups.activity import Activity
from holdfast.groups.cursor import End
from holdfast.groups.lane import Lane
from holdfast.groups.leases import Lease
from holdfast.groups.standing import Receipt, Standing, standing


class Verb(Enum):
    """What a member says of a message."""

    ACK = "ack"
    NACK = "nack"
    RELEASE = "release"
    EXTEND = "extend"
    REJECT = "reject"


class Status(Enum):
    """What became of one receipt."""

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
    """One call to settle. `delay_ms` None: by the group's table."""

    verb: Verb
    now_ms: int
    lease_ms: int
    delay_ms: int | None = None
    cumulative: bool = False


def settle(
    lane: Lane, activity: Activity, receipt: Receipt, terms: Terms
) -> tuple[Status, list[Lease]]:
    """Settle one receipt of this lane; return its status and the leases that ended."""
    verb = terms.verb
    stands, used = standing(lane.cursor, receipt)
    if stands is Standing.USED:
        return (Status.DONE if used is ENDS.get(verb) else Status.STALE), []
    if stands is Standing.STALE:
        return Status.STALE, []
    if stands is not Standing.LIVE and not _is_in_order(lane, receipt):
        return Status.STALE, []
    if stands is Standing.LATE and not _counts_late(lane, activity, receipt, verb):
        return Status.STALE, []
    if stands is Standing.GRACE:
        activity.claim(receipt.member)
    if verb is Verb.EXTEND:
        _extend(lane, receipt, terms, stands)
        return Status.DONE, []
    if verb is Verb.ACK:
        ended = lane.finish(receipt.offset, End.ACKED, receipt.lease_number)
        if terms.cumulative:
            ended += _finish_below(lane, receipt)
        return Status.DONE, ended
    if stands is Standing.LATE:
        lane.reject_late(receipt.offset, receipt.lease_number)
        return Status.DONE, []
    ready_at_ms = _ready_at(lane, receipt, terms) if verb is Verb.NACK else 0
    ended = lane.give_back(
        receipt.offset, ENDS[verb], receipt.lease_number, terms.now_ms, ready_at_ms
    )
    return Status.DONE, ended


def _is_in_order(lane: Lane, receipt: Receipt) -> bool:
    return lane.selection.is_in_order(receipt.offset, receipt.lease_number)


def _counts_late(lane: Lane, activity: Activity, receipt: Receipt, verb: Verb) -> bool:
    return (
        verb in (Verb.ACK, Verb.REJECT)
        and not lane.config.strict_leases
        and activity.may_settle(receipt.member)
    )


def _extend(lane: Lane, receipt: Receipt, terms: Terms, stands: Standing) -> None:
    deadline_ms = terms.now_ms + terms.lease_ms
    lease = lane.cursor.leases.get(receipt.offset)
    if lease is not None:
        lane.cursor.leases.extend(lease, deadline_ms)
    else:
        lane.adopt(receipt.offset, receipt.member, receipt.lease_number, deadline_ms, terms.now_ms)


def _finish_below(lane: Lane, receipt: Receipt) -> list[Lease]:
    """Settle the member's live leases below the receipt; others' are not touched."""
    ended = []
    for lease in lane.cursor.leases.of_member(receipt.member):
        if lease.head.offset > receipt.offset:
            break
        ended += lane.finish(lease.head.offset, End.ACKED, lease.number)
    return ended


def _ready_at(lane: Lane, receipt: Receipt, terms: Terms) -> int:
    delay_ms = terms.delay_ms
    if delay_ms is None:
        delay_ms = lane.config.backoff(lane.cursor.failures(receipt.offset) + 1)
    return terms.now_ms + delay_ms if delay_ms > 0 else 0
