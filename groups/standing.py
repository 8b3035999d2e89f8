"""What a receipt is worth now: the rules for late, repeated and old ones. Pure.

A receipt names the lease that it was given for. The lease may live; it may have ended, its
message being available again or settled; or it may be of before a restart, of which no lease is
left but the grace that its message has. What a settling does of it is settling.py's.
"""

from enum import Enum, auto
from typing import NamedTuple

from holdfast.groups.cursor import BOOT_SHIFT, Cursor, End


class Receipt(NamedTuple):
    """What a member proves with: one lease of one message. receipts.py makes text of it."""

    group_id: int
    topic_id: int
    queue: int
    offset: int
    lease_number: int
    epoch: int
    deadline_ms: int
    attempt: int
    member: str


class Standing(Enum):
    """How a receipt stands to its message."""

    #: Its lease lives.
    LIVE = auto()
    #: Its lease is of before a restart, and nobody has had the message since.
    GRACE = auto()
    #: Its deadline has passed, and the message is available, not leased again.
    LATE = auto()
    #: It was used already; how, says the End beside it.
    USED = auto()
    #: The message is another's, or settled by another, or the receipt is of another epoch.
    STALE = auto()


def standing(cursor: Cursor, receipt: Receipt) -> tuple[Standing, End | None]:
    """Return how a receipt of this queue stands, and how it was used if it was."""
    offset, number = receipt.offset, receipt.lease_number
    if receipt.epoch != cursor.epoch or offset >= cursor.end:
        return Standing.STALE, None
    lease = cursor.leases.get(offset)
    if lease is not None:
        return (Standing.LIVE if lease.number == number else Standing.STALE), None
    if offset in cursor.done:
        return _settled(cursor, offset, number)
    attempts = cursor.attempts.get(offset)
    if attempts is not None and attempts.last_lease == number:
        if attempts.last_end is not End.EXPIRED:
            return Standing.USED, attempts.last_end
        return (Standing.STALE if offset in cursor.dying else Standing.LATE), None
    if _is_the_last_of_before_the_restart(cursor, receipt):
        if cursor.is_in_grace(offset):
            return Standing.GRACE, None
        if cursor.is_available(offset):
            return Standing.LATE, None
    return Standing.STALE, None


def _settled(cursor: Cursor, offset: int, number: int) -> tuple[Standing, End | None]:
    """What is not noted was acknowledged by its first lease, or so long ago that it may be."""
    noted = cursor.settled.get(offset)
    if noted is None:
        return Standing.USED, End.ACKED
    return (Standing.USED, noted[1]) if noted[0] == number else (Standing.STALE, None)


def _is_the_last_of_before_the_restart(cursor: Cursor, receipt: Receipt) -> bool:
    """Of one offset, only the lease with the highest attempt may still be good."""
    attempts = cursor.attempts.get(receipt.offset)
    return (
        cursor.oldest_boot <= receipt.lease_number >> BOOT_SHIFT < cursor.boot
        and receipt.offset < cursor.seen_below
        and receipt.attempt == cursor.attempt(receipt.offset)
        and (attempts is None or attempts.last_lease == 0)
    )
