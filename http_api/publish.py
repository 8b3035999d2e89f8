"""Publishing: a request's messages become rows or a batch for each queue, stored all or none.

Everything is checked before anything is stored, and before a topic is made for it. A message
goes to the queue it names, else to that of its key; those with neither go, together, to the
queue whose turn it is. Where a topic has levels of priority, that is done among the queues of
the message's level.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from time import time_ns

from aiohttp import hdrs

from holdfast.commitlog.batch import Batch, queue_for_key
from holdfast.commitlog.batch_check import MAX_TTL_MS, MessageLimits
from holdfast.commitlog.message_id import format_message_id
from holdfast.commitlog.priority import HIGHEST_PRIORITY, queue_of
from holdfast.commitlog.rows import Rows, as_batch
from holdfast.consumequeue.errors import UnknownTopic
from holdfast.consumequeue.message_store import Published
from holdfast.consumequeue.topics import Topic
from holdfast.http_api.access.door import lacks
from holdfast.http_api.binary import check_batches, decode_batches, with_queues
from holdfast.http_api.call import Call
from holdfast.http_api.codecs import (
    BATCH,
    JSON,
    MSGPACK,
    NDJSON,
    media_type,
)
from holdfast.http_api.context import ApiContext
from holdfast.http_api.incoming import (
    Incoming,
    check_messages,
    check_queues,
    from_json,
    from_lines,
    from_msgpack,
)
from holdfast.http_api.params import choice, invalid, text, whole
from holdfast.http_api.producer import Producer, refuse_producer, request_producer
from holdfast.http_api.reply import Reply
from holdfast.http_api.turns import Turn
from holdfast.http_api.types import PublishReply, PublishResult

#: A body above this is worked on in a thread: it would keep the loop for milliseconds. A
#: thread's turn costs about 0.1 ms.
TEXT_APART_BYTES = 128 * 1024
BINARY_APART_BYTES = 4 * 1024 * 1024

_TEXT_FORMATS: Mapping[str, Callable[[bytes, int], list[Incoming]]] = {
    JSON: from_json,
    NDJSON: from_lines,
    MSGPACK: from_msgpack,
}


@dataclass(frozen=True, slots=True)
class PublishParams:
    """Query of a publish. All but `durability` go with a raw body alone."""

    durability: str | None = choice(
        "Acknowledge after the sync (fsync) or once written; the topic's own if not given.",
        "fsync",
        "written",
    )
    queue: int | None = whole("A raw message's queue.", maximum=2**31 - 1)
    key: str | None = text("A raw message's key.")
    tag: str | None = text("A raw message's tag.")
    priority: int | None = whole(
        "A raw message's priority; 4 if not given.", maximum=HIGHEST_PRIORITY
    )
    ttl_ms: int | None = whole(
        "A raw message is too old for groups after so long.", minimum=1, maximum=MAX_TTL_MS
    )


async def publish(call: Call[PublishParams]) -> Reply:
    """Publish messages.

    The content type tells how they come: JSON, a message a line (NDJSON), msgpack, binary
    batches; anything else, or none, is one raw message. All of a request's messages are stored
    or none is; the results are in its order. An unknown topic is created unless
    auto_create_topics is off; a token must grant admin on it, too, for that.
    """
    name = call.name_of_topic()
    _check_creation(call, name)
    # Before the body is taken: where memory or room is short, it would take of that in vain.
    call.context.store.check_publishing()
    kind = media_type(call.headers.get(hdrs.CONTENT_TYPE, ""))
    if kind == BATCH:
        return call.reply(await _publish_batches(call, name))
    decode = _TEXT_FORMATS.get(kind)
    if decode is None:
        return call.reply(await _publish_raw(call, name))
    return call.reply(await _publish_text(call, name, decode))


async def _publish_text(
    call: Call[PublishParams], name: str, decode: Callable[[bytes, int], list[Incoming]]
) -> PublishReply:
    _refuse_raw_params(call.params)
    producer = request_producer(call.headers)
    body = bytes(await call.context.bodies.read(call.request))
    limit = call.context.config.max_messages_per_request
    if len(body) <= TEXT_APART_BYTES:
        return await _store(call, name, decode(body, limit), producer)
    # Made into messages a text takes many times its size: only so many are at once.
    with Turn(call.context.large_texts) as turn:
        await turn.begin()
        messages = await asyncio.to_thread(decode, body, limit)
        return await _store(call, name, messages, producer, turn)


async def _publish_raw(call: Call[PublishParams], name: str) -> PublishReply:
    params = call.params
    producer = request_producer(call.headers)
    body = bytes(await call.context.bodies.read(call.request))
    message = Incoming(
        body,
        params.key,
        params.tag,
        queue=params.queue,
        ttl_ms=params.ttl_ms,
        priority=params.priority,
    )
    return await _store(call, name, [message], producer)


_RAW_PARAMS = ("queue", "key", "tag", "priority", "ttl_ms")
_raw_values = attrgetter(*_RAW_PARAMS)


def _refuse_raw_params(params: PublishParams) -> None:
    for name, value in zip(_RAW_PARAMS, _raw_values(params), strict=True):
        if value is not None:
            raise invalid(
                name,
                value,
                f"{name} inside the messages",
                f"the parameter {name} goes with a raw body alone",
            )


async def _store(
    call: Call[PublishParams],
    name: str,
    messages: list[Incoming],
    producer: Producer | None,
    turn: Turn | None = None,
) -> PublishReply:
    """Store messages. Those of a large text come with its `turn`: they are worked on in a thread,
    and let go of, as is the turn, once they are batches."""
    context = call.context
    topic = _existing(context, name)
    limits = _limits(context, topic)
    queue_count, levels = _queue_count(context, topic), topic.priority_levels if topic else 1
    if turn is None:
        _check(messages, limits, name, queue_count, levels)
    else:
        await asyncio.to_thread(_check, messages, limits, name, queue_count, levels)
    topic = topic or await _created(call, name)
    indexes = _by_queue(messages, topic, _turn(context, topic, producer))
    count = len(messages)
    parts: Sequence[Batch | Rows]
    if turn is None:
        # Left as they are: the appender makes one batch of all that waits for a queue.
        parts = _rows_by_queue(messages, indexes, producer)
    else:
        parts = await asyncio.to_thread(_batches_by_queue, messages, indexes, producer)
        messages.clear()
        turn.end()
    published = await _publish(context, topic, parts, call.params.durability)
    results: dict[int, PublishResult] = {}
    for each, of_queue in zip(published, indexes.values(), strict=True):
        for offset, index in enumerate(of_queue, each.base_offset):
            results[index] = _result(topic, each.queue, offset)
    return _reply([results[index] for index in range(count)], published)


def _check(
    messages: Sequence[Incoming],
    limits: MessageLimits,
    topic_name: str,
    queue_count: int,
    levels: int,
) -> None:
    """Pass messages that a topic with these limits and queues takes. Raises Problem,
    UnknownQueue."""
    check_messages(messages, limits)
    check_queues(messages, topic_name, queue_count, levels)


async def _publish_batches(call: Call[PublishParams], name: str) -> PublishReply:
    context = call.context
    _refuse_raw_params(call.params)
    refuse_producer(call.headers)
    body = await context.bodies.read(call.request)
    topic = _existing(context, name)
    limits = _limits(context, topic)
    queue_count = _queue_count(context, topic)
    topic_id = topic.topic_id if topic is not None else None
    max_messages = context.config.max_messages_per_request

    def decode() -> list[Batch]:
        batches = decode_batches(body, max_messages)
        check_batches(batches, name, topic_id, queue_count, limits)
        return batches

    batches = decode() if len(body) <= BINARY_APART_BYTES else await asyncio.to_thread(decode)
    topic = topic or await _created(call, name)
    turn, levels = _turn(context, topic, None), topic.priority_levels
    batches = with_queues(batches, lambda: queue_of(turn(), None, levels))
    published = await _publish(context, topic, batches, call.params.durability)
    return _reply([_batch_result(topic, each) for each in published], published)


# -- topic, queue, batch -------------------------------------------------------------------


def _existing(context: ApiContext, name: str) -> Topic | None:
    """Return the topic, None when it is to be created. Raises UnknownTopic when it may not."""
    try:
        return context.store.topic(name)
    except UnknownTopic:
        if context.topics_config.auto_create_topics:
            return None
        raise


def _check_creation(call: Call[PublishParams], name: str) -> None:
    """Raise Denied for an unknown topic that this principal may not create."""
    try:
        call.context.store.topic(name)
    except UnknownTopic:
        may_create = call.principal.may(("admin",), name)
        if call.context.topics_config.auto_create_topics and not may_create:
            raise lacks(call.principal, ("admin",), topic=name) from None


async def _created(call: Call[PublishParams], name: str) -> Topic:
    _check_creation(call, name)
    context = call.context
    topic, is_new = await context.to_the_end(context.store.create_topic(name))
    if is_new and context.audit is not None:
        context.audit.record(
            "topic.create",
            name,
            principal=call.principal.name,
            client=call.request.remote,
            details={"by": "publish"},
        )
    return topic


def _limits(context: ApiContext, topic: Topic | None) -> MessageLimits:
    if topic is not None:
        return context.store.limits(topic)
    config = context.topics_config
    return MessageLimits(
        config.default_max_message_bytes,
        config.max_key_bytes,
        config.max_tag_bytes,
        config.max_properties_bytes,
    )


def _queue_count(context: ApiContext, topic: Topic | None) -> int:
    return topic.queue_count if topic is not None else context.topics_config.default_queues


def _turn(context: ApiContext, topic: Topic, producer: Producer | None) -> Callable[[], int]:
    """Return what picks the queue, among those of a level, for messages that leave it to the
    broker. A request that may be sent again must find its queue again."""
    if producer is not None:
        return lambda: (producer.producer_id + producer.sequence) % topic.queues_per_level
    return lambda: context.next_turn(topic) % topic.queues_per_level


def _by_queue(
    messages: Sequence[Incoming], topic: Topic, turn: Callable[[], int]
) -> dict[int, list[int]]:
    """Return the messages' indexes by queue, each list in the order of the request."""
    queues, levels = topic.queues_per_level, topic.priority_levels
    rows: dict[int, list[int]] = {}
    chosen: int | None = None
    for index, message in enumerate(messages):
        queue = message.queue
        if queue is None:
            if message.key is not None:
                queue = queue_for_key(message.key, queues)
            else:
                queue = chosen = turn() if chosen is None else chosen
            if levels > 1:
                queue = queue_of(queue, message.priority, levels)
        rows.setdefault(queue, []).append(index)
    return rows


def _rows_by_queue(
    messages: Sequence[Incoming], indexes: Mapping[int, list[int]], producer: Producer | None
) -> list[Rows]:
    now_us = time_ns() // 1000
    return [
        _rows([messages[index] for index in of_queue], queue, now_us, producer)
        for queue, of_queue in indexes.items()
    ]


def _batches_by_queue(
    messages: Sequence[Incoming], indexes: Mapping[int, list[int]], producer: Producer | None
) -> list[Batch]:
    now_us = time_ns() // 1000
    # One queue's rows at a time: as rows and as a batch they take twice the room.
    return [
        as_batch(_rows([messages[index] for index in of_queue], queue, now_us, producer))
        for queue, of_queue in indexes.items()
    ]


def _rows(messages: Sequence[Incoming], queue: int, now_us: int, producer: Producer | None) -> Rows:
    bodies, keys, tags, properties, _, ttls, _ = zip(*messages, strict=True)
    return Rows(
        queue,
        bodies,
        now_us,
        keys if any(keys) else None,
        tags if any(tags) else None,
        properties if any(properties) else None,
        [now_us + ttl * 1000 if ttl else 0 for ttl in ttls] if any(ttls) else None,
        producer.producer_id if producer else 0,
        producer.epoch if producer else 0,
        producer.sequence if producer else 0,
    )


# -- storing and answering -----------------------------------------------------------------


async def _publish(
    context: ApiContext, topic: Topic, batches: Sequence[Batch | Rows], durability: str | None
) -> list[Published]:
    published = await context.store.publish(topic, batches, durability=durability)
    counters = context.metrics.topic(topic.name)
    counters.messages_in += sum([each.count for each in published])
    counters.bytes_in += sum([batch.total_size for batch in batches])
    return published


def _result(topic: Topic, queue: int, offset: int) -> PublishResult:
    return PublishResult(queue, offset, format_message_id(topic.topic_id, queue, offset))


def _batch_result(topic: Topic, published: Published) -> PublishResult:
    result = _result(topic, published.queue, published.base_offset)
    result.count = published.count
    if published.duplicate:
        result.duplicate = True
    return result


_IS_DURABLE, _IS_DUPLICATE = attrgetter("durable"), attrgetter("duplicate")


def _reply(results: list[PublishResult], published: Sequence[Published]) -> PublishReply:
    return PublishReply(
        results,
        durable=all(map(_IS_DURABLE, published)),
        duplicate=all(map(_IS_DUPLICATE, published)),
    )
