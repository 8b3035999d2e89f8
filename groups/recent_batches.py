"""Batches that were just read, by queue and offset, within a bound of bytes. Pure.

Those read longest ago go first. The newest stays whatever its size, so that what was read for
somebody is there when he looks.
"""

from bisect import bisect_right, insort
from collections import OrderedDict

from holdfast.commitlog.batch import Batch
from holdfast.consumequeue.topics import QueueKey


class RecentBatches:
    """Batches of any queues."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._batches: OrderedDict[tuple[QueueKey, int], Batch] = OrderedDict()
        #: The base offsets of a queue's batches, ascending.
        self._bases: dict[QueueKey, list[int]] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._batches)

    def put(self, queue: QueueKey, batch: Batch) -> None:
        """Keep a batch; it is the newest, also when it was here."""
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
        """Return the batch that holds an offset."""
        bases = self._bases.get(queue)
        if not bases:
            return None
        at = bisect_right(bases, offset) - 1
        if at < 0:
            return None
        batch = self._batches[queue, bases[at]]
        return batch if offset < bases[at] + len(batch) else None

    def forget_topic(self, topic_id: int) -> None:
        """Forget a topic's batches."""
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
