"""The blocking transport, against a scripted server on the test's loop."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest
from aiohttp import web

from holdfast.client.errors import BadReply, ClientClosed, ConnectionFailed, UnknownTopic
from holdfast.client.transport import blocking_transport
from holdfast.client.transport.blocking_transport import (
    BlockingTransport,
    StartedRequest,
    run_blocking,
)
from holdfast.client.transport.requests import Reply
from holdfast.client.transport.retry import RetryPolicy
from holdfast.client.transport.target import Target
from tests.support.scripted_server import drop, problem, scripted_server

QUICK = RetryPolicy(give_up_after_s=10.0, first_pause_s=0.001, longest_pause_s=0.01)
NO_RETRY = RetryPolicy(give_up_after_s=0.0)


def transport_to(url: str) -> BlockingTransport:
    return BlockingTransport(Target.parse(url, "secret", None), QUICK)


async def ok(request: web.Request) -> web.StreamResponse:
    return web.json_response({"said": request.headers.get("Authorization")})


async def ask(transport: BlockingTransport, method: str, **options: object) -> Reply:
    """Make a request in another thread."""
    request: Callable[..., Awaitable[Reply]] = transport.request

    def blocked() -> Reply:
        return run_blocking(request(method, "/", **options))  # type: ignore[arg-type]

    return await asyncio.to_thread(blocked)


async def test_requests_share_a_kept_connection() -> None:
    ports: set[int] = set()

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername")[1])
        return await ok(request)

    async with scripted_server(answer) as server:
        transport = transport_to(server.url)
        for _ in range(3):
            assert (await ask(transport, "GET")).json(dict) == {"said": "Bearer secret"}
        run_blocking(transport.close())
        with pytest.raises(ClientClosed):
            await ask(transport, "GET")
    assert len(ports) == 1


@pytest.mark.parametrize("safe", [True, False])
async def test_a_kept_connection_that_ends_unanswered_is_no_failure_of_a_safe_request(
    safe: bool,
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return drop(request) if len(server.requests) == 2 else await ok(request)

    async with scripted_server(answer) as server:
        transport = transport_to(server.url)
        await ask(transport, "GET")
        if safe:
            await ask(transport, "POST", body=b"x", retry=NO_RETRY)
        else:
            with pytest.raises(ConnectionFailed) as caught:
                await ask(transport, "POST", body=b"x", safe=False)
            assert caught.value.maybe_executed
        assert len(server.requests) == (3 if safe else 2)
        run_blocking(transport.close())


@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_000])
async def test_bodies_of_every_size_go_there_and_back(size: int) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=server.bodies[-1])

    async with scripted_server(answer) as server:
        transport = transport_to(server.url)
        sent = bytes(range(256)) * (size // 256 + 1)
        for body in (sent[:size], [sent[: size // 2], sent[size // 2 : size]]):
            assert bytes((await ask(transport, "POST", body=body)).body) == sent[:size]
        run_blocking(transport.close())


async def test_refusals_and_what_is_no_reply_are_told_as_they_are() -> None:
    answers = [problem(503, "overloaded"), problem(404, "unknown-topic"), web.Response(status=302)]

    async def answer(request: web.Request) -> web.StreamResponse:
        return answers.pop(0)

    async with scripted_server(answer) as server:
        transport = transport_to(server.url)
        with pytest.raises(UnknownTopic):
            await ask(transport, "GET")
        with pytest.raises(BadReply):
            await ask(transport, "GET")
        assert len(server.requests) == 3
        run_blocking(transport.close())


async def test_a_broker_that_stays_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.client.transport.requests.ANSWER_TIMEOUT_S", 0.01)

    async def answer(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return await ok(request)

    async with scripted_server(answer) as server:
        transport = transport_to(server.url)
        with pytest.raises(ConnectionFailed, match="no progress"):
            await ask(transport, "GET", retry=NO_RETRY)
        run_blocking(transport.close())


async def test_a_broker_that_is_away_is_not_reached() -> None:
    async with scripted_server(ok) as server:
        url = server.url
    with pytest.raises(ConnectionFailed) as caught:
        await ask(transport_to(url), "GET", retry=NO_RETRY)
    assert not caught.value.maybe_executed


@pytest.mark.parametrize("whole", [True, False])
async def test_ending_a_part_ends_its_request_in_another_thread_alone(whole: bool) -> None:
    asked = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if len(server.requests) == 1:
            asked.set()
            await asyncio.Event().wait()
        return await ok(request)

    async with scripted_server(answer) as server:
        transport = transport_to(server.url)
        child = transport.child()
        waiting = asyncio.create_task(ask(child, "GET", wait_s=60))
        await asked.wait()
        (transport if whole else child).abort()
        with pytest.raises(ClientClosed):
            await waiting
        if not whole:
            await ask(transport, "GET")
        run_blocking(transport.close())


async def test_a_reply_that_was_left_until_its_connection_ended_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker does this to a reader that works on something else for minutes."""
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

    async with scripted_server(answer) as server:
        transport = transport_to(server.url)
        await ask(transport, "GET")
        before_s = transport.now_s()
        under_way = StartedRequest(transport.request("GET", "/", retry=NO_RETRY))
        await dropped.wait()
        clock_s += 300.0
        reply = await asyncio.to_thread(under_way.result)
        assert reply.json(dict) == {"said": "Bearer secret"}
        assert transport.now_s() == before_s
        run_blocking(transport.close())
