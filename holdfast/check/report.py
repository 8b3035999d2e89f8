"""The findings of a check and the lost messages. Pure: no file, no clock."""

from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.commitlog.format.batch_header import BatchHeader
from holdfast.consumequeue.topics import QueueKey

Offsets = tuple[int, int]
"""A range of queue offsets: the first offset, and the offset after the last one."""


@dataclass(frozen=True, slots=True)
class LostOffsets:
    """Messages that cannot be read. `topic` is None if its name is no longer known."""

    topic: str | None
    topic_id: int
    queue: int
    start_offset: int
    end_offset: int

    def __str__(self) -> str:
        name = repr(self.topic) if self.topic is not None else f"topic id {self.topic_id}"
        return f"offsets {self.start_offset} to {self.end_offset} of queue {self.queue} of {name}"


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that a check found.

    `kind` is a stable code. `damage` means that messages or state are affected. Otherwise the
    finding is a note: it is harmless, or the broker repairs it automatically. `start` and `end`
    are byte positions in the file.
    """

    where: str
    what: str
    damage: bool
    kind: str
    mend: str = ""
    start: int | None = None
    end: int | None = None
    lost: tuple[LostOffsets, ...] = ()

    def as_row(self) -> dict[str, Any]:
        """Return the finding as a row of the JSON output."""
        fields = asdict(self)
        kind, is_damage = fields.pop("kind"), fields.pop("damage")
        row = {"kind": "damage" if is_damage else "note", "finding": kind, **fields}
        return {name: value for name, value in row.items() if value not in (None, (), "")}


@dataclass(frozen=True, slots=True)
class DamagedPlace:
    """A durable part of the log, in physical offsets, from which no block can be read. `name` is
    the name of the segment's file, or None if the file is missing. `header` is set if the damage is
    one block whose header is intact."""

    name: str | None
    start: int
    end: int
    reason: str
    header: BatchHeader | None = None


@dataclass(slots=True)
class CheckReport:
    """The totals and the findings of a check."""

    segments: int = 0
    blocks: int = 0
    messages: int = 0
    """Messages of users, without the broker's own records."""
    bytes: int = 0
    queues: int = 0
    index_entries: int = 0
    topics: int = 0
    groups: int = 0
    indexed_to: int = 0
    """The physical offset up to which a sound index covers the log, or 0 if the index is not sound.
    """
    scope: str = "all"
    """"all", "log" (a broker is running, so the index is not checked) or "backup"."""
    findings: list[Finding] = field(default_factory=list)
    places: list[DamagedPlace] = field(default_factory=list)
    """The damaged places of the log, in log order."""
    lost: dict[QueueKey, list[Offsets]] = field(default_factory=dict)
    """The missing offsets of each queue, without those that an operator has accepted as lost."""
    ends: dict[QueueKey, int] = field(default_factory=dict)
    """The highest known end of each queue."""

    @property
    def is_sound(self) -> bool:
        """Whether nothing is damaged. There may be notes."""
        return not any(finding.damage for finding in self.findings)

    def note(self, where: object, what: object, kind: str, **more: Any) -> None:
        """Add a harmless finding."""
        self.findings.append(Finding(str(where), str(what), damage=False, kind=kind, **more))

    def damage(self, where: object, what: object, kind: str, **more: Any) -> None:
        """Add a finding that affects messages or state."""
        self.findings.append(Finding(str(where), str(what), damage=True, kind=kind, **more))


def subtract_ranges(offsets: Offsets, others: list[Offsets]) -> list[Offsets]:
    """Return the parts of a range that none of `others` covers. `others` must be sorted and must
    not overlap."""
    left = []
    at, end = offsets
    for start, stop in others:
        if stop <= at or start >= end:
            continue
        if start > at:
            left.append((at, start))
        at = max(at, stop)
    if at < end:
        left.append((at, end))
    return left
