"""A stream's offsets, one per queue, as Spark keeps them in the checkpoint. Pure.

    {"version": 1, "topics": {"orders": {"id": 7, "queues": {"0": 12, "1": 40}}}}

Each offset is that of the next message to read. A queue that is not listed did not exist yet; it is
read from its beginning. If a topic is deleted and created again, it has another id. Spark compares
these objects as text, so equal offsets always give equal texts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.log_files.descriptions import TopicState
from holdfast.log_files.ranges import OffsetRange
from holdfast.spark.errors import (
    CheckpointUnreadable,
    DataLost,
    GoneFromStream,
    SparkError,
    TopicRecreated,
)

VERSION = 1
#: The first offset to read in a queue that is new to the stream.
BEGINNING = 0


class QueueKey(NamedTuple):
    """One queue of one topic."""

    topic: str
    queue: int


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """A stream's offsets in one topic."""

    topic_id: int
    queues: Mapping[int, int]


StreamOffsets = Mapping[str, TopicOffsets]


def encode_offsets(offsets: StreamOffsets) -> dict[str, Any]:
    """Return the offsets in the form that Spark writes as JSON."""
    return {
        "version": VERSION,
        "topics": {
            name: {
                "id": topic.topic_id,
                "queues": {str(queue): offset for queue, offset in sorted(topic.queues.items())},
            }
            for name, topic in sorted(offsets.items())
        },
    }


def decode_offsets(value: Any) -> StreamOffsets:
    """Return the offsets of a checkpoint. Raises CheckpointUnreadable."""
    version = value.get("version") if isinstance(value, dict) else None
    if type(version) is not int:
        raise CheckpointUnreadable(value, "another source wrote them")
    if version != VERSION:
        reason = f"their version is {version}, this release of Holdfast reads {VERSION}"
        raise CheckpointUnreadable(value, reason)
    try:
        return {
            name: TopicOffsets(
                _check_offset(topic["id"]),
                {int(queue): _check_offset(offset) for queue, offset in topic["queues"].items()},
            )
            for name, topic in value["topics"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointUnreadable(value, f"they are damaged ({error!r})") from error


def _check_offset(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


def ranges_between(start: StreamOffsets, end: StreamOffsets) -> dict[str, dict[int, OffsetRange]]:
    """Return the ranges that a micro-batch reads: topic -> queue -> range. None of them is empty.
    The result depends only on the two offsets. The topic ids are those of `end`."""
    ranges = {}
    for name, topic in end.items():
        before = _known_offsets(start, name, topic.topic_id)
        found = {
            queue: OffsetRange(before.get(queue, BEGINNING), last)
            for queue, last in sorted(topic.queues.items())
            if before.get(queue, BEGINNING) < last
        }
        if found:
            ranges[name] = found
    return ranges


def _known_offsets(offsets: StreamOffsets, name: str, topic_id: int) -> Mapping[int, int]:
    """Return the offsets in the topic with this name and id. Return an empty mapping if `offsets`
    does not contain the topic, or has another id for it."""
    topic = offsets.get(name)
    return {} if topic is None or topic.topic_id != topic_id else topic.queues


def ranges_ahead(
    start: StreamOffsets, now: Mapping[str, TopicState]
) -> dict[QueueKey, OffsetRange]:
    """Return each queue's unread range, without lost messages. A range may be empty."""
    ahead = {}
    for name, topic in sorted(now.items()):
        before = _known_offsets(start, name, topic.topic_id)
        for queue, (low, high) in sorted(topic.queues.items()):
            first = max(before.get(queue, BEGINNING), low)
            ahead[QueueKey(name, queue)] = OffsetRange(min(first, high), high)
    return ahead


def find_losses(start: StreamOffsets, now: Mapping[str, TopicState]) -> Iterator[SparkError]:
    """Yield an error for each lost topic, queue or range that a stream at `start` needs."""
    for name, before in sorted(start.items()):
        topic = now.get(name)
        if topic is None:
            yield GoneFromStream(name, None)
        elif topic.topic_id != before.topic_id:
            yield TopicRecreated(name, before.topic_id, topic.topic_id)
        else:
            for queue in sorted(before.queues.keys() - topic.queues.keys()):
                yield GoneFromStream(name, queue)
    for name, topic in sorted(now.items()):
        known = _known_offsets(start, name, topic.topic_id)
        for queue, (low, high) in sorted(topic.queues.items()):
            first = known.get(queue, BEGINNING)
            if first < low:
                yield DataLost(name, queue, first, low, "trimmed by retention")
            elif first > high:
                yield DataLost(name, queue, high, first, "the queue ends before")


def advance(
    start: StreamOffsets, now: Mapping[str, TopicState], ends: Mapping[QueueKey, int]
) -> StreamOffsets:
    """Return the offsets of all queues that exist `now`, moved to `ends`. A new queue from which
    nothing was read is left out, so that it alone causes no micro-batch."""
    moved = {}
    for name, topic in now.items():
        known = _known_offsets(start, name, topic.topic_id)
        queues = {
            queue: ends[QueueKey(name, queue)]
            for queue in topic.queues
            if queue in known or ends[QueueKey(name, queue)] > BEGINNING
        }
        if queues or name in start:
            moved[name] = TopicOffsets(topic.topic_id, queues)
    return moved
