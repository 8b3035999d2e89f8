"""The state of a receipt: the rules for late, repeated and old receipts. Pure.

A receipt names the lease for which it was issued. There are three cases:
- The lease is live.
- The lease has ended. Its message is available again, was leased again, or is settled.
- The lease is from before a restart and was not restored. Its message may be in grace.

settling.py decides what each verb does in each state.
"""

from enum import Enum, auto
from typing import NamedTuple

from holdfast.groups.cursor.cursor import BOOT_SHIFT, Cursor, End


class Receipt(NamedTuple):
    """Identifies one lease of one message. receipts.py encodes it as text."""

    group_id: int
    topic_id: int
    queue: int
    offset: int
    lease_number: int
    epoch: int
    deadline_ms: int
    attempt: int
    member: str


class ReceiptState(Enum):
    """The state of a receipt."""

    #: The receipt's lease is live.
    LIVE = auto()
    #: The lease is from before a restart, and the message is in grace: not leased again since.
    GRACE = auto()
    #: The lease has expired. The message is available and was not leased again.
    LATE = auto()
    #: The receipt was used before. `receipt_state` also returns how it was used, as an End.
    USED = auto()
    #: The message was leased again, or settled under another lease, or the queue's cursor has
    #: another epoch than the receipt.
    STALE = auto()


def receipt_state(cursor: Cursor, receipt: Receipt) -> tuple[ReceiptState, End | None]:
    """Return the state of a receipt of this cursor's queue. If the state is USED, also return how
    the receipt was used."""
    offset, number = receipt.offset, receipt.lease_number
    if receipt.epoch != cursor.epoch or offset >= cursor.end:
        return ReceiptState.STALE, None
    lease = cursor.leases.get(offset)
    if lease is not None:
        return (ReceiptState.LIVE if lease.number == number else ReceiptState.STALE), None
    if offset in cursor.done:
        return _settled_state(cursor, offset, number)
    attempts = cursor.attempts.get(offset)
    if attempts is not None and attempts.last_lease == number:
        if attempts.last_end is not End.EXPIRED:
            return ReceiptState.USED, attempts.last_end
        # Not LATE while the offset is in grace: a power loss may have lost a newer lease, so
        # another member may still have the message.
        return (ReceiptState.LATE if cursor.is_available(offset) else ReceiptState.STALE), None
    if _is_last_before_restart(cursor, receipt):
        if cursor.is_in_grace(offset):
            return ReceiptState.GRACE, None
        if cursor.is_available(offset):
            return ReceiptState.LATE, None
    return ReceiptState.STALE, None


def _settled_state(cursor: Cursor, offset: int, number: int) -> tuple[ReceiptState, End | None]:
    """Return the state of a receipt whose offset is done. If the offset has no entry in
    `cursor.settled`, it was acknowledged under its first lease, or its entry was too old and was
    dropped."""
    settlement = cursor.settled.get(offset)
    if settlement is None:
        return ReceiptState.USED, End.ACKED
    return (
        (ReceiptState.USED, settlement.end)
        if settlement.lease == number
        else (ReceiptState.STALE, None)
    )


def _is_last_before_restart(cursor: Cursor, receipt: Receipt) -> bool:
    """Return whether the receipt is of the last lease of its offset before the restart."""
    attempts = cursor.attempts.get(receipt.offset)
    return (
        cursor.oldest_boot <= receipt.lease_number >> BOOT_SHIFT < cursor.boot
        and receipt.offset < cursor.seen_below
        and receipt.attempt == cursor.attempt(receipt.offset)
        and (attempts is None or attempts.last_lease < receipt.lease_number)
    )
