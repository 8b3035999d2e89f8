"""The client for asyncio: one method per request of the API, plus readers, producers, consumers.

`Client` in sync_client.py has the same methods for callers without an event loop. Its methods are
derived from the methods of AsyncClient.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from holdfast.client.errors import (
    ApiError,
    CertificateNotTrusted,
    ConnectionFailed,
    PackageMissing,
    UnknownTopic,
)
from holdfast.client.instrumentation import Instrumentation, Observer
from holdfast.client.produce.identities import IdentityPool, ProducerIds
from holdfast.client.produce.options import Body, ProducerOptions
from holdfast.client.produce.publish_queue import PublishOptions
from holdfast.client.read.options import PullOptions, Start
from holdfast.client.read.results import PublishResult, PullResult, StoredOffsets
from holdfast.client.timestamps import Time, as_timestamp_ms
from holdfast.client.transport.requests import JSON, MSGPACK, Transport, check_name, drop_none
from holdfast.client.transport.retry import ONCE, RetryPolicy
from holdfast.client.transport.target import File, Target, TlsFiles
from holdfast.client.values import (
    Cost,
    Durability,
    End,
    Engine,
    Mode,
    Offsets,
    ResetTo,
    SeekTo,
    SerialBy,
    Status,
    Topics,
    Verb,
)
from holdfast.commitlog.lazy_import import import_at_first_use

if TYPE_CHECKING:
    import msgspec
    import pyarrow

    from holdfast.client import descriptions
    from holdfast.client.consume import consumer as consumers
    from holdfast.client.consume import delivery as deliveries
    from holdfast.client.consume import group_requests, join
    from holdfast.client.consume import observed as observed_consumers
    from holdfast.client.produce import coalescing, producers, publish_request
    from holdfast.client.produce import new_message as new_messages
    from holdfast.client.read import facts, group_offsets, readers, sources
    from holdfast.client.read import message as messages_read
    from holdfast.client.read import pull as pulls
    from holdfast.client.session import session as sessions
    from holdfast.client.tables.bodies import BodyForm
    from holdfast.client.tables.readers import AsyncArrowReader
    from holdfast.client.tables.rows import FetchedRows
    from holdfast.client.transport import async_transport
else:
    # Most programs need only some of these.
    import_at_first_use(
        globals(),
        msgspec="msgspec",
        descriptions="holdfast.client.descriptions",
        consumers="holdfast.client.consume.consumer",
        deliveries="holdfast.client.consume.delivery",
        group_requests="holdfast.client.consume.group_requests",
        join="holdfast.client.consume.join",
        observed_consumers="holdfast.client.consume.observed",
        coalescing="holdfast.client.produce.coalescing",
        new_messages="holdfast.client.produce.new_message",
        producers="holdfast.client.produce.producers",
        publish_request="holdfast.client.produce.publish_request",
        facts="holdfast.client.read.facts",
        group_offsets="holdfast.client.read.group_offsets",
        messages_read="holdfast.client.read.message",
        pulls="holdfast.client.read.pull",
        readers="holdfast.client.read.readers",
        sources="holdfast.client.read.sources",
        sessions="holdfast.client.session.session",
        async_transport="holdfast.client.transport.async_transport",
    )

DEFAULT_URL = "http://127.0.0.1:8711"

#: A table asks for this many bytes at once: larger replies are fewer record batches.
TABLE_PULL_BYTES = 8 * 1024 * 1024


class AsyncClient:
    """A client of the broker at `url`, for one event loop. Use it in `async with`, or close it.

    `token` is sent as a bearer token. The three files are for a broker that serves TLS: `ca_file`
    holds the authorities to trust (default: the system's authorities); `cert_file` and `key_file`
    hold the client's own certificate and its key. All are PEM files; an unusable file raises
    ValueError.

    Transient failures (no connection, a broker that is restarting or busy) are retried for
    `timeout_ms`, with growing pauses. Methods raise ApiError when the broker refuses a request,
    and ConnectionFailed when it does not answer. Cancelling any method is safe; a cancelled
    publish may still be stored.

    `instrumentation` observes the operations of the client: see docs/opentelemetry.md.
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
        instrumentation: Instrumentation | None = None,
    ) -> None:

        target = Target.parse(url, token, TlsFiles(ca_file, cert_file, key_file))
        retry = RetryPolicy(give_up_after_s=timeout_ms / 1000)
        observer = None
        if instrumentation is not None:
            observer = instrumentation.observe(target.host, target.port)
        transport = async_transport.AsyncTransport(target, retry)
        self._set_transport(transport, retry, observer=observer)
        self.url = url

    def _set_transport(
        self,
        transport: Transport,
        sharing: RetryPolicy | None = None,
        producer_ids: ProducerIds | None = None,
        observer: Observer | None = None,
    ) -> None:
        """Initialize the client; with `sharing`, concurrent publishes share their requests."""
        self.url = transport.url
        self._transport = transport
        self._observer = observer
        self._producer_ids = producer_ids or ProducerIds()
        self._identities = IdentityPool(self._producer_ids)
        self._coalescer: coalescing.PublishCoalescer | None = None
        if sharing is not None:
            self._coalescer = coalescing.PublishCoalescer(transport, self._identities, sharing)
        self._producers: weakref.WeakSet[producers.AsyncProducer] = weakref.WeakSet()
        self._consumers: set[consumers.AsyncConsumer] = set()
        self._sessions: weakref.WeakSet[sessions.AsyncSession] = weakref.WeakSet()

    @classmethod
    def over(
        cls,
        transport: Transport,
        producer_ids: ProducerIds | None = None,
        observer: Observer | None = None,
    ) -> Self:
        """Return a client that sends its requests over the given transport.

        Each publish is sent in its own request. Producers and consumers need an event loop
        and an AsyncTransport. Clients with the same `producer_ids` are one for `no_local`.
        """
        client = cls.__new__(cls)
        client._set_transport(transport, producer_ids=producer_ids, observer=observer)
        return client

    async def close(self) -> None:
        """Close the open producers (which send their buffers), then the consumers (which leave
        their groups), then all connections.

        Waiting readers end with ClientClosed. May be repeated.
        """
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._transport.close)
            if self._coalescer is not None:
                stack.push_async_callback(self._coalescer.close)
            for consumer in list(self._consumers):
                stack.push_async_callback(consumer.close)
            for producer in list(self._producers):
                stack.push_async_callback(producer.close)
            for session in list(self._sessions):
                stack.push_async_callback(session.close)

    async def __aenter__(self) -> Self:

        return self

    async def __aexit__(self, *_: object) -> None:

        await self.close()

    # -- topics ------------------------------------------------------------------------------

    async def create_topic(
        self,
        topic: str,
        queues: int | None = None,
        durability: Durability | None = None,
        *,
        priority_levels: int | None = None,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        max_message_bytes: int | None = None,
        max_bytes: int | None = None,
    ) -> "descriptions.TopicDescription":
        """Create a topic, or ensure that it exists, and return its description.

        In a new topic, settings that are not given get the broker's defaults. An existing topic
        is not changed: TopicConflict is raised if its value of a given setting is different. With
        `durability="fsync"` the broker acknowledges a message when the message is synced to disk;
        with "written", when it is written to the operating system. With `priority_levels` (1 to
        10) the topic has `queues` times `priority_levels` queues.
        """
        body = drop_none(
            queues=queues,
            durability=durability,
            priority_levels=priority_levels,
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            max_message_bytes=max_message_bytes,
            max_bytes=max_bytes,
        )
        return await self._fetch_description(
            descriptions.TopicDescription, "PUT", _topic_path(topic), body=body
        )

    async def change_topic(
        self, topic: str, /, **fields: int | str | None
    ) -> "descriptions.TopicDescription":
        """Change settings of a topic; return its description.

        The settings are `queues` (the number per priority level; it can only grow), `durability`,
        `retention_ms`, `retention_bytes`, `max_bytes` and `max_message_bytes`. For
        `retention_ms`, `retention_bytes` and `max_bytes`, None removes the limit.
        """
        path = _topic_path(topic)
        return await self._fetch_description(
            descriptions.TopicDescription, "PATCH", path, body=fields
        )

    async def topics(self) -> "list[descriptions.TopicSummary]":
        """Return all topics, sorted by name."""
        return await self._fetch_listing(descriptions.TopicSummary, "/v1/topics", "topics")

    async def describe_topic(self, topic: str) -> "descriptions.TopicDescription":
        """Return a topic's id, configuration and queues with their offsets."""
        return await self._fetch_description(
            descriptions.TopicDescription, "GET", _topic_path(topic)
        )

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
        *,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | None = None,
        durability: Durability | None = None,
        ttl_ms: int | None = None,
        priority: int | None = None,
        mandatory: bool = False,
    ) -> PublishResult:
        """Publish one message. When it is stored, return its queue, offset and id.

        Text is stored as UTF-8. If `queue` is None, the key determines the queue; if `key` is
        also None, the queues take turns. Groups deliver messages of higher `priority` (0 to 9,
        default 4) first if the topic has priority levels. Groups do not deliver a message that is
        older than its `ttl_ms`. A retry never stores the message twice. For many messages use
        `producer`. If `mandatory` is True and no group would get the message, it is not stored, and
        `errors.Unroutable` is raised.

        Concurrent calls with the same topic, durability and `mandatory` share requests: messages
        that arrive while a request is in flight are sent together in the next one, except large
        messages. Each call still has its own result or error, timeout and cancellation. In the
        synchronous client each call sends its own request.
        """
        own_properties = dict(properties) if properties else None
        message = new_messages.NewMessage(
            new_messages.encode_body(body), key, tag, own_properties, queue, ttl_ms, priority
        )
        options = PublishOptions(durability, mandatory)
        if self._observer is None:
            return await self._publish(topic, options, message)
        with self._observer.send(topic, own_properties) as sending:
            message.properties = dict(sending.properties) if sending.properties else None
            result = await self._publish(topic, options, message)
            sending.record_result(result)
            return result

    async def _publish(
        self, topic: str, options: PublishOptions, message: "new_messages.NewMessage"
    ) -> PublishResult:
        if self._coalescer is not None:
            return await self._coalescer.publish(topic, options, message)
        return await publish_request.publish_single(
            self._transport, self._identities, topic, options, message.encode()
        )

    def producer(
        self,
        topic: str,
        queue: int | None = None,
        durability: Durability | None = None,
        linger_ms: float = ProducerOptions.linger_ms,
        *,
        priority: int | None = None,
        batch_bytes: int = ProducerOptions.batch_bytes,
        buffer_bytes: int = ProducerOptions.buffer_bytes,
        max_in_flight: int = ProducerOptions.max_in_flight,
        delivery_timeout_ms: float = ProducerOptions.delivery_timeout_ms,
        mandatory: bool = False,
    ) -> "producers.AsyncProducer":
        """Return a producer that batches messages to `topic`; use it in `async with`.

        A batch is sent when it reaches `batch_bytes`, after `linger_ms`, or when the caller waits
        for one of its messages. Up to `max_in_flight` requests are in flight, but never two with
        messages of the same queue, so a queue stores messages in the order of the send() calls.
        `buffer_bytes` limits the bytes that wait for an acknowledgement. In addition, batches that
        are still being filled may use half of `buffer_bytes`. `delivery_timeout_ms` limits how
        long a batch is retried. A retry never stores a message twice.

        If `queue` is given, all messages are sent to that queue. `priority` is the default for
        messages that are sent without a priority. If `mandatory` is True and no group would get a
        message, all messages of its request fail with `errors.Unroutable`, and the broker stores
        none of them; its `index` counts the messages of the request. A missing topic is created
        with the broker's defaults, if the broker allows automatic creation. When queues are added
        to the topic, only producers that are started later use them.
        """
        producer = producers.AsyncProducer(
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
                mandatory=mandatory,
            ),
        )
        self._producers.add(producer)
        return producer

    def _producer_target(self, topic: str) -> "producers.ProducerTarget":
        check_name("topic", topic)

        async def describe() -> "facts.TopicFacts":
            try:
                return await facts.fetch_facts(self._transport, topic)
            except UnknownTopic:
                info = await self._request_json("GET", "/v1/info")
                if not info.get("auto_create_topics", True):
                    raise
                await self._request_json("PUT", _topic_path(topic), body={})
                return await facts.fetch_facts(self._transport, topic)

        return producers.ProducerTarget(
            self._transport, topic, describe, self._producer_ids, self._observer
        )

    # -- links -------------------------------------------------------------------------------

    def session(self, url: str | None = None) -> "sessions.AsyncSession":
        """Return a session of AMQP 1.0, with senders and receivers; use it in `async with`.

        Without `url` the session is a WebSocket on the port of HTTP. With `url`, such as
        `amqp://127.0.0.1:5672` or `amqps://broker:5671`, it is a connection to a port of AMQP. Each
        session has its own connection. It ends if the connection is lost.
        """
        session = sessions.AsyncSession(self._transport.target, url)
        self._sessions.add(session)
        return session

    # -- reading -----------------------------------------------------------------------------

    def pull(
        self,
        topic: str,
        queue: int | None = None,
        offset: int | None = None,
        *,
        start: End | None = None,
        timestamp_ms: Time | None = None,
        follow: bool = True,
        tag: str | None = None,
        filter: str | None = None,
        skip_corrupt: bool = False,
        max_bytes: int = PullOptions.max_bytes,
        wait_ms: int = PullOptions.wait_ms,
    ) -> "readers.AsyncReader[messages_read.Message]":
        """Read the messages of one queue in order; without `queue`, of all queues of the topic.

        Reading starts at `offset`, at `start` ("earliest", the default, or "latest"), or at the
        first message stored at or after `timestamp_ms` (milliseconds since 1970, or a datetime
        with a time zone). With `follow=True` reading never ends: each request waits up to `wait_ms`
        at the broker for new messages, and requests are retried while the broker is unreachable.
        With `follow=False` reading ends at the max_offset that the queue had when reading began.

        The broker sends only messages that match `tag` ("a,b" means a or b) and `filter` (a SQL92
        condition on properties). A message that is damaged on the broker's disk ends the reading
        with RecordCorrupt; with `skip_corrupt` such messages are skipped, and the logger
        `holdfast.client` reports the skipped offsets.

        Each request fetches up to `max_bytes` of messages; the next request is sent while the
        caller processes these messages. The reader raises OffsetTrimmed, OffsetBeyondEnd,
        RecordCorrupt, TopicRecreated, UnknownTopic, and CorruptBatch if a checksum is wrong.
        """
        options = PullOptions(
            max_bytes=max_bytes,
            wait_ms=wait_ms,
            tag=tag,
            filter=filter,
            skip_corrupt=skip_corrupt,
        )
        start_ = _make_start(offset, start, timestamp_ms)
        source = self._source(topic, queue, start_, options, follow=follow)
        return readers.AsyncReader(source, _iter_messages)

    def pull_batches(
        self,
        topic: str,
        queue: int,
        offset: int | None = None,
        *,
        start: End | None = None,
        timestamp_ms: Time | None = None,
        follow: bool = True,
        skip_corrupt: bool = False,
        max_bytes: int = PullOptions.max_bytes,
        wait_ms: int = PullOptions.wait_ms,
    ) -> "readers.AsyncReader[messages_read.MessageBatch]":
        """Read a queue's messages in the batches in which they are stored, for array processing.

        Everything else is as in `pull`. The first and the last batch may also contain messages
        outside of the requested range: use only the rows from `start_row` (inclusive) to `end_row`
        (exclusive).
        """
        options = PullOptions(
            max_bytes=max_bytes, wait_ms=wait_ms, skip_corrupt=skip_corrupt, rebuilt=False
        )
        start_ = _make_start(offset, start, timestamp_ms)
        source = self._source(topic, queue, start_, options, follow=follow)
        return readers.AsyncReader(source, _iter_batches)

    def _source(
        self,
        topic: str,
        queue: int | None,
        start: Start,
        options: PullOptions,
        *,
        follow: bool,
    ) -> "sources.Source[sources.Range]":
        if queue is None:
            return sources.TopicSource(self._transport, topic, start, options, follow)
        return sources.QueueSource(self._transport, topic, start, options, follow, queue=queue)

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
        """Pull once; return the messages from `offset` on. Wait up to `wait_ms` for a message.

        Return at most `max_messages`, and at most `max_bytes` unless a single message is larger.
        `skip_corrupt` works as in `pull`; `skipped` lists the skipped ranges.
        """
        options = PullOptions(
            max_messages=max_messages,
            max_bytes=max_bytes,
            tag=tag,
            filter=filter,
            skip_corrupt=skip_corrupt,
        )
        requests = pulls.TopicRequests(self._transport, topic)
        with self._observe_receive((topic,), None) as record_messages:
            pulled = await requests.pull(queue, Start(offset=offset), options, wait_ms)
            messages = [message for part in pulled.parts for message in part]
            next_offset, max_offset = pulled.next_offsets[queue], pulled.max_offsets[queue]
            if len(messages) > max_messages:
                next_offset = messages[max_messages].offset
                del messages[max_messages:]
            record_messages(messages)
        skipped = tuple(each for each in pulled.skipped if each.start_offset < next_offset)
        return PullResult(messages, next_offset, pulled.min_offset or 0, max_offset, skipped)

    # -- tables ------------------------------------------------------------------------------

    async def read_arrow(
        self,
        topic: str,
        queue: int | None = None,
        *,
        start_offset: int | Mapping[int, int] | None = None,
        end_offset: int | Mapping[int, int] | None = None,
        start_timestamp_ms: Time | None = None,
        end_timestamp_ms: Time | None = None,
        columns: Sequence[str] | None = None,
        body: "BodyForm" = "binary",
        tag: str | None = None,
        filter: str | None = None,
        skip_corrupt: bool = False,
        max_bytes: int = TABLE_PULL_BYTES,
        path: str | Path | None = None,
    ) -> "pyarrow.Table":
        """Return messages as a pyarrow.Table, ordered by queue and offset. Needs pyarrow.

        Without `queue`, read all queues. The range of a queue begins at `start_offset`, or at the
        first message stored at or after `start_timestamp_ms`; the default is its first message. It
        ends before `end_offset`, or before the first message stored at or after
        `end_timestamp_ms`; the default is its end now. Without `queue`, offsets are a mapping from
        queues to offsets, such as {0: 12, 1: 40}; a queue that it does not name has the default.
        Times are milliseconds since 1970, or datetimes with a time zone.

        The default `columns` are queue, offset, key, tag, properties, body, born_timestamp and
        store_timestamp; there are also topic, message_id and priority. Bodies are binary. With
        `body="text"` they are strings; with `body=pyarrow.schema(...)` they are parsed as JSON
        objects of this schema, which are structs. In these objects, missing members are null, and
        members that the schema does not name are left out. A body of another form raises
        UndecodableBody.

        `tag`, `filter` and `skip_corrupt` work as in `pull`. Each request fetches up to
        `max_bytes`.

        With `path`, read the segment files of this data directory, and send no request to a
        broker; a broker may use the directory meanwhile. `filter` needs a broker. Raises
        FilesUnreadable if the directory cannot be read.

        Raises PackageMissing if pyarrow is not installed, ValueError for bounds that
        contradict each other, UnknownTopic, UnknownQueue, OffsetTrimmed, OffsetBeyondEnd,
        RecordCorrupt, TopicRecreated, and CorruptBatch if a checksum is wrong.
        """
        reader = self.iter_arrow(
            topic,
            queue,
            start_offset=start_offset,
            end_offset=end_offset,
            start_timestamp_ms=start_timestamp_ms,
            end_timestamp_ms=end_timestamp_ms,
            columns=columns,
            body=body,
            tag=tag,
            filter=filter,
            skip_corrupt=skip_corrupt,
            max_bytes=max_bytes,
            path=path,
        )
        async with reader:
            return await reader.to_table()

    def iter_arrow(
        self,
        topic: str,
        queue: int | None = None,
        *,
        start_offset: int | Mapping[int, int] | None = None,
        end_offset: int | Mapping[int, int] | None = None,
        start_timestamp_ms: Time | None = None,
        end_timestamp_ms: Time | None = None,
        columns: Sequence[str] | None = None,
        body: "BodyForm" = "binary",
        tag: str | None = None,
        filter: str | None = None,
        skip_corrupt: bool = False,
        max_bytes: int = TABLE_PULL_BYTES,
        path: str | Path | None = None,
    ) -> "AsyncArrowReader":
        """Read messages as record batches (pyarrow.RecordBatch), one after the other, so that a
        range may be larger than the memory. Everything else is as in `read_arrow`.

        The reader of the synchronous client is also a stream of Arrow data: it has
        `__arrow_c_stream__`, which polars and duckdb read.
        """
        try:
            from holdfast.client.tables.broker_rows import BrokerRows
            from holdfast.client.tables.file_rows import FileRows
            from holdfast.client.tables.ranges import Bound, TableRange
            from holdfast.client.tables.readers import AsyncArrowReader
            from holdfast.client.tables.table_format import TableFormat
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "pyarrow":
                raise
            raise PackageMissing("pyarrow", "arrow") from error
        wanted = TableRange(
            topic,
            queue,
            Bound(start_offset, _timestamp_ms(start_timestamp_ms)),
            Bound(end_offset, _timestamp_ms(end_timestamp_ms)),
        )
        source: sources.Source[FetchedRows]
        if path is None:
            options = PullOptions(
                max_bytes=max_bytes, tag=tag, filter=filter, skip_corrupt=skip_corrupt
            )
            source = BrokerRows(self._transport, wanted, options)
        elif filter is not None:
            raise ValueError("only a broker evaluates filter=: omit it, or omit path=")
        else:
            tags = frozenset(tag.split(",")) if tag is not None else frozenset()
            source = FileRows(
                self._transport, str(path), wanted, tags=tags, skip_corrupt=skip_corrupt
            )
        return AsyncArrowReader(source, TableFormat(columns, body))

    def consume(
        self,
        topic: str | Sequence[str],
        group: str,
        *,
        member: str | None = None,
        max_in_flight: int = 32,
        concurrency: int = 1,
        serial_by: SerialBy | None = None,
        start: End | None = None,
        follow: bool = True,
        wait_for_delayed: bool = False,
        filter: str | None = None,
        no_local: bool = False,
        lease_ms: int | None = None,
        settled: bool = False,
        max_bytes: int = 1024 * 1024,
        wait_ms: int = 20_000,
        ack_batch: int = 64,
        ack_interval_ms: float = 5,
    ) -> "consumers.AsyncConsumer":
        """Return a consumer that is a member of a group: iterate over it, or `run` a handler.

        The group distributes the messages of its topics among its members, each under a lease.
        A missing group is created. A group that only stores offsets becomes a group with leases
        that continues from these offsets; queues without an offset begin at `start` ("earliest",
        the default, or "latest"). Use `create_group` for all other settings.

        The consumer prefetches just enough messages to keep the worker busy, and holds at most
        `max_in_flight`. Up to `concurrency` messages are processed at the same time, but only one
        per key (in a keyed group) or per queue; `serial_by` ("key", "queue" or "nothing") changes
        this rule.
        Each receive waits up to `wait_ms` at the broker, or up to the broker's limit. It returns up
        to `max_bytes`.

        A lease lasts `lease_ms` (default: the group's setting). Until the message is settled, the
        consumer extends the lease when half of its time has passed. Acknowledgements are sent in
        batches: after `ack_batch` of them, after `ack_interval_ms`, or when the consumer is idle.
        If a receive is sent at that time, it carries them.
        With `settled`, the broker acknowledges messages as it sends them. If the consumer then
        crashes, the messages that it has received but not processed are lost.

        `filter` is a list of tags separated by commas, or a SQL92 condition; other members get
        the messages that do not match. With `no_local` only other members get the messages that
        this client published, except those of its sessions. A keyed group refuses both. With
        `follow=False` the consumer ends when no message is available; with `wait_for_delayed` it
        also waits for the messages that have a retry delay.
        With `follow`, requests are retried for ever while the broker is unreachable.

        `member` is this member's name in the group; each member needs a different name. The
        consumer raises UnknownTopic, ExclusiveHeld, Forbidden.
        """
        topics = (topic,) if isinstance(topic, str) else tuple(topic)
        options = join.ConsumeOptions(
            group=check_name("group", group),
            topics=tuple(check_name("topic", each) for each in topics),
            member=member or join.make_member_name(),
            max_in_flight=max_in_flight,
            concurrency=concurrency,
            serial_by=serial_by,
            start=start,
            follow=follow,
            wait_for_delayed=wait_for_delayed,
            filter=filter,
            no_local=self._producer_ids.session if no_local else None,
            lease_ms=lease_ms,
            settled=settled,
            max_bytes=max_bytes,
            wait_ms=wait_ms,
            ack_batch=ack_batch,
            ack_interval_ms=ack_interval_ms,
        )
        if self._observer is None:
            return consumers.AsyncConsumer(self._transport, options, self._consumers)
        return observed_consumers.ObservedConsumer(
            self._transport, options, self._consumers, self._observer
        )

    def consume_by_offsets(
        self,
        topic: str,
        group: str,
        *,
        start: End = "earliest",
        follow: bool = True,
        commit_interval_ms: int = 1000,
        tag: str | None = None,
        filter: str | None = None,
        skip_corrupt: bool = False,
        max_bytes: int = PullOptions.max_bytes,
        wait_ms: int = PullOptions.wait_ms,
    ) -> "readers.AsyncOffsetConsumer":
        """Read all queues from the group's stored offsets on; iterate over the result.

        Queues without a stored offset begin at `start`. A message counts as processed when the
        caller asks for the next one. Offsets are stored every `commit_interval_ms` (if this is 0,
        after each message) and on closing, so after a crash some messages are delivered again and
        none is skipped. Only one consumer may use the group at a time: if another consumer
        changes the offsets, OffsetsChanged is raised. This method is only for groups that store
        offsets; for groups with leases use `consume`. `tag`, `filter` and `skip_corrupt` work as
        in `pull`.
        """
        options = group_offsets.OffsetConsumeOptions(
            group=check_name("group", group),
            topic=check_name("topic", topic),
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
        return readers.AsyncOffsetConsumer(self._transport, options)

    async def offset_at(self, topic: str, queue: int, timestamp_ms: Time) -> tuple[int, int | None]:
        """Return the offset and the store time (ms) of the first message stored at or after a time.

        Return (max_offset, None) when there is no such message.
        """
        requests = pulls.TopicRequests(self._transport, topic)
        return await requests.find_offset(queue, as_timestamp_ms(timestamp_ms))

    async def message(self, message_id: str) -> "messages_read.Message":
        """Return one message. Raises UnknownMessage, also for text that is not a message id."""
        reply = await self._transport.request(
            "GET", f"/v1/messages/{quote(message_id, safe='')}", headers={"Accept": MSGPACK}
        )
        return reply.msgpack(messages_read.LoneMessage).as_message()

    async def search(self, topic: str, key: str, limit: int = 64) -> "list[messages_read.Message]":
        """Return the newest messages with a key, newest first, at most `limit` of them."""
        reply = await self._transport.request(
            "GET",
            f"{_topic_path(topic)}/messages/search",
            params={"key": key, "limit": limit},
            headers={"Accept": MSGPACK},
        )
        return [message.as_message() for message in reply.msgpack(messages_read.Messages).messages]

    async def splits(
        self,
        topic: str,
        start: Offsets | None = None,
        end: Offsets | None = None,
        max_bytes: int | None = None,
        min_splits: int = 1,
        *,
        start_timestamp_ms: Time | None = None,
        end_timestamp_ms: Time | None = None,
    ) -> "list[descriptions.Split]":
        """Return a plan for parallel readers: ranges of offsets in queues, about `max_bytes` each.

        `start` and `end` are offsets by queue, or "earliest" or "latest" for all queues. A queue
        that `start` does not contain is read from its earliest offset; a queue that `end` does not
        contain is read to its latest offset.
        """
        params: dict[str, str | int] = drop_none(
            start=_encode_offsets(start),
            end=_encode_offsets(end),
            start_timestamp_ms=_timestamp_ms(start_timestamp_ms),
            end_timestamp_ms=_timestamp_ms(end_timestamp_ms),
            max_bytes=max_bytes,
            min_splits=min_splits,
        )
        reply = await self._request_json("GET", f"{_topic_path(topic)}/splits", params=params)
        return [
            descriptions.parse_description(descriptions.Split, each, self.url)
            for each in reply["splits"]
        ]

    # -- groups ------------------------------------------------------------------------------

    async def create_group(
        self,
        group: str,
        topics: Topics | None = None,
        *,
        mode: Mode | None = None,
        engine: Engine | None = None,
        cost: Cost | None = None,
        start: End | None = None,
        lease_ms: int | None = None,
        max_in_flight: int | None = None,
        max_in_flight_per_member: int | None = None,
        max_in_flight_per_key: int | None = None,
        max_attempts: int | None = None,
        backoff_ms: Sequence[int] | None = None,
        dead_letter_topic: str | None = None,
        strict_leases: bool | None = None,
        member_ttl_ms: int | None = None,
        auto_delete_after_ms: int | None = None,
        last_value: bool | None = None,
    ) -> "descriptions.GroupDescription":
        """Create a group with leases, or change it; return its description.

        `topics` is one name, several names, or names with weights (`{"orders": 3}`) or with
        weight and filter (`{"orders": {"weight": 3, "filter": "paid,served"}}`). These topics
        replace all topics of the group. `start` is for queues without a stored offset. An empty
        `dead_letter_topic` removes the dead-letter topic. docs/groups.md describes each setting.
        A setting that is not given gets the broker's default in a new group, and does not change
        in an existing group. Raises GroupBusy when `mode` would change while messages are leased.
        """
        fields: dict[str, Any] = drop_none(
            mode=mode,
            start=start,
            lease_ms=lease_ms,
            max_in_flight=max_in_flight,
            max_in_flight_per_member=max_in_flight_per_member,
            max_in_flight_per_key=max_in_flight_per_key,
            max_attempts=max_attempts,
            backoff_ms=None if backoff_ms is None else list(backoff_ms),
            strict_leases=strict_leases,
            member_ttl_ms=member_ttl_ms,
            auto_delete_after_ms=auto_delete_after_ms,
            last_value=last_value,
            fairness=drop_none(engine=engine, cost=cost) or None,
        )
        if dead_letter_topic is not None:
            fields["dead_letter_topic"] = dead_letter_topic or None
        if topics is not None:
            fields["topics"] = group_requests.encode_topics(topics)
        path = self._group(group).path
        return await self._fetch_description(
            descriptions.GroupDescription, "PUT", path, body=fields
        )

    async def delete_group(self, group: str) -> None:
        """Delete a group and its state. Its messages stay in their topics."""
        await self._transport.request(
            "DELETE", self._group(group).path, params={"confirm": group}, safe=False
        )

    async def seek_group(self, group: str, to: SeekTo) -> dict[str, dict[int, int]]:
        """Let a group continue at "earliest" or "latest", at a time (milliseconds since 1970, or a
        datetime with a time zone), or at given offsets (by topic and queue).

        Return the new offsets of each topic, by queue. Earlier receipts become stale.
        """
        target: Any
        if isinstance(to, Mapping):
            target = {
                topic: {str(queue): offset for queue, offset in offsets.items()}
                for topic, offsets in to.items()
            }
        else:
            target = to if isinstance(to, str) else as_timestamp_ms(to)
        reply = await self._group(group).post("seek", {"to": target})
        return reply.json(group_requests.SeekReply).offsets

    async def receive(
        self,
        group: str,
        member: str,
        max_messages: int = 32,
        wait_ms: int = 0,
        *,
        max_bytes: int | None = None,
        lease_ms: int | None = None,
        topics: Sequence[str] | None = None,
        filter: str | None = None,
        settled: bool = False,
        browse: bool = False,
        attempt_id: str | None = None,
    ) -> "deliveries.ReceiveResult":
        """Receive messages for this member once; wait up to `wait_ms` for the first message.

        Each message is leased for `lease_ms`. Within that time, settle its receipt, or extend the
        lease. With `settled` the broker acknowledges messages as it sends them; with `browse` it
        only shows them, without a lease. If the reply to a request was lost, a request with the
        same `attempt_id` returns that reply again. `consume` does all of this automatically.
        """
        fields = drop_none(
            member=member,
            max_messages=max_messages,
            max_bytes=max_bytes,
            lease_ms=lease_ms,
            topics=None if topics is None else list(topics),
            filter=filter,
            settled=settled or None,
            browse=browse or None,
            attempt_id=attempt_id,
        )
        with self._observe_receive(topics or (), group) as record_messages:
            reply = await self._group(group).receive(fields, wait_ms)
            messages = [message.as_received() for message in reply.messages]
            record_messages(messages)
        return deliveries.ReceiveResult(messages, reply.available, reply.active)

    def _observe_receive(
        self, topics: Sequence[str], group: str | None
    ) -> "AbstractContextManager[Callable[[Sequence[messages_read.Message]], None]]":
        if self._observer is None:
            return nullcontext(_ignore)
        return self._observer.receive(topics, group=group)

    async def ack(
        self,
        group: str,
        receipts: Sequence[str],
        *,
        cumulative: bool = False,
        used_ms: float | None = None,
    ) -> list[Status]:
        """Acknowledge messages durably, and return the status of each receipt.

        The status is "done" if the message is acknowledged, "stale" if it was delivered again
        meanwhile or settled differently, and "invalid" if the text is not a receipt of this group.
        With `cumulative`, also acknowledge all earlier messages of the same queue that the member
        holds. `used_ms` is the processing time of each message.
        """
        return await self._settle(group, "ack", receipts, cumulative=cumulative, used_ms=used_ms)

    async def _settle(
        self, group: str, verb: Verb, receipts: Sequence[str], **terms: Any
    ) -> list[Status]:
        requests = self._group(group)
        if self._observer is None:
            return await requests.settle(verb, receipts, **terms)
        with self._observer.settle(verb, group, len(receipts)):
            return await requests.settle(verb, receipts, **terms)

    async def nack(
        self, group: str, receipts: Sequence[str], delay_ms: int | None = None
    ) -> list[Status]:
        """Report that processing messages has failed; return the status of each receipt as `ack`
        does. The messages are delivered again after `delay_ms`, or after the group's back-off."""
        return await self._settle(group, "nack", receipts, delay_ms=delay_ms)

    async def release(self, group: str, receipts: Sequence[str]) -> list[Status]:
        """Make messages available again immediately, without counting a failure. Return the status
        of each receipt as `ack` does."""
        return await self._settle(group, "release", receipts)

    async def extend(
        self, group: str, receipts: Sequence[str], lease_ms: int | None = None
    ) -> list[Status]:
        """Extend leases: they end `lease_ms` from now (default: the group's setting). Return the
        status of each receipt as `ack` does."""
        return await self._group(group).settle("extend", receipts, lease_ms=lease_ms)

    async def reject(self, group: str, receipts: Sequence[str]) -> list[Status]:
        """Turn messages into dead letters immediately. Return the status of each receipt as `ack`
        does."""
        return await self._settle(group, "reject", receipts)

    async def leave_group(self, group: str, member: str) -> None:
        """Remove a member from a group; its messages are released immediately."""
        await self._group(group).leave(member)

    async def describe_group(self, group: str) -> "descriptions.GroupDescription":
        """Return a group's progress in each topic: its lag in messages, bytes and seconds.

        For a group with leases, the description also has the settings, the members, and for each
        queue the numbers of available, in-flight, delayed, dead and delivered messages.
        """
        return await self._fetch_description(
            descriptions.GroupDescription, "GET", self._group(group).path
        )

    async def stored_offsets(self, group: str, topic: str) -> StoredOffsets:
        """Return a group's stored offsets on a topic. Raises UnknownGroup.

        In a group with leases, all messages below these offsets are settled.
        """
        return await group_offsets.read_offsets(self._transport, group, topic)

    async def store_offsets(
        self,
        group: str,
        topic: str,
        offsets: Mapping[int, int],
        if_match: str | None = None,
    ) -> StoredOffsets:
        """Store offsets durably and return all offsets that are then stored.

        Queues that are not given keep their offsets. A missing group is created. If `if_match` is
        the etag of an earlier result, and the offsets have changed since then, OffsetsChanged is
        raised. A group with leases restarts at the new offsets.
        """
        return await group_offsets.write_offsets(
            self._transport, group, topic, offsets, if_match=if_match
        )

    async def reset_offsets(
        self,
        group: str,
        topic: str,
        to: ResetTo = "earliest",
        dry_run: bool = False,
        *,
        queues: list[int] | None = None,
    ) -> "descriptions.OffsetsReset":
        """Set a group's offsets to "earliest" or "latest", or to a time (milliseconds since 1970,
        or a datetime with a time zone).

        Return the offsets `before` and `after`. With `dry_run`, change nothing.
        """
        body = drop_none(
            to=to if isinstance(to, str) else {"timestamp_ms": as_timestamp_ms(to)},
            dry_run=dry_run,
            queues=queues,
        )
        path = f"{self._group(group).path}/topics/{check_name('topic', topic)}/offsets/reset"
        return await self._fetch_description(descriptions.OffsetsReset, "POST", path, body=body)

    async def redrive(
        self, group: str, max_messages: int | None = None
    ) -> "group_requests.Redriven":
        """Republish a group's dead letters to their original topics, in order; return the counts.

        Messages are published as they were originally, without the dead-letter properties. After a
        crash, a later redrive does not store a message twice (as long as the broker remembers the
        producer). If the group does not subscribe to the original topic of a dead letter, the dead
        letter stays and is counted in `stuck`. Raises NoDeadLetters.
        """
        return await self._group(group).redrive(max_messages)

    def _group(self, group: str) -> "group_requests.GroupRequests":
        return group_requests.GroupRequests(self._transport, group)

    async def groups(self) -> "list[descriptions.GroupSummary]":
        """Return all groups, sorted by name. A group without a `mode` only stores offsets."""
        return await self._fetch_listing(descriptions.GroupSummary, "/v1/groups", "groups")

    # -- the broker --------------------------------------------------------------------------

    async def info(self) -> "descriptions.BrokerInfo":
        """Return the broker's version and main settings."""
        return await self._fetch_description(descriptions.BrokerInfo, "GET", "/v1/info")

    async def status(self) -> dict[str, Any]:
        """Return the `phase`, `degraded`, `read_only` and `alarms` that /readyz reports, also when
        the broker is not ready."""
        try:
            # "Not ready" is a valid answer here, not a reason to retry.
            reply = await self._transport.request("GET", "/readyz", retry=ONCE)
            return reply.json(dict[str, Any])
        except ApiError as error:
            if "phase" not in error.members:
                raise
            return dict(error.members)

    async def overview(self) -> dict[str, Any]:
        """Return the reply of GET /v1/overview: disk, groups, totals since the start, connections,
        and the broker's delays. Needs the grant operate. Raises Unavailable while the broker
        recovers or stops."""
        reply = await self._transport.request("GET", "/v1/overview")
        return reply.json(dict[str, Any])

    async def metrics(self) -> str:
        """Return the broker's metrics in the Prometheus text format."""
        reply = await self._transport.request("GET", "/metrics")
        return bytes(reply.body).decode()

    async def ready(self, wait_ms: int = 0) -> bool:
        """Return whether the broker serves requests; wait up to `wait_ms` until it does.

        Return False while the broker is unreachable, recovering or stopping. Other ApiErrors,
        CertificateNotTrusted and BadReply are raised immediately.
        """
        retry = RetryPolicy(give_up_after_s=wait_ms / 1000) if wait_ms else ONCE
        try:
            await self._transport.request("GET", "/readyz", retry=retry)
        except CertificateNotTrusted:
            raise
        except ConnectionFailed:
            return False
        except ApiError as error:
            if error.status != 503:
                raise
            return False
        return True

    async def _request_json(
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

    async def _fetch_description(
        self, kind: "type[descriptions.D]", method: str, path: str, *, body: object = None
    ) -> "descriptions.D":
        return descriptions.parse_description(
            kind, await self._request_json(method, path, body=body), self.url
        )

    async def _fetch_listing(
        self, kind: "type[descriptions.D]", path: str, name: str
    ) -> "list[descriptions.D]":
        """Return the items of all pages of a listing."""
        items: list[descriptions.D] = []
        params: dict[str, str | int] = {}
        while True:
            page = await self._request_json("GET", path, params=params)
            items += [descriptions.parse_description(kind, each, self.url) for each in page[name]]
            if page["next"] is None:
                return items
            params["after"] = page["next"]


def _ignore(messages: Sequence[object]) -> None:
    """Do nothing with the messages: the client has no instrumentation."""


def _iter_messages(fetched: "sources.Range") -> "Iterable[messages_read.Message]":
    return chain.from_iterable(fetched.parts)


def _iter_batches(fetched: "sources.Range") -> "Iterable[messages_read.MessageBatch]":
    for part in fetched.parts:
        if isinstance(part, messages_read.MessageRun):
            yield from part.batches()
        elif isinstance(part, messages_read.MessageBatch) and len(part):
            yield part


def _timestamp_ms(time: Time | None) -> int | None:

    return None if time is None else as_timestamp_ms(time)


def _make_start(offset: int | None, start: End | None, timestamp_ms: Time | None) -> Start:

    if offset is None and start is None and timestamp_ms is None:
        start = "earliest"
    return Start(offset, start, _timestamp_ms(timestamp_ms))


def _topic_path(topic: str) -> str:

    return f"/v1/topics/{check_name('topic', topic)}"


def _encode_offsets(offsets: Offsets | None) -> str | None:

    if offsets is None or isinstance(offsets, str):
        return offsets
    return ",".join(f"{queue}:{offset}" for queue, offset in offsets.items())
