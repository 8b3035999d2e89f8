"""The client for asyncio: every request of the API by name, and the readers and producers.

`Client` in sync_client.py has the same names for callers without an event loop; its methods
are made from these.
"""

import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import chain
from typing import Any, Literal, Self
from urllib.parse import quote

import msgspec

from holdfast.client.async_producer import AsyncProducer
from holdfast.client.consume_options import ConsumeOptions, SerialBy, own_member
from holdfast.client.consumer import AsyncConsumer
from holdfast.client.errors import UnknownTopic
from holdfast.client.group_calls import GroupCalls
from holdfast.client.message import (
    LoneMessage,
    Message,
    MessageBatch,
    PublishResult,
    PullResult,
)
from holdfast.client.message_checks import Body, as_bytes
from holdfast.client.message_run import MessageRun
from holdfast.client.new_message import NewMessage
from holdfast.client.offset_consumer import AsyncOffsetConsumer, OffsetConsumeOptions
from holdfast.client.producing import ProducerOptions, ProducerTarget
from holdfast.client.publishing import publish_alone
from holdfast.client.pulling import (
    PullOptions,
    Start,
    TopicDescription,
    describe_topic,
    find_offset,
    pull_queue,
)
from holdfast.client.reader import AsyncReader
from holdfast.client.redrive import Redriven, group_of_redriving, redrive
from holdfast.client.requests import JSON, MSGPACK, Requests, checked_name
from holdfast.client.retry import RetryPolicy
from holdfast.client.sender import IdentityPool
from holdfast.client.shared_publishing import SharedPublishing
from holdfast.client.sources import QueueSource, Range, Source, TopicSource
from holdfast.client.tls import File, TlsFiles
from holdfast.client.transport import Transport

DEFAULT_URL = "http://127.0.0.1:8711"

Offsets = Mapping[int, int] | Literal["earliest", "latest"]


class _Messages(msgspec.Struct):
    messages: list[LoneMessage]


class AsyncClient(GroupCalls):
    """A client of the broker at `url`, for one event loop. Use it in `async with`, or close it.

    `token` is sent as bearer token. For a broker that serves TLS, `ca_file` names the authorities
    to trust in place of the system's, `cert_file` and `key_file` the certificate to show (PEM;
    ValueError when they cannot be used). What fails in a way that passes (no connection, a broker
    that is restarting or busy) is tried again for `timeout_ms`, with growing pauses. Methods
    raise ApiError when the broker refuses, ConnectionFailed when it does not answer. Cancelling
    any of them is safe; what a cancelled publish sent may still be stored.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout_ms: int = 30_000,
        ca_file: File | None = None,
        cert_file: File | None = None,
        key_file: File | None = None,
    ) -> None:
        self.url = url
        retry = RetryPolicy(give_up_after_s=timeout_ms / 1000)
        self._transport = Transport(
            url, token=token, retry=retry, tls=TlsFiles(ca_file, cert_file, key_file)
        )
        self._identities = IdentityPool()
        self._sharing: SharedPublishing | None = SharedPublishing(
            self._transport, self._identities, retry
        )
        self._producers: weakref.WeakSet[AsyncProducer] = weakref.WeakSet()
        self._consumers: set[AsyncConsumer] = set()

    @classmethod
    def over(cls, transport: Requests) -> Self:
        """Return a client of which only the requests are meant, over another transport.

        Each of its publishes is a request.
        """
        client = cls.__new__(cls)
        client.url = transport.url
        client._transport = transport
        client._identities = IdentityPool()
        client._sharing = None
        client._producers = weakref.WeakSet()
        client._consumers = set()
        return client

    async def close(self) -> None:
        """Close the producers that are open, which sends what they hold, the consumers that are
        members of groups, which leave them, then all connections.

        Readers that wait end with ClientClosed. May be called twice.
        """
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._transport.close)
            if self._sharing is not None:
                stack.push_async_callback(self._sharing.close)
            for consumer in list(self._consumers):
                stack.push_async_callback(consumer.close)
            for producer in list(self._producers):
                stack.push_async_callback(producer.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- topics ------------------------------------------------------------------------------

    async def create_topic(
        self,
        topic: str,
        queues: int | None = None,
        durability: str | None = None,
        *,
        priority_levels: int | None = None,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        max_message_bytes: int | None = None,
    ) -> dict[str, Any]:
        """Create a topic, or ensure that it is there, and return its description.

        What is not given is the broker's default for a new topic and not compared for one that
        exists. `durability` is "fsync" (acknowledged once synced to the disk) or "written". With
        `priority_levels` (1 to 10) it has as many times `queues`: of each, one for each level.
        Raises TopicConflict when it exists with another value of what is given.
        """
        given = {
            "queues": queues,
            "durability": durability,
            "priority_levels": priority_levels,
            "retention_ms": retention_ms,
            "retention_bytes": retention_bytes,
            "max_message_bytes": max_message_bytes,
        }
        fields = {name: value for name, value in given.items() if value is not None}
        return await self._json("PUT", _topic_path(topic), body=fields)

    async def change_topic(self, topic: str, /, **fields: int | str | None) -> dict[str, Any]:
        """Change a topic's `queues` (of each level; only more), `durability`, `retention_ms`,
        `retention_bytes` or `max_message_bytes`, and return its description.

        None takes a retention limit away.
        """
        return await self._json("PATCH", _topic_path(topic), body=fields)

    async def topics(self) -> list[dict[str, Any]]:
        """Return all topics, by name."""
        return await self._listing("/v1/topics", "topics")

    async def describe_topic(self, topic: str) -> dict[str, Any]:
        """Return a topic's id, configuration and queues with their offsets."""
        return await self._json("GET", _topic_path(topic))

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with all its messages."""
        await self._transport.request(
            "DELETE", _topic_path(topic), params={"confirm": topic}, safe=False
        )

    # -- publishing --------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        body: Body,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | None = None,
        *,
        durability: str | None = None,
        ttl_ms: int | None = None,
        priority: int | None = None,
    ) -> PublishResult:
        """Publish one message and return where it is stored, once it is.

        Text is stored as UTF-8. The queue is the one given, else that of the key, else the one
        whose turn it is. Groups deliver messages of a higher `priority` (0 to 9; 4 if not given)
        first where the topic has levels for them, and none that is older than `ttl_ms`. A retry
        is not stored twice. For many messages use `producer`.

        Calls that are made while another one to the topic, at the same durability, is under way
        share the next request: many tasks on one client get far more through than with a client
        each. Each has its own result or error, and its own time and end; a large message, and
        any call when nothing is under way, goes at once. The synchronous client's calls have a
        request each.
        """
        message = NewMessage(
            as_bytes(body),
            key,
            tag,
            dict(properties) if properties else None,
            queue,
            ttl_ms,
            priority,
        )
        if self._sharing is not None:
            return await self._sharing.publish(topic, durability, message)
        return await publish_alone(
            self._transport, self._identities, topic, durability, message.encode()
        )

    def producer(
        self,
        topic: str,
        queue: int | None = None,
        durability: str | None = None,
        linger_ms: float = ProducerOptions.linger_ms,
        *,
        priority: int | None = None,
        batch_bytes: int = ProducerOptions.batch_bytes,
        buffer_bytes: int = ProducerOptions.buffer_bytes,
        max_in_flight: int = ProducerOptions.max_in_flight,
        delivery_timeout_ms: float = ProducerOptions.delivery_timeout_ms,
    ) -> AsyncProducer:
        """Return a producer that batches messages to `topic`; use it in `async with`.

        A batch leaves when it has `batch_bytes`, after `linger_ms`, or when one of its messages
        is waited for. `max_in_flight` requests may be under way, one for each queue: order in a
        queue is the order of the sends. `buffer_bytes` bounds what waits, `delivery_timeout_ms`
        how long a batch is tried. A retry is not stored twice. With `queue` all messages go
        there; `priority` is that of messages that do not say. A topic that does not exist is
        created with the broker's defaults, if the broker creates topics by itself. Queues that
        are added later are used by producers made then.
        """
        producer = AsyncProducer(
            self._producer_target(topic),
            ProducerOptions(
                queue=queue,
                priority=priority,
                durability=durability,
                linger_ms=linger_ms,
                batch_bytes=batch_bytes,
                buffer_bytes=buffer_bytes,
                max_in_flight=max_in_flight,
                delivery_timeout_ms=delivery_timeout_ms,
            ),
        )
        self._producers.add(producer)
        return producer

    def _producer_target(self, topic: str) -> ProducerTarget:
        async def describe() -> TopicDescription:
            try:
                return await describe_topic(self._transport, checked_name("topic", topic))
            except UnknownTopic:
                if not (await self.info()).get("auto_create_topics", True):
                    raise
                await self.create_topic(topic)
                return await describe_topic(self._transport, topic)

        return ProducerTarget(self._transport, checked_name("topic", topic), describe)

    # -- reading -----------------------------------------------------------------------------

    def pull(
        self,
        topic: str,
        queue: int | None = None,
        offset: int | None = None,
        *,
        start: str | None = None,
        timestamp_ms: int | None = None,
        follow: bool = True,
        tag: str | None = None,
        filter: str | None = None,
        skip_corrupt: bool = False,
        max_bytes: int = PullOptions.max_bytes,
        wait_ms: int = PullOptions.wait_ms,
    ) -> AsyncReader[Message]:
        """Read the messages of a queue in order, or of all queues of the topic without `queue`.

        Reading starts at `offset`, at `start` ("earliest", which is the default, or "latest")
        or with what was stored from `timestamp_ms` on. It goes on for ever, waiting at the
        broker for what comes (`wait_ms` a request) and for a broker that is away; with
        `follow=False` it ends where the queue ended at the beginning. `tag` ("a,b": one of
        these) and `filter` (a SQL92 condition on properties) are applied by the broker. Messages
        that are damaged on the broker's disk end it with RecordCorrupt; with `skip_corrupt` they
        are passed over, and the log `holdfast.client` says which.

        Up to `max_bytes` are fetched at once, the next range while one is worked on. Raises
        OffsetTrimmed, OffsetBeyondEnd, RecordCorrupt, TopicRecreated, CorruptBatch for bytes
        that fail their checksum, and UnknownTopic.
        """
        options = PullOptions(
            max_bytes=max_bytes,
            wait_ms=wait_ms,
            tag=tag,
            filter=filter,
            skip_corrupt=skip_corrupt,
        )
        start_ = _start(offset, start, timestamp_ms)
        source = self._source(topic, queue, start_, options, follow=follow)
        return AsyncReader(source, _messages)

    def pull_batches(
        self,
        topic: str,
        queue: int,
        offset: int | None = None,
        *,
        start: str | None = None,
        timestamp_ms: int | None = None,
        follow: bool = True,
        skip_corrupt: bool = False,
        max_bytes: int = PullOptions.max_bytes,
        wait_ms: int = PullOptions.wait_ms,
    ) -> AsyncReader[MessageBatch]:
        """Read a queue's messages as the batches they are stored in, for those who want arrays.

        As `pull` in everything else. The first and last batch are cut to the range by their
        `start_row` and `end_row`.
        """
        options = PullOptions(max_bytes=max_bytes, wait_ms=wait_ms, skip_corrupt=skip_corrupt)
        start_ = _start(offset, start, timestamp_ms)
        source = self._source(topic, queue, start_, options, follow=follow)
        return AsyncReader(source, _batches)

    def _source(
        self,
        topic: str,
        queue: int | None,
        start: Start,
        options: PullOptions,
        *,
        follow: bool,
    ) -> Source:
        checked_name("topic", topic)
        if queue is None:
            return TopicSource(self._transport, topic, start, options, follow=follow)
        return QueueSource(self._transport, topic, queue, start, options, follow=follow)

    async def pull_once(
        self,
        topic: str,
        queue: int,
        offset: int,
        max_messages: int = 32,
        max_bytes: int = 1024 * 1024,
        wait_ms: int = 0,
        *,
        tag: str | None = None,
        filter: str | None = None,
        skip_corrupt: bool = False,
    ) -> PullResult:
        """Pull once, and return what is there from `offset` on, or arrives within `wait_ms`.

        At most `max_messages`, and of more than one at most `max_bytes`. `skip_corrupt` as in
        `pull`; what was passed over is in `skipped`.
        """
        options = PullOptions(
            max_messages=max_messages,
            max_bytes=max_bytes,
            tag=tag,
            filter=filter,
            skip_corrupt=skip_corrupt,
        )
        pulled = await pull_queue(
            self._transport,
            checked_name("topic", topic),
            queue,
            Start(offset=offset),
            options,
            wait_ms=wait_ms,
        )
        messages = [message for part in pulled.parts for message in part]
        next_offset = pulled.next_offset
        if len(messages) > max_messages:
            next_offset = messages[max_messages].offset
            del messages[max_messages:]
        skipped = tuple(each for each in pulled.skipped if each.start_offset < next_offset)
        return PullResult(messages, next_offset, pulled.min_offset, pulled.max_offset, skipped)

    def consume(
        self,
        topic: str | Sequence[str],
        group: str,
        *,
        member: str | None = None,
        max_in_flight: int = 32,
        concurrency: int = 1,
        serial_by: SerialBy | None = None,
        start: str | None = None,
        follow: bool = True,
        filter: str | None = None,
        lease_ms: int | None = None,
        settled: bool = False,
        max_bytes: int = 1024 * 1024,
        wait_ms: int = 20_000,
        ack_batch: int = 64,
        ack_interval_ms: float = 5,
    ) -> AsyncConsumer:
        """Take part in a group: its messages of a topic, or of several, are shared out among its
        members, under leases. Iterate over what is returned, or `run` a handler.

        A group that is not there is made, and one that only stores offsets gets leases, from
        those offsets on; `start` ("earliest", which is the default, or "latest") is where other
        queues begin. Use `create_group` for anything else that it may be.

        At most `max_in_flight` messages are held at once, and so few that the worker is kept
        busy. `concurrency` is how many are worked on at once: of each key (in a keyed group) or
        queue one at a time, or as `serial_by` says ("key", "queue", "nothing"). Leases (of
        `lease_ms`, else of the group's length) are extended at half their time until a message is
        settled. What is said of messages is sent together: after `ack_batch`, after
        `ack_interval_ms`, or when there is nothing else to do. `settled`: messages are settled as
        they are sent, so that a crash loses those in hand. `filter`: tags separated by commas, or
        a SQL92 condition; the others stay for other members. With `follow=False` it ends when
        nothing is left.

        `member` is the name under which the group knows it; two may never share one. Raises
        UnknownTopic, ExclusiveHeld, Forbidden. A broker that is away is waited for, and a lost
        reply is asked for again.
        """
        topics = (topic,) if isinstance(topic, str) else tuple(topic)
        return AsyncConsumer(
            self._transport,
            ConsumeOptions(
                group=checked_name("group", group),
                topics=tuple(checked_name("topic", each) for each in topics),
                member=member or own_member(),
                max_in_flight=max_in_flight,
                concurrency=concurrency,
                serial_by=serial_by,
                start=start,
                follow=follow,
                filter=filter,
                lease_ms=lease_ms,
                settled=settled,
                max_bytes=max_bytes,
                wait_ms=wait_ms,
                ack_batch=ack_batch,
                ack_interval_ms=ack_interval_ms,
            ),
            self._consumers,
        )

    def consume_by_offsets(
        self,
        topic: str,
        group: str,
        *,
        start: str = "earliest",
        follow: bool = True,
        commit_interval_ms: int = 1000,
        tag: str | None = None,
        filter: str | None = None,
        skip_corrupt: bool = False,
        max_bytes: int = PullOptions.max_bytes,
        wait_ms: int = PullOptions.wait_ms,
    ) -> AsyncOffsetConsumer:
        """Return the messages of all queues from the group's stored offsets on; iterate over it.

        Queues without a stored offset start at `start`. A message counts as processed when the
        next one is asked for; that is stored every `commit_interval_ms` (0: at once) and on
        closing, so after a crash some messages come again and none is passed over. The group is
        for one consumer at a time: when another one moves its offsets, OffsetsChanged is raised.
        It is for groups that only store offsets; those with leases are for `consume`.
        `tag`, `filter` and `skip_corrupt` as in `pull`.
        """
        options = OffsetConsumeOptions(
            group=checked_name("group", group),
            topic=checked_name("topic", topic),
            start=start,
            follow=follow,
            commit_interval_ms=commit_interval_ms,
            pull=PullOptions(
                max_bytes=max_bytes,
                wait_ms=wait_ms,
                tag=tag,
                filter=filter,
                skip_corrupt=skip_corrupt,
            ),
        )
        return AsyncOffsetConsumer(self._transport, options)

    async def offset_at(self, topic: str, queue: int, timestamp_ms: int) -> tuple[int, int | None]:
        """Return the first offset stored at or after a time, and its time.

        (max_offset, None) when there is none.
        """
        topic = checked_name("topic", topic)
        return await find_offset(self._transport, topic, queue, timestamp_ms)

    async def message(self, message_id: str) -> Message:
        """Return one message. Raises UnknownMessage, also for a text that is no message id."""
        reply = await self._transport.request(
            "GET", f"/v1/messages/{quote(message_id, safe='')}", headers={"Accept": MSGPACK}
        )
        return reply.msgpack(LoneMessage).as_message()

    async def search(self, topic: str, key: str, limit: int = 64) -> list[Message]:
        """Return the newest messages with a key, newest first, at most `limit`."""
        reply = await self._transport.request(
            "GET",
            f"{_topic_path(topic)}/messages/search",
            params={"key": key, "limit": limit},
            headers={"Accept": MSGPACK},
        )
        return [message.as_message() for message in reply.msgpack(_Messages).messages]

    async def splits(
        self,
        topic: str,
        start: Offsets | None = None,
        end: Offsets | None = None,
        max_bytes: int | None = None,
        min_splits: int = 1,
        *,
        start_timestamp_ms: int | None = None,
        end_timestamp_ms: int | None = None,
    ) -> list[dict[str, Any]]:
        """Return a plan for parallel readers: pieces of queues of about `max_bytes` each.

        Queues that `start` and `end` do not name start at the earliest and end at the latest.
        """
        given: dict[str, str | int | None] = {
            "start": _offsets_param(start),
            "end": _offsets_param(end),
            "start_timestamp_ms": start_timestamp_ms,
            "end_timestamp_ms": end_timestamp_ms,
            "max_bytes": max_bytes,
            "min_splits": min_splits,
        }
        params = {name: value for name, value in given.items() if value is not None}
        reply = await self._json("GET", f"{_topic_path(topic)}/splits", params=params)
        splits: list[dict[str, Any]] = reply["splits"]
        return splits

    # -- groups, of which GroupCalls has the rest; the broker ----------------------------------

    async def redrive(self, group: str, max_messages: int | None = None) -> Redriven:
        """Put a group's dead letters back where they came from, in their order, and say how many.

        Each is published as it was, without what the dead letter added, and acknowledged once it
        is synced; what a crash keeps from being acknowledged is not stored twice when it is tried
        again (for as long as the broker remembers producers). Raises NoDeadLetters.
        """
        checked_name("group", group_of_redriving(group))
        return await redrive(self._transport, self, group, max_messages)

    async def groups(self) -> list[dict[str, Any]]:
        """Return all groups, by name. One without a `mode` only stores offsets."""
        return await self._listing("/v1/groups", "groups")

    async def info(self) -> dict[str, Any]:
        """Return what the broker says of itself."""
        return await self._json("GET", "/v1/info")

    async def _json(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        body: object = None,
    ) -> dict[str, Any]:
        reply = await self._transport.request(
            method,
            path,
            params=params,
            headers=None if body is None else {"Content-Type": JSON},
            body=None if body is None else msgspec.json.encode(body),
        )
        return reply.json(dict[str, Any])

    async def _listing(self, path: str, name: str) -> list[dict[str, Any]]:
        """Return all pages of a listing."""
        items: list[dict[str, Any]] = []
        params: dict[str, str | int] = {}
        while True:
            page = await self._json("GET", path, params=params)
            items += page[name]
            if page["next"] is None:
                return items
            params["after"] = page["next"]


def _messages(fetched: Range) -> Iterable[Message]:
    return chain.from_iterable(fetched.parts)


def _batches(fetched: Range) -> Iterable[MessageBatch]:
    for part in fetched.parts:
        if isinstance(part, MessageRun):
            yield from part.batches()
        elif isinstance(part, MessageBatch) and len(part):
            yield part


def _start(offset: int | None, start: str | None, timestamp_ms: int | None) -> Start:
    if offset is None and start is None and timestamp_ms is None:
        start = "earliest"
    return Start(offset, start, timestamp_ms)


def _topic_path(topic: str) -> str:
    return f"/v1/topics/{checked_name('topic', topic)}"


def _offsets_param(offsets: Offsets | None) -> str | None:
    if offsets is None or isinstance(offsets, str):
        return offsets
    return ",".join(f"{queue}:{offset}" for queue, offset in offsets.items())
