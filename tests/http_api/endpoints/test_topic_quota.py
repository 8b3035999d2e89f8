"""`max_bytes` of a topic: publishes are refused, no message is deleted, and reads continue."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.http_api.endpoints.publish import OFFLOAD_TEXT_BYTES
from holdfast.http_api.limits.rate_limiter import PublishLimiter
from holdfast.http_api.wire.problems import Problem
from tests.support.servers.group_api import GroupApi, serving_groups, until

TOPIC, MESSAGES = "/v1/topics/small", "/v1/topics/small/messages"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[GroupApi]:
    async with serving_groups(tmp_path / "data") as api:
        yield api


async def stored(api: GroupApi) -> int:
    return sum(each["bytes"] for each in (await api.ask("GET", TOPIC))["queues"])


async def publish(api: GroupApi, size: int) -> tuple[int, Any, str | None]:
    async with api.session.post(MESSAGES + "?queue=0", data=b"x" * size) as response:
        body = await response.json(content_type=None)
        return response.status, body, response.headers.get("Retry-After")


async def test_a_full_topic_refuses_producers_until_there_is_room(api: GroupApi) -> None:
    made = await api.ask("PUT", TOPIC, {"queues": 1})
    assert "max_bytes" not in made["config"]
    assert (await publish(api, 500))[0] == 200
    one = await stored(api)
    for limit, status in ((2 * one - 1, 507), (2 * one, 200), (2 * one + 1, 507)):
        changed = await api.ask("PATCH", TOPIC, {"max_bytes": limit})
        assert changed["config"]["max_bytes"] == limit
        found, problem, retry_after = await publish(api, 500)
        assert found == status, (limit, problem)
        if status == 507:
            assert problem["type"] == "/problems/topic-full"
            assert (problem["stored_bytes"], problem["limit"]) == (await stored(api), limit)
            assert retry_after is not None
    # Another topic has room, and this topic can be read.
    assert (await api.publish("x"))["results"]
    read = await api.ask("GET", TOPIC + "/queues/0/messages?offset=0")
    assert read["next_offset"] == 2
    await api.ask("PATCH", TOPIC, {"max_bytes": None})
    assert (await publish(api, 500))[0] == 200
    assert "max_bytes" not in (await api.ask("GET", TOPIC))["config"]


def _json(sequence: int, *bodies: str) -> tuple[bytes, dict[str, str]]:
    messages = [{"body": body, "queue": index} for index, body in enumerate(bodies)]
    producer = {"Id": "p", "Epoch": "0", "Sequence": str(sequence)}
    return msgspec.json.encode({"messages": messages}), {
        "Content-Type": "application/json",
        **{f"Holdfast-Producer-{name}": value for name, value in producer.items()},
    }


def _large_json(sequence: int, *bodies: str) -> tuple[bytes, dict[str, str]]:
    return _json(sequence, *(body * (OFFLOAD_TEXT_BYTES // 2) for body in bodies))


def _binary(sequence: int, *bodies: str) -> tuple[bytes, dict[str, str]]:
    blocks = [
        encode_batch([body.encode()], queue_id=index, producer_id=7, sequence=sequence)
        for index, body in enumerate(bodies)
    ]
    return b"".join(blocks), {"Content-Type": "application/vnd.holdfast.batch"}


@pytest.mark.parametrize("encode", [_json, _large_json, _binary])
async def test_a_retry_to_a_full_topic_succeeds_if_it_was_stored(
    api: GroupApi, encode: Callable[..., tuple[bytes, dict[str, str]]]
) -> None:
    await api.ask("PUT", TOPIC, {"queues": 2})

    async def send(sequence: int) -> tuple[int, Any]:
        body, headers = encode(sequence, "x", "y")
        async with api.session.post(MESSAGES, data=body, headers=headers) as response:
            return response.status, await response.json(content_type=None)

    def places(reply: Any) -> list[tuple[int, int]]:
        return [(each["queue"], each["offset"]) for each in reply["results"]]

    first = await send(0)
    holds = await stored(api)
    await api.ask("PATCH", TOPIC, {"max_bytes": 1})
    again = await send(0)
    assert (first[0], again[0]) == (200, 200)
    assert places(again[1]) == places(first[1]) == [(0, 0), (1, 0)]
    assert again[1]["duplicate"]
    status, problem = await send(1)
    assert (status, problem["type"]) == (507, "/problems/topic-full")
    assert (await publish(api, 1))[0] == 507
    assert await stored(api) == holds
    await api.ask("PATCH", TOPIC, {"max_bytes": None})
    status, reply = await send(1)
    assert (status, places(reply)) == (200, [(0, 1), (1, 1)])
    assert not reply.get("duplicate")


async def test_concurrent_producers_do_not_exceed_the_limit(api: GroupApi) -> None:
    await api.ask("PUT", TOPIC, {"queues": 1, "max_bytes": 20_000})
    answers = await asyncio.gather(*(publish(api, 1000) for _ in range(60)))
    assert {status for status, *_ in answers} == {200, 507}
    assert await stored(api) <= 20_000


async def test_retention_makes_room_again(tmp_path: Path) -> None:
    flags = {"commitlog.retention_interval_ms": "50"}
    async with serving_groups(tmp_path / "data", flags) as api:
        await api.ask("PUT", TOPIC, {"queues": 1, "max_bytes": 5_000})
        while (await publish(api, 1000))[0] == 200:
            pass
        await api.ask("PATCH", TOPIC, {"retention_bytes": 2_000})

        async def has_room() -> bool:
            return (await publish(api, 1000))[0] == 200

        await until(has_room)


async def test_the_limit_is_kept_over_a_restart_and_dead_letters_are_not_refused(
    tmp_path: Path,
) -> None:
    async with serving_groups(tmp_path / "data") as api:
        await api.ask("PUT", TOPIC, {"queues": 1, "max_bytes": 1})
        assert (await publish(api, 1))[0] == 507
    async with serving_groups(tmp_path / "data") as api:
        assert (await api.ask("GET", TOPIC))["config"]["max_bytes"] == 1
        assert (await publish(api, 1))[0] == 507
        await api.topic()
        await api.group(dead_letter_topic="small")
        await api.publish("lost")
        assert await api.settle("reject", await api.receive()) == ["done"]

        async def has_letter() -> bool:
            return await stored(api) > 0

        await until(has_letter)
        same = await api.ask("PUT", TOPIC, {"max_bytes": 1})
        assert same["config"]["max_bytes"] == 1
        assert (await api.refused("PUT", TOPIC, {"max_bytes": 2}))[0] == 409


async def _letters(api: GroupApi, count: int) -> None:
    """Create `count` dead letters of the topic `orders` in its group `g`."""
    await api.topic()
    await api.group(dead_letter_topic="dead")
    await api.publish(*("x" * 500 for _ in range(count)))
    assert set(await api.settle("reject", await api.receive(max_messages=count))) == {"done"}

    async def have_gone() -> bool:
        return await api.metric("holdfast_group_dead_letters_total") == count

    await until(have_gone)


async def test_a_redrive_into_a_full_topic_reports_the_earlier_letters(api: GroupApi) -> None:
    await _letters(api, 4)
    holds = sum(each["bytes"] for each in (await api.ask("GET", "/v1/topics/orders"))["queues"])
    # Room for one letter: it has the same size as the message.
    limit = holds + 1000
    await api.ask("PATCH", "/v1/topics/orders", {"max_bytes": limit})
    async with api.session.post("/v1/groups/g/redrive") as response:
        problem = await response.json(content_type="application/problem+json")
        assert response.status == 507, problem
        assert response.headers["Retry-After"]
    assert problem["type"] == "/problems/topic-full"
    assert (problem["redriven"], problem["limit"]) == (1, limit)
    await api.ask("PATCH", "/v1/topics/orders", {"max_bytes": None})
    assert (await api.ask("POST", "/v1/groups/g/redrive"))["redriven"] == 3


async def test_a_redrive_counts_in_the_publish_rate_of_its_client(
    api: GroupApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []

    def published(self: PublishLimiter, client: str, who: object, messages: int, size: int) -> None:
        counted.append(messages)

    def admit(self: PublishLimiter, client: str, who: object) -> None:
        if counted:
            raise Problem("rate-limited", "too much")

    await _letters(api, 70)
    monkeypatch.setattr(PublishLimiter, "published", published)
    monkeypatch.setattr(PublishLimiter, "admit", admit)
    done = await api.ask("POST", "/v1/groups/g/redrive")
    assert (done["redriven"], done["more"], counted) == (64, True, [64])
    assert await api.refused("POST", "/v1/groups/g/redrive") == (429, "rate-limited")
    dry = await api.ask("POST", "/v1/groups/g/redrive", {"dry_run": True})
    assert (dry["redriven"], dry["more"]) == (6, False)
    counted.clear()
    done = await api.ask("POST", "/v1/groups/g/redrive")
    assert (done["redriven"], counted) == (6, [6])
