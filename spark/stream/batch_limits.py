"""Decide how far one micro-batch reads within its limits. No I/O, except through the catalog.

A limit is divided among queues in proportion to the backlog of each queue, but each queue gets at
least one message first. If the limit is too small even for that, the queues take turns: `after` is
the queue that was served last, and the queue after it is served first.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from holdfast.log_files.descriptions import Split, TopicState
from holdfast.log_files.ranges import OffsetRange
from holdfast.spark.broker.catalog import Catalog
from holdfast.spark.options.stream import TriggerLimits
from holdfast.spark.stream.offsets import QueueKey

#: `find_count` estimates the number from the mean message size this many times. Then it bisects.
_GUESSES = 3
#: A piece has about the limit in bytes divided by this number, and at least one block.
PIECES = 64
#: Only a part of the backlog is cut into pieces: at most this many times the limit in bytes.
MAX_OVERSHOOT = 4
_WHOLE = 1 << 60  # a piece size so large that each range is one piece


class BatchLimits:
    """Applies the limits to each micro-batch. It remembers which queue was served last, so that
    queues take turns when limits are small."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._served_last: QueueKey | None = None

    def admit(
        self,
        ahead: Mapping[QueueKey, OffsetRange],
        limits: TriggerLimits,
        topics: Mapping[str, TopicState],
    ) -> Mapping[QueueKey, int]:
        """Return the end offset of the micro-batch in each queue from which it reads a message.
        `ahead` is the unread range of each queue of `topics`. Raises the catalog's error for a
        range that no longer exists."""
        counts = {key: part.end - part.start for key, part in ahead.items() if part[0] < part[1]}
        served_last = self._served_last
        if counts and limits.max_offsets is not None:
            counts = divide_limit(counts, limits.max_offsets, after=served_last)
            self._served_last = next(reversed(counts))
        ends = {key: ahead[key].start + count for key, count in counts.items()}
        if counts and limits.max_bytes is not None:
            ends = self._limit_bytes(ahead, counts, limits.max_bytes, topics, served_last)
            self._served_last = next(iter(ends), served_last)
        return ends

    def _limit_bytes(
        self,
        ahead: Mapping[QueueKey, OffsetRange],
        counts: Mapping[QueueKey, int],
        max_bytes: int,
        topics: Mapping[str, TopicState],
        served_last: QueueKey | None,
    ) -> dict[QueueKey, int]:
        def pieces_of(count: int, piece_bytes: int) -> dict[QueueKey, list[Split]]:
            shares = divide_limit(counts, count, after=served_last)
            parts = {
                key: OffsetRange(ahead[key].start, ahead[key].start + share)
                for key, share in shares.items()
            }
            return self._pieces(parts, topics, piece_bytes)

        def size_of(count: int) -> int:
            found = pieces_of(count, _WHOLE).values()
            return sum(piece.size_bytes for pieces in found for piece in pieces)

        total = sum(counts.values())
        count, size = find_count(size_of, total, max_bytes)
        if count == total and size <= max_bytes:
            return {key: ahead[key].start + share for key, share in counts.items()}
        if size > MAX_OVERSHOOT * max_bytes:  # even the first block is too large: read it alone
            count, size = find_count(size_of, total, 2 * size)
        pieces = pieces_of(count, max(1, max_bytes // PIECES, size // (MAX_OVERSHOOT * PIECES)))
        return take_pieces(
            pieces if count == total else whole_blocks(pieces), max_bytes, after=served_last
        )

    def _pieces(
        self,
        parts: Mapping[QueueKey, OffsetRange],
        topics: Mapping[str, TopicState],
        piece_bytes: int,
    ) -> dict[QueueKey, list[Split]]:
        """Return the parts, cut into pieces of about `piece_bytes`, in order."""
        by_topic: dict[str, dict[int, OffsetRange]] = {}
        for key, part in parts.items():
            by_topic.setdefault(key.topic, {})[key.queue] = part
        found: dict[QueueKey, list[Split]] = {}
        for name, ranges in by_topic.items():
            topic_id = topics[name].topic_id
            for piece in self._catalog.splits(
                name, topic_id, ranges, max_bytes=piece_bytes, min_splits=1
            ):
                found.setdefault(QueueKey(name, piece.queue), []).append(piece)
        return found


def divide_limit(
    backlogs: Mapping[QueueKey, int], limit: int, *, after: QueueKey | None = None
) -> dict[QueueKey, int]:
    """Return the number of messages to read from each queue, in the order in which they are served.
    The numbers add up to `limit`, or to the whole backlog if that is smaller. Queues from which
    nothing is read are left out."""
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
    """Return the offset up to which each queue is read, in the order in which they are served. Only
    whole pieces are read, at most `max_bytes` in all. The first piece is read whatever its size,
    because a block is never read in parts. Queues from which nothing is read are left out."""
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
    """Return a number of messages, and their size in bytes, which is between `max_bytes` and
    MAX_OVERSHOOT times `max_bytes`.

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
