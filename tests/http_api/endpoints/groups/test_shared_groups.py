"""Groups with leases over HTTP: the calls to the groups, and the rendering of their answers.

Some answers of the groups are scripted (tests/support/servers/recorded_groups.py). The behaviour of
groups is tested in tests/groups, and over HTTP in test_groups_over_a_broker.py.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_check import LimitExceeded
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.consumequeue.errors import StateFull, StateUnavailable
from holdfast.groups.config import BACKOFF_MS
from holdfast.groups.errors import ExclusiveHeld, FilterNotAllowed, GroupBusy, InvalidGroup
from holdfast.groups.service_types import Received, RedriveOptions, RedriveResult, UnitLimit, Verb
from holdfast.groups.settings import GroupSettings, Subscription
from holdfast.holdservice.errors import HoldLimitExceeded
from holdfast.http_api.access.audit import AuditFile, AuditLog
from holdfast.http_api.endpoints import leases
from holdfast.http_api.endpoints.leases import BATCH_MESSAGES
from holdfast.http_api.endpoints.rendering import (
    JSON_GROWTH,
    MAX_BYTES_WITHOUT_SLOT,
    YIELD_EVERY_MESSAGES,
)
from tests.support.clients.raw_http import raw_connection
from tests.support.clients.tokens import access_of, bearer, make_token
from tests.support.event_loop.calls_a_turn import calls_a_turn
from tests.support.event_loop.loop_clock import LoopClock
from tests.support.servers.api_server import Answer, Api
from tests.support.servers.recorded_groups import deliveries_of
from tests.support.storage.stored import until

G = "/v1/groups/g"


@pytest.fixture
async def group(api: Api) -> Api:
    """Create the topics "orders" (two queues) and "refunds" (one), and the group "g" on both."""
    await api.store.topics.create("refunds", queues=1)
    await api.groups.put_group(
        "g", GroupSettings({"orders": Subscription(4), "refunds": Subscription()})
    )
    return api


async def post(api: Api, verb: str, body: object, **headers: str) -> Answer:
    return await api.send_json("POST", f"{G}/{verb}", body, **headers)


async def stored(api: Api, topic: str, queue: int, *bodies: str) -> Batch:
    """Publish messages as one batch and return it."""
    messages = [{"body": body, "queue": queue, "key": f"k-{body}"} for body in bodies]
    answer = await api.publish(topic, *messages)
    offset = answer.json()["results"][0]["offset"]
    fetched = await api.store.reading.read(
        api.store.table.get(topic), queue, offset, max_messages=100, max_bytes=1 << 20
    )
    return fetched.slices[0].batch


# -- settings ------------------------------------------------------------------------------


async def test_a_new_group_has_the_defaults(api: Api) -> None:
    answer = await api.send_json("PUT", G, {"topics": {"orders": {}}})
    assert answer.status == 201
    assert answer.json()["config"] == {
        "topics": {"orders": {"weight": 1, "filter": None}},
        "fairness": {"engine": "sfq", "cost": "count"},
        "mode": "competing",
        "start": "earliest",
        "lease_ms": 30_000,
        "max_in_flight": 1000,
        "max_in_flight_per_member": 1000,
        "max_in_flight_per_key": 32,
        "max_attempts": 16,
        "backoff_ms": list(BACKOFF_MS),
        "dead_letter_topic": None,
        "strict_leases": False,
        "member_ttl_ms": 30_000,
        "auto_delete_after_ms": 0,
        "last_value": False,
    }


EVERYTHING = {
    "topics": {"orders": {"weight": 0, "filter": "a,b"}},
    "fairness": {"engine": "dwrr", "cost": "time"},
    "mode": "keyed",
    "start": "latest",
    "lease_ms": 5_000,
    "max_in_flight": 10,
    "max_in_flight_per_member": 5,
    "max_in_flight_per_key": 2,
    "max_attempts": 0,
    "backoff_ms": [],
    "dead_letter_topic": "orders.dead",
    "strict_leases": True,
    "member_ttl_ms": 1_000,
    "auto_delete_after_ms": 60_000,
    "last_value": False,
}


@pytest.mark.parametrize("media", ["application/json", "application/msgpack"])
async def test_every_setting_is_stored_and_returned(api: Api, media: str) -> None:
    encode = msgpack.packb if "msgpack" in media else msgspec.json.encode
    answer = await api.ask("PUT", G, encode(EVERYTHING), Content_Type=media)
    assert (answer.status, answer.json()["config"]) == (201, EVERYTHING)


async def test_last_value_needs_the_mode_competing(api: Api) -> None:  # Q24
    answer = await api.send_json("PUT", G, {**EVERYTHING, "last_value": True})
    assert (answer.status, answer.problem) == (422, "invalid-group")
    given = {**EVERYTHING, "last_value": True, "mode": "competing"}
    answer = await api.send_json("PUT", G, given)
    assert (answer.status, answer.json()["config"]) == (201, given)
    answer = await api.send_json("PUT", G, {"mode": "keyed"})
    assert (answer.status, answer.problem) == (422, "invalid-group")


async def test_a_change_keeps_settings_that_are_not_given(api: Api) -> None:
    await api.send_json("PUT", G, EVERYTHING)
    answer = await api.send_json("PUT", G, {"max_in_flight": 99, "fairness": {"cost": "bytes"}})
    assert answer.status == 200
    fairness = {"engine": "dwrr", "cost": "bytes"}
    assert answer.json()["config"] == {**EVERYTHING, "max_in_flight": 99, "fairness": fairness}


async def test_null_removes_the_dead_letter_topic(api: Api) -> None:
    await api.send_json("PUT", G, EVERYTHING)
    answer = await api.send_json("PUT", G, {"dead_letter_topic": None})
    assert answer.json()["config"]["dead_letter_topic"] is None


@pytest.mark.parametrize(
    ("error", "status", "problem"),
    [
        (GroupBusy("g", 3), 409, "group-busy"),
        (InvalidGroup("topics", "take at least one"), 422, "invalid-group"),
        (StateFull("no room"), 507, "disk-full"),
        (StateUnavailable("EIO"), 503, "storage-unavailable"),
    ],
)
async def test_an_impossible_change_is_a_problem(
    group: Api, error: Exception, status: int, problem: str
) -> None:
    group.groups.error = error
    answer = await group.send_json("PUT", G, {"mode": "keyed"})
    assert (answer.status, answer.problem) == (status, problem)


async def test_a_group_without_leases_can_be_deleted(api: Api) -> None:
    await stored(api, "orders", 0, "a")
    path = "/v1/groups/plain/topics/orders/offsets"
    await api.send_json("PUT", path, {"offsets": {"0": 1}})
    assert (await api.ask("DELETE", "/v1/groups/plain?confirm=plain")).status == 200
    assert (await api.get("/v1/groups/plain")).problem == "unknown-group"
    assert (await api.get(path)).problem == "unknown-group"


# -- receiving -----------------------------------------------------------------------------


async def test_messages_have_the_selected_order_and_their_receipts(group: Api) -> None:
    orders = await stored(group, "orders", 1, "a", "b", "c")
    refunds = await stored(group, "refunds", 0, "x", "y")
    of_orders = deliveries_of(group.store.table.get("orders"), orders, [0, 1, 2])
    of_refunds = deliveries_of(
        group.store.table.get("refunds"), refunds, [1], attempt=3, redelivered=True
    )
    chosen = [of_orders[1], of_refunds[0], of_orders[0], of_orders[2]]
    group.groups.answers.append(Received(chosen, available=7))
    answer = await post(group, "receive", {"member": "m1"})
    reply = answer.json()
    assert [each["body"] for each in reply["messages"]] == ["b", "y", "a", "c"]
    assert (reply["available"], reply["active"], "notice" in reply) == (7, True, False)
    first, second = reply["messages"][:2]
    assert (first["attempt"], first["redelivered"], first["receipt"]) == (1, False, "orders-1")
    assert (second["attempt"], second["redelivered"], second["receipt"]) == (3, True, "refunds-1")
    pulled = (await group.get("/v1/topics/orders/queues/1/messages?offset=1")).json()["messages"][0]
    assert {name: first[name] for name in pulled} == pulled
    assert set(first) - set(pulled) == {"receipt", "attempt", "redelivered"}


async def test_every_format_has_the_same_messages(group: Api) -> None:
    batch = await stored(group, "orders", 0, "a", "b")
    chosen = deliveries_of(group.store.table.get("orders"), batch, [0, 1])
    replies = []
    for media in ("application/json", "application/x-ndjson", "application/msgpack"):
        group.groups.answers.append(Received(chosen, available=2, active=True))
        answer = await post(group, "receive", {"member": "m"}, Accept=media)
        assert answer.headers["Content-Type"] == media
        assert answer.headers["Holdfast-Available"] == "2"
        assert answer.headers["Holdfast-Active"] == "true"
        replies.append(answer)
    as_json, lines, packed = replies
    messages = as_json.json()["messages"]
    assert [msgspec.json.decode(line) for line in lines.body.splitlines()] == messages
    unpacked = msgpack.unpackb(packed.body)
    assert unpacked["available"] == 2
    assert unpacked["messages"] == [{**each, "body": each["body"].encode()} for each in messages]


async def test_a_binary_body_is_base64_and_has_its_lease(group: Api) -> None:
    await group.ask("POST", "/v1/topics/orders/messages?queue=0", b"\xff\x00")
    topic = group.store.table.get("orders")
    fetched = await group.store.reading.read(topic, 0, 0, max_messages=1, max_bytes=9)
    chosen = deliveries_of(topic, fetched.slices[0].batch, [0])
    group.groups.answers.append(Received(chosen))
    (message,) = (await post(group, "receive", {})).json()["messages"]
    assert (message["body_base64"], message["receipt"]) == ("/wA=", "orders-0")
    assert "body" not in message


async def test_a_long_reply_in_portions_is_complete(group: Api) -> None:
    count = 1203
    batch = await stored(group, "orders", 0, *map(str, range(count)))
    topic = group.store.table.get("orders")
    rows = [*range(0, count, 2), *range(1, count, 2)]
    chosen = [deliveries_of(topic, batch, [row])[0] for row in rows]
    group.groups.answers.append(Received(chosen))
    reply = await post(group, "receive", {"max_messages": 2000})
    assert [int(each["body"]) for each in reply.json()["messages"]] == rows
    assert [each["receipt"] for each in reply.json()["messages"]] == [f"orders-{r}" for r in rows]


async def test_many_small_batches_take_several_loop_iterations(group: Api) -> None:
    batches = [await stored(group, "orders", 0, str(number)) for number in range(250)]
    topic = group.store.table.get("orders")
    chosen = [deliveries_of(topic, batch, [0])[0] for batch in batches]
    group.groups.answers.append(Received(chosen))
    with calls_a_turn(leases, "make_leased_messages") as made:
        reply = await post(group, "receive", {"max_messages": 2000})
    assert [int(each["body"]) for each in reply.json()["messages"]] == [*range(250)]
    assert made.total == 250
    assert made.most <= YIELD_EVERY_MESSAGES // BATCH_MESSAGES


async def test_a_large_message_waits_for_a_slot(group: Api) -> None:
    """JSON encodes each of its bytes as six, which takes too long in one loop iteration."""
    body = "\x00" * (MAX_BYTES_WITHOUT_SLOT // JSON_GROWTH + 1)
    await stored(group, "orders", 0, "before")
    block = encode_batch([body.encode(), b"behind"], queue_id=0)
    topic = group.store.table.get("orders")
    await group.store.publishing.publish(topic, [Batch.decode(block)])
    fetched = await group.store.reading.read(topic, 0, 0, max_messages=3, max_bytes=1 << 24)
    chosen = [
        each for part in fetched.slices for each in deliveries_of(topic, part.batch, part.rows)
    ]
    turns = group.context.large_replies
    count = turns._value
    for media in ("application/json", "application/x-ndjson"):
        group.groups.answers.append(Received(chosen))
        for _ in range(count):
            await turns.acquire()
        asking = asyncio.create_task(post(group, "receive", {}, Accept=media))
        await until(lambda: turns._waiters)
        for _ in range(count):
            turns.release()
        answer = await asking
        if media == "application/json":
            found = answer.json()["messages"]
        else:
            found = [msgspec.json.decode(line) for line in answer.body.splitlines()]
        assert [each["body"] for each in found] == ["before", body, "behind"]
        assert turns._value == count


async def test_an_inactive_member_and_the_next_active_one_are_informed(group: Api) -> None:
    group.groups.answers += [Received([], active=False), Received([], available=3, notice=True)]
    waiting = await post(group, "receive", {"member": "b"})
    assert waiting.json() == {"messages": [], "available": 0, "active": False}
    assert waiting.headers["Holdfast-Active"] == "false"
    noticed = (await post(group, "receive", {"member": "b"})).json()
    assert noticed == {"messages": [], "available": 3, "active": True, "notice": True}


async def test_all_fields_of_a_receive_reach_the_group(group: Api) -> None:
    group.groups.answers.append(Received([]))
    body = {
        "member": "host:42/a",
        "max_messages": 5,
        "max_bytes": 1000,
        "wait_ms": 20_000,
        "lease_ms": 60_000,
        "topics": ["refunds"],
        "filter": "tag",
        "settled": True,
        "attempt_id": "try-1",
        "limits": [{"topic": "refunds", "queue": 0, "max_messages": 3}],
    }
    await post(group, "receive", body)
    (ask,) = group.groups.asks
    assert (ask.member, ask.max_messages, ask.max_bytes) == ("host:42/a", 5, 1000)
    assert 10.0 < ask.wait_s <= 20.0  # less the time that passed before the call
    assert (ask.lease_ms, ask.topic_names, ask.filter_text) == (60_000, ["refunds"], "tag")
    assert (ask.settled, ask.browse, ask.attempt_id) == (True, False, "try-1")
    assert ask.unit_limits == [UnitLimit("refunds", 3, 0)]


async def test_omitted_fields_have_defaults(group: Api) -> None:
    await post(group, "receive", {})
    (ask,) = group.groups.asks
    assert (ask.member, ask.max_messages, ask.max_bytes) == ("anonymous", 32, 1 << 20)
    assert (ask.wait_s, ask.lease_ms, ask.topic_names, ask.filter_text) == (0.0, None, None, None)
    assert (ask.settled, ask.browse, ask.attempt_id) == (False, False, None)
    assert ask.client == "127.0.0.1"


async def test_a_request_for_no_messages_never_waits(group: Api) -> None:
    await stored(group, "orders", 0, "a", "b")
    reply = (await post(group, "receive", {"max_messages": 0, "wait_ms": 10_000})).json()
    assert (reply["messages"], reply["available"], group.groups.asks[0].wait_s) == ([], 2, 0)


@pytest.mark.parametrize(
    ("error", "status", "problem"),
    [
        (ExclusiveHeld("b", "a"), 409, "group-exclusive"),
        (FilterNotAllowed("keyed"), 400, "filter-not-allowed"),
        (HoldLimitExceeded("max_held_per_client", 5), 429, "too-many-held"),
    ],
)
async def test_an_error_of_the_group_is_a_problem(
    group: Api, error: Exception, status: int, problem: str
) -> None:
    group.groups.answers.append(error)
    answer = await post(group, "receive", {"member": "b"})
    assert (answer.status, answer.problem) == (status, problem)


# -- an undelivered reply ------------------------------------------------------------------


async def test_the_waiting_time_starts_at_the_end_of_the_body(group: Api) -> None:
    clock = LoopClock()  # the time that counts the wait is not this clock's
    body = msgspec.json.encode({"member": "m", "wait_ms": 10_000})
    head = f"POST {G}/receive HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    group.groups.answers.append(Received([]))
    async with raw_connection(group.server.port) as one:
        await one.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:1])
        while not group.context.http.connections.arriving.total_bytes:
            await asyncio.sleep(0)
        await clock.advance(5.0)
        await one.send(body[1:])
        assert (await one.answer())[0] == 200
    assert group.groups.asks[0].wait_s > 11.0


async def test_a_reply_that_cannot_be_encoded_gives_its_leases_back(
    group: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = await stored(group, "orders", 0, "a")
    received = Received(deliveries_of(group.store.table.get("orders"), batch, [0]))
    group.groups.answers.append(received)

    def fail(*what: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr("holdfast.http_api.endpoints.leases.encode", fail)
    answer = await post(group, "receive", {"member": "m"})
    assert (answer.status, answer.problem) == (503, "overloaded")
    assert group.groups.undelivered_ == [["orders-0"]]


# -- settling ------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [each.value for each in Verb])
async def test_the_statuses_have_the_order_of_the_receipts(group: Api, verb: str) -> None:
    await stored(group, "orders", 0, "a", "b", "c")
    messages = (await post(group, "receive", {})).json()["messages"]
    first, stale, last = [each["receipt"] for each in messages]
    await post(group, "reject" if verb == "ack" else "ack", {"receipts": [stale]})
    receipts = [first, stale, "no?", last, first]
    answer = await post(group, verb, {"receipts": receipts})
    statuses = [each["status"] for each in answer.json()["results"]]
    assert statuses == ["done", "stale", "invalid", "done", "done"]
    assert group.groups.settled[1][:2] == (Verb(verb), receipts)


@pytest.mark.parametrize(
    ("verb", "terms"),
    [
        ("ack", {"cumulative": True, "used_ms": 5.5}),
        ("nack", {"delay_ms": 60_000, "used_ms": 5.5}),
        ("release", {}),
        ("extend", {"lease_ms": 60_000}),
        ("reject", {"used_ms": 5.5}),
    ],
)
async def test_all_fields_of_a_settlement_reach_the_group(
    group: Api, verb: str, terms: dict[str, object]
) -> None:
    await post(group, verb, {"receipts": ["r"], **terms})
    ((_, receipts, found),) = group.groups.settled
    assert (receipts, found) == (["r"], {**found, **terms})


async def test_the_receipts_may_be_empty(group: Api) -> None:
    assert (await post(group, "ack", {"receipts": []})).json() == {"results": []}


async def test_receipts_are_settled_in_msgpack(group: Api) -> None:
    await stored(group, "orders", 0, "a")
    (message,) = (await post(group, "receive", {})).json()["messages"]
    answer = await group.ask(
        "POST", f"{G}/ack", msgpack.packb({"receipts": [message["receipt"]]}),
        Content_Type="application/msgpack", Accept="application/msgpack",
    )  # fmt: skip
    assert msgpack.unpackb(answer.body) == {"results": [{"status": "done"}]}


# -- stored offsets of a group with leases -------------------------------------------------

OFFSETS = f"{G}/topics/orders/offsets"


async def test_stored_offsets_are_floors_and_storing_them_seeks(group: Api) -> None:
    await stored(group, "orders", 0, *"abcdef")
    read = await group.get(OFFSETS)
    assert read.json()["offsets"] == {"0": 0, "1": 0}
    answer = await group.send_json("PUT", OFFSETS, {"offsets": {"0": 5}})
    assert answer.json() == {"group": "g", "topic": "orders", "offsets": {"0": 5, "1": 0}}
    assert (await group.groups.floors("g", "orders")) == {0: 5, 1: 0}
    assert answer.headers["ETag"] != read.headers["ETag"]
    assert (await group.get(OFFSETS)).headers["ETag"] == answer.headers["ETag"]
    assert group.store.table.groups() == []


async def test_offsets_are_stored_by_compare_and_swap(group: Api) -> None:
    await stored(group, "orders", 0, *"abcdef")
    etag = (await group.get(OFFSETS)).headers["ETag"]
    body = {"offsets": {"0": 5}}
    assert (await group.send_json("PUT", OFFSETS, body, If_None_Match="*")).status == 412
    assert (await group.send_json("PUT", OFFSETS, body, If_Match="*")).status == 200
    refused = await group.send_json("PUT", OFFSETS, body, If_Match=etag)
    assert (refused.status, refused.problem) == (412, "offsets-changed")
    etag = (await group.get(OFFSETS)).headers["ETag"]
    body = {"offsets": {"0": 6}}
    assert (await group.send_json("PUT", OFFSETS, body, If_Match=etag)).status == 200


async def test_of_two_concurrent_swaps_one_succeeds(group: Api) -> None:
    await stored(group, "orders", 0, *"abcdef")
    etag = (await group.get(OFFSETS)).headers["ETag"]
    request = (
        f"PUT {OFFSETS} HTTP/1.1\r\nHost: ::1\r\nIf-Match: {etag}\r\nContent-Length: 22\r\n\r\n"
    ).encode()
    async with raw_connection(group.server.port) as one, raw_connection(group.server.port) as other:
        await asyncio.gather(
            one.send(request + b'{"offsets": {"0": 5}} '),
            other.send(request + b'{"offsets": {"0": 6}} '),
        )
        statuses = [(await each.answer())[0] for each in (one, other)]
    assert sorted(statuses) == [200, 412]
    assert (await group.groups.floors("g", "orders"))[0] == 5 + statuses.index(200)


async def test_offsets_on_another_topic_are_only_stored(group: Api) -> None:
    await group.store.topics.create("other")
    await stored(group, "other", 0, "a", "b", "c")
    path = f"{G}/topics/other/offsets"
    assert (await group.get(path)).json()["offsets"] == {}
    answer = await group.send_json("PUT", path, {"offsets": {"0": 3}})
    assert (answer.json()["offsets"], answer.headers["ETag"]) == ({"0": 3}, '"1"')
    assert (await group.get(path)).json()["offsets"] == {"0": 3}


# -- descriptions --------------------------------------------------------------------------


async def test_groups_of_both_kinds_are_listed_in_one_order(group: Api) -> None:
    await stored(group, "orders", 0, "a", "b")
    for name in ("a", "z"):
        await group.send_json(
            "PUT", f"/v1/groups/{name}/topics/orders/offsets", {"offsets": {"0": 1}}
        )
    first = (await group.get("/v1/groups?limit=2")).json()
    rest = (await group.get(f"/v1/groups?limit=2&after={first['next']}")).json()
    assert [*first["groups"], *rest["groups"]] == [
        {"group": "a", "topics": ["orders"], "lag_messages": 1},
        {"group": "g", "topics": ["orders", "refunds"], "lag_messages": 2, "mode": "competing"},
        {"group": "z", "topics": ["orders"], "lag_messages": 1},
    ]


async def test_a_group_without_leases_is_described_without_leases(api: Api) -> None:
    await stored(api, "orders", 0, "a")
    await api.send_json("PUT", "/v1/groups/p/topics/orders/offsets", {"offsets": {"0": 1}})
    reply = (await api.get("/v1/groups/p")).json()
    assert set(reply) == {"group", "lag_messages", "lag_bytes", "lag_seconds", "topics"}
    assert "floor" not in reply["topics"][0]["queues"][0]


# -- permissions ---------------------------------------------------------------------------


async def status_with(
    api: Api, grants: Sequence[str], method: str, path: str, body: object
) -> tuple[int, dict[str, Any]]:
    token, text = make_token(*grants)
    api.context.http.access = access_of(token)
    answer = await api.send_json(method, path, body, **bearer(text))
    return answer.status, answer.json()


BOTH = ("consume:=orders:=g", "consume:=refunds:=g")


@pytest.mark.parametrize(
    ("grants", "body", "status"),
    [
        (BOTH, {}, 200),
        (BOTH[:1], {}, 403),
        (BOTH[:1], {"topics": ["orders"]}, 200),
        (BOTH[:1], {"topics": ["orders", "refunds"]}, 403),
        (("consume:=orders:=g", "consume:=refunds:=other"), {}, 403),
        (("consume:=orders:=g", "admin:=refunds:=g"), {}, 403),
    ],
)
async def test_receiving_needs_grants_of_every_topic_with_the_group(
    group: Api, grants: Sequence[str], body: dict[str, object], status: int
) -> None:
    found, reply = await status_with(group, grants, "POST", f"{G}/receive", {**body, "member": "m"})
    assert found == status, reply
    if status == 403:
        assert reply["verb"] == "consume"
        assert not group.groups.asks
    if status == 403 and not body:
        assert "refunds" not in str(reply)


@pytest.mark.parametrize(
    ("grants", "body", "status"),
    [
        (BOTH, {"max_in_flight": 5}, 200),
        (("admin:=orders:=g", "consume:=refunds:=g"), {"max_in_flight": 5}, 200),
        # neither the old nor the new topics may belong to another user
        (BOTH[:1], {"max_in_flight": 5}, 403),
        (BOTH[:1], {"topics": {"orders": {}}}, 403),
        (BOTH, {"topics": {"secret": {}}}, 403),
        # the broker publishes to the dead-letter topic for the client that set it
        (BOTH, {"dead_letter_topic": "secret"}, 403),
        ((*BOTH, "publish:=secret"), {"dead_letter_topic": "secret"}, 200),
        ((*BOTH, "publish:=new"), {"dead_letter_topic": "new"}, 403),
        ((*BOTH, "publish:=new", "admin:=new"), {"dead_letter_topic": "new"}, 200),
        (BOTH, {"dead_letter_topic": None}, 200),
    ],
)
async def test_changing_a_group_needs_grants_of_its_topics(
    group: Api, grants: Sequence[str], body: dict[str, object], status: int
) -> None:
    await group.store.topics.create("secret")
    before = group.groups.group_state("g")
    found, reply = await status_with(group, grants, "PUT", G, body)
    assert found == status, reply
    if status == 403:
        assert group.groups.group_state("g") == before


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/seek", {"to": "earliest"}, 403),
        ("POST", "/seek", {"to": {"refunds": {"0": 0}}}, 403),
        ("POST", "/seek", {"to": {"orders": {"0": 0}}}, 200),
        ("DELETE", "?confirm=g", {}, 403),
    ],
)
async def test_requests_about_topics_need_their_grants(
    group: Api, method: str, path: str, body: object, status: int
) -> None:
    found, reply = await status_with(group, ["admin:=orders:=g"], method, G + path, body)
    assert found == status, reply


async def test_a_description_has_only_granted_topics(group: Api) -> None:
    found, reply = await status_with(group, BOTH[:1], "GET", G, {})
    assert (found, [each["topic"] for each in reply["topics"]]) == (200, ["orders"])
    assert list(reply["config"]["topics"]) == ["orders"]
    assert "refunds" not in str(reply)
    found, reply = await status_with(group, BOTH[:1], "GET", "/v1/groups", {})
    assert reply["groups"][0]["topics"] == ["orders"]


async def test_the_audit_log_has_the_changes_of_a_group(group: Api, tmp_path: Path) -> None:
    file = AuditFile(tmp_path / "audit.log", 1 << 20, 2)
    audit = group.context.http.audit = AuditLog(file, max_denied_per_second=100)
    audit.start()
    await stored(group, "orders", 0, "a")
    await group.send_json("PUT", "/v1/groups/new", {"topics": {"orders": {}}})
    await group.send_json("PUT", "/v1/groups/new", {"mode": "keyed"})
    await group.send_json("PUT", "/v1/groups/new", {"mode": "no"})
    await post(group, "seek", {"to": {"orders": {"0": 1}}})
    await post(group, "receive", {})
    await post(group, "ack", {"receipts": ["r"]})
    await group.ask("DELETE", f"{G}?confirm=g")
    audit.stop()
    lines = [msgspec.json.decode(line) for line in file.path.read_bytes().splitlines()]
    assert [(each["act"], each["object"], each["outcome"]) for each in lines] == [
        ("group.set", "new", "done"),
        ("group.set", "new", "done"),
        ("group.set", "new", "refused"),
        ("group.seek", "g", "done"),
        ("group.delete", "g", "done"),
    ]
    assert [each["created"] for each in lines[:2]] == [True, False]
    assert lines[3]["offsets"] == {"orders": {"0": 1}}


# -- redriving dead letters --------------------------------------------------------------------


@pytest.fixture
async def letters(group: Api) -> Api:
    """The same API with a dead-letter topic."""
    await group.store.topics.create("dead", queues=1)
    await group.groups.put_group("g", GroupSettings(dead_letter_topic="dead"))
    return group


async def test_a_redrive_reports_its_letters(letters: Api) -> None:
    letters.groups.redriven = RedriveResult("dead", {"orders": 2, "refunds": 1}, stuck=4, more=True)
    answer = await post(letters, "redrive", {"limit": 3, "offsets": {"0": [1, 2]}})
    assert answer.json() == {
        "group": "g",
        "dead_letter_topic": "dead",
        "dry_run": False,
        "redriven": 3,
        "topics": {"orders": 2, "refunds": 1},
        "stuck": 4,
        "more": True,
    }
    assert letters.groups.redrives == [("g", RedriveOptions(3, "dead", {0: [1, 2]}))]
    await letters.ask("POST", f"{G}/redrive")
    most = letters.context.groups_config.max_redrive_letters
    assert letters.groups.redrives[1:] == [("g", RedriveOptions(most, "dead"))]


async def test_a_failed_redrive_counts_the_earlier_letters(letters: Api) -> None:
    letters.groups.redriven = RedriveResult("dead", {"orders": 2})
    letters.groups.redriven.fail("0A", LimitExceeded("max_message_bytes", 3, 4, 0))
    answer = await post(letters, "redrive", {})
    assert (answer.status, answer.problem) == (413, "message-too-large")
    problem = answer.json()
    assert problem.items() >= {
        "redriven": 2, "topics": {"orders": 2}, "message_id": "0A", "dead_letter_topic": "dead",
    }.items()  # fmt: skip
    assert problem["detail"].startswith("the dead letter 0A cannot be put back; 2 before it were")


_LETTERS = (*BOTH, "consume:=dead:=g", "publish:=orders", "publish:=refunds")


@pytest.mark.parametrize(
    ("grants", "status"),
    [
        (_LETTERS, 200),
        (("admin:*:=g", "consume:=dead:=g", "publish:*"), 200),
        (("admin:*:=g", "publish:*"), 403),  # may not read the letters
        ((*BOTH, "consume:=dead", "publish:*"), 403),  # not in one grant with the group
        ((*BOTH, "consume:=dead:=g"), 403),
        ((*BOTH, "consume:=dead:=g", "publish:=orders"), 403),
        (("consume:=orders:=g", "consume:=dead:=g", "publish:*"), 403),  # not all topics
    ],
)
async def test_a_redrive_needs_consume_and_publish(
    letters: Api, grants: Sequence[str], status: int
) -> None:
    found, _ = await status_with(letters, grants, "POST", f"{G}/redrive", {})
    assert found == status
    assert len(letters.groups.redrives) == (status == 200)


async def test_the_audit_log_has_a_redrive(letters: Api, tmp_path: Path) -> None:
    file = AuditFile(tmp_path / "audit.log", 1 << 20, 2)
    audit = letters.context.http.audit = AuditLog(file, max_denied_per_second=100)
    audit.start()
    letters.groups.redriven = RedriveResult("dead", {"orders": 2}, stuck=1)
    await post(letters, "redrive", {})
    audit.stop()
    line = msgspec.json.decode(file.path.read_bytes())
    assert line.items() >= {
        "act": "group.redrive", "object": "g", "outcome": "done", "topics": {"orders": 2},
        "stuck": 1, "dead_letter_topic": "dead",
    }.items()  # fmt: skip
