"""Requests over both transports, against a scripted server on the test's loop."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from holdfast.client.errors import (
    ApiError,
    BadReply,
    ClientClosed,
    ConnectionFailed,
    Forbidden,
    Overloaded,
    Unauthenticated,
    UnknownTopic,
)
from holdfast.client.transport import blocking_transport
from holdfast.client.transport.async_transport import AsyncTransport
from holdfast.client.transport.blocking_transport import (
    BlockingTransport,
    StartedRequest,
    run_blocking,
)
from holdfast.client.transport.requests import Reply, Transport, check_name
from holdfast.client.transport.retry import RetryPolicy
from holdfast.client.transport.target import Target
from tests.support.servers.scripted_server import (
    Answer,
    ScriptedServer,
    drop,
    problem,
    scripted_server,
)

QUICK = RetryPolicy(give_up_after_s=10.0, first_pause_s=0.001, longest_pause_s=0.01)
NO_RETRY = RetryPolicy(give_up_after_s=0.0)
TOKEN = "secret-token"


class Requests:
    """Sends requests over a transport. A blocking transport is used in another thread."""

    def __init__(self, kind: type[Transport], url: str) -> None:
        self.transport = kind(Target.parse(url, TOKEN, None), QUICK)

    async def __call__(self, method: str, path: str = "/", **options: Any) -> Reply:
        request: Callable[..., Awaitable[Reply]] = self.transport.request
        if isinstance(self.transport, AsyncTransport):
            return await request(method, path, **options)
        return await asyncio.to_thread(lambda: run_blocking(request(method, path, **options)))  # type: ignore[arg-type]


@pytest.fixture(params=[AsyncTransport, BlockingTransport])
def kind(request: pytest.FixtureRequest) -> type[Transport]:
    chosen: type[Transport] = request.param
    return chosen


@asynccontextmanager
async def serving(
    kind: type[Transport], answer: Answer
) -> AsyncIterator[tuple[ScriptedServer, Requests]]:
    async with scripted_server(answer) as server:
        requests = Requests(kind, server.url)
        yield server, requests
        await requests.transport.close()


async def ok(request: web.Request) -> web.StreamResponse:
    return web.json_response({"authorization": request.headers.get("Authorization")})


async def never(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    return web.Response()


async def test_the_token_is_sent_with_every_request(kind: type[Transport]) -> None:
    async with serving(kind, ok) as (server, send):
        reply = await send("GET", "/v1/info", params={"a": "b c&d", "n": 5})
        assert reply.json(dict) == {"authorization": f"Bearer {TOKEN}"}
        assert server.requests == ["GET /v1/info?a=b+c%26d&n=5"]


async def test_only_transient_refusals_are_retried(kind: type[Transport]) -> None:
    answers = [problem(503, "overloaded"), problem(404, "unknown-topic")]

    async def answer(request: web.Request) -> web.StreamResponse:
        return answers.pop(0)

    async with serving(kind, answer) as (server, send):
        with pytest.raises(UnknownTopic):
            await send("GET", "/v1/topics/x")
        assert len(server.requests) == 2


async def test_retries_end_with_the_last_refusal(kind: type[Transport]) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return problem(503, "overloaded", retry_after_s=7)

    async with serving(kind, answer) as (_, send):
        with pytest.raises(Overloaded) as caught:
            await send("GET", retry=NO_RETRY)
        assert caught.value.retry_after_s == 7.0


@pytest.mark.parametrize("lost", [1, 2], ids=["new connection", "kept connection"])
@pytest.mark.parametrize("safe", [True, False])
async def test_after_a_lost_connection_only_a_safe_request_is_sent_again(
    kind: type[Transport], lost: int, safe: bool
) -> None:
    """The broker may close a kept connection at any time, so even a request without retries is sent
    again on a new connection."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return drop(request) if len(server.requests) == lost else await ok(request)

    async with serving(kind, answer) as (server, send):
        for _ in range(1, lost):
            await send("GET")
        if safe:
            await send("POST", body=b"x", retry=NO_RETRY if lost > 1 else None)
        else:
            with pytest.raises(ConnectionFailed) as caught:
                await send("POST", body=b"x", safe=False)
            assert caught.value.maybe_executed
        assert len(server.requests) == lost + safe


async def test_a_body_of_blocks_is_sent_again_byte_for_byte(kind: type[Transport]) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.content_length == 6
        return drop(request) if len(server.requests) < 3 else await ok(request)

    async with serving(kind, answer) as (server, send):
        await send("POST", body=[b"one", b"two"])
        assert server.bodies == [b"onetwo"] * 3


async def test_the_error_for_an_unreachable_broker_has_its_address(kind: type[Transport]) -> None:
    async with scripted_server(ok) as server:
        url = server.url
    with pytest.raises(ConnectionFailed, match=url) as caught:
        await Requests(kind, url)("GET", retry=NO_RETRY)
    assert not caught.value.maybe_executed


async def test_a_reply_that_ends_early_is_a_failed_connection(kind: type[Transport]) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"only this")
        drop(request)
        return response

    async with serving(kind, answer) as (_, send):
        with pytest.raises(ConnectionFailed):
            await send("GET", retry=NO_RETRY)


@pytest.mark.parametrize(
    ("status", "text", "error"),
    [
        (404, "<html>", BadReply),
        (302, "", BadReply),
        (500, "<html>", ApiError),
        (404, "[]", BadReply),
    ],
)
async def test_an_error_reply_that_is_no_problem_of_a_broker_is_not_retried(
    kind: type[Transport], status: int, text: str, error: type[Exception]
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=text, headers={"Location": "/elsewhere"})

    async with serving(kind, answer) as (server, send):
        with pytest.raises(error):
            await send("GET")
        assert len(server.requests) == 1


async def test_a_reply_of_another_shape_is_a_bad_reply() -> None:
    async with serving(AsyncTransport, ok) as (_, send):
        reply = await send("GET")
        with pytest.raises(BadReply):
            reply.json(list[int])
        with pytest.raises(BadReply):
            reply.msgpack(list[int])
        with pytest.raises(BadReply):
            reply.header_int("Holdfast-Next-Offset")


@pytest.mark.parametrize("safe", [True, False])
async def test_closing_ends_a_request_that_waits(kind: type[Transport], safe: bool) -> None:
    asked = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.set()
        return await never(request)

    async with serving(kind, answer) as (_, send):
        waiting = asyncio.create_task(send("POST", wait_s=60, safe=safe))
        await asked.wait()
        await send.transport.close()
        await send.transport.close()
        with pytest.raises(ClientClosed):
            await waiting
        with pytest.raises(ClientClosed):
            await send("GET")


@pytest.mark.parametrize(
    ("status", "type_", "error"),
    [(401, "unauthenticated", Unauthenticated), (403, "forbidden", Forbidden)],
)
async def test_a_refused_token_is_reported_at_once_and_not_shown(
    kind: type[Transport], status: int, type_: str, error: type[Exception]
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return problem(status, type_)

    async with serving(kind, answer) as (server, send):
        with pytest.raises(error) as raised:
            await send("GET", "/v1/info")
        assert len(server.requests) == 1
        assert TOKEN not in f"{raised.value!r} {raised.value} {send.transport!r}"


async def test_a_kept_connection_is_used_again(kind: type[Transport]) -> None:
    ports: list[int] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        ports.append(request.transport.get_extra_info("peername")[1])
        return await ok(request)

    async with serving(kind, answer) as (_, send):
        for _ in range(3):
            await send("GET")
    assert len(ports) == 3
    assert len(set(ports)) == 1


async def test_a_cancelled_request_closes_its_connection() -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.set()
        try:
            return await never(request)  # the server cancels this when the connection ends
        finally:
            ended.set()

    async with serving(AsyncTransport, answer) as (_, send):
        waiting = asyncio.create_task(send("GET", wait_s=60))
        await asked.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.wait_for(ended.wait(), 10)


async def test_a_request_to_a_silent_broker_ends(
    kind: type[Transport], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.client.transport.requests.ANSWER_TIMEOUT_S", 0.01)
    async with serving(kind, never) as (_, send):
        with pytest.raises(ConnectionFailed, match="no progress") as caught:
            await send("GET", retry=NO_RETRY)
        assert caught.value.maybe_executed


@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_000])
async def test_bodies_of_every_size_are_sent_and_received(kind: type[Transport], size: int) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=server.bodies[-1])

    async with serving(kind, answer) as (server, send):
        sent = bytes(range(256)) * (size // 256 + 1)
        for body in (sent[:size], [sent[: size // 2], sent[size // 2 : size]]):
            assert bytes((await send("POST", body=body)).body) == sent[:size]


async def test_a_chunked_reply_is_read(kind: type[Transport]) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(3):
            await response.write(b"chunk")
        await response.write_eof()
        return response

    async with serving(kind, answer) as (_, send):
        assert bytes((await send("GET")).body) == b"chunk" * 3


@pytest.mark.parametrize("whole", [True, False])
async def test_ending_a_child_ends_only_the_childs_request_in_another_thread(whole: bool) -> None:
    asked = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if len(server.requests) == 1:
            asked.set()
            await asyncio.Event().wait()
        return await ok(request)

    async with serving(BlockingTransport, answer) as (server, send):
        transport = send.transport
        assert isinstance(transport, BlockingTransport)
        child = transport.child()
        request = child.request("GET", "/", wait_s=60)
        waiting = asyncio.create_task(asyncio.to_thread(run_blocking, request))
        await asked.wait()
        (transport if whole else child).abort()
        with pytest.raises(ClientClosed):
            await waiting
        if not whole:
            await send("GET")


async def test_a_request_whose_reply_was_left_unread_until_its_connection_ended_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker closes the connection of a reader that does something else for minutes."""
    clock_s = 1000.0
    monkeypatch.setattr(blocking_transport, "time", SimpleNamespace(monotonic=lambda: clock_s))
    dropped = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if len(server.requests) != 2:
            return await ok(request)
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"only this")
        drop(request)
        dropped.set()
        return response

    async with serving(BlockingTransport, answer) as (server, send):
        transport = send.transport
        await send("GET")
        before_s = transport.now_s()
        started = StartedRequest(transport.request("GET", "/", retry=NO_RETRY))
        await dropped.wait()
        clock_s += 300.0
        reply = await asyncio.to_thread(started.result)
        assert reply.json(dict) == {"authorization": f"Bearer {TOKEN}"}
        assert transport.now_s() == before_s
        run_blocking(transport.close())


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "a\n", "x" * 128, "%2f"])
def test_a_name_that_could_change_the_path_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a topic is named"):
        check_name("topic", name)


@pytest.mark.parametrize("name", ["orders", "a.b_c-D9", "x" * 127, "...", "__state"])
def test_a_valid_name_is_accepted(name: str) -> None:
    assert check_name("topic", name) == name
