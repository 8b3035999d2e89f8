"""The requests that read a topic.

A pull reads one queue, a poll reads several queues. Without a filter the broker sends the stored
binary batches; this module verifies their checksums and removes the messages before the requested
offset. With a filter the broker sends the selected messages as msgpack.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.client.errors import BadReply, api_error
from holdfast.client.read.facts import TopicFacts, fetch_facts
from holdfast.client.read.message import (
    LoneMessage,
    Message,
    MessageBatch,
    MessageList,
    MessageRun,
    RunColumns,
)
from holdfast.client.read.options import MAX_MESSAGES as MAX_MESSAGES
from holdfast.client.read.options import PullOptions as PullOptions
from holdfast.client.read.options import Start as Start
from holdfast.client.read.results import Skipped
from holdfast.client.transport.requests import (
    BATCH,
    MSGPACK,
    REBUILT_BATCH,
    Reply,
    Transport,
    check_name,
)
from holdfast.client.transport.retry import RetryPolicy
from holdfast.commitlog.format.batch import iter_batches
from holdfast.commitlog.format.batch_header import HEADER_SIZE, BatchHeader
from holdfast.commitlog.format.batch_run import BatchRun

_log = logging.getLogger("holdfast.client")

#: A poll of more queues than this requests msgpack instead of binary batches. A binary reply has
#: the offsets of the queues in its headers, and the broker allows at most this many queues there.
MAX_QUEUES_IN_HEADERS = 128

#: Batches up to this size are decoded together, as a run. For larger batches this would save
#: nothing, because most of the time is spent on their messages.
MAX_BYTES_IN_RUNS = 16 * 1024

Part = MessageBatch | MessageRun | MessageList


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of a pull or poll, by queue. `topic_id` is None if the reply does not contain it;
    `min_offset` is None for a poll."""

    parts: Sequence[Part]
    next_offsets: dict[int, int]
    max_offsets: dict[int, int]
    topic_id: int | None
    skipped: Sequence[Skipped]
    min_offset: int | None = None


class _PullReply(msgspec.Struct):
    messages: list[LoneMessage]
    next_offset: int
    min_offset: int
    max_offset: int


class _QueueState(msgspec.Struct):
    queue: int
    next_offset: int
    max_offset: int
    problem: dict[str, Any] | None = None


class _PollReply(msgspec.Struct):
    messages: list[LoneMessage]
    queues: list[_QueueState]


class _OffsetAtTime(msgspec.Struct):
    offset: int
    store_timestamp_ms: int | None


class TopicRequests:
    """The requests that read one topic. `retry` replaces the transport's policy. The constructor
    raises ValueError for an invalid topic name."""

    def __init__(self, transport: Transport, topic: str, retry: RetryPolicy | None = None) -> None:
        self._path = f"/v1/topics/{check_name('topic', topic)}"
        self._transport = transport
        self._topic = topic
        self._retry = retry

    async def pull(self, queue: int, start: Start, options: PullOptions, wait_ms: int) -> Fetched:
        """Pull once from one queue. Raises ApiError, ConnectionFailed, BadReply or CorruptBatch."""
        reply = await self._transport.request(
            "GET",
            f"{self._path}/queues/{queue}/messages",
            params={**start.params(), **options.params(wait_ms)},
            headers={"Accept": MSGPACK if options.is_filtered else _binary(options)},
            wait_s=wait_ms / 1000,
            retry=self._retry,
        )
        if options.is_filtered:
            pulled = reply.msgpack(_PullReply)
            parts: Sequence[Part] = _group_by_queue(pulled.messages)
            next_offset, max_offset = pulled.next_offset, pulled.max_offset
            min_offset = pulled.min_offset
        else:
            next_offset = reply.header_int("Holdfast-Next-Offset")
            max_offset = reply.header_int("Holdfast-Max-Offset")
            min_offset = reply.header_int("Holdfast-Min-Offset")
            start_offset = min_offset if start.offset is None else start.offset
            parts = _decode_batches(reply, self._topic, {queue: start_offset}, options)
        return _build_fetched(
            reply, self._topic, parts, {queue: next_offset}, {queue: max_offset}, min_offset
        )

    async def poll(self, offsets: Mapping[int, int], options: PullOptions, wait_ms: int) -> Fetched:
        """Pull once from several queues. `offsets` maps each queue to the offset where to start;
        the broker reads the queues in the order of `offsets`.

        Raises the errors of `pull`; a problem with one queue fails the whole poll.
        """
        is_binary = not options.is_filtered and len(offsets) <= MAX_QUEUES_IN_HEADERS
        reply = await self._transport.request(
            "GET",
            f"{self._path}/messages",
            params={
                "offsets": ",".join(f"{queue}:{offset}" for queue, offset in offsets.items()),
                **options.params(wait_ms),
            },
            headers={"Accept": _binary(options) if is_binary else MSGPACK},
            wait_s=wait_ms / 1000,
            retry=self._retry,
        )
        if is_binary:
            parts: Sequence[Part] = _decode_batches(reply, self._topic, offsets, options)
            next_offsets = _parse_queue_offsets(reply, "Holdfast-Next-Offset")
            max_offsets = _parse_queue_offsets(reply, "Holdfast-Max-Offset")
        else:
            polled = reply.msgpack(_PollReply)
            for state in polled.queues:
                if state.problem is not None:
                    raise api_error(int(state.problem.get("status", 500)), state.problem)
            parts = _group_by_queue(polled.messages)
            next_offsets = {state.queue: state.next_offset for state in polled.queues}
            max_offsets = {state.queue: state.max_offset for state in polled.queues}
        return _build_fetched(reply, self._topic, parts, next_offsets, max_offsets)

    async def fetch_facts(self) -> TopicFacts:
        """Return the queues and limits of the topic."""
        return await fetch_facts(self._transport, self._topic, self._retry)

    async def find_offset(self, queue: int, timestamp_ms: int) -> tuple[int, int | None]:
        """Return the offset and the store time (ms) of the first message that was stored at or
        after a time. Return (max_offset, None) if there is no such message."""
        reply = await self._transport.request(
            "GET",
            f"{self._path}/queues/{queue}/offset",
            params={"timestamp_ms": timestamp_ms},
            retry=self._retry,
        )
        found = reply.json(_OffsetAtTime)
        return found.offset, found.store_timestamp_ms


def _build_fetched(
    reply: Reply,
    topic: str,
    parts: Sequence[Part],
    next_offsets: dict[int, int],
    max_offsets: dict[int, int],
    min_offset: int | None = None,
) -> Fetched:
    for part in parts:
        if not isinstance(part, MessageList):
            # The broker sends whole batches, so the last batch may exceed max_messages.
            next_offsets[part.queue] = max(next_offsets[part.queue], part.end_offset)
    topic_id = reply.header("Holdfast-Topic-Id") or ""
    return Fetched(
        parts,
        next_offsets,
        max_offsets,
        int(topic_id) if topic_id.isdecimal() else None,
        _parse_skipped(reply, topic),
        min_offset,
    )


def _binary(options: PullOptions) -> str:
    return REBUILT_BATCH if options.rebuilt else BATCH


def _decode_batches(
    reply: Reply, topic: str, start_offsets: Mapping[int, int], options: PullOptions
) -> Sequence[MessageBatch | MessageRun]:
    """Return the messages of a binary reply, except the messages before the start offsets."""
    if not reply.body:
        return []
    rebuilt = options.rebuilt
    if len(start_offsets) == 1 and (
        options.in_runs or _is_of_small_batches(reply.body, rebuilt=rebuilt)
    ):
        run = BatchRun(reply.body, rebuilt=rebuilt)
        ((queue, start_offset),) = start_offsets.items()
        unrequested = run.field("queue_id") != queue
        if unrequested.any():
            raise _unrequested_queue(reply, int(run.field("queue_id")[unrequested.argmax()]))
        if bool((run.base_offsets[1:] < run.end_offsets[:-1]).any()):
            raise BadReply(reply.url, f"the batches of queue {queue} are not in order")
        columns = RunColumns(topic, run)
        part = MessageRun(topic, columns, columns.row_at(start_offset), columns.row_count)
        return [part] if len(part) else []
    parts = []
    for batch in iter_batches(reply.body, rebuilt=rebuilt):
        header = batch.header
        if header.queue_id not in start_offsets:
            raise _unrequested_queue(reply, header.queue_id)
        start_row = max(0, start_offsets[header.queue_id] - header.base_offset)
        if start_row < len(batch):
            parts.append(MessageBatch(topic, batch, start_row, len(batch)))
    return parts


def _is_of_small_batches(body: bytes | memoryview, *, rebuilt: bool) -> bool:
    """Return whether it is probably faster to decode the batches as a run. Only the size of the
    first batch is checked."""
    if len(body) < 4 * HEADER_SIZE:
        return False
    first_bytes = BatchHeader.decode(body, rebuilt=rebuilt).total_size
    return first_bytes <= MAX_BYTES_IN_RUNS and 4 * first_bytes <= len(body)


def _unrequested_queue(reply: Reply, queue: int) -> BadReply:
    return BadReply(reply.url, f"a batch of queue {queue}, which was not requested")


def _parse_queue_offsets(reply: Reply, header: str) -> dict[int, int]:
    try:
        pairs = (pair.split(":") for pair in reply.headers[header.lower()].split(","))
        return {int(queue): int(offset) for queue, offset in pairs}
    except (KeyError, ValueError) as error:
        raise BadReply(reply.url, f"no queue:offset pairs in the header {header}") from error


def _parse_skipped(reply: Reply, topic: str) -> list[Skipped]:
    """Return the ranges that the broker skipped, and warn about each, because messages are lost."""
    text = reply.header("Holdfast-Skipped")
    if text is None:
        return []
    try:
        skipped = [Skipped(*map(int, each.split(":"))) for each in text.split(",")]
    except (TypeError, ValueError) as error:
        raise BadReply(reply.url, f"the header Holdfast-Skipped is {text[:80]!r}") from error
    for each in skipped:
        _log.warning(
            "skipped the messages of queue %d of %r from offset %d to %d: "
            "they are damaged or no longer exist",
            each.queue,
            topic,
            each.start_offset,
            each.end_offset,
        )
    return skipped


def _group_by_queue(messages: Sequence[LoneMessage]) -> list[MessageList]:
    by_queue: dict[int, list[Message]] = {}
    for message in messages:
        by_queue.setdefault(message.queue, []).append(message.as_message())
    return [MessageList(queue, found) for queue, found in by_queue.items()]
