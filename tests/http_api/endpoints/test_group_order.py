"""The order of a served group's deliveries, and expired messages: priorities and times to live."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.group_api import GroupApi, bodies, serving_groups


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[GroupApi]:
    async with serving_groups(tmp_path / "data") as api:
        yield api


# -- priorities ----------------------------------------------------------------------------


@pytest.fixture
async def urgent(api: GroupApi) -> GroupApi:
    """A topic of ten levels, so that each priority is a level, and the group "g" on it."""
    await api.topic(priority_levels=10)
    await api.group(backoff_ms=[])
    return api


async def publish(api: GroupApi, *bodies: str, **more: Any) -> None:
    """Publish to the queue of priority and key. The first digit of a body is its priority."""
    messages = [{"body": body, "priority": int(body[0]), **more} for body in bodies]
    await api.ask("POST", "/v1/topics/orders/messages", {"messages": messages})


def by_body(reply: Any) -> dict[str, Any]:
    return {each["body"]: each for each in reply["messages"]}


async def test_the_highest_level_is_delivered_first_and_in_order(urgent: GroupApi) -> None:
    # Q20, Q21
    await publish(urgent, "0a", "4a", "9a", "4b", "0b", "9b", "7a")
    expected = ["9a", "9b", "7a", "4a", "4b", "0a", "0b"]
    assert bodies(await urgent.receive(max_messages=3)) == expected[:3]
    assert bodies(await urgent.receive()) == expected[3:]


async def test_queues_of_one_level_alternate_before_a_lower_level(api: GroupApi) -> None:
    await api.topic(queues=3, priority_levels=2)
    await api.group()
    for queue in (0, 2, 4):
        await api.publish("low", queue=queue)
        await api.publish("high", "high", queue=queue + 1)
    reply = await api.receive()
    assert bodies(reply) == ["high"] * 6 + ["low"] * 3
    assert {each["queue"] for each in reply["messages"][:3]} == {1, 3, 5}


async def test_a_key_keeps_its_order_inside_its_level(api: GroupApi) -> None:
    await api.topic(queues=2, priority_levels=10)
    await api.group(mode="keyed", backoff_ms=[], max_in_flight_per_key=1)
    await publish(api, "4a", "4b", "9a", "9b", key="k")
    first = await api.receive("one")
    assert sorted(bodies(first)) == ["4a", "9a"]
    assert bodies(await api.receive("two")) == []
    await api.settle("nack", by_body(first)["9a"], delay_ms=0)
    assert bodies(await api.receive("two")) == ["9a"]
    await api.settle("ack", by_body(first)["4a"])
    assert bodies(await api.receive("one")) == ["4b"]


async def test_a_waiting_member_gets_the_highest_new_message(urgent: GroupApi) -> None:
    waiting = await urgent.wait_to_receive(max_messages=1)
    await publish(urgent, "0a", "9a", "4a")
    assert bodies(await waiting) == ["9a"]
    assert bodies(await urgent.receive()) == ["4a", "0a"]


async def test_levels_of_one_topic_do_not_starve_another(api: GroupApi) -> None:  # F1
    await api.topic(priority_levels=10)
    await api.topic("plain")
    await api.group(topics={"orders": {}, "plain": {}})
    await publish(api, *["9x"] * 100)
    await api.publish(*["plain"] * 100, topic="plain")
    assert bodies(await api.receive(max_messages=40)).count("plain") == 20


# -- times to live -------------------------------------------------------------------------


@pytest.fixture
async def mortal(api: GroupApi) -> GroupApi:
    """A topic of one queue, and the group "g" on it."""
    await api.topic()
    await api.group(backoff_ms=[], lease_ms=60_000)
    return api


async def test_an_expired_message_is_not_delivered_and_is_counted(mortal: GroupApi) -> None:  # T32
    await mortal.publish("a", "b", ttl_ms=5000)
    await mortal.publish("c")
    await mortal.publish("d", ttl_ms=60_000)
    mortal.later(5.001)
    assert bodies(await mortal.receive(max_messages=1)) == ["c"]
    queue = await mortal.queue()
    assert (queue["expired"], queue["floor"], queue["dead"]) == (2, 2, 0)
    assert bodies(await mortal.receive()) == ["d"]


async def test_a_message_is_delivered_until_it_expires(mortal: GroupApi) -> None:
    await mortal.publish("a", ttl_ms=60_000)
    mortal.later(50.0)
    reply = await mortal.receive()
    mortal.later(30.0)
    # A message that was leased before it expired may be settled afterwards.
    assert await mortal.settle("extend", reply) == ["done"]
    assert await mortal.settle("ack", reply) == ["done"]
    assert (await mortal.queue())["expired"] == 0


@pytest.mark.parametrize("how", ["release", "nack", "leave", "expiry"])
async def test_a_returned_expired_message_is_not_delivered(mortal: GroupApi, how: str) -> None:
    await mortal.publish("a", ttl_ms=5000)
    reply = await mortal.receive("one", lease_ms=10_000)
    mortal.later(6.0)
    if how == "leave":
        await mortal.ask("POST", "/v1/groups/g/leave", {"member": "one"})
    elif how == "expiry":
        mortal.later(5.0)
    else:
        assert await mortal.settle(how, reply) == ["done"]
    queue = await mortal.queue()
    assert (queue["expired"], queue["floor"], queue["in_flight"]) == (1, 1, 0)
    waiting = await mortal.wait_to_receive("two")
    await mortal.publish("b")
    assert bodies(await waiting) == ["b"]


async def test_a_message_that_expires_while_delayed_wakes_no_member(mortal: GroupApi) -> None:
    await mortal.publish("a", ttl_ms=5000)
    await mortal.settle("nack", await mortal.receive("one"), delay_ms=10_000)
    waiting = await mortal.wait_to_receive("two")
    mortal.later(11.0)
    await mortal.held(1)
    queue = await mortal.queue()
    assert (queue["expired"], queue["delayed"], queue["lag_messages"]) == (1, 0, 0)
    await mortal.publish("b")
    assert bodies(await waiting) == ["b"]


async def test_a_key_continues_after_an_expired_message(api: GroupApi) -> None:
    await api.topic()
    await api.group(mode="keyed", max_in_flight_per_key=1, backoff_ms=[])
    await api.publish("a", key="k", ttl_ms=5000)
    await api.publish("b", "c", key="k")
    reply = await api.receive("one")
    assert bodies(reply) == ["a"]
    assert bodies(await api.receive("two")) == []
    waiting = await api.wait_to_receive("two")
    api.later(6.0)
    await api.settle("release", reply)
    assert bodies(await waiting) == ["b"]


async def test_a_rejected_expired_message_is_a_dead_letter(mortal: GroupApi) -> None:
    await mortal.topic("dead")
    await mortal.group("watch", {"dead": {}})
    await mortal.group(dead_letter_topic="dead")
    await mortal.publish("a", ttl_ms=5000)
    reply = await mortal.receive()
    mortal.later(6.0)
    assert await mortal.settle("reject", reply) == ["done"]
    assert bodies(await mortal.receive(group="watch", wait_ms=10_000)) == ["a"]


async def test_browsing_shows_no_expired_message(mortal: GroupApi) -> None:
    await mortal.publish("a", ttl_ms=5000)
    await mortal.publish("b")
    assert bodies(await mortal.receive(browse=True)) == ["a", "b"]
    mortal.later(6.0)
    assert bodies(await mortal.receive("other", browse=True)) == ["b"]


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
