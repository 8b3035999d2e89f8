"""The bodies of requests and replies about messages, topics and the broker, as msgspec types.

These types are used for decoding, for encoding, and for the OpenAPI document.
"""

from functools import cache
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from holdfast.commitlog.format.batch_check import MAX_TTL_MS
from holdfast.commitlog.format.priority import HIGHEST_PRIORITY, MAX_LEVELS
from holdfast.http_api.routing.moments import MAX_TIMESTAMP_MS
from holdfast.http_api.routing.params import MAX_OFFSET

Durability = Literal["fsync", "written"]
Offset = Annotated[int, Meta(ge=0, le=MAX_OFFSET)]
QueueId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TtlMs = Annotated[int, Meta(ge=1, le=MAX_TTL_MS)]
Priority = Annotated[int, Meta(ge=0, le=HIGHEST_PRIORITY)]


ProblemObject = Annotated[
    dict[str, Any], Meta(extra_json_schema={"$ref": "#/components/schemas/Problem"})
]

AnyMessage = TypeVar("AnyMessage")
"""Message in JSON, PackedMessage in msgpack."""


class Request(Struct, forbid_unknown_fields=True):
    """The body of a request. A body with an unknown field is refused."""


# -- publishing ----------------------------------------------------------------------------


class MessageToPublish(Request):
    """A message to publish in JSON, with exactly one of `body` and `body_base64`."""

    body: str | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET
    key: str | None = None
    tag: str | None = None
    properties: dict[str, str] | None = None
    queue: QueueId | None = None
    ttl_ms: TtlMs | None = None
    priority: Priority | None = None


class PackedMessageToPublish(Request):
    """A message to publish in msgpack. `body` has the type bin, or str (stored as UTF-8)."""

    body: Raw | UnsetType = UNSET
    key: str | None = None
    tag: str | None = None
    properties: dict[str, str] | None = None
    queue: QueueId | None = None
    ttl_ms: TtlMs | None = None
    priority: Priority | None = None


class PublishRequest(MessageToPublish):
    """The messages to publish: either `messages`, or the fields of a single message."""

    messages: list[MessageToPublish] | UnsetType = UNSET


@cache
def publish_request(message: Any, limit: int) -> Any:
    """Return the type of a request with at most `limit` messages, or with a single message.

    Decoding refuses a longer list. In msgpack, it does so before it decodes any message.
    """
    listed = Annotated[list[message], Meta(max_length=limit)]
    return msgspec.defstruct(
        "PublishRequest",
        [("messages", listed | UnsetType, UNSET)],
        bases=(message,),
        forbid_unknown_fields=True,
    )


class PublishResult(Struct):
    """Where one message is stored.

    In the reply to a binary request, each result is for one batch: `offset` and `message_id` are
    those of its first message, and `count` is its number of messages. `duplicate` is true if an
    earlier attempt was stored.
    """

    queue: int
    offset: int
    message_id: str
    count: int | UnsetType = UNSET
    duplicate: bool | UnsetType = UNSET


class PublishReply(Struct, omit_defaults=True):
    """The result of a publish.

    `durable` is true if the messages were synced to the disk before the reply. `duplicate` is true
    if an earlier attempt of the same request was stored; the offsets are those of that attempt.
    """

    results: list[PublishResult]
    durable: bool
    duplicate: bool = False


# -- pulling -------------------------------------------------------------------------------


class MessageHead(Struct):
    """The fields of a delivered message, except its body."""

    topic: str
    queue: int
    offset: int
    message_id: str
    key: str | None
    tag: str | None
    properties: dict[str, str]
    born_timestamp_ms: int
    store_timestamp_ms: int


class Message(MessageHead):
    """A message in JSON. It has `body` if the body is valid UTF-8, otherwise `body_base64`."""

    body: str | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET


class PackedMessage(MessageHead):
    """A message in msgpack. `body` has the msgpack type bin."""

    body: bytes


class SkippedRange(Struct):
    """Messages that were skipped because they are damaged or missing.

    The range begins at `start_offset` and ends before `end_offset`.
    """

    queue: int
    start_offset: int
    end_offset: int
    reason: str


class PullReply(Struct, Generic[AnyMessage]):
    """The result of a pull. Continue from `next_offset`.

    `skipped` is present if messages were skipped. Messages are skipped if the request has
    `skip_corrupt`, or if an operator has accepted their loss.
    """

    messages: list[AnyMessage]
    next_offset: int
    min_offset: int
    max_offset: int
    skipped: list[SkippedRange] | UnsetType = UNSET


class QueueReply(Struct, omit_defaults=True):
    """The offsets of one queue of a poll. If `problem` is present, the queue could not be read."""

    queue: int
    next_offset: int
    min_offset: int
    max_offset: int
    problem: ProblemObject | UnsetType = UNSET


class PollReply(Struct, Generic[AnyMessage]):
    """The result of a poll over several queues. `skipped` has the same meaning as in a pull."""

    messages: list[AnyMessage]
    queues: list[QueueReply]
    skipped: list[SkippedRange] | UnsetType = UNSET


class SearchReply(Struct, Generic[AnyMessage]):
    """The messages that were found, newest first.

    `skipped` is present if the search skipped damaged messages that may have the key.
    """

    messages: list[AnyMessage]
    skipped: list[SkippedRange] | UnsetType = UNSET


class BrowsedQueue(Struct):
    """The progress of browsing in one queue.

    The request began at `start_offset`. `next_offset` is the start of the next request in the same
    order. If the order is newest first, a request returns messages before its start, otherwise
    messages from its start on.
    """

    queue: int
    start_offset: int
    next_offset: int
    min_offset: int
    max_offset: int


class BrowseReply(Struct, Generic[AnyMessage]):
    """Messages in the order of time. `more` is false if no message is left in this order.

    `skipped` lists damaged messages that were skipped.
    """

    messages: list[AnyMessage]
    queues: list[BrowsedQueue]
    more: bool
    skipped: list[SkippedRange] | UnsetType = UNSET


class OffsetReply(Struct):
    """The offset of the first message that was stored at or after a time.

    If there is no such message, `offset` is the queue's end, and `store_timestamp_ms` is null.
    """

    offset: int
    store_timestamp_ms: int | None


class SplitReply(Struct):
    """One piece of a plan: the messages from `start_offset` up to, but not including, `end_offset`.

    In the log, their batches begin at `physical_offset` and end at `end_physical_offset`. Batches
    of other queues may be between them.
    """

    queue: int
    start_offset: int
    end_offset: int
    bytes: int
    physical_offset: int
    end_physical_offset: int


class SegmentReply(Struct):
    """A file of the log. Its start offset (which is also its name) and its time identify it."""

    start_offset: int
    size: int
    created_timestamp_us: int


class ReadLeaseReply(Struct):
    """A read lease. It ends at `until_ms`, unless it is extended."""

    id: str
    until_ms: int


class ReadLeaseRequest(Request):
    """How long a read lease lasts from now."""

    lease_ms: Annotated[int, Meta(ge=1)]


class ReadLeaseEndedReply(Struct):
    """The end of a read lease. `ended` is false if the lease had already ended."""

    ended: bool


class SplitsReply(Struct):
    """A plan for parallel readers.

    `segments` has the complete files that contain the pieces, for readers with access to the data
    directory. `lease` is present if a lease was requested and the plan has messages; it protects
    these messages from retention by age and size.
    """

    topic: str
    topic_id: int
    splits: list[SplitReply]
    segments: list[SegmentReply]
    lease: ReadLeaseReply | UnsetType = UNSET


# -- topics --------------------------------------------------------------------------------


class TopicSettings(Request):
    """The settings of a topic. Null or 0 for retention or max_bytes means no limit.

    On creation, an omitted setting gets its default. On a change, an omitted setting stays
    unchanged. `queues` is the number of queues of each priority level. `priority_levels` cannot be
    changed after creation; if it is 1, the topic has no priorities. If a topic has more than
    `max_bytes`, publishes are refused, and no message is deleted.
    """

    queues: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    priority_levels: Annotated[int, Meta(ge=1, le=MAX_LEVELS)] | UnsetType = UNSET
    durability: Durability | UnsetType = UNSET
    retention_ms: Annotated[int, Meta(ge=0, le=MAX_TIMESTAMP_MS)] | UnsetType | None = UNSET
    retention_bytes: Annotated[int, Meta(ge=0, le=MAX_OFFSET)] | UnsetType | None = UNSET
    max_message_bytes: Annotated[int, Meta(ge=1, le=2**31 - 1)] | UnsetType = UNSET
    max_bytes: Annotated[int, Meta(ge=0, le=MAX_OFFSET)] | UnsetType | None = UNSET

    def as_arguments(self) -> dict[str, Any]:
        """Return the given settings as arguments of TopicChanges.create and .change."""
        given = {
            k: value for k, value in msgspec.structs.asdict(self).items() if value is not UNSET
        }
        queues, levels = given.pop("queues", None), given.pop("priority_levels", None)
        return {"queues": queues, "priority_levels": levels, "fields": given}


class TopicConfigReply(Struct):
    """A topic's settings. Null means no limit.

    `priority_levels` is present if the topic has several levels; the number of a queue is then
    `index * priority_levels + level`. `max_bytes` is present if the topic has this limit: above it,
    publishes are refused (507), and no message is deleted.
    """

    durability: Durability
    retention_ms: int | None
    retention_bytes: int | None
    max_message_bytes: int
    priority_levels: int | UnsetType = UNSET
    max_bytes: int | UnsetType = UNSET


class QueueStateReply(Struct):
    """The range of offsets that a queue keeps. `bytes` is the stored size of these messages."""

    queue: int
    min_offset: int
    max_offset: int
    bytes: int
    newest_timestamp_ms: int | None


class ReadLeasesReply(Struct):
    """The read leases of a topic.

    `count` is the number of leases, and `until_ms` is the time at which the last lease ends. For
    each queue, `offsets` has the first offset that the leases protect: retention by age and size
    does not delete this message and later messages.
    """

    count: int
    until_ms: int
    offsets: dict[str, int]


class TopicReply(Struct):
    """A topic with its queues. `read_leases` is present while readers have leases on the topic."""

    topic: str
    topic_id: int
    queue_count: int
    created_timestamp_ms: int
    queues: list[QueueStateReply]
    config: TopicConfigReply
    read_leases: ReadLeasesReply | UnsetType = UNSET


class TopicSummary(Struct):
    """A topic in a list of topics."""

    topic: str
    topic_id: int
    queue_count: int
    created_timestamp_ms: int
    config: TopicConfigReply


class TopicsReply(Struct):
    """A page of topics, by name. `next` is the `after` of the next page; null on the last page."""

    topics: list[TopicSummary]
    next: str | None


class DeletedReply(Struct):
    """The topic that was deleted."""

    topic: str
    topic_id: int


# -- operations ----------------------------------------------------------------------------


class HealthReply(Struct):
    """The process is alive and its event loop runs."""

    status: Literal["alive"]


class FaultReply(Struct):
    """A fault. `reason` is a stable word for programs, `detail` is a sentence for people."""

    reason: str
    detail: str


class ReadyReply(Struct):
    """The broker serves requests. `degraded` lists its faults.

    `read_only` is the reason why no message can be published until a restart; it is null if
    messages can be published. `alarms` lists the alarms that stop publishing for now.
    """

    phase: str
    degraded: list[FaultReply]
    read_only: str | None
    alarms: dict[str, str]
