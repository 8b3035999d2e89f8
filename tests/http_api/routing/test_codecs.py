import json
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.http_api.routing import call
from holdfast.http_api.routing.codecs import (
    BATCH,
    JSON,
    MSGPACK,
    NDJSON,
    decode,
    lists_more_than,
    media_type,
    negotiate,
)
from holdfast.http_api.schemas.groups import OffsetsRequest
from holdfast.http_api.schemas.messages import TopicSettings
from holdfast.http_api.wire.problems import Problem
from tests.support.event_loop.calls_a_turn import calls_a_turn
from tests.support.servers.api_server import running_api

OFFERED = (JSON, NDJSON, MSGPACK, BATCH)


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", JSON),
        ("*/*", JSON),
        ("application/*", JSON),
        ("application/msgpack", MSGPACK),
        ("Application/MsgPack ; q=0.3", MSGPACK),
        ("application/x-msgpack", MSGPACK),
        ("application/vnd.holdfast.batch", BATCH),
        ("text/html, application/x-ndjson", NDJSON),
        ("application/json;q=0.5, application/msgpack;q=0.9", MSGPACK),
        ("application/json;q=0.5, */*;q=0.1", JSON),
        ("application/json;q=0, */*", NDJSON),
        ("application/*;q=0.1, application/msgpack;q=0.2", MSGPACK),
        ("application/json;q=nonsense, application/msgpack;q=0.001", MSGPACK),
        ("text/html, */*;q=0.8", JSON),
        ("application/json;q=\x1d0.5, application/msgpack;q=0.1", JSON),  # str.strip() removes it
        (",, application/json", JSON),
    ],
)
def test_the_accept_header_chooses(accept: str, chosen: str) -> None:
    assert negotiate(accept, OFFERED) == chosen


@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0", "*/*;q=0", "json"])
def test_an_unacceptable_request_gets_the_offered_types(accept: str) -> None:
    with pytest.raises(Problem) as caught:
        negotiate(accept, (JSON, MSGPACK))
    assert caught.value.slug == "not-acceptable"
    assert caught.value.members["allowed"] == [JSON, MSGPACK]


@pytest.mark.parametrize(
    ("content_type", "bare"),
    [
        ("", ""),
        ("application/json", JSON),
        ("Application/JSON; charset=UTF-8", JSON),
        ('application/json;charset="utf8"', JSON),
        ("application/x-msgpack", MSGPACK),
        ("application/jsonl", NDJSON),
        ("text/plain; charset=latin-1", "text/plain"),
    ],
)
def test_the_media_type_is_read_from_the_content_type(content_type: str, bare: str) -> None:
    assert media_type(content_type) == bare


def test_json_and_msgpack_decode_to_the_same() -> None:
    wanted = OffsetsRequest({"0": 5})
    assert decode(JSON, b'{"offsets":{"0":5}}', OffsetsRequest) == wanted
    assert decode("", b'{"offsets":{"0":5}}', OffsetsRequest) == wanted
    packed = msgpack.packb({"offsets": {"0": 5}})
    assert decode(MSGPACK, packed, OffsetsRequest) == wanted


def test_an_empty_body_is_an_empty_object() -> None:
    assert decode("application/x-www-form-urlencoded", b"", TopicSettings) == TopicSettings()
    assert decode("application/x-www-form-urlencoded", b'{"queues": 2}', TopicSettings).queues == 2


@pytest.mark.parametrize(
    ("body", "parameter", "slug"),
    [
        (b'{"queues":"4"}', "queues", "invalid-parameter"),
        (b'{"size":4}', "size", "invalid-parameter"),
        (b'{"durability":"fast"}', "durability", "invalid-parameter"),
    ],
)
def test_a_wrong_member_is_named(body: bytes, parameter: str, slug: str) -> None:
    with pytest.raises(Problem) as caught:
        decode(JSON, body, TopicSettings)
    assert (caught.value.slug, caught.value.members["parameter"]) == (slug, parameter)


@pytest.mark.parametrize(
    ("body", "place"),
    [({b"offsets": {}}, "a key of the body"), ({"offsets": {5: 1}}, "a key of offsets")],
)
def test_an_invalid_key_is_reported_as_a_key(body: object, place: str) -> None:
    with pytest.raises(Problem) as caught:
        decode(MSGPACK, msgpack.packb(body), OffsetsRequest)
    assert caught.value.detail.startswith(f"{place}: Expected `str`, got ")
    assert caught.value.members.get("parameter", "the body") == place.removeprefix("a key of ")


def test_every_truncation_of_msgpack_is_malformed() -> None:
    whole = msgpack.packb({"offsets": {"0": 5, "1": 70_000}})
    for length in range(1, len(whole)):
        with pytest.raises(Problem) as caught:
            decode(MSGPACK, whole[:length], OffsetsRequest)
        assert caught.value.slug in ("malformed-msgpack", "invalid-parameter")


MOST = 2_000


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_values_are_counted_at_their_limit(more: int) -> None:
    texts = ["" for _ in range(MOST + more)]
    numbers = {str(number): number for number in range(MOST + more)}
    for value in (texts, numbers):
        assert lists_more_than(MOST, json.dumps(value).encode(), is_msgpack=False) == (more > 0)
        # in msgpack, a list or an object counts as a separate value
        packed = msgpack.packb(value)
        assert lists_more_than(MOST + 1, packed, is_msgpack=True) == (more > 0)


@pytest.mark.parametrize(
    "value",
    [
        {"to": {f"t{topic}": {str(queue): 1 for queue in range(100)} for topic in range(30)}},
        {"receipts": ["x"] * 3_000, "used_ms": 1.5},
        {"offsets": {str(number): 2**40 for number in range(3_000)}},
        {"limits": [{"topic": "t", "queue": 1, "max_messages": 1}] * 1_000},
        [[[[[1] * 3_000]]]],
    ],
)
def test_values_within_values_count(value: Any) -> None:
    assert lists_more_than(MOST, json.dumps(value).encode(), is_msgpack=False)
    assert lists_more_than(MOST, msgpack.packb(value), is_msgpack=True)
    assert not lists_more_than(5_000, json.dumps(value).encode(), is_msgpack=False)
    assert not lists_more_than(5_000, msgpack.packb(value), is_msgpack=True)


def test_msgpack_with_a_name_twice_is_refused_and_with_a_false_length_is_malformed() -> None:
    twice = b"\x82" + 2 * (b"\xa1a\xdc\x07\x00" + b"\xa0" * 0x700)
    assert lists_more_than(MOST, twice, is_msgpack=True)
    for claimed in (b"\xdd\xff\xff\xff\xff", b"\xdc\x07\x00"):
        with pytest.raises(msgspec.MsgspecError):
            lists_more_than(MOST, b"\x81\xa1a" + claimed + b"\xc4\xff" * MOST, is_msgpack=True)


_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers(0, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=40,
)


@given(_VALUES, st.integers(0, 60))
def test_values_of_msgpack_are_counted_as_they_are(value: Any, most: int) -> None:
    packed = msgpack.packb(value)
    expected = _count(value) > most and len(packed) > most
    assert lists_more_than(most, packed, is_msgpack=True) == expected


def _count(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + sum(map(_count, value)) if isinstance(value, list) else 1


@pytest.mark.parametrize("media", ["application/json", "application/msgpack"])
async def test_a_body_with_too_many_values_is_not_decoded(media: str) -> None:
    # 500,000 names blocked the loop for 307 ms, a million receipts for 80 ms
    pack = msgpack.packb if "msgpack" in media else lambda value: json.dumps(value).encode()
    junk = {
        "/v1/groups/g/ack": {"receipts": [""] * (MOST + 1)},
        "/v1/groups/g/seek": {"to": {"orders": {str(each): 0 for each in range(MOST + 1)}}},
        "/v1/groups/g/topics/orders/offsets/reset": {"to": "latest", "queues": [0] * (MOST + 1)},
    }
    async with running_api(max_values_per_request=MOST) as api:
        await api.ask("PUT", "/v1/topics/orders", b"{}")
        with calls_a_turn(call, "decode") as decoded:
            for path, value in junk.items():
                answer = await api.ask("POST", path, pack(value), Content_Type=media)
                assert answer.problem == "limit-exceeded"
                assert answer.json()["limit_name"] == "max_values_per_request"
                assert answer.json()["limit"] == MOST
            claimed = b"\x81\xa8receipts\xdd\xff\xff\xff\xff" + b"\xa0" * MOST
            answer = await api.ask("POST", path, claimed, Content_Type="application/msgpack")
            assert answer.problem == "malformed-msgpack"
        assert decoded.total == 0
