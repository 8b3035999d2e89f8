from typing import Any

import msgpack
import pytest

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.consumequeue.slices import ITEMS_A_TURN
from holdfast.http_api.config import HttpConfig
from tests.support.servers.api_server import Api


async def fill(api: Api) -> list[dict[str, object]]:
    """Publish five messages to queue 0, keyed a b a b a; return their results."""
    results = []
    for number, key in enumerate("ababa"):
        answer = await api.publish("orders", {"body": f"{number}", "key": key, "queue": 0})
        results += answer.json()["results"]
    return results


async def test_an_offset_is_found_by_its_time(api: Api) -> None:
    await fill(api)
    stored = api.store.reading.queue_state(api.store.table.get("orders"), 0).newest_timestamp_us
    assert stored is not None
    path = "/v1/topics/orders/queues/0/offset?timestamp_ms="
    first = (await api.get(f"{path}0")).json()
    assert first["offset"] == 0
    assert first["store_timestamp_ms"] <= stored // 1000
    later = (await api.get(f"{path}{stored // 1000 + 1}")).json()
    assert later == {"offset": 5, "store_timestamp_ms": None}
    headers = (await api.get(f"{path}0")).headers
    named = [headers[f"Holdfast-{name}-Offset"] for name in ("Next", "Min", "Max")]
    assert named == ["0", "0", "5"]
    empty = (await api.get("/v1/topics/orders/queues/1/offset?timestamp_ms=0")).json()
    assert empty == {"offset": 0, "store_timestamp_ms": None}


async def test_a_message_is_found_by_its_id_in_any_case(api: Api) -> None:
    results = await fill(api)
    message_id = str(results[2]["message_id"])
    for each in (message_id, message_id.lower()):
        message = (await api.get(f"/v1/messages/{each}")).json()
        assert (message["body"], message["offset"], message["message_id"]) == ("2", 2, message_id)
    packed = await api.get(f"/v1/messages/{message_id}", Accept="application/msgpack")
    assert msgpack.unpackb(packed.body)["body"] == b"2"


async def test_messages_are_found_by_their_key_newest_first(api: Api) -> None:
    await fill(api)
    path = "/v1/topics/orders/messages/search?key="
    found = (await api.get(f"{path}a")).json()["messages"]
    assert [each["body"] for each in found] == ["4", "2", "0"]
    found = (await api.get(f"{path}a&limit=1")).json()["messages"]
    assert [each["body"] for each in found] == ["4"]
    assert (await api.get(f"{path}zzz")).json() == {"messages": []}


async def test_splits_cover_the_requested_range(api: Api) -> None:
    await fill(api)
    await api.publish("orders", {"body": "x", "queue": 1})
    reply = (await api.get("/v1/topics/orders/splits?max_bytes=1")).json()
    assert (reply["topic"], reply["topic_id"]) == ("orders", 1)
    assert [(s["queue"], s["start_offset"], s["end_offset"]) for s in reply["splits"]] == [
        *((0, offset, offset + 1) for offset in range(5)),
        (1, 0, 1),
    ]
    assert all(split["bytes"] > 0 for split in reply["splits"])


@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_the_fewest_pieces_have_a_limit(api: Api, more: int) -> None:
    limit = HttpConfig().max_splits
    answer = await api.get(f"/v1/topics/orders/splits?min_splits={limit + more}")
    if more <= 0:
        assert answer.status == 200
    else:
        assert (answer.status, answer.problem) == (400, "limit-exceeded")
        problem = answer.json()
        assert (problem["parameter"], problem["limit"]) == ("min_splits", limit)


async def test_the_store_gets_the_maximum_number_of_pieces(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    splits = api.store.lookups.splits

    async def noted(*args: Any, max_splits: int, **how: Any) -> Any:
        asked.append(max_splits)
        return await splits(*args, max_splits=max_splits, **how)

    monkeypatch.setattr(api.store.lookups, "splits", noted)
    await api.get("/v1/topics/orders/splits?max_bytes=1")
    assert asked == [HttpConfig().max_splits]


@pytest.mark.parametrize("media", ["application/json", "application/msgpack"])
async def test_a_long_plan_is_complete(api: Api, media: str) -> None:
    count = 2 * ITEMS_A_TURN + 1
    topic = api.store.table.get("orders")
    block = encode_batch([b"x"], queue_id=0)
    for _ in range(count):
        await api.store.publishing.publish(topic, [Batch.decode(block)])
    answer = await api.get("/v1/topics/orders/splits?max_bytes=1", Accept=media)
    plan = msgpack.unpackb(answer.body) if "msgpack" in media else answer.json()
    assert [each["start_offset"] for each in plan["splits"]] == list(range(count))
    assert list(plan) == ["topic", "topic_id", "splits", "segments"]


async def test_splits_accept_every_kind_of_bound(api: Api) -> None:
    await fill(api)
    stored = api.store.reading.queue_state(api.store.table.get("orders"), 0).newest_timestamp_us
    assert stored is not None

    async def offsets(query: str) -> list[int]:
        answer = await api.get(f"/v1/topics/orders/splits?max_bytes=1&{query}")
        assert answer.status == 200, answer.body
        return [split["start_offset"] for split in answer.json()["splits"]]

    assert await offsets("start=0:3") == [3, 4]
    assert await offsets("start=0:1&end=0:3") == [1, 2]
    assert await offsets("end=0:2,1:0") == [0, 1]
    assert await offsets("start=earliest&end=latest") == [0, 1, 2, 3, 4]
    assert await offsets("start=latest") == []
    assert await offsets("start_timestamp_ms=0") == [0, 1, 2, 3, 4]
    assert await offsets(f"start_timestamp_ms={stored // 1000 + 1}") == []
    assert await offsets("end_timestamp_ms=1") == []
    assert await offsets("min_splits=3") == [0, 1, 2, 3, 4]
