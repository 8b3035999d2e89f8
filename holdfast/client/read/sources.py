"""Continuous reading from one queue, or from all queues of a topic.

A source fetches one range of messages after the other, and keeps the next offset of each queue. At
the end of the queues it long-polls: the broker holds the request until messages arrive. With
`follow`, requests are retried for ever while the broker is unreachable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from holdfast.client.errors import TopicRecreated
from holdfast.client.read.pull import (
    MAX_QUEUES_IN_HEADERS,
    Part,
    PullOptions,
    QueueDescription,
    Start,
    describe_topic,
    find_offset,
    poll_queues,
    pull_queue,
)
from holdfast.client.transport.requests import Transport
from holdfast.client.transport.retry import FOREVER

#: A pull without messages takes at least this long. It limits the rate of requests if the broker
#: does not hold them.
EMPTY_PULL_S = 0.2

#: One poll asks for at most this many queues; this is the broker's limit.
MAX_QUEUES_PER_POLL = 1024
#: A poll that asks for queues with unread messages asks for at most this many other queues.
AT_END_PER_POLL = 16
#: A poll asks for at most this many queues with unread messages. With AT_END_PER_POLL other queues,
#: these are as many as a binary reply may have.
UNREAD_PER_POLL = MAX_QUEUES_IN_HEADERS - AT_END_PER_POLL
#: If not all queues fit into one poll, each poll waits at most this long.
SHORT_WAIT_MS = 500

#: A reader of all queues looks for added queues at this interval.
NEW_QUEUES_S = 30.0


@dataclass(frozen=True, slots=True)
class Range:
    """Messages of one or more queues, in order per queue, and each queue's next offset."""

    parts: Sequence[Part]
    next_offsets: dict[int, int]


class Source(Protocol):
    """Fetches one range of messages after the other."""

    async def fetch(self) -> Range | None:
        """Return the next range, which may be empty; None at the end (only without `follow`)."""
        ...


class QueueSource:
    """Fetches ranges of one queue. Without `follow`, reading ends at the max_offset of the first
    reply."""

    def __init__(
        self,
        transport: Transport,
        topic: str,
        queue: int,
        start: Start,
        options: PullOptions,
        *,
        follow: bool,
    ) -> None:
        self._transport = transport
        self._topic = _Topic(topic)
        self._queue = queue
        self._start = start
        self._options = options
        self._follow = follow
        self._is_started = False
        self._end_offset: int | None = None

    async def fetch(self) -> Range | None:
        """Return the next range, which may be empty; None at the end."""
        if self._end_offset is not None and self._start.offset == self._end_offset:
            return None
        # The first pull does not wait, so that its reply gives the offset for "latest" or for a
        # time at once. Otherwise, if the connection were lost during the wait, the messages that
        # arrive before the next pull would be missed.
        wait_ms = self._options.wait_ms if self._is_started and self._follow else 0
        asked_at_s = self._transport.now_s()
        pulled = await pull_queue(
            self._transport,
            self._topic.name,
            self._queue,
            self._start,
            self._options,
            wait_ms=wait_ms,
            retry=FOREVER if self._follow else None,
        )
        self._topic.check(pulled.topic_id)
        if self._is_started and pulled.next_offset == self._start.offset:
            await _pause_after_nothing(self._transport, asked_at_s)
        fetched = Range(pulled.parts, {self._queue: pulled.next_offset})
        if not self._follow:
            if self._end_offset is None:
                self._end_offset = pulled.max_offset
            fetched = _cut(fetched, {self._queue: self._end_offset})
        self._is_started = True
        self._start = Start(offset=fetched.next_offsets[self._queue])
        return fetched


class TopicSource:
    """Fetches ranges of all queues of a topic, including queues that are added later.

    While queues have unread messages, each poll names as many of these queues as are needed to fill
    the reply, in turn. It names only a few of the other queues, because each further queue costs
    time in client and broker. When no queue has unread messages, a poll waits for all queues.

    Reading starts at `offsets`. Queues that `offsets` does not contain begin at `start`, which
    must not be an offset. Without `follow`, each queue is read up to the max_offset that it had at
    the start.
    """

    def __init__(
        self,
        transport: Transport,
        topic: str,
        start: Start,
        options: PullOptions,
        *,
        follow: bool,
        offsets: Mapping[int, int] | None = None,
    ) -> None:
        if start.offset is not None:
            raise ValueError("offset= belongs to one queue: give queue= too, or start=")
        self._transport = transport
        self._topic = _Topic(topic)
        self._start = start
        self._options = options
        self._retry = FOREVER if follow else None
        self._follow = follow
        self._given_offsets = offsets or {}
        self._unread: dict[int, int] = {}
        """The next offset of each queue that has unread messages, in polling order."""
        self._at_end: dict[int, int] = {}
        """The next offset of each queue without unread messages, in polling order."""
        self._end_offsets: dict[int, int] = {}
        self._max_offsets: dict[int, int] = {}
        """The last known end of each queue."""
        self._look_at_s: float | None = None
        self._has_asked = False

    async def fetch(self) -> Range | None:
        """Return the next range, which may be empty; None at the end of every queue."""
        if self._look_at_s is None or (self._follow and self._look_at_s <= self._transport.now_s()):
            await self._look_for_queues()
        if not self._unread and not self._at_end:
            await self._check_filter()
            return None
        self._has_asked = True
        asked_at_s = self._transport.now_s()
        asked, wait_ms = self._next_poll()
        polled = await poll_queues(
            self._transport,
            self._topic.name,
            asked,
            self._options,
            wait_ms=wait_ms,
            retry=self._retry,
        )
        self._topic.check(polled.topic_id)
        if self._follow and polled.next_offsets == asked:
            await _pause_after_nothing(self._transport, asked_at_s)
        fetched = _cut(Range(polled.parts, polled.next_offsets), self._end_offsets)
        self._advance(asked, fetched.next_offsets, polled.max_offsets)
        return fetched

    async def _check_filter(self) -> None:
        """Let the broker validate the filter even if there is nothing to read."""
        if self._has_asked or not self._options.is_filtered:
            return
        self._has_asked = True
        queue, offset = next(iter(self._max_offsets.items()))
        await poll_queues(
            self._transport, self._topic.name, {queue: offset}, self._options, wait_ms=0
        )

    def _next_poll(self) -> tuple[dict[int, int], int]:
        """Return the queues to poll, each with its offset, and how long to wait in ms."""
        asked: dict[int, int] = {}
        messages = 0
        for queue, offset in self._unread.items():
            asked[queue] = offset
            messages += self._max_offsets[queue] - offset
            if messages >= self._options.max_messages or len(asked) == UNREAD_PER_POLL:
                break
        most = AT_END_PER_POLL if asked else MAX_QUEUES_PER_POLL
        asked.update(islice(self._at_end.items(), most))
        if self._follow and len(asked) == len(self._unread) + len(self._at_end):
            return asked, self._options.wait_ms
        return asked, 0 if self._unread else min(self._options.wait_ms, SHORT_WAIT_MS)

    async def _look_for_queues(self) -> None:
        """Find the topic's queues. Later calls find the queues that were added since."""
        is_first, self._look_at_s = self._look_at_s is None, self._transport.now_s() + NEW_QUEUES_S
        description = await describe_topic(self._transport, self._topic.name, retry=self._retry)
        self._topic.check(description.topic_id)
        for state in description.queues:
            if state.queue in self._max_offsets:
                continue
            offset = await self._start_offset(state) if is_first else state.min_offset
            self._max_offsets[state.queue] = state.max_offset
            if not self._follow:
                self._end_offsets[state.queue] = state.max_offset
                offset = min(offset, state.max_offset)
            self._go_on(state.queue, offset)

    async def _start_offset(self, state: QueueDescription) -> int:
        given = self._given_offsets.get(state.queue)
        if given is not None:
            return given
        if self._start.timestamp_ms is not None:
            found, _ = await find_offset(
                self._transport,
                self._topic.name,
                state.queue,
                self._start.timestamp_ms,
                retry=self._retry,
            )
            return found
        return state.min_offset if self._start.start == "earliest" else state.max_offset

    def _advance(
        self,
        asked: Mapping[int, int],
        next_offsets: Mapping[int, int],
        max_offsets: Mapping[int, int],
    ) -> None:
        """Record the next offsets after a poll, and move the polled queues to the end of the
        polling order."""
        self._max_offsets.update(max_offsets)
        for queue, before in asked.items():
            self._go_on(queue, next_offsets.get(queue, before))

    def _go_on(self, queue: int, offset: int) -> None:
        """Record a queue's next offset, and whether the queue has unread messages. If the queue has
        reached its end offset, read it no more."""
        self._unread.pop(queue, None)
        self._at_end.pop(queue, None)
        if offset != self._end_offsets.get(queue):
            is_unread = offset < self._max_offsets[queue]
            (self._unread if is_unread else self._at_end)[queue] = offset


class _Topic:
    """A topic's name and its id. A changed id shows that the topic was recreated."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._topic_id: int | None = None

    def check(self, topic_id: int | None) -> None:
        """Raise TopicRecreated if the id has changed. Ignore None (the id is unknown)."""
        if topic_id is None or topic_id == self._topic_id:
            return
        if self._topic_id is not None:
            raise TopicRecreated(
                409,
                "topic-recreated",
                "Topic recreated",
                f"{self.name} was deleted and made again while it was read; start again",
            )
        self._topic_id = topic_id


def _cut(fetched: Range, end_offsets: Mapping[int, int]) -> Range:
    """Return the range without the messages at or after the end offsets of their queues."""
    if not end_offsets:
        return fetched
    return Range(
        [part.until(end_offsets[part.queue]) for part in fetched.parts],
        {queue: min(offset, end_offsets[queue]) for queue, offset in fetched.next_offsets.items()},
    )


async def _pause_after_nothing(transport: Transport, asked_at_s: float) -> None:
    """Wait until EMPTY_PULL_S have passed since the request was sent."""
    await transport.pause(max(0.0, asked_at_s + EMPTY_PULL_S - transport.now_s()))
