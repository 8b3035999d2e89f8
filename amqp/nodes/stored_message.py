"""Reads one stored message again, by its offset.

A link does not keep messages that it cannot send now. It keeps their offsets, and reads them again.
"""

from typing import NamedTuple

from holdfast.commitlog.format.batch import Batch
from holdfast.consumequeue.errors import StoreError
from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.topics import Topic
from holdfast.groups.service_types import Receipt


class Unsent(NamedTuple):
    """A message that waits until it can be sent (again)."""

    topic: Topic
    queue: int
    offset: int
    attempt: int = 1
    failures: int = 0
    receipt: Receipt | None = None
    """The lease of the message; None if it was acknowledged."""


def topic_to_show(topic: Topic, group: str) -> str | None:
    """Return the topic's name for the annotation x-opt-topic of a message of a group. Return None
    if the group has the same name: then the address of the link says which topic it is."""
    return None if topic.name == group else topic.name


async def read_message(
    store: MessageStore, topic: Topic, queue: int, offset: int
) -> tuple[Batch, int] | None:
    """Return the batch and the row of a message; None if it cannot be read any more."""
    try:
        found = await store.reading.read(topic, queue, offset, max_messages=1, max_bytes=1)
    except StoreError:
        return None
    for part in found.slices:
        return part.batch, int(part.rows[0])
    return None
