import msgpack
import pytest

from holdfast.http_api.routing.codecs import (
    BATCH,
    JSON,
    MSGPACK,
    NDJSON,
    decode,
    media_type,
    negotiate,
)
from holdfast.http_api.schemas.groups import OffsetsRequest
from holdfast.http_api.schemas.messages import TopicSettings
from holdfast.http_api.wire.problems import Problem

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
def test_nothing_acceptable_is_said_with_what_there_is(accept: str) -> None:
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
def test_the_content_type_is_bared(content_type: str, bare: str) -> None:
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
def test_a_wrong_key_is_said_to_be_one(body: object, place: str) -> None:
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
