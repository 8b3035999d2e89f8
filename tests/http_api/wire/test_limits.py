"""The size limits of requests at their borders, and text of clients in problems and headers."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.http_api.config import HttpConfig
from holdfast.http_api.routing.codecs import JSON, NDJSON
from holdfast.http_api.wire.aiohttp_parser import MAX_LINE_BYTES
from tests.support.clients.raw_http import raw_connection
from tests.support.servers.api_server import Api, running_api

FIELD_BYTES = 8190
LINE = b"GET /healthz%s HTTP/1.1\r\nHost: x\r\n"


async def status_of(api: Api, sent: bytes) -> tuple[int, dict[str, str], bytes]:
    async with raw_connection(api.server.port) as connection:
        await connection.send(sent)
        return await connection.answer()


@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_a_head_has_limits(api: Api, more: int) -> None:
    target = b"/" + b"x" * (MAX_LINE_BYTES - 1 + more)
    answered, _, _ = await status_of(api, b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answered == (431 if more > 0 else 404)
    value = b"y" * (FIELD_BYTES + more)
    answered, _, _ = await status_of(api, LINE % b"" + b"X: " + value + b"\r\n\r\n")
    assert answered == (431 if more > 0 else 200)


async def test_the_number_of_headers_has_a_limit(api: Api) -> None:
    many = b"".join(b"X-%d: y\r\n" % number for number in range(2000))
    answered, fields, _ = await status_of(api, LINE % b"" + many + b"\r\n")
    assert answered in (400, 431)
    assert fields["connection"] == "close"


MESSAGES = "/v1/topics/orders/messages"
OFFSETS = "/v1/groups/g/topics/orders/offsets"
MESSAGE = b'{"body":"x"}'


@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize(
    ("limit_name", "limit", "path", "media", "body_of", "refused"),
    [
        ("max_request_bytes", 2048, MESSAGES, "text/plain", lambda n: b"x" * n, 413),
        ("max_request_bytes", 2048, OFFSETS, JSON, lambda n: b'{"offsets":{"0":0}}'.ljust(n), 413),
        ("max_control_request_bytes", 2048, OFFSETS, JSON,
         lambda n: b'{"offsets":{"0":0}}'.ljust(n), 413),
        ("max_values_per_request", 1500, f"{OFFSETS}/reset", JSON,
         lambda n: b'{"to":"latest","queues":[%s]}' % b",".join([b"0"] * (n - 1)), 400),
        ("max_messages_per_request", 5, MESSAGES, JSON,
         lambda n: b'{"messages":[%s]}' % b",".join([MESSAGE] * n), 413),
        ("max_messages_per_request", 5, MESSAGES, NDJSON, lambda n: b"\n".join([MESSAGE] * n), 413),
    ],
)  # fmt: skip
async def test_a_body_has_limits(
    limit_name: str,
    limit: int,
    path: str,
    media: str,
    body_of: Callable[[int], bytes],
    refused: int,
    more: int,
) -> None:
    settings: dict[str, Any] = {"max_request_bytes": 4096, "max_control_request_bytes": 4096}
    async with running_api(**settings | {limit_name: limit}) as api:
        await api.ask("PUT", "/v1/topics/orders", b"{}")
        method = "PUT" if path == OFFSETS else "POST"
        answer = await api.ask(method, path, body_of(limit + more), Content_Type=media)
        assert answer.status == (refused if more > 0 else 200)
        if more > 0:
            assert answer.json()["limit_name"] == limit_name


@pytest.mark.parametrize(("size", "status"), [(8191, 200), (8192, 200), (8193, 400)])
async def test_a_text_in_a_query_has_a_limit(api: Api, size: int, status: int) -> None:
    answer = await api.get(f"/v1/topics?after={'x' * size}")
    assert answer.status == status


@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_a_listing_has_a_largest_page(api: Api, more: int) -> None:
    limit = HttpConfig().max_page_size + more
    assert (await api.get(f"/v1/topics?limit={limit}")).status == (400 if more > 0 else 200)


# -- text of clients -----------------------------------------------------------------------

HOSTILE = "a\r\nSet-Cookie: x=1\r\n\r\n<script>\x1b[2J=cmd()"
ENCODED = "a%0D%0ASet-Cookie:%20x=1%0D%0A%0D%0A%3Cscript%3E%1B%5B2J=cmd()"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"/v1/topics/{ENCODED}"),
        ("GET", f"/v1/groups/{ENCODED}"),
        ("GET", f"/v1/messages/{ENCODED}"),
        ("GET", f"/{ENCODED}"),
        ("PUT", f"/v1/topics/{ENCODED}"),
        ("GET", f"/v1/topics/orders/queues/{ENCODED}/messages?offset=0"),
        ("GET", f"/v1/topics/orders/queues/0/messages?offset={ENCODED}"),
        ("GET", f"/v1/topics/orders/queues/0/messages?{ENCODED}=1"),
        ("GET", f"/v1/topics/orders/queues/0/messages?offset=0&filter={ENCODED}"),
        ("DELETE", f"/v1/topics/orders?confirm={ENCODED}"),
    ],
)
async def test_text_of_a_client_stays_inside_the_problem(api: Api, method: str, path: str) -> None:
    answer = await api.ask(method, path)
    assert 400 <= answer.status < 500
    assert answer.problem
    assert "Set-Cookie" not in answer.headers
    assert all(sign >= 0x20 for sign in answer.body)


async def test_hostile_texts_are_returned_unchanged_and_in_no_header(api: Api) -> None:
    message = {"body": HOSTILE, "key": HOSTILE, "tag": HOSTILE, "properties": {HOSTILE: HOSTILE}}
    assert (await api.publish("orders", {**message, "queue": 0})).status == 200
    answer = await api.get("/v1/topics/orders/queues/0/messages?offset=0")
    (found,) = answer.json()["messages"]
    assert {name: found[name] for name in message} == message
    assert "Set-Cookie" not in answer.headers
    assert answer.headers["Content-Type"] == "application/json"
    lines = await api.get(
        "/v1/topics/orders/queues/0/messages?offset=0", Accept="application/x-ndjson"
    )
    assert lines.body.count(b"\n") == 1
    metrics = await api.get("/metrics")
    assert b"Set-Cookie" not in metrics.body
