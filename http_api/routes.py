"""Every endpoint: the page to read first."""

from collections.abc import Sequence
from typing import Any

from holdfast.http_api.access.grants import (
    GROUP_VERBS,
    KNOWN,
    OPEN,
    TOPIC_VERBS,
    granted,
)
from holdfast.http_api.codecs import BATCH, JSON, MSGPACK, NDJSON
from holdfast.http_api.delivery import PULL_TYPES, SKIPPED_HEADER
from holdfast.http_api.groups import (
    get_group,
    get_offsets,
    list_groups,
    put_offsets,
    reset_offsets,
)
from holdfast.http_api.lookups import (
    OffsetParams,
    SearchParams,
    SplitsParams,
    get_message,
    get_offset,
    get_splits,
    search_messages,
)
from holdfast.http_api.operations import (
    get_health,
    get_info,
    get_metrics,
    get_openapi,
    get_ready,
)
from holdfast.http_api.poll import PollParams, poll
from holdfast.http_api.publish import PublishParams, publish
from holdfast.http_api.pull import PullParams, pull
from holdfast.http_api.route import Route, structured
from holdfast.http_api.topics import (
    DeleteParams,
    PageParams,
    delete_topic,
    get_topic,
    list_topics,
    patch_topic,
    put_topic,
)
from holdfast.http_api.types import (
    DeletedReply,
    GroupReply,
    GroupsReply,
    HealthReply,
    Message,
    OffsetReply,
    OffsetsReply,
    OffsetsRequest,
    PollReply,
    PublishReply,
    PublishRequest,
    PullReply,
    ReadyReply,
    ResetReply,
    ResetRequest,
    SearchReply,
    SplitsReply,
    TopicReply,
    TopicSettings,
    TopicsReply,
)

_NO_TOPIC = ("invalid-name", "unknown-topic")
_NO_QUEUE = (*_NO_TOPIC, "unknown-queue")
_NO_GROUP = (*_NO_TOPIC, "unknown-group")
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
_GROUP = "/v1/groups/{group}"
_GROUP_OFFSETS = _GROUP + "/topics/{topic}/offsets"


def _read_as(envelope: Any) -> dict[int, dict[str, Any]]:
    return {200: {JSON: envelope, NDJSON: str, MSGPACK: envelope, BATCH: None}}


ROUTES: Sequence[Route] = (
    # Messages in
    Route(
        "POST", _TOPIC + "/messages", publish, PublishParams,
        body={JSON: PublishRequest, NDJSON: str, MSGPACK: PublishRequest, BATCH: None, "*/*": None},
        replies={200: structured(PublishReply)},
        problems=(
            *_NO_QUEUE, "limit-reached", "message-too-large", "malformed-batch",
            "topic-recreated", "sequence-gap", "sequence-too-old", "producer-fenced",
            *_BAD_BODY, *_NOT_STORED,
        ),
        access=granted("publish"),
    ),
    # Messages out
    Route(
        "GET", _QUEUE + "/messages", pull, PullParams,
        offers=PULL_TYPES,
        replies=_read_as(PullReply[Message]),
        problems=(*_NO_QUEUE, *_NO_OFFSET, "invalid-filter", "too-many-held"),
        headers={**dict.fromkeys(_OFFSETS, "integer"), SKIPPED_HEADER: "string", **_TOPIC_ID},
        access=granted("consume"),
    ),
    Route(
        "GET", _TOPIC + "/messages", poll, PollParams,
        offers=PULL_TYPES,
        replies=_read_as(PollReply[Message]),
        problems=(*_NO_QUEUE, *_NO_OFFSET, "invalid-filter", "too-many-held"),
        headers={**dict.fromkeys(_OFFSETS, "string"), SKIPPED_HEADER: "string", **_TOPIC_ID},
        access=granted("consume"),
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
        access=granted("admin"), act="topic.create",
    ),
    Route(
        "PATCH", _TOPIC, patch_topic,
        body=structured(TopicSettings),
        replies={200: structured(TopicReply)},
        problems=(*_NO_TOPIC, "invalid-topic-change", "limit-reached", *_BAD_BODY, *_NOT_STORED),
        access=granted("admin"), act="topic.change",
    ),
    Route(
        "GET", "/v1/topics", list_topics, PageParams,
        replies={200: structured(TopicsReply)},
        access=granted(*TOPIC_VERBS),
    ),
    Route(
        "GET", _TOPIC, get_topic,
        replies={200: structured(TopicReply)},
        problems=_NO_TOPIC,
        access=granted(*TOPIC_VERBS),
    ),
    Route(
        "DELETE", _TOPIC, delete_topic, DeleteParams,
        replies={200: structured(DeletedReply)},
        problems=(*_NO_TOPIC, "confirm-required", *_NOT_STORED),
        access=granted("admin"), act="topic.delete",
    ),
    # Looking up
    Route(
        "GET", _QUEUE + "/offset", get_offset, OffsetParams,
        replies={200: structured(OffsetReply)},
        problems=_NO_QUEUE,
        headers=dict.fromkeys(_OFFSETS, "integer"),
        access=granted("consume"),
    ),
    Route(
        "GET", _TOPIC + "/splits", get_splits, SplitsParams,
        replies={200: structured(SplitsReply)},
        problems=(*_NO_QUEUE, "offset-trimmed", "offset-beyond-end"),
        access=granted("consume"),
    ),
    Route(
        "GET", _TOPIC + "/messages/search", search_messages, SearchParams,
        replies={200: structured(SearchReply[Message])},
        problems=_NO_TOPIC,
        access=granted("consume"),
    ),
    Route(
        "GET", "/v1/messages/{message_id}", get_message,
        replies={200: structured(Message)},
        problems=("unknown-message", "offset-trimmed", "corrupt-record"),
        # Of which topic, the endpoint looks up and checks.
        access=granted("consume"),
    ),
    # Groups' stored offsets
    Route(
        "GET", "/v1/groups", list_groups, PageParams,
        replies={200: structured(GroupsReply)},
        access=granted(*GROUP_VERBS),
    ),
    Route(
        "GET", _GROUP, get_group,
        replies={200: structured(GroupReply)},
        problems=("invalid-name", "unknown-group"),
        access=granted(*GROUP_VERBS),
    ),
    Route(
        "GET", _GROUP_OFFSETS, get_offsets,
        replies={200: structured(OffsetsReply)},
        problems=_NO_GROUP,
        headers=_ETAG,
        access=granted(*GROUP_VERBS),
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
        access=granted("consume"),
    ),
    Route(
        "POST", _GROUP_OFFSETS + "/reset", reset_offsets,
        body=structured(ResetRequest),
        replies={200: structured(ResetReply)},
        problems=(*_NO_QUEUE, "limit-reached", *_BAD_BODY, *_NOT_STORED),
        access=granted(*GROUP_VERBS), act="offsets.reset",
    ),
    # Operations
    Route(
        "GET", "/v1/info", get_info,
        replies={200: structured(dict[str, Any])},
        access=granted("operate"),
    ),
    Route(
        "GET", "/healthz", get_health,
        replies={200: structured(HealthReply)}, is_open=True, access=OPEN,
    ),
    Route(
        "GET", "/readyz", get_ready,
        replies={200: structured(ReadyReply)}, is_open=True, access=OPEN,
    ),
    Route(
        "GET", "/metrics", get_metrics,
        offers=(), replies={200: {"text/plain": str}}, is_open=True, access=granted("operate"),
    ),
    Route(
        "GET", "/openapi.json", get_openapi,
        offers=(), replies={200: {JSON: dict[str, Any]}}, is_open=True, access=KNOWN,
    ),
)  # fmt: skip
