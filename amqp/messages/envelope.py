"""The envelope: what a stored AMQP message has besides body, key, tag and properties. Pure.

The batch column `envelopes` has one envelope for each AMQP message. Body and envelope together
contain every byte of the bare message. Other protocols do not see envelopes, and a message of
another protocol has none. Numbers are little-endian.

    at  size
     0    1  version (1) in bits 0 to 3; bit 4 DURABLE: header.durable; bit 5 SECTIONS
     1    1  header.priority
     2    4  CRC-32C of the publisher's container-id
             the rest only with SECTIONS:
     6    4  size of `annotations`
    10    4  size of `before`
    14       annotations: the section message-annotations
             before: all bytes between the annotations and the stored body
             after: all bytes after the stored body

Without SECTIONS, the message is one data section in its shortest form. With SECTIONS, the stored
body is the content of a data section, or of an amqp-value section that has a string; the beginning
of that section is part of `before`.
"""

from struct import Struct
from typing import NamedTuple

from holdfast.commitlog.errors import CorruptBatch, UnknownFormatVersion

VERSION = 1
_VERSION_BITS, _DURABLE, _SECTIONS = 0x0F, 0x10, 0x20
_HEAD = Struct("<BBI")
_SIZES = Struct("<II")
_START = _HEAD.size + _SIZES.size
#: The beginnings of data sections of less than 256 bytes, by their size.
_SHORT_HEADS = [b"\x00\x53\x75\xa0%c" % size for size in range(256)]


class Envelope(NamedTuple):
    """The content of an envelope. `publisher` is the result of `publisher_hash`."""

    publisher: int
    is_durable: bool = False
    priority: int = 4
    annotations: bytes = b""
    before: bytes | None = None
    """None if the message is one data section in its shortest form."""
    after: bytes = b""

    def message(self, body: bytes) -> bytes:
        """Return the bare message: the sections from `properties` on. `body` is the stored body of
        the message."""
        before = data_head(len(body)) if self.before is None else self.before
        return b"%b%b%b" % (before, body, self.after)


def data_head(size: int) -> bytes:
    """Return the beginning of a data section, up to its content of `size` bytes, in its shortest
    form."""
    if size < 256:
        return _SHORT_HEADS[size]
    return b"\x00\x53\x75\xb0" + size.to_bytes(4, "big")


def encode_envelope(envelope: Envelope) -> bytes:
    """Encode an envelope."""
    flags = VERSION | (_DURABLE if envelope.is_durable else 0)
    publisher, _, priority, annotations, before, after = envelope
    if before is None:
        return _HEAD.pack(flags, priority, publisher)
    return b"%b%b%b%b%b" % (
        _HEAD.pack(flags | _SECTIONS, priority, publisher),
        _SIZES.pack(len(annotations), len(before)),
        annotations,
        before,
        after,
    )


def decode_envelope(octets: bytes) -> Envelope:
    """Decode an envelope.

    Raises UnknownFormatVersion if a newer Holdfast wrote it, and CorruptBatch if it is damaged.
    """
    if not octets:
        raise CorruptBatch("envelope", "it is empty")
    flags = octets[0]
    version = flags & _VERSION_BITS
    if version != VERSION or flags & ~(_VERSION_BITS | _DURABLE | _SECTIONS):
        raise UnknownFormatVersion("envelope", f"{version} with flags {flags:#04x}", VERSION)
    size = len(octets)
    if size < _HEAD.size or (flags & _SECTIONS and size < _START):
        raise CorruptBatch("envelope", f"it has {size} bytes")
    _, priority, publisher = _HEAD.unpack_from(octets)
    is_durable = flags & _DURABLE != 0
    if not flags & _SECTIONS:
        if size > _HEAD.size:
            raise CorruptBatch("envelope", f"it has {size} bytes")
        return Envelope(publisher, is_durable, priority)
    annotations, before = _SIZES.unpack_from(octets, _HEAD.size)
    body_at = _START + annotations + before
    if body_at > size:
        raise CorruptBatch("envelope", f"sections of {body_at} bytes in {size} bytes")
    return Envelope(
        publisher,
        is_durable,
        priority,
        octets[_START : _START + annotations],
        octets[_START + annotations : body_at],
        octets[body_at:],
    )
