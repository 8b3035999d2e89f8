"""Readers: iterators over the messages or batches that a source fetches, for asyncio and threads.

A source fetches one range of messages at a time. A reader returns the items of the current range
without waiting. For the next range, the reader waits for the source.

While the caller processes a range, the broker already prepares the next one: the reader sends the
next request before it returns the range. But a range that reaches the end of its queues is returned
first, because the next request would only wait for new messages, and sending it takes time.

An offset consumer is a reader that starts at a group's stored offsets, and stores its progress
there. A message counts as processed when the caller asks for the next one. Its offset is stored a
little later. So after a crash some messages are delivered again, and no message is skipped
(at-least-once delivery).
"""

import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from holdfast.client.read.group_offsets import OffsetCommitter, OffsetConsumeOptions, ThreadLock
from holdfast.client.read.message import Message
from holdfast.client.read.sources import Range, Source
from holdfast.client.transport.blocking_transport import (
    BlockingTransport,
    StartedRequest,
    run_blocking,
)
from holdfast.client.transport.requests import Transport
from holdfast.commitlog.lazy_import import import_at_first_use

if TYPE_CHECKING:
    import asyncio
else:
    import_at_first_use(globals(), asyncio="asyncio")

F = TypeVar("F")
T = TypeVar("T")


class AsyncReader(Generic[T]):
    """The reader that `AsyncClient.pull` returns: iterate with `async for`, or call anext().

    Leaving `async for` or `async with` ends the reading and cancels the waiting request; so does
    close(), from any task. Cancelling anext() is safe: the next call returns the item. If an error
    has ended the reading, every further call raises the same error. A reader belongs to one event
    loop.
    """

    def __init__(self, source: Source[F], items: Callable[[F], Iterable[T]]) -> None:
        #: Returns the items of a range.
        self.items: Callable[[Any], Iterable[T]] = items
        self.source: Source[Any] = source
        self._next_fetch: asyncio.Task[Any] | None = None
        #: A range that was fetched but not returned, because the caller was cancelled.
        self._fetched: Any = None
        self._current: Iterator[T] = iter(())
        self._is_closed = False
        self._failure: Exception | None = None

    async def __aiter__(self) -> AsyncIterator[T]:
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

    async def next_range(self) -> Any:
        """Return the next range of the source, and start to fetch the range after it.

        Return None at the end and after close(). If the source has failed, every call raises its
        error.
        """
        if self._failure is not None:
            raise self._failure
        if self._is_closed:
            return None
        if self._fetched is None:
            if self._next_fetch is None:
                self._next_fetch = self._fetch_ahead()
            await asyncio.wait([self._next_fetch])
            if self._next_fetch.cancelled():
                return None
            try:
                self._fetched = self._next_fetch.result()
            except Exception as error:
                self._failure = error
                raise
            if self._fetched is not None and not self._is_closed:
                self._next_fetch = self._fetch_ahead()
                if not self.source.is_at_end:
                    # Let the task write its request before the caller processes this range.
                    await asyncio.sleep(0)
        fetched, self._fetched = self._fetched, None
        return fetched

    def _fetch_ahead(self) -> "asyncio.Task[Any]":
        task = asyncio.create_task(self.source.fetch())
        # The next call of next_range() raises the error. If there is no further call, no caller
        # needs the error.
        task.add_done_callback(_retrieve_failure)
        return task

    async def close(self) -> None:
        """End the reading and cancel the waiting request. May be repeated."""
        self._is_closed = True
        self._current = iter(())
        if self._next_fetch is not None and not self._next_fetch.done():
            self._next_fetch.cancel()
            await asyncio.wait([self._next_fetch])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Reader(Generic[T]):
    """The reader that `Client.pull` returns: iterate with `for`, or call next(), in one thread.

    It behaves like AsyncReader; any thread may call close(). The source sends its requests over
    `transport`, in the calling thread; no other reader may use this transport. If the request for
    the next range is sent before the current range is returned, its reply waits in the socket
    meanwhile, so no background thread is needed.
    """

    def __init__(
        self,
        source: Source[F],
        items: Callable[[F], Iterable[T]],
        transport: BlockingTransport,
    ) -> None:
        self._source: Source[Any] = source
        self._items: Callable[[Any], Iterable[T]] = items
        self._transport = transport
        self._current: Iterator[T] = iter(())
        self._next_fetch: StartedRequest[Any] | None = None
        #: A range that was fetched but not returned, because an interrupt came in between.
        self._fetched: Any = None
        self._is_closed = False
        self._failure: Exception | None = None

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

    def _next_range(self) -> Any:
        """Return the next range. If it does not reach the end, also send the request for the range
        after it. In all else like AsyncReader.next_range."""
        if self._failure is not None:
            raise self._failure
        if self._was_closed():
            return None
        if self._fetched is None:
            fetch, self._next_fetch = self._next_fetch, None
            try:
                self._fetched = (fetch or StartedRequest(self._source.fetch())).result()
            except Exception as error:
                if self._was_closed():
                    return None
                self._failure = error
                raise
        if (
            self._fetched is not None
            and self._next_fetch is None
            and not self._source.is_at_end
            and not self._was_closed()
        ):
            self._next_fetch = StartedRequest(self._source.fetch())
        fetched, self._fetched = self._fetched, None
        return None if self._was_closed() else fetched

    def _was_closed(self) -> bool:
        """Return whether the reader is closed. Another thread may close it at any time."""
        return self._is_closed

    def close(self) -> None:
        """End the reading and its waiting request. May be repeated."""
        self._is_closed = True
        self._current = iter(())
        self._transport.abort()
        if self._next_fetch is not None:
            self._next_fetch.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncOffsetConsumer(AsyncReader[Message]):
    """The consumer that `AsyncClient.consume_by_offsets` returns: iterate inside `async with`.

    Closing stores the progress. If the caller leaves the loop with `break`, the last message
    does not count as processed and is delivered again, unless commit() was called first.
    """

    def __init__(self, transport: Transport, options: OffsetConsumeOptions) -> None:
        self.options = options
        self._transport = transport
        self._committer = OffsetCommitter(options, asyncio.Lock())
        super().__init__(self._committer.open_source(transport), self._committer.progress.track)
        self._committing: asyncio.Task[None] | None = None

    async def next_range(self) -> Range | None:
        """Return the next range of messages. If `commit_interval_ms` is 0, store the progress
        first, and return at most one message.

        Raises OffsetsChanged when another consumer has changed the group's offsets.
        """
        committer = self._committer
        if committer.progress.failure is not None:
            raise committer.progress.failure
        if not committer.interval_s:
            await committer.commit(self._transport)
        elif self._committing is None and not self._is_closed:
            self._committing = asyncio.create_task(committer.commit_regularly(self._transport))
        fetched: Range | None = await super().next_range()
        return fetched

    async def commit(self) -> None:
        """Store durably that all messages returned so far are processed. Raises OffsetsChanged."""
        self._committer.progress.finish_current()
        await self._committer.commit(self._transport)

    async def close(self) -> None:
        """Stop reading and store the progress. The last returned message counts as not processed.
        May be repeated."""
        if self._is_closed:
            return
        await super().close()
        if self._committing is not None:
            self._committing.cancel()
            await asyncio.wait([self._committing])
        if self._committer.progress.failure is None:
            await self._committer.commit(self._transport)


class OffsetConsumer(Reader[Message]):
    """The consumer that `Client.consume_by_offsets` returns: iterate over it inside `with`.

    It behaves like AsyncOffsetConsumer. The caller's thread reads. A background thread stores the
    offsets at each interval, so a slow caller does not delay the storing.
    """

    def __init__(self, transport: BlockingTransport, options: OffsetConsumeOptions) -> None:
        self._commit_transport = transport
        self._committer = OffsetCommitter(options, ThreadLock())
        reading = transport.child()
        source = self._committer.open_source(reading)
        super().__init__(source, self._committer.progress.track, reading)
        self._thread_transport = transport.child()
        self._thread: threading.Thread | None = None
        # The thread has no reference to the consumer, so the consumer can be garbage-collected.
        # When that happens, the thread ends.
        weakref.finalize(self, self._thread_transport.abort)

    def _next_range(self) -> Range | None:
        committer = self._committer
        if committer.progress.failure is not None:
            raise committer.progress.failure
        if not committer.interval_s:
            self._commit()
        elif self._thread is None and not self._was_closed():
            thread = threading.Thread(
                target=_commit_regularly,
                args=(committer, self._thread_transport),
                name="holdfast-offsets",
                daemon=True,
            )
            thread.start()
            self._thread = thread
        fetched: Range | None = super()._next_range()
        return fetched

    def commit(self) -> None:
        """Store durably that all messages returned so far are processed. Raises OffsetsChanged."""
        self._committer.progress.finish_current()
        self._commit()

    def close(self) -> None:
        """Close as AsyncOffsetConsumer.close does. If the client was closed before, raise
        ClientClosed and store nothing."""
        if self._was_closed():
            return
        super().close()
        self._thread_transport.abort()
        self._commit_transport.check_open()
        self._join_thread()
        if self._committer.progress.failure is None:
            self._commit()

    def _join_thread(self) -> None:
        """Wait for the end of the thread. Call this after the transport was ended."""
        if self._thread is not None:
            self._thread.join()

    def _commit(self) -> None:
        run_blocking(self._committer.commit(self._commit_transport))


def _commit_regularly(committer: OffsetCommitter, transport: BlockingTransport) -> None:
    run_blocking(committer.commit_regularly(transport))


def _retrieve_failure(task: "asyncio.Task[Any]") -> None:
    """Mark a task's failure as retrieved, so that asyncio does not log it as never retrieved."""
    if not task.cancelled():
        task.exception()
