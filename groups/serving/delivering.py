"""Turns the messages chosen for a reply (picks) into deliveries, with their batch and receipt."""

import asyncio
from collections.abc import Callable, Sequence

from holdfast.commitlog.format.batch import Batch
from holdfast.consumequeue.topics import QueueKey, Topic
from holdfast.groups.core.receipts import ReceiptCodec
from holdfast.groups.core.requests import Pick
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

    async def deliveries(self, picks: Sequence[Pick]) -> tuple[list[Delivery], list[Pick]]:
        """Return a delivery for each pick, in order, and the picks whose messages cannot be read
        any more. Many picks take several event loop iterations."""
        found: list[Delivery] = []
        unreadable: list[Pick] = []
        queue: QueueKey = (-1, -1)
        topic: Topic | None = None
        batch: Batch | None = None
        base = end = 0
        encode = self._codec.encode
        for number, pick in enumerate(picks, 1):
            if number % MESSAGES_A_TURN == 0:
                await asyncio.sleep(0)
            if pick.queue != queue or not base <= pick.offset < end:
                queue = pick.queue
                topic = self._topic(queue[0])
                batch = None if topic is None else await self.batch(queue, pick.offset)
                base, end = 0, 0
                if batch is not None:
                    base = batch.header.base_offset
                    end = base + len(batch)
            if topic is None or batch is None:
                unreadable.append(pick)
                continue
            receipt = None if pick.receipt is None else encode(pick.receipt)
            found.append(
                Delivery(
                    topic,
                    queue[1],
                    pick.offset,
                    batch,
                    pick.offset - base,
                    receipt,
                    pick.attempt,
                    pick.redelivered,
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
