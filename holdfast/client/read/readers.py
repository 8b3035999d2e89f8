"""Readers: iterators over the messages or batches that a source fetches, for asyncio and threads.

A source fetches one range of messages at a time. A reader returns the items of the current range
without waiting. For the next range, the reader waits for the source, or for another thread.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Generic, Self, TypeVar

from holdfast.client.errors import ClientClosed
from holdfast.client.read.sources import Range, Source
from holdfast.client.transport.blocking_transport import BlockingTransport, StartedRequest
from holdfast.client.transport.loop_thread import LoopThread

T = TypeVar("T")


class AsyncReader(Generic[T]):
    """The reader that `AsyncClient.pull` returns: iterate with `async for`, or call anext().

    Leaving `async for` or `async with` ends the reading and cancels the waiting request; so does
    close(), from any task. Cancelling anext() is safe: the next call returns the item. If an error
    has ended the reading, every further call raises the same error. A reader belongs to one event
    loop.
    """

    def __init__(self, source: Source, items: Callable[[Range], Iterable[T]]) -> None:
        #: Returns the items of a range.
        self.items = items
        self.source = source
        self._under_way: asyncio.Task[Range | None] | None = None
        #: A range that was fetched but not returned, because the caller was cancelled.
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
        """Return the next range, and start to fetch the range after it.

        Return None at the end and after close(). Once the source has failed, every call raises its
        error.
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
                # Let the task write its request before the caller processes this range.
                await asyncio.sleep(0)
        fetched, self._held = self._held, None
        return fetched

    def _fetch_ahead(self) -> "asyncio.Task[Range | None]":
        task = asyncio.create_task(self.source.fetch())
        # The next call of next_range() raises the error. If there is no further call, nobody needs
        # the error.
        task.add_done_callback(_failure_is_known)
        return task

    async def close(self) -> None:
        """End the reading and cancel the waiting request. May be called twice."""
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
    """Mark a task's failure as retrieved, so that asyncio does not log it as never retrieved."""
    if not task.cancelled():
        task.exception()


class Reader(ABC, Generic[T]):
    """The reader that `Client.pull` returns: iterate with `for`, or call next(), in one thread.

    Leaving `for` or `with` ends the reading and its waiting request; so does close(), from any
    thread. If an error has ended the reading, every further call raises the same error.
    """

    def __init__(self, items: Callable[[Range], Iterable[T]]) -> None:
        self._items = items
        self._current: Iterator[T] = iter(())

    @abstractmethod
    def _next_range(self) -> Range | None:
        """Return the next range; None at the end and after close()."""

    @abstractmethod
    def _end(self) -> None:
        """End the reading and its waiting request. May be called twice."""

    def __iter__(self) -> Iterator[T]:
        # chain() is written in C, so no Python code of the reader runs for each single message.
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
        """End the reading and its waiting request. May be called twice."""
        self._current = iter(())
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BlockingReader(Reader[T]):
    """A reader whose source sends its requests over `transport`, in the calling thread. No other
    reader may use this transport.

    The request for the next range is sent before the current range is returned. The reply waits in
    the socket meanwhile, so no background thread is needed.
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
        self._under_way: StartedRequest[Range | None] | None = None
        #: A range that was fetched but not returned, because an interrupt came in between.
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
                self._held = (under_way or StartedRequest(self._source.fetch())).result()
            except Exception as error:
                if self._was_closed():
                    return None
                self._failure = error
                raise
        if self._held is not None and self._under_way is None and not self._was_closed():
            self._under_way = StartedRequest(self._source.fetch())
        fetched, self._held = self._held, None
        return None if self._was_closed() else fetched

    def _was_closed(self) -> bool:
        """Return whether the reader is closed now. Another thread may close it at any time."""
        return self._is_closed

    def _end(self) -> None:
        self._is_closed = True
        self._transport.abort()
        if self._under_way is not None:
            self._under_way.cancel()


class CrossingReader(Reader[T]):
    """A reader that gets its ranges from an AsyncReader on the background loop."""

    def __init__(self, reader: AsyncReader[T], loop_thread: LoopThread) -> None:
        super().__init__(reader.items)
        self._reader = reader
        self._loop_thread = loop_thread
        #: A range that was fetched but not returned, because an interrupt came in between.
        self._held: Range | None = None

    def _next_range(self) -> Range | None:
        if self._held is None:
            self._loop_thread.run(self._hold_next())
        fetched, self._held = self._held, None
        return fetched

    async def _hold_next(self) -> None:
        if self._held is None:  # otherwise an interrupted call left its range here
            self._held = await self._reader.next_range()

    def _end(self) -> None:
        with suppress(ClientClosed):  # a closed client has ended the reading already
            self._loop_thread.run(self._reader.close())
        self._held = None
