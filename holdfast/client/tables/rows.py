"""Rows of one queue, as a source fetches them, before they become a record batch. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.client.read.message import MessageList
from holdfast.commitlog.format.batch_run import BatchRun


@dataclass(frozen=True, slots=True)
class SourceQueue:
    """The queue of some rows, and facts about its topic. `priority_levels` is None if the topic has
    no priorities."""

    topic: str
    topic_id: int
    queue: int
    priority_levels: int | None


@dataclass(frozen=True, slots=True)
class BlockRows:
    """The messages with offsets in [start, end) of consecutive blocks of a queue. If `tags` is not
    empty, only those with one of these tags."""

    blocks: BatchRun
    start: int
    end: int
    tags: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class FetchedRows:
    """Rows of one queue, in order of their offsets. Messages that the broker's filter has
    selected come as single messages, all others in blocks."""

    queue: SourceQueue
    parts: Sequence[BlockRows | MessageList]
