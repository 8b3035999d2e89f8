from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.amqp.messages.sections import Kind, Sections
from holdfast.amqp.messages.text_view import as_text, text_view
from holdfast.amqp.wire.conditions import DecodeError
from holdfast.amqp.wire.performatives import Header, Properties, encode_composite
from holdfast.amqp.wire.types import (
    Array,
    Char,
    Decimal,
    Described,
    Float,
    Symbol,
    Timestamp,
    UInt,
    ULong,
    encode,
)

NOW_MS = 1_700_000_000_000


def section(kind: int, value: Any) -> bytes:
    return encode(Described(ULong(kind), value))


HEADER = encode_composite(Header(True, 9, 1_000, delivery_count=2))
DELIVERY = section(0x71, {Symbol("d"): 1})
ANNOTATIONS = section(0x72, {Symbol("x-opt-partition-key"): "from the annotations"})
PROPERTIES = encode_composite(Properties("id", subject="red", group_id="customer-7"))
APPLICATION = section(0x74, {"number": 5, "flag": True, "nothing": None})
DATA = section(0x75, b"hello")
FOOTER = section(0x78, {Symbol("crc"): 7})
ALL = HEADER + DELIVERY + ANNOTATIONS + PROPERTIES + APPLICATION + DATA + FOOTER


def test_every_section_is_found_and_decoded() -> None:
    sections = Sections(ALL)
    assert sections.header() == Header(True, 9, 1_000, delivery_count=2)
    assert sections.annotations() == {"x-opt-partition-key": "from the annotations"}
    assert sections.properties() == Properties("id", subject="red", group_id="customer-7")
    assert sections.application_properties() == {"number": 5, "flag": True, "nothing": None}
    assert sections.body_value() == b"hello"
    assert sections.bare() == ANNOTATIONS + PROPERTIES + APPLICATION + DATA + FOOTER
    assert sections.body_bytes() == DATA
    assert Kind.FOOTER in sections


def test_sections_that_are_not_there_have_defaults() -> None:
    sections = Sections(DATA)
    assert sections.header() == Header()
    assert sections.properties() == Properties()
    assert sections.annotations() == sections.application_properties() == {}
    assert sections.bare() == DATA
    assert Kind.FOOTER not in sections


@pytest.mark.parametrize("body", [DATA * 3, section(0x76, [1]) * 2, section(0x77, {"a": 1})])
def test_a_body_may_have_several_sections_of_a_kind(body: bytes) -> None:
    sections = Sections(PROPERTIES + body + FOOTER)
    assert sections.body_bytes() == body


def test_descriptors_may_be_symbols_and_wide_numbers() -> None:
    octets = b"\x00" + encode(Symbol("amqp:header:list")) + encode([True])
    octets += b"\x00\x80" + bytes(7) + b"\x75" + encode(b"x")
    sections = Sections(octets)
    assert sections.header().durable
    assert sections.body_value() == b"x"


@pytest.mark.parametrize("after", [b"", FOOTER])
def test_a_message_without_a_body_gets_a_null_value(after: bytes) -> None:
    sections = Sections(HEADER + PROPERTIES + after)
    assert sections.body_value() is None
    assert sections.bare() == PROPERTIES + section(0x77, None) + after
    assert sections.around_body()[2] == after
    sections.check_footer()


@pytest.mark.parametrize(
    ("octets", "reason"),
    [
        (b"", "no section"),
        (DATA + HEADER, "HEADER is not in its place"),
        (HEADER + HEADER + DATA, "HEADER is not in its place"),
        (PROPERTIES + ANNOTATIONS + DATA, "MESSAGE_ANNOTATIONS is not in its place"),
        (DATA + section(0x77, 1), "two kinds"),
        (section(0x77, 1) * 2, "AMQP_VALUE is not in its place"),
        (DATA + FOOTER + DATA, "DATA is not in its place"),
        (section(0x79, []) + DATA, "not a section"),
        (b"hello", "not a section"),
        (b"\x00", "missing"),
        (DATA[:-1], "cut off"),
    ],
)
def test_bytes_that_are_no_message_are_refused(octets: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        Sections(octets)


@pytest.mark.parametrize(
    ("octets", "reason"),
    [
        (section(0x70, {}) + DATA, "is not a list"),
        (section(0x70, [1]) + DATA, "not of type boolean"),
        (section(0x73, [None, "user"]) + DATA, "not of type binary"),
        (section(0x72, []) + DATA, "not a map"),
        (section(0x74, {Symbol("s"): 1}) + DATA, "not a string"),
        (DATA + section(0x78, []), "not a map"),
        (section(0x75, "text"), "DATA is not valid"),
        (DATA + section(0x75, "text"), "DATA is not valid"),
        (section(0x76, {}), "AMQP_SEQUENCE is not valid"),
        (section(0x77, "text")[:-1] + b"\xff", "not valid utf-8"),
        (section(0x77, ["text"])[:-1] + b"\xff", "not valid utf-8"),
    ],
)
def test_sections_that_are_not_valid_are_refused_when_they_are_seen(
    octets: bytes, reason: str
) -> None:
    with pytest.raises(DecodeError, match=reason):
        text_view(Sections(octets), NOW_MS, 128)


def test_the_text_view_of_a_message() -> None:
    view = text_view(Sections(ALL), NOW_MS, 128)
    assert view.body == b"hello"
    assert (view.key, view.tag) == ("customer-7", "red")
    assert view.properties == {"number": "5", "flag": "true"}
    assert view.expires_at_ms == NOW_MS + 1_000
    assert (view.priority, view.is_durable) == (9, True)


def test_the_partition_key_is_the_key_where_there_is_no_group_id() -> None:
    assert text_view(Sections(ANNOTATIONS + DATA), NOW_MS, 128).key == "from the annotations"
    assert text_view(Sections(DATA), NOW_MS, 128).key is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (DATA, b"hello"),
        (section(0x77, "text ü"), "text ü".encode()),
        (section(0x77, b"octets"), b"octets"),
        (section(0x77, Symbol("no text")), section(0x77, Symbol("no text"))),
        (section(0x77, None), section(0x77, None)),
        (section(0x77, {"a": 1}), section(0x77, {"a": 1})),
        (section(0x76, [1, 2]), section(0x76, [1, 2])),
        (DATA * 2, DATA * 2),
    ],
)
def test_bodies_are_seen_as_bytes(body: bytes, expected: bytes) -> None:
    assert text_view(Sections(body), NOW_MS, 128).body == expected


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_subject_longer_than_a_tag_is_no_tag(more: int) -> None:
    subject = "s" * (10 + more)
    octets = encode_composite(Properties(subject=subject)) + DATA
    assert text_view(Sections(octets), NOW_MS, 10).tag == (None if more > 0 else subject)


@pytest.mark.parametrize(
    ("ttl", "expiry", "expected"),
    [
        (None, None, None),
        (5, None, NOW_MS + 5),
        (None, NOW_MS + 7, NOW_MS + 7),
        (5, NOW_MS + 7, NOW_MS + 5),
        (9, NOW_MS + 7, NOW_MS + 7),
        (0, 0, None),
    ],
)
def test_the_earlier_time_to_expire_counts(
    ttl: int | None, expiry: int | None, expected: int | None
) -> None:
    octets = encode_composite(Header(ttl=ttl))
    octets += encode_composite(Properties(absolute_expiry_time=expiry)) + DATA
    assert text_view(Sections(octets), NOW_MS, 128).expires_at_ms == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (UInt(7), "7"),
        (-7, "-7"),
        (True, "true"),
        (False, "false"),
        (1.5, "1.5"),
        (Float(0.5), "0.5"),
        (Timestamp(12), "12"),
        (b"\x00\xff", "AP8="),
        (Decimal(b"\x22\x50\x00\x01"), "IlAAAQ=="),
        ("text", "text"),
        (Symbol("sym"), "sym"),
        (Char("c"), "c"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (None, None),
        ([], None),
        ({}, None),
        (Array(0x50, []), None),
        (Described(ULong(1), 1), None),
    ],
)
def test_simple_values_have_a_text(value: Any, text: str | None) -> None:
    assert as_text(value) == text


@given(st.integers(0, 8 * len(ALL) - 1), st.integers(0, len(ALL)))
def test_a_changed_message_is_seen_or_refused(bit: int, length: int) -> None:
    octets = bytearray(ALL)
    octets[bit // 8] ^= 1 << bit % 8
    try:
        text_view(Sections(bytes(octets[:length])), NOW_MS, 128)
    except DecodeError as error:
        assert error.condition == "amqp:decode-error"
