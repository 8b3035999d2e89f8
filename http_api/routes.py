"""The table of all routes: each endpoint with its path, bodies, problems and required grants."""

from collections.abc import Sequence
from typing import Any

from holdfast.groups.descriptions import GroupReply
from holdfast.groups.settings import GroupSettings
from holdfast.http_api.access.grants import (
    AUTHENTICATED,
    GROUP_VERBS,
    PUBLIC,
    TOPIC_VERBS,
    require,
)
from holdfast.http_api.endpoints.group_lag import get_group, list_groups
from holdfast.http_api.endpoints.group_offsets import get_offsets, put_offsets, reset_offsets
from holdfast.http_api.endpoints.groups import (
    DeleteGroupParams,
    delete_group,
    leave_group,
    put_group,
    seek_group,
)
from holdfast.http_api.endpoints.lookups import (
    OffsetParams,
    SearchParams,
    SplitsParams,
    get_message,
    get_offset,
    get_splits,
    search_messages,
)
from holdfast.http_api.endpoints.operations import (
    get_health,
    get_info,
    get_metrics,
    get_openapi,
    get_ready,
)
from holdfast.http_api.endpoints.publish import PublishParams, publish
from holdfast.http_api.endpoints.pull import PollParams, PullParams, poll, pull
from holdfast.http_api.endpoints.pull_reply import PULL_TYPES, SKIPPED_HEADER
from holdfast.http_api.endpoints.read_leases import end_read_lease, extend_read_lease
from holdfast.http_api.endpoints.receive import receive
from holdfast.http_api.endpoints.receive_reply import RECEIVE_TYPES
from holdfast.http_api.endpoints.redrive import redrive
from holdfast.http_api.endpoints.settle import ack, extend, nack, reject, release
from holdfast.http_api.endpoints.topics import (
    DeleteParams,
    PageParams,
    delete_topic,
    get_topic,
    list_topics,
    patch_topic,
    put_topic,
)
from holdfast.http_api.routing.codecs import BATCH, EVENTS, JSON, MSGPACK, NDJSON
from holdfast.http_api.routing.router import Handler, Route, structured
from holdfast.http_api.schemas.groups import (
    GroupDeletedReply,
    GroupsReply,
    OffsetsReply,
    OffsetsRequest,
    ResetReply,
    ResetRequest,
)
from holdfast.http_api.schemas.leases import (
    AckRequest,
    ExtendRequest,
    LeasedMessage,
    LeaveReply,
    LeaveRequest,
    NackRequest,
    ReceiveReply,
    ReceiveRequest,
    RedriveReply,
    RedriveRequest,
    RejectRequest,
    ReleaseRequest,
    SeekReply,
    SeekRequest,
    SettledReply,
)
from holdfast.http_api.schemas.messages import (
    DeletedReply,
    HealthReply,
    Message,
    OffsetReply,
    PollReply,
    PublishReply,
    PublishRequest,
    PullReply,
    ReadLeaseEndedReply,
    ReadLeaseReply,
    ReadLeaseRequest,
    ReadyReply,
    SearchReply,
    SplitsReply,
    TopicReply,
    TopicSettings,
    TopicsReply,
)

_NO_TOPIC = ("invalid-name", "unknown-topic")
_NO_QUEUE = (*_NO_TOPIC, "unknown-queue")
_NO_GROUP = (*_NO_TOPIC, "unknown-group")
_NO_LEASES = ("invalid-name", "unknown-group", "group-without-leases")
_NO_OFFSET = ("offset-trimmed", "offset-beyond-end", "corrupt-record")
_BAD_BODY = (
    "malformed-json",
    "malformed-msgpack",
    "malformed-encoding",
    "unsupported-media-type",
    "unsupported-encoding",
    "request-too-large",
    "request-timeout",
    "overloaded",
)
_NOT_STORED = ("disk-full", "read-only")
_OFFSETS = ("Holdfast-Next-Offset", "Holdfast-Min-Offset", "Holdfast-Max-Offset")
_TOPIC_ID = {"Holdfast-Topic-Id": "integer"}
_ETAG = {"ETag": "string"}

_TOPIC = "/v1/topics/{topic}"
_QUEUE = _TOPIC + "/queues/{queue}"
_READ_LEASE = _TOPIC + "/read-leases/{lease}"
_GROUP = "/v1/groups/{group}"
_GROUP_OFFSETS = _GROUP + "/topics/{topic}/offsets"


def _read_as(envelope: Any) -> dict[int, dict[str, Any]]:
    return {200: {JSON: envelope, NDJSON: str, MSGPACK: envelope, BATCH: None, EVENTS: str}}


def _settling(verb: Handler, request: type) -> Route:
    return Route(
        "POST", f"{_GROUP}/{verb.__name__}", verb,
        body=structured(request),
        replies={200: structured(SettledReply)},
        problems=(*_NO_LEASES, "limit-exceeded", *_BAD_BODY, *_NOT_STORED),
        access=require("consume"),
    )  # fmt: skip


ROUTES: Sequence[Route] = (
    # Messages in
    Route(
        "POST", _TOPIC + "/messages", publish, PublishParams,
        body={JSON: PublishRequest, NDJSON: str, MSGPACK: PublishRequest, BATCH: None, "*/*": None},
        replies={200: structured(PublishReply)},
        problems=(
            *_NO_QUEUE, "limit-reached", "message-too-large", "malformed-batch",
            "reserved-property",
            "topic-recreated", "sequence-gap", "sequence-too-old", "producer-fenced",
            "too-many-producers", "sync-timeout", "topic-full",
            *_BAD_BODY, *_NOT_STORED,
        ),
        access=require("publish"),
    ),
    # Messages out
    Route(
        "GET", _QUEUE + "/messages", pull, PullParams,
        offers=PULL_TYPES,
        replies=_read_as(PullReply[Message]),
        problems=(*_NO_QUEUE, *_NO_OFFSET, "invalid-filter", "too-many-held"),
        headers={**dict.fromkeys(_OFFSETS, "integer"), SKIPPED_HEADER: "string", **_TOPIC_ID},
        access=require("consume"),
    ),
    Route(
        "GET", _TOPIC + "/messages", poll, PollParams,
        offers=PULL_TYPES,
        replies=_read_as(PollReply[Message]),
        problems=(*_NO_QUEUE, *_NO_OFFSET, "invalid-filter", "too-many-held"),
        headers={**dict.fromkeys(_OFFSETS, "string"), SKIPPED_HEADER: "string", **_TOPIC_ID},
        access=require("consume"),
    ),
    # Topics
    Route(
        "PUT", _TOPIC, put_topic,
        body=structured(TopicSettings),
        replies={200: structured(TopicReply), 201: structured(TopicReply)},
        problems=(
            "invalid-name", "topic-conflict", "invalid-topic-change", "limit-reached",
            *_BAD_BODY, *_NOT_STORED,
        ),
        access=require("admin"), act="topic.create",
    ),
    Route(
        "PATCH", _TOPIC, patch_topic,
        body=structured(TopicSettings),
        replies={200: structured(TopicReply)},
        problems=(
            *_NO_TOPIC, "invalid-topic-change", "keyed-backlog", "limit-reached", *_BAD_BODY,
            *_NOT_STORED,
        ),
        access=require("admin"), act="topic.change",
    ),
    Route(
        "GET", "/v1/topics", list_topics, PageParams,
        replies={200: structured(TopicsReply)},
        access=require(*TOPIC_VERBS),
    ),
    Route(
        "GET", _TOPIC, get_topic,
        replies={200: structured(TopicReply)},
        problems=_NO_TOPIC,
        access=require(*TOPIC_VERBS),
    ),
    Route(
        "DELETE", _TOPIC, delete_topic, DeleteParams,
        replies={200: structured(DeletedReply)},
        problems=(*_NO_TOPIC, "confirm-required", *_NOT_STORED),
        access=require("admin"), act="topic.delete",
    ),
    # Looking up
    Route(
        "GET", _QUEUE + "/offset", get_offset, OffsetParams,
        replies={200: structured(OffsetReply)},
        problems=_NO_QUEUE,
        headers=dict.fromkeys(_OFFSETS, "integer"),
        access=require("consume"),
    ),
    Route(
        "GET", _TOPIC + "/splits", get_splits, SplitsParams,
        replies={200: structured(SplitsReply)},
        problems=(*_NO_QUEUE, "offset-trimmed", "offset-beyond-end", "too-many-read-leases"),
        access=require("consume"),
    ),
    Route(
        "PUT", _READ_LEASE, extend_read_lease,
        body=structured(ReadLeaseRequest),
        replies={200: structured(ReadLeaseReply)},
        problems=(*_NO_TOPIC, "unknown-read-lease", "limit-exceeded", *_BAD_BODY),
        access=require("consume"),
    ),
    Route(
        "DELETE", _READ_LEASE, end_read_lease,
        replies={200: structured(ReadLeaseEndedReply)},
        problems=(*_NO_TOPIC, "unknown-read-lease"),
        access=require("consume"),
    ),
    Route(
        "GET", _TOPIC + "/messages/search", search_messages, SearchParams,
        replies={200: structured(SearchReply[Message])},
        problems=_NO_TOPIC,
        access=require("consume"),
    ),
    Route(
        "GET", "/v1/messages/{message_id}", get_message,
        replies={200: structured(Message)},
        problems=("unknown-message", "offset-trimmed", "corrupt-record"),
        # The endpoint itself looks up the message's topic and checks access to it.
        access=require("consume"),
    ),
    # Groups with and without leases
    Route(
        "GET", "/v1/groups", list_groups, PageParams,
        replies={200: structured(GroupsReply)},
        access=require(*GROUP_VERBS),
    ),
    Route(
        "GET", _GROUP, get_group,
        replies={200: structured(GroupReply)},
        problems=("invalid-name", "unknown-group"),
        access=require(*GROUP_VERBS),
    ),
    # If a path of a group has no topic, the endpoint itself finds the topics and checks access to
    # them.
    Route(
        "PUT", _GROUP, put_group,
        body=structured(GroupSettings),
        replies={200: structured(GroupReply), 201: structured(GroupReply)},
        problems=(
            *_NO_TOPIC, "invalid-group", "group-busy", "invalid-filter", "limit-exceeded",
            "limit-reached", *_BAD_BODY, *_NOT_STORED,
        ),
        access=require(*GROUP_VERBS), act="group.set",
    ),
    Route(
        "DELETE", _GROUP, delete_group, DeleteGroupParams,
        replies={200: structured(GroupDeletedReply)},
        problems=("invalid-name", "unknown-group", "confirm-required", *_NOT_STORED),
        access=require("admin"), act="group.delete",
    ),
    # Groups with leases
    Route(
        "POST", _GROUP + "/receive", receive,
        body=structured(ReceiveRequest),
        offers=RECEIVE_TYPES,
        replies={
            200: {
                JSON: ReceiveReply[LeasedMessage],
                NDJSON: str,
                MSGPACK: ReceiveReply[LeasedMessage],
            }
        },
        problems=(
            *_NO_LEASES, "unknown-topic", "group-exclusive", "filter-not-allowed",
            "invalid-filter", "limit-exceeded", "limit-reached", "too-many-held",
            "corrupt-record", *_BAD_BODY, *_NOT_STORED,
        ),
        headers={"Holdfast-Available": "integer", "Holdfast-Active": "boolean"},
        access=require("consume"),
    ),
    _settling(ack, AckRequest),
    _settling(nack, NackRequest),
    _settling(release, ReleaseRequest),
    _settling(extend, ExtendRequest),
    _settling(reject, RejectRequest),
    Route(
        "POST", _GROUP + "/seek", seek_group,
        body=structured(SeekRequest),
        replies={200: structured(SeekReply)},
        problems=(*_NO_LEASES, "unknown-topic", "unknown-queue", *_BAD_BODY, *_NOT_STORED),
        access=require(*GROUP_VERBS), act="group.seek",
    ),
    Route(
        "POST", _GROUP + "/redrive", redrive,
        body=structured(RedriveRequest),
        replies={200: structured(RedriveReply)},
        problems=(
            *_NO_LEASES, "unknown-topic", "no-dead-letters", "redrive-running", "invalid-group",
            "limit-exceeded", "limit-reached", "message-too-large", "corrupt-record",
            *_BAD_BODY, *_NOT_STORED,
        ),
        access=require(*GROUP_VERBS), act="group.redrive",
    ),
    Route(
        "POST", _GROUP + "/leave", leave_group,
        body=structured(LeaveRequest),
        replies={200: structured(LeaveReply)},
        problems=(*_NO_LEASES, *_BAD_BODY),
        access=require("consume"),
    ),
    # Groups' stored offsets
    Route(
        "GET", _GROUP_OFFSETS, get_offsets,
        replies={200: structured(OffsetsReply)},
        problems=_NO_GROUP,
        headers=_ETAG,
        access=require(*GROUP_VERBS),
    ),
    Route(
        "PUT", _GROUP_OFFSETS, put_offsets,
        body=structured(OffsetsRequest),
        replies={200: structured(OffsetsReply)},
        problems=(
            *_NO_QUEUE, "offset-beyond-end", "offsets-changed", "limit-reached",
            *_BAD_BODY, *_NOT_STORED,
        ),
        headers=_ETAG,
        access=require("consume"),
    ),
    Route(
        "POST", _GROUP_OFFSETS + "/reset", reset_offsets,
        body=structured(ResetRequest),
        replies={200: structured(ResetReply)},
        problems=(*_NO_QUEUE, "limit-reached", *_BAD_BODY, *_NOT_STORED),
        access=require(*GROUP_VERBS), act="offsets.reset",
    ),
    # Operations
    Route(
        "GET", "/v1/info", get_info,
        replies={200: structured(dict[str, Any])},
        access=require("operate"),
    ),
    Route(
        "GET", "/healthz", get_health,
        replies={200: structured(HealthReply)}, is_open=True, access=PUBLIC,
    ),
    Route(
        "GET", "/readyz", get_ready,
        replies={200: structured(ReadyReply)}, is_open=True, access=PUBLIC,
    ),
    Route(
        "GET", "/metrics", get_metrics,
        offers=(), replies={200: {"text/plain": str}}, is_open=True, access=require("operate"),
    ),
    Route(
        "GET", "/openapi.json", get_openapi,
        offers=(), replies={200: {JSON: dict[str, Any]}}, is_open=True, access=AUTHENTICATED,
    ),
)  # fmt: skip
