"""What a client must know of a topic before it reads or publishes."""

import msgspec

from holdfast.client.transport.requests import Transport, check_name
from holdfast.client.transport.retry import RetryPolicy


class QueueBounds(msgspec.Struct):
    """A queue in a topic's description."""

    queue: int
    min_offset: int
    max_offset: int


class TopicLimits(msgspec.Struct):
    """The part of a topic's configuration that a client needs. Messages with the same key are
    stored in `priority_levels` queues, one per level."""

    max_message_bytes: int
    priority_levels: int = 1


class TopicFacts(msgspec.Struct):
    """The part of a topic's description that a client needs."""

    topic_id: int
    queue_count: int
    queues: list[QueueBounds]
    config: TopicLimits


async def fetch_facts(
    transport: Transport, topic: str, retry: RetryPolicy | None = None
) -> TopicFacts:
    """Return the queues and limits of a topic. `retry` replaces the transport's policy. Raises
    ValueError for an invalid topic name, UnknownTopic, and the other errors of a request."""
    reply = await transport.request("GET", f"/v1/topics/{check_name('topic', topic)}", retry=retry)
    return reply.json(TopicFacts)
