"""Topics: create, change, describe, list and delete them."""

from bisect import bisect_right
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from holdfast.consumequeue.errors import KeyedBacklog
from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.slices import ITEMS_A_TURN, in_slices
from holdfast.consumequeue.topics import QueueState, Topic
from holdfast.http_api.access.grants import GROUP_VERBS, TOPIC_VERBS
from holdfast.http_api.endpoints.read_leases import describe_read_leases
from holdfast.http_api.routing.call import Call, NoParams
from holdfast.http_api.routing.params import text, whole
from holdfast.http_api.schemas.messages import (
    DeletedReply,
    Durability,
    QueueStateReply,
    TopicConfigReply,
    TopicReply,
    TopicSettings,
    TopicsReply,
    TopicSummary,
)
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.reply import Reply


@dataclass(frozen=True, slots=True)
class PageParams:
    """The query of a request for a page of a list."""

    limit: int = whole(
        "Most items on the page.", minimum=1, maximum="max_page_size", default="page_size"
    )
    after: str | None = text("Begin after this name: the `next` of the previous page.")


@dataclass(frozen=True, slots=True)
class DeleteParams:
    """The query of a request that deletes a topic."""

    confirm: str | None = text("The topic's name again, to confirm the deletion.", required=True)


async def put_topic(call: Call[NoParams]) -> Reply:
    """Create a topic, or check that an existing topic has the given settings.

    The status is 201 for a new topic, 200 if the topic already exists with the given settings, and
    409 if one of its settings differs. Settings that are not given are not compared.
    """
    name = call.name_of_topic()
    settings = await call.body(TopicSettings)
    topic, is_new = await call.context.run_shielded(
        call.context.store.topics.create(name, **settings.as_arguments())
    )
    return await _reply(call, topic, status=201 if is_new else 200)


async def patch_topic(call: Call[NoParams]) -> Reply:
    """Change a topic's retention, durability and limits, or add queues.

    `priority_levels` cannot be changed: a value other than the topic's gives the status 409. Adding
    queues also gives 409 while a keyed group has unsettled messages of the topic, because keys
    would move to other queues.
    """
    name = call.name_of_topic()
    settings = await call.body(TopicSettings)
    try:
        topic = await call.context.run_shielded(
            call.context.store.topics.change(name, **settings.as_arguments())
        )
    except KeyedBacklog as error:
        may = call.principal.may
        seen = [group for group in error.groups if may(GROUP_VERBS, name, group)]
        raise KeyedBacklog(name, seen) from error
    return await _reply(call, topic)


async def get_topic(call: Call[NoParams]) -> Reply:
    """Describe a topic and its queues."""
    return await _reply(call, call.topic())


async def list_topics(call: Call[PageParams]) -> Reply:
    """List topics by name, one page at a time.

    The list leaves out topics on which the token grants nothing.
    """
    topics, limit = call.context.store.table.listed(), call.params.limit
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
    """Delete a topic with its messages and the offsets that groups have stored for it.

    Deleting cannot be undone, so `confirm` must repeat the name.
    """
    topic = call.topic()
    if call.params.confirm != topic.name:
        raise Problem(
            "confirm-required",
            f"deleting {topic.name!r} cannot be undone; add ?confirm={topic.name}",
            parameter="confirm",
            allowed=topic.name,
        )
    await call.context.run_shielded(call.context.store.topics.delete(topic.name))
    call.context.forget_topic(topic)
    return call.reply(DeletedReply(topic.name, topic.topic_id))


async def _reply(call: Call[Any], topic: Topic, status: int = 200) -> Reply:
    """Return a reply that describes a topic.

    For a topic with many queues, wait in `wide_requests` first, because the states of the queues
    stay in memory over many event loop iterations.
    """
    context, is_wide = call.context, topic.queue_count > ITEMS_A_TURN
    async with context.wide_requests.place(call.client) if is_wide else nullcontext():
        reply = TopicReply(
            topic.name,
            topic.topic_id,
            topic.queue_count,
            topic.created_timestamp_ms,
            [_queue(state) for state in await states_of(context.store, topic)],
            _config(topic),
            describe_read_leases(context, topic),
        )
        return call.reply(reply, status=status)


async def states_of(store: MessageStore, topic: Topic) -> list[QueueState]:
    """Return the state of each queue of a topic.

    The states are read over several event loop iterations, so they are not a consistent snapshot.
    """
    states = []
    async for queues in in_slices(range(topic.queue_count)):
        states += [store.reading.queue_state(topic, queue) for queue in queues]
    return states


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
    if config.max_bytes is not None:
        reply.max_bytes = config.max_bytes
    return reply
