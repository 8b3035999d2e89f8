"""Topics and names: what they are and which are allowed. Pure."""

import re
from dataclasses import dataclass
from functools import lru_cache

from holdfast.consumequeue.errors import InvalidName, UnknownQueue

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,127}", re.ASCII)

#: The broker's own topic, in which topics and stored offsets are kept beside LMDB.
STATE_TOPIC_NAME = "__state"
STATE_TOPIC_ID = 0

QueueKey = tuple[int, int]
"""(topic id, queue id): one queue, wherever a name would be ambiguous."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """What may be changed of a topic. None: no such limit."""

    durability: str
    retention_ms: int | None
    retention_bytes: int | None
    max_message_bytes: int


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. The id is never used again, so a topic made anew under a name is another."""

    name: str
    topic_id: int
    queue_count: int
    """Queues of the log: those of all levels."""
    config: TopicConfig
    created_timestamp_ms: int
    priority_levels: int = 1
    """Levels of priority, for ever: queue q is `index * priority_levels + level`."""

    @property
    def queues_per_level(self) -> int:
        """How many queues share the messages of one level: what keys are spread over."""
        return self.queue_count // self.priority_levels


@lru_cache(1024)
def check_name(kind: str, name: str, *, own: bool = False) -> str:
    """Return `name` if it may name a `kind` ("topic" or "group").

    Raises InvalidName; names that begin with "__" pass only with `own`.
    """
    if not _NAME.fullmatch(name) or name in {".", ".."} or (name.startswith("__") and not own):
        raise InvalidName(kind, name)
    return name


def check_queue(topic: Topic, queue: int) -> None:
    """Raise UnknownQueue unless the topic has this queue."""
    if not 0 <= queue < topic.queue_count:
        raise UnknownQueue(topic.name, queue, topic.queue_count)
