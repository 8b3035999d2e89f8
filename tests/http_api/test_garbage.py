"""An answered request leaves no objects that only the garbage collector can free."""

import gc
from collections.abc import Iterator

import pytest

from tests.support.clients.raw_http import raw_connection
from tests.support.event_loop.own_garbage import only_own_garbage
from tests.support.servers.api_server import Api

PUBLISH = (
    b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b'Content-Length: 38\r\n\r\n{"messages":[{"body":"hi","queue":0}]}'
)
EMPTY_PULL = b"GET /v1/topics/orders/queues/1/messages?offset=0 HTTP/1.1\r\nHost: x\r\n\r\n"
FULL_PULL = EMPTY_PULL.replace(b"queues/1", b"queues/0")
HELD_PULL = EMPTY_PULL.replace(b"offset=0", b"offset=0&wait_ms=1")
REFUSED = EMPTY_PULL.replace(b"offset=0", b"offset=x")


@pytest.fixture
def collector_off() -> Iterator[None]:
    with only_own_garbage():
        yield


@pytest.mark.usefixtures("collector_off")
@pytest.mark.parametrize("request_", [PUBLISH, EMPTY_PULL, FULL_PULL, HELD_PULL, REFUSED])
async def test_an_answered_request_leaves_no_reference_cycle(api: Api, request_: bytes) -> None:
    async with raw_connection(api.server.port) as one:
        for _ in range(3):
            await one.send(PUBLISH)
            assert (await one.answer())[0] == 200
        await one.send(request_)
        await one.answer()
        gc.collect()
        found = []
        for _ in range(3):  # what earlier tests left in the process may become garbage in one
            for _ in range(20):
                await one.send(request_)
                await one.answer()
            found.append(gc.collect())
        assert min(found) < 20
