"""Receives from a group need no task, and get the replies of a task."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast.consumequeue.errors import StateUnavailable
from holdfast.groups.core.group import Group
from holdfast.holdservice.config import HoldServiceConfig
from holdfast.http_api.access.tokens import Tokens
from holdfast.http_api.wire.connection import Connection
from tests.support.clients.raw_http import RawConnection, raw_connection, until
from tests.support.clients.tokens import access_of, bearer, let_in, make_token
from tests.support.event_loop.new_tasks import new_tasks
from tests.support.servers.api_server import Api, running_api

G = "/v1/groups/g"
JSON, NDJSON, MSGPACK = "application/json", "application/x-ndjson", "application/msgpack"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
SERVE = "Connection._serve"
#: A receive that is to expire waits so long that a stall cannot end it before it is seen held.
EXPIRES_MS = 4000
#: All bodies have this size, so that their heads are alike.
BODY_BYTES = 2000

Answered = tuple[int, dict[str, str], Any]


def request(headers: Mapping[str, str] | None = None, **fields: object) -> bytes:
    body = json.dumps({"member": "m", **fields}).encode().ljust(BODY_BYTES)
    lines = [f"POST {G}/receive HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += [
        f"{name}: {value}" for name, value in {"Content-Type": JSON, **(headers or {})}.items()
    ]
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode() + body


async def answer(connection: RawConnection) -> Answered:
    async with asyncio.timeout(20):
        status, headers, body = await connection.answer()
    headers.pop("date", None)
    is_json = "json" in headers["content-type"] and "ndjson" not in headers["content-type"]
    return status, headers, json.loads(body) if is_json else body


async def ask(connection: RawConnection, data: bytes) -> Answered:
    await connection.send(data)
    return await answer(connection)


async def know(connection: RawConnection, headers: Mapping[str, str] | None = None) -> None:
    """Store the head of a receive, without leasing anything."""
    for _ in range(2):
        assert (await ask(connection, request(headers, max_messages=0)))[0] == 200


async def fill(api: Api, *bodies: str) -> None:
    messages = [{"body": body, "queue": 0} for body in bodies]
    assert (await api.publish("orders", *messages)).status == 200


async def make_group(api: Api, *bodies: str, **fields: object) -> None:
    put = {"topics": {"orders": {}}, "start": "earliest", **fields}
    assert (await api.send_json("PUT", G, put)).status == 201
    if bodies:
        await fill(api, *bodies)


async def make_used_group(api: Api, *bodies: str, **fields: object) -> None:
    """Make a group that has received a message, so that it need not commit the range of offsets
    that it may deliver."""
    await make_group(api, "used", **fields)
    found = await api.send_json("POST", f"{G}/receive", {"member": "m", "max_messages": 1})
    receipts = [each["receipt"] for each in found.json()["messages"]]
    assert (await api.send_json("POST", f"{G}/ack", {"receipts": receipts})).status == 200
    if bodies:
        await fill(api, *bodies)


def core(api: Api) -> Group:
    return api.groups.registry.by_name["g"].core


def is_idle(api: Api) -> bool:
    """Return whether no request occupies memory, a place or a watch."""
    arriving = api.context.http.connections.arriving
    watch = api.groups.registry.by_name["g"].watch
    return not (
        arriving.total_bytes or len(arriving) or api.hold.stats().held or watch._waiting
    ) and not len(core(api).waiters)


def bodies(found: Answered) -> list[str]:
    assert found[0] == 200, found
    return [each["body"] for each in found[2]["messages"]]


@asynccontextmanager
async def held_receive(
    api: Api, headers: Mapping[str, str] | None = None, **fields: object
) -> AsyncIterator[RawConnection]:
    """Hold a receive without a task."""
    async with raw_connection(api.server.port) as connection:
        await know(connection, headers)
        with new_tasks() as names:
            await connection.send(request(headers, **{"wait_ms": 60_000, **fields}))
            await api.held(1)
        assert names == []
        yield connection


def connection_of(api: Api) -> Connection:
    (connection,) = [each for each in api.connections if each.task is not None]
    return connection


async def is_gone(api: Api) -> None:
    await until(lambda: not api.context.http.connections.limits.count)


async def test_a_receive_that_finds_messages_has_no_task(api: Api) -> None:
    await make_used_group(api, "a", "b")
    async with raw_connection(api.server.port) as connection:
        await know(connection)
        with new_tasks() as names:
            first = await ask(connection, request(max_messages=1))
            second = await ask(connection, request(max_messages=1, lease_ms=20_000, attempt_id="1"))
            empty = await ask(connection, request(max_messages=1))
        assert [*map(bodies, (first, second, empty))] == [["a"], ["b"], []]
        assert names == []
    assert core(api).lease_count == 2
    assert is_idle(api)


async def test_a_held_receive_has_no_task_and_gets_its_message(api: Api) -> None:
    await make_used_group(api)
    async with held_receive(api) as connection:
        with new_tasks() as names:
            await fill(api, "a")
            assert bodies(await answer(connection)) == ["a"]
        assert names.count(SERVE) == 1  # it answers the publish
        assert "GroupServer.finish_reply" not in names
    assert api.hold.stats().cancelled_total == 0
    assert core(api).lease_count == 1
    assert is_idle(api)


async def test_the_time_of_the_hold_is_not_counted(api: Api) -> None:
    await make_used_group(api)
    async with held_receive(api, wait_ms=EXPIRES_MS) as connection:
        assert bodies(await answer(connection)) == []
    seconds = _receive_seconds(api)
    assert seconds < EXPIRES_MS / 1000


def _receive_seconds(api: Api) -> float:
    return sum(
        sample.value
        for metric in api.context.http.registry.collect()
        for sample in metric.samples
        if sample.name == "holdfast_http_request_seconds_sum"
        and sample.labels["route"].endswith("/receive")
    )


async def test_requests_after_a_held_receive_are_answered_in_order(api: Api) -> None:
    await make_used_group(api)
    async with held_receive(api) as connection:
        await connection.send(HEALTH + request() + request(wait_ms=60_000))
        await fill(api, "a")
        assert bodies(await answer(connection)) == ["a"]
        assert "messages" not in (await answer(connection))[2]
        assert bodies(await answer(connection)) == []
        await api.held(1)
        await fill(api, "b")
        assert bodies(await answer(connection)) == ["b"]


# -- settling first ------------------------------------------------------------------------------


async def test_a_receive_that_settles_has_no_task(api: Api) -> None:
    await make_used_group(api, "a", "b", "c")
    async with raw_connection(api.server.port) as connection:
        await know(connection)
        found = await ask(connection, request(max_messages=2))
        one, other = [each["receipt"] for each in found[2]["messages"]]
        settle = [{"verb": "ack", "receipts": [one]}, {"verb": "nack", "receipts": [other, "x"]}]
        with new_tasks() as names:
            found = await ask(connection, request(settle=settle))
        assert names == []
        outcomes = [[each["status"] for each in entry["results"]] for entry in found[2]["outcomes"]]
        assert outcomes == [["done"], ["done", "invalid"]]
        assert bodies(found) == ["c"]
        found = await ask(connection, request(settle=[]))
        assert (found[2]["outcomes"], bodies(found)) == ([], [])
    assert is_idle(api)


def hold_commits(api: Api, patch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Hold the commits of groups from now on. Return the functions that make them."""
    store = api.storage.groups.store
    commit, held = store.commit, list[Callable[[], None]]()
    patch.setattr(store, "commit", lambda *what, **more: held.append(lambda: commit(*what, **more)))
    return held


async def test_messages_are_leased_after_the_settled_receipts_are_durable(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_used_group(api, "a", "b", max_in_flight=1)
    async with raw_connection(api.server.port) as connection:
        await know(connection)
        (first,) = (await ask(connection, request()))[2]["messages"]
        with monkeypatch.context() as patch:
            held = hold_commits(api, patch)
            settle = [{"verb": "ack", "receipts": [first["receipt"]]}]
            await connection.send(request(settle=settle) + HEALTH)
            await until(lambda: bool(held))
            assert core(api).lease_count == 0
        held[0]()
        assert bodies(await answer(connection)) == ["b"]
        assert (await answer(connection))[0] == 200
    assert is_idle(api)


async def test_a_receive_whose_settling_fails_leases_nothing(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_used_group(api, "a", "b")
    async with raw_connection(api.server.port) as connection:
        await know(connection)
        (first,) = (await ask(connection, request(max_messages=1)))[2]["messages"]
        settle = [{"verb": "ack", "receipts": [first["receipt"]]}]
        with monkeypatch.context() as broken:
            broken.setattr(
                api.storage.groups.store,
                "commit",
                lambda writes, done, **more: done(StateUnavailable("EIO")),
            )
            status, _, _ = await ask(connection, request(settle=settle))
            assert status == 503
        assert core(api).lease_count == 0
        assert bodies(await ask(connection, request(settle=settle))) == ["b"]
    assert is_idle(api)


async def test_a_client_that_is_gone_before_its_settling_is_durable_gets_no_lease(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_used_group(api, "a", "b")
    async with raw_connection(api.server.port) as connection:
        await know(connection)
        (first,) = (await ask(connection, request(max_messages=1)))[2]["messages"]
        with monkeypatch.context() as patch:
            held = hold_commits(api, patch)
            settle = [{"verb": "ack", "receipts": [first["receipt"]]}]
            await connection.send(request(settle=settle))
            await until(lambda: bool(held))
            connection.writer.transport.abort()
            try:
                await until(lambda: is_idle(api))
            finally:
                held[0]()
    await api.send_json("POST", f"{G}/receive", {"max_messages": 0})
    assert core(api).lease_count == 0


# -- the end of a held receive -------------------------------------------------------------------


async def test_nothing_is_leased_to_a_client_that_is_gone(api: Api) -> None:
    await make_used_group(api)
    async with held_receive(api) as connection:
        connection.writer.transport.abort()
        await until(lambda: is_idle(api))
    await fill(api, "a")
    assert core(api).lease_count == 0
    assert not api.groups.undelivered_


async def test_a_client_that_is_gone_when_its_receive_is_woken_leaves_no_lease(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_used_group(api)
    async with held_receive(api):
        connection = connection_of(api)
        note_end = core(api).note_end
        leases: list[int] = []

        def note_and_abort(*what: Any) -> None:
            note_end(*what)
            asyncio.get_running_loop().call_soon(abort)

        def abort() -> None:
            leases.append(core(api).lease_count)
            connection.abort()

        monkeypatch.setattr(core(api), "note_end", note_and_abort)
        await fill(api, "a")
        await until(lambda: is_idle(api) and leases)
        await until(lambda: not core(api).lease_count)
    assert leases[0] == 1
    assert api.groups.stats().undelivered_total == 1
    assert bodies(await _receive(api)) == ["a"]


async def _receive(api: Api) -> Answered:
    async with raw_connection(api.server.port) as connection:
        return await ask(connection, request(member="other"))


async def test_a_stop_answers_a_held_receive(api: Api) -> None:
    await make_used_group(api)
    async with held_receive(api) as connection:
        await api.server.stop()
        status, headers, problem = await answer(connection)
        assert (status, headers["connection"]) == (503, "close")
        assert problem["type"] == "/problems/draining"
        assert await connection.closed() == b""


async def test_the_receives_of_a_deleted_group_are_answered(api: Api) -> None:
    await make_used_group(api)
    async with held_receive(api) as connection:
        assert (await api.ask("DELETE", f"{G}?confirm=g")).status == 200
        status, _, problem = await answer(connection)
        assert (status, problem["type"]) == (404, "/problems/unknown-group")
    assert not api.hold.stats().held


async def test_a_member_that_leaves_ends_its_held_receive(api: Api) -> None:
    await make_used_group(api)
    async with held_receive(api) as connection:
        assert (await api.send_json("POST", f"{G}/leave", {"member": "m"})).status == 200
        assert bodies(await answer(connection)) == []
    assert is_idle(api)


async def test_no_message_is_delivered_after_the_token_was_revoked(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_used_group(api)
    token, text = make_token("consume:*:*", "publish:*")
    access = api.context.http.access = access_of(token)
    async with held_receive(api, bearer(text)) as connection:
        publishing = asyncio.create_task(
            api.ask(
                "POST", "/v1/topics/orders/messages?queue=0", b"a", Authorization=f"Bearer {text}"
            )
        )
        server = api.groups.registry.by_name["g"]
        begin_reply = server.begin_reply

        def revoke_first(*what: Any) -> Any:
            access.tokens = Tokens()
            return begin_reply(*what)

        monkeypatch.setattr(server, "begin_reply", revoke_first)
        assert (await answer(connection))[0] == 401
        await publishing
    assert core(api).lease_count == 0
    assert len(api.groups.undelivered_) == 1


async def test_a_receive_above_the_limit_of_held_requests_is_refused() -> None:
    async with running_api(orders=1, hold=HoldServiceConfig(max_held=1)) as api:
        await make_used_group(api)
        async with held_receive(api), raw_connection(api.server.port) as second:
            await know(second)
            status, _, problem = await ask(second, request(wait_ms=60_000))
            assert (status, problem["type"]) == (429, "/problems/too-many-held")
            assert bodies(await ask(second, request())) == []
        assert api.hold.stats().refused_total == 1


async def test_a_receive_needs_a_grant_for_the_topics(api: Api) -> None:
    await make_used_group(api, "a")
    async with raw_connection(api.server.port) as connection:
        headers = let_in(api, "consume:refunds:g")
        for _ in range(3):
            assert (await ask(connection, request(headers)))[0] == 403
    assert core(api).lease_count == 0


# -- replies that a task completes ---------------------------------------------------------------


async def test_messages_wait_for_the_commit_on_which_they_depend(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_group(api, "a", mode="exclusive")
    async with raw_connection(api.server.port) as connection:
        with monkeypatch.context() as patch:
            held = hold_commits(api, patch)
            await connection.send(request())
            await until(lambda: bool(held))
            assert core(api).lease_count == 1
        held[0]()
        assert bodies(await answer(connection)) == ["a"]
    assert is_idle(api)


async def test_a_client_that_is_gone_before_that_commit_leaves_no_lease(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_group(api, "a", mode="exclusive")
    async with raw_connection(api.server.port) as connection:
        await know(connection)
        with monkeypatch.context() as patch:
            held = hold_commits(api, patch)
            with new_tasks() as names:
                await connection.send(request())
                await until(lambda: bool(held))
            assert names == ["GroupServer.finish_reply"]
            connection.writer.transport.abort()
            try:
                await until(lambda: not core(api).lease_count)
                await until(lambda: is_idle(api))
            finally:
                for commit in held:
                    commit()
    assert api.groups.stats().undelivered_total == 1


async def test_a_large_reply_is_made_by_a_task(api: Api) -> None:
    await make_used_group(api, *["x" * 100_000] * 9)
    async with raw_connection(api.server.port) as connection:
        await know(connection)
        with new_tasks() as names:
            assert len(bodies(await ask(connection, request()))) == 9
        assert names == ["deliver_in_portions"]
    assert is_idle(api)


async def test_a_client_that_is_gone_before_its_large_reply_is_made_leaves_no_lease(
    api: Api,
) -> None:
    await make_used_group(api, *["x" * 100_000] * 9)
    slots = api.context.large_replies
    for _ in range(api.context.config.max_replies_at_work):
        await slots.acquire()
    async with raw_connection(api.server.port) as connection:
        await know(connection)
        await connection.send(request(max_messages=1000))
        await until(lambda: slots._waiters)
        assert core(api).lease_count == 9
        connection.writer.transport.abort()
        await until(lambda: not core(api).lease_count)
        await until(lambda: is_idle(api))
    assert api.groups.stats().undelivered_total == 9


@pytest.mark.parametrize("fields", [{"filter": "a IS NULL"}, {"browse": True}, {"no_local": "p"}])
async def test_a_task_answers_unusual_receives(api: Api, fields: dict[str, Any]) -> None:
    await make_used_group(api, "a")
    async with raw_connection(api.server.port) as connection:
        await know(connection)
        with new_tasks() as names:
            assert bodies(await ask(connection, request(**fields))) == ["a"]
        assert names == ["_lease"]
    assert is_idle(api)


async def test_messages_that_are_not_in_memory_are_read(api: Api) -> None:
    await make_used_group(api, "a")
    api.store.reading.read_hot = lambda *place, **how: None  # type: ignore[method-assign]
    api.store.reading.newest_alone = lambda *place: None  # type: ignore[method-assign]
    async with raw_connection(api.server.port) as connection:
        await know(connection)
        assert bodies(await ask(connection, request(wait_ms=60_000))) == ["a"]
        await connection.send(request(wait_ms=60_000))
        await api.held(1)
        await fill(api, "b")
        assert bodies(await answer(connection)) == ["b"]
    assert is_idle(api)


@pytest.mark.parametrize(
    "limits", [{"max_requests_per_s_per_client": 100_000}, {"access_log": "common"}]
)
async def test_with_request_rates_or_an_access_log_a_task_answers(limits: dict[str, Any]) -> None:
    async with running_api(orders=1, **limits) as api:
        await make_used_group(api, "a")
        async with raw_connection(api.server.port) as connection:
            await know(connection)
            with new_tasks() as names:
                assert bodies(await ask(connection, request())) == ["a"]
            assert names == [SERVE]


# -- the same as by a task -----------------------------------------------------------------------

FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "member": st.sampled_from(["m", "n", None, ""]),
        "max_messages": st.sampled_from([0, 1, 2, 10_001]),
        "max_bytes": st.sampled_from([1, 200, 10**9]),
        "lease_ms": st.sampled_from([20_000, 600_000, 10**9]),
        "topics": st.sampled_from([["orders"], [], ["other"]]),
        "filter": st.sampled_from(["a IS NULL", "a ="]),
        "settled": st.booleans(),
        "browse": st.booleans(),
        "attempt_id": st.sampled_from(["1", "2"]),
        "limits": st.sampled_from(
            [[{"topic": "orders", "queue": 0, "max_messages": 1}],
             [{"topic": "orders", "key": "k", "max_messages": 1}]]
        ),
        "wait_ms": st.sampled_from([1, 10**9]),
    },
)  # fmt: skip
#: The verb and the numbers of the receipts to settle, of all that the replies had.
SETTLE = st.lists(
    st.tuples(
        st.sampled_from(["ack", "nack", "release", "reject"]),
        st.lists(st.integers(0, 5), max_size=2),
        st.booleans(),
    ),
    max_size=2,
)
MODES = st.sampled_from(["competing", "keyed", "exclusive", "single_active"])
Sent = tuple[dict[str, object], list[tuple[str, list[int], bool]], str]
"""The fields, what is settled, and the media type of the reply."""


async def _replies(mode: str, sent: list[Sent], *, with_tasks: bool) -> list[object]:
    """Return the replies of a new broker to these requests, and the state of the group."""
    found: list[object] = []
    receipts: list[str] = []
    async with running_api(orders=2) as api:
        for queue in (0, 1):
            three = [{"body": f"{queue}{n}", "key": "k", "queue": queue} for n in range(3)]
            assert (await api.publish("orders", *three)).status == 200
        await make_group(api, mode=mode)
        async with raw_connection(api.server.port) as connection:
            if with_tasks:
                api.context.http.connections.heads.find = (  # type: ignore[method-assign]
                    lambda client, data: None
                )
            for fields, settle, media in sent:
                chosen = [
                    {
                        "verb": verb,
                        "receipts": [receipts[n] if n < len(receipts) else "x" for n in numbers],
                        **({"cumulative": True} if cumulative else {}),
                    }
                    for verb, numbers, cumulative in settle
                ]
                both = {**fields, "settle": chosen} if chosen else fields
                headers = {"Accept": media}
                for _ in range(2):
                    await ask(connection, request(headers, max_messages=0))
                status, head, reply = await ask(connection, request(headers, **both))
                head.pop("content-length")
                if isinstance(reply, dict):
                    for each in reply.get("messages", ()):
                        del each["born_timestamp_ms"], each["store_timestamp_ms"]
                        receipt = each.pop("receipt")
                        if receipt is not None:
                            receipts.append(receipt)
                found.append((status, head, reply if isinstance(reply, dict) else len(reply)))
                assert is_idle(api)
        lanes = sorted(api.groups.registry.by_name["g"].lanes(), key=lambda lane: lane.key)
        found += [(lane.key, lane.cursor.floor, lane.cursor.unsettled) for lane in lanes]
        stats = api.groups.stats()
        found += [core(api).lease_count, stats.settled_total, stats.delivered_total]
        found.append(
            {
                (sample.labels["route"], sample.labels["code"]): sample.value
                for metric in api.context.http.registry.collect()
                for sample in metric.samples
                if sample.name == "holdfast_http_request_seconds_count"
            }
        )
    return found


async def _compare(mode: str, sent: list[Sent]) -> None:
    assert await _replies(mode, sent, with_tasks=False) == await _replies(
        mode, sent, with_tasks=True
    )


EACH: list[Sent] = [
    ({"max_messages": 2}, [], JSON),
    ({"max_messages": 1}, [("ack", [0], False), ("nack", [1], False)], JSON),
    ({"max_messages": 1}, [("ack", [2], True)], JSON),
    ({"settled": True, "max_messages": 1}, [], MSGPACK),
    ({"attempt_id": "1"}, [], NDJSON),
    ({"wait_ms": 1}, [], JSON),
]


@example("competing", EACH)
@example("single_active", EACH)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    MODES,
    st.lists(
        st.tuples(FIELDS, SETTLE, st.sampled_from([JSON, JSON, NDJSON, MSGPACK])),
        min_size=1,
        max_size=5,
    ),
)
def test_replies_and_groups_are_the_same_with_and_without_a_task(
    mode: str, sent: list[Sent]
) -> None:
    asyncio.run(_compare(mode, sent))
