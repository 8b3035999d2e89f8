"""The API over a store in memory, with a topic "orders" of two queues, on the broker's event
loop."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from tests.support.servers.api_server import Api, running_api

#: Tests of code close to the transport run on both kinds of event loop.
ON_BOTH_LOOPS = {
    *("test_body_reader", "test_connection", "test_server", "test_tls"),
    "test_websocket",
}


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run on uvloop, like the broker."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "uvloop": uvloop.new_event_loop
    }
    if item.path.stem in ON_BOTH_LOOPS:
        factories["asyncio"] = asyncio.new_event_loop
    return factories


#: Tests of code that reads requests also run on aiohttp's own server, with the same results.
ON_BOTH_SERVERS = {"test_publish", "test_pull", "test_poll", "test_framing", "test_groups"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    name = metafunc.module.__name__.rpartition(".")[2]
    if name in ON_BOTH_SERVERS and "api" in metafunc.fixturenames:
        metafunc.parametrize("api", ["ours", "aiohttp"], indirect=True)


@pytest.fixture
async def api(request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    by_aiohttp = getattr(request, "param", "ours") == "aiohttp"
    async with running_api(by_aiohttp=by_aiohttp, orders=2) as api:
        yield api
