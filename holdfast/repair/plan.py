"""What a repair would do about what a check found. Pure: it decides, `apply` acts.

Only three steps let go of bytes: GapOver, EndAt and EmptySegment, each for a place that no block
can be read from. Whatever they overwrite is copied aside before. All others lose nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.check.report import CheckReport, DamagedPlace, LostOffsets
from holdfast.commitlog.batch_header import ALIGNMENT
from holdfast.commitlog.errors import LogError
from holdfast.commitlog.gap_block import SMALLEST_GAP
from holdfast.commitlog.segment_format import END_MARK_SIZE, SEGMENT_HEADER_SIZE, TRAILER_SIZE

#: The smallest segment file: a header page, an end mark and an empty footer.
_SMALLEST_SEGMENT = SEGMENT_HEADER_SIZE + END_MARK_SIZE + TRAILER_SIZE


@dataclass(frozen=True, slots=True)
class WriteVersion:
    """Write VERSION anew."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """Move a file that is not part of the log, though its name says so, to the copies."""

    name: str


@dataclass(frozen=True, slots=True)
class WriteHeader:
    """Write a segment's header page anew, and lengthen a file that was cut short by zeros."""

    name: str


@dataclass(frozen=True, slots=True)
class WriteFooter:
    """Write a segment's footer anew from its blocks."""

    name: str


@dataclass(frozen=True, slots=True)
class GapOver:
    """Put a gap where blocks are damaged, from one physical offset to another."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class EndAt:
    """End a segment where its damage begins: nothing that can be read follows in it."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class EmptySegment:
    """Put a segment without blocks where files are missing."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class RenewState:
    """Note in the state what was let go of, so that readers pass over it, and forget what was
    noted as damaged."""


@dataclass(frozen=True, slots=True)
class MendGroups:
    """Forget what is damaged of the groups' cursors, or set all of them aside."""


@dataclass(frozen=True, slots=True)
class DropIndex:
    """Delete the index: the next start builds it."""


Step = (
    WriteVersion
    | SetAside
    | WriteHeader
    | WriteFooter
    | GapOver
    | EndAt
    | EmptySegment
    | RenewState
    | MendGroups
    | DropIndex
)


class NotRepairable(LogError):
    """Damage that no repair makes sound. `reason` says what would."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason)
        self.where = where
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.where} cannot be repaired: {self.reason}"


@dataclass(frozen=True, slots=True)
class Loss:
    """What a repair lets go of: `bytes` of the log, among them these messages."""

    lost: tuple[tuple[LostOffsets, str], ...]
    """Offsets with the reason, a stable word."""
    bytes: int
    topics_may_be_missing: bool

    @property
    def messages(self) -> int:
        """How many messages."""
        return sum(each.end_offset - each.start_offset for each, _ in self.lost)

    @property
    def is_nothing(self) -> bool:
        """Whether nothing is let go of."""
        return not self.lost and not self.bytes and not self.topics_may_be_missing


def loss_of(report: CheckReport) -> Loss:
    """Return what making this directory sound costs."""
    reasons: dict[tuple[int, int, int], str] = {}
    names: dict[int, str | None] = {}
    for finding in report.findings:
        for each in finding.lost:
            names[each.topic_id] = each.topic
            place = (each.topic_id, each.queue, each.start_offset)
            reasons.setdefault(place, finding.kind)
    lost = tuple(
        (
            LostOffsets(names.get(key[0]), *key, start, end),
            reasons.get((*key, start), "missing-messages"),
        )
        for key, ranges in sorted(report.lost.items())
        for start, end in ranges
    )
    size = sum(place.end - place.start for place in report.places if place.name is not None)
    kinds = {finding.kind for finding in report.findings}
    return Loss(lost, size, "state-incomplete" in kinds)


def lossless_steps(report: CheckReport) -> list[Step]:
    """Return the steps that lose nothing, in their order. Raises NotRepairable."""
    steps: list[Step] = []
    for finding in report.findings:
        name = finding.where.removeprefix("commitlog/")
        match finding.kind:
            case "version":
                steps.insert(0, WriteVersion())
            case "segment-unusable" | "segment-behind-hole":
                # Before any header is written: it may hide where the segment before it ends.
                steps.insert(0, SetAside(name))
            case "segment-header":
                steps.append(WriteHeader(name))
            case "segment-footer" if not _is_damaged(name, report):
                steps.append(WriteFooter(name))
            case "index-damaged" | "index-disagrees" | "index-beyond-log":
                if DropIndex() not in steps:
                    steps.append(DropIndex())
            case "groups-damaged" | "groups-row":
                if MendGroups() not in steps:
                    steps.append(MendGroups())
            case "offsets-twice" | "time-back" | "block-columns" | "no-log" | "state-malformed":
                raise NotRepairable(finding.where, f"{finding.what}; restore a backup")
            case "tokens" if finding.damage:
                raise NotRepairable(
                    finding.where,
                    f"{finding.what}; restore them from a backup, or remove both copies and make "
                    "new tokens",
                )
    return steps


def steps_of_loss(report: CheckReport, segment_ends: Mapping[str, int]) -> list[Step]:
    """Return the steps that let go of what is damaged, in their order; `segment_ends` says of
    each file where it ends in the log. Raises NotRepairable."""
    steps: list[Step] = [RenewState()]
    changed: list[str] = []
    for place in _merged(report.places):
        if place.name is None:
            if place.end - place.start < _SMALLEST_SEGMENT:
                raise NotRepairable("commitlog", f"too little is missing at {place.start}")
            steps.append(EmptySegment(place.start, place.end))
            continue
        is_end = place.end >= segment_ends[place.name]
        if is_end:
            steps.append(EndAt(place.name, place.start, segment_ends[place.name]))
        elif place.end - place.start < SMALLEST_GAP or place.start % ALIGNMENT:
            raise NotRepairable(f"commitlog/{place.name}", "no block is as short as its damage")
        else:
            steps.append(GapOver(place.name, place.start, place.end))
        if place.name not in changed:
            changed.append(place.name)
    steps += [WriteFooter(name) for name in changed]
    if report.places or report.lost:
        steps.append(DropIndex())
    return steps


def _merged(places: Sequence[DamagedPlace]) -> list[DamagedPlace]:
    """Return places in order, those that touch within a file as one."""
    merged: list[DamagedPlace] = []
    for place in places:
        last = merged[-1] if merged else None
        if last is not None and last.name == place.name is not None and last.end == place.start:
            merged[-1] = DamagedPlace(last.name, last.start, place.end, last.reason)
        else:
            merged.append(place)
    return merged


def _is_damaged(name: str, report: CheckReport) -> bool:
    return any(place.name == name for place in report.places)
