"""Which offsets of each queue the log has, and which it lacks. Pure.

Offsets are dense, so what the blocks of a queue do not cover, from where it begins to where it is
known to have ended, was there once. Evidence (a damaged block's header, a footer, the index) says
which damaged place a lost range was in.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.check.report import DamagedPlace, Offsets, subtracted
from holdfast.consumequeue.topics import QueueKey


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets that no block has, and between which physical offsets they lay."""

    key: QueueKey
    offsets: Offsets
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """That these offsets lay at a physical offset."""

    key: QueueKey
    offsets: Offsets
    physical_offset: int


@dataclass(slots=True)
class QueueCover:
    """The cover of all queues, as the log is walked. `begins` says where they begin."""

    begins: Mapping[QueueKey, int]
    ends: dict[QueueKey, int] = field(default_factory=dict)
    holes: list[Hole] = field(default_factory=list)
    _places: dict[QueueKey, int] = field(default_factory=dict)

    def add(
        self, key: QueueKey, base_offset: int, end_offset: int, physical_offset: int
    ) -> Hole | None:
        """Add a block; return the hole before it."""
        begin = self.begins.get(key, 0)
        expected = max(self.ends.get(key, begin), begin)
        hole = None
        if base_offset > expected:
            low = self._places.get(key, 0)
            hole = Hole(key, (expected, base_offset), low, physical_offset)
            self.holes.append(hole)
        self.ends[key] = max(end_offset, self.ends.get(key, 0))
        self._places[key] = physical_offset
        return hole

    def end_at(self, known: Mapping[QueueKey, int]) -> list[Hole]:
        """Add what queues are known to have had beyond their last block; return that."""
        found = []
        for key, end in sorted(known.items()):
            begin = self.begins.get(key, 0)
            expected = max(self.ends.get(key, begin), begin)
            if end > expected:
                low = self._places.get(key, 0)
                found.append(Hole(key, (expected, end), low, 2**64))
                self.ends[key] = end
        self.holes += found
        return found


def lost_in(
    holes: Iterable[Hole], accepted: Mapping[QueueKey, list[Offsets]]
) -> dict[QueueKey, list[Offsets]]:
    """Return what the holes cost, but for what is accepted."""
    lost: dict[QueueKey, list[Offsets]] = {}
    for hole in holes:
        left = subtracted(hole.offsets, accepted.get(hole.key, []))
        if left:
            lost.setdefault(hole.key, []).extend(left)
    return lost


def lost_at(
    place: DamagedPlace,
    lost: Mapping[QueueKey, list[Offsets]],
    evidence: Iterable[Evidence],
    holes: Iterable[Hole],
) -> list[tuple[QueueKey, Offsets]]:
    """Return which lost offsets lay at a damaged place: by evidence, and where a queue has none,
    all that was lost between the blocks around it."""
    found: dict[QueueKey, list[Offsets]] = {}
    told: set[QueueKey] = set()
    for each in evidence:
        told.add(each.key)
        if place.start <= each.physical_offset < place.end:
            found.setdefault(each.key, []).append(each.offsets)
    for hole in holes:
        if hole.key not in told and hole.low < place.end and place.start < hole.high:
            found.setdefault(hole.key, []).append(hole.offsets)
    return [
        (key, piece)
        for key, ranges in sorted(found.items())
        for piece in _joined(_within(ranges, lost.get(key, [])))
    ]


def _within(ranges: list[Offsets], lost: list[Offsets]) -> list[Offsets]:
    return [
        (max(start, low), min(end, high))
        for start, end in ranges
        for low, high in lost
        if start < high and low < end
    ]


def _joined(ranges: list[Offsets]) -> list[Offsets]:
    joined: list[Offsets] = []
    for start, end in sorted(set(ranges)):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
