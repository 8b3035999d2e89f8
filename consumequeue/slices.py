"""Loops over many items in slices, one slice per event loop iteration, so that other tasks can
run."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

#: One request handles at most this many queues, topics or groups in one event loop iteration. Each
#: takes less than 100 microseconds.
ITEMS_A_TURN = 250


async def in_slices(items: Iterable[T], most: int = ITEMS_A_TURN) -> AsyncIterator[list[T]]:
    """Yield all items in lists of at most `most` items, one list per event loop iteration. If one
    list is enough, other tasks do not run in between. `items` must not change meanwhile."""
    iterator = iter(items)
    part = list(islice(iterator, most))
    while part:
        following = list(islice(iterator, most))
        yield part
        part = following
        if part:
            await asyncio.sleep(0)


class LoopBudget:
    """Counts the items that nested loops handle in one event loop iteration, because many topics
    with few queues each can take as long as one topic with many queues.

    A new LoopBudget allows `most` items. While a method is awaited, other tasks may change any
    state.
    """

    def __init__(self, most: int = ITEMS_A_TURN) -> None:
        self._most = self._left = most

    async def spend(self, items: int = 1) -> None:
        """Count items that the caller handles next. If this event loop iteration allows no more
        items, first wait for the next iteration."""
        if self._left <= 0:
            await asyncio.sleep(0)
            self._left = self._most
        self._left -= items

    async def slices(self, items: Iterable[T]) -> AsyncIterator[list[T]]:
        """Yield all items in lists, and count them. A list has at most as many items as this event
        loop iteration still allows. `items` must not change meanwhile."""
        iterator = iter(items)
        await self.spend(0)
        while part := list(islice(iterator, self._left)):
            self._left -= len(part)
            yield part
            await self.spend(0)
