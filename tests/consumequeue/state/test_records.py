"""The state's records: round trips, fixed bytes, newer fields."""

from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.consumequeue.lost_ranges import LostRange
from holdfast.consumequeue.state.records import (
    INCOMPLETE,
    NEXT_TOPIC_ID,
    MalformedRecord,
    StoredOffsets,
    decode_damage,
    decode_kept,
    decode_lost,
    decode_number,
    decode_offsets,
    decode_topic,
    encode_damage,
    encode_kept,
    encode_lost,
    encode_number,
    encode_offsets,
    encode_topic,
    kept_key,
    lost_key,
    offsets_key,
    parse_key,
    topic_key,
)
from holdfast.consumequeue.topics import Topic, TopicConfig

TOPIC = Topic("orders", 7, 4, TopicConfig("fsync", 1000, None, 4096), 1_700_000_000_000)

_SIZES = st.integers(0, 2**63 - 1)
_OFFSETS = st.dictionaries(st.integers(0, 2**32 - 1), _SIZES, max_size=8)


def test_the_bytes_of_every_record_are_pinned() -> None:
    assert encode_topic(TOPIC) == (
        b"\x87"
        b"\xa8topic_id\x07"
        b"\xa6queues\x04"
        b"\xaadurability\xa5fsync"
        b"\xacretention_ms\xcd\x03\xe8"
        b"\xafretention_bytes\xc0"
        b"\xb1max_message_bytes\xcd\x10\x00"
        b"\xaacreated_ms\xcf\x00\x00\x01\x8b\xcf\xe5h\x00"
    )
    with_former = encode_topic(replace(TOPIC, former_queue_counts=(2, 1)))
    assert with_former == b"\x88" + encode_topic(TOPIC)[1:] + b"\xadformer_queues\x92\x02\x01"
    assert decode_topic(TOPIC.name, with_former).former_queue_counts == (2, 1)
    with_levels = encode_topic(replace(TOPIC, priority_levels=2))
    assert with_levels == b"\x88" + encode_topic(TOPIC)[1:] + b"\xafpriority_levels\x02"
    with_limit = encode_topic(replace(TOPIC, config=replace(TOPIC.config, max_bytes=300)))
    assert with_limit == b"\x88" + encode_topic(TOPIC)[1:] + b"\xa9max_bytes\xcd\x01\x2c"
    assert decode_topic("orders", with_limit).config.max_bytes == 300
    assert decode_topic("orders", encode_topic(TOPIC)).config.max_bytes is None
    assert encode_kept({0: 5, 3: 256}) == b"\x82\x00\x05\x03\xcd\x01\x00"
    assert encode_offsets(StoredOffsets({1: 9}, 3)) == b"\x82\xa7version\x03\xa7offsets\x81\x01\x09"
    assert encode_number(300) == b"\xcd\x01\x2c"


@pytest.mark.parametrize(
    ("key", "raw", "parts"),
    [
        (topic_key("orders"), b"topic/orders", ("topic", "orders")),
        (kept_key(7), b"kept/7", ("kept", "7")),
        (lost_key(7), b"lost/7", ("lost", "7")),
        (offsets_key("billing", 7), b"offsets/billing/7", ("offsets", "billing", "7")),
        (NEXT_TOPIC_ID, b"next_topic_id", ("next_topic_id",)),
        (INCOMPLETE, b"incomplete", ("incomplete",)),
    ],
)
def test_keys_are_pinned_and_parsed(key: bytes, raw: bytes, parts: tuple[str, ...]) -> None:
    assert key == raw
    assert parse_key(key) == parts


@given(
    st.builds(
        Topic,
        st.just("orders"),
        st.integers(1, 2**32 - 1),
        st.integers(1, 10_000),
        st.builds(
            TopicConfig,
            st.sampled_from(("fsync", "written")),
            st.none() | _SIZES,
            st.none() | _SIZES,
            _SIZES,
        ),
        _SIZES,
    ),
    st.integers(1, 10),
)
def test_a_topic_is_decoded(topic: Topic, levels: int) -> None:
    topic = replace(topic, queue_count=topic.queue_count * levels, priority_levels=levels)
    assert decode_topic("orders", encode_topic(topic)) == topic


@pytest.mark.parametrize("levels", [0, 3, 11, "two"])
def test_a_topic_has_queues_on_each_of_its_levels(levels: object) -> None:
    fields = msgpack.unpackb(encode_topic(TOPIC)) | {"priority_levels": levels}
    with pytest.raises(MalformedRecord):
        decode_topic("orders", msgpack.packb(fields))


@given(_OFFSETS, st.integers(0, 2**63 - 1))
def test_offsets_are_decoded(offsets: dict[int, int], version: int) -> None:
    assert decode_kept(encode_kept(offsets)) == offsets
    stored = StoredOffsets(offsets, version)
    assert decode_offsets(encode_offsets(stored)) == stored
    assert decode_number(encode_number(version)) == version


def test_unknown_fields_are_ignored() -> None:
    fields = msgpack.unpackb(encode_topic(TOPIC))
    assert decode_topic("orders", msgpack.packb({**fields, "colour": "red"})) == TOPIC
    fields = msgpack.unpackb(encode_offsets(StoredOffsets({1: 9}, 3)), strict_map_key=False)
    newer = msgpack.packb({**fields, "by": "someone"})
    assert decode_offsets(newer) == StoredOffsets({1: 9}, 3)


def test_lost_ranges_are_decoded() -> None:
    lost = {0: (LostRange(3, 5, "crc"),), 9: (LostRange(0, 1, "x", True), LostRange(7, 8, "y"))}
    assert decode_lost(encode_lost(lost)) == lost
    assert encode_lost({0: (LostRange(3, 5, "crc"),)}) == b"\x81\x00\x91\x94\x03\x05\xa3crc\xc2"
    damage = {4096: (8192, "bad-magic")}
    assert decode_damage(encode_damage(damage)) == damage
    assert encode_damage(damage) == b"\x91\x93\xcd\x10\x00\xcd\x20\x00\xa9bad-magic"
