"""A cache of recently read batches, by queue and offset, limited in bytes. Pure.

The least recently read batches are dropped first. The newest batch always stays, even if it is
larger than the limit. So a batch that was just read is still there when the caller needs it.
"""

from bisect import bisect_right, insort
from collections import OrderedDict

from holdfast.commitlog.format.batch import Batch
from holdfast.consumequeue.topics import QueueKey


class RecentBatches:
    """Batches of any queues."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._batches: OrderedDict[tuple[QueueKey, int], Batch] = OrderedDict()
        #: queue -> the base offsets of its batches, ascending.
        self._bases: dict[QueueKey, list[int]] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._batches)

    def put(self, queue: QueueKey, batch: Batch) -> None:
        """Add a batch as the newest. If the cache has it already, make it the newest."""
        base = batch.header.base_offset
        if (queue, base) in self._batches:
            self._batches.move_to_end((queue, base))
            return
        self._batches[queue, base] = batch
        insort(self._bases.setdefault(queue, []), base)
        self.size_bytes += batch.total_size
        while self.size_bytes > self._max_bytes and len(self._batches) > 1:
            self._drop(*next(iter(self._batches)))

    def find(self, queue: QueueKey, offset: int) -> Batch | None:
        """Return the batch that contains an offset; None if it is not in the cache."""
        bases = self._bases.get(queue)
        if not bases:
            return None
        at = bisect_right(bases, offset) - 1
        if at < 0:
            return None
        batch = self._batches[queue, bases[at]]
        return batch if offset < bases[at] + len(batch) else None

    def forget_topic(self, topic_id: int) -> None:
        """Drop a topic's batches."""
        for queue in [each for each in self._bases if each[0] == topic_id]:
            for base in list(self._bases[queue]):
                self._drop(queue, base)

    def _drop(self, queue: QueueKey, base: int) -> None:
        batch = self._batches.pop((queue, base))
        self.size_bytes -= batch.total_size
        bases = self._bases[queue]
        if len(bases) == 1:
            del self._bases[queue]
        else:
            del bases[bisect_right(bases, base) - 1]
