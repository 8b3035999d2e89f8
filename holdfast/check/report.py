"""What a check found, and what that costs. Pure: no file, no clock."""

from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.commitlog.batch_header import BatchHeader
from holdfast.consumequeue.topics import QueueKey

Offsets = tuple[int, int]
"""Queue offsets from the first to before the second."""


@dataclass(frozen=True, slots=True)
class LostOffsets:
    """Messages that cannot be read. `topic` is None where nobody knows its name any more."""

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
    """Something that is not as it should be.

    `kind` is a stable word. `damage`: messages or state are affected; else it is a note: the
    broker mends it by itself, or it harms nothing. `start` and `end` are a place in the file.
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
        """Return it as a line of JSON has it."""
        fields = asdict(self)
        kind, is_damage = fields.pop("kind"), fields.pop("damage")
        row = {"kind": "damage" if is_damage else "note", "finding": kind, **fields}
        return {name: value for name, value in row.items() if value not in (None, (), "")}


@dataclass(frozen=True, slots=True)
class DamagedPlace:
    """A part of the log, in physical offsets, that no block can be read from though it was
    durable. `name` is the segment's file, None for one that is missing; `header` is there where
    it is intact and the payload is not."""

    name: str | None
    start: int
    end: int
    reason: str
    header: BatchHeader | None = None


@dataclass(slots=True)
class CheckReport:
    """What was looked at and what was found."""

    segments: int = 0
    blocks: int = 0
    messages: int = 0
    bytes: int = 0
    queues: int = 0
    index_entries: int = 0
    topics: int = 0
    groups: int = 0
    scope: str = "all"
    """"all"; "log" beside a running broker, whose index is not looked at; "backup"."""
    findings: list[Finding] = field(default_factory=list)
    places: list[DamagedPlace] = field(default_factory=list)
    """Where the log is damaged, in its order."""
    lost: dict[QueueKey, list[Offsets]] = field(default_factory=dict)
    """What is missing of each queue, but for what an operator has let go of."""
    ends: dict[QueueKey, int] = field(default_factory=dict)
    """Where each queue ends, by all that is known."""

    @property
    def is_sound(self) -> bool:
        """Whether nothing is damaged; notes may be there."""
        return not any(finding.damage for finding in self.findings)

    def note(self, where: object, what: object, kind: str, **more: Any) -> None:
        """Add something harmless."""
        self.findings.append(Finding(str(where), str(what), damage=False, kind=kind, **more))

    def damage(self, where: object, what: object, kind: str, **more: Any) -> None:
        """Add something that affects messages or state."""
        self.findings.append(Finding(str(where), str(what), damage=True, kind=kind, **more))


def subtracted(offsets: Offsets, others: list[Offsets]) -> list[Offsets]:
    """Return what of a range no other one covers; `others` are in order and apart."""
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
