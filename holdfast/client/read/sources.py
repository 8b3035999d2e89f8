"""Continuous reading from one queue, or from all queues of a topic.

A source fetches one range of messages after another, and keeps the next offset of each queue. At
the end of the queues it long-polls: the broker holds the request until messages arrive. With
`follow`, requests are retried for ever while the broker is unreachable.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Protocol, TypeVar

from holdfast.client.errors import TopicRecreated
from holdfast.client.read.facts import QueueBounds
from holdfast.client.read.message import MessageList
from holdfast.client.read.pull import (
    MAX_QUEUES_IN_HEADERS,
    Fetched,
    Part,
    PullOptions,
    Start,
    TopicRequests,
)
from holdfast.client.read.wait_limit import WaitLimit
from holdfast.client.transport.requests import Transport
from holdfast.client.transport.retry import FOREVER

#: A pull without messages takes at least this long. This limits the rate of requests if the broker
#: does not hold the requests.
EMPTY_PULL_S = 0.2

#: One poll asks for at most this many queues; this is the broker's limit.
MAX_QUEUES_PER_POLL = 1024
#: A poll that asks for queues with unread messages asks for at most this many queues without unread
#: messages.
AT_END_PER_POLL = 16
#: A poll asks for at most this many queues with unread messages, so that the poll in total asks for
#: no more queues than a binary reply may have.
UNREAD_PER_POLL = MAX_QUEUES_IN_HEADERS - AT_END_PER_POLL
#: If not all queues fit into one poll, each poll waits at most this long.
SHORT_WAIT_MS = 500

#: A reader of all queues looks for added queues at this interval.
NEW_QUEUES_S = 30.0


F = TypeVar("F", covariant=True)


@dataclass(frozen=True, slots=True)
class Range:
    """Messages of one or more queues, in order per queue, and each queue's next offset."""

    parts: Sequence[Part]
    next_offsets: dict[int, int]


class Source(Protocol[F]):
    """Fetches one range of messages after the other."""

    @property
    def is_at_end(self) -> bool:
        """Whether the last range reached the end of every queue, as far as the source knows. Then
        the next fetch probably waits for new messages."""

    async def fetch(self) -> F | None:
        """Return the next range, which may be empty; None at the end (only without `follow`)."""
        ...


@dataclass(eq=False)
class _PollingSource:
    """The common part of the two sources: how they handle a reply."""

    transport: Transport
    topic: str
    start: Start
    options: PullOptions
    follow: bool
    _topic_id: int | None = field(default=None, init=False)
    #: Without `follow`: where the reading of each queue ends.
    _end_offsets: dict[int, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        policy = FOREVER if self.follow else None
        self._requests = TopicRequests(self.transport, self.topic, policy)
        self._wait_limit = WaitLimit()

    async def _await_reply(
        self, request: Awaitable[Fetched], asked: Mapping[int, int], *, may_pause: bool
    ) -> Fetched:
        """Return the reply to a request for the messages from the offsets `asked` on. With
        `may_pause`, return a reply without messages no earlier than EMPTY_PULL_S after the
        request."""
        asked_at_s = self.transport.now_s()
        fetched = await request
        self._check_topic_id(fetched.topic_id)
        if may_pause and fetched.next_offsets == asked:
            await self.transport.pause(max(0.0, asked_at_s + EMPTY_PULL_S - self.transport.now_s()))
        return fetched

    def _check_topic_id(self, topic_id: int | None) -> None:
        """Raise TopicRecreated if the topic's id has changed. Ignore None (the id is unknown)."""
        if topic_id is None or topic_id == self._topic_id:
            return
        if self._topic_id is not None:
            raise TopicRecreated(
                409,
                "topic-recreated",
                "Topic recreated",
                f"{self.topic} was deleted and created again meanwhile; start a new reader",
            )
        self._topic_id = topic_id

    def _truncate(self, fetched: Fetched) -> Range:
        """Return the messages before the end offsets of their queues."""
        ends = self._end_offsets
        if not ends:
            return Range(fetched.parts, fetched.next_offsets)
        return Range(
            [part.until(ends[part.queue]) for part in fetched.parts],
            {queue: min(offset, ends[queue]) for queue, offset in fetched.next_offsets.items()},
        )


@dataclass(eq=False)
class QueueSource(_PollingSource):
    """Fetches ranges of one queue. Without `follow`, reading ends at the max_offset of the first
    reply."""

    queue: int = field(kw_only=True)
    is_at_end: bool = field(default=False, init=False)
    #: None until the first reply.
    _next_offset: int | None = field(default=None, init=False)

    async def fetch(self) -> Range | None:
        """Return the next range, which may be empty; None at the end."""
        queue, offset = self.queue, self._next_offset
        if offset is not None and offset == self._end_offsets.get(queue):
            return None
        # The first pull does not wait, so its reply immediately gives the offset for "latest" or
        # for a time. If the pull waited and the connection were lost, the reader would miss the
        # messages that arrive before the next pull.
        wait_ms = 0 if offset is None or not self.follow else self.options.wait_ms
        start = self.start if offset is None else Start(offset=offset)
        request = self._wait_limit.send(
            partial(self._requests.pull, queue, start, self.options), wait_ms
        )
        asked = {} if offset is None else {queue: offset}
        fetched = await self._await_reply(request, asked, may_pause=True)
        if offset is None and not self.follow:
            self._end_offsets = fetched.max_offsets
        found = self._truncate(fetched)
        self._next_offset = found.next_offsets[queue]
        self.is_at_end = self._next_offset >= fetched.max_offsets[queue]
        return found


@dataclass(eq=False)
class TopicSource(_PollingSource):
    """Fetches ranges of all queues of a topic, including queues that are added later.

    While queues have unread messages, these queues take turns: each poll asks for as many of them
    as are needed to fill the reply. It also asks for a few queues without unread messages; only a
    few, because each queue costs time in client and broker. When no queue has unread messages, a
    poll waits for all queues.

    Reading starts at the offsets that `load_offsets` returns. All other queues begin at `start`,
    which must not be an offset. Without `follow`, each queue is read up to the max_offset that the
    queue had when reading began.
    """

    load_offsets: Callable[[], Awaitable[Mapping[int, int]]] | None = field(
        default=None, kw_only=True
    )

    def __post_init__(self) -> None:
        if self.start.offset is not None:
            raise ValueError("offset= belongs to one queue: give queue= too, or start=")
        super().__post_init__()
        self._given_offsets: Mapping[int, int] = {}
        #: The next offset of each queue that has unread messages, in polling order.
        self._unread: dict[int, int] = {}
        #: The next offset of each queue without unread messages, in polling order.
        self._at_end: dict[int, int] = {}
        #: The last known max_offset of each queue.
        self._max_offsets: dict[int, int] = {}
        #: When to look for added queues; None until the topic's queues are known.
        self._discover_at_s: float | None = None
        self._has_asked = False

    @property
    def is_at_end(self) -> bool:
        return not self._unread

    async def fetch(self) -> Range | None:
        """Return the next range, which may be empty; None at the end of every queue."""
        if self._discover_at_s is None or (
            self.follow and self._discover_at_s <= self.transport.now_s()
        ):
            await self._discover_queues()
        if not self._unread and not self._at_end:
            await self._check_filter()
            return None
        self._has_asked = True
        asked, wait_ms = self._next_poll()
        request = self._wait_limit.send(partial(self._requests.poll, asked, self.options), wait_ms)
        fetched = await self._await_reply(request, asked, may_pause=self.follow)
        found = self._truncate(fetched)
        self._max_offsets.update(fetched.max_offsets)
        # The polled queues move to the end of the polling order.
        for queue, before in asked.items():
            self._record_offset(queue, found.next_offsets.get(queue, before))
        return found

    async def _check_filter(self) -> None:
        """Let the broker validate the filter even if there is nothing to read."""
        if self._has_asked or not self.options.is_filtered:
            return
        self._has_asked = True
        queue, offset = next(iter(self._max_offsets.items()))
        await self._requests.poll({queue: offset}, self.options, 0)

    def _next_poll(self) -> tuple[dict[int, int], int]:
        """Return the next offsets of the queues to poll, and how long to wait in ms."""
        asked: dict[int, int] = {}
        messages = 0
        for queue, offset in self._unread.items():
            asked[queue] = offset
            messages += self._max_offsets[queue] - offset
            if messages >= self.options.max_messages or len(asked) == UNREAD_PER_POLL:
                break
        limit = AT_END_PER_POLL if asked else MAX_QUEUES_PER_POLL
        asked.update(islice(self._at_end.items(), limit))
        if self.follow and len(asked) == len(self._unread) + len(self._at_end):
            return asked, self.options.wait_ms
        return asked, 0 if self._unread else min(self.options.wait_ms, SHORT_WAIT_MS)

    async def _discover_queues(self) -> None:
        """Find the topic's queues. Later calls find the queues that were added since."""
        is_first = self._discover_at_s is None
        discover_at_s = self.transport.now_s() + NEW_QUEUES_S
        if is_first and self.load_offsets is not None:
            self._given_offsets = await self.load_offsets()
        facts = await self._requests.fetch_facts()
        self._check_topic_id(facts.topic_id)
        for state in facts.queues:
            if state.queue in self._max_offsets:
                continue
            offset = await self._find_start_offset(state) if is_first else state.min_offset
            self._max_offsets[state.queue] = state.max_offset
            if not self.follow:
                self._end_offsets[state.queue] = state.max_offset
                offset = min(offset, state.max_offset)
            self._record_offset(state.queue, offset)
        self._discover_at_s = discover_at_s

    async def _find_start_offset(self, state: QueueBounds) -> int:
        given = self._given_offsets.get(state.queue)
        if given is not None:
            return given
        if self.start.timestamp_ms is not None:
            return (await self._requests.find_offset(state.queue, self.start.timestamp_ms))[0]
        return state.min_offset if self.start.start == "earliest" else state.max_offset

    def _record_offset(self, queue: int, offset: int) -> None:
        """Record a queue's next offset, and whether the queue has unread messages. Forget a queue
        that has reached its end offset."""
        self._unread.pop(queue, None)
        self._at_end.pop(queue, None)
        if offset != self._end_offsets.get(queue):
            is_unread = offset < self._max_offsets[queue]
            (self._unread if is_unread else self._at_end)[queue] = offset


class SingleMessageSource:
    """Splits the ranges of another source, so that each range has at most one message."""

    def __init__(self, source: Source[Range]) -> None:
        self._source = source
        self._singles: deque[Range] = deque()

    @property
    def is_at_end(self) -> bool:
        return not self._singles and self._source.is_at_end

    async def fetch(self) -> Range | None:
        if not self._singles:
            fetched = await self._source.fetch()
            if fetched is None:
                return None
            self._singles.extend(_split_by_message(fetched))
        return self._singles.popleft()


def _split_by_message(fetched: Range) -> Iterator[Range]:
    """Yield a range for each message of a range, then an empty range with the next offsets."""
    for part in fetched.parts:
        for message in part:
            yield Range([MessageList(part.queue, [message])], {part.queue: message.offset + 1})
    yield Range([], fetched.next_offsets)
