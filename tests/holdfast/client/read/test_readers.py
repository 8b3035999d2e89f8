"""holdfast.client.read.readers with fake sources."""

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.client.errors import ConnectionFailed
from holdfast.client.read.readers import AsyncReader, Reader
from holdfast.client.read.sources import Range
from holdfast.client.transport.blocking_transport import BlockingTransport
from holdfast.client.transport.retry import ONCE
from holdfast.client.transport.target import Target


class OneRange:
    """A source that returns one range and then fails."""

    is_at_end = False

    def __init__(self) -> None:
        self.fetches = 0

    async def fetch(self) -> Range | None:
        self.fetches += 1
        if self.fetches == 1:
            return Range([], {0: 1})
        raise ConnectionFailed("http://127.0.0.1:1", "refused", maybe_executed=False)


async def test_a_failure_of_reading_ahead_is_raised_by_the_next_call() -> None:
    reader = AsyncReader[str](OneRange(), lambda fetched: ["item"])
    assert await anext(reader) == "item"
    for _ in range(2):
        with pytest.raises(ConnectionFailed):
            await anext(reader)


@pytest.mark.parametrize("is_closed", [True, False])
async def test_an_unread_failure_of_reading_ahead_is_not_logged(is_closed: bool) -> None:
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


class Numbered:
    """A source of three ranges with next offsets 1, 2 and 3.

    It calls `meanwhile` with the number of each fetch.
    """

    def __init__(
        self,
        meanwhile: Callable[[int], object] = lambda number: None,
        *,
        is_at_end: bool = False,
    ) -> None:
        self._meanwhile = meanwhile
        self.is_at_end = is_at_end
        self._fetches = 0

    async def fetch(self) -> Range | None:
        self._meanwhile(self._fetches + 1)
        self._fetches += 1
        return Range([], {0: self._fetches}) if self._fetches <= 3 else None


def number_of(fetched: Range) -> list[int]:
    return [fetched.next_offsets[0]]


@pytest.mark.parametrize("is_closed", [False, True])
async def test_cancelling_anext_after_its_range_was_fetched_loses_nothing(is_closed: bool) -> None:
    asking: asyncio.Task[int]

    def cancel(number: int) -> None:
        if number == 2:  # read ahead, before the first range is returned
            asking.cancel()

    reader = AsyncReader(Numbered(cancel), number_of)
    asking = asyncio.create_task(reader.__anext__())
    with pytest.raises(asyncio.CancelledError):
        await asking
    if is_closed:
        await reader.close()
    assert [number async for number in reader] == ([] if is_closed else [1, 2, 3])


@pytest.mark.parametrize("is_closed", [False, True])
def test_an_interrupt_after_a_range_was_fetched_loses_nothing(is_closed: bool) -> None:
    interrupts = [KeyboardInterrupt()]

    def interrupt(number: int) -> None:
        if number == 2 and interrupts:  # read ahead, before the first range is returned
            raise interrupts.pop()

    transport = BlockingTransport(Target.parse("http://127.0.0.1:1", None, None), ONCE)
    reader = Reader(Numbered(interrupt), number_of, transport)
    with pytest.raises(KeyboardInterrupt):
        next(reader)
    if is_closed:
        reader.close()
    assert list(reader) == ([] if is_closed else [1, 2, 3])


async def test_a_range_that_reaches_the_end_is_returned_before_the_next_request() -> None:
    fetches: list[int] = []
    reader = AsyncReader(Numbered(fetches.append, is_at_end=True), number_of)
    assert await anext(reader) == 1
    assert fetches == [1]
    assert [number async for number in reader] == [2, 3]


def test_a_blocking_reader_too_returns_the_last_range_before_the_next_request() -> None:
    fetches: list[int] = []
    transport = BlockingTransport(Target.parse("http://127.0.0.1:1", None, None), ONCE)
    reader = Reader(Numbered(fetches.append, is_at_end=True), number_of, transport)
    assert next(reader) == 1
    assert fetches == [1]
    assert list(reader) == [2, 3]
