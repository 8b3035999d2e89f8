"""Copies of the blocks that were written last, so that a reader need not read them back from the
disk. Pure.

Only one thread at a time may call `add`; any thread may call `find`. A block is added after its
write and before its write is reported, so `find` can return a block that is not visible yet, or is
deleted. The index decides which blocks a reader may see.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_header import BatchHeader, Buffer, layout_of

#: A larger block is not kept. Messages that are published alone are smaller, and copying a large
#: block costs as much as reading it.
MAX_BLOCK_BYTES = 64 * 1024
#: A kept block needs about this much memory in addition to its bytes.
OBJECTS_BYTES = 1600


class NewestBlocks:
    """The newest blocks of at most MAX_BLOCK_BYTES each, by physical offset. Together they take
    about `max_bytes` of memory; 0 keeps none."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._blocks: dict[int, tuple[BatchHeader, bytes]] = {}
        #: The keys of `_blocks`, oldest first, with the memory of each block.
        self._order: deque[tuple[int, int]] = deque()

    def add(self, headers: Sequence[BatchHeader], buffers: Sequence[Buffer]) -> None:
        """Keep blocks that were written. `buffers` has two buffers for each header: its bytes, and
        the payload. The oldest blocks above the limit are dropped."""
        for number, written in enumerate(headers):
            size = written.total_size + OBJECTS_BYTES
            if written.total_size > MAX_BLOCK_BYTES or size > self._max_bytes:
                continue
            # `requests` is not part of the block, and may be large.
            header = replace(written, requests=()) if written.requests else written
            # A copy, because a view of the payload would keep the whole request in memory.
            block = b"".join(buffers[2 * number : 2 * number + 2])
            self._blocks[header.physical_offset] = (header, block)
            self._order.append((header.physical_offset, size))
            self._bytes += size
        while self._bytes > self._max_bytes:
            oldest, size = self._order.popleft()
            del self._blocks[oldest]
            self._bytes -= size

    def find(self, physical_offset: int, size: int) -> Batch | None:
        """Return the block of `size` bytes at a physical offset, or None if it is not kept. It
        equals the batch that is read from the disk. Its checksum is not verified again."""
        kept = self._blocks.get(physical_offset)
        if kept is None or kept[0].total_size != size:
            return None
        header, block = kept
        return Batch(header, memoryview(block), layout_of(header))
