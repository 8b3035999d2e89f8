"""An HTTP server on a free port that answers as the test decides, and records the requests."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.test_utils import TestServer

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class ScriptedServer:
    """The server is at `url`; `requests` has "METHOD target" of each request, in order."""

    url: str = ""
    requests: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)


@asynccontextmanager
async def scripted_server(answer: Answer) -> AsyncIterator[ScriptedServer]:
    """Serve until the block ends. Requests that are in progress then are cancelled."""
    script = ScriptedServer()

    async def handle(request: web.Request) -> web.StreamResponse:
        script.bodies.append(await request.read())
        script.requests.append(f"{request.method} {request.path_qs}")
        return await answer(request)

    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", handle)
    async with TestServer(app, shutdown_timeout=0.1) as server:
        script.url = f"http://127.0.0.1:{server.port}"
        yield script


def problem(
    status: int, type_: str, retry_after_s: int | None = None, **members: object
) -> web.Response:
    """Return a problem response in the broker's format."""
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    return web.json_response(
        {"type": f"/problems/{type_}", "title": type_, "status": status, **members},
        status=status,
        headers=headers,
        content_type="application/problem+json",
    )


def drop(request: web.Request) -> web.Response:
    """Close the request's connection without an answer."""
    assert request.transport is not None
    request.transport.close()
    return web.Response()
