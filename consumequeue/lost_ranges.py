"""Ranges of a queue's offsets whose messages are damaged or gone. Pure.

A queue's ranges are a tuple ordered by offset, without overlaps. A lost offset is never given to
another message. A range is `accepted` if an operator has accepted its loss (`holdfast repair
--accept-loss`). Readers skip accepted ranges. Such a range is reported only to a reader that skips
it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class LostRange:
    """The offsets from `start_offset` up to, but not including, `end_offset`. `reason` is a stable
    identifier."""

    start_offset: int
    end_offset: int
    reason: str
    accepted: bool = False

    @property
    def count(self) -> int:
        return self.end_offset - self.start_offset


LostRanges = tuple[LostRange, ...]


def with_lost(ranges: LostRanges, found: LostRange) -> LostRanges:
    """Return `ranges` with `found` added. Where `found` overlaps a known range, keep the known
    range. Join two adjacent ranges if their `accepted` is equal, and keep the reason of the first.
    """
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
    """Return `ranges` without the offsets from `start_offset` to before `end_offset`."""
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
