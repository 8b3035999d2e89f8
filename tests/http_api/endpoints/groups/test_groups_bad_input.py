"""All kinds of invalid input about a group with leases: each has its status, problem and hint, and
the groups are not called.

The API has the topic "orders" of two queues, the group "g" with leases on it, the keyed group "k",
and "plain", which only stores offsets.
"""

import json
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

from holdfast.groups.config import GroupsConfig
from holdfast.groups.service_types import Received
from holdfast.groups.settings import GroupSettings, Subscription
from tests.http_api.test_bad_input import JSON, Bad
from tests.support.cases import case
from tests.support.servers.api_server import Api, running_api

G = "/v1/groups/g"
VERBS = ("ack", "nack", "release", "extend", "reject")


def bad(
    path: str,
    body: object,
    status: int,
    problem: str,
    mend: str,
    method: str = "POST",
    **members: object,
) -> Bad:
    return Bad(method, path, status, problem, mend, json.dumps(body).encode(), JSON, members)


def put(body: object, status: int, problem: str, mend: str, **members: object) -> Bad:
    return bad("/v1/groups/new", body, status, problem, mend, "PUT", **members)


GROUPS: Sequence[Bad] = [
    # unknown groups
    *(
        bad(f"/v1/groups/unknown/{verb}", {"receipts": []}, 404, "unknown-group", "storing")
        for verb in VERBS
    ),
    bad("/v1/groups/unknown/receive", {}, 404, "unknown-group", "storing", group="unknown"),
    bad("/v1/groups/unknown/seek", {"to": "latest"}, 404, "unknown-group", "storing"),
    bad("/v1/groups/unknown/leave", {"member": "m"}, 404, "unknown-group", "storing"),
    bad("/v1/groups/plain/receive", {}, 409, "group-without-leases", "PUT /v1/groups/plain"),
    bad("/v1/groups/plain/ack", {"receipts": []}, 409, "group-without-leases", "PUT"),
    bad("/v1/groups/a%2fb/receive", {}, 400, "invalid-name", "group name"),
    Bad("DELETE", "/v1/groups/unknown?confirm=unknown", 404, "unknown-group", "storing"),
    Bad("DELETE", G, 400, "confirm-required", "?confirm=g"),
    Bad("DELETE", "/v1/groups/plain?confirm=Plain", 400, "confirm-required", "?confirm=plain"),
    # creating
    put({"topics": {"a b*": {}}}, 400, "invalid-name", "topic name"),
    put({"topics": {"__*": {}}}, 400, "invalid-name", "topic name"),
    put({"topics": {"*" * 128: {}}}, 400, "invalid-name", "topic name"),
    put({"topics": {"a/b": {}}}, 400, "invalid-name", "topic name"),
    put({"topics": {"orders": {"weight": -1}}}, 400, "invalid-parameter", ">= 0"),
    put({"topics": {"orders": {"weight": 1.5}}}, 400, "invalid-parameter", "int"),
    put({"topics": {"orders": {"wait": 1}}}, 400, "invalid-parameter", "allowed: weight, filter",
        parameter='topics["orders"].wait'),
    put({"topics": ["orders"]}, 400, "invalid-parameter", "object"),
    put({"mode": "shared"}, 400, "invalid-parameter", "competing or keyed or single_active",
        parameter="mode", found="shared"),
    put({"fairness": {"engine": "wfq"}}, 400, "invalid-parameter", "sfq or dwrr"),
    put({"fairness": {"cost": "tokens"}}, 400, "invalid-parameter", "count or bytes"),
    put({"start": 5}, 400, "invalid-parameter", "str", parameter="start"),
    put({"lease_ms": 999}, 400, "invalid-parameter", ">= 1000", parameter="lease_ms"),
    put({"auto_delete_after_ms": -1}, 400, "invalid-parameter", ">= 0"),
    put({"max_in_flight": 0}, 400, "invalid-parameter", ">= 1"),
    put({"max_attempts": -1}, 400, "invalid-parameter", ">= 0"),
    put({"backoff_ms": [5, -1]}, 400, "invalid-parameter", ">= 0"),
    put({"dead_letter_topic": "a b"}, 400, "invalid-name", "topic name"),
    put({"dead_letter_topic": ""}, 400, "invalid-name", "topic name"),
    put({"topic": {}}, 400, "invalid-parameter", "unknown field", parameter="topic"),
    # receiving
    bad(f"{G}/receive", {"member": ""}, 400, "invalid-parameter", "visible", parameter="member"),
    bad(f"{G}/receive", {"member": "a b"}, 400, "invalid-parameter", "visible"),
    bad(f"{G}/receive", {"member": "a\n"}, 400, "invalid-parameter", "visible"),
    bad(f"{G}/receive", {"member": "é"}, 400, "invalid-parameter", "visible"),
    bad(f"{G}/receive", {"attempt_id": " "}, 400, "invalid-parameter", "visible",
        parameter="attempt_id"),
    bad("/v1/groups/k/receive", {}, 400, "missing-parameter", "its member", parameter="member"),
    bad(f"{G}/receive", {"max_messages": -1}, 400, "invalid-parameter", ">= 0"),
    bad(f"{G}/receive", {"max_bytes": 0}, 400, "invalid-parameter", ">= 1"),
    bad(f"{G}/receive", {"wait_ms": -1}, 400, "invalid-parameter", ">= 0"),
    bad(f"{G}/receive", {"lease_ms": 999}, 400, "invalid-parameter", ">= 1000"),
    bad(f"{G}/receive", {"browse": True, "settled": True}, 400, "invalid-parameter", "one of"),
    bad(f"{G}/receive", {"limits": [{"topic": "orders", "max_messages": 1}]}, 400,
        "invalid-parameter", "one of queue and key", parameter="limits[0]"),
    bad(f"{G}/receive", {"limits": [{"topic": "orders", "key": "a", "max_messages": 1}]}, 400,
        "invalid-parameter", "competing", parameter="limits[0].key"),
    bad(f"{G}/receive", {"limits": [{"topic": "orders", "queue": 0, "max_messages": -1}]}, 400,
        "invalid-parameter", ">= 0"),
    bad(f"{G}/receive", {"browse": True, "limits": [{"topic": "orders", "queue": 0,
        "max_messages": 1}]}, 400, "invalid-parameter", "browse"),
    bad(f"{G}/receive", {"include_leased": True}, 400, "invalid-parameter", "with browse"),
    bad(f"{G}/receive", {"settle": [{"verb": "extend", "receipts": []}]}, 400,
        "invalid-parameter", "ack or nack or release or reject", parameter="settle[0].verb"),
    bad(f"{G}/receive", {"settle": [{"verb": "ack"}]}, 400, "missing-parameter", "receipts"),
    bad(f"{G}/receive", {"settle": [{"verb": "ack", "receipts": [], "delay_ms": 1}]}, 400,
        "invalid-parameter", "verb, receipts, cumulative, used_ms", parameter="settle[0].delay_ms"),
    bad(f"{G}/receive", {"settle": [{"verb": "release", "receipts": [], "used_ms": 1}]}, 400,
        "invalid-parameter", "release", parameter="settle[0].used_ms"),
    bad(f"{G}/receive", {"settle": [{"verb": "nack", "receipts": [], "cumulative": True}]}, 400,
        "invalid-parameter", "nack", parameter="settle[0].cumulative"),
    bad(f"{G}/receive", {"max": 5}, 400, "invalid-parameter", "unknown field", parameter="max"),
    bad(f"{G}/receive", [], 400, "invalid-parameter", "object"),
    Bad("POST", f"{G}/receive", 400, "malformed-json", "UTF-8", b'{"member":', JSON),
    Bad("POST", f"{G}/receive", 415, "unsupported-media-type", "application/json", b"x",
        {"Content_Type": "text/plain"}),
    Bad("POST", f"{G}/receive", 406, "not-acceptable", "application/json", b"{}",
        {**JSON, "Accept": "application/vnd.holdfast.batch"}),
    Bad("GET", f"{G}/receive", 405, "method-not-allowed", "use POST"),
    # settling
    *(bad(f"{G}/{verb}", {}, 400, "missing-parameter", "receipts") for verb in VERBS),
    *(bad(f"{G}/{verb}", {"receipts": "r"}, 400, "invalid-parameter", "array") for verb in VERBS),
    bad(f"{G}/ack", {"receipts": [5]}, 400, "invalid-parameter", "str"),
    bad(f"{G}/ack", {"receipts": [], "delay_ms": 5}, 400, "invalid-parameter", "unknown field"),
    bad(f"{G}/ack", {"receipts": [], "used_ms": -0.5}, 400, "invalid-parameter", ">= 0"),
    bad(f"{G}/nack", {"receipts": [], "delay_ms": -1}, 400, "invalid-parameter", ">= 0"),
    bad(f"{G}/nack", {"receipts": [], "cumulative": True}, 400, "invalid-parameter", "unknown"),
    bad(f"{G}/extend", {"receipts": [], "lease_ms": 0}, 400, "invalid-parameter", ">= 1000"),
    # seeking
    bad(f"{G}/seek", {}, 400, "missing-parameter", "to"),
    bad(f"{G}/seek", {"to": "middle"}, 400, "invalid-parameter", "earliest or latest"),
    bad(f"{G}/seek", {"to": -1}, 400, "invalid-parameter", ">= 0"),
    bad(f"{G}/seek", {"to": {"nothing": {"0": 1}}}, 404, "unknown-topic", "create it"),
    bad(f"{G}/seek", {"to": {"orders": {"2": 1}}}, 404, "unknown-queue", "0 to 1"),
    bad(f"{G}/seek", {"to": {"orders": {"00": 1}}}, 400, "invalid-parameter", "queue numbers",
        parameter="to.orders"),
    bad(f"{G}/seek", {"to": {"orders": {"0": -1}}}, 400, "invalid-parameter", ">= 0"),
    bad(f"{G}/seek", {"to": {"orders": 5}}, 400, "invalid-parameter", "object"),
    # redriving dead letters
    bad("/v1/groups/unknown/redrive", {}, 404, "unknown-group", "storing"),
    bad("/v1/groups/plain/redrive", {}, 409, "group-without-leases", "PUT"),
    bad(f"{G}/redrive", {}, 409, "no-dead-letters", "set one", group="g"),
    bad(f"{G}/redrive", {"dead_letter_topic": "a b"}, 400, "invalid-name", "topic name"),
    bad(f"{G}/redrive", {"dead_letter_topic": "d", "limit": 0}, 400, "invalid-parameter", ">= 1"),
    bad(f"{G}/redrive", {"dead_letter_topic": "d", "offsets": {"x": [1]}}, 400,
        "invalid-parameter", "queue numbers", parameter="offsets.x"),
    bad(f"{G}/redrive", {"dead_letter_topic": "d", "offsets": {"0": [-1]}}, 400,
        "invalid-parameter", ">= 0"),
    bad(f"{G}/redrive", {"dead_letter_topic": "d", "drop": 1}, 400, "invalid-parameter",
        "unknown field", parameter="drop"),
    bad(f"{G}/leave", {}, 400, "missing-parameter", "member"),
    bad(f"{G}/leave", {"member": "a b"}, 400, "invalid-parameter", "visible"),
]  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api() -> AsyncIterator[Api]:
    async with running_api(orders=2) as api:
        await api.groups.put_group("g", GroupSettings({"orders": Subscription()}))
        await api.groups.put_group("k", GroupSettings({"orders": Subscription()}, mode="keyed"))
        await api.store.offsets.store_offsets("plain", api.store.table.get("orders"), {0: 0})
        yield api


def _title(bad: Bad) -> str:
    return f"{bad.method} {bad.path} {(bad.body or b'')[:40]!r}"


@pytest.mark.parametrize("bad", GROUPS, ids=_title)
@pytest.mark.asyncio(loop_scope="module")
async def test_bad_input_is_refused_and_changes_nothing(api: Api, bad: Bad) -> None:
    answer = await api.ask(bad.method, bad.path, bad.body, **bad.headers)
    assert (answer.status, answer.problem) == (bad.status, bad.problem), answer.body
    problem = answer.json()
    assert bad.mend in problem["detail"]
    for name, value in bad.members.items():
        assert problem[name] == value
    groups = api.groups
    assert groups.groups() == ["g", "k"]
    assert not (groups.asks or groups.settled or groups.left or groups.redrives)
    assert (await groups.floors("g", "orders")) == {0: 0, 1: 0}


# -- limits --------------------------------------------------------------------------------

_HOURS_12 = 12 * 3_600_000
_WEEK = 7 * 24 * 3_600_000
_LIMIT = {"topic": "orders", "queue": 0, "max_messages": 1}


def _ack_of(count: int) -> dict[str, object]:
    return {"verb": "ack", "receipts": ["r"] * count}


#: Method, path, a body with a given value, the largest allowed value, and the name of the limit if
#: it is a key of the configuration or of the group.
LIMITS = [
    ("POST", f"{G}/receive", lambda n: {"max_messages": n}, 40, "max_receive_messages"),
    ("POST", f"{G}/receive", lambda n: {"limits": [_LIMIT] * n}, 300, "max_receive_limits"),
    (
        "POST",
        f"{G}/receive",
        lambda n: {"settle": [_ack_of(n // 2), _ack_of(n - n // 2)]},
        50,
        "max_settle_receipts",
    ),
    ("POST", f"{G}/receive", lambda n: {"settle": [_ack_of(0)] * n}, 100, None),
    (
        "POST",
        f"{G}/receive",
        lambda n: {"settle": [{"verb": "nack", "receipts": [], "delay_ms": n}]},
        _WEEK,
        None,
    ),
    ("POST", f"{G}/receive", lambda n: {"max_bytes": n}, 16 << 20, "max_pull_bytes"),
    ("POST", f"{G}/receive", lambda n: {"wait_ms": n}, 200, "max_wait_ms"),
    ("POST", f"{G}/receive", lambda n: {"lease_ms": n}, 60_000, "max_lease_ms"),
    ("POST", f"{G}/extend", lambda n: {"receipts": [], "lease_ms": n}, 60_000, "max_lease_ms"),
    ("POST", f"{G}/nack", lambda n: {"receipts": [], "delay_ms": n}, _WEEK, None),
    ("POST", f"{G}/ack", lambda n: {"receipts": [], "used_ms": n}, _HOURS_12, None),
    *(
        ("POST", f"{G}/{verb}", lambda n: {"receipts": ["r"] * n}, 50, "max_settle_receipts")
        for verb in VERBS
    ),
    (
        "POST",
        f"{G}/redrive",
        lambda n: {"dead_letter_topic": "d", "limit": n},
        60,
        "max_redrive_letters",
    ),
    (
        "POST",
        f"{G}/redrive",
        lambda n: {"dead_letter_topic": "d", "offsets": {"0": [1] * n}},
        60,
        "max_redrive_letters",
    ),
    (  # S7: half a million queues without a letter blocked the loop for a second
        "POST",
        f"{G}/redrive",
        lambda n: {"dead_letter_topic": "d", "offsets": {str(i): [] for i in range(n)}},
        60,
        "max_redrive_letters",
    ),
    ("POST", f"{G}/receive", lambda n: {"topics": ["orders"] * n}, 5, "max_topics"),
    ("PUT", G, lambda n: {"topics": {f"t{i}": {} for i in range(n)}}, 5, "max_topics"),
    ("PUT", G, lambda n: {"topics": {"orders": {"weight": n}}}, 1_000_000, None),
    (
        "PUT",
        G,
        lambda n: {"topics": {"orders": {"filter": "a" * n}, "t1": {"filter": "a" * n}}},
        70,
        "max_filter_characters_per_group",
    ),
    ("PUT", G, lambda n: {"lease_ms": n}, 60_000, "max_lease_ms"),
    ("PUT", G, lambda n: {"member_ttl_ms": n}, 86_400_000, None),
    ("PUT", G, lambda n: {"auto_delete_after_ms": n}, 365 * 86_400_000, None),
    ("PUT", G, lambda n: {"max_in_flight": n}, 30, "max_in_flight"),
    ("PUT", G, lambda n: {"max_in_flight_per_member": n}, 30, "max_in_flight"),
    ("PUT", G, lambda n: {"max_in_flight_per_key": n}, 30, "max_in_flight"),
    ("PUT", G, lambda n: {"max_attempts": n}, 60_000, None),
    ("PUT", G, lambda n: {"backoff_ms": [5, n]}, _WEEK, None),
    ("PUT", G, lambda n: {"backoff_ms": [1] * n}, 100, None),
]


@pytest.mark.parametrize(("method", "path", "body", "limit", "name"), LIMITS)
async def test_values_above_a_limit_are_refused(
    method: str, path: str, body: object, limit: int, name: str | None
) -> None:
    assert callable(body)
    limits = GroupsConfig(
        max_topics=5,
        max_filter_characters_per_group=70,
        max_lease_ms=60_000,
        max_in_flight=30,
        max_receive_messages=40,
        max_receive_limits=300,
        max_settle_receipts=50,
        max_redrive_letters=60,
    )
    async with running_api(max_wait_ms=200, limits=limits) as api:
        for topic in ("orders", "d", *(f"t{number}" for number in range(6))):
            await api.store.topics.create(topic, queues=1)
        await api.groups.put_group("g", GroupSettings({"orders": Subscription()}))
        api.groups.answers = [Received([])]
        answer = await api.send_json(method, path, body(limit + 1))
        assert (answer.status, answer.problem) == (400, "limit-exceeded")
        problem = answer.json()
        assert (problem["limit"], problem.get("limit_name")) == (limit, name)
        assert not (api.groups.asks or api.groups.settled or api.groups.redrives)
        for allowed in (limit, limit - 1):
            with case(allowed):
                api.groups.answers = [Received([])]
                answer = await api.send_json(method, path, body(allowed))
                assert answer.status == 200, answer.body
