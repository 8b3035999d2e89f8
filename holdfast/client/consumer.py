"""Consuming a topic for a group: from its stored offsets on, which follow what was processed.

A message counts as processed when the next one is asked for. Its offset is stored a little
later, so after a crash some messages come again, but none is passed over: at least once.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from dataclasses import dataclass
from typing import Self

from holdfast.client.errors import ApiError, ConnectionFailed
from holdfast.client.group_offsets import GroupOffsets
from holdfast.client.loop_thread import LoopThread
from holdfast.client.message import Message
from holdfast.client.pulling import PullOptions, Start
from holdfast.client.sources import Range, TopicSource, read_ahead
from holdfast.client.transport import Transport

_log = logging.getLogger("holdfast.client")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """How to consume; `Client.consume` documents each."""

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

    def through(self, fetched: Range) -> Iterator[Message]:
        """Yield a range's messages, each of which is processed when the next one is asked for."""
        for part in fetched.parts:
            message = None
            for message in part:
                self._current = message
                yield message
            if message is not None:
                self._next_offsets[part.queue] = message.offset + 1
            self._current = None
        # Also behind what a filter left out.
        self._next_offsets.update(fetched.next_offsets)

    def offsets(self, *, with_current: bool) -> dict[int, int]:
        """Return the offsets to store; `with_current` counts the message in hand as processed."""
        offsets = dict(self._next_offsets)
        current = self._current
        if current is not None:
            offsets[current.queue] = current.offset + with_current
        return offsets


class AsyncConsumer:
    """Messages of a topic for a group. Made by `AsyncClient.consume`; belongs to its loop.

    Iterate over it, best inside `async with`: closing stores how far it came. The message in
    hand when a loop is left by `break` comes again, unless commit() was called first.
    """

    def __init__(self, transport: Transport, options: ConsumeOptions) -> None:
        self._transport = transport
        self._options = options
        self.progress = Progress()
        #: Set when the regular commit has failed for good; `next_range` raises why.
        self.has_failed = False
        self._offsets = GroupOffsets(transport, options.group, options.topic)
        self._commit_lock = asyncio.Lock()
        self._ranges: AsyncGenerator[Range, None] | None = None
        self._committer: asyncio.Task[None] | None = None
        self._messages: AsyncGenerator[Message, None] | None = None
        self._is_closed = False

    def __aiter__(self) -> AsyncIterator[Message]:
        if self._messages is None:
            self._messages = self._iterate()
        return self._messages

    async def _iterate(self) -> AsyncGenerator[Message, None]:
        try:
            while (fetched := await self.next_range()) is not None:
                for message in self.progress.through(fetched):
                    yield message
                    if self.has_failed:
                        await self.next_range()
                    if self.commits_each:
                        await self.commit()
        finally:
            await self.close()

    @property
    def commits_each(self) -> bool:
        """Whether every message is committed by itself, before the next one is given out."""
        return self._options.commit_interval_ms == 0

    async def next_range(self) -> Range | None:
        """Return the next messages, waiting for them; None at the end without `follow`.

        Raises OffsetsChanged when another consumer has moved the group's offsets.
        """
        if self._is_closed:
            return None
        if self._committer is not None and self._committer.done():
            self._committer.result()
        if self._ranges is None:
            await self._start()
        assert self._ranges is not None
        return await anext(self._ranges, None)

    async def commit(self) -> None:
        """Store, durably, that everything given out so far is processed.

        Raises OffsetsChanged when another consumer has moved the group's offsets.
        """
        await self._commit(with_current=True)

    async def close(self) -> None:
        """Stop, and store how far the reader came: without the message in hand. May be repeated."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._committer is not None:
            self._committer.cancel()
            await asyncio.wait([self._committer])
        if self._ranges is not None:
            await self._ranges.aclose()
        if not self.has_failed:
            await self._commit(with_current=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _start(self) -> None:
        options = self._options
        source = TopicSource(
            self._transport,
            options.topic,
            Start(start=options.start),
            options.pull,
            follow=options.follow,
            offsets=await self._offsets.load(),
        )
        self._ranges = read_ahead(source)
        if not self.commits_each:
            self._committer = asyncio.create_task(self._commit_regularly())
            self._committer.add_done_callback(self._committer_ended)

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._options.commit_interval_ms / 1000)
            try:
                await self._commit(with_current=False)
            except (ConnectionFailed, ApiError) as error:
                if isinstance(error, ApiError) and not error.is_passing:
                    raise
                _log.warning("storing offsets is put off: %s", error)

    def _committer_ended(self, committer: asyncio.Task[None]) -> None:
        self.has_failed = not committer.cancelled()

    async def _commit(self, *, with_current: bool) -> None:
        async with self._commit_lock:
            await self._offsets.store(self.progress.offsets(with_current=with_current))


class Consumer:
    """Messages of a topic for a group. Made by `Client.consume`; for one thread.

    Iterate over it, best inside `with`: closing stores how far it came. The message in hand
    when a loop is left by `break` comes again, unless commit() was called first.
    """

    def __init__(self, consumer: AsyncConsumer, loop_thread: LoopThread) -> None:
        self._consumer = consumer
        self._loop_thread = loop_thread
        self._messages: Generator[Message, None, None] | None = None

    def __iter__(self) -> Iterator[Message]:
        if self._messages is None:
            self._messages = self._iterate()
        return self._messages

    def _iterate(self) -> Generator[Message, None, None]:
        consumer, run = self._consumer, self._loop_thread.run
        try:
            while (fetched := run(consumer.next_range())) is not None:
                for message in consumer.progress.through(fetched):
                    yield message
                    if consumer.has_failed:
                        run(consumer.next_range())
                    if consumer.commits_each:
                        run(consumer.commit())
        finally:
            self.close()

    def commit(self) -> None:
        """Store, durably, that everything given out so far is processed.

        Raises OffsetsChanged when another consumer has moved the group's offsets.
        """
        self._loop_thread.run(self._consumer.commit())

    def close(self) -> None:
        """Stop, and store how far the reader came: without the message in hand. May be repeated."""
        self._loop_thread.run(self._consumer.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
