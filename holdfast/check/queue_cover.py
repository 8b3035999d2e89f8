"""Which offsets of each queue the log contains and which it lacks. Pure.

The offsets of a queue have no gaps. So every offset between a queue's first offset and its known
end existed once, even if no block has it now. Evidence (a damaged block's header, a footer, the
index) shows in which damaged place a lost range was.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.check.report import DamagedPlace, Offsets, subtract_ranges
from holdfast.consumequeue.topics import QueueKey


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets that no block contains. Their blocks were between the physical offsets `low` and
    `high`."""

    key: QueueKey
    offsets: Offsets
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """A proof that these offsets were stored at a physical offset."""

    key: QueueKey
    offsets: Offsets
    physical_offset: int


@dataclass(slots=True)
class QueueCover:
    """The offsets of all queues, collected during a walk. `begins` are their first offsets."""

    begins: Mapping[QueueKey, int]
    ends: dict[QueueKey, int] = field(default_factory=dict)
    holes: list[Hole] = field(default_factory=list)
    _places: dict[QueueKey, int] = field(default_factory=dict)

    def add(self, key: QueueKey, base_offset: int, end_offset: int, physical_offset: int) -> None:
        """Add a block, and the hole before it, if any."""
        self._add_hole(key, base_offset, physical_offset)
        self.ends[key] = max(end_offset, self.ends.get(key, 0))
        self._places[key] = physical_offset

    def end_at(self, known: Mapping[QueueKey, int]) -> None:
        """Extend queues to their known ends; add the holes after the last blocks of queues."""
        for key, end in sorted(known.items()):
            if self._add_hole(key, end, 2**64):
                self.ends[key] = end

    def _add_hole(self, key: QueueKey, end: int, high: int) -> bool:
        """Add the hole between the queue's last block and `end`; return whether there is one."""
        begin = self.begins.get(key, 0)
        expected = max(self.ends.get(key, begin), begin)
        if end > expected:
            self.holes.append(Hole(key, (expected, end), self._places.get(key, 0), high))
        return end > expected


def lost_in(
    holes: Iterable[Hole], accepted: Mapping[QueueKey, list[Offsets]]
) -> dict[QueueKey, list[Offsets]]:
    """Return the offsets of the holes, without the offsets that are accepted as lost."""
    lost: dict[QueueKey, list[Offsets]] = {}
    for hole in holes:
        left = subtract_ranges(hole.offsets, accepted.get(hole.key, []))
        if left:
            lost.setdefault(hole.key, []).extend(left)
    return lost


def lost_at(
    place: DamagedPlace,
    lost: Mapping[QueueKey, list[Offsets]],
    evidence: Iterable[Evidence],
    holes: Iterable[Hole],
) -> list[tuple[QueueKey, Offsets]]:
    """Return the lost offsets that were in a damaged place, as the evidence shows. For a queue
    without evidence, return all its lost offsets between its blocks before and after the place."""
    found: dict[QueueKey, list[Offsets]] = {}
    with_evidence: set[QueueKey] = set()
    for each in evidence:
        with_evidence.add(each.key)
        if place.start <= each.physical_offset < place.end:
            found.setdefault(each.key, []).append(each.offsets)
    for hole in holes:
        if hole.key not in with_evidence and hole.low < place.end and place.start < hole.high:
            found.setdefault(hole.key, []).append(hole.offsets)
    return [
        (key, piece)
        for key, ranges in sorted(found.items())
        for piece in _join_ranges(_intersect(ranges, lost.get(key, [])))
    ]


def _intersect(ranges: list[Offsets], lost: list[Offsets]) -> list[Offsets]:
    return [
        (max(start, low), min(end, high))
        for start, end in ranges
        for low, high in lost
        if start < high and low < end
    ]


def _join_ranges(ranges: list[Offsets]) -> list[Offsets]:
    joined: list[Offsets] = []
    for start, end in sorted(set(ranges)):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
