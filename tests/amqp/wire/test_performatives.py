import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.amqp.wire import performatives
from holdfast.amqp.wire.conditions import DecodeError
from holdfast.amqp.wire.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Coordinator,
    DeleteOnClose,
    Detach,
    Disposition,
    Error,
    Flow,
    Header,
    Modified,
    Open,
    Properties,
    Received,
    Rejected,
    Released,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    TransactionalState,
    Transfer,
    decode_composite,
    encode_composite,
)
from holdfast.amqp.wire.types import Described, Symbol, UInt, ULong, encode

GOLDEN = [
    (Open("c"), "005310c00401a10163"),
    (
        Open("c", "h", 512, 9, 1000, desired_capabilities=("a", "b")),
        "005310c01f09a10163a1016870000002006000097000 0003e8404040e00602a301610162".replace(
            " ", ""
        ),
    ),
    (Begin(None, 0, 1, 2), "005311c00704404352015202"),
    (Begin(3, 0, 1, 2, 7), "005311c00b05600003435201 52025207".replace(" ", "")),
    (
        Attach("l", 0, True, source=Source("q"), target=Target()),
        "005312c01507a1016c43414040005328c00401a101710053 2945".replace(" ", ""),
    ),
    (Flow(None, 5, 0, 5, 1, 0, 100), "005313c00c074052054352055201435264"),
    (Transfer(0, 1, b"t", 0, True, more=True), "005314c00a0643520 1a0017443 4141".replace(" ", "")),
    (Disposition(True, 1, 4, True, Accepted()), "005315c00b0541520152044100532445"),
    (Detach(1, True, Error("amqp:not-found", "no")), None),
    (Close(), "00531845"),
    (Rejected(Error("x:y")), "005325c00c0100531dc00601a303783a79"),
    (Received(1, 2), "005323c0050252015302"),
    (Released(), "00532645"),
    (Modified(True), "005327c0020141"),
    (Modified(None, True, {Symbol("x"): 1}), "005327c00b034041c10602a301785501"),
    (DeleteOnClose(), "00532b45"),
    (Coordinator(("amqp:local-transactions",)), None),
    (TransactionalState(b"t", Accepted()), "005334c00802a0017400532445"),
    (SaslMechanisms(("PLAIN",)), "005340c00b01e0080 1a305504c41494e".replace(" ", "")),
    (SaslInit("PLAIN", b"\0u\0p"), "005341c00e02a305504c41494ea004007500 70".replace(" ", "")),
    (SaslOutcome(1), "005344c003015001"),
    (Header(True, 9, 1000), "005370c009034150097 0000003e8".replace(" ", "")),
    (Properties("id", b"u", "to", "s"), "005373c00f04a1026964a00175a102746fa10173"),
]


@pytest.mark.parametrize(("value", "octets"), GOLDEN)
def test_a_composite_value_has_the_bytes_of_the_specification(
    value: tuple[Any, ...], octets: str | None
) -> None:
    data = encode_composite(value)
    if octets is not None:
        assert data.hex() == octets
    found, end = decode_composite(data)
    assert (type(found), found, end) == (type(value), value, len(data))


def test_descriptors_may_be_symbols_and_lists_may_be_wide() -> None:
    octets = b"\x00" + encode(Symbol("amqp:begin:list")) + bytes.fromhex(
        "d0 00000010 00000004 40 43 70 00000001 70 00000002"
    )  # fmt: skip
    assert decode_composite(octets)[0] == Begin(None, 0, 1, 2)


def test_one_symbol_stands_for_a_field_of_several() -> None:
    octets = encode(Described(ULong(0x40), [Symbol("ANONYMOUS")]))
    assert decode_composite(octets)[0] == SaslMechanisms(("ANONYMOUS",))


@pytest.mark.parametrize(
    ("descriptor", "fields", "reason"),
    [
        (ULong(0x10), [], "Open has no container_id"),
        (ULong(0x10), [None], "Open has no container_id"),
        (ULong(0x10), [Symbol("c")], "Open.container_id is not of type string"),
        (ULong(0x10), ["c", None, 512], "Open.max_frame_size is not of type uint"),
        (ULong(0x10), ["c"] + [None] * 10, "Open has too many fields"),
        (ULong(0x10), {}, "Open is not a list"),
        (ULong(0x40), ["PLAIN"], "SaslMechanisms.mechanisms is not of type symbol"),
        (ULong(0x24), [True], "Accepted has too many fields"),
        (ULong(0x99), [], "not a composite type"),
        ("amqp:open:list", ["c"], "not a composite type"),
        (UInt(0x10), ["c"], "not a composite type"),
    ],
)
def test_values_that_are_no_composite_type_are_refused(
    descriptor: Any, fields: Any, reason: str
) -> None:
    with pytest.raises(DecodeError, match=reason):
        decode_composite(encode(Described(descriptor, fields)))


def test_a_composite_value_inside_another_is_checked() -> None:
    source = Described(ULong(0x28), [None, "session"])
    octets = encode(Described(ULong(0x12), ["l", UInt(0), False, None, None, source]))
    with pytest.raises(DecodeError, match=r"Source\.durable is not of type uint"):
        decode_composite(octets)


_words = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)
_STRATEGIES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "ubyte": st.integers(0, 255),
    "ushort": st.integers(0, 65535),
    "uint": st.integers(0, 2**32 - 1),
    "ulong": st.integers(0, 2**64 - 1),
    "timestamp": st.integers(-(2**63), 2**63 - 1),
    "string": st.text(max_size=300),
    "symbol": _words,
    "binary": st.binary(max_size=300),
    "map": st.dictionaries(_words.map(Symbol), st.text(max_size=9), max_size=3),
    "any": st.one_of(st.text(max_size=9), st.just(Accepted()), st.just(Source("x"))),
}
_LAYOUTS = list(performatives._BY_TYPE.values())


@st.composite
def _composites(draw: st.DrawFn) -> tuple[Any, ...]:
    layout = draw(st.sampled_from(_LAYOUTS))
    values = []
    for field in layout.fields:
        if field.is_multiple:
            values.append(tuple(draw(st.lists(_words, min_size=1, max_size=3))))
        elif not field.is_mandatory and draw(st.booleans()):
            values.append(field.default)
        else:
            values.append(draw(_STRATEGIES[field.kind]))
    return layout.type(*values)  # type: ignore[no-any-return]


@given(_composites())
def test_every_composite_value_comes_back(value: tuple[Any, ...]) -> None:
    octets = encode_composite(value)
    found, end = decode_composite(octets)
    assert end == len(octets)
    assert (type(found), found) == (type(value), value)


@given(_composites(), st.data())
def test_a_flipped_bit_is_decoded_or_refused(value: tuple[Any, ...], data: st.DataObject) -> None:
    octets = bytearray(encode_composite(value))
    bit = data.draw(st.integers(0, 8 * len(octets) - 1))
    octets[bit // 8] ^= 1 << bit % 8
    with contextlib.suppress(DecodeError):
        decode_composite(octets)


def test_the_keys_of_maps_are_symbols() -> None:
    """fe2o3-amqp refuses an open whose properties have strings as keys."""
    opened, _ = decode_composite(encode_composite(Open("c", properties={"product": "P"})))
    assert [type(key) for key in opened.properties] == [Symbol]
