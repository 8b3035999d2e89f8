"""Publishes without a task get the same replies, and store the same, as publishes of a task."""

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast.commitlog.errors import LogOverloaded, SyncTimeout
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.batch_header import ANY_QUEUE
from holdfast.http_api.access.tokens import Tokens
from tests.support.clients.certificates import Certificates
from tests.support.clients.raw_http import RawConnection, raw_connection, until
from tests.support.clients.tokens import access_of, bearer, make_token
from tests.support.servers.api_server import Api, raising_at_once, running_api

JSON, NDJSON, MSGPACK = "application/json", "application/x-ndjson", "application/msgpack"
BATCH = "application/vnd.holdfast.batch"
RAW = "application/octet-stream"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
READ = b"GET /v1/topics/orders/queues/%d/messages?offset=0 HTTP/1.1\r\nHost: localhost\r\n\r\n"
ONE = {
    RAW: b"one",
    JSON: b'{"messages":[{"body":"one"}]}',
    NDJSON: b'{"body":"one"}\n{"body":"two"}',
    MSGPACK: msgspec.msgpack.encode({"messages": [{"body": b"one", "key": "k"}]}),
    BATCH: encode_batch([b"one", b"two"]),
}
PRODUCER = {"Holdfast-Producer-Id": "7", "Holdfast-Producer-Epoch": "0"}
SEQUENCE = "Holdfast-Producer-Sequence"


def request(
    body: bytes,
    kind: str = RAW,
    query: str = "",
    headers: Mapping[str, str] | None = None,
    topic: str = "orders",
) -> bytes:
    lines = [f"POST /v1/topics/{topic}/messages{query} HTTP/1.1", "Host: localhost"]
    lines += [f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode() + body


async def answer(connection: RawConnection) -> tuple[int, dict[str, str], bytes]:
    async with asyncio.timeout(20):
        status, headers, body = await connection.answer()
    headers.pop("date", None)
    return status, headers, body


async def ask(connection: RawConnection, data: bytes) -> tuple[int, dict[str, str], bytes]:
    await connection.send(data)
    return await answer(connection)


@asynccontextmanager
async def waiting_publish(
    api: Api, data: bytes | None = None, **more: Any
) -> AsyncIterator[RawConnection]:
    """Send a publish with a stored head; it is stored, and is not acknowledged before
    `api.publish_gate` is set."""
    data = request(b"one") if data is None else data
    async with raw_connection(api.server.port, **more) as connection:
        for _ in range(3):
            assert (await ask(connection, data))[0] == 200
        api.publish_gate = asyncio.Event()
        before = len(api.publishes)
        await connection.send(data)
        await until(lambda: len(api.publishes) > before)
        yield connection


def has_task(api: Api) -> bool:
    """Return whether a task answers the only request that is being answered."""
    (task,) = [each.task for each in api.connections if each.task is not None]
    return isinstance(task, asyncio.Task)


def is_idle(api: Api) -> bool:
    """Return whether no publish occupies memory."""
    arriving = api.context.http.connections.arriving
    in_flight = api.store.admission.in_flight_bytes
    return not (arriving.total_bytes or len(arriving) or in_flight)


@pytest.mark.parametrize("kind", ONE)
async def test_a_publish_with_a_stored_head_has_no_task(api: Api, kind: str) -> None:
    async with waiting_publish(api, request(ONE[kind], kind)) as connection:
        assert not has_task(api)
        assert api.context.http.connections.arriving.total_bytes == len(ONE[kind])
        assert api.publish_gate is not None
        api.publish_gate.set()
        status, _, body = await answer(connection)
        assert (status, json.loads(body)["durable"]) == (200, True)
    assert is_idle(api)


@pytest.mark.parametrize(
    "data",
    [
        request(b"x" * 9000),
        request(gzip.compress(b"one", mtime=0), headers={"Content-Encoding": "gzip"}),
        b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: localhost\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n0\r\n\r\n",
        request(b"one", headers={"Origin": "http://localhost"}),
    ],
)
async def test_a_task_answers_unusual_publishes(api: Api, data: bytes) -> None:
    async with waiting_publish(api, data) as connection:
        assert has_task(api)
        assert api.publish_gate is not None
        api.publish_gate.set()
        assert (await answer(connection))[0] == 200
    assert is_idle(api)


async def test_nothing_is_left_of_a_publish_whose_client_disconnects(api: Api) -> None:
    tasks = asyncio.all_tasks()
    async with waiting_publish(api) as connection:
        connection.writer.transport.abort()
        await until(lambda: not api.context.http.connections.limits.count)
        assert is_idle(api)
    assert api.publish_gate is not None
    api.publish_gate.set()
    await until(lambda: asyncio.all_tasks() <= tasks)
    async with raw_connection(api.server.port) as other:
        assert b"one" in (await ask(other, READ % 0))[2]


async def test_requests_after_a_publish_are_answered_in_order(api: Api) -> None:
    async with waiting_publish(api) as connection:
        await connection.send(HEALTH + request(b"one"))
        await connection.send(request(b"two"))
        assert api.publish_gate is not None
        api.publish_gate.set()
        assert b"results" in (await answer(connection))[2]
        assert b"results" not in (await answer(connection))[2]
        assert b"results" in (await answer(connection))[2]
        assert b"results" in (await answer(connection))[2]
    assert is_idle(api)


async def test_a_stop_waits_for_a_publish(api: Api) -> None:
    async with waiting_publish(api) as connection:
        stopping = asyncio.create_task(api.server.stop())
        await until(lambda: api.context.http.connections.limits.count == 1)
        assert api.publish_gate is not None
        api.publish_gate.set()
        status, headers, _ = await answer(connection)
        assert (status, headers["connection"]) == (200, "close")
        assert await connection.closed() == b""
        await stopping


@pytest.mark.parametrize(
    ("error", "status"), [(LogOverloaded(2, 1), 503), (RuntimeError("a bug"), 500)]
)
async def test_a_publish_that_cannot_begin_gets_a_problem(
    api: Api, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    async with raw_connection(api.server.port) as connection:
        for _ in range(3):
            assert (await ask(connection, request(b"one")))[0] == 200
        with monkeypatch.context() as broken:
            broken.setattr(api.store.publishing, "begin", raising_at_once(error))
            assert (await ask(connection, request(b"one")))[0] == status
        assert is_idle(api)
        assert error.__traceback__ is None
        assert (await ask(connection, request(b"one")))[0] == 200


async def test_a_publish_that_fails_later_gets_a_problem(api: Api) -> None:
    begin = api.store.publishing.begin
    async with raw_connection(api.server.port) as connection:
        for _ in range(3):
            assert (await ask(connection, request(b"one")))[0] == 200

        def fail(*arguments: Any, **more: Any) -> Any:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.set_exception(SyncTimeout(1))
            return msgspec.structs.replace(begin(*arguments, **more), future=future)

        api.store.publishing.begin = fail  # type: ignore[method-assign]
        status, _, body = await ask(connection, request(b"one"))
        assert (status, json.loads(body)["type"]) == (503, "/problems/sync-timeout")
        api.store.publishing.begin = begin  # type: ignore[method-assign]
        assert (await ask(connection, request(b"one")))[0] == 200
    await until(lambda: is_idle(api))


async def test_limits_refuse_a_publish_with_a_stored_head() -> None:
    async with (
        running_api(orders=1, max_publish_messages_per_s_per_client=3) as api,
        raw_connection(api.server.port) as connection,
    ):
        found = [(await ask(connection, request(b"one")))[0] for _ in range(8)]
        assert found[:3] == [200] * 3
        assert 429 in found[3:]


async def test_no_publish_is_accepted_after_the_token_was_revoked(api: Api) -> None:
    token, text = make_token("publish:*")
    access = api.context.http.access = access_of(token)
    data = request(b"one", headers=bearer(text))
    async with raw_connection(api.server.port) as connection:
        for _ in range(3):
            assert (await ask(connection, data))[0] == 200
        access.tokens = Tokens()
        assert (await ask(connection, data))[0] == 401
    assert len(api.publishes) == 3


async def test_a_retry_finds_its_message_after_the_topic_got_more_queues(api: Api) -> None:
    async with raw_connection(api.server.port) as connection:
        for number in range(6):
            data = request(b"one", headers={**PRODUCER, SEQUENCE: str(number)})
            _, _, stored = await ask(connection, data)
        await api.send_json("PATCH", "/v1/topics/orders", {"queues": 5})
        status, _, again = await ask(connection, data)
        assert status == 200
        assert json.loads(again) == {**json.loads(stored), "duplicate": True}


async def test_a_publish_is_answered_over_tls(tmp_path: Path) -> None:
    ca = Certificates(tmp_path)
    certificate, key = ca.issue("server")
    tls: dict[str, Any] = {"tls_certificate": str(certificate), "tls_key": str(key)}
    async with (
        running_api(orders=1, **tls) as api,
        waiting_publish(api, tls=ca.trusting()) as connection,
    ):
        assert not has_task(api)
        assert api.publish_gate is not None
        api.publish_gate.set()
        assert (await answer(connection))[0] == 200


# -- the same as by a task -------------------------------------------------------------------

MESSAGES = st.fixed_dictionaries(
    {"body": st.text(max_size=20)},
    optional={
        "key": st.sampled_from(["k", "other", ""]),
        "tag": st.sampled_from(["a", "b", "x" * 200]),
        "properties": st.dictionaries(st.sampled_from(["p", "q", ""]), st.text(max_size=5)),
        "ttl_ms": st.sampled_from([1000, 0]),
        "queue": st.sampled_from([0, 1, 2]),
        "priority": st.sampled_from([0, 4, 9, 10]),
        "unknown": st.just(1),
    },
)
QUERIES = st.sampled_from(
    ["", "", "?queue=1", "?queue=9", "?key=k&tag=t", "?durability=written", "?durability=x",
     "?mandatory=true", "?ttl_ms=5&priority=3", "?nothing=1"]
)  # fmt: skip
HEADERS = st.sampled_from(
    [{}, {}, {"Accept": MSGPACK}, {"Accept": "text/x"}, PRODUCER, {**PRODUCER, SEQUENCE: "0"}]
)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    """A content type and a body, mostly of that type."""
    messages: list[dict[str, Any]] = draw(st.lists(MESSAGES, max_size=3))
    whole = draw(st.sampled_from([{"messages": messages}, (messages or [{}])[0]]))
    texts = [json.dumps(each).encode() for each in messages]
    batches = [
        encode_batch([str(each["body"]).encode()], queue_id=each.get("queue", ANY_QUEUE))
        for each in messages
    ]
    by_kind = {
        RAW: draw(st.binary(min_size=1, max_size=30)),
        JSON: json.dumps(whole).encode(),
        NDJSON: b"\n".join(texts) or b"\n",
        MSGPACK: msgspec.msgpack.encode(whole),
        BATCH: b"".join(batches) or b"x",
        "application/x-www-form-urlencoded": json.dumps(whole).encode(),
        "application/json; charset=latin-1": b"{}",
    }
    kind = draw(st.sampled_from(list(by_kind)))
    body = by_kind[draw(st.sampled_from([kind, kind, kind, JSON]))]
    return kind, body[: draw(st.sampled_from([len(body)] * 4 + [len(body) - 1]))] or b"x"


async def _replies(
    sent: list[bytes], *, with_tasks: bool
) -> list[tuple[int, dict[str, str], bytes]]:
    """Return the replies of a new broker to these requests, and what it stored."""
    found = []
    async with running_api(orders=2) as api, raw_connection(api.server.port) as connection:
        if with_tasks:
            api.context.http.connections.heads.find = (  # type: ignore[method-assign]
                lambda client, data: None
            )
        # Messages with durability `written` are seen after the next sync; the last publish waits
        # for it.
        last = request(b"last", query="?queue=0&durability=fsync")
        for data in (*sent, last, READ % 0, READ % 1):
            status, headers, body = await ask(connection, data)
            found.append((status, headers, re.sub(rb'(_timestamp_ms":)[0-9]+', rb"\1", body)))
            await until(lambda: is_idle(api))
        requests = {
            sample.labels["code"]: sample.value
            for metric in api.context.http.registry.collect()
            for sample in metric.samples
            if sample.name == "holdfast_http_request_seconds_count"
            and sample.labels["route"] == "/v1/topics/{topic}/messages"
        }
        found.append((0, {code: str(count) for code, count in requests.items()}, b""))
        totals = api.context.http.metrics.totals()
        found.append((totals.messages_in, {}, b"%d" % totals.bytes_in))
    return found


Sent = tuple[tuple[str, bytes], str, Mapping[str, str]]
"""The content type, body, query and headers of a publish."""


async def _compare(publishes: list[Sent]) -> None:
    each = [request(body, kind, query, more) for (kind, body), query, more in publishes]
    sent = [data for data in each for _ in range(4)]
    assert await _replies(sent, with_tasks=False) == await _replies(sent, with_tasks=True)


@example([((kind, body), "", {}) for kind, body in ONE.items()])
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(bodies(), QUERIES, HEADERS), min_size=1, max_size=4))
def test_replies_and_messages_are_the_same_with_and_without_a_task(
    sent: list[Sent],
) -> None:
    asyncio.run(_compare(sent))
