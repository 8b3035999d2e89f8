"""Pulls that are held without a task get the same replies as pulls that a task answers."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast.consumequeue.errors import OffsetTrimmed
from holdfast.consumequeue.reading.fetched import Fetched
from holdfast.holdservice.config import HoldServiceConfig
from holdfast.holdservice.pull_request_hold_service import Wait
from holdfast.http_api.access.tokens import Tokens
from holdfast.http_api.wire.connection import Connection
from tests.support.clients.certificates import Certificates
from tests.support.clients.raw_http import RawConnection, raw_connection, until
from tests.support.clients.tokens import access_of, bearer, make_token
from tests.support.servers.api_server import Api, running_api

QUEUE = "/v1/topics/orders/queues/0/messages"
BATCH = "application/vnd.holdfast.batch"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


#: A pull that is to expire waits so long that a stall cannot end it before it is seen held.
EXPIRES_MS = 4000


def request(query: str, headers: Mapping[str, str] | None = None) -> bytes:
    lines = [f"GET {QUEUE}?{query} HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


async def answer(connection: RawConnection) -> tuple[int, dict[str, str], bytes]:
    async with asyncio.timeout(20):
        status, headers, body = await connection.answer()
    headers.pop("date", None)
    return status, headers, body


async def store_head(
    connection: RawConnection, query: str, headers: Mapping[str, str] | None = None
) -> None:
    """Pull a message at offset 0 until the head of this pull is stored."""
    for _ in range(3):
        await connection.send(request(f"offset=0&{query}", headers))
        assert (await answer(connection))[0] == 200


async def hold(
    api: Api, connection: RawConnection, query: str, headers: Mapping[str, str] | None = None
) -> None:
    """Send one more pull. Return when it is held."""
    held = api.hold.stats().held
    await connection.send(request(query, headers))
    await api.held(held + 1)


@asynccontextmanager
async def held_pull(
    api: Api, query: str = "wait_ms=60000", headers: Mapping[str, str] | None = None, **more: Any
) -> AsyncIterator[RawConnection]:
    """Hold a pull without a task, at offset 1 of queue 0 of "orders"."""
    await api.fill(10)
    async with raw_connection(api.server.port, **more) as connection:
        await store_head(connection, query, headers)
        await hold(api, connection, f"offset=1&{query}", headers)
        assert not is_task(api)
        yield connection


def is_task(api: Api) -> bool:
    """Return whether a task answers the request of the newest connection that answers one."""
    (task,) = [each.task for each in api.connections if each.task is not None]
    return isinstance(task, asyncio.Task)


def connection_of(api: Api) -> Connection:
    (connection,) = api.connections
    return connection


async def test_a_held_pull_needs_no_task_and_gets_its_message(api: Api) -> None:
    tasks = asyncio.all_tasks()
    async with held_pull(api) as connection:
        assert asyncio.all_tasks() <= tasks
        await api.fill(20)
        status, headers, body = await answer(connection)
        assert (status, headers["holdfast-next-offset"]) == (200, "2")
        assert b"x" * 20 in body
        await hold(api, connection, "offset=2&wait_ms=60000")
        assert not is_task(api)
        await api.fill(30)
        assert b"x" * 30 in (await answer(connection))[2]
    assert api.hold.stats().woken_total == 2


async def test_a_held_pull_is_counted_in_the_metrics(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = api.context.http.metrics
    async with held_pull(api) as connection:
        before = replace(metrics.topic("orders"))
        requests = _requests(api)
        # As if the pull had been held for 100 s.
        for module in ("held_pulls", "held_requests"):
            clock = f"holdfast.http_api.{module}.monotonic"
            monkeypatch.setattr(clock, lambda: monotonic() + 100)
        await api.fill(20)
        _, _, body = await answer(connection)
    after = metrics.topic("orders")
    assert after.messages_out == before.messages_out + 1
    assert after.bytes_out == before.bytes_out + len(body)
    count, seconds = _requests(api)
    assert count == requests[0] + 1
    assert seconds - requests[1] < 90, "the time of the hold is not counted"
    assert dict(metrics.wake_seconds.buckets())["+Inf"] == 1


def _requests(api: Api) -> tuple[float, float]:
    """Return the number of pulls that were answered with 200, and the time that they took."""
    for family in api.context.http.registry.collect():
        if family.name == "holdfast_http_request_seconds":
            found = {
                each.name.rpartition("_")[2]: each.value
                for each in family.samples
                if each.labels["route"].endswith("/queues/{queue}/messages")
                and each.labels["code"] == "200"
                and not each.name.endswith("_bucket")
            }
            return found["count"], found["sum"]
    raise KeyError("holdfast_http_request_seconds")


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("wait_ms=60000&tag=a", {}),
        ("wait_ms=60000&filter=a%20IS%20NULL", {}),
        ("wait_ms=60000&max_bytes=2000000", {}),  # its reply may be a large text
        ("wait_ms=60000", {"Last-Event-ID": "0:0"}),
    ],
)
async def test_other_pulls_are_held_by_a_task(
    api: Api, query: str, headers: dict[str, str]
) -> None:
    await api.publish("orders", {"body": "x", "queue": 0, "tag": "a"})
    async with raw_connection(api.server.port) as connection:
        await store_head(connection, query, headers)
        await hold(api, connection, f"offset=1&{query}", headers)
        assert is_task(api)
        await api.publish("orders", {"body": "y", "queue": 0, "tag": "a"})
        assert (await answer(connection))[0] == 200


async def test_a_pull_with_a_body_is_held_by_a_task(api: Api) -> None:
    await api.fill(10)
    async with raw_connection(api.server.port) as connection:
        for offset in (0, 0, 0, 1):
            headers = {"Content-Length": "4"}
            await connection.send(request(f"offset={offset}&wait_ms=60000", headers) + b"body")
            if offset == 0:
                assert (await answer(connection))[0] == 200
        await api.held(1)
        assert is_task(api)


@pytest.mark.parametrize(
    "limits", [{"max_requests_per_s_per_client": 100_000}, {"access_log": "common"}]
)
async def test_with_request_rates_or_an_access_log_a_task_holds_a_pull(
    limits: dict[str, Any],
) -> None:
    async with running_api(orders=1, **limits) as api:
        await api.fill(10)
        async with raw_connection(api.server.port) as connection:
            await store_head(connection, "wait_ms=60000")
            await hold(api, connection, "offset=1&wait_ms=60000")
            assert is_task(api)


async def test_a_pull_whose_client_is_gone_frees_its_place_at_once(api: Api) -> None:
    async with held_pull(api) as connection:
        connection.writer.transport.abort()
        await until(lambda: not api.context.http.connections.limits.count)
        assert api.hold.stats().held == 0
        assert api.hold.stats().cancelled_total == 1
    before = api.context.http.metrics.topic("orders").messages_out
    await api.fill(10)
    assert api.context.http.metrics.topic("orders").messages_out == before


async def test_a_client_that_is_gone_when_its_pull_is_woken_gets_no_reply(api: Api) -> None:
    reads = _reads(api, None)
    async with held_pull(api) as connection:
        reads.clear()
        tasks = asyncio.all_tasks()
        topic = api.store.table.get("orders")
        api.hold.message_arriving({(topic.topic_id, 0): 2})
        connection_of(api).abort()
        await until(lambda: not api.context.http.connections.limits.count)
        assert await connection.closed() == b""
        assert asyncio.all_tasks() <= tasks
    assert not reads
    assert api.hold.stats().held == 0


def _reads(api: Api, result: Fetched | Exception | None) -> list[tuple[object, ...]]:
    """Let reads of messages in memory have this result. Return the arguments of these reads."""
    reads: list[tuple[object, ...]] = []

    def read_hot(*arguments: object, **bounds: object) -> Fetched | None:
        reads.append(arguments)
        if isinstance(result, Exception):
            raise result
        return result

    api.store.reading.read_hot = read_hot  # type: ignore[method-assign]
    return reads


async def test_requests_that_wait_after_a_held_pull_are_answered_in_order(api: Api) -> None:
    async with held_pull(api) as connection:
        await connection.send(request("offset=0&wait_ms=60000") + HEALTH)
        await connection.send(request("offset=2&wait_ms=60000"))
        await api.fill(20)
        assert (await answer(connection))[1]["holdfast-next-offset"] == "2"
        assert (await answer(connection))[1]["holdfast-next-offset"] == "2"
        assert b"orders" not in (await answer(connection))[2]
        await api.held(1)
        await api.fill(30)
        assert (await answer(connection))[1]["holdfast-next-offset"] == "3"


async def test_a_held_pull_expires(api: Api) -> None:
    async with held_pull(api, f"wait_ms={EXPIRES_MS}") as connection:
        status, headers, body = await answer(connection)
        assert (status, headers["holdfast-next-offset"]) == (200, "1")
        assert b'"messages":[]' in body
    assert api.hold.stats().expired_total == 1


async def test_a_stop_answers_a_held_pull(api: Api) -> None:
    async with held_pull(api) as connection:
        await api.server.stop()
        status, headers, body = await answer(connection)
        assert (status, headers["connection"]) == (503, "close")
        assert b"/problems/draining" in body
        assert await connection.closed() == b""


async def test_the_pulls_of_a_deleted_topic_do_not_wait_for_a_new_topic(api: Api) -> None:
    async with held_pull(api) as connection:
        api.hold.topic_deleted(api.store.table.get("orders").topic_id)
        status, _, body = await answer(connection)
        assert status == 404
        assert b"/problems/unknown-topic" in body


async def test_no_message_is_delivered_after_the_token_was_revoked(api: Api) -> None:
    token, text = make_token("consume:*:*")
    access = api.context.http.access = access_of(token)
    async with held_pull(api, headers=bearer(text)) as connection:
        access.tokens = Tokens()
        await api.fill(20)
        status, _, body = await answer(connection)
        assert status == 401
        assert b"x" * 20 not in body


async def test_a_pull_above_the_limit_is_refused_and_counted_once() -> None:
    async with (
        running_api(orders=1, hold=HoldServiceConfig(max_held=1)) as api,
        held_pull(api),
        raw_connection(api.server.port) as second,
    ):
        await second.send(request("offset=1&wait_ms=60000"))
        status, _, body = await answer(second)
        assert status == 429
        assert b"/problems/too-many-held" in body
        assert api.hold.stats().refused_total == 1
        await second.send(request("offset=0&wait_ms=60000"))
        assert (await answer(second))[0] == 200


async def test_a_hold_that_fails_unexpectedly_is_a_problem(api: Api) -> None:
    def fail(*arguments: object, **more: object) -> Wait:
        raise RuntimeError("the hold failed")

    await api.fill(10)
    async with raw_connection(api.server.port) as connection:
        await store_head(connection, "wait_ms=60000")
        api.hold.begin = fail  # type: ignore[method-assign]
        await connection.send(request("offset=1&wait_ms=60000"))
        status, _, body = await answer(connection)
        assert status == 500
        assert b"/problems/internal" in body
        await connection.send(HEALTH)
        assert (await answer(connection))[0] == 200


async def test_a_task_reads_messages_that_are_not_in_memory(api: Api) -> None:
    async with held_pull(api) as connection:
        reads = _reads(api, None)
        await api.fill(20)
        status, headers, body = await answer(connection)
        assert (status, headers["holdfast-next-offset"], len(reads)) == (200, "2", 1)
        assert b"x" * 20 in body


async def test_a_read_that_fails_is_a_problem(api: Api) -> None:
    async with held_pull(api) as connection:
        _reads(api, OffsetTrimmed("orders", 0, 1, 2, 2))
        await api.fill(20)
        status, _, body = await answer(connection)
        assert status == 410
        assert b"/problems/offset-trimmed" in body
        await connection.send(HEALTH)
        assert (await answer(connection))[0] == 200


@pytest.mark.parametrize("size", [700_000, 3_000_000])
async def test_a_client_that_reads_slowly_gets_the_whole_reply(size: int) -> None:
    query, batches = "wait_ms=60000&max_bytes=4000000", {"Accept": BATCH}
    async with (
        running_api(orders=1, send_buffer_bytes=4096) as api,
        held_pull(api, query, batches) as connection,
    ):
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await api.fill(size)
        ours = connection_of(api)
        await until(lambda: ours.writer.is_paused)
        assert isinstance(ours.task, asyncio.Task)
        connection.writer.write(HEALTH)
        connection.writer.transport.resume_reading()  # type: ignore[attr-defined]
        status, _, body = await answer(connection)
        assert status == 200
        assert b"x" * size in body
        assert (await answer(connection))[0] == 200


async def test_a_slow_reader_that_disconnects_leaves_nothing() -> None:
    query, batches = "wait_ms=60000", {"Accept": BATCH}
    async with running_api(orders=1, send_buffer_bytes=4096) as api:
        tasks = asyncio.all_tasks()
        async with held_pull(api, query, batches) as connection:
            connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await api.fill(700_000)
            ours = connection_of(api)
            await until(lambda: ours.writer.is_paused)
            connection.writer.transport.abort()
            await until(lambda: not api.context.http.connections.limits.count)
            await until(lambda: asyncio.all_tasks() <= tasks)
        assert len(api.context.http.connections.unsent) == 0


async def test_a_held_pull_is_answered_over_tls(tmp_path: Path) -> None:
    ca = Certificates(tmp_path)
    certificate, key = ca.issue("server")
    tls: dict[str, Any] = {"tls_certificate": str(certificate), "tls_key": str(key)}
    async with (
        running_api(orders=1, **tls) as api,
        held_pull(api, tls=ca.trusting()) as connection,
    ):
        await api.fill(20)
        assert b"x" * 20 in (await answer(connection))[2]
        await hold(api, connection, "offset=2&wait_ms=60000")
        await api.fill(30)
        assert b"x" * 30 in (await answer(connection))[2]


# -- the same replies as by a task -----------------------------------------------------------

MESSAGES = st.fixed_dictionaries(
    {"body": st.text(max_size=30)},
    optional={
        "key": st.sampled_from(["k", "other"]),
        "tag": st.sampled_from(["a", "b"]),
        "properties": st.dictionaries(st.sampled_from("pq"), st.text(max_size=5), max_size=2),
        "ttl_ms": st.just(1),
    },
)
QUERIES = st.fixed_dictionaries(
    {"wait_ms": st.just("60000")},
    optional={
        "max_messages": st.sampled_from(["1", "2", "1000"]),
        "max_bytes": st.sampled_from(["1", "20", "500", "1048576"]),
        "tag": st.sampled_from(["a", "*"]),
        "skip_corrupt": st.sampled_from(["true", "false"]),
    },
)
MEDIA = ("application/json", "application/x-ndjson", "application/msgpack", BATCH)
#: What happens while the pulls are held, before the messages are published.
EVENTS = st.sampled_from(["nothing", "nothing", "nothing", "trim", "create", "delete"])


async def _compare(
    query: Mapping[str, str], media: str, event: str, messages: list[dict[str, Any]]
) -> None:
    text = "&".join(f"{name}={value}" for name, value in query.items())
    async with (
        running_api(orders=1) as api,
        raw_connection(api.server.port) as one,
        raw_connection(api.server.port) as other,
    ):
        await api.publish("orders", {"body": "first", "queue": 0, "tag": "a"})
        await store_head(one, text, {"Accept": media})
        await one.send(request(f"offset=1&{text}", {"Accept": media}))
        await other.send(request(f"offset=1&{text}", {"Accept": media, "X-New": "a new head"}))
        await api.held(2)
        held = [each.task for each in api.connections if each.task is not None]
        tasks = [isinstance(task, asyncio.Task) for task in held]
        assert sorted(tasks) == [query.get("tag") is not None, True]
        if event == "trim":
            api.trim(0, 1)
        elif event == "create":
            await api.ask("DELETE", "/v1/topics/orders?confirm=orders")
            await api.store.topics.create("orders", queues=1)
        elif event == "delete":
            await api.ask("DELETE", "/v1/topics/orders?confirm=orders")
        elif event == "nothing":
            wanted = [{**each, "queue": 0} for each in messages]
            assert (await api.publish("orders", *wanted)).status == 200
            assert (await api.publish("orders", {"body": "last", "queue": 0, "tag": "a"})).status
        if event == "trim":
            assert (await api.publish("orders", {"body": "x", "queue": 0, "tag": "a"})).status
        assert await answer(one) == await answer(other)


TWO: list[dict[str, Any]] = [{"body": "one"}, {"body": "two"}]


@example({"wait_ms": "60000", "max_messages": "1"}, "application/json", "nothing", TWO)
@example({"wait_ms": "60000", "max_bytes": "1"}, "application/json", "nothing", TWO)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(QUERIES, st.sampled_from(MEDIA), EVENTS, st.lists(MESSAGES, min_size=1, max_size=4))
def test_replies_are_the_same_with_and_without_a_task(
    query: dict[str, str], media: str, event: str, messages: list[dict[str, Any]]
) -> None:
    asyncio.run(_compare(query, media, event, messages))


async def test_replies_to_expired_pulls_are_the_same_with_and_without_a_task() -> None:
    pairs: list[tuple[RawConnection, RawConnection]] = []
    async with running_api(orders=1) as api, AsyncExitStack() as stack:
        await api.publish("orders", {"body": "first", "queue": 0})
        for media in MEDIA:
            for more in ("", "&max_messages=2", "&max_bytes=20", "&skip_corrupt=true"):
                port, query = api.server.port, f"wait_ms={EXPIRES_MS}{more}"
                one = await stack.enter_async_context(raw_connection(port))
                other = await stack.enter_async_context(raw_connection(port))
                await store_head(one, query, {"Accept": media})
                pairs.append((one, other))
                await one.send(request(f"offset=1&{query}", {"Accept": media}))
                new = {"Accept": media, "X-New": "a new head"}
                await other.send(request(f"offset=1&{query}", new))
        await api.held(2 * len(pairs))
        held = [each.task for each in api.connections if each.task is not None]
        assert sum(isinstance(task, asyncio.Task) for task in held) == len(pairs)
        for one, other in pairs:
            assert await answer(one) == await answer(other)
    assert api.hold.stats().expired_total == 2 * len(pairs)
