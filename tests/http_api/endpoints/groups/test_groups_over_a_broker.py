"""What HTTP adds to groups with leases, over the real broker. tests/groups has their behaviour."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.http_api.endpoints.leases import deliver_at_once
from holdfast.http_api.wire.reply import Reply
from tests.support.servers.group_api import GroupApi, bodies, serving_groups, until


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[GroupApi]:
    """Yield a broker with the topic "orders" of one queue and the group "g" on it."""
    async with serving_groups(tmp_path / "data") as api:
        await api.topic()
        await api.group(backoff_ms=[])
        yield api


# -- receiving and acknowledging -----------------------------------------------------------


async def test_acknowledged_messages_are_not_delivered_again(api: GroupApi) -> None:
    await api.publish("a", "b", "c", key="k", tag="t")
    reply = await api.receive(max_messages=2)
    assert (bodies(reply), reply["available"], reply["active"]) == (["a", "b"], 1, True)
    first = reply["messages"][0]
    assert (first["topic"], first["queue"], first["offset"]) == ("orders", 0, 0)
    assert (first["key"], first["tag"], first["attempt"]) == ("k", "t", 1)
    assert first["redelivered"] is False
    assert await api.settle("ack", reply) == ["done", "done"]
    assert bodies(await api.receive()) == ["c"]
    assert await api.receive() == {"messages": [], "available": 0, "active": True}
    queue = await api.queue()
    assert (queue["floor"], queue["next"], queue["in_flight"], queue["lag_messages"]) == (
        2, 3, 1, 1,
    )  # fmt: skip
    assert queue["served"]["count"] == 3
    for name, value in (
        ("groups", 1),
        ("group_waiting", 0),
        ("group_in_flight", 1),
        ("group_delivered_total", 3),
        ('group_settled_total{status="done",verb="ack"}', 2),
        ('messages_out_total{topic="orders"}', 3),
    ):
        assert await api.metric(f"holdfast_{name}") == value, name
    await api.publish("d")
    (settled,) = (await api.receive(settled=True))["messages"]
    assert (settled["body"], settled["receipt"]) == ("d", None)
    assert (await api.queue())["in_flight"] == 1


async def test_an_exclusive_group_and_a_second_member_exclude_each_other(api: GroupApi) -> None:
    # T29: refused in both orders, until the holder has left or was silent for its time to live
    await api.publish("a", "b")
    held = await api.receive("first", max_messages=1, lease_ms=60_000)
    change = {"topics": {"orders": {}}, "mode": "exclusive", "member_ttl_ms": 5_000}
    assert await api.refused("PUT", "/v1/groups/g", change) == (409, "group-busy")
    assert await api.settle("release", held) == ["done"]
    await api.ask("PUT", "/v1/groups/g", change)
    held = await api.receive("second", max_messages=1, lease_ms=10_000)
    asked = {"member": "first"}
    exclusive = (409, "group-exclusive")
    assert await api.refused("POST", "/v1/groups/g/receive", asked) == exclusive
    api.later(12.0)  # the lease has ended, and the member is silent for less than its time to live
    assert await api.refused("POST", "/v1/groups/g/receive", asked) == exclusive
    api.later(5.0)
    reply = await api.receive("first", max_messages=0)
    assert (reply["active"], reply["available"]) == (True, 2)
    assert await api.settle("ack", held) == ["stale"]
    assert bodies(await api.receive("first")) == ["a", "b"]
    refused = await api.refused("POST", "/v1/groups/g/receive", {"member": "second"})
    assert refused == exclusive


async def test_filters_of_the_group_and_of_a_member(api: GroupApi) -> None:
    await api.group("tags", {"orders": {"filter": "new,paid"}})
    await api.group("sql", {"orders": {"filter": "n > 1"}})
    for n, tag in enumerate(("new", "old", "paid", "new")):
        await api.publish(f"{n}", tag=tag, properties={"n": f"{n}"})
    assert bodies(await api.receive(group="tags")) == ["0", "2", "3"]
    assert bodies(await api.receive(group="sql")) == ["2", "3"]
    assert bodies(await api.receive(filter="old")) == ["1"]
    assert bodies(await api.receive()) == ["0", "2", "3"]


@pytest.mark.parametrize(
    ("method", "path", "body", "answer"),
    [
        ("PUT", "bad", {"topics": {"orders": {"filter": "n >"}}}, (400, "invalid-filter")),
        ("POST", "g/receive", {"filter": "n ="}, (400, "invalid-filter")),
        ("POST", "g/receive", {"topics": ["nothing"]}, (404, "unknown-topic")),
        (
            "POST",
            "g/receive",
            {"limits": [{"topic": "nothing", "queue": 0, "max_messages": 1}]},
            (404, "unknown-topic"),
        ),
        (
            "POST",
            "g/receive",
            {"limits": [{"topic": "orders", "queue": 1, "max_messages": 1}]},
            (404, "unknown-queue"),
        ),
    ],
)
async def test_filters_and_names_that_the_group_refuses_are_problems(
    api: GroupApi, method: str, path: str, body: object, answer: tuple[int, str]
) -> None:
    assert await api.refused(method, f"/v1/groups/{path}", body) == answer


# -- waiting -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["release", "nack", "leave", "expiry", "seek"])
async def test_a_returned_message_wakes_a_waiting_member(api: GroupApi, how: str) -> None:
    await api.publish("x")
    reply = await api.receive("a", lease_ms=20_000)
    waiting = await api.wait_to_receive("b")
    if how == "leave":
        left = await api.ask("POST", "/v1/groups/g/leave", {"member": "a"})
        assert left == {"group": "g", "member": "a"}
    elif how == "expiry":
        api.later(20.0)
    elif how == "seek":
        moved = await api.ask("POST", "/v1/groups/g/seek", {"to": {"orders": {"0": 0}}})
        assert moved == {"group": "g", "offsets": {"orders": {"0": 0}}}
    else:
        await api.settle(how, reply)
    assert bodies(await waiting) == ["x"]
    assert await api.metric("holdfast_group_expired_leases_total") == (how == "expiry")
    assert await api.metric("holdfast_scan_rescues_total") == 0


def request(body: bytes) -> bytes:
    lines = (
        "POST /v1/groups/g/receive HTTP/1.1",
        "Host: localhost",
        f"Content-Length: {len(body)}",
    )
    head = "\r\n".join([*lines, "", ""])
    return head.encode() + body


async def gone(api: GroupApi, count: int = 1, **more: int) -> list[socket.socket]:
    """Return clients of the member "gone" that wait and can disconnect at once."""
    ask = {"member": "gone", "wait_ms": 60_000, **more}
    clients = []
    for _ in range(count):
        client = socket.create_connection(("127.0.0.1", int(api.broker.url.rpartition(":")[2])))
        client.sendall(request(json.dumps(ask).encode()))
        clients.append(client)
    await api.held(count)
    return clients


async def is_dead(api: GroupApi, count: int) -> bool:
    return bool((await api.queue())["dead"] == count)


async def test_nothing_is_leased_to_a_disconnected_client(api: GroupApi) -> None:
    # L17, T24
    (client,) = await gone(api)
    client.close()
    await api.held(0)
    waiting = await api.wait_to_receive("other")
    await api.publish("x")
    reply = await asyncio.wait_for(waiting, 10)
    assert [(each["body"], each["attempt"]) for each in reply["messages"]] == [("x", 1)]
    assert reply["messages"][0]["redelivered"] is False
    assert await api.metric("holdfast_group_undelivered_total") == 0


async def test_a_disconnect_between_lease_and_reply_returns_the_lease(
    api: GroupApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    # L17, T24
    """Its messages go to another member at once: in their places, and without a counted failure."""
    (client,) = await gone(api, max_messages=2)
    waiting = api.waiting("other", max_messages=2)
    await api.held(2)

    def deliver_behind_it(*what: Any) -> Reply | None:
        client.close()
        return deliver_at_once(*what)

    monkeypatch.setattr("holdfast.http_api.endpoints.leases.deliver_at_once", deliver_behind_it)
    await api.publish("a", "b")
    messages = (await asyncio.wait_for(waiting, 10))["messages"]
    assert await api.metric("holdfast_group_undelivered_total") == 2
    assert [(each["body"], each["redelivered"]) for each in messages] == [("a", True), ("b", True)]
    queue = await api.queue()
    assert (queue["in_flight"], queue["delayed"], queue["dead"]) == (2, 0, 0)
    # Its first failure is counted for the other member: with two failures it would be a dead
    # letter.
    await api.group(max_attempts=2)
    assert await api.settle("nack", messages[0]) == ["done"]
    again = await api.receive("third")
    assert bodies(again) == ["a"]
    assert await api.settle("nack", again) == ["done"]
    await until(lambda: is_dead(api, 1))


async def test_a_hundred_disconnects_during_an_arrival_delay_nothing(
    api: GroupApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    # L17
    """All of them have disconnected when the first reply is made, and the broker has no notice
    yet."""
    clients = await gone(api, 100, max_messages=100)

    def deliver_behind_them(*what: Any) -> Reply | None:
        while clients:
            clients.pop().close()
        return deliver_at_once(*what)

    monkeypatch.setattr("holdfast.http_api.endpoints.leases.deliver_at_once", deliver_behind_them)
    await api.publish(*map(str, range(100)))
    reply = await asyncio.wait_for(api.waiting("other", max_messages=100), 10)
    assert bodies(reply) == list(map(str, range(100)))
    # A few of them got messages before the loop noticed, but not all of them one after another.
    assert await api.metric("holdfast_group_undelivered_total") <= 1000


async def is_unsent(api: GroupApi) -> bool:
    return await api.metric("holdfast_http_unsent_bytes") > 0


async def test_an_undelivered_reply_gives_its_leases_back(tmp_path: Path) -> None:
    # L17
    """The reply is larger than the system's buffer, and its client disconnects."""
    flags = {"http_api.send_buffer_bytes": "32KiB"}
    async with serving_groups(tmp_path / "data", flags) as api:
        await api.topic()
        await api.group()
        await api.publish("x" * 500_000)
        port = int(api.broker.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.sendall(request(b'{"member":"gone"}'))
            await until(lambda: is_unsent(api))
            assert (await api.queue())["in_flight"] == 1
            waiting = await api.wait_to_receive("other")
        reply = await waiting
        assert [each["redelivered"] for each in reply["messages"]] == [True]
        assert (await api.queue())["delayed"] == 0
        assert await api.metric("holdfast_group_undelivered_total") == 1


async def test_a_stop_answers_waiting_members(tmp_path: Path) -> None:
    async with serving_groups(tmp_path / "data") as api:
        await api.topic()
        await api.group()
        path, waits = "/v1/groups/g/receive", {"wait_ms": 60_000}
        waiting = [
            asyncio.create_task(api.session.post(path, json={"member": member, **waits}))
            for member in "ab"
        ]
        await api.held(2)
        stopping = asyncio.create_task(api.broker.stop())
        async with asyncio.timeout(10):
            # H7: the answer is that of a held pull; a client would repeat the request after an
            # empty 200
            for answer in [await each for each in waiting]:
                problem = await answer.json(content_type="application/problem+json")
                assert (answer.status, problem["type"]) == (503, "/problems/draining")
                assert answer.headers["Retry-After"]
                assert answer.headers["Connection"] == "close"
        await stopping


# -- moving, describing, deleting ----------------------------------------------------------


async def test_a_reset_of_stored_offsets_moves_a_group_with_leases(api: GroupApi) -> None:
    path = "/v1/groups/g/topics/orders/offsets"
    await api.publish("a", "b", "c")
    await api.settle("ack", await api.receive(max_messages=1))
    for dry_run in (True, False):
        body = {"to": "earliest", "dry_run": dry_run}
        reset = await api.ask("POST", f"{path}/reset", body)
        assert (reset["before"], reset["after"]) == ({"0": 1}, {"0": 0})
        assert (await api.ask("GET", path))["offsets"] == {"0": int(dry_run)}
    assert bodies(await api.receive()) == ["a", "b", "c"]


async def test_deleting_a_group_answers_waiting_members(api: GroupApi) -> None:
    await api.publish("a")
    reply = await api.receive()
    body = {"member": "m", "wait_ms": 60_000}
    waiting = asyncio.create_task(api.refused("POST", "/v1/groups/g/receive", body))
    await api.held(1)
    assert await api.ask("DELETE", "/v1/groups/g?confirm=g") == {"group": "g"}
    async with asyncio.timeout(10):
        assert await waiting == (404, "unknown-group")
    assert await api.refused("GET", "/v1/groups/g") == (404, "unknown-group")
    await api.group()
    assert await api.settle("ack", reply) == ["invalid"], "a new group has other receipts"
    assert bodies(await api.receive()) == ["a"]


async def test_a_description_has_every_queue(api: GroupApi) -> None:
    await api.topic("wide", queues=3)
    await api.group("d", {"wide": {"weight": 7}, "orders": {}})
    for queue in range(3):
        await api.publish(*(f"{n}" for n in range(queue + 1)), topic="wide", queue=queue)
    await api.receive("m1", group="d", max_messages=2)
    found = await api.describe("d")
    wide = found["topics"][1]
    assert (wide["topic"], found["config"]["topics"]["wide"]["weight"]) == ("wide", 7)
    assert sum(each["in_flight"] for each in wide["queues"]) == found["in_flight"] == 2
    assert wide["lag_messages"] == found["lag_messages"] == 6
    assert wide["available"] == found["available"] == 4
    assert found["members"] == [{"member": "m1", "in_flight": 2, "waiting": 0, "active": True}]
    assert (found["waiting"], found["dying"]) == (0, 0)
    first = wide["queues"][0]
    assert first.pop("lag_bytes") > 0
    assert first.pop("lag_seconds") >= 0
    assert first.pop("served").keys() == {"count", "bytes", "rate"}
    assert first == {
        "queue": 0, "offset": 0, "floor": 0, "next": 1, "min_offset": 0, "max_offset": 1,
        "lag_messages": 1, "available": 0, "in_flight": 1, "delayed": 0, "dead": 0, "expired": 0,
        "lost": 0,
    }  # fmt: skip


def damage(data_dir: Path, body: str) -> None:
    """Change one byte of a stored message."""
    for segment in (data_dir / "commitlog").iterdir():
        image = bytearray(segment.read_bytes())
        at = image.find(body.encode())
        if at >= 0:
            image[at] ^= 1
            segment.write_bytes(image)
            return
    raise AssertionError(f"{body} is not stored")


@pytest.mark.parametrize("mode", ["competing", "keyed"])
async def test_a_group_skips_damaged_messages_and_counts_them(tmp_path: Path, mode: str) -> None:
    async with serving_groups(tmp_path / "data") as api:
        await api.topic()
        await api.group(mode=mode)
        for body in ("first", "broken-1", "broken-2", "last"):
            await api.publish(body, key=body)
        held = await api.receive(max_messages=1)
        assert bodies(held) == ["first"]
    for body in ("broken-1", "broken-2"):
        damage(tmp_path / "data", body)
    async with serving_groups(tmp_path / "data") as api:
        reply = await api.receive(wait_ms=10_000)
        assert bodies(reply) == ["last"]
        assert await api.settle("ack", held, reply) == ["done", "done"]
        queue = await api.queue()
        assert (queue["floor"], queue["lost"], queue["lag_messages"]) == (4, 2, 0)
        ready = await api.ask("GET", "/readyz")
        assert "lost its messages from offset 1 to 3" in ready["degraded"][0]["detail"]
        await api.publish("next")
        assert bodies(await api.receive()) == ["next"]
    async with serving_groups(tmp_path / "data") as api:
        assert (await api.queue())["lost"] == 2


@pytest.mark.parametrize("filter", [None, "wanted"])
async def test_a_message_damaged_while_leased_is_lost_when_it_returns(
    tmp_path: Path, filter: str | None
) -> None:
    """This also holds for a member with a filter, which cannot be evaluated for it any more."""
    async with serving_groups(tmp_path / "data") as api:
        await api.topic()
        await api.group(backoff_ms=[])
        for body in ("broken", "last"):
            await api.publish(body, tag="wanted")
        held = await api.receive()
    damage(tmp_path / "data", "broken")
    async with serving_groups(tmp_path / "data") as api:
        assert await api.settle("nack", held) == ["done", "done"]
        reply = await api.receive(wait_ms=10_000, filter=filter)
        assert bodies(reply) == ["last"]
        assert await api.settle("ack", reply) == ["done"]
        assert bodies(await api.receive()) == []
        queue = await api.queue()
        assert (queue["floor"], queue["lost"]) == (2, 1)


async def test_a_receive_may_limit_queues_and_keys(api: GroupApi) -> None:
    # C1: a member that is slow with one queue or key receives messages of the others
    await api.topic("many", queues=2)
    await api.group("k", {"many": {}}, mode="keyed")
    for number in range(3):
        for queue in range(2):
            for key in "ab":
                text = f"{queue}{key}{number}"
                await api.publish(text, topic="many", queue=queue, key=f"{key}{queue}")
    limits = [
        {"topic": "many", "queue": 0, "max_messages": 0},
        {"topic": "many", "key": "a1", "max_messages": 1},
    ]
    reply = await api.receive(group="k", limits=limits)
    assert bodies(reply) == ["1a0", "1b0", "1b1", "1b2"]
    assert reply["available"] == 8
    waiting = await api.wait_to_receive(
        group="k", limits=[*limits[:1], {**limits[1], "max_messages": 0}]
    )
    assert bodies(await api.receive(group="k", limits=limits[:1])) == ["1a1", "1a2"]
    assert len(bodies(await api.receive(group="k"))) == 6
    await api.publish("1b3", topic="many", queue=1, key="b1")
    assert bodies(await waiting) == ["1b3"]
