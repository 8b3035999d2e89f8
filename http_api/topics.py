"""Topics: create, ensure, change, list, describe, delete."""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import islice
from typing import cast

from holdfast.consumequeue.message_store import QueueState
from holdfast.consumequeue.topics import Topic
from holdfast.http_api.access.grants import TOPIC_VERBS
from holdfast.http_api.call import Call, NoParams
from holdfast.http_api.context import ApiContext
from holdfast.http_api.params import text, whole
from holdfast.http_api.problems import Problem
from holdfast.http_api.read_leases import pinned_of
from holdfast.http_api.reply import Reply
from holdfast.http_api.types import (
    DeletedReply,
    Durability,
    QueueStateReply,
    TopicConfigReply,
    TopicReply,
    TopicSettings,
    TopicsReply,
    TopicSummary,
)


@dataclass(frozen=True, slots=True)
class PageParams:
    """Query of a listing."""

    limit: int = whole(
        "Most items of the page.", minimum=1, maximum="max_page_size", default="page_size"
    )
    after: str | None = text("Begin after this name: the `next` of the page before.")


@dataclass(frozen=True, slots=True)
class DeleteParams:
    """Query of a deletion."""

    confirm: str | None = text("The topic's name once more.", required=True)


async def put_topic(call: Call[NoParams]) -> Reply:
    """Create a topic, or ensure that it is as given.

    201 when it is new, 200 when it was there already; 409 when a field that is given differs.
    Fields that are not given are not compared.
    """
    name = call.name_of_topic()
    settings = await call.body(TopicSettings)
    topic, is_new = await call.context.to_the_end(
        call.context.store.create_topic(
            name,
            queues=settings.queue_count(),
            priority_levels=settings.level_count(),
            fields=settings.fields(),
        )
    )
    return call.reply(_described(call.context, topic), status=201 if is_new else 200)


async def patch_topic(call: Call[NoParams]) -> Reply:
    """Change a topic's retention, durability and limits; queues can be added.

    `priority_levels` cannot be changed: a value other than the topic's is a 409.
    """
    name = call.name_of_topic()
    settings = await call.body(TopicSettings)
    topic = await call.context.to_the_end(
        call.context.store.change_topic(
            name,
            queues=settings.queue_count(),
            priority_levels=settings.level_count(),
            fields=settings.fields(),
        )
    )
    return call.reply(_described(call.context, topic))


async def get_topic(call: Call[NoParams]) -> Reply:
    """Describe a topic and its queues."""
    topic = call.topic()
    return call.reply(_described(call.context, topic))


async def list_topics(call: Call[PageParams]) -> Reply:
    """List topics by name, a page at a time.

    Those that the token grants nothing on are left out.
    """
    topics, limit = call.context.store.topics(), call.params.limit
    first = bisect_right(topics, call.params.after or "", key=lambda topic: topic.name)
    seen = (
        topic
        for topic in islice(topics, first, None)
        if call.principal.may(TOPIC_VERBS, topic.name)
    )
    found = list(islice(seen, limit + 1))
    page, is_last = found[:limit], len(found) <= limit
    reply = TopicsReply(
        [
            TopicSummary(
                topic.name,
                topic.topic_id,
                topic.queue_count,
                topic.created_timestamp_ms,
                _config(topic),
            )
            for topic in page
        ],
        None if is_last else page[-1].name,
    )
    return call.reply(reply)


async def delete_topic(call: Call[DeleteParams]) -> Reply:
    """Delete a topic with its messages and the offsets that groups stored for it.

    Cannot be undone, so `confirm` has to repeat the name.
    """
    topic = call.topic()
    if call.params.confirm != topic.name:
        raise Problem(
            "confirm-required",
            f"deleting {topic.name!r} cannot be undone; add ?confirm={topic.name}",
            parameter="confirm",
            allowed=topic.name,
        )
    await call.context.to_the_end(call.context.store.delete_topic(topic.name))
    call.context.forget_topic(topic)
    return call.reply(DeletedReply(topic.name, topic.topic_id))


def _described(context: ApiContext, topic: Topic) -> TopicReply:
    return TopicReply(
        topic.name,
        topic.topic_id,
        topic.queue_count,
        topic.created_timestamp_ms,
        [_queue(state) for state in context.store.queue_states(topic)],
        _config(topic),
        pinned_of(context, topic),
    )


def _queue(state: QueueState) -> QueueStateReply:
    newest_us = state.newest_timestamp_us
    return QueueStateReply(
        state.queue,
        state.min_offset,
        state.max_offset,
        state.bytes,
        None if newest_us is None else newest_us // 1000,
    )


def _config(topic: Topic) -> TopicConfigReply:
    config = topic.config
    reply = TopicConfigReply(
        cast(Durability, config.durability),
        config.retention_ms,
        config.retention_bytes,
        config.max_message_bytes,
    )
    if topic.priority_levels > 1:
        reply.priority_levels = topic.priority_levels
    return reply
