"""What a catalog knows of a topic: its queues, the offsets of a group, and its parts. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.log_files.ranges import QueueState, SegmentRange


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as it is now. `priority_levels` is None if the topic has no priorities."""

    name: str
    topic_id: int
    queues: Mapping[int, QueueState]
    priority_levels: int | None


@dataclass(frozen=True, slots=True)
class StoredOffsets:
    """A group's offsets in one topic, by queue; `etag` is their version."""

    offsets: Mapping[int, int]
    etag: str


#: The offsets of a group that does not exist or has stored nothing.
NO_STORED_OFFSETS = StoredOffsets({}, etag='"0"')


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a queue that one task may read, cut at block borders. `segments` are its ranges in
    the segment files, if they are known. `lease_id` is the read lease that protects it from
    retention, or None."""

    queue: int
    start: int
    end: int
    size_bytes: int
    segments: tuple[SegmentRange, ...] = ()
    lease_id: str | None = None
