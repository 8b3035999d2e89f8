"""A publish with `mandatory` is stored only if groups get all of its messages."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest

from holdfast.client import AsyncClient, errors
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.http_api.endpoints import publish
from holdfast.http_api.endpoints.publish import OFFLOAD_TEXT_BYTES
from tests.support.servers.group_api import GroupApi, serving_groups

MESSAGES = "/v1/topics/orders/messages"
JSON, MSGPACK = "application/json", "application/msgpack"
NDJSON, BATCH = "application/x-ndjson", "application/vnd.holdfast.batch"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[GroupApi]:
    async with serving_groups(tmp_path / "data") as api:
        yield api


async def post(
    api: GroupApi, data: bytes, kind: str = JSON, query: str = "", **headers: str
) -> tuple[int, Any]:
    url = f"{MESSAGES}?mandatory=true{query}"
    async with api.session.post(url, data=data, headers={"Content-Type": kind, **headers}) as reply:
        return reply.status, await reply.json(content_type=None)


def tagged(*tags: str, pad: str = "") -> bytes:
    return msgspec.json.encode({"messages": [{"body": "x" + pad, "tag": each} for each in tags]})


async def stored(api: GroupApi) -> int:
    topic = await api.ask("GET", "/v1/topics/orders")
    return sum(each["max_offset"] for each in topic["queues"])


def in_every_format(*tags: str) -> list[tuple[bytes, str]]:
    messages = [{"body": b"x", "tag": tag} for tag in tags]
    return [
        (tagged(*tags), JSON),
        (tagged(*tags, pad="x" * OFFLOAD_TEXT_BYTES), JSON),  # decoded in a thread
        (b"\n".join(msgspec.json.encode({"body": "x", "tag": tag}) for tag in tags), NDJSON),
        (msgpack.packb({"messages": messages}), MSGPACK),
        (b"".join(encode_batch([b"x"], queue_id=0, tags=[tag]) for tag in tags), BATCH),
    ]


async def test_a_message_that_no_group_gets_refuses_the_whole_request(api: GroupApi) -> None:
    # T2
    await api.topic(queues=2)
    status, problem = await post(api, tagged("red"))
    assert (status, problem["type"], problem["index"]) == (422, "/problems/unroutable", 0)
    await api.group("reds", {"orders": {"filter": "red"}})
    await api.group("blues", {"ord*": {"filter": "TAGS = 'blue'"}})
    for body, kind in in_every_format("red", "blue", "green", "red", "grey"):
        status, problem = await post(api, body, kind)
        assert (status, problem["type"]) == (422, "/problems/unroutable"), (kind, problem)
        assert (problem["index"], problem["topic"]) == (2, "orders")
    assert await stored(api) == 0
    for count, (body, kind) in enumerate(in_every_format("red", "blue", "red"), 1):
        status, reply = await post(api, body, kind)
        assert status == 200, reply
        assert await stored(api) == 3 * count
    assert (await post(api, b"one", "text/plain", "&tag=red"))[0] == 200
    assert (await post(api, b"one", "text/plain"))[0] == 422
    # The binding is removed: a deleted group does not count, nor does one that left the topic.
    await api.ask("DELETE", "/v1/groups/reds?confirm=reds")
    assert (await post(api, tagged("blue", "red")))[1]["index"] == 1
    await api.group("all")
    assert (await post(api, tagged("blue", "red")))[0] == 200
    await api.group("all", {"other": {}})
    assert (await post(api, tagged("blue", "red")))[1]["index"] == 1
    assert (await api.publish("x"))["results"]  # without mandatory no group is needed


async def test_a_refused_topic_is_not_created(api: GroupApi) -> None:
    await api.group("g", {"other": {}})
    assert (await post(api, tagged("red")))[0] == 422
    assert (await api.refused("GET", "/v1/topics/orders")) == (404, "unknown-topic")
    await api.group("g", {"ord*": {"filter": "red"}})
    assert (await post(api, tagged("red", "blue")))[1]["index"] == 1
    assert (await api.refused("GET", "/v1/topics/orders")) == (404, "unknown-topic")
    assert (await post(api, tagged("red", "red")))[0] == 200
    assert len((await api.receive(max_messages=9))["messages"]) == 2


async def test_a_refused_request_leaves_no_sequence_and_a_stored_one_can_be_repeated(
    api: GroupApi,
) -> None:
    def producer(sequence: int) -> dict[str, str]:
        head = "Holdfast-Producer-"
        return {f"{head}Id": "p", f"{head}Epoch": "0", f"{head}Sequence": str(sequence)}

    await api.topic()
    await api.group(topics={"orders": {"filter": "red"}})
    for _ in range(2):
        assert (await post(api, tagged("blue"), **producer(0)))[0] == 422
    assert (await post(api, tagged("red"), **producer(0)))[0] == 200
    assert (await post(api, tagged("blue"), **producer(1)))[0] == 422
    assert (await post(api, tagged("red"), **producer(1)))[0] == 200
    await api.ask("DELETE", "/v1/groups/g?confirm=g")
    status, reply = await post(api, tagged("red"), **producer(1))
    assert (status, reply["duplicate"]) == (200, True)
    assert (await post(api, tagged("red"), **producer(2)))[0] == 422
    block = encode_batch([b"x"], queue_id=0, producer_id=9, sequence=0)
    await api.group()
    assert (await post(api, block, BATCH))[0] == 200
    await api.ask("DELETE", "/v1/groups/g?confirm=g")
    assert (await post(api, block, BATCH))[1]["duplicate"] is True
    assert await stored(api) == 3


async def test_costly_filters_are_limited_and_compared_in_a_thread(tmp_path: Path) -> None:
    flags = {"groups.max_mandatory_match_ms": "1"}
    async with serving_groups(tmp_path / "data", flags) as api:
        await api.topic()
        await api.group(topics={"orders": {"filter": "a = 'x'"}})
        body = b"\n".join(b'{"body": "", "properties": {"a": "x"}}' for _ in range(100))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(publish, "MATCHED_ON_LOOP_US", -1)
            assert (await post(api, body, NDJSON))[0] == 200
        status, problem = await post(api, body + b"\n" + b"\n".join([body] * 9), NDJSON)
        assert (status, problem["type"]) == (400, "/problems/limit-exceeded")
        assert (problem["limit"], problem["limit_name"]) == (1, "max_mandatory_match_ms")
        assert await stored(api) == 100


async def test_the_client_names_the_message_that_no_group_gets(api: GroupApi) -> None:
    await api.topic()
    await api.group(topics={"orders": {"filter": "red"}})
    async with AsyncClient(str(api.broker.url)) as client:
        assert (await client.publish("orders", "x", tag="red", mandatory=True)).offset == 0
        with pytest.raises(errors.Unroutable) as refused:
            await client.publish("orders", "x", tag="blue", mandatory=True)
        assert refused.value.index == 0
        # Calls that share a request have their own errors.
        tags = ["red", "blue", "red", "red", "blue"]
        calls = [client.publish("orders", "x", tag=tag, mandatory=True) for tag in tags]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(each, errors.Unroutable) for each in found] == [
            tag == "blue" for tag in tags
        ]
        async with client.producer("orders", mandatory=True) as producer:
            handles = [producer.send("x", tag=tag) for tag in ("red", "red", "blue")]
            with pytest.raises(errors.Unroutable) as refused:
                await handles[0]
        assert refused.value.index == 2
        assert await stored(api) == 4
