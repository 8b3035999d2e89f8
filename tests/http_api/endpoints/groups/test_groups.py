import asyncio
import time
from typing import Any

import pytest

from holdfast.consumequeue.errors import StateFull
from holdfast.consumequeue.topics import Topic
from tests.support.servers.api_server import Answer, Api, raising

OFFSETS = "/v1/groups/billing/topics/orders/offsets"


@pytest.fixture
async def filled(api: Api) -> Api:
    """Fill queue 0 with the offsets 0 to 3; queue 1 is empty."""
    for number in range(4):
        await api.publish("orders", {"body": f"{number}", "queue": 0})
    return api


async def store(api: Api, offsets: dict[str, int], **headers: str) -> Answer:
    return await api.send_json("PUT", OFFSETS, {"offsets": offsets}, **headers)


async def test_storing_creates_the_group_and_merges(filled: Api) -> None:
    first = await store(filled, {"0": 1})
    assert (first.status, first.headers["ETag"]) == (200, '"1"')
    second = await store(filled, {"1": 0})
    assert second.json() == {"group": "billing", "topic": "orders", "offsets": {"0": 1, "1": 0}}
    read = await filled.get(OFFSETS)
    assert read.json() == second.json()
    assert read.headers["ETag"] == second.headers["ETag"] == '"2"'


async def test_a_group_without_offsets_for_a_topic_has_none(filled: Api) -> None:
    await filled.store.topics.create("other")
    await filled.send_json("PUT", "/v1/groups/billing/topics/other/offsets", {"offsets": {"0": 0}})
    read = await filled.get(OFFSETS)
    assert (read.json()["offsets"], read.headers["ETag"]) == ({}, '"0"')


async def test_compare_and_swap(filled: Api) -> None:
    etag = (await store(filled, {"0": 1})).headers["ETag"]
    answer = await store(filled, {"0": 2}, If_Match=etag)
    assert (answer.status, answer.headers["ETag"]) == (200, '"2"')
    answer = await store(filled, {"0": 3}, If_Match=etag)
    assert (answer.status, answer.problem, answer.json()["version"]) == (412, "offsets-changed", 2)
    assert (await filled.get(OFFSETS)).json()["offsets"] == {"0": 2}
    assert (await store(filled, {"0": 3}, If_Match="*")).status == 200


async def test_of_concurrent_creations_one_succeeds(filled: Api) -> None:
    answers = await asyncio.gather(
        *(store(filled, {"0": 1}, If_None_Match="*") for _ in range(2)),
        store(filled, {"0": 1}, If_Match='"0"'),
    )
    assert sorted(answer.status for answer in answers) == [200, 412, 412]


async def test_trimmed_offsets_may_be_stored(filled: Api) -> None:
    filled.trim(0, 2)
    for offset in (1, 2, 3, 4):
        assert (await store(filled, {"0": offset})).json()["offsets"] == {"0": offset}
    lag = (await filled.get("/v1/groups/billing")).json()
    assert lag["topics"][0]["queues"][0]["offset"] == 4
    assert lag["topics"][0]["queues"][0]["lag_messages"] == 0


async def test_an_offset_beyond_the_end_is_refused_as_in_a_pull(filled: Api) -> None:
    # R10: such an offset was stored, and messages up to it were skipped
    await store(filled, {"0": 4, "1": 0})
    for offsets in ({"0": 5}, {"0": 123, "1": 0}, {"0": 2, "1": 1}):
        refused = await store(filled, offsets)
        assert refused.status == 416
        problem = refused.json()
        assert problem["type"] == "/problems/offset-beyond-end"
        assert problem["max_offset"] == (0 if offsets.get("1") else 4)
    kept = await filled.get("/v1/groups/billing/topics/orders/offsets")
    assert kept.json()["offsets"] == {"0": 4, "1": 0}


@pytest.mark.parametrize(
    ("to", "after"),
    [
        ("earliest", {"0": 1, "1": 0}),
        ("latest", {"0": 4, "1": 0}),
        ({"timestamp_ms": 0}, {"0": 1, "1": 0}),
        (0, {"0": 1, "1": 0}),
        ({"timestamp_ms": 9_000_000_000_000}, {"0": 4, "1": 0}),
    ],
)
async def test_a_reset_returns_the_offsets_before_and_after(
    filled: Api, to: object, after: dict[str, int]
) -> None:
    filled.trim(0, 1)
    await store(filled, {"0": 3})
    dry = await filled.send_json("POST", f"{OFFSETS}/reset", {"to": to, "dry_run": True})
    wanted = {"group": "billing", "topic": "orders", "before": {"0": 3}, "after": after}
    assert dry.json() == {**wanted, "dry_run": True}
    assert (await filled.get(OFFSETS)).json()["offsets"] == {"0": 3}
    reset = await filled.send_json("POST", f"{OFFSETS}/reset", {"to": to})
    assert reset.json() == {**wanted, "dry_run": False}
    assert (await filled.get(OFFSETS)).json()["offsets"] == after


async def test_a_reset_may_name_queues(filled: Api) -> None:
    body = {"to": "latest", "queues": [0, 0]}
    answer = await filled.send_json("POST", f"{OFFSETS}/reset", body)
    assert (answer.json()["before"], answer.json()["after"]) == ({}, {"0": 4})


async def test_groups_are_listed_page_by_page(filled: Api) -> None:
    for group in ("b", "a", "c"):
        await filled.send_json(
            "PUT", f"/v1/groups/{group}/topics/orders/offsets", {"offsets": {"0": 1}}
        )
    reply = (await filled.get("/v1/groups?limit=2")).json()
    assert [each["group"] for each in reply["groups"]] == ["a", "b"]
    assert reply["groups"][0] == {"group": "a", "topics": ["orders"], "lag_messages": 3}
    rest = (await filled.get(f"/v1/groups?after={reply['next']}")).json()
    assert ([each["group"] for each in rest["groups"]], rest["next"]) == (["c"], None)


async def test_lag_is_in_messages_bytes_and_seconds(filled: Api) -> None:
    await store(filled, {"0": 1})
    await filled.publish("orders", {"body": "x", "queue": 1})
    reply = (await filled.get("/v1/groups/billing")).json()
    (topic,) = reply["topics"]
    first, second = topic["queues"]
    assert (first["offset"], first["lag_messages"], first["lag_bytes"]) == (1, 3, 3 * 144)
    assert (second["offset"], second["lag_messages"], second["lag_bytes"]) == (None, 1, 144)
    assert reply["lag_messages"] == topic["lag_messages"] == 4
    assert reply["lag_bytes"] == 4 * 144
    assert reply["lag_seconds"] == first["lag_seconds"] >= second["lag_seconds"] >= 0


async def test_the_lag_of_a_group_in_seconds_is_that_of_its_slowest_topic(
    filled: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled.store.topics.create("other")
    await filled.send_json("PUT", "/v1/groups/billing/topics/other/offsets", {"offsets": {"0": 0}})
    await store(filled, {"0": 1})
    monkeypatch.setattr("holdfast.http_api.endpoints.group_lag.time", lambda: time.time() + 100)
    reply = (await filled.get("/v1/groups/billing")).json()
    seconds = {topic["topic"]: topic["lag_seconds"] for topic in reply["topics"]}
    assert seconds["other"] == 0
    assert reply["lag_seconds"] == seconds["orders"] >= 99


async def test_a_group_at_the_end_has_no_lag(filled: Api) -> None:
    await store(filled, {"0": 4, "1": 0})
    reply = (await filled.get("/v1/groups/billing")).json()
    assert (reply["lag_messages"], reply["lag_bytes"], reply["lag_seconds"]) == (0, 0, 0)


async def test_trimmed_messages_are_not_lag(filled: Api) -> None:
    await store(filled, {"0": 1})
    filled.trim(0, 3)
    reply = (await filled.get("/v1/groups/billing")).json()
    assert reply["lag_messages"] == 1


async def test_a_full_disk_is_a_problem(filled: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filled.store.state, "commit", raising(StateFull("no room")))
    answer = await store(filled, {"0": 1})
    assert (answer.status, answer.problem) == (507, "disk-full")


async def test_damage_at_the_stored_offset_hides_no_lag(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    for body in ("damaged", "whole"):
        await api.publish("orders", {"body": body, "queue": 0})
    api.damage(0, 0)
    await store(api, {"0": 0})
    monkeypatch.setattr("holdfast.http_api.endpoints.group_lag.time", lambda: time.time() + 100)
    reply = (await api.get("/v1/groups/billing")).json()
    assert reply["lag_messages"] == 2
    assert reply["lag_seconds"] >= 99


async def test_a_group_is_described_while_one_of_its_topics_is_deleted(filled: Api) -> None:
    await filled.store.topics.create("other")
    await store(filled, {"0": 1})
    await filled.send_json("PUT", "/v1/groups/billing/topics/other/offsets", {"offsets": {"0": 0}})
    splits = filled.store.lookups.splits

    async def while_a_topic_goes(topic: Topic, *args: Any, **how: Any) -> Any:
        if topic.name == "orders":
            await filled.store.topics.delete("other")
        return await splits(topic, *args, **how)

    filled.store.lookups.splits = while_a_topic_goes  # type: ignore[method-assign]
    answer = await filled.get("/v1/groups/billing")
    assert answer.status == 200
    assert [each["topic"] for each in answer.json()["topics"]] == ["orders"]
