"""Reading on and on: range after range from one queue, or from all queues of a topic.

A source keeps its own offsets. Where there is nothing it waits at the broker, which holds the
request: nothing is polled. While following, a broker that is away is waited for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from holdfast.client.errors import TopicRecreated
from holdfast.client.pulling import (
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
from holdfast.client.requests import Requests
from holdfast.client.retry import FOREVER

#: The least time for a pull that brings nothing: a broker that does not hold requests is asked
#: this often, not as often as it answers.
EMPTY_PULL_S = 0.2

#: Of the queues that one poll names, at most: as many as the broker takes.
MAX_QUEUES_PER_POLL = 1024
#: Of those known to have nothing, beside others that have.
AT_END_PER_POLL = 16
#: Of those that have something; together they fit a binary reply.
UNREAD_PER_POLL = MAX_QUEUES_IN_HEADERS - AT_END_PER_POLL
#: How long one poll waits at the most where it takes several to name all queues.
SHORT_WAIT_MS = 500

#: How often one who reads all queues looks for queues that were added.
NEW_QUEUES_S = 30.0


@dataclass(frozen=True, slots=True)
class Range:
    """Messages of one or more queues, in order for each, and where each queue goes on."""

    parts: Sequence[Part]
    next_offsets: dict[int, int]


class Source(Protocol):
    """What ranges come from."""

    async def fetch(self) -> Range | None:
        """Return the next range, perhaps empty; None at the end of what was asked for."""
        ...


class QueueSource:
    """Ranges of one queue. Without `follow` the end is where it was at the first reply."""

    def __init__(
        self,
        transport: Requests,
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
        """Return the next range, perhaps empty; None at the end."""
        if self._end_offset is not None and self._start.offset == self._end_offset:
            return None
        # The first pull does not wait: "latest" or a time becomes an offset at once, so that
        # nothing is missed when a connection is lost while it waits.
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
    """Ranges of all queues of a topic, also of those that are added later.

    While there is something to read, a poll names the queues that have it, only so many as fill
    its answer, and a few of the others: each has its turn, and what is named in vain costs both
    sides time. At the end of all of them it waits at all of them.

    Reading starts at `offsets`, and in queues that these do not name at `start` (an offset has
    no meaning there). Without `follow` each queue ends where it did at the beginning.
    """

    def __init__(
        self,
        transport: Requests,
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
        """From where to read the queues that are known to have more, in turn."""
        self._at_end: dict[int, int] = {}
        """The others, in turn."""
        self._end_offsets: dict[int, int] = {}
        self._max_offsets: dict[int, int] = {}
        """Where each queue ended when last heard of."""
        self._look_at_s: float | None = None

    async def fetch(self) -> Range | None:
        """Return the next range, perhaps empty; None at the end of every queue."""
        if self._look_at_s is None or (self._follow and self._look_at_s <= self._transport.now_s()):
            await self._look_for_queues()
        if not self._unread and not self._at_end:
            return None
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

    def _next_poll(self) -> tuple[dict[int, int], int]:
        """Return which queues to ask, each from its offset, and how long to wait there in ms."""
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
        """Find the topic's queues at first, and later those that were added since."""
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
        """Go on from where a poll came to; who was asked comes last, so that each has a turn."""
        self._max_offsets.update(max_offsets)
        for queue, before in asked.items():
            self._go_on(queue, next_offsets.get(queue, before))

    def _go_on(self, queue: int, offset: int) -> None:
        """Note where a queue is to be read next, if it is."""
        self._unread.pop(queue, None)
        self._at_end.pop(queue, None)
        if offset != self._end_offsets.get(queue):
            is_unread = offset < self._max_offsets[queue]
            (self._unread if is_unread else self._at_end)[queue] = offset


class _Topic:
    """A topic's name, and the id that tells whether it is still the same topic."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._topic_id: int | None = None

    def check(self, topic_id: int | None) -> None:
        """Raise TopicRecreated if the id is another than before. None: not known."""
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
    """Return the range without what lies behind the ends of queues that have one."""
    if not end_offsets:
        return fetched
    return Range(
        [part.until(end_offsets[part.queue]) for part in fetched.parts],
        {queue: min(offset, end_offsets[queue]) for queue, offset in fetched.next_offsets.items()},
    )


async def _pause_after_nothing(transport: Requests, asked_at_s: float) -> None:
    """Wait, if the broker answered sooner than it may be asked again."""
    await transport.pause(max(0.0, asked_at_s + EMPTY_PULL_S - transport.now_s()))
