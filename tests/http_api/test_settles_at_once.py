"""Requests that settle leased messages need no task, and get the replies of a task."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast.consumequeue.errors import StateUnavailable
from holdfast.groups.service_types import Status
from tests.support.clients.raw_http import RawConnection, raw_connection, until
from tests.support.clients.tokens import let_in
from tests.support.event_loop.new_tasks import new_tasks
from tests.support.servers.api_server import Api, running_api

JSON, MSGPACK = "application/json", "application/msgpack"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
SERVE = "Connection._serve"
G = "/v1/groups/g"

Answered = tuple[int, dict[str, str], bytes]


def request(verb: str, value: object, headers: Mapping[str, str] | None = None) -> bytes:
    headers = {"Content-Type": JSON, **(headers or {})}
    packed = headers["Content-Type"] == MSGPACK
    body = value if isinstance(value, bytes) else None
    if body is None:
        body = (msgspec.msgpack if packed else msgspec.json).encode(value)
    lines = [f"POST {G}/{verb} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode() + body


async def answer(connection: RawConnection) -> Answered:
    async with asyncio.timeout(20):
        status, headers, body = await connection.answer()
    headers.pop("date", None)
    return status, headers, body


async def ask(connection: RawConnection, data: bytes) -> Answered:
    await connection.send(data)
    return await answer(connection)


async def leased(api: Api, count: int = 8) -> list[str]:
    """Publish messages to two queues, and return the receipts under which "m" has leased them."""
    half = [{"body": f"{number}", "key": f"{number % 3}"} for number in range(count)]
    for queue in (0, 1):
        assert (await api.publish("orders", *[{**each, "queue": queue} for each in half])).status
    settings = {"topics": {"orders": {}}, "start": "earliest", "max_attempts": 2}
    assert (await api.send_json("PUT", G, settings)).status == 201
    found = await api.send_json("POST", f"{G}/receive", {"member": "m", "max_messages": count})
    return [each["receipt"] for each in found.json()["messages"]]


async def know(connection: RawConnection, data: bytes) -> None:
    """Store the head of a request. Its receipts must be of no effect."""
    for _ in range(2):
        assert (await ask(connection, data))[0] == 200


def like(receipt: str) -> str:
    """Return a text of the same length that is no receipt."""
    return "x" * len(receipt)


def is_idle(api: Api) -> bool:
    arriving = api.context.http.connections.arriving
    return not (arriving.total_bytes or len(arriving))


@pytest.mark.parametrize("verb", ["ack", "nack", "release", "extend", "reject"])
async def test_a_settle_with_a_stored_head_has_no_task(api: Api, verb: str) -> None:
    receipts = await leased(api)
    async with raw_connection(api.server.port) as connection:
        await know(connection, request(verb, {"receipts": [like(receipts[0])]}))
        with new_tasks() as names:
            status, _, body = await ask(connection, request(verb, {"receipts": receipts[:1]}))
        assert (status, json.loads(body)["results"]) == (200, [{"status": "done"}])
        assert SERVE not in names
    assert is_idle(api)


@pytest.mark.parametrize(
    "data",
    [
        request("ack", {"receipts": ["x" * 9000]}),
        request("ack", {"receipts": ["x"]}, {"Origin": "http://localhost"}),
    ],
)
async def test_a_task_answers_unusual_settles(api: Api, data: bytes) -> None:
    await leased(api)
    async with raw_connection(api.server.port) as connection:
        await know(connection, data)
        with new_tasks() as names:
            assert (await ask(connection, data))[0] == 200
        assert SERVE in names


async def test_a_settle_waits_until_it_is_durable(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts = await leased(api)
    commits: list[Any] = []
    async with raw_connection(api.server.port) as connection:
        await know(connection, request("ack", {"receipts": [like(receipts[0])]}))
        with monkeypatch.context() as held:
            held.setattr(
                api.storage.groups.store, "commit", lambda *what, **more: commits.append(what)
            )
            await connection.send(request("ack", {"receipts": receipts[:1]}) + HEALTH)
            await until(lambda: bool(commits))
            assert api.context.http.connections.arriving.total_bytes
            assert [each.task for each in api.connections if each.task is not None]
        (writes, done), *_ = commits
        assert writes
        done(None)
        assert json.loads((await answer(connection))[2])["results"] == [{"status": "done"}]
        assert (await answer(connection))[0] == 200
    assert is_idle(api)


async def test_a_settle_whose_commit_fails_gets_a_problem(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts = await leased(api)
    error = StateUnavailable("EIO")

    def fail(writes: object, done: Any, **more: object) -> None:
        done(error)

    async with raw_connection(api.server.port) as connection:
        await know(connection, request("ack", {"receipts": [like(receipts[0])]}))
        with monkeypatch.context() as broken:
            broken.setattr(api.storage.groups.store, "commit", fail)
            status, _, body = await ask(connection, request("ack", {"receipts": receipts[:1]}))
            assert (status, json.loads(body)["type"]) == (503, "/problems/storage-unavailable")
        assert error.__traceback__ is None
        status, _, body = await ask(connection, request("ack", {"receipts": receipts[:1]}))
        assert (status, json.loads(body)["results"]) == (200, [{"status": "done"}])
    assert is_idle(api)


async def test_what_a_client_has_settled_stays_settled_when_it_disconnects(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts = await leased(api)
    store, commits = api.storage.groups.store, []
    commit = store.commit
    async with raw_connection(api.server.port) as connection:
        await know(connection, request("ack", {"receipts": [like(receipts[0])]}))
        with monkeypatch.context() as held:
            held.setattr(store, "commit", lambda *what, **more: commits.append((what, more)))
            await connection.send(request("ack", {"receipts": receipts[:1]}))
            await until(lambda: bool(commits))
        what, more = commits[0]
        limits = api.context.http.connections.limits
        open_before = limits.count
        try:
            connection.writer.transport.abort()
            await until(lambda: limits.count < open_before)
            assert is_idle(api)
        finally:
            commit(*what, **more)
    found = await api.send_json("POST", f"{G}/release", {"receipts": receipts[:1]})
    assert found.json()["results"] == [{"status": Status.STALE.value}]


async def test_a_settle_needs_a_grant_for_the_topic(api: Api) -> None:
    receipts = await leased(api)
    async with raw_connection(api.server.port) as connection:
        allowed = let_in(api, "consume:refunds:g")
        await know(connection, request("ack", {"receipts": [like(receipts[0])]}, allowed))
        with new_tasks() as names:
            status, _, _ = await ask(
                connection, request("ack", {"receipts": receipts[:1]}, allowed)
            )
        assert status == 403
        assert SERVE not in names
    assert api.groups.settled[-1][1] == receipts[:1]
    assert api.groups.registry.by_name["g"].core.lease_count == len(receipts)


# -- the same as by a task -------------------------------------------------------------------

VERBS = st.sampled_from(["ack", "ack", "nack", "release", "extend", "reject"])
TERMS = st.fixed_dictionaries(
    {},
    optional={
        "delay_ms": st.sampled_from([0, 3_600_000, -1]),
        "used_ms": st.sampled_from([1.5, -1, 10**12]),
        "lease_ms": st.sampled_from([20_000, 900_000, 10**9]),
        "cumulative": st.booleans(),
    },
)
#: The numbers of the receipts; there is no receipt with the highest.
CHOSEN = st.lists(st.integers(0, 8), max_size=4)
FORMS = st.sampled_from(
    [{}, {}, {"Content-Type": MSGPACK}, {"Accept": MSGPACK}, {"Accept": "text/x"},
     {"Content-Type": "text/x"}]
)  # fmt: skip
BODIES = st.sampled_from([None, None, None, None, b"{", b'{"receipts":1}', b'{"a":[]}'])
Sent = tuple[str, list[int], Mapping[str, object], Mapping[str, str], bytes | None]
"""The verb, the receipts, the other fields, the headers, and a body that replaces them."""


async def _replies(sent: list[Sent], *, with_tasks: bool) -> list[object]:
    """Return the replies of a new broker to these requests, and the state of the group."""
    found: list[object] = []
    async with running_api(orders=2) as api:
        receipts = [*await leased(api), "no receipt"]
        async with raw_connection(api.server.port) as connection:
            if with_tasks:
                api.context.http.connections.heads.find = (  # type: ignore[method-assign]
                    lambda client, data: None
                )
            for verb, chosen, terms, headers, body in sent:
                chosen_receipts = [receipts[number] for number in chosen]
                fields = {**terms, "receipts": chosen_receipts}
                # The heads of requests whose receipts have one length are alike.
                unknown = {**fields, "receipts": [*map(like, chosen_receipts)]}
                for each in (unknown, unknown, fields, fields):
                    asked = request(verb, each if body is None else body, headers)
                    found.append(await ask(connection, asked))
                    assert is_idle(api)
        core = api.groups.registry.by_name["g"].core
        for lane in sorted(api.groups.registry.by_name["g"].lanes(), key=lambda lane: lane.key):
            cursor = lane.cursor
            settled = [offset in cursor.done for offset in range(len(receipts))]
            found.append((lane.key, cursor.floor, cursor.unsettled, settled))
        found += [core.lease_count, api.groups.stats().settled_total]
        found.append(
            {
                (sample.labels["route"], sample.labels["code"]): sample.value
                for metric in api.context.http.registry.collect()
                for sample in metric.samples
                if sample.name == "holdfast_http_request_seconds_count"
            }
        )
    return found


async def _compare(sent: list[Sent]) -> None:
    assert await _replies(sent, with_tasks=False) == await _replies(sent, with_tasks=True)


EACH: list[Sent] = [
    ("ack", [0, 1], {}, {}, None),
    ("nack", [2], {"delay_ms": 0}, {}, None),
    ("extend", [3], {"lease_ms": 900_000}, {}, None),
    ("reject", [4], {}, {"Content-Type": MSGPACK, "Accept": MSGPACK}, None),
    ("release", [5, 0, 8], {}, {}, None),
    ("ack", [7], {"cumulative": True}, {}, None),
]


@example(EACH)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(VERBS, CHOSEN, TERMS, FORMS, BODIES), min_size=1, max_size=5))
def test_replies_and_groups_are_the_same_with_and_without_a_task(sent: list[Sent]) -> None:
    asyncio.run(_compare(sent))
