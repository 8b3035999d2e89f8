"""A cache of decoded batches that were read recently, because many pulls wait for the same message.
Belongs to the event loop."""

from collections import OrderedDict

from holdfast.commitlog.format.batch import Batch

#: A decoded batch needs about this much memory in addition to its block.
OBJECTS_BYTES = 1600


def room_of(batch: Batch) -> int:
    """Return about how many bytes of memory a decoded batch takes."""
    return batch.header.total_size + OBJECTS_BYTES


class BlockCache:
    """The most recently used batches by physical offset, up to `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._batches: OrderedDict[int, Batch] = OrderedDict()

    def get(self, physical_offset: int) -> Batch | None:
        """Return a batch, or None if it is not in the cache."""
        batch = self._batches.get(physical_offset)
        if batch is not None:
            self._batches.move_to_end(physical_offset)
        return batch

    def __contains__(self, physical_offset: int) -> bool:
        return physical_offset in self._batches

    def put(self, batch: Batch) -> None:
        """Add a verified batch, and drop the least recently used ones above the limit."""
        size = room_of(batch)
        if size > self._max_bytes or batch.header.physical_offset in self._batches:
            return
        self._batches[batch.header.physical_offset] = batch
        self._bytes += size
        while self._bytes > self._max_bytes:
            _, oldest = self._batches.popitem(last=False)
            self._bytes -= room_of(oldest)
