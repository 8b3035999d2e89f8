"""The fast readers return what the generic codec returns, or leave it to the codec."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.amqp.messages.fast_fields import Routing, read_header, read_routing, read_texts
from holdfast.amqp.messages.sections import Sections
from holdfast.amqp.wire.conditions import DecodeError
from holdfast.amqp.wire.performatives import (
    Header,
    Properties,
    decode_composite,
    encode_composite,
)
from holdfast.amqp.wire.types import (
    Described,
    Float,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    decode,
    encode,
)

DATA = encode(Described(ULong(0x75), b""))
_TEXT = st.none() | st.text(max_size=4) | st.just("x" * 300)
_ID = st.none() | st.text(max_size=4) | st.binary(max_size=4) | st.just(ULong(0))
PROPERTIES = st.builds(
    Properties,
    message_id=_ID | st.just(UUID(int=5)) | st.just(ULong(2**60)),
    user_id=st.none() | st.binary(max_size=4),
    to=_TEXT,
    subject=_TEXT,
    reply_to=_TEXT,
    correlation_id=_ID,
    content_type=st.sampled_from([None, "text/plain"]),
    content_encoding=st.sampled_from([None, "gzip"]),
    absolute_expiry_time=st.none() | st.integers(-(2**63), 2**63 - 1).map(Timestamp),
    creation_time=st.none() | st.integers(-(2**63), 2**63 - 1).map(Timestamp),
    group_id=_TEXT,
    group_sequence=st.none() | st.integers(0, 2**32 - 1).map(UInt),
    reply_to_group_id=_TEXT,
)
HEADERS = st.builds(
    Header,
    st.booleans(),
    st.integers(0, 255),
    st.none() | st.integers(0, 2**32 - 1).map(UInt),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)


@settings(max_examples=40)  # `make test-inputs` tries more
@given(PROPERTIES)
def test_routing_is_that_of_the_generic_codec(properties: Properties) -> None:
    octets = encode_composite(properties)
    expected = Routing(properties.subject, properties.absolute_expiry_time, properties.group_id)
    assert read_routing(octets, 3, len(octets)) == expected
    assert Sections(octets + DATA).routing() == expected


_VALUES = st.one_of(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=4),
    st.integers(0, 255).map(UByte),
    st.text(max_size=4).map(lambda text: Symbol(text.encode("ascii", "ignore").decode())),
    st.binary(max_size=4) | st.lists(st.booleans(), max_size=2) | st.uuids() | st.just(Float(1)),
)
_NAMES = st.text("abc", max_size=3).map(Symbol)


@given(st.dictionaries(_NAMES, _VALUES, max_size=4))
def test_annotations_are_those_of_the_generic_codec(values: dict[Symbol, Any]) -> None:
    octets = encode(values)
    texts = read_texts(octets, 0, len(octets))
    sections = Sections(b"\x00\x53\x72" + octets + DATA)
    assert sections.annotations() == values
    for name, value in values.items():
        expected = value if type(value) is str else None
        assert sections.text_annotation(name) == expected
        if texts is not None:
            assert texts[name.encode()] == (None if expected is None else expected.encode())


@given(st.data())
def test_changed_annotations_are_valid_or_left_to_the_generic_codec(data: st.DataObject) -> None:
    octets = bytearray(encode({Symbol("ab"): "x", Symbol("c"): 5, Symbol("d"): True}))
    for _ in range(data.draw(st.integers(0, 3))):
        octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    octets = octets[: data.draw(st.integers(0, len(octets)))]
    texts = read_texts(octets, 0, len(octets))
    if texts is not None:
        values, end = decode(octets)
        assert end == len(octets)
        assert {name.encode() for name in values} == set(texts)


@given(HEADERS)
def test_a_header_is_that_of_the_generic_codec(header: Header) -> None:
    octets = encode_composite(header)
    assert read_header(octets, 3, len(octets)) in (header, None)
    assert Sections(octets + DATA).header() == header


@pytest.mark.parametrize(
    "header",
    [Header(), Header(True), Header(True, 9), Header(False, 4, 70_000), Header(True, ttl=70_000)],
)
def test_usual_headers_are_read_fast(header: Header) -> None:
    octets = encode_composite(header)
    assert read_header(octets, 3, len(octets)) == header


@given(
    st.sampled_from([Header(True, 9, UInt(70_000)), Properties("id", subject="s", group_id="g")]),
    st.lists(st.tuples(st.integers(3, 40), st.integers(0, 255)), max_size=3),
    st.integers(0, 3),
)
def test_changed_bytes_never_give_another_result(value: Any, edits: Any, cut: int) -> None:
    octets = bytearray(encode_composite(value))
    for at, octet in edits:
        octets[3 + at % (len(octets) - 3)] = octet
    octets = octets[: len(octets) - cut]
    is_header = type(value) is Header
    fast = (read_header if is_header else read_routing)(octets, 3, len(octets))
    if fast is None:
        return
    try:
        generic, end = decode_composite(octets, 0, len(octets))
    except DecodeError:
        assert not is_header, "the fast reader examines all of a header"
        return
    assert end == len(octets)
    if not is_header:
        assert type(generic) is Properties
        generic = Routing(generic.subject, generic.absolute_expiry_time, generic.group_id)
    assert fast == generic
