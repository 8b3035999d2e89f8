"""Serial numbers of 32 bits (RFC 1982), which AMQP uses for delivery-ids and counts. Pure.

A serial number wraps from 2**32 - 1 to 0. Two serial numbers can be compared only if they are
less than 2**31 apart.
"""

_BITS = 0xFFFFFFFF
_HALF = 0x80000000


def add(serial: int, count: int) -> int:
    """Return the serial number `serial` + `count`. `count` may be negative."""
    return (serial + count) & _BITS


def distance(first: int, second: int) -> int:
    """Return `second` - `first`, from -2**31 to 2**31 - 1; negative if `second` is earlier."""
    return ((second - first + _HALF) & _BITS) - _HALF
