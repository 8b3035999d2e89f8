"""One log, many readers: the log stores a message once, and a woken reader finds its message."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.group_api import GroupApi, bodies, serving_groups, until

PUBLISHES = 10_000
TIMEOUT_S = 60


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[GroupApi]:
    """A broker with the topic "orders" of one queue and the group "g" on it."""
    async with serving_groups(tmp_path / "data") as api:
        await api.topic()
        await api.group()
        yield api


async def end_of(api: GroupApi, topic: str = "orders") -> int:
    described = await api.ask("GET", f"/v1/topics/{topic}")
    return sum(each["max_offset"] - each["min_offset"] for each in described["queues"])


async def test_every_group_reads_every_message_and_the_log_holds_it_once(api: GroupApi) -> None:
    # T3
    for group in ("one", "two", "three"):
        await api.group(group)
    sent = [f"{number}" for number in range(50)]
    await api.publish(*sent)
    for group in ("one", "two", "three"):
        reply = await api.receive(group=group, max_messages=100)
        assert bodies(reply) == sent
        assert await api.settle("ack", reply, group=group) == ["done"] * 50
    assert await end_of(api) == 50


async def test_a_woken_pull_finds_its_message(api: GroupApi) -> None:
    # L9, L10: ten thousand publishes, without a needless or lost wake-up
    await api.ask("PATCH", "/v1/topics/orders", {"durability": "written"})
    found, empty = 0, 0

    async def follow() -> None:
        nonlocal found, empty
        offset = 0
        while offset < PUBLISHES:
            path = f"/v1/topics/orders/queues/0/messages?offset={offset}&wait_ms=60000"
            reply = await api.ask("GET", f"{path}&max_messages=1000")
            empty += not reply["messages"]
            found += len(reply["messages"])
            offset = reply["next_offset"]

    async def publish(numbers: range) -> None:
        for number in numbers:
            await api.publish(f"{number}")

    async with asyncio.timeout(2 * TIMEOUT_S):
        await asyncio.gather(
            *(follow() for _ in range(3)),
            *(publish(range(first, PUBLISHES, 32)) for first in range(32)),
        )
    assert (found, empty) == (3 * PUBLISHES, 0)
    assert await api.metric("holdfast_scan_rescues_total") == 0


async def test_a_receive_gets_at_most_max_messages(api: GroupApi) -> None:
    # A2, A4
    await api.publish(*(f"{number}" for number in range(100)))
    assert len((await api.receive(max_messages=10))["messages"]) == 10
    got = [bodies(await api.receive(max_messages=1)) for _ in range(3)]
    assert got == [["10"], ["11"], ["12"]]


async def test_a_member_leases_only_the_messages_that_it_asks_for(api: GroupApi) -> None:
    # T20: the other 980 messages are there for a member that joins later, at its first request
    sent = [f"{number}" for number in range(1_000)]
    await api.publish(*sent)
    reply = await api.receive("a", max_messages=20)
    assert (bodies(reply), reply["available"]) == (sent[:20], 980)
    described = await api.queue()
    assert (described["in_flight"], described["available"]) == (20, 980)
    reply = await api.receive("b", max_messages=1_000)
    assert (bodies(reply), reply["available"]) == (sent[20:], 0)


async def test_settling_delivers_no_other_messages(api: GroupApi) -> None:
    # A19
    await api.publish("a", "b", "c")
    reply = await api.receive(max_messages=2)
    await api.settle("ack", reply)
    described: Any = await api.queue()
    assert (described["in_flight"], described["available"]) == (0, 1)


async def test_a_receive_settles_first_and_uses_the_room_of_that(api: GroupApi) -> None:
    # F14
    await api.group(max_in_flight=1, backoff_ms=[], dead_letter_topic="orders.dead")
    await api.publish("a", "b", "c", "d")
    reply = await api.receive()
    requests = 1
    for expected in ("b", "c", "d"):
        settle = [{"verb": "ack", "receipts": receipts_of(reply)}]
        reply = await api.receive(settle=settle)
        requests += 1
        assert bodies(reply) == [expected]
        assert reply["outcomes"] == [{"results": [{"status": "done"}]}]
    assert requests == 4  # with requests of their own, the three acknowledgements make it 7
    assert (await api.queue())["floor"] == 3
    nothing = await api.receive(settle=[])
    assert (nothing["messages"], nothing["outcomes"]) == ([], [])
    assert "outcomes" not in await api.receive()


async def test_a_receive_has_the_outcome_of_each_receipt(api: GroupApi) -> None:
    # F14
    await api.group(backoff_ms=[], dead_letter_topic="orders.dead")
    await api.publish("a", "b", "c", "d", "e")
    a, b, c, d, e = receipts_of(await api.receive("m"))
    later = {"verb": "nack", "receipts": [d], "delay_ms": 60_000}
    settle = [
        {"verb": "ack", "receipts": [b, "no receipt"], "cumulative": True},
        {"verb": "release", "receipts": [a, c]},
        later,
        {"verb": "reject", "receipts": [e]},
        {"verb": "ack", "receipts": []},
    ]
    reply = await api.receive("n", settle=settle)
    statuses = [[each["status"] for each in one["results"]] for one in reply["outcomes"]]
    assert statuses == [["done", "invalid"], ["stale", "done"], ["done"], ["done"], []]
    assert bodies(reply) == ["c"]
    again = await api.receive("n", settle=[later])
    assert again["outcomes"] == [{"results": [{"status": "done"}]}]
    assert await api.settle("ack", a, b, *receipts_of(reply)) == ["done"] * 3

    async def is_dead() -> bool:
        return bool((await api.queue())["dead"] == 1)

    await until(is_dead)


async def test_a_receive_that_is_refused_settles_nothing(api: GroupApi) -> None:
    await api.publish("a")
    settle = [{"verb": "ack", "receipts": receipts_of(await api.receive())}]
    body = {"member": "m", "settle": settle, "lease_ms": 1 << 40}
    refused = await api.refused("POST", "/v1/groups/g/receive", body)
    assert refused == (400, "limit-exceeded")
    assert (await api.queue())["in_flight"] == 1
    headers = {"Accept": "application/x-ndjson"}
    async with api.session.post(
        "/v1/groups/g/receive", json={"member": "m", "settle": settle}, headers=headers
    ) as response:
        assert response.status == 400
    assert (await api.queue())["in_flight"] == 1


def receipts_of(reply: Any) -> list[str]:
    return [each["receipt"] for each in reply["messages"]]


async def test_every_reply_has_the_number_of_available_messages(api: GroupApi) -> None:
    # A39, A35
    assert (await api.receive())["available"] == 0
    await api.publish(*(f"{number}" for number in range(5)))
    assert (await api.receive(max_messages=1))["available"] == 4
    assert (await api.receive(max_messages=2))["available"] == 2
    assert (await api.receive(max_messages=2))["available"] == 0


async def test_a_later_group_reads_earlier_messages(api: GroupApi) -> None:
    # Q8
    await api.publish("early")
    assert bodies(await api.receive("late")) == ["early"]
