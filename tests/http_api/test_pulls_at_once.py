"""Pulls that find messages in memory are answered without a task, with the replies of a task."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast.http_api.access.tokens import Tokens
from tests.support.clients.certificates import Certificates
from tests.support.clients.raw_http import RawConnection, raw_connection, until
from tests.support.clients.tokens import access_of, bearer, make_token
from tests.support.event_loop.new_tasks import new_tasks
from tests.support.servers.api_server import Api, running_api

QUEUE = "/v1/topics/orders/queues/{}/messages"
BATCH = "application/vnd.holdfast.batch"
MEDIA = ("application/json", "application/x-ndjson", "application/msgpack", BATCH)
SERVE = "Connection._serve"

Answered = tuple[int, dict[str, str], bytes]


def request(query: str, headers: Mapping[str, str] | None = None, queue: str = "0") -> bytes:
    lines = [f"GET {QUEUE.format(queue)}?{query} HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


async def answer(connection: RawConnection) -> Answered:
    async with asyncio.timeout(20):
        status, headers, body = await connection.answer()
    headers.pop("date", None)
    return status, headers, body


async def ask(connection: RawConnection, data: bytes) -> Answered:
    await connection.send(data)
    return await answer(connection)


async def ask_known(connection: RawConnection, data: bytes) -> tuple[Answered, bool]:
    """Return the reply to a request whose head is stored, and whether a task answered it."""
    for _ in range(2):
        await ask(connection, data)
    with new_tasks() as names:
        found = await ask(connection, data)
    return found, SERVE in names


@pytest.mark.parametrize("media", MEDIA)
async def test_a_pull_that_finds_messages_has_no_task(api: Api, media: str) -> None:
    await api.fill(10)
    async with raw_connection(api.server.port) as connection:
        (status, headers, body), has_task = await ask_known(
            connection, request("offset=0&wait_ms=60000", {"Accept": media})
        )
        assert (status, headers["holdfast-next-offset"]) == (200, "1")
        assert b"x" * 10 in body
        assert not has_task


async def test_a_pull_that_may_not_wait_has_no_task(api: Api) -> None:
    await api.fill(10)
    async with raw_connection(api.server.port) as connection:
        (status, headers, body), has_task = await ask_known(connection, request("offset=1"))
        assert (status, headers["holdfast-next-offset"]) == (200, "1")
        assert b'"messages":[]' in body
        assert not has_task


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("offset=0&tag=*", {}),
        ("offset=0&max_bytes=2000000", {}),  # the reply may be a large text
        ("from=earliest", {}),
        ("offset=0", {"Last-Event-ID": "0:0"}),
        ("offset=0", {"Origin": "http://localhost"}),
    ],
)
async def test_a_task_answers_other_pulls(api: Api, query: str, headers: dict[str, str]) -> None:
    await api.fill(10)
    async with raw_connection(api.server.port) as connection:
        (status, _, body), has_task = await ask_known(connection, request(query, headers))
        assert status == 200
        assert b"x" * 10 in body
        assert has_task


async def test_a_task_reads_messages_that_are_not_in_memory(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.fill(10)
    monkeypatch.setattr(api.store.reading, "read_hot", lambda *arguments, **bounds: None)
    async with raw_connection(api.server.port) as connection:
        (status, _, body), has_task = await ask_known(connection, request("offset=0"))
        assert status == 200
        assert b"x" * 10 in body
        assert has_task


async def test_pipelined_pulls_are_answered_in_order(api: Api) -> None:
    await api.fill(10, count=3)
    async with raw_connection(api.server.port) as connection:
        await ask_known(connection, request("offset=0&max_messages=1"))
        for offset in (0, 1, 2, 3):
            await connection.send(request(f"offset={offset}&max_messages=1"))
        await connection.send(request("offset=0&max_messages=1") * 6)
        found = [(await answer(connection))[1]["holdfast-next-offset"] for _ in range(10)]
        assert found == ["1", "2", "3", "3", *["1"] * 6]


@pytest.mark.parametrize("size", [700_000, 3_000_000])
async def test_a_client_that_reads_slowly_gets_the_whole_reply(size: int) -> None:
    asked = request("offset=0&max_bytes=4000000", {"Accept": BATCH})
    async with (
        running_api(orders=1, send_buffer_bytes=4096) as api,
        raw_connection(api.server.port) as connection,
    ):
        await api.fill(size)
        _, has_task = await ask_known(connection, asked)
        assert not has_task
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await connection.send(asked)
        (ours,) = api.connections
        await until(lambda: ours.writer.is_paused)
        assert isinstance(ours.task, asyncio.Task)
        connection.writer.write(asked)
        connection.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(2):
            status, _, body = await answer(connection)
            assert (status, b"x" * size in body) == (200, True)


async def test_a_slow_reader_that_disconnects_leaves_nothing() -> None:
    asked = request("offset=0", {"Accept": BATCH})
    async with running_api(orders=1, send_buffer_bytes=4096) as api:
        await api.fill(700_000)
        tasks = asyncio.all_tasks()
        async with raw_connection(api.server.port) as connection:
            await ask_known(connection, asked)
            connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await connection.send(asked)
            (ours,) = api.connections
            await until(lambda: ours.writer.is_paused)
            connection.writer.transport.abort()
            await until(lambda: not api.context.http.connections.limits.count)
            await until(lambda: asyncio.all_tasks() <= tasks)
        assert len(api.context.http.connections.unsent) == 0


async def test_no_pull_is_answered_after_the_token_was_revoked(api: Api) -> None:
    token, text = make_token("consume:*")
    access = api.context.http.access = access_of(token)
    await api.fill(10)
    async with raw_connection(api.server.port) as connection:
        asked = request("offset=0", bearer(text))
        (status, _, _), has_task = await ask_known(connection, asked)
        assert (status, has_task) == (200, False)
        access.tokens = Tokens()
        assert (await ask(connection, asked))[0] == 401


async def test_pulls_are_answered_over_tls(tmp_path: Path) -> None:
    ca = Certificates(tmp_path)
    certificate, key = ca.issue("server")
    tls: dict[str, Any] = {"tls_certificate": str(certificate), "tls_key": str(key)}
    async with (
        running_api(orders=1, **tls) as api,
        raw_connection(api.server.port, tls=ca.trusting()) as connection,
    ):
        await api.fill(20)
        (_, _, body), has_task = await ask_known(connection, request("offset=0"))
        assert b"x" * 20 in body
        assert not has_task
        assert b"x" * 20 in (await ask(connection, request("offset=0")))[2]


# -- the same as by a task -------------------------------------------------------------------

MESSAGES = st.fixed_dictionaries(
    {"body": st.text(max_size=30), "queue": st.sampled_from([0, 0, 0, 1])},
    optional={
        "key": st.sampled_from(["k", "other"]),
        "tag": st.sampled_from(["a", "b"]),
        "properties": st.dictionaries(st.sampled_from("pq"), st.text(max_size=5), max_size=2),
        "ttl_ms": st.just(1),
    },
)
QUERIES = st.fixed_dictionaries(
    {"offset": st.sampled_from([*map(str, range(8)), "99999999999999999999"])},
    optional={
        "wait_ms": st.just("0"),
        "max_messages": st.sampled_from(["1", "2", "1000", "0"]),
        "max_bytes": st.sampled_from(["1", "20", "500", "1048576"]),
        "tag": st.sampled_from(["a", "*"]),
        "skip_corrupt": st.sampled_from(["true", "false"]),
        "from": st.just("earliest"),
    },
)
ACCEPTS = st.sampled_from([*MEDIA, f"{BATCH};rebuilt=1", "text/x", "*/*"])
QUEUES = st.sampled_from(["0", "0", "0", "1", "7", "x"])
EVENTS = st.sampled_from(["nothing", "nothing", "trim", "damage"])
Sent = tuple[Mapping[str, str], str, str]
"""The query, media type and queue of a pull."""


def _counts(api: Api) -> dict[str, float]:
    metrics = api.context.http.metrics
    found = {
        f"{sample.labels['route']} {sample.labels['code']}": sample.value
        for metric in api.context.http.registry.collect()
        for sample in metric.samples
        if sample.name == "holdfast_http_request_seconds_count"
    }
    return found | asdict(metrics.topic("orders")) | {"wakes": metrics.wake_seconds.sum_s}


async def _compare(batches: list[list[dict[str, Any]]], event: str, pulls: list[Sent]) -> None:
    async with (
        running_api(orders=2) as api,
        raw_connection(api.server.port) as one,
        raw_connection(api.server.port) as other,
    ):
        for messages in batches:
            assert (await api.publish("orders", *messages)).status == 200
        end = api.store.reading.max_offset((1, 0))
        if event == "trim" and end:
            api.trim(0, min(2, end))
        for query, media, queue in pulls:
            text = "&".join(f"{name}={value}" for name, value in query.items())
            headers = {"Accept": media}
            for _ in range(2):
                await ask(one, request(text, headers, queue))
            if event == "damage" and end:
                api.damage(0, 0)
                event = "nothing"
            seen = [_counts(api)]
            found: list[Answered] = []
            for connection, more in ((one, {}), (other, {"X-New": "a new head"})):
                found.append(await ask(connection, request(text, headers | more, queue)))
                seen.append(_counts(api))
            assert found[0] == found[1]
            first, second, third = seen
            gained = [
                {name: after[name] - before.get(name, 0) for name in after}
                for before, after in ((first, second), (second, third))
            ]
            assert gained[0] == gained[1]


FIVE: list[list[dict[str, Any]]] = [[{"body": "one", "queue": 0}] * 2] * 3


@example(FIVE, "nothing", [({"offset": "1"}, media, "0") for media in MEDIA])
@example(FIVE, "nothing", [({"offset": "0", "max_bytes": "1"}, media, "0") for media in MEDIA])
@example(FIVE, "nothing", [({"offset": "1", "max_messages": "2"}, MEDIA[0], "0")])
@example(FIVE, "trim", [({"offset": "0"}, MEDIA[0], "0"), ({"offset": "9"}, MEDIA[0], "0")])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.lists(MESSAGES, min_size=1, max_size=3), max_size=4),
    EVENTS,
    st.lists(st.tuples(QUERIES, ACCEPTS, QUEUES), min_size=1, max_size=4),
)
def test_replies_are_the_same_with_and_without_a_task(
    batches: list[list[dict[str, Any]]], event: str, pulls: list[Sent]
) -> None:
    asyncio.run(_compare(batches, event, pulls))
