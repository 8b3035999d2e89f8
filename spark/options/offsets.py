"""Parse the options for the start and the end of a read, and resolve them to offsets. Pure.

A start or an end is one of: earliest, latest, explicit offsets, a group's stored offsets, or a
time. Ends are exclusive. For a queue that the options do not name, the start is earliest and the
end is latest. If a group has stored no offset for a queue, the queue's earliest offset is used.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.spark.errors import DataLost, InvalidOption

EARLIEST = -2  # Kafka's numbers; JSON offsets may use them, too
LATEST = -1


@dataclass(frozen=True, slots=True)
class EarliestOrLatest:
    """The same start or end in every queue: EARLIEST or LATEST."""

    offset: int


@dataclass(frozen=True, slots=True)
class ExplicitOffsets:
    """Explicit offsets: topic -> queue -> offset. The key None means the only topic of the read."""

    by_topic: Mapping[str | None, Mapping[int, int]]

    def of(self, topic: str) -> Mapping[int, int]:
        """Return the offsets for one topic, or an empty mapping if the topic is not named."""
        return self.by_topic.get(None) or self.by_topic.get(topic, {})


@dataclass(frozen=True, slots=True)
class StoredByGroup:
    """The offsets that a consumer group has stored."""

    group: str


@dataclass(frozen=True, slots=True)
class AtTime:
    """The offset of the first message stored at or after a time.

    If a queue has no such message, the queue's end is used. With `must_match`, this is an error.
    """

    timestamp_ms: int
    must_match: bool = False


@dataclass(frozen=True, slots=True)
class AtTimes:
    """As AtTime, but each named queue has its own time: topic -> queue -> time. The key None means
    the only topic of the read."""

    by_topic: Mapping[str | None, Mapping[int, int]]
    must_match: bool = False

    def of(self, topic: str) -> Mapping[int, int]:
        """Return the times for one topic, or an empty mapping if the topic is not named."""
        return self.by_topic.get(None) or self.by_topic.get(topic, {})


OffsetSpec = EarliestOrLatest | ExplicitOffsets | StoredByGroup | AtTime | AtTimes


class QueueState(NamedTuple):
    """The offsets that a queue holds now: [min_offset, max_offset)."""

    min_offset: int
    max_offset: int


class OffsetRange(NamedTuple):
    """The offsets to read in a queue: [start, end)."""

    start: int
    end: int


class SegmentRange(NamedTuple):
    """The physical offsets from `first` to before `end` in one segment file.

    The header page of the file must have the same `start_offset` and `created_timestamp_us`;
    otherwise it is another file. `blocks` is empty for a segment with a footer. For a segment
    without a footer, the planner had to read the header of each block. Then `blocks` has one row
    for each block of the range, in the format of a footer's block table, so that tasks need not
    read the headers again. But `blocks` is empty, too, if there are too many rows to send.
    """

    start_offset: int
    created_timestamp_us: int
    first: int
    end: int
    blocks: bytes = b""

    def join(self, later: "SegmentRange") -> "SegmentRange":
        """Return this range and a later one in the same segment, joined into one."""
        blocks = self.blocks + later.blocks if self.blocks and later.blocks else b""
        return self._replace(end=later.end, blocks=blocks)


@dataclass(frozen=True, slots=True)
class PlanLease:
    """The broker's read leases on all ranges of a plan. Each of `ids` is (topic, lease id).

    They were granted for `lease_ms` when the driver's wall clock was at `taken_at_s`.
    """

    ids: tuple[tuple[str, str], ...]
    lease_ms: int
    taken_at_s: float


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The range [start, end) of one queue that one task reads, with facts about its topic.

    `segments` says where the range is in the segment files. If it is empty, the range is read over
    HTTP. `lease` has the leases of the whole plan.
    """

    topic: str
    topic_id: int
    queue: int
    start: int
    end: int
    priority_levels: int | None = None
    segments: tuple[SegmentRange, ...] = ()
    lease: PlanLease | None = None


def parse_offsets(option: str, text: str, *, useless: int | None) -> OffsetSpec:
    """Parse startingOffsets or endingOffsets. Raises InvalidOption.

    The offset `useless` is refused: as in Kafka, a batch must not start at LATEST or end at
    EARLIEST, because it would read nothing.
    """
    word = text.strip()
    folded = word.lower()
    if folded == "earliest":
        return _refuse_useless(option, EarliestOrLatest(EARLIEST), useless)
    if folded == "latest":
        return _refuse_useless(option, EarliestOrLatest(LATEST), useless)
    if folded.startswith("group:"):
        group = word[len("group:") :].strip()
        if not group:
            raise InvalidOption(option, "'group:' is followed by the name of a consumer group")
        return StoredByGroup(group)
    if not word.startswith("{"):
        raise InvalidOption(
            option, f'{word!r} is none of earliest, latest, group:NAME and JSON such as {{"0": 12}}'
        )
    return _refuse_useless(option, ExplicitOffsets(_parse_json(option, word)), useless)


def parse_times(option: str, text: str) -> dict[str | None, dict[int, int]]:
    """Parse times in milliseconds: topic -> queue -> time. Raises InvalidOption."""
    if not text.strip().startswith("{"):
        raise InvalidOption(
            option, f'{text!r} is no JSON such as {{"topic": {{"0": 1700000000000}}}}'
        )
    times = _parse_json(option, text)
    for queues in times.values():
        for queue, timestamp_ms in queues.items():
            if timestamp_ms < 0:
                raise InvalidOption(option, f"queue {queue}: {timestamp_ms} is no time in ms")
    return times


def _parse_json(option: str, text: str) -> dict[str | None, dict[int, int]]:
    try:
        given = json.loads(text)
    except ValueError as error:
        raise InvalidOption(option, f'not JSON such as {{"0": 12}}: {error}') from error
    assert isinstance(given, dict)  # it begins with a brace
    nested = [isinstance(value, dict) for value in given.values()]
    if given and all(nested):
        return {topic: _parse_queues(option, queues) for topic, queues in given.items()}
    if any(nested):
        raise InvalidOption(option, "gives either queues or topics, not both at one level")
    return {None: _parse_queues(option, given)}


def _parse_queues(option: str, queues: Mapping[str, object]) -> dict[int, int]:
    offsets: dict[int, int] = {}
    for queue, offset in queues.items():
        if not (queue.isascii() and queue.isdecimal()):
            raise InvalidOption(option, f"{queue!r} is no queue number")
        if type(offset) is not int or offset < EARLIEST:
            raise InvalidOption(
                option, f"queue {queue}: {offset!r} is no offset (nor -2 earliest, -1 latest)"
            )
        offsets[int(queue)] = offset
    return offsets


def _refuse_useless(
    option: str, spec: EarliestOrLatest | ExplicitOffsets, useless: int | None
) -> OffsetSpec:
    """Return `spec`. Raises InvalidOption if it contains the offset `useless`."""
    queues = (
        [spec.offset]
        if isinstance(spec, EarliestOrLatest)
        else [offset for queues in spec.by_topic.values() for offset in queues.values()]
    )
    if useless in queues:
        verb = "ends at earliest" if useless == EARLIEST else "starts at latest"
        raise InvalidOption(option, f"a batch that {verb} reads nothing; leave it out to read all")
    return spec


def resolve_ranges(
    topic: str,
    queues: Mapping[int, QueueState],
    start: OffsetSpec,
    end: OffsetSpec,
    *,
    start_lookup: Mapping[int, int],
    end_lookup: Mapping[int, int],
    fail_on_data_loss: bool,
) -> dict[int, OffsetRange]:
    """Return the range to read in each queue; an empty range has start == end.

    `start_lookup` and `end_lookup` have, for each queue, the offset that the catalog found: a
    group's stored offset, or the offset at a time. Raises InvalidOption for a queue that does not
    exist, an offset after a queue's end, or a start after the end of its range. A start before the
    queue's first message is replaced by the first message; but if the start is explicit or stored,
    `fail_on_data_loss` is set, and the range has lost messages to retention, raises DataLost.
    """
    for option, spec in (("startingOffsets", start), ("endingOffsets", end)):
        for queue in spec.of(topic) if isinstance(spec, ExplicitOffsets | AtTimes) else ():
            if queue not in queues:
                there = ", ".join(map(str, sorted(queues)))
                raise InvalidOption(
                    option, f"topic {topic!r} has no queue {queue} to read; name some of {there}"
                )
    ranges = {}
    for queue, state in queues.items():
        first = _resolve_one(start, topic, queue, state, start_lookup, otherwise=state.min_offset)
        last = _resolve_one(end, topic, queue, state, end_lookup, otherwise=state.max_offset)
        _check_end("endingOffsets", end, topic, queue, last, state)
        last = min(last, state.max_offset)
        if isinstance(start, ExplicitOffsets | StoredByGroup):
            _check_end("startingOffsets", start, topic, queue, first, state)
            if first > last:
                raise InvalidOption(
                    "startingOffsets",
                    f"queue {queue} of {topic!r} would start at {first}, after its end at {last}; "
                    "start no later than it ends, or leave the queue out of assign",
                )
            if fail_on_data_loss and first < min(last, state.min_offset):
                raise DataLost(topic, queue, first, state.min_offset, "trimmed by retention")
        first = max(first, state.min_offset)
        ranges[queue] = OffsetRange(min(first, last), last)
    return ranges


def _check_end(
    option: str, spec: OffsetSpec, topic: str, queue: int, offset: int, state: QueueState
) -> None:
    """Raise InvalidOption if an explicit or stored offset is after the queue's end."""
    if isinstance(spec, ExplicitOffsets | StoredByGroup) and offset > state.max_offset:
        raise InvalidOption(
            option,
            f"offset {offset} is beyond the end of queue {queue} of {topic!r}, which is "
            f"{state.max_offset}; name one up to that, or see whether the topic was made again",
        )


def _resolve_one(
    spec: OffsetSpec,
    topic: str,
    queue: int,
    state: QueueState,
    lookup: Mapping[int, int],
    *,
    otherwise: int,
) -> int:
    match spec:
        case EarliestOrLatest(offset):
            named = offset
        case ExplicitOffsets():
            named = spec.of(topic).get(queue, otherwise)
        case StoredByGroup():
            named = lookup.get(queue, state.min_offset)
        case AtTime() | AtTimes():
            named = lookup.get(queue, otherwise)
    if named == EARLIEST:
        return state.min_offset
    return state.max_offset if named == LATEST else named


def format_offsets(by_topic: Mapping[str, Mapping[int, int]]) -> str:
    """Return offsets in the JSON form of startingOffsets and endingOffsets."""
    return json.dumps(
        {
            topic: {str(queue): offset for queue, offset in queues.items()}
            for topic, queues in by_topic.items()
        }
    )
