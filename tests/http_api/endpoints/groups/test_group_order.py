"""Priorities and times to live of a served group. tests/groups/core has the other cases."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.group_api import GroupApi, bodies, serving_groups


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[GroupApi]:
    """A broker with a topic of ten levels, so that each priority is a level, and the group "g"."""
    async with serving_groups(tmp_path / "data") as api:
        await api.topic(priority_levels=10)
        await api.group(backoff_ms=[], lease_ms=60_000)
        yield api


async def held_state(api: GroupApi) -> object:
    """Return everything that browsing must not change."""
    described = await api.describe()
    counts = [described[name] for name in ("available", "in_flight", "lag_messages", "members")]
    return counts, await api.ask("GET", "/v1/groups/g/leases")


async def test_the_highest_level_is_delivered_first_and_in_order(api: GroupApi) -> None:
    # Q20, Q21
    # The first digit of a body is its priority.
    texts = ("0a", "4a", "9a", "4b", "0b", "9b", "7a")
    messages = [{"body": text, "priority": int(text[0])} for text in texts]
    waiting = await api.wait_to_receive(max_messages=3)
    await api.ask("POST", "/v1/topics/orders/messages", {"messages": messages})
    assert bodies(await waiting) == ["9a", "9b", "7a"]
    assert bodies(await api.receive()) == ["4a", "4b", "0a", "0b"]


@pytest.mark.parametrize("max_messages", [1, 5, 20])
async def test_twelve_messages_of_mixed_priorities_come_by_level_and_then_in_order(
    api: GroupApi, max_messages: int
) -> None:
    # Q21, Q22: the levels between these three are empty
    texts = [f"{priority} {number}" for number, priority in enumerate("941491419149")]
    messages = [{"body": text, "priority": int(text[0])} for text in texts]
    await api.ask("POST", "/v1/topics/orders/messages", {"messages": messages})
    expected = [text for level in "941" for text in texts if text[0] == level]

    async def all_bodies(**more: Any) -> list[str]:
        found: list[str] = []
        while reply := bodies(await api.receive("m", max_messages=max_messages, **more)):
            assert len(reply) <= max_messages
            found += reply
        return found

    assert await all_bodies(browse=True) == expected
    assert await all_bodies() == expected
    assert await all_bodies(browse=True) == []


async def test_a_browse_shows_leased_messages_with_their_holders_if_asked(api: GroupApi) -> None:
    # Q12, Q22: the first digit of a body is its priority.
    messages = [{"body": text, "priority": int(text[0])} for text in ("0a", "4a", "9a", "4b", "9b")]
    await api.ask("POST", "/v1/topics/orders/messages", {"messages": messages})
    held = await api.receive("m", max_messages=3, lease_ms=50_000)
    assert bodies(held) == ["9a", "9b", "4a"]
    leases = (await api.ask("GET", "/v1/groups/g/leases"))["leases"]
    before = await held_state(api)

    shown = await api.receive("eye", browse=True)
    assert bodies(shown) == ["4b", "0a"]
    assert not any("holder" in each for each in shown["messages"])
    shown = await api.receive("other", browse=True, include_leased=True, max_messages=4)
    assert bodies(shown) == ["9a", "9b", "4a", "4b"]
    holders = [each.get("holder") for each in shown["messages"]]
    until_ms = {each["until_ms"] for each in leases}
    assert len(until_ms) == 1
    assert holders == [{"member": "m", "until_ms": until_ms.pop()}] * 3 + [None]
    assert {each["receipt"] for each in shown["messages"]} == {None}
    assert bodies(await api.receive("other", browse=True, include_leased=True)) == ["0a"]

    assert await held_state(api) == before
    assert bodies(await api.receive("m")) == ["4b", "0a"]
    assert await api.settle("ack", held) == ["done"] * 3
    assert bodies(await api.receive("third", browse=True, include_leased=True)) == ["4b", "0a"]
    refused = await api.refused(
        "POST", "/v1/groups/g/receive", {"member": "m", "include_leased": True}
    )
    assert refused == (400, "invalid-parameter")


async def test_an_expired_message_is_not_delivered_and_is_counted(api: GroupApi) -> None:  # T32
    await api.publish("a", "b", ttl_ms=5000)
    await api.publish("c")
    await api.publish("d", ttl_ms=60_000)
    assert bodies(await api.receive(browse=True)) == ["a", "b", "c", "d"]
    api.later(5.001)
    assert bodies(await api.receive("other", browse=True)) == ["c", "d"]
    assert bodies(await api.receive(max_messages=1)) == ["c"]
    queue = await api.queue()
    assert (queue["expired"], queue["floor"], queue["dead"]) == (2, 2, 0)
    api.later(45.0)
    reply = await api.receive()
    assert bodies(reply) == ["d"]
    api.later(30.0)
    # A message that was leased before it expired may be settled afterwards.
    assert await api.settle("extend", reply) == ["done"]
    assert await api.settle("ack", reply) == ["done"]
    assert (await api.queue())["expired"] == 2


async def test_expired_messages_stay_expired_over_a_restart(tmp_path: Path) -> None:
    async with serving_groups(tmp_path / "restarted") as api:
        await api.topic()
        await api.group()
        await api.publish("a", "b", ttl_ms=5000)
        await api.publish("c")
        api.later(6.0)
        await api.settle("ack", await api.receive())
    async with serving_groups(tmp_path / "restarted") as api:  # its clock is not ahead
        queue = await api.queue()
        assert (queue["expired"], queue["floor"]) == (2, 3)
        assert bodies(await api.receive()) == []
