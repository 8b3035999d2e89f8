"""The API over a store in memory, with a topic "orders" of two queues."""

from collections.abc import AsyncIterator

import pytest

from tests.support.api_server import Api, running_api


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with running_api() as api:
        await api.store.create_topic("orders", queues=2)
        yield api
