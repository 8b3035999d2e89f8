import contextlib
import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.amqp.wire.conditions import DecodeError
from holdfast.amqp.wire.types import (
    MAX_DEPTH,
    MAX_EMPTY_ELEMENTS,
    Array,
    Byte,
    Char,
    Decimal,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    decode,
    encode,
    skip,
)

ID = UUID("f275ea5e-0c57-4ad7-b11a-b20c563d3b71")

#: Value, its bytes. The bytes follow from part 1.6 of the specification by hand.
GOLDEN = [
    (None, "40"),
    (True, "41"),
    (False, "42"),
    (UByte(255), "50ff"),
    (UShort(0x1234), "601234"),
    (UInt(0), "43"),
    (UInt(255), "52ff"),
    (UInt(256), "7000000100"),
    (UInt(0xFFFFFFFF), "70ffffffff"),
    (ULong(0), "44"),
    (ULong(0x24), "5324"),
    (ULong(2**64 - 1), "80ffffffffffffffff"),
    (Byte(-128), "5180"),
    (Short(-2), "61fffe"),
    (Int(-128), "5480"),
    (Int(128), "7100000080"),
    (127, "557f"),
    (-129, "81ffffffffffffff7f"),
    (Float(1.5), "723fc00000"),
    (1.5, "823ff8000000000000"),
    (Decimal(b"\x22\x50\x00\x01"), "7422500001"),
    (Decimal(b"\x22" + bytes(7)), "842200000000000000"),
    (Decimal(b"\x22" + bytes(15)), "9422" + "00" * 15),
    (Char("€"), "73000020ac"),
    (Timestamp(1), "830000000000000001"),
    (ID, "98f275ea5e0c574ad7b11ab20c563d3b71"),
    (b"", "a000"),
    (b"\x00" * 256, "b000000100" + "00" * 256),
    ("ü", "a102c3bc"),
    ("a" * 256, "b100000100" + "61" * 256),
    (Symbol("amqp:a"), "a306616d71703a61"),
    (Symbol("a" * 256), "b300000100" + "61" * 256),
    ([], "45"),
    ([None, True], "c003024041"),
    ([b"\x00" * 253], "d000000103" + "00000001" + "a0fd" + "00" * 253),
    ([None] * 256, "d000000104" + "00000100" + "40" * 256),
    ({}, "c10100"),
    ({Symbol("k"): 1}, "c10602a3016b5501"),
    (Array(0x50, [UByte(1), UByte(2)]), "e0040250" + "0102"),
    (Array(0xA3, [Symbol("a"), Symbol("bc")]), "e00702a3" + "0161" + "026263"),
    (Array(0xC0, [[], [True]]), "e00702c0" + "0100" + "020141"),
    (Array(0x70, [UInt(1)] * 64), "f000000105" + "00000040" + "70" + "00000001" * 64),
    (Array(0x50, [UByte(1)], ULong(5)), "e006010053" + "0550" + "01"),
    (Described(ULong(0x24), []), "00532445"),
]


@pytest.mark.parametrize(("value", "octets"), GOLDEN, ids=[each[1][:24] for each in GOLDEN])
def test_a_value_has_the_bytes_of_the_specification(value: object, octets: str) -> None:
    data = bytes.fromhex(octets)
    assert encode(value) == data
    found, end = decode(data)
    assert (type(found), found, end) == (type(value), value, len(data))


@pytest.mark.parametrize(("value", "octets"), GOLDEN, ids=[each[1][:24] for each in GOLDEN])
def test_a_value_that_is_cut_off_is_refused(value: object, octets: str) -> None:
    data = bytes.fromhex(octets)
    for length in range(min(len(data), 40)):
        with pytest.raises(DecodeError):
            decode(data[:length])


@pytest.mark.parametrize(
    ("octets", "value"),
    [
        ("5600", False),
        ("5601", True),
        ("700000000a", UInt(10)),
        ("800000000000000000", ULong(0)),
        ("d00000000400000000", []),
        ("d10000000400000000", {}),
        ("f0000000050000000241", Array(0x41, [True, True])),
    ],
)  # fmt: skip
def test_longer_forms_are_accepted(octets: str, value: object) -> None:
    data = bytes.fromhex(octets)
    assert decode(data) == (value, len(data))


@pytest.mark.parametrize(
    ("octets", "reason"),
    [
        ("", "missing"),
        ("00", "missing"),
        ("005324", "missing"),
        ("3f", "0x3f is not a constructor"),
        ("5602", "boolean"),
        ("7300110000", "char"),
        ("730000d800", "char"),
        ("a101ff", "utf-8"),
        ("a301ff", "ascii"),
        ("c0", "cut off"),
        ("c00102", "wrong count"),
        ("c0020240", "wrong count"),
        ("c003014040", "bytes behind"),
        ("c1020140", "without a value"),
        ("c10402550155", "cut off"),
        ("c10b0455015501550155015501", "bytes behind"),
        ("c10904a10161 40a10161 40", "same key twice"),
        ("c1050245405540", "bytes behind"),
        ("c1030245 40", "key of a map"),
        ("e00100", "no constructor"),
        ("e0020100", "missing"),
        ("e00302500102", "wrong count"),
        ("e00401500102", "behind"),
        ("f00000000500010001 40", "wrong count"),
    ],
)  # fmt: skip
def test_bytes_that_are_no_value_are_refused(octets: str, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason) as caught:
        decode(bytes.fromhex(octets))
    assert caught.value.condition == "amqp:decode-error"


def test_an_array_of_elements_without_bytes_is_limited() -> None:
    head = struct.pack(">BII", 0xF0, 5, MAX_EMPTY_ELEMENTS) + b"\x40"
    array, _ = decode(head)
    assert len(array.elements) == MAX_EMPTY_ELEMENTS
    with pytest.raises(DecodeError, match="wrong count"):
        decode(struct.pack(">BII", 0xF0, 5, MAX_EMPTY_ELEMENTS + 1) + b"\x40")


def _nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_nesting_is_limited() -> None:
    assert decode(encode(_nested(MAX_DEPTH + 1)))[0] == _nested(MAX_DEPTH + 1)
    for octets in (encode(_nested(MAX_DEPTH + 2)), b"\x00" * 100_000):
        with pytest.raises(DecodeError, match="nested"):
            decode(octets)


@pytest.mark.parametrize(
    "value", [UByte(256), UByte(-1), UInt(2**32), 2**63, Symbol("ü"), Decimal(b"12"), Char("ab")]
)
def test_a_value_out_of_range_is_not_encoded(value: object) -> None:
    with pytest.raises(ValueError, match="of AMQP"):
        encode(value)


def test_a_value_of_no_amqp_type_is_not_encoded() -> None:
    with pytest.raises(TypeError, match="set is not an AMQP type"):
        encode({1, 2})


def _ints(bits: int, signed: bool) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(
        0, 2**bits - 1
    )  # fmt: skip


_symbols = st.text(st.characters(max_codepoint=127), max_size=300).map(Symbol)
_simple = st.one_of(
    st.none(),
    st.booleans(),
    _ints(8, False).map(UByte),
    _ints(16, False).map(UShort),
    _ints(32, False).map(UInt),
    _ints(64, False).map(ULong),
    _ints(8, True).map(Byte),
    _ints(16, True).map(Short),
    _ints(32, True).map(Int),
    _ints(64, True),
    _ints(64, True).map(Timestamp),
    st.floats(width=32, allow_nan=False).map(Float),
    st.floats(allow_nan=False),
    st.sampled_from([4, 8, 16]).flatmap(lambda n: st.binary(min_size=n, max_size=n)).map(Decimal),
    st.characters(exclude_categories=["Cs"]).map(Char),
    st.uuids(),
    st.binary(max_size=300),
    st.text(max_size=300),
    _symbols,
)
_values = st.recursive(
    _simple,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(_symbols, inner, max_size=4),
        st.tuples(_ints(64, False).map(ULong), inner).map(lambda pair: Described(*pair)),
        st.lists(_ints(32, True).map(Int), max_size=80).map(lambda each: Array(0x71, each)),
        st.lists(st.text(max_size=60), max_size=9).map(lambda each: Array(0xB1, each)),
    ),
    max_leaves=20,
)


def _exact(value: object) -> object:
    """Return a value with the types of all its parts, so that equal means of equal types."""
    if isinstance(value, list):
        return [_exact(each) for each in value]
    if isinstance(value, dict):
        return {key: (type(key), _exact(each)) for key, each in value.items()}
    if isinstance(value, Described):
        return Described(_exact(value.descriptor), _exact(value.value))
    if isinstance(value, Array):
        return Array(value.code, [_exact(each) for each in value.elements], value.descriptor)
    return type(value), value


@given(_values)
def test_every_value_comes_back_with_its_type(value: object) -> None:
    octets = encode(value)
    found, end = decode(octets)
    assert end == len(octets)
    assert _exact(found) == _exact(value)


@given(_values)
def test_a_value_is_skipped_by_its_size(value: object) -> None:
    octets = encode(value)
    assert skip(b"x" + octets + b"y", 1) == 1 + len(octets)


def test_a_value_that_is_cut_off_is_not_skipped() -> None:
    for value in ("text", [1, 2], Described(ULong(300), 5), ID):
        octets = encode(value)
        for length in range(len(octets)):
            with pytest.raises(DecodeError):
                skip(octets[:length], 0)
    with pytest.raises(DecodeError, match="nested"):
        skip(b"\x00" * 100, 0)


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(octets: bytes) -> None:
    try:
        value, end = decode(octets)
    except DecodeError:
        return
    assert 0 < end <= len(octets)
    encode(value)


@given(_values, st.data())
def test_a_flipped_bit_is_decoded_or_refused(value: object, data: st.DataObject) -> None:
    octets = bytearray(encode(value))
    bit = data.draw(st.integers(0, 8 * len(octets) - 1))
    octets[bit // 8] ^= 1 << bit % 8
    with contextlib.suppress(DecodeError):
        decode(octets)
