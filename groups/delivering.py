"""What was picked, as it is delivered: with its batch and its receipt."""

from collections.abc import Callable, Sequence

from holdfast.commitlog.batch import Batch
from holdfast.consumequeue.topics import QueueKey, Topic
from holdfast.groups.asking import Pick
from holdfast.groups.head_source import StoreHeads
from holdfast.groups.receipts import ReceiptCodec
from holdfast.groups.service_types import Delivery

#: Reads of one message before it is given up: each makes it readable, unless something is wrong.
MAX_READS = 3


class Delivering:
    """Makes deliveries for one group. `topic` tells of a topic by its id, None: it is gone."""

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
        """Return the messages in order, and those that cannot be read any more."""
        found: list[Delivery] = []
        unreadable: list[Pick] = []
        queue: QueueKey = (-1, -1)
        topic: Topic | None = None
        batch: Batch | None = None
        base = end = 0
        encode = self._codec.encode
        for pick in picks:
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
        """Return the batch that holds an offset, from the disk if it must be; None: there is
        none any more. OSError passes through."""
        for _ in range(MAX_READS):
            batch = self._source.batch(queue, offset) or await self._source.fetch(queue, offset)
            if batch is not None:
                return batch
        return self._source.batch(queue, offset)
