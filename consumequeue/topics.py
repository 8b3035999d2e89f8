"""Topics and their settings, and the check of names. Pure."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from holdfast.consumequeue.errors import InvalidName, UnknownQueue

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,127}", re.ASCII)

#: The broker's own topic. It holds a copy of the topics and stored offsets, which are in LMDB.
STATE_TOPIC_NAME = "__state"
STATE_TOPIC_ID = 0

QueueKey = tuple[int, int]
"""(topic id, queue id). It identifies one queue for ever, because topic ids are never reused."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings of a topic that can be changed. If a limit is None, there is no limit."""

    durability: str
    retention_ms: int | None
    retention_bytes: int | None
    max_message_bytes: int
    max_bytes: int | None = None
    """A publish is refused if the topic's queues together would become larger than this."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. Ids are never reused: a topic created again with the same name has a new id."""

    name: str
    topic_id: int
    queue_count: int
    """The number of queues in the log, of all priority levels together."""
    config: TopicConfig
    created_timestamp_ms: int
    priority_levels: int = 1
    """Number of priority levels; never changes. Queue id = index * priority_levels + level."""
    former_queue_counts: tuple[int, ...] = ()
    """Earlier values of queue_count, newest first. A repeated publish uses them to find the queues
    of its first try."""

    @property
    def queues_per_level(self) -> int:
        """The number of queues of each level: keys are partitioned over them."""
        return self.queue_count // self.priority_levels


class QueueState(NamedTuple):
    """Where a queue begins and ends. `bytes` is the stored size from min_offset to max_offset."""

    queue: int
    min_offset: int
    max_offset: int
    bytes: int
    newest_timestamp_us: int | None


def is_own(name: str) -> bool:
    """Return whether only the broker may use this name of a topic or group."""
    return name.startswith("__")


@lru_cache(1024)
def check_name(kind: str, name: str, *, own: bool = False) -> str:
    """Return `name` if it is allowed as the name of a `kind` ("topic" or "group").

    Otherwise raise InvalidName. Names that begin with "__" are allowed only with `own`.
    """
    if not _NAME.fullmatch(name) or name in {".", ".."} or (is_own(name) and not own):
        raise InvalidName(kind, name)
    return name


def check_queue(topic: Topic, queue: int) -> None:
    """Raise UnknownQueue unless the topic has this queue."""
    if not 0 <= queue < topic.queue_count:
        raise UnknownQueue(topic.name, queue, topic.queue_count)
