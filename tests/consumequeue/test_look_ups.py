import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.consumequeue import look_ups
from holdfast.consumequeue.key_search import find_key
from tests.support.stored import batch, open_storage, small_config, until


async def test_one_search_goes_on_at_a_time_and_reading_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search holds a reader thread and a segment's tables: a crowd of them must not hold all."""
    may_end = threading.Event()
    at_work = 0

    def slow(*args: Any) -> Any:
        nonlocal at_work
        at_work += 1
        may_end.wait(10)
        return find_key(*args)

    monkeypatch.setattr(look_ups, "find_key", slow)
    async with open_storage(small_config(tmp_path)) as storage:
        store = storage.store
        topic, _ = await store.create_topic("t", queues=1)
        await store.publish(topic, [batch("found", key="k")])
        searches = [asyncio.create_task(store.search_key(topic, "k", 10)) for _ in range(8)]
        await until(lambda: at_work > 0)
        async with asyncio.timeout(10):
            assert await store.offset_by_time(topic, 0, 0) is not None  # in a reader thread too
        assert at_work == 1
        may_end.set()
        for found in await asyncio.gather(*searches):
            assert [each.body(row) for each, row in found] == [b"found"]
