"""The bodies of requests and replies, as msgspec types: what is decoded, encoded and published
in the OpenAPI document is the same."""

from functools import cache
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from holdfast.commitlog.batch_check import MAX_TTL_MS
from holdfast.commitlog.priority import HIGHEST_PRIORITY, MAX_LEVELS
from holdfast.http_api.params import MAX_OFFSET, MAX_TIMESTAMP_MS

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
    """A request's body: a member that is not known is refused."""


# -- publishing ----------------------------------------------------------------------------


class NewMessage(Request):
    """A message to publish in JSON: exactly one of `body` and `body_base64`."""

    body: str | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET
    key: str | None = None
    tag: str | None = None
    properties: dict[str, str] | None = None
    queue: QueueId | None = None
    ttl_ms: TtlMs | None = None
    priority: Priority | None = None


class NewPackedMessage(Request):
    """A message to publish in msgpack: `body` is bin, or str for its UTF-8."""

    body: Raw
    key: str | None = None
    tag: str | None = None
    properties: dict[str, str] | None = None
    queue: QueueId | None = None
    ttl_ms: TtlMs | None = None
    priority: Priority | None = None


class PublishRequest(Request):
    """Messages to publish, stored all or none."""

    messages: list[NewMessage]


@cache
def publish_request(message: Any, limit: int) -> Any:
    """Return the type of a request with at most `limit` messages of a type: a longer list is
    refused by its length, in msgpack before any of its messages is made."""
    listed = Annotated[list[message], Meta(max_length=limit)]
    return msgspec.defstruct("PublishRequest", [("messages", listed)], forbid_unknown_fields=True)


class PublishResult(Struct):
    """Where one message is. Of a binary request: where one batch is, by its first message,
    its `count` of messages, and `duplicate` if an earlier try of it was stored."""

    queue: int
    offset: int
    message_id: str
    count: int | UnsetType = UNSET
    duplicate: bool | UnsetType = UNSET


class PublishReply(Struct, omit_defaults=True):
    """`durable`: acknowledged after the sync that covers it. `duplicate`: an earlier try of
    the same request was stored; these are its offsets."""

    results: list[PublishResult]
    durable: bool
    duplicate: bool = False


# -- pulling -------------------------------------------------------------------------------


class Message(Struct):
    """A message as it is delivered in JSON: `body` where its bytes are UTF-8, else
    `body_base64`."""

    topic: str
    queue: int
    offset: int
    message_id: str
    key: str | None
    tag: str | None
    properties: dict[str, str]
    born_timestamp_ms: int
    store_timestamp_ms: int
    body: str | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET


class PackedMessage(Struct):
    """A message as it is delivered in msgpack: `body` is bin."""

    topic: str
    queue: int
    offset: int
    message_id: str
    key: str | None
    tag: str | None
    properties: dict[str, str]
    born_timestamp_ms: int
    store_timestamp_ms: int
    body: bytes


class SkippedRange(Struct):
    """Messages that are damaged or gone and were passed over: those from `start_offset` to before
    `end_offset`."""

    queue: int
    start_offset: int
    end_offset: int
    reason: str


class PullReply(Struct, Generic[AnyMessage]):
    """What a pull found; go on from `next_offset`. `skipped` is there when it passed over
    something: with `skip_corrupt`, or where an operator has accepted the loss."""

    messages: list[AnyMessage]
    next_offset: int
    min_offset: int
    max_offset: int
    skipped: list[SkippedRange] | UnsetType = UNSET


class QueueReply(Struct, omit_defaults=True):
    """Where one queue of a poll stands; with `problem` it was not read."""

    queue: int
    next_offset: int
    min_offset: int
    max_offset: int
    problem: dict[str, Any] | None = None


class PollReply(Struct, Generic[AnyMessage]):
    """What a poll over several queues found. `skipped` as in a pull's reply."""

    messages: list[AnyMessage]
    queues: list[QueueReply]
    skipped: list[SkippedRange] | UnsetType = UNSET


class SearchReply(Struct, Generic[AnyMessage]):
    """The messages found, newest first. `skipped` is there when messages that may have had the
    key were passed over, because they are damaged."""

    messages: list[AnyMessage]
    skipped: list[SkippedRange] | UnsetType = UNSET


class OffsetReply(Struct):
    """The first offset stored at or after a time; null when that is the queue's end."""

    offset: int
    store_timestamp_ms: int | None


class SplitReply(Struct):
    """One piece of a plan: offsets from start to before end. Its batches lie in the log from one
    physical offset to before the other, among those of other queues."""

    queue: int
    start_offset: int
    end_offset: int
    bytes: int
    physical_offset: int
    end_physical_offset: int


class SegmentReply(Struct):
    """A file of the log: the name (its start offset) and the time together tell it from any
    other."""

    start_offset: int
    size: int
    created_timestamp_us: int


class ReadLeaseReply(Struct):
    """A lease on what is to be read; it ends at `until_ms` unless it is extended."""

    id: str
    until_ms: int


class ReadLeaseRequest(Request):
    """How long a lease lives from now."""

    lease_ms: Annotated[int, Meta(ge=1)]


class ReadLeaseEndedReply(Struct):
    """Whether there was such a lease; there is none now."""

    ended: bool


class SplitsReply(Struct):
    """A plan for parallel readers. `segments` are the files that the pieces lie in, as far as they
    are whole, for readers that see the data directory. `lease` pins what is in the plan, where one
    was asked for and there is anything to pin."""

    topic: str
    topic_id: int
    splits: list[SplitReply]
    segments: list[SegmentReply]
    lease: ReadLeaseReply | UnsetType = UNSET


# -- topics --------------------------------------------------------------------------------


class TopicSettings(Request):
    """What a topic has; null or 0 for retention means none. What is left out is the default
    on creation, and stays as it is on a change. `queues` are those of each level of priority, of
    which there are as many for ever as `priority_levels` says on creation (1: no priorities)."""

    queues: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    priority_levels: Annotated[int, Meta(ge=1, le=MAX_LEVELS)] | UnsetType = UNSET
    durability: Durability | UnsetType = UNSET
    retention_ms: Annotated[int, Meta(ge=0, le=MAX_TIMESTAMP_MS)] | UnsetType | None = UNSET
    retention_bytes: Annotated[int, Meta(ge=0, le=MAX_OFFSET)] | UnsetType | None = UNSET
    max_message_bytes: Annotated[int, Meta(ge=1, le=2**31 - 1)] | UnsetType = UNSET

    def queue_count(self) -> int | None:
        """Return the number of queues, None if it was not given."""
        return None if self.queues is UNSET else self.queues

    def level_count(self) -> int | None:
        """Return the number of levels of priority, None if it was not given."""
        return None if self.priority_levels is UNSET else self.priority_levels

    def fields(self) -> dict[str, object]:
        """Return what was given, but for the numbers of queues and levels."""
        given = msgspec.structs.asdict(self)
        del given["queues"], given["priority_levels"]
        return {name: value for name, value in given.items() if value is not UNSET}


class TopicConfigReply(Struct):
    """A topic's settings; null means no limit. `priority_levels` is there when there are several:
    queue q of the log is then `index * priority_levels + level`."""

    durability: Durability
    retention_ms: int | None
    retention_bytes: int | None
    max_message_bytes: int
    priority_levels: int | UnsetType = UNSET


class QueueStateReply(Struct):
    """Where a queue begins and ends; `bytes` are those stored between."""

    queue: int
    min_offset: int
    max_offset: int
    bytes: int
    newest_timestamp_ms: int | None


class ReadLeasesReply(Struct):
    """What readers have pinned: so many leases, the last of which ends at `until_ms`, and by queue
    the offset from which retention by age and size takes nothing."""

    count: int
    until_ms: int
    offsets: dict[str, int]


class TopicReply(Struct):
    """A topic with its queues; `read_leases` is there while readers have pinned some of them."""

    topic: str
    topic_id: int
    queue_count: int
    created_timestamp_ms: int
    queues: list[QueueStateReply]
    config: TopicConfigReply
    read_leases: ReadLeasesReply | UnsetType = UNSET


class TopicSummary(Struct):
    """A topic in a listing."""

    topic: str
    topic_id: int
    queue_count: int
    created_timestamp_ms: int
    config: TopicConfigReply


class TopicsReply(Struct):
    """A page of topics, by name; `next` is the `after` of the next page, null on the last."""

    topics: list[TopicSummary]
    next: str | None


class DeletedReply(Struct):
    """The topic that was deleted."""

    topic: str
    topic_id: int


# -- operations ----------------------------------------------------------------------------


class HealthReply(Struct):
    """The process lives and its event loop turns."""

    status: Literal["alive"]


class FaultReply(Struct):
    """Something that is damaged: a stable word for machines, a sentence for people."""

    reason: str
    detail: str


class ReadyReply(Struct):
    """The broker serves. `degraded` names its faults; `read_only` says why nothing can be
    published until it is restarted, `alarms` what stops publishing until it passes by itself."""

    phase: str
    degraded: list[FaultReply]
    read_only: str | None
    alarms: dict[str, str]
