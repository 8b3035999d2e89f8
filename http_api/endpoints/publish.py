"""Publish: store all messages of a request, or none of them.

The whole request is checked before any message is stored, and before a topic is created for it. A
message is stored in the queue that it names, or else in the queue of its key. All messages of a
request that have neither queue nor key are stored in one queue, which is chosen round-robin. If the
topic has priority levels, the queue is one of the queues of the message's level.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from time import time_ns
from typing import TypeVar

from holdfast.commitlog.append.appender import AppendResult
from holdfast.commitlog.errors import RoutedOtherwise
from holdfast.commitlog.format.batch import Batch, queue_for_key
from holdfast.commitlog.format.batch_check import MAX_TTL_MS, MessageLimits
from holdfast.commitlog.format.batch_encoding import Rows, as_batch
from holdfast.commitlog.format.message_id import format_message_id
from holdfast.commitlog.format.priority import HIGHEST_PRIORITY, queue_of
from holdfast.consumequeue.errors import TopicFull
from holdfast.consumequeue.thread_calls import call_in_thread
from holdfast.consumequeue.topics import Topic
from holdfast.groups.serving.unroutable import find_unroutable, is_quick
from holdfast.http_api.access.authorization import check_may_create
from holdfast.http_api.endpoints.publish_batches import (
    check_batches,
    decode_batches,
    fill_queues,
    is_slow_to_decode,
)
from holdfast.http_api.endpoints.publish_request import (
    MessageToStore,
    Producer,
    check_messages,
    check_queues,
    from_json,
    from_lines,
    from_msgpack,
    refuse_producer,
    request_producer,
    too_many_batches,
)
from holdfast.http_api.limits.reply_slots import LargeReplySlot
from holdfast.http_api.routing.begun import finish
from holdfast.http_api.routing.call import Call
from holdfast.http_api.routing.codecs import (
    BATCH,
    FORM,
    JSON,
    MSGPACK,
    NDJSON,
    encode_elements,
    encode_listing,
    media_type,
)
from holdfast.http_api.routing.context import ApiContext
from holdfast.http_api.routing.params import choice, flag, invalid, text, whole
from holdfast.http_api.schemas.messages import PublishReply, PublishResult
from holdfast.http_api.wire.aiohttp_parser import hdrs
from holdfast.http_api.wire.problems import Problem, request_too_large
from holdfast.http_api.wire.reply import Reply

_Answer = TypeVar("_Answer")

#: A larger text body is processed in a thread, because it would block the event loop for
#: milliseconds. Using a thread costs about 0.1 ms.
OFFLOAD_TEXT_BYTES = 128 * 1024
#: At most this many results of a large text are encoded by one call.
RESULTS_PER_CALL = 1000
#: A comparison of mandatory messages with filters that takes longer is done in a thread.
MATCHED_ON_LOOP_US = 1000

_TEXT_FORMATS: Mapping[str, Callable[[bytes, int], list[MessageToStore]]] = {
    JSON: from_json,
    NDJSON: from_lines,
    MSGPACK: from_msgpack,
}
#: The beginning of a JSON publish request. A body that begins like this cannot be a form.
_LOOKS_LIKE_A_REQUEST = re.compile(rb'\s*\{\s*"messages"\s*:\s*\[')


@dataclass(frozen=True, slots=True)
class PublishParams:
    """The query of a publish. All parameters except `durability` and `mandatory` are only for a raw
    body."""

    durability: str | None = choice(
        "Acknowledge after the sync (fsync) or after the write (written). If not given, the "
        "topic's setting applies.",
        "fsync",
        "written",
    )
    mandatory: bool = flag(
        "Refuse the request, and store nothing, if no group would get one of its messages."
    )
    queue: int | None = whole("A raw message's queue.", maximum=2**31 - 1)
    key: str | None = text("A raw message's key.")
    tag: str | None = text("A raw message's tag.")
    priority: int | None = whole(
        "A raw message's priority; 4 if not given.", maximum=HIGHEST_PRIORITY
    )
    ttl_ms: int | None = whole(
        "How long groups may deliver a raw message, in milliseconds.", minimum=1, maximum=MAX_TTL_MS
    )


async def publish(call: Call[PublishParams]) -> Reply:
    """Publish messages.

    The content type determines the format: JSON (a list of `messages`, or a single message), NDJSON
    (one message per line), msgpack, or binary batches. With any other content type, or none, the
    body is one raw message. Exception: the broker refuses JSON with `messages` whose content type
    is that of a form. Either all messages of a request are stored, or none. The results have the
    order of the request. An unknown topic is created unless auto_create_topics is off; the token
    must then also grant admin on the topic.
    """
    begun = begin_publish(call)
    if begun is not None:
        return await finish(begun)
    name = call.name_of_topic()
    _check_creation(call, name)
    _admit(call)
    kind = media_type(call.headers.get(hdrs.CONTENT_TYPE, ""))
    if kind == BATCH:
        return call.reply(await _publish_batches(call, name))
    decode = _TEXT_FORMATS.get(kind)
    if decode is None:
        return call.reply(await _publish_raw(call, name, kind))
    return await _publish_text(call, name, decode)


def begin_publish(call: Call[PublishParams]) -> "BegunPublish | None":
    """Begin a usual publish, without waiting. Raises the errors of `publish`.

    Return None for any other publish; nothing of it was done or read then. A publish is usual if
    its topic exists, its body is small, complete and not compressed, it is not mandatory, and it
    is no retry that may have used a former queue count of its topic.
    """
    request, context = call.request, call.context
    headers = request.headers
    if call.params.mandatory or not call.has_small_body:
        return None
    name = call.name_of_topic()
    topic = context.store.table.find(name)
    if topic is None:
        return None
    # The body has arrived, so the alarms are checked only when the messages are submitted.
    context.publish_limiter.admit(call.client_name, call.principal)
    kind = media_type(headers.get(hdrs.CONTENT_TYPE, ""))
    if kind == BATCH:
        _refuse_batch_fields(call)
        batches = _decode_batches(call, context.http.bodies.read_arrived(request), topic)
        return BegunPublish(call, topic, _fill_queues(call, topic, batches))
    decode = _TEXT_FORMATS.get(kind)
    if decode is not None:
        _refuse_raw_params(call.params)
    producer = request_producer(headers)
    if producer is not None and topic.former_queue_counts:
        return None
    body = bytes(context.http.bodies.read_arrived(request))
    if decode is None:
        messages = [_raw_message(call.params, kind, body)]
    else:
        _check_text_size(call, body)
        messages = decode(body, context.config.max_messages_per_request)
    check_messages(messages, context.store.publishing.limits(topic))
    check_queues(messages, topic)
    indexes = _group_by_queue(messages, topic, partial(_choose_queue, context, topic, producer))
    _check_queue_count(indexes, context)
    rows = _make_rows_by_queue(messages, indexes, producer)
    return BegunPublish(call, topic, rows, indexes=indexes)


def _admit(call: Call[PublishParams]) -> None:
    """Raise LogError or Problem if nothing may be published now, or not by this client. Called
    before the body is read, so that a refused body occupies no memory."""
    call.context.store.admission.check()
    call.context.publish_limiter.admit(call.client_name, call.principal)


async def _publish_text(
    call: Call[PublishParams], name: str, decode: Callable[[bytes, int], list[MessageToStore]]
) -> Reply:
    _refuse_raw_params(call.params)
    producer = request_producer(call.headers)
    body = bytes(await call.context.http.bodies.read(call.request))
    _check_text_size(call, body)
    limit = call.context.config.max_messages_per_request
    if len(body) <= OFFLOAD_TEXT_BYTES:
        return call.reply(await _store(call, name, decode(body, limit), producer))
    # Decoded messages take many times the memory of their text, so only few texts are decoded at
    # once.
    with LargeReplySlot(call.context.large_texts) as slot:
        await slot.acquire()
        messages = await call_in_thread(decode, body, limit)
        return await _store_in_threads(call, name, messages, producer, slot)


def _check_text_size(call: Call[PublishParams], body: bytes) -> None:
    config = call.context.config
    if len(body) > config.max_text_request_bytes:
        raise request_too_large(
            "max_text_request_bytes",
            config.max_text_request_bytes,
            "the text is larger than {limit}; send fewer messages in a request, or binary batches",
        )


async def _publish_raw(call: Call[PublishParams], name: str, kind: str) -> PublishReply:
    producer = request_producer(call.headers)
    body = bytes(await call.context.http.bodies.read(call.request))
    return await _store(call, name, [_raw_message(call.params, kind, body)], producer)


def _raw_message(params: PublishParams, kind: str, body: bytes) -> MessageToStore:
    if kind == FORM and _LOOKS_LIKE_A_REQUEST.match(body):
        raise Problem(
            "unsupported-media-type",
            "the body is JSON with messages, but its Content-Type is that of a form, as `curl -d` "
            "sends it; send -H 'content-type: application/json' (curl: --json in place of -d), or "
            "application/octet-stream if it is the body of one message",
            found=FORM,
            allowed=[JSON, "application/octet-stream"],
        )
    return MessageToStore(
        body,
        params.key,
        params.tag,
        queue=params.queue,
        ttl_ms=params.ttl_ms,
        priority=params.priority,
    )


_RAW_PARAMS = ("queue", "key", "tag", "priority", "ttl_ms")
_raw_values = attrgetter(*_RAW_PARAMS)


def _refuse_raw_params(params: PublishParams) -> None:
    for name, value in zip(_RAW_PARAMS, _raw_values(params), strict=True):
        if value is not None:
            raise invalid(
                name,
                value,
                f"{name} inside the messages",
                f"the parameter {name} is only for a raw body",
            )


async def _store(
    call: Call[PublishParams], name: str, messages: list[MessageToStore], producer: Producer | None
) -> PublishReply:
    context = call.context
    topic = context.store.topics.find_or_plan(name)
    _check(messages, topic, context.store.publishing.limits(topic))
    unroutable = None
    if call.params.mandatory:
        unroutable = await _check_mandatory(call, topic, partial(_as_filtered, messages, producer))
    topic = await _ensure_created(call, topic)

    async def publish_to_queues_of(routing: Topic) -> PublishReply:
        choose = partial(_choose_queue, context, routing, producer)
        indexes = _group_by_queue(messages, routing, choose)
        _check_queue_count(indexes, context)
        # Pass rows, not batches, because the appender combines all rows that wait for a queue into
        # one batch.
        parts = _make_rows_by_queue(messages, indexes, producer)
        published = await _publish(call, topic, parts, unroutable)
        return _make_reply(_make_results(topic, published, indexes), published)

    return await _publish_as_before(topic, publish_to_queues_of)


async def _store_in_threads(
    call: Call[PublishParams],
    name: str,
    messages: list[MessageToStore],
    producer: Producer | None,
    slot: LargeReplySlot,
) -> Reply:
    """Store the messages of a large text, with each step in a thread.

    Without a thread, each step, also encoding the reply, would block the event loop for a tenth of
    a second. When the batches are made, this function frees the messages and releases `slot`.
    """
    context = call.context
    topic = context.store.topics.find_or_plan(name)
    await call_in_thread(_check, messages, topic, context.store.publishing.limits(topic))
    unroutable = None
    if call.params.mandatory:
        unroutable = await _check_mandatory(call, topic, partial(_as_filtered, messages, producer))
    topic = await _ensure_created(call, topic)
    count = len(messages)
    # For a retry, `_publish_as_before` may route the messages again, by a former queue count.
    are_kept = producer is not None and bool(topic.former_queue_counts)

    async def publish_to_queues_of(routing: Topic) -> Reply:
        chosen = _choose_queue(context, routing, producer)
        indexes = await call_in_thread(_group_by_queue, messages, routing, lambda: chosen)
        _check_queue_count(indexes, context)
        parts = await call_in_thread(_make_batches_by_queue, messages, indexes, producer)
        if not are_kept:
            await call_in_thread(messages.clear)
            slot.release()
        published = await _publish(call, topic, parts, unroutable)
        encoded = await call_in_thread(_encode_results, call.media, topic, published, indexes)
        whole = encode_listing(call.media, _make_reply([], published), "results", encoded, count)
        return Reply(200, call.media, whole)

    try:
        return await _publish_as_before(topic, publish_to_queues_of)
    finally:
        if messages:
            await call_in_thread(messages.clear)


async def _publish_as_before(
    topic: Topic, publish: Callable[[Topic], Awaitable[_Answer]]
) -> _Answer:
    """Call `publish` with the topic, and return the result.

    If the request is a retry, and the first attempt was stored before the topic got more queues,
    call `publish` again with the topic's former queue count, so that the messages are routed to the
    same queues as before. Raises RoutedOtherwise if no former queue count fits.
    """
    try:
        return await publish(topic)
    except RoutedOtherwise:
        for count in topic.former_queue_counts:
            with suppress(RoutedOtherwise):
                return await publish(replace(topic, queue_count=count))
        raise


def _check_queue_count(indexes: Mapping[int, list[int]], context: ApiContext) -> None:
    most = context.config.max_batches_per_request
    if len(indexes) > most:
        raise too_many_batches(most)


def _make_results(
    topic: Topic, published: Sequence[AppendResult], indexes: Mapping[int, list[int]]
) -> list[PublishResult]:
    """Return the queue and offset of each message, in the order of the request."""
    if len(published) == 1:
        queue, start = published[0].queue_id, published[0].base_offset
        offsets = range(start, start + published[0].message_count)
        return [_make_result(topic, queue, offset) for offset in offsets]
    results: dict[int, PublishResult] = {}
    for each, of_queue in zip(published, indexes.values(), strict=True):
        for offset, index in enumerate(of_queue, each.base_offset):
            results[index] = _make_result(topic, each.queue_id, offset)
    return [results[index] for index in range(len(results))]


def _encode_results(
    media: str, topic: Topic, published: Sequence[AppendResult], indexes: Mapping[int, list[int]]
) -> list[bytes]:
    results = _make_results(topic, published, indexes)
    # In portions, so that the interpreter can switch to another thread in between.
    return [
        encode_elements(media, results[start : start + RESULTS_PER_CALL])
        for start in range(0, len(results), RESULTS_PER_CALL)
    ]


def _check(messages: Sequence[MessageToStore], topic: Topic, limits: MessageLimits) -> None:
    """Raise Problem or UnknownQueue if messages do not fit the topic's limits and queues."""
    check_messages(messages, limits)
    check_queues(messages, topic)


async def _publish_batches(call: Call[PublishParams], name: str) -> PublishReply:
    context = call.context
    _refuse_batch_fields(call)
    body = await context.http.bodies.read(call.request)
    topic = context.store.topics.find_or_plan(name)
    decode = partial(_decode_batches, call, body, topic)
    batches = await call_in_thread(decode) if is_slow_to_decode(body) else decode()
    unroutable = None
    if call.params.mandatory:
        unroutable = await _check_mandatory(call, topic, lambda: batches)
    topic = await _ensure_created(call, topic)
    parts = _fill_queues(call, topic, batches)
    published = await _publish(call, topic, parts, unroutable)
    return _make_batch_reply(topic, published)


def _refuse_batch_fields(call: Call[PublishParams]) -> None:
    """Raise Problem if the request has parameters or headers that binary batches contain."""
    _refuse_raw_params(call.params)
    refuse_producer(call.headers)


def _decode_batches(
    call: Call[PublishParams], body: bytes | memoryview, topic: Topic
) -> list[Batch]:
    """Return the batches of a body. Raises Problem and UnknownQueue."""
    limits, config = call.context.store.publishing.limits(topic), call.context.config
    batches = decode_batches(body, config.max_messages_per_request, config.max_batches_per_request)
    check_batches(batches, topic, limits)
    return batches


def _fill_queues(
    call: Call[PublishParams], topic: Topic, batches: Sequence[Batch]
) -> Sequence[Batch]:
    """Return the batches, with a queue chosen for all batches that name none."""
    context, levels = call.context, topic.priority_levels
    return fill_queues(batches, lambda: queue_of(_choose_queue(context, topic, None), None, levels))


# -- mandatory -----------------------------------------------------------------------------


async def _check_mandatory(
    call: Call[PublishParams], topic: Topic, make_batches: Callable[[], Sequence[Batch]]
) -> Problem | None:
    """Raise Problem if no group would get one of the messages. Return the Problem instead if the
    request may be a retry of a request that is stored: all of its batches have a producer.

    `make_batches` returns the messages in the order of the request, with all that filters examine.
    Raise TooCostlyMandatory if the comparison with the filters would take too long.
    """
    context = call.context
    filters = await context.groups.filters_of(topic)
    if filters is None:
        return None
    limit_us = context.groups_config.max_mandatory_match_ms * 1000
    async with context.mandatory_checks.place(call.client):
        batches = await call_in_thread(make_batches)
        if is_quick(filters, batches, MATCHED_ON_LOOP_US):
            index = find_unroutable(filters, batches, limit_us)
        else:
            index = await call_in_thread(find_unroutable, filters, batches, limit_us)
    if index is None:
        return None
    problem = Problem(
        "unroutable",
        f"message {index}: no group would get it, and the request is mandatory; nothing was "
        "stored. Create a group that reads the topic, or send the message without mandatory",
        topic=topic.name,
        index=index,
    )
    if topic.topic_id and all(map(_producer_id, batches)):
        return problem
    raise problem


def _as_filtered(messages: Sequence[MessageToStore], producer: Producer | None) -> list[Batch]:
    """Return the messages as one batch for filters. Filters do not examine bodies and queues."""
    bare = [message._replace(body=b"") for message in messages]
    return [as_batch(make_rows(bare, 0, time_ns() // 1000, producer))]


# -- topic, queue, batch -------------------------------------------------------------------


def _check_creation(call: Call[PublishParams], name: str) -> None:
    """Raise Denied if publishing would create the topic, but the principal may not create it."""
    context = call.context
    if context.topics_config.auto_create_topics and context.store.table.find(name) is None:
        check_may_create(call.principal, name)


async def _ensure_created(call: Call[PublishParams], topic: Topic) -> Topic:
    """Return the topic, and create it if `find_or_plan` did not find it. Raises Denied."""
    if topic.topic_id:
        return topic
    context, name = call.context, topic.name
    _check_creation(call, name)
    topic, is_new = await context.run_shielded(context.store.topics.ensure(name))
    if is_new and context.http.audit is not None:
        context.http.audit.record(
            "topic.create",
            name,
            principal=call.principal.name,
            client=call.request.peer.remote,
            details={"by": "publish"},
        )
    return topic


def _choose_queue(context: ApiContext, topic: Topic, producer: Producer | None) -> int:
    """Choose the queue of messages without queue and key: its number within a priority level.

    A producer may retry its request, and the retry must get the same queue, so the producer's
    sequence determines the queue.
    """
    if producer is None:
        number = context.next_round_robin(topic)
    else:
        number = producer.producer_id + producer.sequence
    return number % topic.queues_per_level


def _group_by_queue(
    messages: Sequence[MessageToStore], topic: Topic, choose: Callable[[], int]
) -> dict[int, list[int]]:
    """Return queue -> the indexes of its messages, in the order of the request."""
    queues, levels = topic.queues_per_level, topic.priority_levels
    rows: dict[int, list[int]] = {}
    chosen: int | None = None
    for index, message in enumerate(messages):
        queue = message.queue
        if queue is None:
            if message.key is not None:
                queue = queue_for_key(message.key, queues)
            else:
                queue = chosen = choose() if chosen is None else chosen
            if levels > 1:
                queue = queue_of(queue, message.priority, levels)
        rows.setdefault(queue, []).append(index)
    return rows


def _make_rows_by_queue(
    messages: Sequence[MessageToStore], indexes: Mapping[int, list[int]], producer: Producer | None
) -> list[Rows]:
    """Return the rows of each queue."""
    now_us = time_ns() // 1000
    return [
        make_rows(list(map(messages.__getitem__, of_queue)), queue, now_us, producer)
        for queue, of_queue in indexes.items()
    ]


def _make_batches_by_queue(
    messages: Sequence[MessageToStore], indexes: Mapping[int, list[int]], producer: Producer | None
) -> list[Batch]:
    """Return a batch for each queue."""
    # The rows of each queue are made and freed one after another: rows and their batch together
    # take twice the memory.
    return [
        as_batch(rows)
        for queue, of_queue in indexes.items()
        for rows in _make_rows_by_queue(messages, {queue: of_queue}, producer)
    ]


def make_rows(
    messages: Sequence[MessageToStore], queue: int, now_us: int, producer: Producer | None
) -> Rows:
    """Return the messages of one queue as columns, for the appender."""
    if len(messages) == 1 and not (messages[0].properties or messages[0].ttl_ms):
        return _make_row(messages[0], queue, now_us, producer)
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


def _make_row(message: MessageToStore, queue: int, now_us: int, producer: Producer | None) -> Rows:
    """Return one message, without properties and time to live, as `make_rows` does."""
    body, key, tag = message[:3]
    keys, tags = (key,) if key else None, (tag,) if tag else None
    if producer is None:
        return Rows(queue, (body,), now_us, keys, tags)
    return Rows(
        queue,
        (body,),
        now_us,
        keys,
        tags,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        sequence=producer.sequence,
    )


# -- storing and answering -----------------------------------------------------------------


async def _publish(
    call: Call[PublishParams],
    topic: Topic,
    batches: Sequence[Batch | Rows],
    refusal: Exception | None = None,
) -> list[AppendResult]:
    """Store the batches. If `refusal` is not None, raise it, except for a retry of a request that
    is stored: return the places of the stored batches."""
    begun = BegunPublish(call, topic, batches, refusal)
    await begun.wait()
    return begun.stored()


class BegunPublish:
    """A publish that may not be stored yet. On the event loop.

    When `future` is done, call `make_reply`; or call `end`, and `stored` if `future` has no error,
    once. To give up the publish, cancel `future` and call `give_up`; it may be stored nevertheless.
    """

    __slots__ = ("_begun", "_call", "_counted", "_indexes", "_size", "_topic", "future")

    def __init__(
        self,
        call: Call[PublishParams],
        topic: Topic,
        batches: Sequence[Batch | Rows],
        refusal: Exception | None = None,
        *,
        indexes: Mapping[int, list[int]] | None = None,
    ) -> None:
        """Begin the publish. Raises TopicFull, and the errors of `Publisher.begin`.

        `refusal` is described in `Publisher.publish`. `indexes` are the indexes of the messages in
        the request, for each queue; None for binary batches.
        """
        self._call = call
        self._topic = topic
        self._indexes = indexes
        context, client = call.context, call.client_name
        self._size = size = sum(map(_TOTAL_SIZE, batches))
        counted = 0
        if refusal is None:
            try:
                counted = context.store.topic_room.enter(topic, size)
            except TopicFull as full:
                if not all(map(_producer_id, batches)):
                    raise
                refusal = full  # a retry of a request that is already stored still succeeds
        try:
            self._begun = context.store.publishing.begin(
                topic,
                batches,
                durability=call.params.durability,
                client=client,
                refusal=refusal,
            )
        except BaseException:
            context.store.topic_room.leave(topic, counted)
            raise
        if refusal is None:
            messages = sum(map(len, batches))
            context.publish_limiter.published(client, call.principal, messages, size)
        self._counted = counted
        self.future = self._begun.future

    async def wait(self) -> None:
        """Wait until the publish is stored, and call `end`. Raises the error of the publish."""
        try:
            await self.future
        finally:
            self.end()

    def end(self) -> None:
        """Free what the publish occupies, except its memory. May be called twice."""
        store = self._call.context.store
        if self._counted:
            store.topic_room.leave(self._topic, self._counted)
            self._counted = 0
        if self.future.cancelled():
            store.publishing.end(self._begun)

    give_up = end

    def stored(self) -> list[AppendResult]:
        """Return the place of each batch, and count the messages."""
        published = self._begun.request.results
        counters = self._call.context.http.metrics.topic(self._topic.name)
        counters.messages_in += sum(map(_MESSAGE_COUNT, published))
        counters.bytes_in += self._size
        return published

    def make_reply(self) -> Reply:
        """Return the reply to the request, and count the messages. Raises the error of `future`."""
        self.end()
        self.future.result()
        published, indexes = self.stored(), self._indexes
        if indexes is None:
            return self._call.reply(_make_batch_reply(self._topic, published))
        return self._call.reply(
            _make_reply(_make_results(self._topic, published, indexes), published)
        )


def _producer_id(batch: Batch | Rows) -> int:
    return batch.producer_id if isinstance(batch, Rows) else batch.header.producer_id


def _make_result(topic: Topic, queue: int, offset: int) -> PublishResult:
    return PublishResult(queue, offset, format_message_id(topic.topic_id, queue, offset))


def _make_batch_result(topic: Topic, published: AppendResult) -> PublishResult:
    result = _make_result(topic, published.queue_id, published.base_offset)
    result.count = published.message_count
    if published.duplicate:
        result.duplicate = True
    return result


def _make_batch_reply(topic: Topic, published: Sequence[AppendResult]) -> PublishReply:
    return _make_reply([_make_batch_result(topic, each) for each in published], published)


_TOTAL_SIZE, _MESSAGE_COUNT = attrgetter("total_size"), attrgetter("message_count")
_IS_DURABLE, _IS_DUPLICATE = attrgetter("durable"), attrgetter("duplicate")


def _make_reply(results: list[PublishResult], published: Sequence[AppendResult]) -> PublishReply:
    return PublishReply(
        results,
        durable=all(map(_IS_DURABLE, published)),
        duplicate=all(map(_IS_DUPLICATE, published)),
    )
