"""Consuming a topic by stored offsets: from them on, and they follow what was processed.

A message counts as processed when the next one is asked for. Its offset is stored a little
later, so after a crash some messages come again, but none is passed over: at least once.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.client.errors import ApiError, ClientClosed, HoldfastError
from holdfast.client.group_offsets import GroupOffsets
from holdfast.client.loop_thread import LoopThread
from holdfast.client.message import Message, MessageList
from holdfast.client.pulling import PullOptions, Start
from holdfast.client.reader import AsyncReader, CrossingReader
from holdfast.client.requests import Requests
from holdfast.client.sources import Range, TopicSource

_log = logging.getLogger("holdfast.client")


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetConsumeOptions:
    """How to consume; `Client.consume_by_offsets` documents each."""

    group: str
    topic: str
    start: str
    follow: bool
    commit_interval_ms: int
    pull: PullOptions


class Progress:
    """How far a consumer has come. Pure; written by who iterates, read by who commits."""

    def __init__(self) -> None:
        self._next_offsets: dict[int, int] = {}
        #: The message in hand: given out, and the next one not asked for yet.
        self._current: Message | None = None
        #: Why nothing more may be given out or stored: another consumer has the group now.
        self.failure: Exception | None = None

    def through(self, fetched: Range) -> Iterator[Message]:
        """Yield a range's messages, each of which is processed when the next one is asked for."""
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
        # Also behind what a filter left out.
        self._next_offsets.update(fetched.next_offsets)

    def current_done(self) -> None:
        """Take note that the message in hand is processed."""
        current = self._current
        if current is not None:
            self._next_offsets[current.queue] = current.offset + 1
            self._current = None

    def offsets(self) -> dict[int, int]:
        """Return the offsets to store: behind what is processed, not behind what is in hand."""
        offsets = dict(self._next_offsets)
        current = self._current
        if current is not None:
            offsets[current.queue] = current.offset
        return offsets


class ConsumerSource:
    """The ranges that a consumer reads: from the group's offsets on."""

    def __init__(
        self, transport: Requests, offsets: GroupOffsets, options: OffsetConsumeOptions
    ) -> None:
        self._transport = transport
        self._offsets = offsets
        self._options = options
        self._source: TopicSource | None = None

    async def fetch(self) -> Range | None:
        """Return the next range; None at the end of what was asked for."""
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
    """What `AsyncClient.consume_by_offsets` returns: iterate over it, best inside `async with`.

    Closing stores how far it came. The message in hand when a loop is left by `break` comes
    again, unless commit() was called first.
    """

    def __init__(self, transport: Requests, options: OffsetConsumeOptions) -> None:
        self._offsets = GroupOffsets(transport, options.group, options.topic)
        self._progress = Progress()
        super().__init__(ConsumerSource(transport, self._offsets, options), self._progress.through)
        self._commit_interval_s = options.commit_interval_ms / 1000
        self._commit_lock = asyncio.Lock()
        self._committer: asyncio.Task[None] | None = None
        self._singles: deque[Range] = deque()

    async def next_range(self) -> Range | None:
        """Return the next range: a single message when each is to be committed by itself.

        Raises OffsetsChanged when another consumer has moved the group's offsets.
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
        """Store, durably, that everything given out so far is processed.

        Raises OffsetsChanged when another consumer has moved the group's offsets.
        """
        self._progress.current_done()
        await self._commit()

    async def close(self) -> None:
        """Stop, and store how far the reader came: without the message in hand. May be repeated."""
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
    """What `Client.consume_by_offsets` returns: iterate over it, best inside `with`.

    Closing stores how far it came. The message in hand when a loop is left by `break` comes
    again, unless commit() was called first.
    """

    def __init__(self, consumer: AsyncOffsetConsumer, loop_thread: LoopThread) -> None:
        super().__init__(consumer, loop_thread)
        self._consumer = consumer

    def commit(self) -> None:
        """Store, durably, that everything given out so far is processed.

        Raises OffsetsChanged when another consumer has moved the group's offsets.
        """
        self._loop_thread.run(self._consumer.commit())

    def close(self) -> None:
        """Stop, and store how far the reader came: without the message in hand. May be repeated.

        Raises ClientClosed when the client was closed before, so that nothing could be stored.
        """
        self._current = iter(())
        self._loop_thread.run(self._consumer.close())
        self._held = None


def _singles(fetched: Range) -> Iterator[Range]:
    """Yield a range's messages, each as a range; then one for what lies behind the last."""
    for part in fetched.parts:
        for message in part:
            yield Range([MessageList(part.queue, [message])], {part.queue: message.offset + 1})
    yield Range([], fetched.next_offsets)
