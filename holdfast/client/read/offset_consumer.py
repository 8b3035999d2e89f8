"""Consumes a topic from a group's stored offsets on, and stores the progress there.

A message counts as processed when the caller asks for the next one. Its offset is stored a little
later. So after a crash some messages are delivered again, and none is skipped (at least once).
"""

import asyncio
import logging
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from holdfast.client.errors import ApiError, ClientClosed, HoldfastError
from holdfast.client.read.group_offsets import GroupOffsets
from holdfast.client.read.message import Message, MessageList
from holdfast.client.read.pull import PullOptions, Start
from holdfast.client.read.readers import AsyncReader, Reader
from holdfast.client.read.sources import Range, TopicSource
from holdfast.client.transport.blocking_transport import BlockingTransport, run_blocking
from holdfast.client.transport.requests import Transport

_log = logging.getLogger("holdfast.client")


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetConsumeOptions:
    """Options of an offset consumer; `Client.consume_by_offsets` documents each."""

    group: str
    topic: str
    start: str
    follow: bool
    commit_interval_ms: int
    pull: PullOptions


class OffsetProgress:
    """A consumer's progress. Pure. The iterating code writes it; the committing code reads it."""

    def __init__(self) -> None:
        self._next_offsets: dict[int, int] = {}
        #: The message in hand: returned to the caller, who has not asked for the next one yet.
        self._current: Message | None = None
        #: The error if another consumer uses the group. Then no message may be returned and no
        #: offset stored any more.
        self.failure: Exception | None = None

    def track(self, fetched: Range) -> Iterator[Message]:
        """Yield a range's messages. A message counts as processed when the caller asks for the next
        one."""
        for part in fetched.parts:
            message = None
            for message in part:
                if self.failure is not None:
                    raise self.failure
                self._current = message
                yield message
            if message is not None:
                self._next_offsets[part.queue] = message.offset + 1
            self._current = None
        # The next offset may be higher, because a filter can leave out the last messages.
        self._next_offsets.update(fetched.next_offsets)

    def finish_current(self) -> None:
        """Record that the message in hand is processed."""
        current = self._current
        if current is not None:
            self._next_offsets[current.queue] = current.offset + 1
            self._current = None

    def offsets(self) -> dict[int, int]:
        """Return the offsets to store: for each queue, the offset after the last processed message,
        or the offset of the message in hand."""
        offsets = dict(self._next_offsets)
        current = self._current
        if current is not None:
            offsets[current.queue] = current.offset
        return offsets


class OffsetCommitter:
    """Stores a consumer's progress in its group. The methods run over the given transport.

    A subclass overrides `commit` so that only one call runs at a time.
    """

    def __init__(self, options: OffsetConsumeOptions) -> None:
        self.progress = OffsetProgress()
        self.interval_s = options.commit_interval_ms / 1000
        self.offsets = GroupOffsets(options.group, options.topic)

    async def commit(self, transport: Transport) -> None:
        """Store the progress durably. Raises OffsetsChanged."""
        try:
            await self.offsets.store(transport, self.progress.offsets())
        except ApiError as error:
            if not error.is_passing:
                self.progress.failure = error
            raise

    async def commit_regularly(self, transport: Transport) -> None:
        """Store the progress at each interval, until the transport is closed or another consumer
        uses the group."""
        with suppress(ClientClosed):
            while self.progress.failure is None:
                await transport.pause(self.interval_s)
                try:
                    await self.commit(transport)
                except ClientClosed:
                    raise
                except HoldfastError as error:
                    _log.warning("storing offsets failed: %s", error)


class AsyncOffsetCommitter(OffsetCommitter):
    """Commits from the tasks of one event loop."""

    def __init__(self, options: OffsetConsumeOptions) -> None:
        super().__init__(options)
        self._lock = asyncio.Lock()

    async def commit(self, transport: Transport) -> None:
        """Store the progress when no other task does."""
        async with self._lock:
            await super().commit(transport)


class BlockingOffsetCommitter(OffsetCommitter):
    """Commits from any thread, over a blocking transport."""

    def __init__(self, options: OffsetConsumeOptions) -> None:
        super().__init__(options)
        self._lock = threading.Lock()

    async def commit(self, transport: Transport) -> None:
        """Store the progress when no other thread does."""
        with self._lock:  # not held by a waiting task: this coroutine blocks its thread
            await super().commit(transport)


class StoredOffsetsSource:
    """Fetches a consumer's messages, from the group's stored offsets on."""

    def __init__(
        self, transport: Transport, offsets: GroupOffsets, options: OffsetConsumeOptions
    ) -> None:
        self._transport = transport
        self._offsets = offsets
        self._options = options
        self._source: TopicSource | None = None

    async def fetch(self) -> Range | None:
        """Return the next range; None at the end (only without `follow`)."""
        if self._source is None:
            self._source = TopicSource(
                self._transport,
                self._options.topic,
                Start(start=self._options.start),
                self._options.pull,
                follow=self._options.follow,
                offsets=await self._offsets.load(self._transport),
            )
        return await self._source.fetch()


class AsyncOffsetConsumer(AsyncReader[Message]):
    """The consumer that `AsyncClient.consume_by_offsets` returns: iterate inside `async with`.

    Closing stores the progress. If the caller leaves the loop with `break`, the last message
    does not count as processed and is delivered again, unless commit() was called first.
    """

    def __init__(self, transport: Transport, options: OffsetConsumeOptions) -> None:
        self.options = options
        self._transport = transport
        self._committer = AsyncOffsetCommitter(options)
        source = StoredOffsetsSource(transport, self._committer.offsets, options)
        super().__init__(source, self._committer.progress.track)
        self._committing: asyncio.Task[None] | None = None
        self._singles: deque[Range] = deque()

    async def next_range(self) -> Range | None:
        """Return the next range of messages. If `commit_interval_ms` is 0, the progress is stored
        first, and the range has at most one message.

        Raises OffsetsChanged when another consumer has changed the group's offsets.
        """
        if self._committer.progress.failure is not None:
            raise self._committer.progress.failure
        if self._committer.interval_s:
            if self._committing is None and not self._is_closed:
                self._committing = asyncio.create_task(
                    self._committer.commit_regularly(self._transport)
                )
            return await super().next_range()
        await self._committer.commit(self._transport)
        if not self._singles:
            fetched = await super().next_range()
            if fetched is None:
                return None
            self._singles.extend(_split_by_message(fetched))
        return self._singles.popleft()

    async def commit(self) -> None:
        """Store durably that all messages returned so far are processed.

        Raises OffsetsChanged when another consumer has changed the group's offsets.
        """
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

    Closing stores the progress. If the caller leaves the loop with `break`, the last message
    does not count as processed and is delivered again, unless commit() was called first.
    """

    # The caller's thread reads. A thread of the consumer stores the offsets at each interval, so
    # that a slow caller does not delay this. It has no reference to the consumer, and ends with it.

    def __init__(self, transport: BlockingTransport, options: OffsetConsumeOptions) -> None:
        self._commit_transport = transport
        self._committer = BlockingOffsetCommitter(options)
        reading = transport.child()
        source = StoredOffsetsSource(reading, self._committer.offsets, options)
        super().__init__(source, self._committer.progress.track, reading)
        self._thread_transport = transport.child()
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._thread_transport.abort)
        self._singles: deque[Range] = deque()

    def _next_range(self) -> Range | None:
        """Return the next range of messages. If `commit_interval_ms` is 0, the progress is stored
        first, and the range has at most one message.

        Raises OffsetsChanged when another consumer has changed the group's offsets.
        """
        if self._committer.progress.failure is not None:
            raise self._committer.progress.failure
        if self._committer.interval_s:
            if self._thread is None and not self._was_closed():
                thread = threading.Thread(
                    target=_commit_regularly,
                    args=(self._committer, self._thread_transport),
                    name="holdfast-offsets",
                    daemon=True,
                )
                thread.start()
                self._thread = thread
            return super()._next_range()
        self._commit()
        if not self._singles:
            fetched = super()._next_range()
            if fetched is None:
                return None
            self._singles.extend(_split_by_message(fetched))
        return self._singles.popleft()

    def commit(self) -> None:
        """Store durably that all messages returned so far are processed.

        Raises OffsetsChanged when another consumer has changed the group's offsets.
        """
        self._committer.progress.finish_current()
        self._commit()

    def close(self) -> None:
        """Stop reading and store the progress. The last returned message counts as not processed.
        May be repeated.

        If the client was closed before, raises ClientClosed and stores nothing.
        """
        if self._was_closed():
            return
        super().close()
        self._thread_transport.abort()
        self._commit_transport.check_open()
        self._join_thread()
        if self._committer.progress.failure is None:
            self._commit()

    def _join_thread(self) -> None:
        """Wait for the end of the thread. Call it after the transport was ended."""
        if self._thread is not None:
            self._thread.join()

    def _commit(self) -> None:
        run_blocking(self._committer.commit(self._commit_transport))


def _commit_regularly(committer: OffsetCommitter, transport: BlockingTransport) -> None:
    run_blocking(committer.commit_regularly(transport))


def _split_by_message(fetched: Range) -> Iterator[Range]:
    """Yield a range for each message of `fetched`, then an empty range with the next offsets of
    `fetched`."""
    for part in fetched.parts:
        for message in part:
            yield Range([MessageList(part.queue, [message])], {part.queue: message.offset + 1})
    yield Range([], fetched.next_offsets)
