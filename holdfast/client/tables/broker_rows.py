"""The rows of a table, fetched from the broker: whole blocks, one queue after the other.

The broker sends blocks as they are stored. Their checksums are verified, and no message is decoded.
"""

from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import replace

from holdfast.client.errors import TopicRecreated
from holdfast.client.read.facts import TopicFacts
from holdfast.client.read.message import MessageList, MessageRun
from holdfast.client.read.options import PullOptions, Start
from holdfast.client.read.pull import Part, TopicRequests
from holdfast.client.tables.ranges import QueueBounds, QueueSlice, TableRange, beyond_end
from holdfast.client.tables.rows import BlockRows, FetchedRows, SourceQueue
from holdfast.client.transport.requests import Transport


class BrokerRows:
    """Fetches the rows of a range, as a Source. `options` has the filters and the bytes of one
    pull.

    `fetch` raises the errors of `TableRange`, of `TopicRequests.pull`, and TopicRecreated.
    """

    is_at_end = False

    def __init__(self, transport: Transport, wanted: TableRange, options: PullOptions) -> None:
        self._wanted = wanted
        self._options = replace(options, in_runs=True)
        self._requests = TopicRequests(transport, wanted.topic)
        self._facts: TopicFacts | None = None
        #: What is still to be fetched.
        self._waiting: deque[QueueSlice] = deque()

    async def fetch(self) -> FetchedRows | None:
        """Return the next rows, perhaps none; None at the end of the range."""
        if self._facts is None:
            facts = await self._requests.fetch_facts()
            self._waiting.extend([each async for each in self._slices(facts)])
            self._facts = facts  # last: a fetch that was interrupted before begins again
        if not self._waiting:
            return None
        part = self._waiting[0]
        fetched = await self._requests.pull(
            part.queue, Start(offset=part.start), self._limited_to(part), 0
        )
        if fetched.topic_id not in (None, self._facts.topic_id):
            raise TopicRecreated(
                409,
                "topic-recreated",
                "Topic recreated",
                f"{self._wanted.topic} was deleted and created again meanwhile; read it again",
            )
        following = fetched.next_offsets[part.queue]
        if following <= part.start:
            # The range was fixed below the queue's end, so messages were lost since.
            raise beyond_end(self._wanted.topic, part.queue, part.start, following)
        self._waiting.popleft()
        if following < part.end:
            self._waiting.appendleft(part._replace(start=following))
        return FetchedRows(
            self._source(part.queue), list(_rows_of(fetched.parts, part.start, part.end))
        )

    def _limited_to(self, part: QueueSlice) -> PullOptions:
        most = min(self._options.max_messages, part.end - part.start)
        return replace(self._options, max_messages=most)

    def _source(self, queue: int) -> SourceQueue:
        assert self._facts is not None
        levels = self._facts.config.priority_levels
        return SourceQueue(
            self._wanted.topic, self._facts.topic_id, queue, levels if levels > 1 else None
        )

    async def _slices(self, facts: TopicFacts) -> AsyncIterator[QueueSlice]:
        """Yield the slices of the range that are not empty."""
        wanted = self._wanted
        bounds = {
            each.queue: QueueBounds(each.min_offset, each.max_offset) for each in facts.queues
        }
        for queue in wanted.queues_of(bounds):
            found = wanted.slice_of(
                queue,
                bounds[queue],
                await self._find(queue, wanted.start.timestamp_ms),
                await self._find(queue, wanted.end.timestamp_ms),
            )
            if found.start < found.end:
                yield found

    async def _find(self, queue: int, timestamp_ms: int | None) -> int | None:
        if timestamp_ms is None:
            return None
        return (await self._requests.find_offset(queue, timestamp_ms))[0]


def _rows_of(parts: Iterable[Part], start: int, end: int) -> Iterator[BlockRows | MessageList]:
    for part in parts:
        if isinstance(part, MessageRun):
            yield BlockRows(part.blocks, start, end)
        elif isinstance(part, MessageList):
            yield part.until(end)
