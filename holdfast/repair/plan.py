"""Which steps repair the findings of a check. Pure: this module decides, `apply` acts.

Only three kinds of steps drop bytes: WRITE_GAP, END_SEGMENT and CREATE_SEGMENT, each for a part of
the log from which no block can be read. The overwritten bytes are copied first. All other steps
lose nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from holdfast.check.report import CheckReport, DamagedPlace, LostOffsets
from holdfast.commitlog.errors import LogError
from holdfast.commitlog.format.batch_header import ALIGNMENT
from holdfast.commitlog.format.gap_block import SMALLEST_GAP
from holdfast.commitlog.format.segment_format import (
    END_MARK_SIZE,
    SEGMENT_HEADER_SIZE,
    TRAILER_SIZE,
)

#: The smallest segment file: a header page, an end mark and an empty footer.
_SMALLEST_SEGMENT = SEGMENT_HEADER_SIZE + END_MARK_SIZE + TRAILER_SIZE


class StepKind(Enum):
    """What a step does."""

    WRITE_VERSION = auto()
    """Rewrite the VERSION file."""
    MOVE_FILE = auto()
    """Move a file that has a segment's name, but is not part of the log, into the folder of
    copies."""
    WRITE_HEADER = auto()
    """Rewrite a segment's header page; extend a truncated file with zeros."""
    WRITE_FOOTER = auto()
    """Rewrite a segment's footer from its blocks."""
    WRITE_GAP = auto()
    """Write gap blocks over damaged blocks, from `start` to `end`."""
    END_SEGMENT = auto()
    """End a segment at `start`, where its damage begins: no readable block follows in it."""
    CREATE_SEGMENT = auto()
    """Create a segment without blocks in place of missing files, from `start` to `end`."""
    RENEW_STATE = auto()
    """Record the accepted loss in the state, so that readers skip it, and delete the records of
    damage."""
    REPAIR_GROUPS = auto()
    """Drop the damaged rows of the groups' cursors, or move all cursors away."""
    DROP_INDEX = auto()
    """Delete the index; the next start rebuilds it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a repair. `name` is the file of a segment; `start` and `end` are physical
    offsets."""

    kind: StepKind
    name: str = ""
    start: int = 0
    end: int = 0


DROP_INDEX = Step(StepKind.DROP_INDEX)


@dataclass(eq=False, repr=False)
class NotRepairable(LogError):
    """Damage that a repair cannot make sound. `reason` includes what would help."""

    sentence = "{where} cannot be repaired: {reason}"
    where: str
    reason: str


@dataclass(frozen=True, slots=True)
class Loss:
    """What a repair loses: `bytes` of the log, with the messages in `lost`."""

    lost: tuple[tuple[LostOffsets, str], ...]
    """The lost offsets, each with its reason, a stable code."""
    bytes: int
    topics_may_be_missing: bool
    may_be_more: bool = False
    """Whether more messages may be lost, because no header, footer or index shows the content of
    some damaged blocks. These blocks may have held the last messages of a queue."""

    @property
    def messages_at_least(self) -> int:
        """How many messages are known to be lost."""
        return sum(each.end_offset - each.start_offset for each, _ in self.lost)

    @property
    def messages(self) -> int | None:
        """How many messages are lost, or None if the number cannot be known."""
        return None if self.may_be_more else self.messages_at_least

    @property
    def is_nothing(self) -> bool:
        """Whether the repair loses nothing."""
        return not self.lost and not self.bytes and not self.topics_may_be_missing


def loss_of(report: CheckReport) -> Loss:
    """Return what a repair of this directory would lose."""
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
    may_be_more = any(
        place.header is None and place.end > report.indexed_to for place in report.places
    )
    return Loss(lost, size, "state-incomplete" in kinds, may_be_more)


def lossless_steps(report: CheckReport) -> list[Step]:
    """Return the steps that lose nothing, in order. Raise NotRepairable."""
    steps: list[Step] = []
    for finding in report.findings:
        name = finding.where.removeprefix("commitlog/")
        match finding.kind:
            case "version":
                steps.insert(0, Step(StepKind.WRITE_VERSION))
            case "segment-unusable" | "segment-behind-hole":
                # This must be the first step: the file may overlap the segment before it.
                steps.insert(0, Step(StepKind.MOVE_FILE, name))
            case "segment-header":
                steps.append(Step(StepKind.WRITE_HEADER, name))
            case "segment-footer" if not _is_damaged(name, report):
                steps.append(Step(StepKind.WRITE_FOOTER, name))
            case "index-damaged" | "index-disagrees" | "index-beyond-log":
                if DROP_INDEX not in steps:
                    steps.append(DROP_INDEX)
            case "groups-damaged" | "groups-row":
                if Step(StepKind.REPAIR_GROUPS) not in steps:
                    steps.append(Step(StepKind.REPAIR_GROUPS))
            case "offsets-twice" | "time-back" | "block-columns" | "no-log" | "state-malformed":
                raise NotRepairable(finding.where, f"{finding.what}; restore a backup")
            case "tokens" if finding.damage:
                remedy = "restore them from a backup, or delete both copies and create new tokens"
                raise NotRepairable(finding.where, f"{finding.what}; {remedy}")
    return steps


def steps_of_loss(report: CheckReport, segment_ends: Mapping[str, int]) -> list[Step]:
    """Return the steps that drop the damaged parts, in order. `segment_ends` holds the physical
    end offset of each file. Raise NotRepairable."""
    steps: list[Step] = [Step(StepKind.RENEW_STATE)]
    changed: list[str] = []
    for place in _merge_places(report.places):
        if place.name is None:
            if place.end - place.start < _SMALLEST_SEGMENT:
                raise NotRepairable("commitlog", f"too few bytes are missing at {place.start}")
            steps.append(Step(StepKind.CREATE_SEGMENT, "", place.start, place.end))
            continue
        is_end = place.end >= segment_ends[place.name]
        if is_end:
            steps.append(
                Step(StepKind.END_SEGMENT, place.name, place.start, segment_ends[place.name])
            )
        elif place.end - place.start < SMALLEST_GAP or place.start % ALIGNMENT:
            raise NotRepairable(f"commitlog/{place.name}", "the damage is shorter than a block")
        else:
            steps.append(Step(StepKind.WRITE_GAP, place.name, place.start, place.end))
        if place.name not in changed:
            changed.append(place.name)
    steps += [Step(StepKind.WRITE_FOOTER, name) for name in changed]
    if report.places or report.lost:
        steps.append(DROP_INDEX)
    return steps


def _merge_places(places: Sequence[DamagedPlace]) -> list[DamagedPlace]:
    """Return the places in order; adjacent places in one file are merged."""
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
