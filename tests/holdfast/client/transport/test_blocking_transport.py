"""What only the blocking transport does, against a scripted server on the test's loop."""

import asyncio
from types import SimpleNamespace

import pytest
from aiohttp import web

from holdfast.client.errors import ClientClosed
from holdfast.client.transport import blocking_transport
from holdfast.client.transport.blocking_transport import (
    BlockingTransport,
    StartedRequest,
    run_blocking,
)
from holdfast.client.transport.requests import Reply
from holdfast.client.transport.retry import RetryPolicy
from holdfast.client.transport.target import Target
from tests.support.scripted_server import drop, scripted_server

QUICK = RetryPolicy(give_up_after_s=10.0, first_pause_s=0.001, longest_pause_s=0.01)
NO_RETRY = RetryPolicy(give_up_after_s=0.0)


def transport_to(url: str) -> BlockingTransport:
    return BlockingTransport(Target.parse(url, "secret", None), QUICK)


async def ok(request: web.Request) -> web.StreamResponse:
    return web.json_response({"authorization": request.headers.get("Authorization")})


async def ask(transport: BlockingTransport, wait_s: float = 0.0) -> Reply:
    """Make a request in another thread."""
    return await asyncio.to_thread(
        lambda: run_blocking(transport.request("GET", "/", wait_s=wait_s))
    )


@pytest.mark.parametrize("whole", [True, False])
async def test_ending_a_child_ends_only_the_childs_request_in_another_thread(whole: bool) -> None:
    asked = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if len(server.requests) == 1:
            asked.set()
            await asyncio.Event().wait()
        return await ok(request)

    async with scripted_server(answer) as server:
        transport = transport_to(server.url)
        child = transport.child()
        waiting = asyncio.create_task(ask(child, wait_s=60))
        await asked.wait()
        (transport if whole else child).abort()
        with pytest.raises(ClientClosed):
            await waiting
        if not whole:
            await ask(transport)
        run_blocking(transport.close())


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

    async with scripted_server(answer) as server:
        transport = transport_to(server.url)
        await ask(transport)
        before_s = transport.now_s()
        started = StartedRequest(transport.request("GET", "/", retry=NO_RETRY))
        await dropped.wait()
        clock_s += 300.0
        reply = await asyncio.to_thread(started.result)
        assert reply.json(dict) == {"authorization": "Bearer secret"}
        assert transport.now_s() == before_s
        run_blocking(transport.close())
