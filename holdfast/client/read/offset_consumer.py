"""Consumes a topic from a group's stored offsets on, and stores the progress there.

A message counts as processed when the caller asks for the next one. Its offset is stored a little
later. So after a crash some messages are delivered again, and none is skipped (at least once).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.client.errors import ApiError, ClientClosed, HoldfastError
from holdfast.client.read.group_offsets import GroupOffsets
from holdfast.client.read.message import Message, MessageList
from holdfast.client.read.pull import PullOptions, Start
from holdfast.client.read.readers import AsyncReader, CrossingReader
from holdfast.client.read.sources import Range, TopicSource
from holdfast.client.transport.loop_thread import LoopThread
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


class Progress:
    """A consumer's progress. Pure. The iterating code writes it; the committing code reads it."""

    def __init__(self) -> None:
        self._next_offsets: dict[int, int] = {}
        #: The message in hand: returned to the caller, who has not asked for the next one yet.
        self._current: Message | None = None
        #: The error if another consumer uses the group. Then no message may be returned and no
        #: offset stored any more.
        self.failure: Exception | None = None

    def through(self, fetched: Range) -> Iterator[Message]:
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

    def current_done(self) -> None:
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


class ConsumerSource:
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
                offsets=await self._offsets.load(),
            )
        return await self._source.fetch()


class AsyncOffsetConsumer(AsyncReader[Message]):
    """The consumer that `AsyncClient.consume_by_offsets` returns: iterate inside `async with`.

    Closing stores the progress. If the caller leaves the loop with `break`, the last message
    does not count as processed and is delivered again, unless commit() was called first.
    """

    def __init__(self, transport: Transport, options: OffsetConsumeOptions) -> None:
        self._offsets = GroupOffsets(transport, options.group, options.topic)
        self._progress = Progress()
        super().__init__(ConsumerSource(transport, self._offsets, options), self._progress.through)
        self._commit_interval_s = options.commit_interval_ms / 1000
        self._commit_lock = asyncio.Lock()
        self._committer: asyncio.Task[None] | None = None
        self._singles: deque[Range] = deque()

    async def next_range(self) -> Range | None:
        """Return the next range of messages. If `commit_interval_ms` is 0, the progress is stored
        first, and the range has at most one message.

        Raises OffsetsChanged when another consumer has changed the group's offsets.
        """
        if self._progress.failure is not None:
            raise self._progress.failure
        if self._commit_interval_s:
            if self._committer is None:
                self._committer = asyncio.create_task(self._commit_regularly())
            return await super().next_range()
        await self._commit()
        if not self._singles:
            fetched = await super().next_range()
            if fetched is None:
                return None
            self._singles.extend(_singles(fetched))
        return self._singles.popleft()

    async def commit(self) -> None:
        """Store durably that all messages returned so far are processed.

        Raises OffsetsChanged when another consumer has changed the group's offsets.
        """
        self._progress.current_done()
        await self._commit()

    async def close(self) -> None:
        """Stop reading and store the progress. The last returned message counts as not processed.
        May be repeated."""
        if self._is_closed:
            return
        await super().close()
        if self._committer is not None:
            self._committer.cancel()
            await asyncio.wait([self._committer])
        if self._progress.failure is None:
            await self._commit()

    async def _commit_regularly(self) -> None:
        while self._progress.failure is None:
            await asyncio.sleep(self._commit_interval_s)
            try:
                await self._commit()
            except ClientClosed:
                return
            except HoldfastError as error:
                _log.warning("storing offsets failed: %s", error)

    async def _commit(self) -> None:
        async with self._commit_lock:
            try:
                await self._offsets.store(self._progress.offsets())
            except ApiError as error:
                if not error.is_passing:
                    self._progress.failure = error
                raise


class OffsetConsumer(CrossingReader[Message]):
    """The consumer that `Client.consume_by_offsets` returns: iterate over it inside `with`.

    Closing stores the progress. If the caller leaves the loop with `break`, the last message
    does not count as processed and is delivered again, unless commit() was called first.
    """

    def __init__(self, consumer: AsyncOffsetConsumer, loop_thread: LoopThread) -> None:
        super().__init__(consumer, loop_thread)
        self._consumer = consumer

    def commit(self) -> None:
        """Store durably that all messages returned so far are processed.

        Raises OffsetsChanged when another consumer has changed the group's offsets.
        """
        self._loop_thread.run(self._consumer.commit())

    def close(self) -> None:
        """Stop reading and store the progress. The last returned message counts as not processed.
        May be repeated.

        If the client was closed before, raises ClientClosed and stores nothing.
        """
        self._current = iter(())
        self._loop_thread.run(self._consumer.close())
        self._held = None


def _singles(fetched: Range) -> Iterator[Range]:
    """Yield a range for each message of `fetched`, then an empty range with the next offsets of
    `fetched`."""
    for part in fetched.parts:
        for message in part:
            yield Range([MessageList(part.queue, [message])], {part.queue: message.offset + 1})
    yield Range([], fetched.next_offsets)
