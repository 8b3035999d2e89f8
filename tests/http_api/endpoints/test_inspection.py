"""Names, readers of a topic, leases, a message's state in each group, and the caller's access."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.consumequeue.slices import ITEMS_A_TURN
from holdfast.groups.config import GroupsConfig
from holdfast.http_api.access.audit import TAIL_BYTES, AuditFile, AuditLog, audit_line
from holdfast.http_api.app import AmqpUse
from tests.support.clients.tokens import access_of, bearer, let_in, make_token
from tests.support.event_loop.calls_a_turn import calls_a_turn
from tests.support.servers.api_server import Api, running_api


async def got(api: Api, path: str, **headers: str) -> Any:
    answer = await api.get(path, **headers)
    assert answer.status == 200, answer.body
    return answer.json()


async def billing(api: Api, **settings: object) -> None:
    """Make the group "billing" on the topic "orders"."""
    body = {"topics": {"orders": {}}, **settings}
    assert (await api.send_json("PUT", "/v1/groups/billing", body)).status in (200, 201)


async def receive(api: Api, count: int, member: str = "anna", **more: object) -> list[Any]:
    body = {"member": member, "max_messages": count, **more}
    answer = await api.send_json("POST", "/v1/groups/billing/receive", body)
    return list(answer.json()["messages"])


async def settle(api: Api, verb: str, messages: list[Any], **more: object) -> None:
    body = {"receipts": [each["receipt"] for each in messages], **more}
    answer = await api.send_json("POST", f"/v1/groups/billing/{verb}", body)
    assert {each["status"] for each in answer.json()["results"]} == {"done"}


async def fill(api: Api, count: int, queue: int = 0) -> list[str]:
    """Publish messages to a queue and return their ids."""
    messages = [{"body": str(number), "queue": queue} for number in range(count)]
    results = (await api.publish("orders", *messages)).json()["results"]
    return [each["message_id"] for each in results]


# -- names ---------------------------------------------------------------------------------------


async def test_names_are_found_by_a_part_of_them_page_by_page(api: Api) -> None:
    for name in ("orders.eu", "Orders.us", "payments"):
        await api.store.topics.create(name)
    assert (await got(api, "/v1/names?contains=ORDER"))["names"] == [
        "Orders.us", "orders", "orders.eu",
    ]  # fmt: skip
    page = await got(api, "/v1/names?contains=order&limit=2")
    assert page == {"names": ["Orders.us", "orders"], "next": "orders"}
    page = await got(api, "/v1/names?contains=order&limit=2&after=orders")
    assert page == {"names": ["orders.eu"], "next": None}
    assert len((await got(api, "/v1/names"))["names"]) == 4
    assert await got(api, "/v1/names?contains=x") == {"names": [], "next": None}
    assert await got(api, "/v1/names?kind=group") == {"names": [], "next": None}
    await billing(api)
    await api.store.offsets.store_offsets("reports", api.store.table.get("orders"), {0: 0})
    assert (await got(api, "/v1/names?kind=group"))["names"] == ["billing", "reports"]


async def test_names_are_listed_only_if_the_token_grants_something_on_them(api: Api) -> None:
    await api.store.topics.create("secret")
    await billing(api)
    header = let_in(api, "publish:orders", "consume:orders:bill")
    assert (await got(api, "/v1/names", **header))["names"] == ["orders"]
    assert (await got(api, "/v1/names?kind=group", **header))["names"] == ["billing"]
    header = let_in(api, "consume:orders:other")
    assert (await got(api, "/v1/names?kind=group", **header))["names"] == []


async def test_wrong_queries_for_names_are_refused(api: Api) -> None:
    for query in ("?kind=queue", "?limit=0", "?contains=", "?what=x"):
        assert (await api.get(f"/v1/names{query}")).problem == "invalid-parameter", query
    assert (await api.get("/v1/names?limit=1001")).problem == "limit-exceeded"


# -- readers -------------------------------------------------------------------------------------


async def test_the_readers_of_a_topic_have_their_lag_on_it(api: Api) -> None:
    await fill(api, 5)
    assert await got(api, "/v1/topics/orders/groups") == {"groups": [], "next": None}
    await billing(api)
    await settle(api, "ack", await receive(api, 2))
    await api.store.offsets.store_offsets("reports", api.store.table.get("orders"), {0: 4})
    found = await got(api, "/v1/topics/orders/groups")
    assert [(each["group"], each["lag_messages"]) for each in found["groups"]] == [
        ("billing", 3), ("reports", 1),
    ]  # fmt: skip
    page = await got(api, "/v1/topics/orders/groups?limit=1")
    assert (page["groups"][0]["group"], page["next"]) == ("billing", "billing")
    page = await got(api, "/v1/topics/orders/groups?limit=1&after=billing")
    assert (page["groups"][0]["group"], page["next"]) == ("reports", None)
    assert (await api.get("/v1/topics/nothing/groups")).problem == "unknown-topic"
    header = let_in(api, "consume:orders:reports")
    found = await got(api, "/v1/topics/orders/groups", **header)
    assert [each["group"] for each in found["groups"]] == ["reports"]


# -- leases --------------------------------------------------------------------------------------


async def test_leases_say_who_holds_what_since_when(api: Api) -> None:
    ids = await fill(api, 3) + await fill(api, 2, queue=1)
    await billing(api)
    assert await got(api, "/v1/groups/billing/leases") == {"leases": [], "next": None}
    await receive(api, 2, "anna")
    await receive(api, 3, "bert", lease_ms=60_000)
    leases = (await got(api, "/v1/groups/billing/leases"))["leases"]
    assert [each["message_id"] for each in leases] == ids
    assert {each["member"] for each in leases} == {"anna", "bert"}
    for each in leases:
        length = 30_000 if each["member"] == "anna" else 60_000
        assert (each["until_ms"] - each["delivered_ms"], each["attempt"]) == (length, 1)
    for limit in (1, 2, 4, 5, 6):
        found, after = [], ""
        while True:
            page = await got(api, f"/v1/groups/billing/leases?limit={limit}{after}")
            found += [each["message_id"] for each in page["leases"]]
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
        assert found == ids, limit


async def test_leases_are_of_groups_with_leases_and_of_granted_topics(api: Api) -> None:
    await fill(api, 1)
    await billing(api)
    await receive(api, 1)
    assert (await api.get("/v1/groups/nothing/leases")).problem == "unknown-group"
    await api.store.offsets.store_offsets("reports", api.store.table.get("orders"), {0: 0})
    assert (await api.get("/v1/groups/reports/leases")).problem == "group-without-leases"
    assert (await api.get("/v1/groups/billing/leases?after=x")).problem == "invalid-parameter"
    header = let_in(api, "consume:other:billing")
    assert (await got(api, "/v1/groups/billing/leases", **header))["leases"] == []


async def test_leases_are_looked_at_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.groups.serving.inspecting.LEASES_A_TURN", 7)
    async with running_api(orders=1, limits=GroupsConfig()) as api:
        ids = await fill(api, 50)
        await billing(api)
        await receive(api, 50)
        page = await got(api, f"/v1/groups/billing/leases?limit=10&after={ids[19]}")
        assert [each["message_id"] for each in page["leases"]] == ids[20:30]


# -- states --------------------------------------------------------------------------------------


async def state(api: Api, message_id: str) -> Any:
    (found,) = (await got(api, f"/v1/messages/{message_id}/groups"))["groups"]
    return found


async def test_a_message_has_a_state_in_each_group(api: Api) -> None:
    ids = await fill(api, 8)
    assert await got(api, f"/v1/messages/{ids[0]}/groups") == {"groups": [], "next": None}
    await api.store.topics.create("dead", queues=1)
    await billing(api, dead_letter_topic="dead", max_attempts=2)
    assert await state(api, ids[0]) == {"group": "billing", "state": "available"}
    messages = await receive(api, 6)
    await settle(api, "ack", messages[:1])
    await settle(api, "nack", messages[1:2], delay_ms=60_000)
    await settle(api, "release", messages[2:3])
    await settle(api, "reject", messages[3:4])
    assert (await state(api, ids[0]))["state"] == "settled"
    delayed = await state(api, ids[1])
    assert (delayed["state"], delayed["attempt"], delayed["failures"]) == ("delayed", 1, 1)
    assert delayed["until_ms"] > 0
    released = await state(api, ids[2])
    assert (released["state"], released["attempt"], released["failures"]) == ("available", 1, 0)
    held = await state(api, ids[4])
    assert (held["state"], held["member"], held["attempt"]) == ("leased", "anna", 1)
    assert held["until_ms"] - held["delivered_ms"] == 30_000
    assert await state(api, ids[7]) == {"group": "billing", "state": "available"}
    letters = await got(api, "/v1/topics/dead/queues/0/messages?from=earliest&wait_ms=10000")
    dead = await state(api, ids[3])
    assert (dead["state"], dead["dead_letter_topic"]) == ("dead", "dead")
    assert dead["dead_letter_id"] == letters["messages"][0]["message_id"]


async def test_a_group_that_stores_offsets_has_read_what_is_before_them(api: Api) -> None:
    ids = await fill(api, 3)
    await api.store.offsets.store_offsets("reports", api.store.table.get("orders"), {0: 2})
    assert [(await state(api, each))["state"] for each in ids] == ["read", "read", "unread"]
    assert (await state(api, (await fill(api, 1, queue=1))[0]))["state"] == "unread"


async def test_the_states_come_in_pages_and_only_of_granted_groups(api: Api) -> None:
    (message_id,) = await fill(api, 1)
    topic = api.store.table.get("orders")
    for number in range(5):
        await api.store.offsets.store_offsets(f"reader-{number}", topic, {0: 0})
    found, after = [], ""
    while True:
        page = await got(api, f"/v1/messages/{message_id}/groups?limit=2{after}")
        found += [each["group"] for each in page["groups"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert found == [f"reader-{number}" for number in range(5)]
    header = let_in(api, "consume:orders:=reader-3")
    page = await got(api, f"/v1/messages/{message_id}/groups", **header)
    assert [each["group"] for each in page["groups"]] == ["reader-3"]
    header = let_in(api, "consume:other:*")
    assert (await api.get(f"/v1/messages/{message_id}/groups", **header)).problem == "forbidden"


async def test_the_state_of_a_message_that_does_not_exist_is_unknown(api: Api) -> None:
    (message_id,) = await fill(api, 1)
    for wrong in ("x", f"{message_id[:-1]}1", "F" * 32):
        assert (await api.get(f"/v1/messages/{wrong}/groups")).problem == "unknown-message"


# -- access and overview -------------------------------------------------------------------------


async def test_access_says_who_the_caller_is(api: Api) -> None:
    found = await got(api, "/v1/access")
    assert (found["principal"], found["authentication"]) == ("anonymous", False)
    header = let_in(api, "consume:orders.:billing", "operate")
    found = await got(api, "/v1/access", **header)
    assert found["authentication"] is True
    assert found["grants"] == ["consume:orders.:billing", "operate"]
    assert found["principal"].startswith("token:")
    assert "holdfast_" not in str(found)
    assert found["expires_ms"] is None
    assert (await api.get("/v1/access")).problem == "unauthenticated"


async def test_the_overview_counts_messages_groups_and_connections(api: Api) -> None:
    await fill(api, 3)
    await billing(api)
    await receive(api, 2)
    found = await got(api, "/v1/overview")
    assert (found["topics"], found["messages_in_total"]) == (1, 3)
    assert (found["messages_out_total"], found["groups"]["in_flight"]) == (2, 2)
    assert (found["groups"]["count"], found["groups"]["at_limit"]) == (1, [])
    assert found["connections"] >= 1
    await billing(api, max_in_flight=2)
    found = await got(api, "/v1/overview")
    assert (found["groups"]["at_limit"], found["groups"]["at_limit_count"]) == (["billing"], 1)


async def test_a_group_with_last_value_is_marked_in_the_states_of_messages(api: Api) -> None:
    messages = [{"body": str(number), "queue": 0, "key": "k"} for number in range(3)]
    results = (await api.publish("orders", *messages)).json()["results"]
    await billing(api, last_value=True)
    await api.store.offsets.store_offsets("reports", api.store.table.get("orders"), {0: 0})
    (newest,) = await receive(api, 3)
    assert newest["offset"] == 2
    described = await got(api, "/v1/groups/billing")
    assert described["topics"][0]["queues"][0]["superseded"] == 2
    found = await got(api, f"/v1/messages/{results[0]['message_id']}/groups")
    assert [(each["state"], each.get("last_value")) for each in found["groups"]] == [
        ("settled", True), ("unread", None),
    ]  # fmt: skip
    await billing(api, last_value=False)
    found = await got(api, f"/v1/messages/{results[0]['message_id']}/groups")
    assert "last_value" not in found["groups"][0]


# -- connections -----------------------------------------------------------------------------------


async def test_connections_are_listed_by_client_page_by_page(api: Api) -> None:
    (client,) = (await got(api, "/v1/connections"))["clients"]
    assert (client["client"], client["http"], client["amqp"]) == ("127.0.0.1", 1, 0)
    api.context.http.amqp_use = lambda: AmqpUse({"10.0.0.7": 2}, {"10.0.0.7": 3}, {"10.0.0.7": 4})
    page = await got(api, "/v1/connections?limit=1")
    assert page["next"] == "10.0.0.7"
    (client,) = page["clients"]
    assert [client[name] for name in ("http", "amqp", "amqp_sessions", "amqp_links")] == [
        0,
        2,
        3,
        4,
    ]
    page = await got(api, "/v1/connections?limit=1&after=10.0.0.7")
    assert (page["clients"][0]["client"], page["next"]) == ("127.0.0.1", None)


async def test_clients_above_a_rate_limit_are_held_back() -> None:
    async with running_api(
        orders=1, max_requests_per_s_per_client=1000, max_publish_messages_per_s_per_client=2
    ) as api:
        assert (await got(api, "/v1/connections"))["held_back"] == []
        await fill(api, 1000)
        (found,) = (await got(api, "/v1/connections"))["held_back"]
        assert (found["client"], found["limit"]) == ("address 127.0.0.1", "publishes")
        assert 400 < found["wait_seconds"] < 500


async def test_the_readers_are_found_in_slices(api: Api) -> None:
    topic = api.store.table.get("orders")
    for number in range(600):
        await api.store.offsets.store_offsets(f"reader-{number:04}", topic, {0: 0})
    other, _ = await api.store.topics.create("other")
    with calls_a_turn(api.store.offsets, "group_topics") as turns:
        assert (await got(api, "/v1/topics/other/groups"))["groups"] == []
    assert (turns.total, turns.most <= ITEMS_A_TURN) == (600, True)
    assert other.queue_count


# -- tokens and the audit log ----------------------------------------------------------------------


async def test_tokens_are_listed_without_their_secrets(api: Api) -> None:
    assert await got(api, "/v1/access/tokens") == {"tokens": []}
    old, _ = make_token("consume:orders", expires_ms=1)
    every, text = make_token("all")
    api.context.http.access = access_of(old, every)
    answer = await api.get("/v1/access/tokens", **bearer(text))
    tokens = {each["token_id"]: each for each in answer.json()["tokens"]}
    assert tokens.keys() == {old.token_id, every.token_id}
    assert (tokens[old.token_id]["grants"], tokens[old.token_id]["expired"]) == (
        ["consume:orders"], True,
    )  # fmt: skip
    assert text.partition(".")[2].encode() not in answer.body
    assert every.digest.hex().encode() not in answer.body


async def test_the_newest_events_of_the_audit_log_come_first(api: Api, tmp_path: Path) -> None:
    assert await got(api, "/v1/access/audit") == {"events": []}
    file = AuditFile(tmp_path / "access" / "audit.log", 400, 3)
    audit = AuditLog(file, max_denied_per_second=9)
    api.context.http.audit = audit
    assert await got(api, "/v1/access/audit") == {"events": []}  # no file yet
    for number in range(6):  # every few lines the file is rotated
        file.append(audit_line(number, "topic.create", f"t{number}", "done", "x", "y", {}))
    found = (await got(api, "/v1/access/audit"))["events"]
    names = [each["object"] for each in found]
    assert names == sorted(names, reverse=True)
    assert len(names) >= 3
    assert (await got(api, "/v1/access/audit?limit=2"))["events"] == found[:2]


async def test_only_who_may_administer_everything_sees_tokens_and_events(api: Api) -> None:
    for grants in (["operate"], ["operate", "admin:*"], ["operate", "admin:orders:*"]):
        header = let_in(api, *grants)
        for path in ("/v1/access/tokens", "/v1/access/audit"):
            assert (await api.get(path, **header)).problem == "forbidden", grants
    header = let_in(api, "operate", "admin:*:*")
    assert (await api.get("/v1/access/tokens", **header)).status == 200


def test_the_tail_of_a_long_audit_file_begins_with_a_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    line = b'{"n":"%s"}\n' % (b"x" * 1000)
    path.write_bytes(line * 400 + b'{"half')
    file = AuditFile(path, 1 << 30, 2)
    lines = file.tail(1000)
    assert {*lines} == {line[:-1]}
    assert len(lines) in (TAIL_BYTES // len(line), TAIL_BYTES // len(line) - 1)
    assert file.tail(1) == [line[:-1]]
