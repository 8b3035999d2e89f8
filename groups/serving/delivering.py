"""Turns the messages chosen for a reply into deliveries, with their batch and receipt."""

import asyncio
from collections.abc import Callable, Sequence

from holdfast.commitlog.format.batch import Batch
from holdfast.consumequeue.topics import QueueKey, Topic
from holdfast.groups.core.receipts import ReceiptCodec
from holdfast.groups.core.requests import SelectedMessage
from holdfast.groups.service_types import Delivery
from holdfast.groups.serving.head_source import StoreHeads

#: A message is read at most this many times. Usually it is in memory after one read.
MAX_READS = 3
#: At most this many deliveries are made in one event loop iteration. This takes about five
#: milliseconds, most of it for the receipts.
MESSAGES_A_TURN = 1000


class Delivering:
    """Makes deliveries for one group. `topic` returns a topic by its id; None if it was deleted."""

    def __init__(
        self,
        source: StoreHeads,
        codec: ReceiptCodec,
        topic: Callable[[int], Topic | None],
    ) -> None:
        self._source = source
        self._codec = codec
        self._topic = topic

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
