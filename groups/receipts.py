"""Receipts as text: what a member gets with a message and settles it with. Pure.

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
      43+n    16  HMAC-SHA256 over all before it, its first 16 bytes

all big-endian. The text is 79 characters and four for every three bytes of the member. It needs
no state to be checked, so a broker that was started again honours it, given the same key.
"""

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import b2a_base64
from hashlib import sha256
from hmac import compare_digest

from holdfast.groups.errors import InvalidReceipt
from holdfast.groups.standing import Receipt

VERSION = 1
SIGNATURE_SIZE = 16
MAX_MEMBER_BYTES = 127
_BODY = struct.Struct(">BIIIQQIQH")
_MIN_SIZE = _BODY.size + SIGNATURE_SIZE
#: What RFC 2104 makes of the key, filled up to a block of the hash.
_BLOCK_SIZE = sha256().block_size
_INNER = bytes(each ^ 0x36 for each in range(256))
_OUTER = bytes(each ^ 0x5C for each in range(256))
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_MAX_TEXT = (_MIN_SIZE + MAX_MEMBER_BYTES) * 4 // 3 + 4


class ReceiptCodec:
    """Makes and reads receipts with one secret key, of 32 bytes or more."""

    def __init__(self, key: bytes) -> None:
        # An HMAC is a hash of a hash, each begun with the key: what is begun is copied for every
        # receipt, at half the price of a copy of Python's own hmac.
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
        """Return what a receipt's text says. Raises InvalidReceipt."""
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
