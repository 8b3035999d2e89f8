from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.amqp.messages.envelope import Envelope, encode_envelope
from holdfast.amqp.messages.from_rows import ROWS_AT_ONCE, RowEncoder
from holdfast.amqp.messages.sections import Kind, Sections
from holdfast.amqp.wire.performatives import Header, Properties
from holdfast.amqp.wire.types import Symbol, Timestamp, UInt, ULong, encode
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_columns

STORED_US, BORN_US = 1_700_000_000_123_456, 1_700_000_000_000_789
NOW_MS = 1_700_000_100_000


def _batch(bodies: list[bytes], **columns: Any) -> Batch:
    header, payload = encode_columns(bodies, queue_id=3, born_timestamp_us=BORN_US, **columns)
    header.topic_id = 0xAB
    header.base_offset = 0x1000
    header.store_timestamp_us = STORED_US
    return Batch.decode(header.encode() + payload)


def _sections(batch: Batch, row: int = 0, attempt: int = 1, failures: int = 0) -> Sections:
    encoder = RowEncoder(batch, row, is_durable=True)
    return Sections(encoder.encode(row, attempt, failures, NOW_MS))


def test_a_message_of_another_protocol_becomes_a_data_section() -> None:
    batch = _batch(
        [b"first", b"second"],
        keys=[None, "k1"],
        tags=[None, "blue"],
        properties=[None, {"content-type": "text/plain", "n": "5", "größe": "x"}],
    )
    first, second = _sections(batch, 0), _sections(batch, 1, attempt=3, failures=2)
    assert first.body_value() == b"first"
    assert second.body_value() == b"second"
    assert first.header() == Header(durable=True, first_acquirer=True)
    assert second.header() == Header(durable=True, delivery_count=2)
    created = Timestamp(BORN_US // 1000)
    assert first.properties() == Properties(
        message_id="000000AB000000030000000000001000", creation_time=created
    )
    assert Kind.APPLICATION_PROPERTIES not in first
    assert second.properties() == Properties(
        message_id="000000AB000000030000000000001001",
        subject="blue",
        content_type="text/plain",
        creation_time=created,
        group_id="k1",
    )
    assert second.application_properties() == {"n": "5", "größe": "x"}
    assert second.annotations() == {
        "x-opt-offset": 0x1001,
        "x-opt-queue": 3,
        "x-opt-enqueued-time": STORED_US // 1000,
        "x-opt-attempt": 3,
    }
    types = {type(each) for each in second.annotations().values()}
    assert types == {ULong, UInt, Timestamp}


@pytest.mark.parametrize("size", [0, 255, 256, 70_000])
def test_bodies_of_every_size(size: int) -> None:
    assert _sections(_batch([b"x" * size])).body_value() == b"x" * size


def test_the_time_to_live_is_what_is_left() -> None:
    # T32
    left_ms = [1, 5_000, 2**40, 0]
    expires = [(NOW_MS + each) * 1000 if each else 0 for each in left_ms]
    batch = _batch([b""] * 4, expires_timestamps_us=expires)
    ttls = [_sections(batch, row).header().ttl for row in range(4)]
    assert ttls == [1, 5_000, 0xFFFF_FFFF, None]


def test_each_message_has_its_own_time_of_creation() -> None:
    batch = _batch([b"", b""], born_timestamps_us=[1_000, 2_000_000])
    assert [_sections(batch, row).properties().creation_time for row in (0, 1)] == [1, 2_000]


def test_an_encoder_has_only_some_rows_of_a_large_batch() -> None:
    batch = _batch([b"%d" % row for row in range(600)])
    encoder = RowEncoder(batch, 300, is_durable=False)
    assert (encoder.first_row, encoder.end_row) == (300, 300 + ROWS_AT_ONCE)
    for row in (300, 555):
        sections = Sections(encoder.encode(row, 1, 0, NOW_MS))
        assert sections.body_value() == b"%d" % row
        assert sections.header().durable is False
        assert sections.annotations()["x-opt-offset"] == 0x1000 + row
    assert RowEncoder(batch, 300, is_durable=False, most=7).end_row == 307


def test_each_message_of_a_large_batch_has_its_own_offset() -> None:
    batch = _batch([b"%d" % row for row in range(600)])
    encoder = RowEncoder(batch, 200, is_durable=True)
    for row in (200, 255, 256, 300, 257, 201):  # 256 is the first with another second-lowest byte
        sections = Sections(encoder.encode(row, 1, 0, NOW_MS))
        assert sections.body_value() == b"%d" % row
        assert sections.annotations()["x-opt-offset"] == 0x1000 + row
        assert sections.properties().message_id == f"000000AB00000003{0x1000 + row:016X}"


PLAIN = encode_envelope(Envelope(7))
COLUMNS: list[dict[str, Any]] = [
    {},
    {"tags": ["blue"] * 600},
    {"born_timestamps_us": list(range(600))},
    {"expires_timestamps_us": [(NOW_MS + 5) * 1000] * 600},
    {"envelopes": [PLAIN] * 600},
    {
        "envelopes": [
            encode_envelope(Envelope(7, is_durable=True, before=b"before", after=b"after"))
        ]
        * 600
    },
    {"envelopes": [encode_envelope(Envelope(7, priority=9))] * 600},
    {"envelopes": [encode_envelope(Envelope(7, annotations=b"\x00\x53\x72\xc1\x01\x00"))] * 600},
    {"envelopes": [PLAIN, b""] * 300},
    {"envelopes": [PLAIN, encode_envelope(Envelope(8))] * 300},
]


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("sizes", [[100], [1, 2, 300]])
@pytest.mark.parametrize("topic", [None, "t"])
def test_a_run_equals_its_messages_one_by_one(
    columns: dict[str, Any], sizes: list[int], topic: str | None
) -> None:
    batch = _batch([b"%d" % row * sizes[row % len(sizes)] for row in range(600)], **columns)
    encoder = RowEncoder(batch, 200, is_durable=True, topic=topic)
    for first, end in ((200, 201), (200, 202), (201, 456), (255, 257), (300, 310), (456, 456)):
        one_by_one = [encoder.encode(row, 1, 0, NOW_MS) for row in range(first, end)]
        assert encoder.encode_run(first, end, NOW_MS) == one_by_one


@pytest.mark.parametrize("columns", COLUMNS)
def test_a_message_alone_in_its_batch_equals_the_first_of_several(columns: dict[str, Any]) -> None:
    found = []
    for count in (1, 2):
        of_batch = {name: values[:count] for name, values in columns.items()}
        encoder = RowEncoder(_batch([b"body", b"other"][:count], **of_batch), 0, is_durable=True)
        found.append([encoder.encode(0, attempt, 0, NOW_MS) for attempt in (1, 3)])
    assert found[0] == found[1]


ANNOTATIONS = b"\x00\x53\x72"
BEFORE = b"\x00\x53\x73\x45\x00\x53\x74\xc1\x01\x00\x00\x53\x77\xa1\x02"
FOOTER = b"\x00\x53\x78\xc1\x01\x00"


@settings(max_examples=40)  # `make test-inputs` tries more
@given(
    theirs=st.dictionaries(
        st.sampled_from(["x-opt-mine", "x-opt-offset", "a" * 200]).map(Symbol),
        st.integers(0, 2**64 - 1).map(ULong) | st.text(max_size=300),
    ),
    is_long=st.booleans(),
)
def test_an_amqp_message_is_delivered_byte_for_byte(theirs: dict[Any, Any], is_long: bool) -> None:
    descriptor = b"\x00\x80" + (0x72).to_bytes(8, "big") if is_long else ANNOTATIONS
    annotations = descriptor + encode(theirs) if theirs else b""
    envelope = Envelope(7, True, 9, annotations, BEFORE, FOOTER)
    batch = _batch([b"ab", b"plain"], envelopes=[encode_envelope(envelope), b""])
    octets = RowEncoder(batch, 0, is_durable=False).encode(0, 2, 1, NOW_MS)
    sections = Sections(octets)
    assert sections.header() == Header(True, 9, None, False, 1)
    ours = {
        "x-opt-offset": 0x1000,
        "x-opt-queue": 3,
        "x-opt-enqueued-time": STORED_US // 1000,
        "x-opt-attempt": 2,
    }
    assert sections.annotations() == theirs | ours
    assert octets.endswith(BEFORE + b"ab" + FOOTER)
    assert _sections(batch, 1).body_value() == b"plain"


@pytest.mark.parametrize("theirs", [{}, {"x": "y"}, {"x-opt-topic": "theirs", "x": "y" * 300}])
@pytest.mark.parametrize("name", ["t", "t" * 127])
def test_the_topic_is_an_annotation_if_it_is_given(name: str, theirs: dict[str, str]) -> None:
    symbols = {Symbol(key): value for key, value in theirs.items()}
    annotations = ANNOTATIONS + encode(symbols) if theirs else b""
    envelope = Envelope(7, annotations=annotations, before=BEFORE)
    batch = _batch([b"ab", b"cd"], envelopes=[encode_envelope(envelope)] * 2)
    encoder = RowEncoder(batch, 0, is_durable=False, topic=name)
    for row, attempt in ((0, 1), (1, 2)):
        found = Sections(encoder.encode(row, attempt, 0, NOW_MS)).annotations()
        ours = {"x-opt-topic": name, "x-opt-queue": 3, "x-opt-attempt": attempt}
        assert found.items() >= ours.items() | (theirs.items() - {("x-opt-topic", "theirs")})
    plain = RowEncoder(_batch([b"ab"]), 0, is_durable=False, topic=name).encode(0, 1, 0, NOW_MS)
    assert Sections(plain).annotations()["x-opt-topic"] == name
    assert len(Sections(plain).annotations()) == 5


@pytest.mark.parametrize("theirs", [{}, {"a": 1}, {"b": 1, "x-opt-queue": "wrong", "c": "y" * 300}])
def test_the_annotations_of_an_outcome_replace_those_of_the_message(theirs: dict[str, Any]) -> None:
    symbols = {Symbol(key): value for key, value in theirs.items()}
    section = ANNOTATIONS + encode(symbols) if theirs else b""
    envelope = Envelope(7, annotations=section, before=BEFORE, after=FOOTER)
    amqp, plain = _batch([b"ab"], envelopes=[encode_envelope(envelope)]), _batch([b"ab"])
    modified = {Symbol("b"): ULong(2), Symbol("x-opt-offset"): "wrong"}
    ours = {"x-opt-queue": 3, "x-opt-offset": 0x1000}
    for batch, expected, end in (
        (amqp, theirs, BEFORE + b"ab" + FOOTER),
        (plain, {}, b"\x00\x53\x75\xa0\x02ab"),
    ):
        for attempt in (1, 2):
            encoder = RowEncoder(batch, 0, is_durable=True)
            octets = encoder.encode(0, attempt, 0, NOW_MS, encode(modified))
            sections = Sections(octets)
            added = {"x-opt-attempt": attempt, "x-opt-enqueued-time": STORED_US // 1000}
            assert sections.annotations() == expected | {"b": 2} | ours | added
            assert octets.endswith(end)


def test_a_plain_amqp_message_is_only_its_data() -> None:
    batch = _batch([b"ab"], envelopes=[encode_envelope(Envelope(7))])
    octets = RowEncoder(batch, 0, is_durable=True).encode(0, 1, 0, NOW_MS)
    assert octets.endswith(b"\x00\x53\x75\xa0\x02ab")
    assert Kind.PROPERTIES not in Sections(octets)
    assert Sections(octets).header() == Header(first_acquirer=True)
