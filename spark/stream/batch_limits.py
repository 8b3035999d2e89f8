"""Decide how far one micro-batch reads within its limits.

The catalog gives the sizes of ranges. limit_sharing.py divides a limit among queues.
"""

from collections.abc import Mapping

from holdfast.spark.broker.catalog import Catalog, Split, TopicState
from holdfast.spark.options.offsets import OffsetRange
from holdfast.spark.options.stream import TriggerLimits
from holdfast.spark.stream.limit_sharing import (
    MAX_OVERSHOOT,
    PIECES,
    divide_limit,
    find_count,
    take_pieces,
    whole_blocks,
)
from holdfast.spark.stream.offsets import QueueKey

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
        range that no longer exists.
        """
        counts = {key: part.end - part.start for key, part in ahead.items() if part[0] < part[1]}
        served_last = self._served_last
        if counts and limits.max_offsets is not None:
            counts = divide_limit(counts, limits.max_offsets, after=served_last)
            self._served_last = next(reversed(counts))
        ends = {key: ahead[key].start + count for key, count in counts.items()}
        if counts and limits.max_bytes is not None:
            ends = self._within_bytes(ahead, counts, limits.max_bytes, topics, served_last)
            self._served_last = next(iter(ends), served_last)
        return ends

    def _within_bytes(
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
        if size > MAX_OVERSHOOT * max_bytes:  # even the first block is too large: take it alone
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
