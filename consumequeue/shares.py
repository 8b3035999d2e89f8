"""How several queues share what one poll may deliver. Pure.

It is shared out queue by queue, so that a full queue leaves room for those after it; what a
queue leaves over goes to the next ones. Which queue is first follows from where the poll starts:
a reader that goes on from each answer meets every queue in turn.
"""

from collections.abc import Mapping

from holdfast.consumequeue.fetched import Fetched
from holdfast.consumequeue.reader import MAX_SKIPPED_RANGES, Wanted

#: Spreads sums that are close to each other, or far apart by round numbers (Knuth).
_SPREAD = 2654435761


def reading_order(offsets: Mapping[int, int], *, whole_batches: bool) -> list[int]:
    """Return the queues in the order in which a poll from these offsets reads them."""
    queues = list(offsets)
    start = sum(offsets.values())
    if whole_batches:
        # Where whole batches count a poll may serve a few queues alone, and then starts again
        # a round number of messages further: by the sum as it is, with the same few.
        start = start * _SPREAD >> 12
    first = start % len(queues)
    return queues[first:] + queues[:first]


class Shares:
    """What is left to deliver for so many queues. For one at a time.

    With `whole_batches` a batch counts as a whole even where the bounds end within it: it is
    delivered so.
    """

    def __init__(self, queues: int, wanted: Wanted, *, whole_batches: bool) -> None:
        self._wanted = wanted
        self._whole_batches = whole_batches
        self._queues_left = queues
        self._messages_left = wanted.max_messages
        self._bytes_left = wanted.max_bytes
        self._passes_left = MAX_SKIPPED_RANGES

    def wanted(self) -> Wanted | None:
        """Return what the next queue may deliver, None when nothing is left."""
        if self._messages_left <= 0 or self._bytes_left <= 0 or self._passes_left <= 0:
            return None
        return self._wanted.bounded(
            -(-self._messages_left // self._queues_left), -(-self._bytes_left // self._queues_left)
        )

    def taken(self, fetched: Fetched | None) -> None:
        """Take note of what that queue delivered, None for nothing; the next one follows."""
        self._queues_left -= 1
        if fetched is None:
            return
        self._passes_left -= len(fetched.skipped)
        if self._whole_batches:
            self._messages_left -= sum(piece.stored_messages for piece in fetched.pieces)
            self._bytes_left -= fetched.block_bytes
        else:
            self._messages_left -= fetched.message_count
            self._bytes_left -= fetched.text_bytes
