from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.amqp.messages.envelope import Envelope, decode_envelope
from holdfast.amqp.messages.sections import Sections
from holdfast.amqp.messages.to_rows import Columns, Rules, column, to_columns
from holdfast.amqp.wire.conditions import AmqpError
from holdfast.amqp.wire.performatives import Header, Properties, encode_composite
from holdfast.amqp.wire.types import Described, Symbol, Timestamp, UInt, ULong, encode
from holdfast.commitlog.format.batch_check import LimitExceeded, MessageLimits

NOW_MS = 1_700_000_000_000
RULES = Rules(MessageLimits(1_000, 20, 10, 100), publisher=7, reserved_prefix="reserved-")


def section(kind: int, value: Any) -> bytes:
    return encode(Described(ULong(kind), value))


HEADER = encode_composite(Header(True, 9, UInt(1_000)))
DELIVERY = section(0x71, {Symbol("d"): 1})
ANNOTATIONS = section(0x72, {Symbol("x"): 1})
PROPERTIES = encode_composite(Properties("id", subject="red", group_id="key"))
APPLICATION = section(0x74, {"number": 5})
DATA, WIDE_DATA = section(0x75, b"hello"), b"\x00\x53\x75\xb0\x00\x00\x00\x05hello"
LONG_DATA = section(0x75, bytes(300))
OTHER_DESCRIPTOR = b"\x00" + encode(Symbol("amqp:data:binary")) + encode(b"hello")
STRING, WIDE_STRING = section(0x77, "hello"), b"\x00\x53\x77\xb1\x00\x00\x00\x05hello"
BINARY, NUMBER, NULL = section(0x77, b"hello"), section(0x77, 5), section(0x77, None)
SEQUENCES = section(0x76, [1, "two"]) * 2
FOOTER = section(0x78, {Symbol("crc"): 7})

BODIES = [
    *(DATA, WIDE_DATA, LONG_DATA, OTHER_DESCRIPTOR, DATA * 2),
    *(STRING, WIDE_STRING, BINARY, NUMBER, NULL, SEQUENCES),
]


def one(message: bytes, rules: Rules = RULES) -> Columns:
    columns = to_columns([message], NOW_MS, rules)
    assert not columns.refused
    return columns


def restored(columns: Columns, row: int = 0) -> bytes:
    """Return the bare message, made of the stored body and its envelope."""
    envelope = decode_envelope(columns.envelopes[row])
    return envelope.annotations + envelope.message(columns.bodies[row])


def test_body_and_envelope_restore_the_bare_message() -> None:
    befores = (b"", ANNOTATIONS, PROPERTIES + APPLICATION)
    for dropped, before, body, after in product(
        (b"", HEADER + DELIVERY), befores, BODIES, (b"", FOOTER)
    ):
        case = (dropped, before, body, after)
        bare = before + body + after
        columns = one(dropped + bare)
        assert restored(columns) == bare == Sections(bare).bare(), case
        envelope = decode_envelope(columns.envelopes[0])
        assert envelope.publisher == RULES.publisher, case
        kept = (envelope.is_durable, envelope.priority)
        assert kept == ((True, 9) if dropped else (False, 4)), case


@pytest.mark.parametrize("body", [DATA, WIDE_DATA, OTHER_DESCRIPTOR, STRING, WIDE_STRING, BINARY])
def test_the_stored_body_is_the_content_of_the_only_section(body: bytes) -> None:
    assert one(PROPERTIES + body).bodies == [b"hello"]


@pytest.mark.parametrize("body", [NUMBER, NULL, SEQUENCES, DATA * 2])
def test_other_bodies_are_stored_encoded(body: bytes) -> None:
    assert one(ANNOTATIONS + body + FOOTER).bodies == [body]


@pytest.mark.parametrize("body", [DATA, LONG_DATA])
def test_a_message_that_is_one_data_section_has_a_small_envelope(body: bytes) -> None:
    for message in (body, HEADER + body):
        (envelope,) = one(message).envelopes
        assert len(envelope) == 6
    assert decode_envelope(one(body).envelopes[0]) == Envelope(RULES.publisher)


HEADERS = st.sampled_from([
    b"",
    *(encode_composite(Header(durable, level)) for durable in (False, True) for level in (0, 4, 9)),
    b"\x00\x53\x70\x45",
    b"\x00\x53\x70\xd0\x00\x00\x00\x05\x00\x00\x00\x01\x41",
    b"\x00\x53\x70\xc0\x06\x04\x41\x50\x09\x40\x41",
    b"\x00\x53\x70\xc0\xff\x01\x41",
    HEADER,
])  # fmt: skip


@given(st.lists(st.tuples(HEADERS, st.sampled_from([DATA, LONG_DATA, WIDE_DATA, STRING]))))
def test_messages_have_the_same_columns_together_as_alone(parts: list[tuple[bytes, bytes]]) -> None:
    messages = [header + body for header, body in parts]
    together = to_columns(messages, NOW_MS, RULES)
    for index, (header, body) in enumerate(parts):
        # Delivery annotations are not stored, but the generic codec reads each message with them.
        alone = to_columns([header + DELIVERY + body], NOW_MS, RULES)
        assert (index in together.refused) == (0 in alone.refused)
        if index in together.refused:
            continue
        assert together.bodies[index] == alone.bodies[0]
        assert together.envelopes[index] == alone.envelopes[0]
        assert together.priorities.get(index, 4) == alone.priorities[0]
        assert together.expires_us.get(index) == alone.expires_us.get(0)
        assert (index in together.durable) == (0 in alone.durable)


def test_columns_have_the_values_of_their_messages() -> None:
    full = HEADER + PROPERTIES + APPLICATION + STRING
    columns = to_columns([DATA, full, LONG_DATA, full], NOW_MS, RULES)
    assert columns.bodies == [b"hello", b"hello", bytes(300), b"hello"]
    assert columns.keys == {1: "key", 3: "key"}
    assert columns.tags == {1: "red", 3: "red"}
    assert columns.properties == {1: {"number": "5"}, 3: {"number": "5"}}
    assert columns.expires_us == dict.fromkeys((1, 3), (NOW_MS + 1000) * 1000)
    assert columns.priorities == {1: 9, 3: 9}
    assert columns.durable == {1, 3}
    assert column(columns.keys, range(4), None) == [None, "key", None, "key"]
    assert column(columns.keys, [1, 2], None) == ["key", None]
    assert column({}, range(4), None) is None


def test_a_tag_of_the_address_replaces_the_subject() -> None:
    rules = Rules(RULES.limits, 7, "reserved-", tag="KEY")
    assert to_columns([DATA, PROPERTIES + DATA], NOW_MS, rules).tags == {0: "KEY", 1: "KEY"}


@pytest.mark.parametrize(("size", "refused"), [(9, []), (10, []), (11, [0, 1])])
def test_a_tag_of_the_address_has_a_limit(size: int, refused: list[int]) -> None:
    rules = Rules(RULES.limits, 7, "reserved-", tag="K" * size)
    assert list(to_columns([DATA, PROPERTIES + DATA], NOW_MS, rules).refused) == refused


@pytest.mark.parametrize(
    ("expiry_ms", "stored_us"),
    [(NOW_MS, NOW_MS * 1_000), (1, 1_000), (-5, 1_000), (2**63 - 1, 2**63 - 1)],
)
def test_any_expiry_time_can_be_stored(expiry_ms: int, stored_us: int) -> None:
    properties = encode_composite(Properties(absolute_expiry_time=Timestamp(expiry_ms)))
    assert one(properties + DATA).expires_us == {0: stored_us}


def properties_of(size: int) -> bytes:
    return section(0x74, {"name": "x" * (size - 4)})


@pytest.mark.parametrize("by", [-1, 0, 1])
@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("max_message_bytes", lambda by: section(0x75, bytes(992 + by))),
        ("max_message_bytes", lambda by: HEADER + section(0x75, bytes(992 - len(HEADER) + by))),
        ("max_key_bytes", lambda by: encode_composite(Properties(group_id="k" * (20 + by))) + DATA),
        ("max_properties_bytes", lambda by: properties_of(100 + by) + DATA),
    ],
)
def test_a_message_above_a_limit_is_refused(limit: str, message: Any, by: int) -> None:
    columns = to_columns([DATA, message(by), DATA], NOW_MS, RULES)
    assert len(columns.bodies) == len(columns.envelopes) == 3
    if by <= 0:
        assert not columns.refused
    else:
        (error,) = columns.refused.values()
        assert isinstance(error, LimitExceeded)
        assert error.limit_name == limit
        assert list(columns.refused) == [1]


@pytest.mark.parametrize(
    ("message", "condition"),
    [
        (b"", "amqp:decode-error"),
        (b"\x00\x53\x75\xa0", "amqp:decode-error"),
        (b"\x00\x53\x75\xb0\x00", "amqp:decode-error"),
        (DATA + b"x", "amqp:decode-error"),
        (section(0x74, {5: 1}) + DATA, "amqp:decode-error"),
        (section(0x74, {"reserved-x": "1"}) + DATA, "amqp:invalid-field"),
    ],
)
def test_a_message_that_is_not_valid_is_refused(message: bytes, condition: str) -> None:
    columns = to_columns([message, DATA], NOW_MS, RULES)
    (error,) = columns.refused.values()
    assert isinstance(error, AmqpError)
    assert error.condition == condition
    assert columns.bodies[1] == b"hello"


def test_a_property_without_a_name_is_only_in_the_envelope() -> None:
    message = section(0x74, {"": "x", "a": "b"}) + DATA
    assert one(message).properties == {0: {"a": "b"}}
    assert restored(one(message)) == message


@given(st.binary(max_size=40), st.sampled_from([b"", *BODIES, PROPERTIES, FOOTER]))
def test_random_bytes_are_stored_or_refused(start: bytes, end: bytes) -> None:
    columns = to_columns([start + end], NOW_MS, RULES)
    if not columns.refused:
        assert restored(columns) == Sections(start + end).bare()
