"""Where a read begins and ends in each queue: what the options say, made into numbers. Pure.

A start or an end is one of: earliest, latest, offsets given one by one, a group's stored
offsets, or a time. Ends are exclusive. What a spec leaves open is earliest for a start and
latest for an end; a queue for which a group stored nothing counts as at its earliest message.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.spark.errors import DataLost, InvalidOption

EARLIEST = -2  # Kafka's numbers, which JSON offsets may use too
LATEST = -1


@dataclass(frozen=True, slots=True)
class Everywhere:
    """The same end of every queue: EARLIEST or LATEST."""

    offset: int


@dataclass(frozen=True, slots=True)
class Given:
    """Offsets one by one: topic -> queue -> offset. The topic None is the only one read."""

    by_topic: Mapping[str | None, Mapping[int, int]]

    def of(self, topic: str) -> Mapping[int, int]:
        """Return what is given for one topic; nothing for one that is not named."""
        return self.by_topic.get(None) or self.by_topic.get(topic, {})


@dataclass(frozen=True, slots=True)
class OfGroup:
    """Where a consumer group has stored that it is."""

    group: str


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first message stored at or after a time; the end of a queue that has none, or with
    `must_match` a refusal."""

    timestamp_ms: int
    must_match: bool = False


@dataclass(frozen=True, slots=True)
class AtTimes:
    """The same with a time of its own for each queue that is named: topic -> queue -> time. The
    topic None is the only one read."""

    by_topic: Mapping[str | None, Mapping[int, int]]
    must_match: bool = False

    def of(self, topic: str) -> Mapping[int, int]:
        """Return the times of one topic; none for one that is not named."""
        return self.by_topic.get(None) or self.by_topic.get(topic, {})


OffsetSpec = Everywhere | Given | OfGroup | AtTime | AtTimes


class QueueState(NamedTuple):
    """What a queue holds now: [min_offset, max_offset)."""

    min_offset: int
    max_offset: int


class OffsetRange(NamedTuple):
    """What is read of a queue: [start, end)."""

    start: int
    end: int


class SegmentRange(NamedTuple):
    """Physical offsets from `first` to before `end` of a segment file, which is the very one only
    if its header page says so.

    `blocks` are the rows that a footer would have of the part's blocks there, where the planner
    found them by walking a segment without one: nobody need walk it again. Empty when there are
    too many to send along.
    """

    start_offset: int
    created_timestamp_us: int
    first: int
    end: int
    blocks: bytes = b""

    def joined(self, later: "SegmentRange") -> "SegmentRange":
        """Return this range of a part and a later one in the same segment as one."""
        blocks = self.blocks + later.blocks if self.blocks and later.blocks else b""
        return self._replace(end=later.end, blocks=blocks)


@dataclass(frozen=True, slots=True)
class PlanLease:
    """The broker's leases on all that a plan covers, (topic, id) each, taken for `lease_ms` when
    the driver's wall clock said `taken_at_s`."""

    ids: tuple[tuple[str, str], ...]
    lease_ms: int
    taken_at_s: float


@dataclass(frozen=True, slots=True)
class QueueRange:
    """What one task reads of one queue: [start, end), and what its rows have in common.

    `segments` say where in the log's files it lies; without any it is read over HTTP. `lease` is
    that of the whole plan.
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

    `useless` is refused: as in Kafka, a batch neither starts at LATEST nor ends at EARLIEST, since
    it would read nothing.
    """
    word = text.strip()
    folded = word.lower()
    if folded == "earliest":
        return _checked(option, Everywhere(EARLIEST), useless)
    if folded == "latest":
        return _checked(option, Everywhere(LATEST), useless)
    if folded.startswith("group:"):
        group = word[len("group:") :].strip()
        if not group:
            raise InvalidOption(option, "'group:' is followed by the name of a consumer group")
        return OfGroup(group)
    if not word.startswith("{"):
        raise InvalidOption(
            option, f'{word!r} is none of earliest, latest, group:NAME and JSON such as {{"0": 12}}'
        )
    return _checked(option, Given(_parse_json(option, word)), useless)


def parse_times(option: str, text: str) -> dict[str | None, dict[int, int]]:
    """Parse times by queue, in milliseconds. Raises InvalidOption."""
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


def _checked(option: str, spec: Everywhere | Given, useless: int | None) -> OffsetSpec:
    """Refuse an end that would leave nothing to read."""
    queues = (
        [spec.offset]
        if isinstance(spec, Everywhere)
        else [offset for queues in spec.by_topic.values() for offset in queues.values()]
    )
    if useless in queues:
        verb = "ends at earliest" if useless == EARLIEST else "starts at latest"
        raise InvalidOption(option, f"a batch that {verb} reads nothing; leave it out to read all")
    return spec


def resolve(
    topic: str,
    queues: Mapping[int, QueueState],
    start: OffsetSpec,
    end: OffsetSpec,
    *,
    start_lookup: Mapping[int, int],
    end_lookup: Mapping[int, int],
    fail_on_data_loss: bool,
) -> dict[int, OffsetRange]:
    """Return the range to read of each queue; an empty one has start == end.

    The look-ups hold, by queue, what only the broker knows: a group's stored offsets, or the
    offsets at a time. Raises InvalidOption for a queue that does not exist, an offset beyond
    a queue's end and a start after its end; DataLost, with `fail_on_data_loss`, when the
    start was asked for by number and is trimmed. Otherwise a trimmed start moves up.
    """
    for option, spec in (("startingOffsets", start), ("endingOffsets", end)):
        for queue in spec.of(topic) if isinstance(spec, Given | AtTimes) else ():
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
        if isinstance(start, Given | OfGroup):
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
    """Refuse an offset given by number that the queue has not reached."""
    if isinstance(spec, Given | OfGroup) and offset > state.max_offset:
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
        case Everywhere(offset):
            named = offset
        case Given():
            named = spec.of(topic).get(queue, otherwise)
        case OfGroup():
            named = lookup.get(queue, state.min_offset)
        case AtTime() | AtTimes():
            named = lookup.get(queue, otherwise)
    if named == EARLIEST:
        return state.min_offset
    return state.max_offset if named == LATEST else named


def offsets_json(by_topic: Mapping[str, Mapping[int, int]]) -> str:
    """Return offsets in the form that startingOffsets and endingOffsets take."""
    return json.dumps(
        {
            topic: {str(queue): offset for queue, offset in queues.items()}
            for topic, queues in by_topic.items()
        }
    )
