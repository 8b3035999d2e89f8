"""Every row of the API's table of groups, over the real broker."""

import asyncio
import json
import socket
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.http_api.endpoints.leases import deliver_received
from holdfast.http_api.wire.reply import Reply
from tests.support.group_api import GroupApi, bodies, serving_groups, until
from tests.support.raw_http import raw_connection


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
    assert bodies(await api.receive()) == []
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


async def test_a_request_may_repeat_a_receipt(api: GroupApi) -> None:
    await api.publish("a")
    (message,) = (await api.receive())["messages"]
    assert await api.settle("ack", message, message) == ["done", "done"]


def forged(receipt: str, at: int) -> str:
    data = bytearray(urlsafe_b64decode(receipt + "=" * (-len(receipt) % 4)))
    data[at] ^= 1
    return urlsafe_b64encode(bytes(data)).rstrip(b"=").decode()


async def test_other_texts_and_receipts_are_invalid(api: GroupApi) -> None:
    await api.topic("other")
    await api.group("h", {"other": {}})
    await api.publish("a")
    await api.publish("b", topic="other")
    (message,) = (await api.receive())["messages"]
    receipt = message["receipt"]
    (others,) = (await api.receive(group="h"))["messages"]
    wrong = [
        "",
        "x",
        "é",
        "x" * 10_000,
        receipt[:-1],
        receipt + "A",
        receipt + "=",
        receipt[1:],
        *(forged(receipt, at) for at in (0, 1, 5, 12, 20, 28, 40, -1)),
        others["receipt"],
    ]
    assert await api.settle("ack", *wrong) == ["invalid"] * len(wrong)
    mixed = await api.settle("ack", wrong[0], receipt, others["receipt"])
    assert mixed == ["invalid", "done", "invalid"]
    assert (await api.queue(group="h"))["in_flight"] == 1


async def test_a_cumulative_ack_settles_earlier_messages_of_the_member(api: GroupApi) -> None:
    await api.publish(*map(str, range(6)))
    first = (await api.receive("a", max_messages=2))["messages"]
    second = (await api.receive("b", max_messages=2))["messages"]
    third = (await api.receive("a", max_messages=2))["messages"]
    assert await api.settle("ack", third[0], cumulative=True) == ["done"]
    queue = await api.queue()
    assert (queue["floor"], queue["in_flight"]) == (2, 3)
    assert await api.settle("ack", *first) == ["done", "done"]
    assert await api.settle("ack", *second, third[1]) == ["done"] * 3
    assert (await api.queue())["floor"] == 6


# -- giving back ---------------------------------------------------------------------------


async def test_failed_messages_are_redelivered_in_order_and_counted(api: GroupApi) -> None:
    await api.publish("a", "b", "c")
    messages = (await api.receive(max_messages=2))["messages"]
    assert await api.settle("nack", messages[1], delay_ms=0) == ["done"]
    assert await api.settle("nack", messages[0], delay_ms=0) == ["done"]
    again = (await api.receive())["messages"]
    assert [each["body"] for each in again] == ["a", "b", "c"]
    assert [each["attempt"] for each in again] == [2, 2, 1]
    assert [each["redelivered"] for each in again] == [True, True, False]
    assert await api.settle("ack", messages[0]) == ["stale"]


async def test_a_failed_message_is_delayed(api: GroupApi) -> None:
    await api.publish("a", "b")
    first, second = (await api.receive())["messages"]
    await api.settle("nack", second, delay_ms=60_000)
    assert (await api.queue())["delayed"] == 1
    assert bodies(await api.receive()) == []
    began = time.monotonic()
    await api.settle("nack", first, delay_ms=300)
    again = await api.receive(wait_ms=10_000)
    assert bodies(again) == ["a"]
    assert time.monotonic() - began >= 0.3
    assert (await api.queue())["delayed"] == 1


async def test_leases_are_extended_and_expire(api: GroupApi) -> None:
    await api.publish("a", "b")
    first, second = (await api.receive(lease_ms=20_000))["messages"]
    assert await api.settle("extend", first, lease_ms=60_000) == ["done"]
    api.later(20.0)
    again = await api.receive("other", wait_ms=10_000)
    assert bodies(again) == ["b"]
    assert again["messages"][0]["redelivered"] is True
    assert await api.settle("ack", first) == ["done"]
    assert await api.settle("ack", second) == ["stale"]
    assert await api.settle("extend", second) == ["stale"]
    assert await api.metric("holdfast_group_expired_leases_total") == 1


# -- other ways to receive -----------------------------------------------------------------


async def test_messages_that_are_received_settled_have_no_receipt(api: GroupApi) -> None:
    await api.publish("a", "b")
    reply = await api.receive(settled=True, max_messages=1)
    assert [each["receipt"] for each in reply["messages"]] == [None]
    queue = await api.queue()
    assert (queue["floor"], queue["in_flight"]) == (1, 0)
    assert bodies(await api.receive()) == ["b"]


@pytest.mark.parametrize("count", [0, 3, 500])
async def test_a_request_for_no_messages_gets_their_exact_number(
    api: GroupApi, count: int
) -> None:  # A36
    if count:
        await api.publish(*map(str, range(count)))
    reply = await api.receive(max_messages=0, wait_ms=60_000)
    assert (bodies(reply), reply["available"]) == ([], count)


async def test_filters_of_the_group_and_of_a_member(api: GroupApi) -> None:
    await api.group("tags", {"orders": {"filter": "new,paid"}})
    await api.group("sql", {"orders": {"filter": "n > 1"}})
    for n, tag in enumerate(("new", "old", "paid", "new")):
        await api.publish(f"{n}", tag=tag, properties={"n": f"{n}"})
    assert bodies(await api.receive(group="tags")) == ["0", "2", "3"]
    assert bodies(await api.receive(group="sql")) == ["2", "3"]
    assert bodies(await api.receive(filter="old")) == ["1"]
    assert bodies(await api.receive()) == ["0", "2", "3"]
    settings = {"topics": {"orders": {"filter": "n >"}}}
    assert await api.refused("PUT", "/v1/groups/bad", settings) == (400, "invalid-filter")
    body = {"member": "m", "filter": "n ="}
    assert await api.refused("POST", "/v1/groups/g/receive", body) == (400, "invalid-filter")


async def test_topics_share_by_weight_and_a_member_may_select_topics(api: GroupApi) -> None:
    await api.topic("low")
    await api.topic("high")
    await api.group("w", {"low": {"weight": 1}, "high": {"weight": 3}})
    for topic in ("low", "high"):
        await api.publish(*(f"{topic}" for _ in range(100)), topic=topic)
    got = bodies(await api.receive(group="w", max_messages=40))
    assert got.count("high") == 30
    assert bodies(await api.receive(group="w", topics=["low"], max_messages=5)) == ["low"] * 5
    body = {"member": "m", "topics": ["orders"]}
    assert await api.refused("POST", "/v1/groups/w/receive", body) == (404, "unknown-topic")


# -- waiting -------------------------------------------------------------------------------


async def test_an_arrival_wakes_one_waiting_member(api: GroupApi) -> None:
    waiting = [api.waiting(name) for name in ("a", "b", "c")]
    await api.held(3)
    await api.publish("x")
    done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert [bodies(each.result()) for each in done] == [["x"]]
    await api.held(2)
    await api.publish("y", "z")
    rest = await asyncio.wait_for(next(asyncio.as_completed(pending)), 10)
    assert bodies(rest)[0] == "y"
    for each in pending:
        each.cancel()


@pytest.mark.parametrize("how", ["release", "nack", "leave", "expiry"])
async def test_a_returned_message_wakes_a_waiting_member(api: GroupApi, how: str) -> None:
    await api.publish("x")
    reply = await api.receive("a", lease_ms=20_000)
    waiting = await api.wait_to_receive("b")
    if how == "leave":
        await api.ask("POST", "/v1/groups/g/leave", {"member": "a"})
    elif how == "expiry":
        api.later(20.0)
    else:
        await api.settle(how, reply)
    assert bodies(await waiting) == ["x"]
    assert await api.metric("holdfast_scan_rescues_total") == 0


async def test_a_wait_without_messages_ends_in_time(api: GroupApi) -> None:
    began = time.monotonic()
    assert (await api.receive(wait_ms=200)) == {"messages": [], "available": 0, "active": True}
    assert time.monotonic() - began >= 0.19


def request(body: bytes) -> bytes:
    lines = (
        "POST /v1/groups/g/receive HTTP/1.1",
        "Host: localhost",
        f"Content-Length: {len(body)}",
    )
    head = "\r\n".join([*lines, "", ""])
    return head.encode() + body


async def test_a_disconnected_client_stops_waiting(api: GroupApi) -> None:
    port = int(api.broker.url.rpartition(":")[2])
    async with raw_connection(port) as one:
        await one.send(request(b'{"member":"gone","wait_ms":60000}'))
        await api.held(1)
    await api.held(0)
    await api.publish("x")
    assert bodies(await api.receive("other")) == ["x"]


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

    async def deliver_behind_it(*what: Any) -> Reply:
        client.close()
        return await deliver_received(*what)

    monkeypatch.setattr("holdfast.http_api.endpoints.leases.deliver_received", deliver_behind_it)
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

    async def deliver_behind_them(*what: Any) -> Reply:
        while clients:
            clients.pop().close()
        return await deliver_received(*what)

    monkeypatch.setattr("holdfast.http_api.endpoints.leases.deliver_received", deliver_behind_them)
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


# -- modes ---------------------------------------------------------------------------------


async def test_an_exclusive_group_has_one_member_until_it_leaves(api: GroupApi) -> None:
    await api.group("x", mode="exclusive")
    await api.publish("a")
    reply = await api.receive("first", group="x")
    assert bodies(reply) == ["a"]
    body = {"member": "second", "wait_ms": 1000}
    assert await api.refused("POST", "/v1/groups/x/receive", body) == (409, "group-exclusive")
    left = await api.ask("POST", "/v1/groups/x/leave", {"member": "first"})
    assert left == {"group": "x", "member": "first"}
    assert bodies(await api.receive("second", group="x")) == ["a"]
    assert await api.settle("ack", reply, group="x") == ["stale"]


async def test_a_single_active_group_hands_over_with_a_notice(api: GroupApi) -> None:
    await api.group("s", mode="single_active")
    await api.publish("a", "b")
    first = await api.receive("first", group="s", max_messages=1)
    assert (bodies(first), first["active"]) == (["a"], True)
    second = await api.receive("second", group="s")
    assert second == {"messages": [], "available": second["available"], "active": False}
    waiting = await api.wait_to_receive("second", group="s")
    members = {each["member"]: each for each in (await api.describe("s"))["members"]}
    assert (members["first"]["active"], members["second"]["active"]) == (True, False)
    await api.ask("POST", "/v1/groups/s/leave", {"member": "first"})
    notice = await waiting
    assert (bodies(notice), notice["active"], notice["notice"]) == ([], True, True)
    assert bodies(await api.receive("second", group="s")) == ["a", "b"]
    assert await api.settle("ack", first, group="s") == ["stale"]


# -- moving, describing, deleting ----------------------------------------------------------


async def test_a_seek_makes_old_receipts_stale(api: GroupApi) -> None:
    await api.publish("a", "b", "c")
    reply = await api.receive()
    await api.settle("ack", reply["messages"][0])
    moved = await api.ask("POST", "/v1/groups/g/seek", {"to": {"orders": {"0": 1}}})
    assert moved == {"group": "g", "offsets": {"orders": {"0": 1}}}
    assert await api.settle("ack", reply["messages"][1]) == ["stale"]
    assert bodies(await api.receive()) == ["b", "c"]
    for to, left in (("latest", []), ("earliest", ["a", "b", "c"]), (0, ["a", "b", "c"])):
        await api.ask("POST", "/v1/groups/g/seek", {"to": to})
        assert bodies(await api.receive()) == left


async def test_a_seek_wakes_a_waiting_member(api: GroupApi) -> None:
    await api.publish("a")
    await api.settle("ack", await api.receive())
    waiting = await api.wait_to_receive()
    await api.ask("POST", "/v1/groups/g/seek", {"to": "earliest"})
    assert bodies(await waiting) == ["a"]


async def test_the_stored_offsets_of_a_group_are_its_floors(api: GroupApi) -> None:
    path = "/v1/groups/g/topics/orders/offsets"
    await api.publish("a", "b", "c")
    await api.settle("ack", (await api.receive(max_messages=2)))
    assert (await api.ask("GET", path))["offsets"] == {"0": 2}
    assert (await api.ask("PUT", path, {"offsets": {"0": 1}}))["offsets"] == {"0": 1}
    assert bodies(await api.receive()) == ["b", "c"]
    for dry_run in (True, False):
        body = {"to": "earliest", "dry_run": dry_run}
        reset = await api.ask("POST", f"{path}/reset", body)
        assert (reset["before"], reset["after"]) == ({"0": 1}, {"0": 0})
        assert (await api.ask("GET", path))["offsets"] == {"0": int(dry_run)}
    assert bodies(await api.receive()) == ["a", "b", "c"]


async def test_a_group_continues_from_its_stored_offsets(api: GroupApi) -> None:
    await api.publish("a", "b", "c")
    await api.ask("PUT", "/v1/groups/p/topics/orders/offsets", {"offsets": {"0": 2}})
    body = {"member": "m"}
    assert await api.refused("POST", "/v1/groups/p/receive", body) == (409, "group-without-leases")
    await api.group("p")
    assert bodies(await api.receive(group="p")) == ["c"]
    listed = (await api.ask("GET", "/v1/groups"))["groups"]
    assert [(each["group"], each["mode"]) for each in listed] == [
        ("g", "competing"),
        ("p", "competing"),
    ]


async def test_a_group_starts_at_the_given_end(api: GroupApi) -> None:
    await api.publish("a")
    await api.group("late", start="latest")
    await api.publish("b")
    assert bodies(await api.receive(group="late")) == ["b"]
    assert bodies(await api.receive()) == ["a", "b"]


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


@pytest.mark.parametrize(
    ("limit", "problem"),
    [
        ({"topic": "nothing", "queue": 0}, "unknown-topic"),
        ({"topic": "orders", "queue": 1}, "unknown-queue"),
    ],
)
async def test_a_limit_names_a_queue_of_the_group(
    api: GroupApi, limit: dict[str, Any], problem: str
) -> None:
    body = {"member": "m", "limits": [{**limit, "max_messages": 1}]}
    assert await api.refused("POST", "/v1/groups/g/receive", body) == (404, problem)
