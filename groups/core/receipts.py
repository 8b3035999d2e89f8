"""Receipts: their text, and the rules for live, late, repeated and old receipts. Pure.

A member gets a receipt with each message and sends it back to settle the message. A receipt names
the lease for which it was issued. There are three cases:
- The lease is live.
- The lease has ended. Its message is available again, was leased again, or is settled.
- The lease is from before a restart and was not restored. Its message may be in grace.

settling.py decides what each verb does in each state. The text of a receipt is base64url without
padding over

    offset  size  field
         0     1  version: 1
         1     4  group id
         5     4  topic id
         9     4  queue
        13     8  offset
        21     8  lease number: boot u24, then a count u40
        29     4  cursor epoch
        33     8  deadline, milliseconds of the broker's clock
        41     2  attempt, 65535 for more
        43     n  member, UTF-8, up to 127 bytes
      43+n    16  the first 16 bytes of the HMAC-SHA256 over everything before this field

All numbers are big-endian. The text has 79 characters, plus four for every three bytes of the
member. Checking a receipt needs no state, so a restarted broker accepts it if it has the same key.
"""

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import b2a_base64
from enum import Enum, auto
from hashlib import sha256
from hmac import compare_digest

import msgspec

from holdfast.groups.cursor.cursor import BOOT_SHIFT, Cursor, End
from holdfast.groups.errors import InvalidReceipt

VERSION = 1
SIGNATURE_SIZE = 16
MAX_MEMBER_BYTES = 127
_BODY = struct.Struct(">BIIIQQIQH")
_MIN_SIZE = _BODY.size + SIGNATURE_SIZE
#: RFC 2104 pads the key to a block of the hash and combines it with these two constants.
_BLOCK_SIZE = sha256().block_size
_INNER = bytes(each ^ 0x36 for each in range(256))
_OUTER = bytes(each ^ 0x5C for each in range(256))
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_MAX_TEXT = (_MIN_SIZE + MAX_MEMBER_BYTES) * 4 // 3 + 4


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Identifies one lease of one message."""

    group_id: int
    topic_id: int
    queue: int
    offset: int
    lease_number: int
    epoch: int
    deadline_ms: int
    attempt: int
    member: str


class ReceiptCodec:
    """Encodes and decodes receipts with one secret key of at least 32 bytes."""

    def __init__(self, key: bytes) -> None:
        # An HMAC is a hash of a hash, and the input of both begins with the key. Both hashes are
        # computed over the key once and then copied for each receipt. Copying an object of
        # Python's hmac module takes twice as long.
        block = (key if len(key) <= _BLOCK_SIZE else sha256(key).digest()).ljust(_BLOCK_SIZE, b"\0")
        self._inner = sha256(block.translate(_INNER))
        self._outer = sha256(block.translate(_OUTER))

    def encode(self, receipt: Receipt) -> str:
        """Return a receipt's text."""
        *numbers, attempt, member = msgspec.structs.astuple(receipt)
        body = _BODY.pack(VERSION, *numbers, min(attempt, 0xFFFF)) + member.encode()
        text = b2a_base64(body + self._signature(body), newline=False)
        return text.translate(_URL_SAFE).rstrip(b"=").decode()

    def decode(self, text: str) -> Receipt:
        """Return the receipt of a text. Raises InvalidReceipt."""
        if len(text) > _MAX_TEXT:
            raise InvalidReceipt(f"it has {len(text)} characters")
        try:
            data = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
        except ValueError as error:
            raise InvalidReceipt("it is not base64url") from error
        if len(data) < _MIN_SIZE or urlsafe_b64encode(data).rstrip(b"=") != text.encode():
            raise InvalidReceipt("it is cut short or changed")
        body, signature = data[:-SIGNATURE_SIZE], data[-SIGNATURE_SIZE:]
        if not compare_digest(signature, self._signature(body)):
            raise InvalidReceipt("its signature does not fit")
        version, *numbers = _BODY.unpack_from(body)
        if version != VERSION:
            raise InvalidReceipt(f"it is of version {version}; this broker reads {VERSION}")
        return Receipt(*numbers, body[_BODY.size :].decode())  # type: ignore[call-arg]

    def _signature(self, body: bytes) -> bytes:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(body)
        outer.update(inner.digest())
        return outer.digest()[:SIGNATURE_SIZE]


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


_STALE = ReceiptState.STALE, None


def receipt_state(cursor: Cursor, receipt: Receipt) -> tuple[ReceiptState, End | None]:
    """Return the state of a receipt of this cursor's queue. If the state is USED, also return how
    the receipt was used."""
    offset, number = receipt.offset, receipt.lease_number
    if receipt.epoch != cursor.epoch or offset >= cursor.end:
        return _STALE
    lease = cursor.leases.by_offset.get(offset)
    if lease is not None:
        return (ReceiptState.LIVE, None) if lease.number == number else _STALE
    if offset in cursor.done:
        settlement = cursor.settled.get(offset)
        if settlement is None:
            # It was acknowledged under its first lease, or its entry was too old and was dropped.
            return ReceiptState.USED, End.ACKED
        return (ReceiptState.USED, settlement.end) if settlement.lease == number else _STALE
    attempts = cursor.attempts.get(offset)
    if attempts is not None and attempts.last_lease == number:
        if attempts.last_end is not End.EXPIRED:
            return ReceiptState.USED, attempts.last_end
        # Not LATE while the offset is in grace: a power loss may have lost a newer lease, so
        # another member may still have the message.
        return (ReceiptState.LATE, None) if cursor.is_available(offset) else _STALE
    if _is_last_before_restart(cursor, receipt):
        if cursor.is_in_grace(offset):
            return ReceiptState.GRACE, None
        if cursor.is_available(offset):
            return ReceiptState.LATE, None
    return _STALE


def _is_last_before_restart(cursor: Cursor, receipt: Receipt) -> bool:
    """Return whether the receipt is of the last lease of its offset before the restart."""
    attempts = cursor.attempts.get(receipt.offset)
    return (
        cursor.oldest_boot <= receipt.lease_number >> BOOT_SHIFT < cursor.boot
        and receipt.offset < cursor.seen_below
        and receipt.attempt == cursor.attempt(receipt.offset)
        and (attempts is None or attempts.last_lease < receipt.lease_number)
    )
