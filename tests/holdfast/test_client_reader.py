"""holdfast.client.reader with a source of its own."""

import asyncio
import gc
from typing import Any

import pytest

from holdfast.client.errors import ConnectionFailed
from holdfast.client.reader import AsyncReader
from holdfast.client.sources import Range


class OneRange:
    """A source that has one range, and then fails."""

    def __init__(self) -> None:
        self.fetches = 0

    async def fetch(self) -> Range | None:
        self.fetches += 1
        if self.fetches == 1:
            return Range([], {0: 1})
        raise ConnectionFailed("http://127.0.0.1:1", "refused", maybe_executed=False)


async def test_a_failure_of_reading_ahead_is_raised_when_it_is_asked_for() -> None:
    reader = AsyncReader[str](OneRange(), lambda fetched: ["item"])
    assert await anext(reader) == "item"
    for _ in range(2):
        with pytest.raises(ConnectionFailed):
            await anext(reader)


@pytest.mark.parametrize("is_closed", [True, False])
async def test_a_failure_of_reading_ahead_that_nobody_asks_for_is_not_logged(
    is_closed: bool,
) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))
    source = OneRange()
    reader = AsyncReader[str](source, lambda fetched: ["item"])
    assert await anext(reader) == "item"
    while source.fetches < 2:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    if is_closed:
        await reader.close()
    del reader
    gc.collect()
    assert complaints == []
