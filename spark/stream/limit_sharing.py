"""Divide a micro-batch's limit among queues: how much of each backlog it reads. Pure.

A limit is divided in proportion to the backlog of each queue, but each queue gets at least one
message first. If the limit is too small even for that, the queues take turns: `after` is the queue
that was served last, and the queue after it is served first.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from holdfast.spark.broker.catalog import Split
from holdfast.spark.stream.offsets import QueueKey

#: `find_count` estimates the number from the mean message size this many times. Then it bisects.
_GUESSES = 3
#: The size of a piece is the limit in bytes divided by this number, but at least one block.
PIECES = 64
#: Only a part of the backlog is cut into pieces: at most this many times the limit in bytes.
MAX_OVERSHOOT = 4


def divide_limit(
    backlogs: Mapping[QueueKey, int], limit: int, *, after: QueueKey | None = None
) -> dict[QueueKey, int]:
    """Return the number of messages to read from each queue, in the order in which they are served.

    The numbers add up to `limit`, or to the whole backlog if that is smaller. Queues from which
    nothing is read are left out.
    """
    waiting = _rotate([key for key, count in backlogs.items() if count > 0], after)
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
    """Return the offset up to which each queue is read, in the order in which they are served.

    Only whole pieces are read, at most `max_bytes` in all. The first piece is read whatever its
    size, because a block is never read in parts. Queues from which nothing is read are left out.
    """
    turns = _rotate([key for key, found in pieces.items() if found], after)
    totals = {key: max(1, sum(piece.size_bytes for piece in pieces[key])) for key in turns}
    # (fraction of the queue's bytes that is taken, number of the queue's turn, number of its next
    # piece): the smallest fraction is next; if fractions are equal, the lower turn.
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
    """Return (count, size): a number of messages, and their size in bytes, which is between
    `max_bytes` and MOST_OVER times `max_bytes`.

    If all messages together are smaller than `max_bytes`, the number is `total`. If no number fits,
    it is the smallest number that is too large. `size_of` returns the size of a number of messages;
    it must not decrease as the number grows.
    """
    too_small, too_large = (0, 0), (total + 1, 0)
    count = total
    for attempt in itertools.count():
        size = size_of(count)
        if size > MAX_OVERSHOOT * max_bytes:
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
    """Return the pieces without the last of each queue, which may end inside a block. A queue with
    only one piece keeps it."""
    return {key: found[:-1] or found for key, found in pieces.items()}


def _rotate(keys: list[QueueKey], after: QueueKey | None) -> list[QueueKey]:
    """Return the keys in order, rotated so that the first key after `after` comes first."""
    keys.sort()
    if after is None:
        return keys
    return [key for key in keys if key > after] + [key for key in keys if key <= after]
