"""Readers: endless iterators over a source's ranges, for asyncio and for threads.

Iterating stays within a range as long as it lasts; only for the next one is there anything to
await, or a thread to cross to.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Generic, Self, TypeVar

from holdfast.client.blocking import BlockingTransport, UnderWay
from holdfast.client.errors import ClientClosed
from holdfast.client.loop_thread import LoopThread
from holdfast.client.sources import Range, Source

T = TypeVar("T")


class AsyncReader(Generic[T]):
    """What `AsyncClient.pull` returns: iterate over it with `async for`, or by anext().

    Leaving an `async for` ends the reading, and with it the request that waits; so does close()
    in any task, and leaving `async with`. A cancelled anext() loses nothing: call it again. An
    error that ended the reading is raised again by whoever goes on. For one event loop.
    """

    def __init__(self, source: Source, items: Callable[[Range], Iterable[T]]) -> None:
        #: What a range has to give.
        self.items = items
        self.source = source
        self._under_way: asyncio.Task[Range | None] | None = None
        #: A range that came and was not given out yet, should the asking be cancelled in between.
        self._held: Range | None = None
        self._current: Iterator[T] = iter(())
        self._is_closed = False
        self._failure: Exception | None = None

    def __aiter__(self) -> AsyncIterator[T]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[T]:
        try:
            while True:
                for item in self._current:
                    yield item
                fetched = await self.next_range()
                if fetched is None:
                    return
                self._current = iter(self.items(fetched))
        finally:
            await self.close()

    async def __anext__(self) -> T:
        while True:
            for item in self._current:
                return item
            fetched = await self.next_range()
            if fetched is None:
                raise StopAsyncIteration
            self._current = iter(self.items(fetched))

    async def next_range(self) -> Range | None:
        """Return the next range, while the one after it is asked for already.

        None at the end, and once closed. An error is raised again each time.
        """
        if self._failure is not None:
            raise self._failure
        if self._is_closed:
            return None
        if self._held is None:
            if self._under_way is None:
                self._under_way = self._fetch_ahead()
            await asyncio.wait([self._under_way])
            if self._under_way.cancelled():
                return None
            try:
                self._held = self._under_way.result()
            except Exception as error:
                self._failure = error
                raise
            if self._held is not None and not self._is_closed:
                self._under_way = self._fetch_ahead()
                # The next request is written before the reader goes to work on this range.
                await asyncio.sleep(0)
        fetched, self._held = self._held, None
        return fetched

    def _fetch_ahead(self) -> "asyncio.Task[Range | None]":
        task = asyncio.create_task(self.source.fetch())
        # It fails for whoever asks for it; if nobody does, that is nobody's concern.
        task.add_done_callback(_failure_is_known)
        return task

    async def close(self) -> None:
        """End the reading, and the request that waits for more. May be called twice."""
        self._is_closed = True
        self._current = iter(())
        if self._under_way is not None and not self._under_way.done():
            self._under_way.cancel()
            await asyncio.wait([self._under_way])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _failure_is_known(task: "asyncio.Task[Range | None]") -> None:
    """Keep asyncio from logging a failure that nobody will ask for, whenever it is collected."""
    if not task.cancelled():
        task.exception()


class Reader(ABC, Generic[T]):
    """What `Client.pull` returns: iterate over it with `for`, or by next(), in one thread.

    Leaving a `for` ends the reading, and with it the request that waits; so does close() in any
    thread, and leaving `with`. An error that ended the reading is raised again by whoever goes on.
    """

    def __init__(self, items: Callable[[Range], Iterable[T]]) -> None:
        self._items = items
        self._current: Iterator[T] = iter(())

    @abstractmethod
    def _next_range(self) -> Range | None:
        """Return the next range; None at the end, and once closed."""

    @abstractmethod
    def _end(self) -> None:
        """End the reading, and the request that waits for more. May be called twice."""

    def __iter__(self) -> Iterator[T]:
        # Within a range no code of ours runs.
        return chain.from_iterable(self._ranges())

    def _ranges(self) -> Iterator[Iterator[T]]:
        try:
            while True:
                yield self._current
                fetched = self._next_range()
                if fetched is None:
                    return
                self._current = iter(self._items(fetched))
        finally:
            self.close()

    def __next__(self) -> T:
        while True:
            for item in self._current:
                return item
            fetched = self._next_range()
            if fetched is None:
                raise StopIteration
            self._current = iter(self._items(fetched))

    def close(self) -> None:
        """End the reading, and the request that waits for more. May be called twice."""
        self._current = iter(())
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BlockingReader(Reader[T]):
    """A reader whose source's requests go over `transport`, which is its own.

    The next range is asked for before this one is worked on: what the broker answers meanwhile
    waits in the connection, so no thread is needed to take it.
    """

    def __init__(
        self,
        source: Source,
        items: Callable[[Range], Iterable[T]],
        transport: BlockingTransport,
    ) -> None:
        super().__init__(items)
        self._source = source
        self._transport = transport
        self._under_way: UnderWay[Range | None] | None = None
        #: A range that came and was not given out yet, should an interrupt come in between.
        self._held: Range | None = None
        self._is_closed = False
        self._failure: Exception | None = None

    def _next_range(self) -> Range | None:
        if self._failure is not None:
            raise self._failure
        if self._was_closed():
            return None
        if self._held is None:
            under_way, self._under_way = self._under_way, None
            try:
                self._held = (under_way or UnderWay(self._source.fetch())).result()
            except Exception as error:
                if self._was_closed():
                    return None
                self._failure = error
                raise
        if self._held is not None and self._under_way is None and not self._was_closed():
            self._under_way = UnderWay(self._source.fetch())
        fetched, self._held = self._held, None
        return None if self._was_closed() else fetched

    def _was_closed(self) -> bool:
        """Whether it is closed by now; another thread may do it at any time."""
        return self._is_closed

    def _end(self) -> None:
        self._is_closed = True
        self._transport.end()
        if self._under_way is not None:
            self._under_way.cancel()


class CrossingReader(Reader[T]):
    """A reader that has its ranges from an AsyncReader on the loop of another thread."""

    def __init__(self, reader: AsyncReader[T], loop_thread: LoopThread) -> None:
        super().__init__(reader.items)
        self._reader = reader
        self._loop_thread = loop_thread
        #: A range that came and was not given out yet, should an interrupt come in between.
        self._held: Range | None = None

    def _next_range(self) -> Range | None:
        if self._held is None:
            self._loop_thread.run(self._hold_next())
        fetched, self._held = self._held, None
        return fetched

    async def _hold_next(self) -> None:
        if self._held is None:  # else it came to one who was interrupted
            self._held = await self._reader.next_range()

    def _end(self) -> None:
        with suppress(ClientClosed):  # which has ended the reading as well
            self._loop_thread.run(self._reader.close())
        self._held = None
