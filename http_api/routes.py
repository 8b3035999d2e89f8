"""The table of all routes: each endpoint with its path, bodies, problems and required grants."""

from collections.abc import Sequence
from typing import Any

from holdfast.groups.descriptions import GroupReply
from holdfast.groups.service_types import Verb
from holdfast.groups.settings import GroupSettings
from holdfast.http_api.access.grants import (
    AUTHENTICATED,
    EVERYWHERE,
    GROUP_VERBS,
    PUBLIC,
    TOPIC_VERBS,
    require,
)
from holdfast.http_api.console import files
from holdfast.http_api.endpoints import (
    access,
    groups,
    inspection,
    leases,
    lookups,
    operations,
    topics,
)
from holdfast.http_api.endpoints.browse import BrowseParams, browse_messages
from holdfast.http_api.endpoints.connections import SessionsParams, list_connections, list_sessions
from holdfast.http_api.endpoints.group_lag import get_group, list_groups
from holdfast.http_api.endpoints.group_offsets import get_offsets, put_offsets, reset_offsets
from holdfast.http_api.endpoints.publish import PublishParams, begin_publish, publish
from holdfast.http_api.endpoints.pull import (
    PULL_TYPES,
    SKIPPED_HEADER,
    PollParams,
    PullParams,
    poll,
    pull,
)
from holdfast.http_api.endpoints.read_leases import end_read_lease, extend_read_lease
from holdfast.http_api.endpoints.redrive import redrive
from holdfast.http_api.endpoints.websocket import open_amqp
from holdfast.http_api.held_pulls import begin_pull
from holdfast.http_api.routing.codecs import BATCH, EVENTS, JSON, MSGPACK, NDJSON
from holdfast.http_api.routing.router import Handler, Route, structured
from holdfast.http_api.schemas import groups as group_types
from holdfast.http_api.schemas import inspection as inspection_types
from holdfast.http_api.schemas import leases as lease_types
from holdfast.http_api.schemas import messages as message_types

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

#: Where clients open a WebSocket for AMQP.
AMQP_PATH = "/amqp"

_TOPIC = "/v1/topics/{topic}"
_QUEUE = _TOPIC + "/queues/{queue}"
_READ_LEASE = _TOPIC + "/read-leases/{lease}"
_GROUP = "/v1/groups/{group}"
_GROUP_OFFSETS = _GROUP + "/topics/{topic}/offsets"


def _read_as(envelope: Any) -> dict[int, dict[str, Any]]:
    return {200: {JSON: envelope, NDJSON: str, MSGPACK: envelope, BATCH: None, EVENTS: str}}


def _settling(handler: Handler, verb: Verb) -> Route:
    return Route(
        "POST", f"{_GROUP}/{verb.value}", handler,
        body=structured(leases.SETTLE_REQUESTS[verb]),
        replies={200: structured(lease_types.SettledReply)},
        problems=(*_NO_LEASES, "limit-exceeded", *_BAD_BODY, *_NOT_STORED),
        access=require("consume"),
        begin=leases.begin_settling(verb),
    )  # fmt: skip


ROUTES: Sequence[Route] = (
    # Messages in
    Route(
        "POST", _TOPIC + "/messages", publish, PublishParams,
        body={**structured(message_types.PublishRequest), NDJSON: str, BATCH: None, "*/*": None},
        replies={200: structured(message_types.PublishReply)},
        problems=(
            *_NO_QUEUE, "limit-reached", "message-too-large", "malformed-batch",
            "reserved-property",
            "topic-recreated", "sequence-gap", "sequence-too-old", "producer-fenced",
            "too-many-producers", "sync-timeout", "topic-full", "unroutable",
            *_BAD_BODY, *_NOT_STORED,
        ),
        access=require("publish"),
        begin=begin_publish,
    ),
    # Messages out
    Route(
        "GET", _QUEUE + "/messages", pull, PullParams,
        offers=PULL_TYPES,
        replies=_read_as(message_types.PullReply[message_types.Message]),
        problems=(*_NO_QUEUE, *_NO_OFFSET, "invalid-filter", "too-many-held"),
        headers={**dict.fromkeys(_OFFSETS, "integer"), SKIPPED_HEADER: "string", **_TOPIC_ID},
        access=require("consume"),
        begin=begin_pull,
    ),
    Route(
        "GET", _TOPIC + "/messages", poll, PollParams,
        offers=PULL_TYPES,
        replies=_read_as(message_types.PollReply[message_types.Message]),
        problems=(*_NO_QUEUE, *_NO_OFFSET, "invalid-filter", "too-many-held"),
        headers={**dict.fromkeys(_OFFSETS, "string"), SKIPPED_HEADER: "string", **_TOPIC_ID},
        access=require("consume"),
    ),
    # Topics
    Route(
        "PUT", _TOPIC, topics.put_topic,
        body=structured(message_types.TopicSettings),
        replies=dict.fromkeys((200, 201), structured(message_types.TopicReply)),
        problems=(
            "invalid-name", "topic-conflict", "invalid-topic-change", "limit-reached",
            *_BAD_BODY, *_NOT_STORED,
        ),
        access=require("admin"), act="topic.create",
    ),
    Route(
        "PATCH", _TOPIC, topics.patch_topic,
        body=structured(message_types.TopicSettings),
        replies={200: structured(message_types.TopicReply)},
        problems=(
            *_NO_TOPIC, "invalid-topic-change", "keyed-backlog", "limit-reached", *_BAD_BODY,
            *_NOT_STORED,
        ),
        access=require("admin"), act="topic.change",
    ),
    Route(
        "GET", "/v1/topics", topics.list_topics, topics.PageParams,
        replies={200: structured(message_types.TopicsReply)},
        access=require(*TOPIC_VERBS),
    ),
    Route(
        "GET", _TOPIC, topics.get_topic,
        replies={200: structured(message_types.TopicReply)},
        problems=_NO_TOPIC,
        access=require(*TOPIC_VERBS),
    ),
    Route(
        "DELETE", _TOPIC, topics.delete_topic, topics.DeleteParams,
        replies={200: structured(message_types.DeletedReply)},
        problems=(*_NO_TOPIC, "confirm-required", *_NOT_STORED),
        access=require("admin"), act="topic.delete",
    ),
    # Looking up
    Route(
        "GET", _QUEUE + "/offset", lookups.get_offset, lookups.OffsetParams,
        replies={200: structured(message_types.OffsetReply)},
        problems=_NO_QUEUE,
        headers=dict.fromkeys(_OFFSETS, "integer"),
        access=require("consume"),
    ),
    Route(
        "GET", _TOPIC + "/splits", lookups.get_splits, lookups.SplitsParams,
        replies={200: structured(message_types.SplitsReply)},
        problems=(*_NO_QUEUE, "offset-trimmed", "offset-beyond-end", "too-many-read-leases"),
        access=require("consume"),
    ),
    Route(
        "PUT", _READ_LEASE, extend_read_lease,
        body=structured(message_types.ReadLeaseRequest),
        replies={200: structured(message_types.ReadLeaseReply)},
        problems=(*_NO_TOPIC, "unknown-read-lease", "limit-exceeded", *_BAD_BODY),
        access=require("consume"),
    ),
    Route(
        "DELETE", _READ_LEASE, end_read_lease,
        replies={200: structured(message_types.ReadLeaseEndedReply)},
        problems=(*_NO_TOPIC, "unknown-read-lease"),
        access=require("consume"),
    ),
    Route(
        "GET", _TOPIC + "/messages/search", lookups.search_messages, lookups.SearchParams,
        replies={200: structured(message_types.SearchReply[message_types.Message])},
        problems=_NO_TOPIC,
        access=require("consume"),
    ),
    Route(
        "GET", _TOPIC + "/messages/browse", browse_messages, BrowseParams,
        replies={200: structured(message_types.BrowseReply[message_types.Message])},
        problems=(*_NO_QUEUE, "invalid-filter"),
        access=require("consume"),
    ),
    Route(
        "GET", "/v1/messages/{message_id}", lookups.get_message,
        replies={200: structured(message_types.Message)},
        problems=("unknown-message", "offset-trimmed", "corrupt-record"),
        # The endpoint itself looks up the message's topic and checks access to it.
        access=require("consume"),
    ),
    # For operators
    Route(
        "GET", "/v1/access", access.get_access,
        replies={200: structured(inspection_types.AccessReply)},
        access=AUTHENTICATED,
    ),
    # These two also need `admin` on everything, which the endpoints check.
    Route(
        "GET", "/v1/access/tokens", access.list_tokens,
        replies={200: structured(inspection_types.TokensReply)},
        access=require("operate"),
    ),
    Route(
        "GET", "/v1/access/audit", access.list_audit, access.AuditParams,
        replies={200: structured(inspection_types.AuditReply)},
        access=require("operate"),
    ),
    Route(
        "GET", "/v1/overview", operations.get_overview,
        replies={200: structured(inspection_types.OverviewReply)},
        access=require("operate"),
    ),
    Route(
        "GET", "/v1/connections", list_connections, topics.PageParams,
        replies={200: structured(inspection_types.ConnectionsReply)},
        access=require("operate"),
    ),
    Route(
        "GET", "/v1/connections/sessions", list_sessions, SessionsParams,
        replies={200: structured(inspection_types.AmqpSessionsReply)},
        access=require("operate"),
    ),
    Route(
        "GET", "/v1/names", inspection.list_names, inspection.NamesParams,
        replies={200: structured(inspection_types.NamesReply)},
        access=require(*TOPIC_VERBS),
    ),
    Route(
        "GET", _TOPIC + "/groups", inspection.list_readers, topics.PageParams,
        replies={200: structured(inspection_types.ReadersReply)},
        problems=_NO_TOPIC,
        access=require(*GROUP_VERBS),
    ),
    Route(
        "GET", _GROUP + "/leases", inspection.list_leases, inspection.LeasesParams,
        replies={200: structured(inspection_types.LeasesReply)},
        problems=_NO_LEASES,
        access=require(*GROUP_VERBS),
    ),
    Route(
        "GET", "/v1/messages/{message_id}/groups", inspection.list_message_states,
        topics.PageParams,
        replies={200: structured(inspection_types.MessageStatesReply)},
        problems=("unknown-message", "offset-trimmed", "corrupt-record"),
        # As for the message itself.
        access=require("consume"),
    ),
    # Groups with and without leases
    Route(
        "GET", "/v1/groups", list_groups, topics.PageParams,
        replies={200: structured(group_types.GroupsReply)},
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
        "PUT", _GROUP, groups.put_group,
        body=structured(GroupSettings),
        replies=dict.fromkeys((200, 201), structured(GroupReply)),
        problems=(
            *_NO_TOPIC, "invalid-group", "group-busy", "invalid-filter", "limit-exceeded",
            "limit-reached", *_BAD_BODY, *_NOT_STORED,
        ),
        access=require(*GROUP_VERBS), act="group.set",
    ),
    Route(
        "DELETE", _GROUP, groups.delete_group, groups.DeleteGroupParams,
        replies={200: structured(group_types.GroupDeletedReply)},
        problems=("invalid-name", "unknown-group", "confirm-required", *_NOT_STORED),
        access=require("admin"), act="group.delete",
    ),
    # Groups with leases
    Route(
        "POST", _GROUP + "/receive", leases.receive,
        begin=leases.begin_receive,
        body=structured(lease_types.ReceiveRequest),
        offers=leases.RECEIVE_TYPES,
        replies={
            200: {**structured(lease_types.ReceiveReply[lease_types.LeasedMessage]), NDJSON: str}
        },
        problems=(
            *_NO_LEASES, "unknown-topic", "group-exclusive", "filter-not-allowed",
            "invalid-filter", "limit-exceeded", "limit-reached", "too-many-held",
            "corrupt-record", *_BAD_BODY, *_NOT_STORED,
        ),
        headers={"Holdfast-Available": "integer", "Holdfast-Active": "boolean"},
        access=require("consume"),
    ),
    _settling(leases.ack, Verb.ACK),
    _settling(leases.nack, Verb.NACK),
    _settling(leases.release, Verb.RELEASE),
    _settling(leases.extend, Verb.EXTEND),
    _settling(leases.reject, Verb.REJECT),
    Route(
        "POST", _GROUP + "/seek", groups.seek_group,
        body=structured(lease_types.SeekRequest),
        replies={200: structured(lease_types.SeekReply)},
        problems=(*_NO_LEASES, "unknown-topic", "unknown-queue", *_BAD_BODY, *_NOT_STORED),
        access=require(*GROUP_VERBS), act="group.seek",
    ),
    Route(
        "POST", _GROUP + "/redrive", redrive,
        body=structured(lease_types.RedriveRequest),
        replies={200: structured(lease_types.RedriveReply)},
        problems=(
            *_NO_LEASES, "unknown-topic", "no-dead-letters", "redrive-running", "invalid-group",
            "limit-exceeded", "limit-reached", "message-too-large", "corrupt-record",
            *_BAD_BODY, *_NOT_STORED,
        ),
        access=require(*GROUP_VERBS), act="group.redrive",
    ),
    Route(
        "POST", _GROUP + "/leave", groups.leave_group,
        body=structured(lease_types.LeaveRequest),
        replies={200: structured(lease_types.LeaveReply)},
        problems=(*_NO_LEASES, *_BAD_BODY),
        access=require("consume"),
    ),
    # Groups' stored offsets
    Route(
        "GET", _GROUP_OFFSETS, get_offsets,
        replies={200: structured(group_types.OffsetsReply)},
        problems=_NO_GROUP,
        headers=_ETAG,
        access=require(*GROUP_VERBS),
    ),
    Route(
        "PUT", _GROUP_OFFSETS, put_offsets,
        body=structured(group_types.OffsetsRequest),
        replies={200: structured(group_types.OffsetsReply)},
        problems=(
            *_NO_QUEUE, "offset-beyond-end", "offsets-changed", "limit-reached",
            *_BAD_BODY, *_NOT_STORED,
        ),
        headers=_ETAG,
        access=require("consume"),
    ),
    Route(
        "POST", _GROUP_OFFSETS + "/reset", reset_offsets,
        body=structured(group_types.ResetRequest),
        replies={200: structured(group_types.ResetReply)},
        problems=(*_NO_QUEUE, "limit-reached", *_BAD_BODY, *_NOT_STORED),
        access=require(*GROUP_VERBS), act="offsets.reset",
    ),
    # Operations
    Route(
        "GET", "/v1/info", operations.get_info,
        replies={200: structured(dict[str, Any])},
        access=require("operate"),
    ),
    Route(
        "GET", "/healthz", operations.get_health,
        replies={200: structured(message_types.HealthReply)}, is_open=True, access=PUBLIC,
    ),
    Route(
        "GET", "/readyz", operations.get_ready,
        replies={200: structured(message_types.ReadyReply)}, is_open=True, access=PUBLIC,
    ),
    Route(
        "GET", "/metrics", operations.get_metrics,
        offers=(), replies={200: {"text/plain": str}}, is_open=True, access=require("operate"),
    ),
    Route(
        "GET", "/openapi.json", operations.get_openapi,
        offers=(), replies={200: {JSON: dict[str, Any]}}, is_open=True, access=AUTHENTICATED,
    ),
)  # fmt: skip

#: The routes on which another protocol may take over the connection. The OpenAPI document cannot
#: describe them. A browser cannot send a token when it opens a WebSocket, so every caller may open
#: one, and the other protocol authenticates the caller.
UPGRADES: Sequence[Route] = (Route("GET", AMQP_PATH, open_amqp, offers=(), access=PUBLIC),)


def _page(path: str, handler: Handler) -> Route:
    return Route(
        "GET", path, handler, offers=(), is_open=True, is_page=True, access=EVERYWHERE
    )  # fmt: skip


#: The console: files that contain nothing secret. The page in the browser uses the API, with the
#: token of its user.
PAGES: Sequence[Route] = (
    _page("/", files.get_root),
    _page("/console", files.get_console),
    _page("/console/", files.get_file),
    _page("/console/settings.json", files.get_settings),
    _page("/console/{file}", files.get_file),
    _page("/console/views/{file}", files.get_file),
)
