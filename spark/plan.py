"""What a read covers, decided once on the driver, and how it is shared out among tasks.

`bind_topics` turns the options into fixed offsets of fixed topics: whatever is published
later, the read is the same. `plan_partitions` cuts these ranges at the borders of blocks, so
that tasks are of about the same size, and puts small ones together.
"""

import logging
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from holdfast.spark.catalog import Catalog, LiveCatalog, OutOfRange, Split, TopicState
from holdfast.spark.errors import BrokerRefused, DataLost, InvalidOption, TopicRecreated
from holdfast.spark.offsets import (
    AtTime,
    AtTimes,
    Given,
    OffsetRange,
    OffsetSpec,
    OfGroup,
    PlanLease,
    QueueRange,
    SegmentRange,
    resolve,
)
from holdfast.spark.options import ReadOptions

_log = logging.getLogger("holdfast.spark")

#: Parts that a topic is cut into at least, when minPartitions does not say.
_DEFAULT_SPLITS = 8
#: A task costs some ten milliseconds however little it reads: smaller parts share one.
_SMALL_TASK_BYTES = 4 * 1024 * 1024
_PLAN_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class BoundTopic:
    """One topic, by its id, and the range of each queue that is read. Some may be empty."""

    name: str
    topic_id: int
    ranges: Mapping[int, OffsetRange]
    priority_levels: int | None = None


def bind_topics(catalog: Catalog, options: ReadOptions) -> tuple[BoundTopic, ...]:
    """Ask once what the options mean now, and return it as numbers.

    Raises InvalidOption for what does not fit the topics, DataLost for a start that is
    trimmed, TopicRecreated for a topic whose id is not the one asked for.
    """
    names = topic_names(catalog, options)
    for option, spec in (("startingOffsets", options.start), ("endingOffsets", options.end)):
        for name in spec.by_topic if isinstance(spec, Given | AtTimes) else ():
            if name is not None and name not in names:
                raise InvalidOption(option, f"names topic {name!r}, which is not read")
    return tuple(_bind_topic(catalog, options, name) for name in names)


def topic_names(catalog: Catalog, options: ReadOptions) -> tuple[str, ...]:
    """Return the topics that the options name or, now, match. Raises InvalidOption for none."""
    names = matching_topics(catalog, options)
    if not names:
        raise InvalidOption("subscribePattern", f"no topic matches {options.pattern!r} as a whole")
    return names


def matching_topics(catalog: Catalog, options: ReadOptions) -> tuple[str, ...]:
    """Return the topics that the options name or, now, match: by a pattern there may be none."""
    if options.topics is not None:
        return options.topics
    if options.assigned is not None:
        return tuple(options.assigned)
    assert options.pattern is not None
    pattern = re.compile(options.pattern)
    return tuple(name for name in catalog.topic_names() if pattern.fullmatch(name))


def _bind_topic(catalog: Catalog, options: ReadOptions, name: str) -> BoundTopic:
    topic = catalog.describe(name)
    bound_id = options.topic_ids.get(name, topic.topic_id)
    if topic.topic_id != bound_id:
        raise TopicRecreated(name, bound_id, topic.topic_id)
    if options.assigned is not None:
        topic = _only(topic, options.assigned[name])
    ranges = resolve(
        name,
        topic.queues,
        options.start,
        options.end,
        start_lookup=_look_up(catalog, "startingOffsets", options.start, topic),
        end_lookup=_look_up(catalog, "endingOffsets", options.end, topic),
        fail_on_data_loss=options.fail_on_data_loss,
    )
    return BoundTopic(name, topic.topic_id, ranges, topic.priority_levels)


def _only(topic: TopicState, queues: Iterable[int]) -> TopicState:
    for queue in queues:
        if queue not in topic.queues:
            raise InvalidOption("assign", f"topic {topic.name!r} has no queue {queue}")
    return replace(topic, queues={queue: topic.queues[queue] for queue in sorted(queues)})


def _look_up(
    catalog: Catalog, option: str, spec: OffsetSpec, topic: TopicState
) -> Mapping[int, int]:
    """Return by queue what `spec` means, if only the catalog knows."""
    match spec:
        case OfGroup(group):
            stored = catalog.stored_offsets(group, topic.name)
            if stored is None:
                raise InvalidOption(
                    option,
                    f"there is no group {group!r}; holdfast.spark.bind begins one where there is "
                    "none, or name the offsets to start from",
                )
            return stored.offsets
        case AtTime(timestamp_ms, must_match):
            times = dict.fromkeys(topic.queues, timestamp_ms)
        case AtTimes(_, must_match):
            named = spec.of(topic.name)
            times = {queue: named[queue] for queue in topic.queues if queue in named}
        case _:
            return {}
    found = {queue: catalog.offset_at(topic.name, queue, each) for queue, each in times.items()}
    for queue, offset in found.items() if must_match else ():
        if offset >= topic.queues[queue].max_offset:
            raise InvalidOption(
                "startingTimestamp" if isinstance(spec, AtTime) else f"{option}ByTimestamp",
                f"queue {queue} of {topic.name!r} has no message stored at or after "
                f"{times[queue]}; name an earlier time, or set "
                "startingOffsetsByTimestampStrategy=latest to read nothing of it",
            )
    return found


def plan_partitions(
    catalog: Catalog, options: ReadOptions, topics: Iterable[BoundTopic]
) -> list[tuple[QueueRange, ...]]:
    """Return what each task reads: at least one range each, in order of topic, queue, offset.

    Raises DataLost when part of a range is gone by now (or leaves it out and says so, without
    failOnDataLoss), TopicRecreated when a topic is another one by now. Every part carries the
    leases of all of them; when this raises, there are none.
    """
    parts = []
    lease_ids: dict[tuple[str, str], None] = {}
    taken_at_s = time.time()
    with ExitStack() as undoing:
        undoing.callback(release_leases, catalog, lease_ids)
        for topic in topics:
            for split in _splits(catalog, options, topic):
                if split.lease_id is not None:
                    lease_ids[topic.name, split.lease_id] = None
                part = QueueRange(
                    topic.name,
                    topic.topic_id,
                    split.queue,
                    split.start,
                    split.end,
                    topic.priority_levels,
                    split.segments,
                )
                parts.append((part, split.size_bytes))
        undoing.pop_all()
    if lease_ids:
        lease = PlanLease(tuple(lease_ids), options.lease_ms, taken_at_s)
        parts = [(replace(part, lease=lease), size_bytes) for part, size_bytes in parts]
    return pack(
        parts,
        at_least=options.min_partitions or 1,
        small_bytes=min(_SMALL_TASK_BYTES, options.max_bytes_per_partition),
    )


def release_leases(catalog: Catalog, leases: Iterable[tuple[str, str]]) -> None:
    """Let go of what a plan was leased, each a topic and an id. Raises nothing."""
    if isinstance(catalog, LiveCatalog):
        catalog.release_leases(leases)


def _splits(catalog: Catalog, options: ReadOptions, topic: BoundTopic) -> list[Split]:
    ranges = topic.ranges
    for attempt in range(1, _PLAN_ATTEMPTS + 1):
        wanted = {queue: part for queue, part in ranges.items() if part.start < part.end}
        try:
            return catalog.splits(
                topic.name,
                topic.topic_id,
                wanted,
                max_bytes=options.max_bytes_per_partition,
                min_splits=options.min_partitions or _DEFAULT_SPLITS,
                lease_ms=options.lease_ms,
            )
        except (BrokerRefused, OutOfRange) as refused:
            is_moved = isinstance(refused, OutOfRange) or refused.status in {410, 416}
            if not is_moved or attempt == _PLAN_ATTEMPTS:
                raise
            ranges = _kept(catalog.describe(topic.name), topic, ranges, options.fail_on_data_loss)
    raise AssertionError("unreachable")


def _kept(
    now: TopicState, topic: BoundTopic, ranges: Mapping[int, OffsetRange], fail_on_data_loss: bool
) -> dict[int, OffsetRange]:
    """Return what is left of the ranges. Raises DataLost for the first that shrank."""
    if now.topic_id != topic.topic_id:
        raise TopicRecreated(topic.name, topic.topic_id, now.topic_id)
    kept = {}
    for queue, (start, end) in ranges.items():
        low, high = now.queues[queue]
        for lost_start, lost_end, reason in (
            (start, min(end, low), "trimmed by retention"),
            (max(start, high), end, "the queue ends before"),
        ):
            if lost_start < lost_end:
                lost = DataLost(topic.name, queue, lost_start, lost_end, reason)
                if fail_on_data_loss:
                    raise lost
                _log.warning("skipped %d messages: %s", lost_end - lost_start, lost)
        first = min(max(start, low), end)
        kept[queue] = OffsetRange(first, max(min(end, high), first))
    return kept


def pack(
    parts: Iterable[tuple[QueueRange, int]], *, at_least: int, small_bytes: int
) -> list[tuple[QueueRange, ...]]:
    """Put neighbours together until each pack has `small_bytes`, as long as `at_least` are left.

    Parts come with their sizes in bytes. Those of one queue that meet become one range.
    """
    parts = list(parts)
    to_spare = len(parts) - at_least
    packs: list[list[QueueRange]] = []
    packed_bytes = small_bytes
    for part, size_bytes in parts:
        if packs and to_spare > 0 and packed_bytes + size_bytes <= small_bytes:
            to_spare -= 1
            packed_bytes += size_bytes
            _extend(packs[-1], part)
        else:
            packs.append([part])
            packed_bytes = size_bytes
    return [tuple(pack) for pack in packs]


def _extend(ranges: list[QueueRange], part: QueueRange) -> None:
    last = ranges[-1]
    if (last.topic_id, last.queue, last.end) == (part.topic_id, part.queue, part.start):
        segments = _joined(last.segments, part.segments)
        ranges[-1] = replace(last, end=part.end, segments=segments)
    else:
        ranges.append(part)


def _joined(
    segments: tuple[SegmentRange, ...], more: tuple[SegmentRange, ...]
) -> tuple[SegmentRange, ...]:
    """Return both, with what lies in one segment as one range."""
    if segments and more and segments[-1].start_offset == more[0].start_offset:
        return (*segments[:-1], segments[-1].joined(more[0]), *more[1:])
    return (*segments, *more)
