"""A pull or a poll as an event stream (text/event-stream), until the client or the broker ends it.

    id: 0:13                      the offsets at which to continue: queue:offset of each queue
    data: {"topic": ...}          one message, as in JSON

Each message is an event. To continue after an event, a client sends the event's id as
Last-Event-ID. While there is nothing to send, the stream is held like a pull, and counts as a held
pull. Heartbeats show proxies and the client that the stream is alive. An error after the first read
is sent as an event `problem`, and ends the stream. If a client does not read, its connection is
closed, as with any reply.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from itertools import chain
from time import monotonic
from typing import Any

import msgspec

from holdfast.consumequeue.reading.fetched import MessageFilter
from holdfast.consumequeue.topics import Topic
from holdfast.http_api.access.audit import record_denial
from holdfast.http_api.access.authorization import Denied
from holdfast.http_api.endpoints.held_read import (
    WIDE_QUEUES,
    QueueRead,
    WaitBudget,
    read_queues,
    reply_slot_for,
    skipped_of,
)
from holdfast.http_api.endpoints.rendering import (
    YIELD_EVERY_MESSAGES,
    encode_long_message,
    is_long,
    make_messages,
    split_portions,
)
from holdfast.http_api.limits.reply_slots import LargeReplySlot
from holdfast.http_api.routing.call import Call
from holdfast.http_api.routing.codecs import EVENTS
from holdfast.http_api.schemas.messages import SkippedRange
from holdfast.http_api.wire.problems import Problem, problem_for
from holdfast.http_api.wire.reply import Reply, StreamPiece

#: Events are sent in pieces of about this size, including their ids. If a client does not read, one
#: piece stays in memory. Making a piece blocks the event loop for 1 to 2 ms.
PIECE_BYTES = 64 * 1024
#: The approximate size of an event without its id and body.
_EVENT_BYTES = 256
#: First: bytes of memory for the result of reading one queue, without its blocks. Second: bytes of
#: memory for each message that a filter accepted.
_KEPT_PER_READ, _KEPT_PER_MESSAGE = 1024, 40
#: How long a client should wait before it reconnects.
RETRY_MS = 2_000
_HEADERS = (
    ("Cache-Control", "no-cache"),
    # Without this header, a proxy that buffers replies would delay every event.
    ("X-Accel-Buffering", "no"),
)
_encode = msgspec.json.Encoder().encode


def reconnect_later() -> Reply:
    """Return a stream that ends immediately. The client reconnects with its last event's id."""
    return Reply(200, EVENTS, (b"retry: %d\n\n" % RETRY_MS,), _HEADERS, closes=True)


async def start_stream(
    call: Call[Any],
    topic: Topic,
    offsets: Mapping[int, int],
    message_filter: MessageFilter | None,
    slot: LargeReplySlot,
) -> Reply:
    """Return the reply that streams queues from these offsets (queue -> offset).

    The first read waits for `slot`. Raises the errors of the first read, as a pull does, and
    Problem (too-many-held) if max_event_streams is reached.
    """
    context, limit = call.context, call.context.config.max_event_streams
    if context.stream_count >= limit:
        raise Problem(
            "too-many-held",
            f"the limit of event streams is reached: max_event_streams ({limit}); "
            "try again later, or raise the limit in the configuration",
            limit=limit,
            limit_name="max_event_streams",
        )
    stream = _Stream(call, topic, dict(offsets), message_filter)
    try:
        await slot.acquire()
        await stream.begin()
    except BaseException:
        stream.abandon()
        raise
    reply = Reply(200, EVENTS, (), _HEADERS)
    reply.stream = stream.events()
    reply.on_undelivered = stream.abandon
    return reply


class _Stream:
    """One event stream. `offsets` has for each queue the offset where the next read begins."""

    def __init__(
        self,
        call: Call[Any],
        topic: Topic,
        offsets: dict[int, int],
        message_filter: MessageFilter | None,
    ) -> None:
        self._call = call
        self._topic = topic
        self._offsets = offsets
        self._filter = message_filter
        self._is_counted = True
        call.context.stream_count += 1
        self._reads: deque[QueueRead] = deque()
        """Results of reads, with messages to send. It is empty while the stream is held."""
        self._kept_bytes = 0
        """The memory of `_reads`, in bytes."""

    def abandon(self) -> None:
        """End the stream: no longer count it, and free its memory. May be called twice."""
        self._drop_reads()
        if self._is_counted:
            self._is_counted = False
            self._call.context.stream_count -= 1

    async def begin(self) -> None:
        """Do the first read. If a queue cannot be read, raise its problem."""
        await self._read()
        for read in self._reads:
            if read.problem is not None:
                raise read.problem

    async def _read(self) -> None:
        """Read all queues."""
        reads = await read_queues(self._call, self._topic, self._offsets, self._filter)
        self._reads.extend(reads)
        self._kept_bytes = sum(map(self._memory_of, reads))

    def _memory_of(self, read: QueueRead) -> int:
        """Return the memory of one queue's result in bytes, including shared blocks."""
        rows = 0 if self._filter is None else read.fetched.message_count
        return _KEPT_PER_READ + read.fetched.block_bytes + _KEPT_PER_MESSAGE * rows

    def _drop_reads(self) -> None:
        self._reads.clear()
        self._kept_bytes = 0

    async def events(self) -> AsyncGenerator[StreamPiece, None]:
        """Yield the pieces to send until the stream ends. Begin with the first read's messages."""
        try:
            yield StreamPiece(b"retry: %d\n%b\n" % (RETRY_MS, self._id()), self._kept_bytes)
            async with aclosing(self._follow()) as pieces:
                async for piece in pieces:
                    yield piece
                    del piece
        except Exception as error:
            problem, call = problem_for(error), self._call
            if isinstance(problem, Denied) and call.context.http.audit is not None:
                record_denial(call.context.http.audit, call.request, problem)
            if problem.slug != "draining":
                yield StreamPiece(b"event: problem\ndata: %b\n\n" % problem.encode())
        finally:
            self.abandon()

    async def _follow(self) -> AsyncGenerator[StreamPiece, None]:
        call, context = self._call, self._call.context
        heartbeat_s = context.config.event_heartbeat_ms / 1000
        sent_at = monotonic()
        while True:
            problem = next((each.problem for each in self._reads if each.problem), None)
            is_behind = any(
                each.fetched.next_offset < each.fetched.max_offset for each in self._reads
            )
            wait_s = 0.0
            for piece in self._pieces():
                yield piece
                sent_at = monotonic()
                wait_s = self._charge_rate_limit(len(piece.data))
                is_whole = piece.is_whole
                del piece
                if wait_s and is_whole:
                    break
                await asyncio.sleep(0)  # other requests run in between
            if wait_s:
                self._drop_reads()  # to free memory; unsent messages are read again later
                await self._wait_for_rate_limit(wait_s)
            elif problem is not None:
                raise problem
            elif is_behind:
                await asyncio.sleep(0)
            elif context.config.max_wait_ms == 0:
                return  # the broker holds no requests: the client reconnects for more
            else:
                await self._hold(sent_at + heartbeat_s)
            if context.http.phase != "ready":
                return
            context.http.access.check_still_valid(call.principal)
            if monotonic() >= sent_at + heartbeat_s:
                yield StreamPiece(b": heartbeat\n%b\n" % self._id())
                sent_at = monotonic()
            is_wide = len(self._offsets) > WIDE_QUEUES
            if is_wide:
                await context.wide_polls.begin(call.client)
            with reply_slot_for(call, is_wide=is_wide) as slot:
                await slot.acquire()
                await self._read()

    async def _hold(self, until_s: float) -> None:
        """Wait for a message, or until a heartbeat is due."""
        now = monotonic()
        waiting = WaitBudget(max(round((until_s - now) * 1000), 1), now)
        scanned = await waiting.hold(self._call, self._topic, self._offsets, self._filter)
        self._offsets.update(scanned)

    def _charge_rate_limit(self, size: int) -> float:
        """Count `size` sent bytes. Return how many seconds the stream must wait (rate limit)."""
        limiter = self._call.context.http.rate_limiter
        if limiter is None:
            return 0.0
        return limiter.streamed(self._call.request, self._call.principal, size)

    async def _wait_for_rate_limit(self, wait_s: float) -> None:
        """Wait while the client exceeds its rate limit, or until the broker stops."""
        while wait_s and self._call.context.http.phase == "ready":
            await asyncio.sleep(min(wait_s, 1.0))
            wait_s = self._charge_rate_limit(0)

    def _pieces(self) -> Iterator[StreamPiece]:
        """Yield the events of `_reads`. Drop a read after all of its events were yielded."""
        counters = self._call.context.http.metrics.topic(self._topic.name)
        while self._reads:
            queue, fetched, _ = self._reads[0]
            skipped = skipped_of([self._reads[0]])
            slices = chain.from_iterable(each.slices() for each in fetched.pieces)
            before, after = _id_parts(self._offsets, queue)
            most = PIECE_BYTES // (len(before) + len(after) + _EVENT_BYTES)
            for portion in split_portions(slices, min(most, YIELD_EVERY_MESSAGES), PIECE_BYTES):
                messages = make_messages(EVENTS, self._topic.name, portion)
                if len(messages) == 1 and is_long(messages[0]):
                    head = b"id: %b%d%b\ndata: " % (before, messages[0].offset + 1, after)
                    for data in chain([head], encode_long_message(messages[0])):
                        yield StreamPiece(data, self._kept_bytes, is_whole=False)
                        counters.bytes_out += len(data)
                    data = b"\n\n"
                else:
                    data = b"".join(
                        [
                            b"id: %b%d%b\ndata: %b\n\n"
                            % (before, each.offset + 1, after, _encode(each))
                            for each in messages
                        ]
                    )
                self._offsets[queue] = messages[-1].offset + 1
                counters.messages_out += len(messages)
                counters.bytes_out += len(data)
                del messages
                passed = [each for each in skipped if each.start_offset < self._offsets[queue]]
                if passed:
                    skipped = skipped[len(passed) :]
                    data += _skipped_event(passed)
                yield StreamPiece(data, self._kept_bytes)
                del data
            self._offsets[queue] = fetched.next_offset
            del fetched, slices
            self._kept_bytes -= self._memory_of(self._reads.popleft())
            if skipped:
                yield StreamPiece(_skipped_event(skipped), self._kept_bytes)

    def _id(self) -> bytes:
        pairs = ",".join(f"{queue}:{offset}" for queue, offset in self._offsets.items())
        return f"id: {pairs}\n".encode()


def _skipped_event(skipped: Iterable[SkippedRange]) -> bytes:
    return b"event: skipped\ndata: %b\n\n" % _encode(list(skipped))


def _id_parts(offsets: Mapping[int, int], queue: int) -> tuple[bytes, bytes]:
    """Return the parts of an event id before and after the offset of this queue."""
    pairs = [f"{each}:{offset}" for each, offset in offsets.items()]
    place = list(offsets).index(queue)
    before = ",".join([*pairs[:place], f"{queue}:"])
    after = "".join(f",{pair}" for pair in pairs[place + 1 :])
    return before.encode(), after.encode()
