"""Parse the options for the start and the end of a read, and resolve them to offsets. Pure.

The options have the names that they have in Spark's Kafka connector. A start or an end is one of:
earliest, latest, explicit offsets, a group's stored offsets, one time for all queues, or a time per
queue. Ends are exclusive. For a queue that the options do not name, the start is earliest and the
end is latest. If a group has stored no offset for a queue, the queue's earliest offset is used.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.log_files.ranges import OffsetRange, QueueState, SegmentRange
from holdfast.spark.errors import DataLost, InvalidOption
from holdfast.spark.options.parser import OptionParser

RANGE_OPTIONS: Mapping[str, str] = {
    "startingOffsets": "earliest (default), JSON, or group:NAME",
    "endingOffsets": "latest (default), JSON, or group:NAME; exclusive",
    "startingTimestamp": "begin at the first message stored at or after this time, in ms",
    "endingTimestamp": "end before the first message stored at or after this time, in ms",
    "startingOffsetsByTimestamp": 'a starting time for each queue: {"topic": {"0": ms}}',
    "endingOffsetsByTimestamp": 'an ending time for each queue: {"topic": {"0": ms}}',
    "startingOffsetsByTimestampStrategy": "if a queue has no message at or after its starting "
    "time: latest reads nothing of the queue (default), error fails (default with schema=kafka)",
}

EARLIEST = -2  # Kafka's numbers; JSON offsets may use them, too
LATEST = -1


@dataclass(frozen=True, slots=True)
class EarliestOrLatest:
    """The same start or end in every queue: EARLIEST or LATEST."""

    offset: int


@dataclass(frozen=True, slots=True)
class ByQueue:
    """An offset or a time for each named queue: topic -> queue -> value. The key None means the
    only topic of the read."""

    by_topic: Mapping[str | None, Mapping[int, int]]

    def of(self, topic: str) -> Mapping[int, int]:
        """Return the values for one topic, or an empty mapping if the topic is not named."""
        return self.by_topic.get(None) or self.by_topic.get(topic, {})


@dataclass(frozen=True, slots=True)
class ExplicitOffsets(ByQueue):
    """Explicit offsets."""


@dataclass(frozen=True, slots=True)
class StoredByGroup:
    """The offsets that a consumer group has stored."""

    group: str


@dataclass(frozen=True, slots=True)
class AtTime:
    """The offset of the first message stored at or after a time. If a queue has no such message,
    the queue's end is used. With `must_match`, this is an error."""

    timestamp_ms: int
    must_match: bool = False


@dataclass(frozen=True, slots=True)
class AtTimes(ByQueue):
    """As AtTime, but each named queue has its own time, in milliseconds."""

    must_match: bool = False


OffsetSpec = EarliestOrLatest | ExplicitOffsets | StoredByGroup | AtTime | AtTimes


@dataclass(frozen=True, slots=True)
class PlanLease:
    """The broker's read leases on all ranges of a plan. Each of `ids` is (topic, lease id). The
    leases were granted for `lease_ms` when the driver's wall clock was at `taken_at_s`."""

    ids: tuple[tuple[str, str], ...]
    lease_ms: int
    taken_at_s: float


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The range [start, end) of one queue that one task reads, with facts about its topic.
    `segments` says where the range is in the segment files. If it is empty, the range is read over
    HTTP. `lease` has the leases of the whole plan."""

    topic: str
    topic_id: int
    queue: int
    start: int
    end: int
    priority_levels: int | None = None
    segments: tuple[SegmentRange, ...] = ()
    lease: PlanLease | None = None


def parse_range(
    options: OptionParser, *, several: bool, streaming: bool, schema: str
) -> tuple[OffsetSpec, OffsetSpec]:
    """Return the start and the end of a read. `several` is True if the read may have more than one
    topic. Raises InvalidOption."""
    strategy = "startingOffsetsByTimestampStrategy"
    if options.text(strategy) is not None and not any(
        options.text(each) for each in ("startingTimestamp", "startingOffsetsByTimestamp")
    ):
        raise InvalidOption(strategy, "needs startingTimestamp or startingOffsetsByTimestamp")
    default = "error" if schema == "kafka" else "latest"
    must_match = options.one_of(strategy, ("error", "latest"), default) == "error"
    start = _parse_end(
        options,
        ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
        otherwise=EarliestOrLatest(LATEST if streaming else EARLIEST),
        useless=None if streaming else LATEST,
        must_match=must_match,
    )
    end = _parse_end(
        options,
        ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
        otherwise=EarliestOrLatest(LATEST),
        useless=EARLIEST,
    )
    match start, end:
        case AtTime(first_ms), AtTime(last_ms) if first_ms > last_ms:
            detail = f"{first_ms} is after endingTimestamp {last_ms}"
            raise InvalidOption("startingTimestamp", detail)
    for side, spec in (("starting", start), ("ending", end)):
        if several and isinstance(spec, ByQueue) and None in spec.by_topic:
            name = f"{side}Offsets" + ("ByTimestamp" if isinstance(spec, AtTimes) else "")
            detail = 'several topics are read: name them, as in {"orders": {"0": 12}}'
            raise InvalidOption(name, detail)
    return start, end


def _parse_end(
    options: OptionParser,
    names: tuple[str, str, str],
    *,
    otherwise: OffsetSpec,
    useless: int | None,
    must_match: bool = False,
) -> OffsetSpec:
    by_offset, by_time, by_times = names
    for one, other in ((by_time, by_offset), (by_times, by_offset), (by_time, by_times)):
        options.at_most_one(one, other)
    if (text := options.text(by_offset)) is not None:
        return parse_offsets(by_offset, text, useless=useless)
    if (text := options.text(by_times)) is not None:
        return AtTimes(_parse_times(by_times, text), must_match)
    timestamp_ms = options.number(by_time, None)
    return otherwise if timestamp_ms is None else AtTime(timestamp_ms, must_match)


def parse_offsets(option: str, text: str, *, useless: int | None) -> OffsetSpec:
    """Parse startingOffsets or endingOffsets. Raises InvalidOption. The offset `useless` is
    refused: as in Kafka, a batch must not start at LATEST or end at EARLIEST, because it would read
    nothing."""
    word = text.strip()
    folded = word.lower()
    named = {"earliest": EARLIEST, "latest": LATEST}.get(folded)
    if named is not None:
        return _refuse_useless(option, EarliestOrLatest(named), useless)
    if folded.startswith("group:"):
        group = word[len("group:") :].strip()
        if not group:
            raise InvalidOption(option, "needs the name of a consumer group after 'group:'")
        return StoredByGroup(group)
    if not word.startswith("{"):
        forms = 'earliest, latest, group:NAME, or JSON such as {"0": 12}'
        raise InvalidOption(option, f"{word!r} is not {forms}")
    return _refuse_useless(option, ExplicitOffsets(_parse_json(option, word)), useless)


def _parse_times(option: str, text: str) -> dict[str | None, dict[int, int]]:
    """Parse times in milliseconds: topic -> queue -> time. Raises InvalidOption."""
    if not text.startswith("{"):
        example = '{"topic": {"0": 1700000000000}}'
        raise InvalidOption(option, f"{text!r} is not JSON such as {example}")
    times = _parse_json(option, text)
    for queues in times.values():
        for queue, timestamp_ms in queues.items():
            if timestamp_ms < 0:
                raise InvalidOption(option, f"queue {queue}: {timestamp_ms} is not a time in ms")
    return times


def _parse_json(option: str, text: str) -> dict[str | None, dict[int, int]]:
    try:
        given = json.loads(text)
    except ValueError as error:
        raise InvalidOption(option, f'is not JSON such as {{"0": 12}}: {error}') from error
    assert isinstance(given, dict)  # it begins with a brace
    nested = [isinstance(value, dict) for value in given.values()]
    if given and all(nested):
        return {topic: _parse_queues(option, queues) for topic, queues in given.items()}
    if any(nested):
        raise InvalidOption(option, "names queues and topics at the same level")
    return {None: _parse_queues(option, given)}


def _parse_queues(option: str, queues: Mapping[str, object]) -> dict[int, int]:
    offsets: dict[int, int] = {}
    for queue, offset in queues.items():
        if not (queue.isascii() and queue.isdecimal()):
            raise InvalidOption(option, f"{queue!r} is not a queue number")
        if type(offset) is not int or offset < EARLIEST:
            detail = f"queue {queue}: {offset!r} is not an offset, -2 (earliest) or -1 (latest)"
            raise InvalidOption(option, detail)
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
        detail = f"a batch that {verb} reads nothing; omit the option to read everything"
        raise InvalidOption(option, detail)
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
        for queue in spec.of(topic) if isinstance(spec, ByQueue) else ():
            if queue not in queues:
                there = ", ".join(map(str, sorted(queues)))
                detail = f"topic {topic!r} has no queue {queue} to read, only {there}"
                raise InvalidOption(option, detail)
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
                    "give an earlier start, or omit the queue from assign",
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
            f"{state.max_offset}; give a smaller offset, or check whether the topic was deleted "
            "and created again",
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
