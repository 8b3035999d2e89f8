"""Bodies that list too many values are refused before any value is created."""

import json
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.http_api.routing import call
from holdfast.http_api.routing.codecs import lists_more_than
from tests.support.api_server import running_api
from tests.support.calls_a_turn import calls_a_turn

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


def test_what_msgpack_names_twice_is_refused_and_what_it_only_claims_is_malformed() -> None:
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
async def test_nothing_is_made_of_a_body_that_lists_too_much(media: str) -> None:
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
