"""The AMQP 1.0 type system (part 1 of the specification): values to bytes and back. Pure.

Every AMQP type has one Python type, so a decoded value is encoded again as the same AMQP type:

    null, boolean            None, bool
    ubyte ushort uint ulong  UByte UShort UInt ULong, subclasses of int
    byte short int long      Byte Short Int int
    float double             Float float
    decimal32 64 128         Decimal (the bytes, not interpreted)
    char, timestamp          Char, Timestamp (milliseconds since 1970)
    uuid                     uuid.UUID
    binary string symbol     bytes str Symbol
    list map                 list dict
    array                    Array
    described types          Described

Treat values as immutable. This generic codec is for values for which speed does not matter.
Transfers and dispositions have faster codecs (fast_transfer.py, fast_disposition.py).
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from holdfast.amqp.wire.conditions import DecodeError

#: The deepest nesting of described and compound values that is decoded.
MAX_DEPTH = 32
#: The most elements of an array whose elements have no bytes (such as null).
MAX_EMPTY_ELEMENTS = 65_536


class UByte(int):
    """An integer from 0 to 255."""


class UShort(int):
    """An unsigned integer of 16 bits."""


class UInt(int):
    """An unsigned integer of 32 bits."""


class ULong(int):
    """An unsigned integer of 64 bits."""


class Byte(int):
    """A signed integer of 8 bits."""


class Short(int):
    """A signed integer of 16 bits."""


class Int(int):
    """A signed integer of 32 bits."""


class Timestamp(int):
    """Milliseconds since 1970-01-01 UTC, signed."""


class Float(float):
    """A number of 32 bits (IEEE 754)."""


class Decimal(bytes):
    """A decimal number of 4, 8 or 16 bytes (IEEE 754-2008), as it was encoded."""


class Char(str):
    """One Unicode character."""


class Symbol(str):
    """A name from a defined set, in ASCII."""


@dataclass(frozen=True, slots=True)
class Array:
    """Elements of one type. `code` is the constructor that all elements share; `descriptor` is
    None unless each element is a described value."""

    code: int
    elements: list[Any]
    descriptor: Any = None


@dataclass(frozen=True, slots=True)
class Described:
    """A value with a descriptor: a ULong or a Symbol; the specification allows any value."""

    descriptor: Any
    value: Any


Buffer = bytes | bytearray | memoryview
#: Reads a value at an offset before an end: (buffer, offset, end, depth) -> (value, next offset).
_Reader = Callable[[Buffer, int, int, int], tuple[Any, int]]


def decode(buffer: Buffer, offset: int = 0, end: int | None = None) -> tuple[Any, int]:
    """Decode the value at `offset`. Return it, and the offset after it.

    Raises DecodeError if no complete value ends at or before `end`, by default the buffer's end.
    """
    return _decode(buffer, offset, len(buffer) if end is None else end, 0)


def skip(buffer: Buffer, offset: int, depth: int = 0) -> int:
    """Return the offset after the value at `offset`. Read only the value's constructor and size.

    The contents of a list, map or array are not examined. Raises DecodeError if the buffer ends
    before the value does. `depth` is the number of values that contain this value.
    """
    size = len(buffer)
    if offset >= size:
        raise DecodeError("a value is missing")
    code = buffer[offset]
    if code == 0:
        if depth >= MAX_DEPTH:
            raise DecodeError(f"values are nested deeper than {MAX_DEPTH}")
        return skip(buffer, skip(buffer, offset + 1, depth + 1), depth + 1)
    _reader(code)
    width = _WIDTHS[code >> 4]
    end = offset + 1 + width if code < 0xA0 else _extent(buffer, offset + 1, size, width)[1]
    if end > size:
        raise DecodeError("a value is cut off")
    return end


#: First four bits of a constructor -> the bytes of the value; from 0xA on, the bytes of its size.
_WIDTHS = {4: 0, 5: 1, 6: 2, 7: 4, 8: 8, 9: 16, 10: 1, 11: 4, 12: 1, 13: 4, 14: 1, 15: 4}


def encode(value: Any) -> bytes:
    """Encode a value in its shortest form. Raises TypeError for a value of no AMQP type, and
    ValueError for a value out of its type's range."""
    encoder = _ENCODERS.get(type(value))
    if encoder is None:
        raise TypeError(f"{type(value).__name__} is not an AMQP type")
    try:
        return encoder(value)
    except (struct.error, KeyError, OverflowError, TypeError, UnicodeError) as error:
        raise ValueError(f"{value!r} is no {type(value).__name__} of AMQP") from error


def _decode(buffer: Buffer, offset: int, end: int, depth: int) -> tuple[Any, int]:
    if offset >= end:
        raise DecodeError("a value is missing")
    code = buffer[offset]
    if code == 0:
        if depth >= MAX_DEPTH:
            raise DecodeError(f"values are nested deeper than {MAX_DEPTH}")
        descriptor, offset = _decode(buffer, offset + 1, end, depth + 1)
        value, offset = _decode(buffer, offset, end, depth + 1)
        return Described(descriptor, value), offset
    return _reader(code)(buffer, offset + 1, end, depth)


def _reader(code: int) -> _Reader:
    reader = _READERS.get(code)
    if reader is None:
        raise DecodeError(f"0x{code:02x} is not a constructor of AMQP 1.0")
    return reader


def _constant(value: Any) -> _Reader:
    return lambda buffer, offset, end, depth: (value, offset)


def _fixed(layout: str, convert: Callable[[Any], Any]) -> _Reader:
    unpack, size = struct.Struct(layout).unpack_from, struct.calcsize(layout)

    def read(buffer: Buffer, offset: int, end: int, depth: int) -> tuple[Any, int]:
        if offset + size > end:
            raise DecodeError("a value is cut off")
        return convert(unpack(buffer, offset)[0]), offset + size

    return read


def _variable(width: int, convert: Callable[[bytes], Any]) -> _Reader:
    def read(buffer: Buffer, offset: int, end: int, depth: int) -> tuple[Any, int]:
        start, stop = _extent(buffer, offset, end, width)
        try:
            return convert(bytes(buffer[start:stop])), stop
        except UnicodeDecodeError as error:
            raise DecodeError(f"a text is not valid {error.encoding}") from None

    return read


def _extent(buffer: Buffer, offset: int, end: int, width: int) -> tuple[int, int]:
    """Read the size, in `width` bytes at `offset`. Return where the content begins and ends."""
    start = offset + width
    stop = start + int.from_bytes(buffer[offset:start], "big")
    if start > end or stop > end:
        raise DecodeError("a value is cut off")
    return start, stop


def _elements(
    buffer: Buffer, offset: int, end: int, width: int, depth: int
) -> tuple[list[Any], int]:
    """Decode the elements of a list or a map, whose size and count have `width` bytes each."""
    if depth >= MAX_DEPTH:
        raise DecodeError(f"values are nested deeper than {MAX_DEPTH}")
    start, stop = _extent(buffer, offset, end, width)
    at = start + width
    count = int.from_bytes(buffer[start:at], "big")
    if at > stop or count > stop - at:
        raise DecodeError("a list or map has a wrong count")
    values = []
    for _ in range(count):
        value, at = _decode(buffer, at, stop, depth + 1)
        values.append(value)
    if at != stop:
        raise DecodeError("a list or map has bytes behind its last element")
    return values, stop


def _list(width: int) -> _Reader:
    return lambda buffer, offset, end, depth: _elements(buffer, offset, end, width, depth)


def _map(width: int) -> _Reader:
    def read(buffer: Buffer, offset: int, end: int, depth: int) -> tuple[Any, int]:
        values, stop = _elements(buffer, offset, end, width, depth)
        if len(values) % 2:
            raise DecodeError("a map has a key without a value")
        try:
            pairs = dict(zip(values[::2], values[1::2], strict=True))
        except TypeError:
            raise DecodeError("a list, map or array is the key of a map") from None
        if len(pairs) * 2 != len(values):
            raise DecodeError("a map has the same key twice")
        return pairs, stop

    return read


def _array(width: int) -> _Reader:
    def read(buffer: Buffer, offset: int, end: int, depth: int) -> tuple[Any, int]:
        if depth >= MAX_DEPTH:
            raise DecodeError(f"values are nested deeper than {MAX_DEPTH}")
        start, stop = _extent(buffer, offset, end, width)
        at = start + width
        count = int.from_bytes(buffer[start:at], "big")
        if at >= stop:
            raise DecodeError("an array has no constructor")
        descriptor = None
        code = buffer[at]
        at += 1
        if code == 0:
            descriptor, at = _decode(buffer, at, stop, depth + 1)
            if at >= stop:
                raise DecodeError("an array has no constructor")
            code = buffer[at]
            at += 1
        if count > (MAX_EMPTY_ELEMENTS if code in _WITHOUT_BYTES else stop - at):
            raise DecodeError("an array has a wrong count")
        reader = _reader(code)
        values = []
        for _ in range(count):
            value, at = reader(buffer, at, stop, depth + 1)
            values.append(value)
        if at != stop:
            raise DecodeError("an array has bytes behind its last element")
        return Array(code, values, descriptor), stop

    return read


def _boolean(value: int) -> bool:
    if value > 1:
        raise DecodeError("a boolean is neither 0 nor 1")
    return value == 1


def _char(code_point: int) -> Char:
    if code_point > 0x10FFFF or 0xD800 <= code_point < 0xE000:
        raise DecodeError("a char is not a Unicode character")
    return Char(chr(code_point))


def _plain(value: Any) -> Any:
    return value


#: Constructors whose values have no bytes.
_WITHOUT_BYTES = frozenset({0x40, 0x41, 0x42, 0x43, 0x44, 0x45})

_READERS: dict[int, _Reader] = {
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(UInt(0)),
    0x44: _constant(ULong(0)),
    0x45: lambda buffer, offset, end, depth: ([], offset),
    0x50: _fixed(">B", UByte),
    0x51: _fixed(">b", Byte),
    0x52: _fixed(">B", UInt),
    0x53: _fixed(">B", ULong),
    0x54: _fixed(">b", Int),
    0x55: _fixed(">b", _plain),
    0x56: _fixed(">B", _boolean),
    0x60: _fixed(">H", UShort),
    0x61: _fixed(">h", Short),
    0x70: _fixed(">I", UInt),
    0x71: _fixed(">i", Int),
    0x72: _fixed(">f", Float),
    0x73: _fixed(">I", _char),
    0x74: _fixed(">4s", Decimal),
    0x80: _fixed(">Q", ULong),
    0x81: _fixed(">q", _plain),
    0x82: _fixed(">d", _plain),
    0x83: _fixed(">q", Timestamp),
    0x84: _fixed(">8s", Decimal),
    0x94: _fixed(">16s", Decimal),
    0x98: _fixed(">16s", lambda octets: UUID(bytes=octets)),
    0xA0: _variable(1, _plain),
    0xA1: _variable(1, lambda octets: str(octets, "utf-8")),
    0xA3: _variable(1, lambda octets: Symbol(str(octets, "ascii"))),
    0xB0: _variable(4, _plain),
    0xB1: _variable(4, lambda octets: str(octets, "utf-8")),
    0xB3: _variable(4, lambda octets: Symbol(str(octets, "ascii"))),
    0xC0: _list(1),
    0xC1: _map(1),
    0xD0: _list(4),
    0xD1: _map(4),
    0xE0: _array(1),
    0xF0: _array(4),
}


def _integer(
    wide: int, layout: str, narrow: int = 0, narrow_layout: str = "", zero: int = 0
) -> Callable[[Any], bytes]:
    """Return the encoder of an integer type. It uses the shortest constructor for each value."""
    pack = struct.Struct(f">B{layout}").pack
    pack_narrow = struct.Struct(f">B{narrow_layout}").pack
    low, high = (-128, 127) if narrow_layout == "b" else (0, 255)

    def encode_integer(value: int) -> bytes:
        if zero and value == 0:
            return bytes((zero,))
        if narrow and low <= value <= high:
            return pack_narrow(narrow, value)
        return pack(wide, value)

    return encode_integer


def sized(short: int, wide: int, octets: bytes) -> bytes:
    """Return a constructor, the size of `octets` (in one byte if possible), and `octets`."""
    if len(octets) < 256:
        return bytes((short, len(octets))) + octets
    return struct.pack(">BI", wide, len(octets)) + octets


def compound(short: int, wide: int, count: int, octets: bytes) -> bytes:
    """Return the constructor of a list or map, the size, the count, and the encoded elements."""
    if len(octets) < 255 and count < 256:
        return bytes((short, len(octets) + 1, count)) + octets
    return struct.pack(">BII", wide, len(octets) + 4, count) + octets


def _encode_list(values: list[Any]) -> bytes:
    return compound(0xC0, 0xD0, len(values), b"".join(map(encode, values))) if values else b"\x45"


def _encode_map(pairs: dict[Any, Any]) -> bytes:
    octets = b"".join(encode(key) + encode(value) for key, value in pairs.items())
    return compound(0xC1, 0xD1, 2 * len(pairs), octets)


def _encode_array(array: Array) -> bytes:
    head = bytes((array.code,))
    if array.descriptor is not None:
        head = b"\x00" + encode(array.descriptor) + head
    write = _ELEMENTS[array.code]
    content = head + b"".join(map(write, array.elements))
    if len(content) < 255 and len(array.elements) < 256:
        return bytes((0xE0, len(content) + 1, len(array.elements))) + content
    return struct.pack(">BII", 0xF0, len(content) + 4, len(array.elements)) + content


def _element(code: int) -> Callable[[Any], bytes]:
    """Return a function that encodes one element of an array. All elements share the constructor
    `code`, so the function does not write it."""
    if code in _WITHOUT_BYTES:
        return lambda value: b""
    if code in _LAYOUTS:
        pack = struct.Struct(_LAYOUTS[code]).pack
        return lambda value: pack(_packable(value))
    width = 1 if code < 0xB0 or 0xC0 <= code < 0xD0 or code == 0xE0 else 4

    def write(value: Any) -> bytes:
        if isinstance(value, bytes):
            octets = value
        elif isinstance(value, str):
            octets = value.encode("ascii" if isinstance(value, Symbol) else "utf-8")
        else:
            return _with_width(encode(value), width)
        return len(octets).to_bytes(width, "big") + octets

    return write


def _with_width(encoded: bytes, width: int) -> bytes:
    """Return an encoded list, map or array with a size and count of `width` bytes, without its
    constructor."""
    if encoded == b"\x45":
        size, count, octets = 0, 0, b""
    elif encoded[0] in (0xC0, 0xC1, 0xE0):
        count, octets = encoded[2], encoded[3:]
    else:
        count, octets = int.from_bytes(encoded[5:9], "big"), encoded[9:]
    size = len(octets) + width
    return size.to_bytes(width, "big") + count.to_bytes(width, "big") + octets


def _packable(value: Any) -> Any:
    if isinstance(value, UUID):
        return value.bytes
    return ord(value) if isinstance(value, Char) else value


_LAYOUTS = {
    0x50: ">B", 0x51: ">b", 0x52: ">B", 0x53: ">B", 0x54: ">b", 0x55: ">b", 0x56: ">B",
    0x60: ">H", 0x61: ">h", 0x70: ">I", 0x71: ">i", 0x72: ">f", 0x73: ">I", 0x74: ">4s",
    0x80: ">Q", 0x81: ">q", 0x82: ">d", 0x83: ">q", 0x84: ">8s", 0x94: ">16s", 0x98: ">16s",
}  # fmt: skip

_ELEMENTS = {code: _element(code) for code in _READERS}

_DECIMALS = {4: b"\x74", 8: b"\x84", 16: b"\x94"}

_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda value: b"\x40",
    bool: lambda value: b"\x41" if value else b"\x42",
    UByte: _integer(0x50, "B"),
    UShort: _integer(0x60, "H"),
    UInt: _integer(0x70, "I", 0x52, "B", 0x43),
    ULong: _integer(0x80, "Q", 0x53, "B", 0x44),
    Byte: _integer(0x51, "b"),
    Short: _integer(0x61, "h"),
    Int: _integer(0x71, "i", 0x54, "b"),
    int: _integer(0x81, "q", 0x55, "b"),
    Timestamp: _integer(0x83, "q"),
    Float: lambda value: struct.pack(">Bf", 0x72, value),
    float: lambda value: struct.pack(">Bd", 0x82, value),
    Decimal: lambda value: _DECIMALS[len(value)] + value,
    Char: lambda value: struct.pack(">BI", 0x73, ord(value)),
    UUID: lambda value: b"\x98" + value.bytes,
    bytes: lambda value: sized(0xA0, 0xB0, value),
    str: lambda value: sized(0xA1, 0xB1, value.encode()),
    Symbol: lambda value: sized(0xA3, 0xB3, value.encode("ascii")),
    list: _encode_list,
    dict: _encode_map,
    Array: _encode_array,
    Described: lambda value: b"\x00" + encode(value.descriptor) + encode(value.value),
}


def symbols(*names: str) -> Array | None:
    """Return the array for a field with several symbols, or None if there are no symbols."""
    return Array(0xA3, [Symbol(name) for name in names]) if names else None
