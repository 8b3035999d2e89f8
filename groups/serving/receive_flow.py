"""The way of a reply: filled from the core, also with messages that must be read, then delivered.

The core adds messages to a reply, a bounded number in each event loop iteration. If it needs data
that is not in memory, it reports the queue and offset to read. While a reply is empty, all these
reads are done. Once a reply has messages, their leases are running, so it waits for reads only a
short time. A complete reply becomes deliveries, with the batch and the receipt of each message. On
the event loop; reader threads do the reads.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from time import monotonic

from holdfast.commitlog.format.batch import Batch
from holdfast.consumequeue.errors import StoreError
from holdfast.consumequeue.topics import QueueKey, Topic
from holdfast.groups.core.group import Group
from holdfast.groups.core.receipts import ReceiptCodec
from holdfast.groups.core.receiving import continue_reply, receive
from holdfast.groups.core.requests import ReceiveRequest, Reply, SelectedMessage
from holdfast.groups.service_types import Delivery
from holdfast.groups.serving.clock import GroupClock
from holdfast.groups.serving.head_source import FETCH_BYTES, StoreHeads

_logger = logging.getLogger(__name__)

#: One request waits for at most this many reads. If it has no messages then, its answer is empty,
#: and the next request continues with the reads.
MAX_FETCHES = 32
#: A reply with messages waits at most this long for more: a quarter of the shortest lease.
GO_ON_S = 0.25
#: For a reply that already has messages, one read returns at most this many bytes.
GO_ON_BYTES = 4 * 1024 * 1024
#: A message is read at most this many times. Usually it is in memory after one read.
MAX_READS = 3
#: At most this many deliveries are made in one event loop iteration. This takes about five
#: milliseconds, most of it for the receipts.
MESSAGES_A_TURN = 1000


class ReceiveFlow:
    """Fills the replies of one group. Its iterators yield after each change of the core; the caller
    must act on the change before it continues. `topic` returns a topic by its id; None if it was
    deleted."""

    def __init__(
        self,
        core: Group,
        source: StoreHeads,
        clock: GroupClock,
        codec: ReceiptCodec,
        topic: Callable[[int], Topic | None],
    ) -> None:
        self._core = core
        self._source = source
        self._clock = clock
        self._codec = codec
        self._topic = topic
        self._is_stopping = False

    def stop(self) -> None:
        """Add no more messages to replies that already have some."""
        self._is_stopping = True

    async def start_reply(self, request: ReceiveRequest) -> AsyncIterator[Reply]:
        """Yield replies with the messages that are available now; the last one counts. If a reply
        is empty because the core needs a read, do the read and try again. Raises GroupError,
        StoreError."""
        for _ in range(MAX_FETCHES):
            reply = receive(self._core, request, self._clock.now_ms())
            yield reply
            if reply.is_answer or reply.needs is None:
                break
            await self._source.fetch(*reply.needs)

    async def fill_reply(self, reply: Reply, request: ReceiveRequest) -> AsyncIterator[Reply]:
        """Add more messages to a reply that has some. If a read fails, add no more; the next
        request gets the error. If the call is cancelled, the reply keeps the messages that it
        has."""
        until_s = monotonic() + GO_ON_S
        fetches = 0
        while reply.messages and not _is_full(reply, request) and not self._is_stopping:
            if reply.is_cut:
                await asyncio.sleep(0)
            else:
                if reply.needs is None or fetches == MAX_FETCHES or monotonic() >= until_s:
                    return
                fetches += 1
                left_bytes = min(request.max_bytes - reply.size_bytes, GO_ON_BYTES)
                try:
                    await self._source.fetch(*reply.needs, max_bytes=max(left_bytes, FETCH_BYTES))
                except (StoreError, OSError) as error:
                    _logger.warning(
                        "a reply ends before %s, which cannot be read: %s", reply.needs, error
                    )
                    return
            continue_reply(self._core, reply, request, self._clock.now_ms())
            yield reply

    async def deliveries(
        self, messages: Sequence[SelectedMessage]
    ) -> tuple[list[Delivery], list[SelectedMessage]]:
        """Return a delivery for each message, in order, and the messages that cannot be read
        any more. Many messages take several event loop iterations."""
        found: list[Delivery] = []
        unreadable: list[SelectedMessage] = []
        queue: QueueKey = (-1, -1)
        topic: Topic | None = None
        batch: Batch | None = None
        base = end = 0
        encode = self._codec.encode
        for number, message in enumerate(messages, 1):
            if number % MESSAGES_A_TURN == 0:
                await asyncio.sleep(0)
            if message.queue != queue or not base <= message.offset < end:
                queue = message.queue
                topic = self._topic(queue[0])
                batch = None if topic is None else await self.batch(queue, message.offset)
                base, end = 0, 0
                if batch is not None:
                    base = batch.header.base_offset
                    end = base + len(batch)
            if topic is None or batch is None:
                unreadable.append(message)
                continue
            receipt = None if message.receipt is None else encode(message.receipt)
            found.append(
                Delivery(
                    topic,
                    queue[1],
                    message.offset,
                    batch,
                    message.offset - base,
                    receipt,
                    message.attempt,
                    message.redelivered,
                )
            )
        return found, unreadable

    async def batch(self, queue: QueueKey, offset: int) -> Batch | None:
        """Return the batch that contains an offset, from memory or from the disk; None if it does
        not exist any more. Raises OSError and StoreError if a read fails."""
        for _ in range(MAX_READS):
            batch = self._source.batch(queue, offset) or await self._source.fetch(queue, offset)
            if batch is not None:
                return batch
        return self._source.batch(queue, offset)


def _is_full(reply: Reply, request: ReceiveRequest) -> bool:
    return len(reply.messages) >= request.max_messages or reply.size_bytes >= request.max_bytes
