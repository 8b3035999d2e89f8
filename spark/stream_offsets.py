"""How far a stream is: an offset for each queue, as Spark keeps it in the checkpoint. Pure.

    {"version": 1, "topics": {"orders": {"id": 7, "queues": {"0": 12, "1": 40}}}}

An offset is the next to be read. A queue that is not named was not there yet: it is read from
its beginning. The topic's id tells a topic from another that was made again under its name.
Spark compares these objects by their text, so the same offsets always give the same text.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.spark.catalog import TopicState
from holdfast.spark.errors import (
    CheckpointUnreadable,
    DataLost,
    GoneFromStream,
    SparkError,
    TopicRecreated,
)
from holdfast.spark.offsets import OffsetRange

VERSION = 1
#: Where a queue is read from that a stream did not know before.
BEGINNING = 0


class QueueKey(NamedTuple):
    """One queue of one topic."""

    topic: str
    queue: int


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """How far a stream is in one topic."""

    topic_id: int
    queues: Mapping[int, int]


StreamOffsets = Mapping[str, TopicOffsets]


def encode_offsets(offsets: StreamOffsets) -> dict[str, Any]:
    """Return what Spark writes as JSON."""
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
    """Return the offsets in a checkpoint. Raises CheckpointUnreadable."""
    version = value.get("version") if isinstance(value, dict) else None
    if type(version) is not int:
        raise CheckpointUnreadable(value, "it was not written by this source")
    if version != VERSION:
        raise CheckpointUnreadable(
            value, f"its version is {version}, this release of Holdfast reads {VERSION}"
        )
    try:
        return {
            name: TopicOffsets(
                _whole(topic["id"]),
                {int(queue): _whole(offset) for queue, offset in topic["queues"].items()},
            )
            for name, topic in value["topics"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointUnreadable(value, f"it is damaged ({error!r})") from error


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


def ranges_between(start: StreamOffsets, end: StreamOffsets) -> dict[str, dict[int, OffsetRange]]:
    """Return what a micro-batch reads: topic -> queue -> range, none of them empty.

    The same for the same two offsets, whatever has happened since. The ids of the topics are
    those of `end`.
    """
    ranges = {}
    for name, topic in end.items():
        before = _known(start, name, topic.topic_id)
        found = {
            queue: OffsetRange(before.get(queue, BEGINNING), last)
            for queue, last in sorted(topic.queues.items())
            if before.get(queue, BEGINNING) < last
        }
        if found:
            ranges[name] = found
    return ranges


def _known(offsets: StreamOffsets, name: str, topic_id: int) -> Mapping[int, int]:
    """Return the offsets in that very topic; none for one of another id."""
    topic = offsets.get(name)
    return {} if topic is None or topic.topic_id != topic_id else topic.queues


def ranges_ahead(
    start: StreamOffsets, now: Mapping[str, TopicState]
) -> dict[QueueKey, OffsetRange]:
    """Return what each queue holds beyond `start`; what is lost is left out, may be empty."""
    ahead = {}
    for name, topic in sorted(now.items()):
        before = _known(start, name, topic.topic_id)
        for queue, (low, high) in sorted(topic.queues.items()):
            first = max(before.get(queue, BEGINNING), low)
            ahead[QueueKey(name, queue)] = OffsetRange(min(first, high), high)
    return ahead


def losses(start: StreamOffsets, now: Mapping[str, TopicState]) -> Iterator[SparkError]:
    """Yield what of `start` and beyond it is not there any more."""
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
        known = _known(start, name, topic.topic_id)
        for queue, (low, high) in sorted(topic.queues.items()):
            first = known.get(queue, BEGINNING)
            if first < low:
                yield DataLost(name, queue, first, low, "trimmed by retention")
            elif first > high:
                yield DataLost(name, queue, high, first, "the queue ends before")


def advanced(
    start: StreamOffsets, now: Mapping[str, TopicState], ends: Mapping[QueueKey, int]
) -> StreamOffsets:
    """Return the offsets of all queues there are `now`, moved to `ends`.

    A queue that is new and of which nothing was read stays unnamed, so that it makes no
    micro-batch by itself.
    """
    moved = {}
    for name, topic in now.items():
        known = _known(start, name, topic.topic_id)
        queues = {
            queue: ends[QueueKey(name, queue)]
            for queue in topic.queues
            if queue in known or ends[QueueKey(name, queue)] > BEGINNING
        }
        if queues or name in start:
            moved[name] = TopicOffsets(topic.topic_id, queues)
    return moved
