"""How several queues share the limits of one poll. Pure.

The queues are read one after another. Each queue may use an equal share of the limits that are
left, so that a full queue leaves room for the next queues. The next queues also get what a queue
does not use.
The offsets of the poll determine which queue is first, so for a reader that continues after each
reply, the first queue changes from poll to poll.
"""

from collections.abc import Mapping

from holdfast.consumequeue.reading.fetched import Fetched
from holdfast.consumequeue.reading.reader import MAX_SKIPPED_RANGES, Wanted

#: Knuth's multiplier for hashing: it spreads numbers that are close or differ by round numbers.
_SPREAD = 2654435761


def reading_order(offsets: Mapping[int, int], *, whole_batches: bool) -> list[int]:
    """Return the queues in the order in which a poll at these offsets reads them."""
    queues = list(offsets)
    start = sum(offsets.values())
    if whole_batches:
        # With whole batches, a poll may read only a few queues and increase the sum of the offsets
        # by a round number. Without the multiplier, the next poll would start with the same queues.
        start = start * _SPREAD >> 12
    first = start % len(queues)
    return queues[first:] + queues[:first]


class Shares:
    """What is left of the limits of one poll. For each queue, call `next_share`, then `subtract`.

    With `whole_batches` a batch counts in full even if the limits cut it, because it is sent whole.
    """

    def __init__(self, queues: int, wanted: Wanted, *, whole_batches: bool) -> None:
        self._wanted = wanted
        self._whole_batches = whole_batches
        self._queues_left = queues
        self._messages_left = wanted.max_messages
        self._bytes_left = wanted.max_bytes
        self._passes_left = MAX_SKIPPED_RANGES

    def next_share(self) -> Wanted | None:
        """Return what the next queue may deliver, or None if a limit is used up."""
        if self._messages_left <= 0 or self._bytes_left <= 0 or self._passes_left <= 0:
            return None
        return self._wanted.bounded(
            -(-self._messages_left // self._queues_left), -(-self._bytes_left // self._queues_left)
        )

    def subtract(self, fetched: Fetched | None) -> None:
        """Subtract what this queue delivered (None if its read failed); continue with the next."""
        self._queues_left -= 1
        if fetched is None or not self._queues_left:
            return
        self._passes_left -= len(fetched.skipped)
        if self._whole_batches:
            self._messages_left -= sum(piece.stored_messages for piece in fetched.pieces)
            self._bytes_left -= fetched.block_bytes
        else:
            self._messages_left -= fetched.message_count
            self._bytes_left -= fetched.text_bytes
