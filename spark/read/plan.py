"""Fix the offsets of a read, and divide the read among tasks. Runs on the driver.

`bind_topics` resolves the options to fixed offsets of fixed topics, so that messages published
later do not change the read. `plan_partitions` cuts these ranges at block borders into parts of
similar size, and combines small parts.
"""

import logging
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from holdfast.log_files.descriptions import Split, TopicState
from holdfast.log_files.ranges import OffsetRange, join_segments
from holdfast.spark.broker.catalog import Catalog, LiveCatalog, OutOfRange
from holdfast.spark.errors import BrokerRefused, DataLost, InvalidOption, TopicRecreated
from holdfast.spark.options.offsets import (
    AtTime,
    AtTimes,
    ByQueue,
    OffsetSpec,
    PlanLease,
    QueueRange,
    StoredByGroup,
    resolve_ranges,
)
from holdfast.spark.options.read import ReadOptions

_log = logging.getLogger("holdfast.spark")

#: A topic is cut into at least this many parts, unless minPartitions is given.
_DEFAULT_SPLITS = 8
#: Smaller parts are combined into one task, because every task costs about 10 ms.
_SMALL_TASK_BYTES = 4 * 1024 * 1024
_PLAN_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class BoundTopic:
    """One topic, with its id, and the range of each queue to read. Some ranges may be empty."""

    name: str
    topic_id: int
    ranges: Mapping[int, OffsetRange]
    priority_levels: int | None = None


def bind_topics(catalog: Catalog, options: ReadOptions) -> tuple[BoundTopic, ...]:
    """Resolve the options to fixed offsets, from the current state of the topics. Raises
    InvalidOption for options that do not fit the topics, DataLost for a trimmed start, and
    TopicRecreated for a topic with another id than topicIds gives."""
    names = require_topics(catalog, options)
    for option, spec in (("startingOffsets", options.start), ("endingOffsets", options.end)):
        for name in spec.by_topic if isinstance(spec, ByQueue) else ():
            if name is not None and name not in names:
                raise InvalidOption(option, f"names topic {name!r}, which is not read")
    return tuple(_bind_topic(catalog, options, name) for name in names)


def require_topics(catalog: Catalog, options: ReadOptions) -> tuple[str, ...]:
    """Return the names of the topics to read now. Raises InvalidOption if there is none."""
    names = match_topics(catalog, options)
    if not names:
        raise InvalidOption("subscribePattern", f"no topic matches {options.pattern!r} as a whole")
    return names


def match_topics(catalog: Catalog, options: ReadOptions) -> tuple[str, ...]:
    """Return the names of the topics to read now; empty if no topic matches a pattern."""
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
        topic = _restrict_to_queues(topic, options.assigned[name])
    ranges = resolve_ranges(
        name,
        topic.queues,
        options.start,
        options.end,
        start_lookup=_look_up_offsets(catalog, "startingOffsets", options.start, topic),
        end_lookup=_look_up_offsets(catalog, "endingOffsets", options.end, topic),
        fail_on_data_loss=options.fail_on_data_loss,
    )
    return BoundTopic(name, topic.topic_id, ranges, topic.priority_levels)


def _restrict_to_queues(topic: TopicState, queues: Iterable[int]) -> TopicState:
    for queue in queues:
        if queue not in topic.queues:
            raise InvalidOption("assign", f"topic {topic.name!r} has no queue {queue}")
    return replace(topic, queues={queue: topic.queues[queue] for queue in sorted(queues)})


def _look_up_offsets(
    catalog: Catalog, option: str, spec: OffsetSpec, topic: TopicState
) -> Mapping[int, int]:
    """Return queue -> the offset that a group has stored, or the offset at a time. If `spec` is
    neither a group nor a time, return an empty mapping. Raises InvalidOption if the group does not
    exist, or if a queue has no message at or after the time and the options demand one."""
    match spec:
        case StoredByGroup(group):
            stored = catalog.stored_offsets(group, topic.name)
            if stored is None:
                raise InvalidOption(
                    option,
                    f"there is no group {group!r}; give offsets, or use holdfast.spark.bind, which "
                    "creates the group",
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
                f"{times[queue]}; give an earlier time, or set "
                "startingOffsetsByTimestampStrategy=latest to read nothing of the queue",
            )
    return found


def plan_partitions(
    catalog: Catalog, options: ReadOptions, topics: Iterable[BoundTopic]
) -> list[tuple[QueueRange, ...]]:
    """Return the ranges of each task: at least one per task, in order of topic, queue and offset.

    If part of a range is no longer stored, raises DataLost; without failOnDataLoss, skips that part
    and logs it. Raises TopicRecreated if a topic was deleted and created again. Every range has the
    leases of the whole plan. After an error, all leases are released.
    """
    parts = []
    lease_ids: dict[tuple[str, str], None] = {}
    taken_at_s = time.time()
    with ExitStack() as on_error:
        on_error.callback(release_leases, catalog, lease_ids)
        for topic in topics:
            for split in _split_topic(catalog, options, topic):
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
        on_error.pop_all()
    if lease_ids:
        lease = PlanLease(tuple(lease_ids), options.lease_ms, taken_at_s)
        parts = [(replace(part, lease=lease), size_bytes) for part, size_bytes in parts]
    return pack_parts(
        parts,
        at_least=options.min_partitions or 1,
        small_bytes=min(_SMALL_TASK_BYTES, options.max_bytes_per_partition),
    )


def release_leases(catalog: Catalog, leases: Iterable[tuple[str, str]]) -> None:
    """Release a plan's leases, (topic, id) each. Raises nothing."""
    if isinstance(catalog, LiveCatalog):
        catalog.release_leases(leases)


def _split_topic(catalog: Catalog, options: ReadOptions, topic: BoundTopic) -> list[Split]:
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
            ranges = _trim_to_stored(
                catalog.describe(topic.name), topic, ranges, options.fail_on_data_loss
            )
    raise AssertionError("unreachable")


def _trim_to_stored(
    now: TopicState, topic: BoundTopic, ranges: Mapping[int, OffsetRange], fail_on_data_loss: bool
) -> dict[int, OffsetRange]:
    """Return the parts of the ranges that are still stored, and log the lost parts. With
    `fail_on_data_loss`, raise DataLost for the first lost part. Raises TopicRecreated."""
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


def pack_parts(
    parts: Iterable[tuple[QueueRange, int]], *, at_least: int, small_bytes: int
) -> list[tuple[QueueRange, ...]]:
    """Combine neighbouring parts into packs of at most `small_bytes`, and return the packs.

    `parts` has each part with its size in bytes. A part above `small_bytes` is a pack of its own.
    If there are at least `at_least` parts, there are at least `at_least` packs. In a pack, adjacent
    parts of one queue become one range.
    """
    parts = list(parts)
    to_spare = len(parts) - at_least
    packs: list[list[QueueRange]] = []
    packed_bytes = small_bytes
    for part, size_bytes in parts:
        if packs and to_spare > 0 and packed_bytes + size_bytes <= small_bytes:
            to_spare -= 1
            packed_bytes += size_bytes
            _append_part(packs[-1], part)
        else:
            packs.append([part])
            packed_bytes = size_bytes
    return [tuple(pack) for pack in packs]


def _append_part(ranges: list[QueueRange], part: QueueRange) -> None:
    last = ranges[-1]
    if (last.topic_id, last.queue, last.end) == (part.topic_id, part.queue, part.start):
        segments = join_segments(last.segments, part.segments)
        ranges[-1] = replace(last, end=part.end, segments=segments)
    else:
        ranges.append(part)
