"""Decides whether a body has too many values, before the values are decoded. Pure.

msgspec decodes a list or an object as a whole, and other threads must wait (GIL). For a million
names or receipts that is a tenth of a second, after which the request would only be refused.
"""

from collections.abc import Sequence

import msgspec

#: The first byte of a msgpack list with more than 15 elements -> how many bytes its length has.
_LISTS = {0xDC: 2, 0xDD: 4}
#: The first byte of a msgpack object with more than 15 fields -> how many bytes its length has.
_OBJECTS = {0xDE: 2, 0xDF: 4}
_LISTED = msgspec.msgpack.Decoder(list[msgspec.Raw])
_NAMED = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])


def lists_more_than(most: int, body: bytes, *, is_msgpack: bool) -> bool:
    """Return whether a body has more than `most` values.

    For JSON, this function counts commas, also commas inside texts. For msgpack, it raises
    MsgspecError if the body is not one complete value.
    """
    if len(body) <= most:
        return False
    if is_msgpack:
        return _count(body, most) > most
    return body.count(b",") >= most


def _count(raw: bytes | memoryview, most: int) -> int:
    """Return the number of values in a msgpack value, including the value itself.

    If there are more than `most` values, return any number above `most`.
    """
    is_list, claimed = _claimed(raw)
    if claimed == 0 or claimed >= most:
        return claimed + 1
    children = _children(raw, is_list)
    if len(children) < claimed:
        return most + 1  # a name occurs twice: msgspec would decode both values
    count = claimed + 1
    for child in children:
        if count > most:
            break
        count += _count(memoryview(child), most - count + 1) - 1
    return count


def _claimed(raw: bytes | memoryview) -> tuple[bool, int]:
    """Return whether a value is a list, and the declared length of a list or an object.

    The length is 0 if the value is empty, or neither a list nor an object.
    """
    first = raw[0]
    if first >> 4 in (0x8, 0x9):
        return first >> 4 == 0x9, first & 0xF
    size = _LISTS.get(first) or _OBJECTS.get(first) or 0
    return first in _LISTS, int.from_bytes(raw[1 : 1 + size], "big")


def _children(raw: bytes | memoryview, is_list: bool) -> Sequence[msgspec.Raw]:
    return _LISTED.decode(raw) if is_list else list(_NAMED.decode(raw).values())
