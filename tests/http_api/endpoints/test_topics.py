import asyncio

import msgpack
import pytest

from holdfast.consumequeue.errors import StateFull
from holdfast.consumequeue.state.store import Changes
from tests.support.servers.api_server import Api, raising
from tests.support.storage.stored import until

TOPIC = "/v1/topics/new"
ORDERS = "/v1/topics/orders"
EMPTY_QUEUE = {"min_offset": 0, "max_offset": 0, "bytes": 0, "newest_timestamp_ms": None}


async def test_put_creates_with_the_defaults(api: Api) -> None:
    answer = await api.ask("PUT", TOPIC)
    assert answer.status == 201
    described = answer.json()
    assert described.pop("created_timestamp_ms") > 0
    assert described == {
        "topic": "new",
        "topic_id": 2,
        "queue_count": 4,
        "queues": [{"queue": queue, **EMPTY_QUEUE} for queue in range(4)],
        "config": {
            "durability": "fsync",
            "retention_ms": 7 * 86_400_000,
            "retention_bytes": None,
            "max_message_bytes": 4 * 1024 * 1024,
        },
    }
    assert (await api.get(TOPIC)).json() == answer.json()


async def test_put_accepts_every_setting_and_null_is_no_limit(api: Api) -> None:
    config = {
        "durability": "written",
        "retention_ms": None,
        "retention_bytes": 10**12,
        "max_message_bytes": 1000,
    }
    answer = await api.send_json("PUT", TOPIC, {"queues": 1, **config})
    assert answer.status == 201
    assert answer.json()["config"] == config
    assert answer.json()["queue_count"] == 1


async def test_put_accepts_msgpack(api: Api) -> None:
    answer = await api.ask(
        "PUT",
        TOPIC,
        msgpack.packb({"queues": 3}),
        Content_Type="application/msgpack",
        Accept="application/msgpack",
    )
    assert msgpack.unpackb(answer.body)["queue_count"] == 3


async def test_patch_changes_only_given_settings(api: Api) -> None:
    answer = await api.send_json("PATCH", "/v1/topics/orders", {"queues": 3, "retention_ms": None})
    assert answer.status == 200
    described = answer.json()
    assert (described["queue_count"], described["config"]["retention_ms"]) == (3, None)
    assert described["config"]["durability"] == "fsync"


async def test_a_description_has_the_bounds_of_the_queues(api: Api) -> None:
    await api.publish("orders", {"body": "x", "queue": 1})
    first, second = (await api.get("/v1/topics/orders")).json()["queues"]
    assert first == {"queue": 0, **EMPTY_QUEUE}
    assert (second["max_offset"], second["bytes"]) == (1, 144)
    assert second["newest_timestamp_ms"] > 0


async def test_delete_needs_the_name_and_a_new_topic_has_a_new_id(api: Api) -> None:
    await api.publish("orders", {"body": "x", "queue": 0})
    answer = await api.ask("DELETE", "/v1/topics/orders?confirm=orders")
    assert (answer.status, answer.json()) == (200, {"topic": "orders", "topic_id": 1})
    assert (await api.get("/v1/topics/orders")).status == 404
    answer = await api.ask("PUT", "/v1/topics/orders")
    assert answer.json()["topic_id"] == 2


async def test_topics_are_listed_page_by_page(api: Api) -> None:
    for name in ("a", "b", "z"):
        await api.store.topics.create(name)
    listed, after, pages = [], "", 0
    while pages < 10:
        reply = (await api.get(f"/v1/topics?limit=2{after}")).json()
        listed += [each["topic"] for each in reply["topics"]]
        pages += 1
        if reply["next"] is None:
            break
        after = f"&after={reply['next']}"
    assert (listed, pages) == (["a", "b", "orders", "z"], 2)
    assert set(reply["topics"][0]) == {
        "topic",
        "topic_id",
        "queue_count",
        "created_timestamp_ms",
        "config",
    }


async def test_the_last_page_may_be_empty(api: Api) -> None:
    assert (await api.get("/v1/topics?after=zz")).json() == {"topics": [], "next": None}


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
async def test_a_full_disk_is_a_problem(
    api: Api, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    path = {"PUT": TOPIC, "PATCH": ORDERS, "DELETE": f"{ORDERS}?confirm=orders"}
    body = b'{"queues": 3}' if method == "PATCH" else None
    monkeypatch.setattr(api.store.state, "commit", raising(StateFull("no room")))
    answer = await api.ask(method, path[method], body)
    assert (answer.status, answer.problem) == (507, "disk-full")
    assert answer.headers["Retry-After"]


async def test_a_creation_continues_after_a_disconnect(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()

    commit = api.store.state.commit

    async def slow_commit(changes: Changes) -> None:
        begun.set()
        await gate.wait()
        await commit(changes)

    monkeypatch.setattr(api.store.state, "commit", slow_commit)
    task = asyncio.create_task(api.ask("PUT", TOPIC))
    await begun.wait()
    task.cancel()
    await until(lambda: not api.server.connection_count)
    gate.set()
    await api.context.wait_for_changes()
    assert api.store.table.get("new").queue_count == 4
