"""The results of requests about messages, except the messages themselves. Pure."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from holdfast.client.read.message import Message


class PublishResult(NamedTuple):
    """Where a message was stored. `durable` is True if the message was synced to disk before the
    broker replied."""

    queue: int
    offset: int
    message_id: str
    durable: bool


@dataclass(frozen=True, slots=True)
class StoredOffsets:
    """A group's offsets on a topic: the next offset to read of each queue. `etag` is None if no
    offset is stored."""

    offsets: dict[int, int]
    etag: str | None


class Skipped(NamedTuple):
    """A range of offsets, from `start_offset` (inclusive) to `end_offset` (exclusive), that was
    skipped because its messages are damaged or no longer exist."""

    queue: int
    start_offset: int
    end_offset: int


class PullResult(NamedTuple):
    """The reply to one pull. `next_offset` is the offset for the next pull; `min_offset` is the
    queue's first offset, and `max_offset` is the offset that the next stored message will get."""

    messages: "list[Message]"
    next_offset: int
    min_offset: int
    max_offset: int
    skipped: tuple[Skipped, ...] = ()
