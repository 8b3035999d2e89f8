"""Thread work for a client that has disconnected continues, and keeps its slot until it ends."""

import asyncio
import gzip
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest

from holdfast.consumequeue.thread_calls import call_in_thread
from holdfast.groups.serving import parsed_filters
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.endpoints import held_read, publish
from holdfast.http_api.endpoints.publish import OFFLOAD_TEXT_BYTES
from holdfast.http_api.limits.reply_slots import ClientPlaces
from holdfast.http_api.routing.codecs import JSON
from holdfast.http_api.wire import body_reader
from tests.support.servers.api_server import Api
from tests.support.storage.stored import until

PATIENCE_S = 20
LONG_FILTER = "a = '" + "x" * 200 + "'"


class Slow:
    """Runs a function after a signal, and counts its starts."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.begun = 0
        self.may_end = threading.Event()

    def __call__(self, *args: Any) -> Any:
        self.begun += 1
        assert self.may_end.wait(PATIENCE_S)
        return self._function(*args)


@pytest.fixture
def slow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    """Replace the work of a thread by a version that waits for the test."""
    where, name = request.param
    if isinstance(where, dict):
        found = Slow(where[name])
        monkeypatch.setitem(where, name, found)
    else:
        found = Slow(getattr(where, name))
        monkeypatch.setattr(where, name, found)
    yield found
    found.may_end.set()


async def ask_and_go(api: Api, slow: Slow, ask: Callable[[], Awaitable[object]]) -> None:
    """Send a request, and cancel it once a thread works for it."""
    before = slow.begun
    asking = asyncio.ensure_future(ask())
    await until(lambda: slow.begun > before)
    asking.cancel()
    await asyncio.wait((asking,))
    await until(lambda: not api.context.http.connections.open)


@pytest.mark.parametrize("slow", [(publish._TEXT_FORMATS, JSON)], indirect=True)
async def test_large_texts_of_disconnected_clients_keep_their_slots(api: Api, slow: Slow) -> None:
    most = HttpConfig().max_texts_at_work
    message = {"body": "x" * OFFLOAD_TEXT_BYTES}
    turns = api.context.large_texts
    for _ in range(most):
        await ask_and_go(api, slow, lambda: api.publish("orders", message))
    last = asyncio.create_task(api.publish("orders", message))
    await until(lambda: turns._waiters)
    assert slow.begun == most
    slow.may_end.set()
    assert (await last).status == 200
    await until(lambda: turns._value == most)


@pytest.mark.parametrize("slow", [(held_read, "parse_filter")], indirect=True)
async def test_long_filters_of_disconnected_clients_are_parsed_one_at_a_time(
    api: Api, slow: Slow
) -> None:
    path = f"/v1/topics/orders/queues/0/messages?offset=0&filter={quote(LONG_FILTER)}"
    reading = api.context.filter_reading
    await ask_and_go(api, slow, lambda: api.get(path))
    last = asyncio.create_task(api.get(path))
    await until(lambda: reading._waiters)
    assert slow.begun == 1
    slow.may_end.set()
    assert (await last).status == 200


@pytest.mark.parametrize("slow", [(parsed_filters, "filter_of")], indirect=True)
async def test_group_filters_of_disconnected_clients_are_parsed_one_at_a_time(slow: Slow) -> None:
    filters = parsed_filters.ParsedFilters()
    first = asyncio.create_task(filters.parse([LONG_FILTER]))
    await until(lambda: slow.begun == 1)
    first.cancel()
    second = asyncio.create_task(filters.parse([LONG_FILTER + " AND b = 1"]))
    await until(lambda: filters._parsing._waiters)
    assert slow.begun == 1
    slow.may_end.set()
    await asyncio.wait((first, second))
    assert first.cancelled()
    assert slow.begun == 2


@pytest.mark.parametrize("slow", [(body_reader, "_gunzip")], indirect=True)
async def test_a_body_counts_while_it_is_decompressed(api: Api, slow: Slow) -> None:
    size = 100_000
    packed = gzip.compress(b"x" * size)
    arriving = api.context.http.connections.arriving
    before = arriving.total_bytes
    path = "/v1/topics/orders/messages"
    await ask_and_go(api, slow, lambda: api.ask("POST", path, packed, Content_Encoding="gzip"))
    assert arriving.total_bytes - before >= size
    slow.may_end.set()
    await until(lambda: arriving.total_bytes == before)


async def test_a_slot_is_free_when_the_thread_of_a_disconnected_client_ends() -> None:
    places = ClientPlaces(1)
    begun, may_end = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(PATIENCE_S)

    async def at_work(client: str) -> None:
        async with places.place(client):
            await call_in_thread(work)

    gone = asyncio.create_task(at_work("a"))
    assert await asyncio.to_thread(begun.wait, PATIENCE_S)
    gone.cancel()
    begun.clear()
    following = asyncio.create_task(at_work("b"))
    await until(lambda: places._waiting)
    assert not begun.is_set()
    may_end.set()
    await following
    assert gone.cancelled()
