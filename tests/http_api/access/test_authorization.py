"""The effects of access control on requests, other than admission."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace
from multidict import CIMultiDict

from holdfast.commitlog.format.message_id import format_message_id
from holdfast.consumequeue.damage.damage_book import Fault
from holdfast.http_api.access.audit import AuditFile, AuditLog
from holdfast.http_api.access.authorization import UNKNOWN, Access
from holdfast.http_api.access.grants import ANONYMOUS
from holdfast.http_api.access.tokens import Tokens
from holdfast.http_api.routing.context import BrokerStatus
from tests.support.clients.certificates import Certificates
from tests.support.clients.raw_http import raw_connection
from tests.support.clients.tokens import access_of, bearer, let_in, make_token
from tests.support.servers.api_server import Api, running_api

# -- permissions and errors ------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1", "/v1/nothing", "/v1/topics/orders/nothing", "/x"])
async def test_an_unknown_path_is_401_before_it_is_404(api: Api, path: str) -> None:
    header = let_in(api, "operate")
    assert (await api.get(path)).status == 401
    assert (await api.get(path, **header)).status == 404


async def test_an_unknown_method_is_401_before_it_is_405(api: Api) -> None:
    header = let_in(api, "all")
    for method in ("OPTIONS", "TRACE", "POST", "DELETE"):
        answer = await api.ask(method, "/v1/topics")
        assert (answer.status, "Allow" in answer.headers) == (401, False)
        assert (await api.ask(method, "/v1/topics", None, **header)).status == 405


async def test_head_asks_for_a_token_as_get_does(api: Api) -> None:
    header = let_in(api, "all")
    assert (await api.ask("HEAD", "/v1/topics")).status == 401
    assert (await api.ask("HEAD", "/v1/topics", None, **header)).status == 200


async def test_two_authorization_headers_are_refused(api: Api) -> None:
    header = let_in(api, "all")
    twice = CIMultiDict([*header.items(), *header.items()])
    async with api.session.get(f"{api.url}/v1/topics", headers=twice) as response:
        assert response.status == 401


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_the_scheme_is_written_in_any_case(api: Api, scheme: str) -> None:
    text = let_in(api, "all")["Authorization"].partition(" ")[2]
    assert (await api.get("/v1/topics", Authorization=f"{scheme} {text}")).status == 200


async def test_only_a_token_that_was_shown_is_called_invalid(api: Api) -> None:
    let_in(api, "all")
    nothing, wrong = await api.get("/v1/topics"), await api.get("/v1/topics", **bearer("x"))
    assert nothing.headers["WWW-Authenticate"] == 'Bearer realm="holdfast"'
    assert wrong.headers["WWW-Authenticate"] == 'Bearer realm="holdfast", error="invalid_token"'


async def test_only_the_owner_of_a_token_learns_that_it_has_expired(api: Api) -> None:
    token, text = make_token("all", expires_ms=1)
    api.context.http.access = access_of(token)
    assert "expired" in (await api.get("/v1/topics", **bearer(text))).json()["detail"]
    name, _, secret = text.partition(".")
    wrong = await api.get("/v1/topics", **bearer(f"{name}.{secret.swapcase()}"))
    assert wrong.json()["detail"].startswith("the broker does not know this token")


async def test_a_refusal_names_the_missing_grant_and_not_whether_the_topic_exists(api: Api) -> None:
    header = let_in(api, "consume:a:b")
    said = []
    for topic in ("orders", "nothere"):
        answer = await api.get(f"/v1/groups/billing/topics/{topic}/offsets", **header)
        problem = answer.json()
        assert (problem["verb"], problem["topic"]) == ("consume or admin", topic)
        assert problem["group"] == "billing"
        said.append(problem["detail"].replace(topic, "TOPIC"))
    assert said[0] == said[1]


async def test_a_refused_body_is_not_read(api: Api) -> None:
    text = let_in(api, "consume:*")["Authorization"]
    for header in ("", f"Authorization: {text}\r\n"):
        async with raw_connection(api.server.port) as connection:
            head = (
                f"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: x\r\n{header}"
                "Content-Length: 1000000\r\nExpect: 100-continue\r\n\r\n"
            )
            await connection.send(head.encode())
            status, _, _ = await connection.answer()
            assert status == (403 if header else 401)


async def test_an_unauthenticated_caller_does_not_learn_that_the_broker_recovers(
    api: Api,
) -> None:
    header = let_in(api, "all")
    api.status = BrokerStatus("recovering")
    assert (await api.get("/v1/topics")).status == 401
    assert (await api.get("/v1/topics", **header)).status == 503
    api.status = BrokerStatus("ready")


# -- filtered replies ------------------------------------------------------------------------


async def test_listings_have_only_granted_topics_and_groups(api: Api) -> None:
    for name in ("a.1", "a.2", "a.3", "b.1", "b.2"):
        topic, _ = await api.store.topics.create(name, queues=1)
        for group in ("g.1", "g.2", "h.1"):
            await api.store.offsets.store_offsets(group, topic, {0: 0})
    header = let_in(api, "consume:b.:h.", "admin:=a.2:g.", "publish:a.1")

    async def names(path: str, kind: str) -> list[str]:
        found: list[str] = []
        after = ""
        while True:
            page = (await api.get(f"{path}?limit=1{after}", **header)).json()
            found += [each[kind[:-1]] for each in page[kind]]
            if page["next"] is None:
                return found
            after = f"&after={page['next']}"

    assert await names("/v1/topics", "topics") == ["a.1", "a.2", "b.1", "b.2"]
    assert await names("/v1/groups", "groups") == ["g.1", "g.2", "h.1"]
    groups = (await api.get("/v1/groups", **header)).json()["groups"]
    assert {each["group"]: each["topics"] for each in groups} == {
        "g.1": ["a.2"], "g.2": ["a.2"], "h.1": ["b.1", "b.2"],
    }  # fmt: skip
    lag = (await api.get("/v1/groups/g.1", **header)).json()
    assert [topic["topic"] for topic in lag["topics"]] == ["a.2"]


async def test_a_message_id_reveals_nothing_about_topics_that_are_not_granted(api: Api) -> None:
    await api.publish("orders", {"body": "x", "queue": 0})
    topic_id = api.store.table.get("orders").topic_id
    ids = [format_message_id(topic_id, 0, 0), format_message_id(topic_id, 0, 9),
           format_message_id(topic_id + 100, 0, 0), format_message_id(0, 0, 0)]  # fmt: skip
    header = let_in(api, "consume:other", "publish:*", "admin:*", "operate")
    bodies = {(await api.get(f"/v1/messages/{each}", **header)).body for each in ids}
    assert len(bodies) == 1
    header = let_in(api, "consume:*")
    statuses = [(await api.get(f"/v1/messages/{each}", **header)).status for each in ids]
    assert statuses == [200, 404, 404, 404]
    assert (await api.get("/v1/messages/none", **header)).status == 404


async def test_publishing_creates_a_topic_only_with_the_grant_to_create_it(api: Api) -> None:
    async def publish(topic: str, header: dict[str, str]) -> Any:
        path = f"/v1/topics/{topic}/messages"
        return await api.send_json("POST", path, {"messages": [{"body": "x"}]}, **header)

    header = let_in(api, "publish:*", "admin:mine.")
    assert (await publish("orders", header)).status == 200
    refused = await publish("theirs.1", header)
    assert (refused.status, refused.json()["verb"]) == (403, "admin")
    assert (await publish("mine.1", header)).status == 200
    assert [topic.name for topic in api.store.table.all()] == ["mine.1", "orders"]


# -- held pulls ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["revoked", "expired"])
async def test_a_held_pull_delivers_nothing_once_its_token_is_gone(api: Api, how: str) -> None:
    token, text = make_token("consume:*", expires_ms=2**60)
    now_ms = [1.0]
    access = access_of(token)
    access._now_s = lambda: now_ms[0] / 1000
    api.context.http.access = access
    path = "/v1/topics/orders/queues/0/messages?offset=0&wait_ms=30000"
    pull = asyncio.create_task(api.get(path, **bearer(text)))
    await api.held(1)
    if how == "revoked":
        access.tokens = Tokens()
    else:
        now_ms[0] = 2.0**60
    access.is_required = False
    await api.publish("orders", {"body": "secret", "queue": 0})
    access.is_required = True
    answer = await pull
    assert (answer.status, answer.problem) == (401, "unauthenticated")
    assert b"secret" not in answer.body


async def test_a_held_pull_outlives_a_change_of_other_tokens(api: Api) -> None:
    token, text = make_token("consume:*", "publish:*")
    other, _ = make_token("all")
    api.context.http.access = access_of(token, other)
    path = "/v1/topics/orders/queues/0/messages?offset=0&wait_ms=30000"
    pull = asyncio.create_task(api.get(path, **bearer(text)))
    await api.held(1)
    api.context.http.access.tokens = Tokens([token])
    messages = {"messages": [{"body": "x", "queue": 0}]}
    await api.send_json("POST", "/v1/topics/orders/messages", messages, **bearer(text))
    assert (await pull).status == 200


# -- callers without a request (AMQP) ----------------------------------------------------------


def test_a_token_or_a_certificate_identifies_a_caller_without_a_request() -> None:
    good, text = make_token("consume:*")
    old, old_text = make_token("all", expires_ms=1)
    shown, _ = make_token("publish:*", certificate="sender.example")
    outdated, _ = make_token("all", expires_ms=1, certificate="old.example")
    access = access_of(good, old, shown, outdated)
    for identified, principal in [
        (access.identify_token(text), good.principal),
        (access.identify_certificate(["other", "sender.example"]), shown.principal),
    ]:
        assert identified == (principal, None)
    for (caller, denied), reason in [
        (access.identify_token(text[:-1]), "does not know this token"),
        (access.identify_token("x" * 5000), "does not know this token"),
        (access.identify_token(old_text), "the token has expired"),
        (access.identify_certificate(["old.example"]), "the token has expired"),
        (access.identify_certificate(["other"]), "asks for a token"),
        (access.identify_certificate([]), "asks for a token"),
    ]:
        assert caller is UNKNOWN
        assert denied is not None
        assert reason in denied.detail


def test_without_authentication_every_caller_is_anonymous() -> None:
    access = Access()
    assert access.identify_token("x") == access.identify_certificate([]) == (ANONYMOUS, None)


# -- certificates ----------------------------------------------------------------------------


async def test_a_client_certificate_is_as_good_as_a_token(tmp_path: Path) -> None:
    ca = Certificates(tmp_path)
    certificate, key = ca.issue("broker", "127.0.0.1")
    known, _ = make_token("consume:*", certificate="reader.example")
    files: dict[str, Any] = {"tls_certificate": str(certificate), "tls_key": str(key),
             "tls_client_ca": str(ca.ca_file), "tls_client_certificates": "optional"}  # fmt: skip
    async with running_api(**files) as api:
        api.context.http.access = access_of(known)
        await api.store.topics.create("orders", queues=1)
        for pair, method, expected in (
            (None, "GET", 401),
            (ca.issue("other", "other.example"), "GET", 401),
            (ca.issue("reader", "reader.example"), "GET", 200),
            (ca.issue("named", "x.example", common_name="reader.example"), "GET", 200),
            (ca.issue("again", "reader.example"), "DELETE", 403),
        ):
            url = f"https://127.0.0.1:{api.server.port}/v1/topics/orders"
            async with (
                aiohttp.ClientSession() as session,
                session.request(method, url, ssl=ca.trusting(pair)) as response,
            ):
                assert response.status == expected, (pair, await response.text())


# -- the audit log ---------------------------------------------------------------------------


async def test_administrative_acts_and_denied_requests_are_recorded(
    api: Api, tmp_path: Path
) -> None:
    token, text = make_token("admin:orders:*", "admin:new", "publish:*", "admin:auto")
    api.context.http.access = access_of(token)
    file = AuditFile(tmp_path / "audit.log", 1 << 20, 2)
    audit = api.context.http.audit = AuditLog(file, max_denied_per_second=100)
    audit.start()
    header = bearer(text)
    await api.send_json("PUT", "/v1/topics/new", {"queues": 1}, **header)
    await api.send_json("PATCH", "/v1/topics/orders", {"retention_ms": 5000}, **header)
    await api.send_json("PUT", "/v1/topics/orders", {"queues": 7}, **header)
    reset = {"to": "latest", "dry_run": True}
    await api.send_json("POST", "/v1/groups/g/topics/orders/offsets/reset", reset, **header)
    await api.send_json("POST", "/v1/topics/auto/messages", {"messages": [{"body": "x"}]}, **header)
    await api.ask("DELETE", "/v1/topics/orders", None, **header)
    await api.ask("DELETE", "/v1/topics/orders?confirm=orders", None, **header)
    await api.ask("DELETE", "/v1/topics/other?confirm=other", None, **header)
    await api.get("/v1/info?token=hidden")
    await api.get("/v1/topics", **header)
    audit.stop()
    lines = [json.loads(line) for line in file.path.read_text().splitlines()]
    assert [
        (each["act"], each["object"], each["outcome"], each.get("status")) for each in lines
    ] == [
        ("topic.create", "new", "done", 201),
        ("topic.change", "orders", "done", 200),
        ("topic.create", "orders", "refused", 409),
        ("offsets.reset", "g/orders", "done", 200),
        ("topic.create", "auto", "done", None),
        ("topic.delete", "orders", "refused", 400),
        ("topic.delete", "orders", "done", 200),
        ("request", "DELETE /v1/topics/other", "denied", 403),
        ("request", "GET /v1/info", "denied", 401),
    ]
    assert lines[3]["dry_run"] is True
    assert lines[4]["by"] == "publish"
    assert [each["principal"] for each in lines] == [f"token:{token.token_id}"] * 8 + ["unknown"]
    assert {each["client"] for each in lines} == {"127.0.0.1"}
    assert text not in file.path.read_text()
    assert "hidden" not in file.path.read_text()


async def test_an_act_whose_client_disconnected_is_recorded(api: Api, tmp_path: Path) -> None:
    file = AuditFile(tmp_path / "audit.log", 1 << 20, 2)
    audit = api.context.http.audit = AuditLog(file, max_denied_per_second=100)
    audit.start()
    async with raw_connection(api.server.port) as connection:
        await connection.send(
            b"PUT /v1/topics/late HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 2\r\n\r\n{"
        )
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        while not audit._waiting.empty() or not file.path.exists():
            await asyncio.sleep(0.01)
    audit.stop()
    (line,) = [json.loads(line) for line in file.path.read_text().splitlines()]
    assert (line["act"], line["object"]) == ("topic.create", "late")
    assert line["outcome"] == "begun, but its client went away"


async def test_only_operators_get_the_details_of_faults(api: Api) -> None:
    faulty = BrokerStatus(
        "ready", (Fault("lost-range", "queue 0 of 'orders'"),), "in orders.log", {"disk": "orders"}
    )
    for phase in ("ready", "draining"):
        api.status = replace(faulty, phase=phase)
        operator = let_in(api, "operate")
        told = await api.get("/readyz", **operator)
        assert told.body.count(b"orders") == 3
        for header in ({}, let_in(api, "consume:*", "admin:*")):
            withheld = await api.get("/readyz", **header)
            assert withheld.status == told.status
            assert b"orders" not in withheld.body
            assert withheld.json()["degraded"][0]["reason"] == "lost-range"
            assert list(withheld.json()["alarms"]) == ["disk"]
    api.status = BrokerStatus("ready")


# -- browsers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://evil.example:8711"}, 403),
        ({"Origin": "http://127.0.0.1.evil.example"}, 403),
        ({"Origin": "http://localhost.evil.example"}, 403),
        ({"Origin": "http://10.0.0.1"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Origin": ""}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "Cross-Site", "Origin": "http://localhost"}, 403),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://127.0.0.1:8711"}, 200),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Origin": "http://[::1]:3000"}, 200),
        ({"Origin": "http://console.localhost"}, 200),
    ],
)
async def test_a_page_of_another_site_cannot_use_a_broker_without_authentication(
    api: Api, headers: dict[str, str], status: int
) -> None:
    path = "/v1/topics/orders/messages"
    assert (
        await api.ask("POST", path, b"x", Content_Type="text/plain", **headers)
    ).status == status
    assert api.store.reading.queue_state(api.store.table.get("orders"), 0).max_offset == (
        status == 200
    )
    # A page of another site does not have a token.
    shown = let_in(api, "all")
    answer = await api.ask("POST", path, b"x", Content_Type="text/plain", **headers, **shown)
    assert answer.status == 200


# -- patterns of groups ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "status"),
    [("orders.*", 201), ("orders.?", 201), ("order*", 403), ("*", 403), ("orders?", 403)],
)
async def test_a_pattern_needs_a_grant_for_all_topics_that_it_may_match(
    api: Api, pattern: str, status: int
) -> None:
    # R7: a pattern finds only topics that the token grants
    header = let_in(api, "consume:orders.:g")
    body = json.dumps({"topics": {pattern: {}}}).encode()
    answer = await api.ask("PUT", "/v1/groups/g", body, **header)
    assert answer.status == status
    if status == 201:
        assert list(answer.json()["config"]["topics"]) == [pattern]


def test_the_right_to_subscribe_is_checked_each_time() -> None:
    # R7: a revoked or expired token of the creator finds no further topics
    token, _ = make_token("consume:orders.:g")
    access = access_of(token)
    name = token.principal.name
    assert access.may_subscribe(name, "orders.eu", "g")
    assert not access.may_subscribe(name, "orders.eu", "h")
    assert not access.may_subscribe(name, "bills", "g")
    assert not access.may_subscribe("anonymous", "orders.eu", "g")
    access.tokens = Tokens([replace(token, expires_ms=1)])
    assert not access.may_subscribe(name, "orders.eu", "g")
    access.tokens = Tokens([])
    assert not access.may_subscribe(name, "orders.eu", "g")
    access.is_required = False
    assert access.may_subscribe("anonymous", "orders.eu", "g")
