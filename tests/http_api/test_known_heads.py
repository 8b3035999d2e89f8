"""A request whose head was stored gets the same answer as one whose head is parsed."""

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.commitlog.format.batch import iter_batches
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.http_api.access.tokens import Tokens
from holdfast.http_api.app import BrokerStatus
from holdfast.http_api.wire.head_cache import SEQUENCE, HeadCache
from tests.support.clients.raw_http import RawConnection, raw_connection
from tests.support.clients.tokens import access_of, bearer, make_token
from tests.support.servers.api_server import Api, running_api

QUEUE = "/v1/topics/orders/queues/0/messages"
PUBLISH = "/v1/topics/orders/messages?queue=0"


def request(
    method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode("latin-1") + body


async def answer(connection: RawConnection, data: bytes) -> tuple[int, dict[str, str], bytes]:
    await connection.send(data)
    async with asyncio.timeout(20):
        status, headers, body = await connection.answer()
    headers.pop("date", None)
    return status, headers, body


def heads(api: Api) -> HeadCache:
    return api.context.http.connections.heads


async def test_pulls_and_publishes_are_served_from_stored_heads(api: Api) -> None:
    async with raw_connection(api.server.port) as connection:
        for number in range(5):
            body = b"message %d" % number
            status, _, _ = await answer(connection, request("POST", PUBLISH, body=body))
            assert status == 200
        for number in range(5):
            target = f"{QUEUE}?offset={number}&max_messages=1"
            status, fields, body = await answer(connection, request("GET", target))
            assert status == 200
            assert fields["holdfast-next-offset"] == str(number + 1)
            assert b"message %d" % number in body
        assert len(heads(api)) == 2
        # The handler of an unknown topic is reached from a stored head, too.
        for _ in range(3):
            status, _, _ = await answer(connection, request("GET", "/v1/topics/none"))
            assert status == 404


async def test_numbered_publishes_are_served_from_a_stored_head(api: Api) -> None:
    producer = {"Holdfast-Producer-Id": "7", "Holdfast-Producer-Epoch": "0"}

    async def publish(sequence: int, body: bytes) -> tuple[int, dict[str, Any]]:
        headers = {**producer, SEQUENCE: str(sequence)}
        data = request("POST", PUBLISH, headers, body)
        status, _, reply = await answer(connection, data)
        return status, json.loads(reply)

    async with raw_connection(api.server.port) as connection:
        for number in range(12):
            assert (await publish(number, b"message %d" % (number % 10)))[0] == 200
        assert len(heads(api)) == 1
        status, reply = await publish(11, b"message 1")
        assert status == 200
        assert reply["results"][0]["offset"] == 11
        status, reply = await publish(14, b"message 4")
        assert status == 409
        assert reply["expected"] == 12
        _, _, body = await answer(connection, request("GET", f"{QUEUE}?offset=0"))
        assert [each["body"] for each in json.loads(body)["messages"]] == [
            f"message {number % 10}" for number in range(12)
        ]


async def test_a_stored_head_gives_no_access_after_the_tokens_change(api: Api) -> None:
    token, text = make_token("consume:*:*", "publish:*")
    access = access_of(token)
    api.context.http.access = access
    pull = request("GET", f"{QUEUE}?offset=0", bearer(text))
    async with raw_connection(api.server.port) as connection:
        for _ in range(3):
            assert (await answer(connection, pull))[0] == 200
        assert len(heads(api)) == 1
        access.tokens = Tokens()
        assert (await answer(connection, pull))[0] == 401
        access.tokens = Tokens([replace(token, grants=())])
        for _ in range(3):
            assert (await answer(connection, pull))[0] == 403
        access.tokens = Tokens([replace(token, digest=b"x" * 32)])  # another secret
        assert (await answer(connection, pull))[0] == 401
        access.tokens = Tokens([token])
        for _ in range(3):
            assert (await answer(connection, pull))[0] == 200


async def test_a_stored_head_gives_no_access_after_its_token_has_expired(api: Api) -> None:
    token, text = make_token("consume:*:*", expires_ms=5_000)
    access = access_of(token)
    now_s = 4.0
    access._now_s = lambda: now_s
    api.context.http.access = access
    pull = request("GET", f"{QUEUE}?offset=0", bearer(text))
    async with raw_connection(api.server.port) as connection:
        for _ in range(3):
            assert (await answer(connection, pull))[0] == 200
        now_s = 5.0
        assert (await answer(connection, pull))[0] == 401


async def test_a_stored_head_is_refused_while_the_broker_is_not_ready(api: Api) -> None:
    pull = request("GET", f"{QUEUE}?offset=0")
    async with raw_connection(api.server.port) as connection:
        for _ in range(3):
            assert (await answer(connection, pull))[0] == 200
        api.status = BrokerStatus("recovering")
        assert (await answer(connection, pull))[0] == 503
        api.status = BrokerStatus("ready")
        assert (await answer(connection, pull))[0] == 200


@pytest.mark.parametrize("name", ["Origin", "Sec-Fetch-Site"])
async def test_requests_of_pages_are_not_stored(api: Api, name: str) -> None:
    pull = request("GET", f"{QUEUE}?offset=0", {name: "same-origin"})
    async with raw_connection(api.server.port) as connection:
        for _ in range(3):
            await answer(connection, pull)
    assert len(heads(api)) == 0


async def test_a_callers_certificate_is_not_part_of_a_stored_head(api: Api) -> None:
    token, _ = make_token("consume:*:*", certificate="pipeline")
    api.context.http.access = access_of(token)
    pull = request("GET", f"{QUEUE}?offset=0")
    async with raw_connection(api.server.port) as connection:
        for _ in range(3):
            assert (await answer(connection, pull))[0] == 401
    assert len(heads(api)) == 0


async def test_audited_and_open_requests_are_not_stored(api: Api) -> None:
    async with raw_connection(api.server.port) as connection:
        for _ in range(3):
            await answer(connection, request("GET", "/healthz"))
            await answer(connection, request("PUT", "/v1/topics/new", body=b"{}"))
    assert len(heads(api)) == 0


# -- random heads ----------------------------------------------------------------------------

OFFSET_NAMES = ["offset", "offset", "%6Fffset", "Offset", "min_offset", "from", "timestamp_ms"]
VALUES = ["0", "1", "2", "007", "-1", "", "x", "999999999999999999", "9999999999999999999", "1 "]
PAIRS = st.tuples(st.sampled_from(OFFSET_NAMES), st.sampled_from(VALUES)).map("=".join)
OTHERS = st.sampled_from(["max_messages=1", "wait_ms=0", "tag=a", "#", "offset", "a=?offset=1"])
USUAL = st.sampled_from([["offset=1"], ["max_messages=1", "offset=1"], ["offset=1", "wait_ms=0"]])
TARGETS = st.one_of(USUAL, st.lists(st.one_of(PAIRS, PAIRS, OTHERS), max_size=3)).map(
    lambda pairs: QUEUE + ("?" + "&".join(pairs) if pairs else "")
)
HEADERS = st.dictionaries(
    st.sampled_from(["Accept", "Referer", "accept", "X", "Last-Event-ID", "Expect", "Origin"]),
    st.sampled_from(["*/*", "application/x-msgpack", "?offset=1", "/?offset=2 ", "0:1", "text/x"]),
    max_size=2,
)


@st.composite
def families(draw: st.DrawFn) -> list[bytes]:
    """Requests that are the same but for one offset, as a reader sends them."""
    method = draw(st.sampled_from(["GET", "GET", "GET", "HEAD", "POST", "DELETE"]))
    target, headers = draw(TARGETS), draw(HEADERS)
    first = request(method, target.replace(" ", "%20"), headers)
    second = request(method, target.replace("=1", "=2").replace(" ", "%20"), headers)
    return [draw(st.sampled_from([first, second])) for _ in range(6)]


SEQUENCE_LINES = st.sampled_from(
    [
        *[f"{SEQUENCE}: %d"] * 4,
        f"{SEQUENCE}:  %d",
        f"{SEQUENCE}: %d ",
        f"{SEQUENCE}: 0%d",
        f"{SEQUENCE}: -%d",
        f"{SEQUENCE}: %d\r\n{SEQUENCE}: 0",
        f"{SEQUENCE.lower()}: 0\r\n{SEQUENCE}: %d",
        f"{SEQUENCE}: 99999999999999999%d99",
        f"X: {SEQUENCE}: %d",
    ]
)


def _without_expect(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name != "Expect"}


@st.composite
def publishes(draw: st.DrawFn) -> list[bytes]:
    """Publishes that are the same but for one sequence and the body."""
    line, others = draw(SEQUENCE_LINES), draw(HEADERS.map(_without_expect))
    producer = {"Holdfast-Producer-Id": "7", "Holdfast-Producer-Epoch": "0"}
    sent, sequence = [], 0
    for _ in range(8):
        body = draw(st.sampled_from([b"one", b"two", b"three"]))
        data = request("POST", PUBLISH, {**producer, **others}, body)
        numbered = (line % sequence).encode()
        sent.append(data.replace(b"Host: localhost", b"Host: localhost\r\n" + numbered, 1))
        sequence = max(sequence + draw(st.sampled_from([1, 1, 1, 1, 0, 2, -1])), 0)
    return sent


async def _replies(api: Api, sent: list[bytes]) -> list[list[bytes]]:
    """Return the lines of the reply to each request, without the date."""
    found = []
    for each in sent:
        async with raw_connection(api.server.port) as connection:
            await connection.send(each)
            connection.writer.write_eof()
            async with asyncio.timeout(20):
                reply = await connection.closed()
        found.append([line for line in reply.split(b"\r\n") if not line.startswith(b"Date:")])
    return found


def _parse_each_head(api: Api) -> None:
    heads(api)._of.clear()
    heads(api).find = lambda client, data: None  # type: ignore[method-assign]


async def _compare(sent: list[bytes]) -> None:
    async with running_api(orders=1) as api:
        await api.fill(10, 4)
        stored = await _replies(api, sent)
        _parse_each_head(api)
        assert await _replies(api, sent) == stored


async def _compare_publishes(sent: list[bytes]) -> None:
    """Compare the replies of two new brokers, and what they store."""
    sent = [*sent, request("GET", f"{QUEUE}?offset=0", {"Accept": "application/x-ndjson"})]

    async def replies(api: Api) -> list[tuple[int, dict[str, str], bytes]]:
        found = []
        for each in sent:
            async with raw_connection(api.server.port) as connection:
                status, headers, body = await answer(connection, each)
            body = re.sub(rb'(_timestamp_ms":)[0-9]+', rb"\1", body)
            found.append((status, headers, body))
        return found

    async with running_api(orders=1) as api:
        stored = await replies(api)
    async with running_api(orders=1) as api:
        _parse_each_head(api)
        assert await replies(api) == stored


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(families())
def test_random_heads_get_the_answers_of_parsed_heads(sent: list[bytes]) -> None:
    asyncio.run(_compare(sent))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(publishes())
def test_random_numbered_publishes_get_the_answers_of_parsed_heads(sent: list[bytes]) -> None:
    asyncio.run(_compare_publishes(sent))


async def test_heads_that_differ_in_what_they_accept_have_different_replies(api: Api) -> None:
    kind = "application/vnd.holdfast.batch"
    batches = b"".join(encode_batch([b"x"], queue_id=0) for _ in range(200))
    sent = await api.ask("POST", "/v1/topics/orders/messages", batches, Content_Type=kind)
    assert sent.status == 200
    target = f"{QUEUE}?offset=0&max_messages=1000"
    plain, merged = (
        request("GET", target, {"Accept": accept}) for accept in (kind, f"{kind}; rebuilt=1")
    )
    async with raw_connection(api.server.port) as connection:
        for _ in range(4):
            assert len([*iter_batches((await answer(connection, plain))[2])]) == 200
            assert len([*iter_batches((await answer(connection, merged))[2], rebuilt=True)]) == 1
        assert len(heads(api)) == 2
