"""A fast codec for the disposition performative. It knows the order of the fields. Pure.

Every acknowledgement is a disposition. This module itself decodes the common forms: any range of
deliveries, with a state that has no fields (accepted, released) or without a state. It encodes
only accepted ranges itself. The generic codec does the rest.
"""

import struct

from holdfast.amqp.wire.conditions import DecodeError
from holdfast.amqp.wire.performatives import (
    Accepted,
    Disposition,
    Released,
    decode_composite,
    encode_composite,
)
from holdfast.amqp.wire.types import Buffer

_PREFIX = b"\x00\x53\x15\xc0"
_WIDE_PREFIX = b"\x00\x53\x15\xd0"
_U32 = struct.Struct(">I").unpack_from
_STATES: dict[bytes, Accepted | Released] = {
    b"\x00\x53\x24\x45": Accepted(),
    b"\x00\x53\x24\xc0\x01\x00": Accepted(),
    b"\x00\x53\x26\x45": Released(),
    b"\x00\x53\x26\xc0\x01\x00": Released(),
}
_BOOLEANS = {0x41: True, 0x42: False, 0x40: False}


def decode_disposition(buffer: Buffer, start: int, end: int) -> Disposition:
    """Decode the disposition at `start`. Raises DecodeError if the bytes are not a disposition."""
    if buffer[start : start + 4] == _PREFIX and end - start > 6:
        found = _decode(bytes(buffer[start + 5 : end]), buffer[start + 4])
        if found is not None:
            return found
    elif buffer[start : start + 4] == _WIDE_PREFIX and end - start > 12:
        # go-amqp writes the size and the count of every list in four bytes. A disposition has few
        # fields, so the first three bytes of the count are zero, and `_decode` gets the last one.
        size = int.from_bytes(buffer[start + 4 : start + 8], "big")
        if buffer[start + 8 : start + 11] == b"\0\0\0":
            found = _decode(bytes(buffer[start + 11 : end]), size - 3)
            if found is not None:
                return found
    disposition, stop = decode_composite(buffer, start, end)
    if type(disposition) is not Disposition or stop != end:
        raise DecodeError("the bytes are not a disposition")
    return disposition


def _decode(octets: bytes, size: int) -> Disposition | None:
    """Decode the fields. `octets` begin with the number of fields. Return None if the generic
    decoder must decode them."""
    if len(octets) != size or not 4 <= octets[0] <= 6:
        return None
    try:
        role = {0x41: True, 0x42: False}[octets[1]]
        first, at = _serial(octets, 2)
        last = None
        if octets[at] == 0x40:
            at += 1
        else:
            last, at = _serial(octets, at)
        is_settled, rest = _BOOLEANS[octets[at]], octets[at + 1 :]
        is_batchable = False
        if octets[0] == 6:
            is_batchable, rest = _BOOLEANS[rest[-1]], rest[:-1]
        state = _STATES[rest] if octets[0] > 4 else None
        if octets[0] == 4 and rest:
            return None
    except (IndexError, KeyError, struct.error):
        return None
    return Disposition(role, first, last, is_settled, state, is_batchable)


def _serial(octets: bytes, at: int) -> tuple[int, int]:
    code = octets[at]
    if code == 0x52:
        return octets[at + 1], at + 2
    if code == 0x70:
        return _U32(octets, at + 1)[0], at + 5
    if code == 0x43:
        return 0, at + 1
    raise KeyError(code)


_ACCEPTED = b"\x00\x53\x24\x45"


def encode_accepted(role: bool, first: int, last: int, is_settled: bool) -> bytes:
    """Encode the disposition that accepts the deliveries from `first` to `last`."""
    return b"\x00\x53\x15\xc0\x11\x05%c\x70%b\x70%b%c%b" % (
        0x41 if role else 0x42,
        first.to_bytes(4, "big"),
        last.to_bytes(4, "big"),
        0x41 if is_settled else 0x42,
        _ACCEPTED,
    )


def encode_disposition(disposition: Disposition) -> bytes:
    """Encode any disposition."""
    state, last = disposition.state, disposition.last
    if type(state) is Accepted and last is not None and not disposition.batchable:
        return encode_accepted(disposition.role, disposition.first, last, disposition.settled)
    return encode_composite(disposition)
