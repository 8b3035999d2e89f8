"""Finds the messages that no group would get, for publishes with `mandatory`. Pure.

A group gets a message if the group's filter for the topic matches it. Filters of members do not
count: a message that a member's filter excludes stays available in the group.
"""

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from holdfast.commitlog.format.batch import Batch
from holdfast.consumequeue.reading.fetched import MessageFilter
from holdfast.groups.errors import TooCostlyMandatory


def distinct_filters(filters: Iterable[MessageFilter | None]) -> list[MessageFilter] | None:
    """Return each of the filters once. Return None if one of them matches every message."""
    found: dict[MessageFilter, None] = {}
    for each in filters:
        if each is None:
            return None
        found[each] = None
    return list(found)


def is_quick(filters: Iterable[MessageFilter], batches: Sequence[Batch], most_us: float) -> bool:
    """Return whether comparing all messages with all filters takes about `most_us` microseconds at
    most. The answer itself takes less time than that: each filter counts at least 5 microseconds a
    batch."""
    left_us = most_us
    for batch in batches:
        count, text_bytes = len(batch), _text_bytes(batch)
        for each in filters:
            left_us -= each.cost_us(count, text_bytes)
            if left_us < 0:
                return False
    return True


def find_unroutable(
    filters: Collection[MessageFilter], batches: Sequence[Batch], limit_us: float
) -> int | None:
    """Return the index of the first message that no filter matches; None if there is none. The
    messages of all batches are counted from 0, in order.

    Raise TooCostlyMandatory before the comparisons would take more than about `limit_us` in all.
    Filters that are cheap to compare are used first, and only until every message has matched.
    """
    size = sum(map(len, batches)), sum(map(_text_bytes, batches))
    by_cost = sorted(filters, key=lambda each: each.cost_us(*size))
    before, spent_us = 0, 0.0
    for batch in batches:
        count, text_bytes = len(batch), _text_bytes(batch)
        is_matched = np.zeros(count, bool)
        first, end = 0, count
        for each in by_cost:
            spent_us += each.cost_us(end - first, text_bytes * (end - first) // count)
            if spent_us > limit_us:
                raise TooCostlyMandatory(int(limit_us // 1000))
            is_matched[np.asarray(each.matching_rows(batch, first, end), np.int64)] = True
            left = np.flatnonzero(~is_matched)
            if not len(left):
                break
            first, end = int(left[0]), int(left[-1]) + 1
        else:
            return before + first
        before += count
    return None


def _text_bytes(batch: Batch) -> int:
    """Return the bytes of a batch that filters may examine."""
    header = batch.header
    return header.key_bytes + header.tag_bytes + header.property_value_bytes
