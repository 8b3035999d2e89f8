"""The text form of receipts. Members get it with each message and send it back to settle. Pure.

base64url without padding over

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
from hashlib import sha256
from hmac import compare_digest

from holdfast.groups.core.receipt_state import Receipt
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
        *numbers, attempt, member = receipt
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
