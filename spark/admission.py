"""How much of a stream's backlog one micro-batch takes, shared out among queues. Pure.

A limit is shared out in proportion to what waits in each queue, but each gets at least one
message first. Where the limit is too small even for that, they take turns: `after` is the queue
that was served last, and the next goes first.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from holdfast.spark.catalog import Split
from holdfast.spark.stream_offsets import QueueKey

#: So often a number of messages is guessed from their mean size; then the interval is halved.
_GUESSES = 3
#: A limit in bytes is kept to by looking at this many pieces of it, or at single blocks.
PIECES = 64
#: The part of a backlog that is cut into pieces holds at most so many times the limit.
MOST_OVER = 4


def share_out(
    backlogs: Mapping[QueueKey, int], limit: int, *, after: QueueKey | None = None
) -> dict[QueueKey, int]:
    """Return how many messages each queue gives, in the order in which they were served.

    They add up to `limit`, or to all there is. Queues that give none are left out.
    """
    waiting = _in_turn([key for key, count in backlogs.items() if count > 0], after)
    total = sum(backlogs[key] for key in waiting)
    if total <= limit:
        return {key: backlogs[key] for key in waiting}
    shares = dict.fromkeys(waiting[:limit], 1)
    to_share = limit - len(shares)
    if to_share == 0:
        return shares
    remainders = {}
    for key in shares:
        share, remainders[key] = divmod(to_share * (backlogs[key] - 1), total - len(shares))
        shares[key] += share
    largest_first = sorted(remainders, key=remainders.__getitem__, reverse=True)
    for key in largest_first[: limit - sum(shares.values())]:
        shares[key] += 1
    return shares


def take_pieces(
    pieces: Mapping[QueueKey, Sequence[Split]], max_bytes: int, *, after: QueueKey | None = None
) -> dict[QueueKey, int]:
    """Return the offset up to which each queue is read, in the order in which they were served.

    Whole pieces are taken, `max_bytes` in all at most; but one is taken whatever its size, since
    a block is never read in parts. Queues that give none are left out.
    """
    turns = _in_turn([key for key, found in pieces.items() if found], after)
    totals = {key: max(1, sum(piece.size_bytes for piece in pieces[key])) for key in turns}
    # By how much of its own a queue has given; the first round goes by turns.
    heap = [(0.0, turn, 0) for turn in range(len(turns))]
    heapify(heap)
    ends: dict[QueueKey, int] = {}
    given = dict.fromkeys(turns, 0)
    left = max_bytes
    while heap:
        _, turn, at = heappop(heap)
        key = turns[turn]
        piece = pieces[key][at]
        if piece.size_bytes > left and ends:
            continue
        left -= piece.size_bytes
        given[key] += piece.size_bytes
        ends[key] = piece.end
        if at + 1 < len(pieces[key]):
            heappush(heap, (given[key] / totals[key], turn, at + 1))
    return ends


def find_count(size_of: Callable[[int], int], total: int, max_bytes: int) -> tuple[int, int]:
    """Return a number of messages whose size is between `max_bytes` and MOST_OVER times that, and
    its size.

    Or `total`, if even that is not more; or, when no number fits, the smallest that is too large.
    `size_of` grows with the number; it is asked a few times, and counting costs it nothing.
    """
    too_small, too_large = (0, 0), (total + 1, 0)
    count = total
    for attempt in itertools.count():
        size = size_of(count)
        if size > MOST_OVER * max_bytes:
            too_large = (count, size)
        elif size < max_bytes and count < total:
            too_small = (count, size)
        else:
            return count, size
        if too_large[0] - too_small[0] <= 1:
            return too_large
        count = count * 2 * max_bytes // max(1, size)
        if attempt >= _GUESSES or not too_small[0] < count < too_large[0]:
            count = (too_small[0] + too_large[0]) // 2
    raise AssertionError("unreachable")


def whole_blocks(pieces: Mapping[QueueKey, Sequence[Split]]) -> dict[QueueKey, Sequence[Split]]:
    """Return the pieces without the last of each queue, which may end inside a block; but one is
    left of each."""
    return {key: found[:-1] or found for key, found in pieces.items()}


def _in_turn(keys: list[QueueKey], after: QueueKey | None) -> list[QueueKey]:
    """Return the keys in order, beginning behind `after`."""
    keys.sort()
    if after is None:
        return keys
    return [key for key in keys if key > after] + [key for key in keys if key <= after]
