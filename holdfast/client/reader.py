"""Readers: endless iterators over a source's ranges, for asyncio and for threads.

Iterating stays within a range as long as it lasts; only for the next one is there anything to
await, or a thread to cross to.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator
from typing import Generic, Self, TypeVar

from holdfast.client.loop_thread import LoopThread
from holdfast.client.sources import Range, Source, read_ahead

T = TypeVar("T")


class AsyncReader(Generic[T]):
    """What `AsyncClient.pull` returns: iterate over it with `async for`, once.

    Leaving the loop ends the reading in a while; inside `async with`, or by close(), at once.
    Belongs to one event loop.
    """

    def __init__(self, source: Source, items: Callable[[Range], Iterable[T]]) -> None:
        #: What a range has to give.
        self.items = items
        self._source = source
        self._ranges: AsyncGenerator[Range, None] | None = None
        self._generator: AsyncGenerator[T, None] | None = None

    def __aiter__(self) -> AsyncIterator[T]:
        if self._generator is None:
            self._generator = self._iterate()
        return self._generator

    async def __anext__(self) -> T:
        return await anext(aiter(self))

    async def _iterate(self) -> AsyncGenerator[T, None]:
        try:
            while (fetched := await self.next_range()) is not None:
                for item in self.items(fetched):
                    yield item
        finally:
            await self.close()

    async def next_range(self) -> Range | None:
        """Return the next range, waiting for it; None at the end, or once closed."""
        if self._ranges is None:
            self._ranges = read_ahead(self._source)
        return await anext(self._ranges, None)

    async def close(self) -> None:
        """End the reading, and the request that waits for more. May be called twice."""
        if self._ranges is None:
            self._ranges = read_ahead(self._source)
        await self._ranges.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Reader(Generic[T]):
    """What `Client.pull` returns: iterate over it, once and in one thread.

    Leaving the loop ends the reading, and so do `with` and close().
    """

    def __init__(self, reader: AsyncReader[T], loop_thread: LoopThread) -> None:
        self._reader = reader
        self._loop_thread = loop_thread
        self._generator = self._iterate()

    def __iter__(self) -> Iterator[T]:
        return self._generator

    def __next__(self) -> T:
        return next(self._generator)

    def _iterate(self) -> Generator[T, None, None]:
        reader, run = self._reader, self._loop_thread.run
        try:
            while (fetched := run(reader.next_range())) is not None:
                yield from reader.items(fetched)
        finally:
            run(reader.close())

    def close(self) -> None:
        """End the reading, and the request that waits for more. May be called twice."""
        self._generator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
