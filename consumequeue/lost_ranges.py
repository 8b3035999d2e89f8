"""Ranges of a queue's offsets whose messages are damaged or gone. Pure.

A queue's ranges are a tuple in order of their offsets; no two of them overlap. An offset that is
lost stays lost: it is never given to another message. `accepted` ranges are those that an
operator has let go of (`holdfast repair --accept-loss`): readers pass over them, and nobody is
told of them any more but in the reply that passes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class LostRange:
    """Offsets from `start_offset` to before `end_offset`. `reason` is a stable word."""

    start_offset: int
    end_offset: int
    reason: str
    accepted: bool = False

    @property
    def count(self) -> int:
        """How many offsets it has."""
        return self.end_offset - self.start_offset


LostRanges = tuple[LostRange, ...]


def with_lost(ranges: LostRanges, found: LostRange) -> LostRanges:
    """Return the ranges with one more; where they overlap, what was known before stands. What
    follows at once is one range, and its reason is that of the first part."""
    pieces = []
    at = found.start_offset
    for known in ranges:
        if known.end_offset <= at:
            continue
        if known.start_offset >= found.end_offset:
            break
        if known.start_offset > at:
            pieces.append(replace(found, start_offset=at, end_offset=known.start_offset))
        at = known.end_offset
    if at < found.end_offset:
        pieces.append(replace(found, start_offset=at))
    joined: list[LostRange] = []
    for each in sorted([*ranges, *pieces], key=lambda each: each.start_offset):
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.end_offset == each.start_offset
            and last.accepted == each.accepted
        ):
            joined[-1] = replace(last, end_offset=each.end_offset)
        else:
            joined.append(each)
    return tuple(joined)


def without(ranges: LostRanges, start_offset: int, end_offset: int) -> LostRanges:
    """Return the ranges but for these offsets: they can be read, or are no longer kept."""
    left = []
    for each in ranges:
        if each.end_offset <= start_offset or each.start_offset >= end_offset:
            left.append(each)
            continue
        if each.start_offset < start_offset:
            left.append(replace(each, end_offset=start_offset))
        if each.end_offset > end_offset:
            left.append(replace(each, start_offset=end_offset))
    return tuple(left)


def is_accepted(ranges: Sequence[LostRange], start_offset: int, end_offset: int) -> bool:
    """Return whether accepted ranges cover all of these offsets."""
    at = start_offset
    for each in ranges:
        if each.accepted and each.start_offset <= at < each.end_offset:
            at = each.end_offset
    return at >= end_offset


def overlaps(ranges: Sequence[LostRange], start_offset: int, end_offset: int) -> bool:
    """Return whether any of these offsets is known to be lost."""
    return any(each.start_offset < end_offset and start_offset < each.end_offset for each in ranges)
