"""Every route, with every kind of client that may not use it.

The tests are generated from the route table. A new route without an access rule is closed, and a
route without a request here fails.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.commitlog.format.message_id import format_message_id
from holdfast.groups.service_types import RedriveResult
from holdfast.groups.settings import GroupSettings, Subscription
from holdfast.http_api.access.grants import (
    AUTHENTICATED,
    PUBLIC,
    VERBS,
    Exposure,
    RequiredPermission,
    require,
)
from holdfast.http_api.routes import ROUTES
from holdfast.http_api.routing.router import Route, Router
from tests.support.cases import case
from tests.support.clients.tokens import access_of, bearer, let_in, make_token
from tests.support.servers.api_server import Answer, Api

PAST_MS = 1


@dataclass(frozen=True)
class Request:
    """One valid request to a route, and the permission that the route must require."""

    access: RequiredPermission
    query: str = ""
    body: Any = None
    status: int = 200


MESSAGES = "/v1/topics/{topic}/messages"
TOPIC = "/v1/topics/{topic}"
QUEUE = "/v1/topics/{topic}/queues/{queue}"
READ_LEASE = TOPIC + "/read-leases/{lease}"
LEASE = "0123456789abcdef" * 2
GROUP = "/v1/groups/{group}"
OFFSETS = GROUP + "/topics/{topic}/offsets"

GOOD: Mapping[tuple[str, str], Request] = {
    ("POST", MESSAGES): Request(require("publish"), body={"messages": [{"body": "x"}]}),
    ("GET", QUEUE + "/messages"): Request(require("consume"), "?offset=0"),
    ("GET", MESSAGES): Request(require("consume"), "?offsets=0:0"),
    ("PUT", TOPIC): Request(require("admin"), body={}),
    ("PATCH", TOPIC): Request(require("admin"), body={"retention_ms": 1000}),
    ("GET", "/v1/topics"): Request(require("publish", "consume", "admin")),
    ("GET", TOPIC): Request(require("publish", "consume", "admin")),
    ("DELETE", TOPIC): Request(require("admin"), "?confirm=orders"),
    ("GET", QUEUE + "/offset"): Request(require("consume"), "?timestamp_ms=0"),
    ("GET", TOPIC + "/splits"): Request(require("consume")),
    ("PUT", READ_LEASE): Request(require("consume"), body={"lease_ms": 1000}),
    ("DELETE", READ_LEASE): Request(require("consume")),
    ("GET", MESSAGES + "/search"): Request(require("consume"), "?key=k"),
    ("GET", MESSAGES + "/browse"): Request(require("consume")),
    ("GET", "/v1/messages/{message_id}"): Request(require("consume")),
    ("GET", "/v1/messages/{message_id}/groups"): Request(require("consume")),
    ("GET", "/v1/access"): Request(AUTHENTICATED),
    ("GET", "/v1/overview"): Request(require("operate")),
    ("GET", "/v1/access/tokens"): Request(require("operate")),
    ("GET", "/v1/access/audit"): Request(require("operate")),
    ("GET", "/v1/connections"): Request(require("operate")),
    ("GET", "/v1/connections/sessions"): Request(require("operate")),
    ("GET", "/v1/names"): Request(require("publish", "consume", "admin")),
    ("GET", TOPIC + "/groups"): Request(require("consume", "admin")),
    ("GET", GROUP + "/leases"): Request(require("consume", "admin")),
    ("GET", "/v1/groups"): Request(require("consume", "admin")),
    ("GET", GROUP): Request(require("consume", "admin")),
    ("PUT", GROUP): Request(require("consume", "admin"), body={"topics": {"orders": {}}}),
    ("DELETE", GROUP): Request(require("admin"), "?confirm=billing"),
    ("POST", GROUP + "/receive"): Request(require("consume"), body={"member": "m"}),
    ("POST", GROUP + "/ack"): Request(require("consume"), body={"receipts": ["r"]}),
    ("POST", GROUP + "/nack"): Request(require("consume"), body={"receipts": ["r"]}),
    ("POST", GROUP + "/release"): Request(require("consume"), body={"receipts": ["r"]}),
    ("POST", GROUP + "/extend"): Request(require("consume"), body={"receipts": ["r"]}),
    ("POST", GROUP + "/reject"): Request(require("consume"), body={"receipts": ["r"]}),
    ("POST", GROUP + "/seek"): Request(require("consume", "admin"), body={"to": "earliest"}),
    ("POST", GROUP + "/leave"): Request(require("consume"), body={"member": "m"}),
    ("POST", GROUP + "/redrive"): Request(
        require("consume", "admin"), body={"dead_letter_topic": "orders"}
    ),
    ("GET", OFFSETS): Request(require("consume", "admin")),
    ("PUT", OFFSETS): Request(require("consume"), body={"offsets": {"0": 0}}),
    ("POST", OFFSETS + "/reset"): Request(require("consume", "admin"), body={"to": "earliest"}),
    ("GET", "/v1/info"): Request(require("operate")),
    ("GET", "/healthz"): Request(PUBLIC),
    ("GET", "/readyz"): Request(PUBLIC),
    ("GET", "/metrics"): Request(require("operate")),
    ("GET", "/openapi.json"): Request(AUTHENTICATED),
}

BY_NAME = [pytest.param(route, id=f"{route.method} {route.path}") for route in ROUTES]
SHUT_TO_STRANGERS = [route for route in ROUTES if route.access.exposure is not Exposure.PUBLIC]
NAMES_TOPIC = [
    route for route in SHUT_TO_STRANGERS if "{topic}" in route.path or "{message_id}" in route.path
]
NAMES_GROUP = [route for route in SHUT_TO_STRANGERS if "{group}" in route.path]


@pytest.fixture
async def api(api: Api) -> Api:
    """Return the API with a message in its topic, and a group with leases.

    The group has also stored an offset in the topic.
    """
    topic = api.store.table.get("orders")
    await api.publish("orders", {"body": "x", "key": "k", "queue": 0})
    await api.store.offsets.store_offsets("billing", topic, {0: 0})
    await api.groups.put_group("billing", GroupSettings(topics={"orders": Subscription()}))
    api.groups.redriven = RedriveResult("orders")  # a group cannot redrive from its own topic
    with patch("secrets.token_hex", lambda size: LEASE):
        await api.store.read_leases.take(topic, {0: 0}, 10**9)
    return api


async def ask(api: Api, route: Route, *headers: Mapping[str, str]) -> Answer:
    request = GOOD[route.method, route.path]
    topic = api.store.table.get("orders")
    path = route.path.format(
        topic="orders", queue=0, group="billing", lease=LEASE,
        message_id=format_message_id(topic.topic_id, 0, 0),
    )  # fmt: skip
    body = None if request.body is None else msgspec.json.encode(request.body)
    joined = {name: value for each in headers for name, value in each.items()}
    if body is not None:
        joined["Content-Type"] = "application/json"
    return await api.ask(route.method, path + request.query, body, **joined)


def right_grants(route: Route) -> list[str]:
    if route.path == GROUP + "/redrive":  # it reads the letters and publishes, too
        return ["consume:=orders:=billing", "publish:=orders"]
    if route.path in ("/v1/access/tokens", "/v1/access/audit"):  # they name everything
        return ["operate", "admin:*:*"]
    verb = route.access.verbs[0] if route.access.verbs else "operate"
    return [
        {
            "publish": "publish:=orders",
            "consume": "consume:=orders:=billing",
            "admin": "admin:=orders:=billing",
            "operate": "operate",
        }[verb]
    ]


def unauthenticated(answer: Answer) -> None:
    assert (answer.status, answer.problem) == (401, "unauthenticated")
    assert answer.headers["WWW-Authenticate"].startswith('Bearer realm="holdfast"')


def test_every_route_has_a_good_request() -> None:
    assert GOOD.keys() == {(route.method, route.path) for route in ROUTES}


def test_every_route_requires_the_expected_permission() -> None:
    """GOOD repeats the permissions by hand, to check the declarations of the routes."""
    for route in ROUTES:
        assert route.access == GOOD[route.method, route.path].access, route


@pytest.mark.parametrize("route", BY_NAME)
async def test_the_right_token_is_accepted(api: Api, route: Route) -> None:
    header = let_in(api, *right_grants(route))
    assert (await ask(api, route, header)).status == GOOD[route.method, route.path].status


async def test_an_unauthenticated_caller_gets_only_401(api: Api) -> None:
    token, text = make_token("all")
    expired, expired_text = make_token("all", expires_ms=PAST_MS)
    _, revoked_text = make_token("all")
    api.context.http.access = access_of(token, expired)
    token_id, _, secret = text.partition(".")
    wrong = {
        "no token": {},
        "an unknown id": bearer(f"holdfast_{'f' * 12}.{secret}"),
        "a wrong secret": bearer(f"{token_id}.{'A' * 43}"),
        "another one's secret": bearer(f"{token_id}.{revoked_text.partition('.')[2]}"),
        "half a secret": bearer(text[:-1]),
        "a secret and more": bearer(f"{text}A"),
        "an expired token": bearer(expired_text),
        "a revoked token": bearer(revoked_text),
        "nothing after the scheme": {"Authorization": "Bearer"},
        "an empty token": {"Authorization": "Bearer "},
        "two spaces": {"Authorization": f"Bearer  {text}"},
        "no scheme": {"Authorization": text},
        "another scheme": {"Authorization": f"Basic {text}"},
        "a list": {"Authorization": f"Bearer {text}, Bearer {text}"},
        "no algorithm": bearer("eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGwifQ."),
        "not ASCII": bearer("tokén"),
        "a long one": bearer("x" * 6000),
    }
    for route in SHUT_TO_STRANGERS:
        with case(route.method, route.path):
            for what, headers in wrong.items():
                answer = await ask(api, route, headers)
                assert answer.status == 401, what
                unauthenticated(answer)
                assert text not in str(answer), what


async def test_open_routes_need_no_token(api: Api) -> None:
    for route in [each for each in ROUTES if each not in SHUT_TO_STRANGERS]:
        with case(route.method, route.path):
            assert route.path in ("/healthz", "/readyz")
            api.context.http.access = access_of()
            assert (await ask(api, route)).status == 200
            assert (await ask(api, route, bearer("wrong"))).status == 200


async def test_tokens_with_other_verbs_are_refused(api: Api) -> None:
    for route in SHUT_TO_STRANGERS:
        with case(route.method, route.path):
            others = [verb for verb in VERBS if verb not in route.access.verbs]
            grants = ["operate" if verb == "operate" else f"{verb}:*" for verb in others]
            grants = [f"{each}:*" if each in ("consume:*", "admin:*") else each for each in grants]
            header = let_in(api, *grants)
            answer = await ask(api, route, header)
            if route.access.exposure is Exposure.AUTHENTICATED:
                assert answer.status == 200
            else:
                assert (answer.status, answer.problem) == (403, "forbidden")
                assert answer.json()["verb"] == " or ".join(route.access.verbs)


async def test_a_grant_for_another_topic_is_refused(api: Api) -> None:
    for route in NAMES_TOPIC:
        with case(route.method, route.path):
            for topics in ("=order", "=orders2", "ordersx", "a", "Orders"):
                header = let_in(
                    api, f"publish:{topics}", f"consume:{topics}:*", f"admin:{topics}:*"
                )
                answer = await ask(api, route, header)
                assert (answer.status, answer.problem) == (403, "forbidden"), topics


async def test_a_grant_for_another_group_is_refused(api: Api) -> None:
    for route in NAMES_GROUP:
        with case(route.method, route.path):
            for groups in ("", ":=billin", ":billingx", ":z"):
                header = let_in(api, "publish:*", f"consume:*{groups}", f"admin:*{groups}")
                answer = await ask(api, route, header)
                assert (answer.status, answer.problem) == (403, "forbidden"), groups


async def test_one_grant_must_cover_topic_and_group(api: Api) -> None:
    for route in [each for each in NAMES_GROUP if "{topic}" in each.path]:
        with case(route.method, route.path):
            header = let_in(
                api, "consume:orders:other", "consume:other:billing", "admin:other:billing"
            )
            assert (await ask(api, route, header)).status == 403


#: The requests that a token may send to a granted group without grants for its topics: describe
#: the group without topics, and settle receipts, each of which is checked separately.
WITHOUT_ITS_TOPICS = {
    ("GET", GROUP),
    ("GET", GROUP + "/leases"),
    *[("POST", f"{GROUP}/{verb}") for verb in ("ack", "nack", "release", "extend", "reject")],
}


async def test_a_grant_with_the_group_on_none_of_its_topics_is_refused(api: Api) -> None:
    for route in NAMES_GROUP:
        with case(route.method, route.path):
            header = let_in(api, "consume:=zz:=billing", "admin:=zz:=billing", "publish:*")
            answer = await ask(api, route, header)
            if (route.method, route.path) in WITHOUT_ITS_TOPICS:
                assert answer.status == 200
            else:
                assert (answer.status, answer.problem) == (403, "forbidden")


#: The routes that are also for groups without leases.
WITHOUT_LEASES = {GROUP, OFFSETS, f"{OFFSETS}/reset"}


@pytest.mark.parametrize(
    ("route", "has_leases"),
    [
        pytest.param(route, has_leases, id=f"{has_leases}-{route.method} {route.path}")
        for has_leases in (True, False)
        for route in NAMES_GROUP
        if has_leases or route.path in WITHOUT_LEASES
    ],
)
async def test_offsets_stored_on_another_topic_need_its_grant_where_they_are_deleted(
    api: Api, route: Route, has_leases: bool
) -> None:
    other, _ = await api.store.topics.create("other")
    await api.store.offsets.store_offsets("billing", other, {0: 0})
    if not has_leases:
        await api.groups.delete_group("billing")
        for topic in (other, api.store.table.get("orders")):
            await api.store.offsets.store_offsets("billing", topic, {0: 0})
    header = let_in(api, *right_grants(route))
    answer = await ask(api, route, header)
    if route.method == "DELETE":
        assert (answer.status, answer.problem) == (403, "forbidden")
        assert "other" not in str(answer)
        assert set(api.store.offsets.group_topics("billing")) == {"orders", "other"}
        assert api.groups.has_leases("billing") == has_leases
    else:
        assert answer.status in (200, 201)
        assert api.store.offsets.group_topics("billing")["other"].offsets == {0: 0}


async def test_a_route_without_a_permission_refuses_every_caller(api: Api) -> None:
    for route in ROUTES:
        with case(route.method, route.path):
            said_nothing = Route(route.method, route.path, route.handler, route.params)
            shut = replace(route, access=said_nothing.access)
            for is_required in (False, True):
                token, text = make_token("all")
                api.context.http.access = access_of(token)
                api.context.http.access.is_required = is_required
                api.server._app._router = Router([shut])
                answer = await ask(api, route, bearer(text))
                assert (answer.status, answer.problem) == (403, "forbidden"), is_required
