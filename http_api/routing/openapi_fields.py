"""The descriptions of fields in the OpenAPI document, by name. They include the fields of problem
replies.

An entry `field` describes this field in every schema. If the field has another meaning in one
schema, that schema has an entry `Schema.field`, which takes precedence. A field whose type has a
description needs no entry.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

_Json = dict[str, Any]


class Doc(NamedTuple):
    """A field's description, and an example of its value."""

    text: str
    example: object = None


_TIME_MS = 1_760_000_000_000
_ID = "00000001000000000000000C00000000"

FIELDS: Mapping[str, Doc] = {
    "active": Doc("Whether this member may be served now. False: another member is served."),
    "alarms": Doc(
        "Alarms that stop publishing until their cause is gone: the alarm's name -> the cause."
    ),
    "attempt": Doc("The number of this delivery of the message, counted from 1.", 1),
    "attempt_id": Doc(
        "A name for this request. A repeated request with the same name gets the same messages, "
        "as long as they are leased.",
        "a-17",
    ),
    "auto_delete_after_ms": Doc(
        "The group is deleted when it has had no member for this long. 0: never.", 86_400_000
    ),
    "available": Doc("An upper bound of how many messages could be delivered now."),
    "ReceiveReply.available": Doc(
        "An upper bound of how many more messages could be delivered now."
    ),
    "backoff_ms": Doc(
        "The delay of a message after its n-th failure. The last entry applies to all later "
        "failures too.",
        [1000, 10_000, 60_000],
    ),
    "body": Doc(
        "The body as text. A delivered message has this field if its body is valid UTF-8.", "hello"
    ),
    "body_base64": Doc(
        "The body as base64 (RFC 4648 section 4, with padding). A delivered message has this "
        "field if its body is not valid UTF-8.",
        "AAE=",
    ),
    "born_timestamp_ms": Doc(
        "When the publisher created the message, milliseconds since 1970.", _TIME_MS
    ),
    "browse": Doc(
        "Only read messages, without leases. Each call continues after the messages of the "
        "previous call."
    ),
    "bytes": Doc("Stored bytes."),
    "ServedReply.bytes": Doc("Bytes of the bodies that were delivered."),
    "config": Doc("The settings in force."),
    "cost": Doc("The unit in which a topic's share is measured.", "count"),
    "count": Doc("How many messages were delivered."),
    "PublishResult.count": Doc("Messages of the batch. Only present for binary requests."),
    "ReadLeasesReply.count": Doc("How many leases there are."),
    "created_timestamp_ms": Doc("The creation time, milliseconds since 1970.", _TIME_MS),
    "created_timestamp_us": Doc("The creation time of the file, microseconds since 1970."),
    "cumulative": Doc(
        "For each receipt, also acknowledge all earlier messages of the same queue that this "
        "member holds."
    ),
    "dead": Doc("Messages that were settled as dead letters."),
    "dead_letter_topic": Doc("The topic for dead letters. Null: they are dropped.", "orders.dead"),
    "RedriveReply.dead_letter_topic": Doc("The topic that the letters were taken from."),
    "degraded": Doc("Faults that do not stop the broker from serving requests."),
    "delay_ms": Doc(
        "How long the messages are delayed. If not given, the group's backoff_ms applies."
    ),
    "delayed": Doc("Messages that are delayed after a failure."),
    "detail": Doc("A sentence for people."),
    "dry_run": Doc("Whether the request was a test that changed nothing."),
    "ResetRequest.dry_run": Doc(
        "Change nothing. Only return the offsets that the reset would store."
    ),
    "duplicate": Doc(
        "Whether an earlier attempt of the same request was stored. The offsets are those of the "
        "earlier attempt."
    ),
    "durability": Doc(
        "When a publish is acknowledged. `fsync`: when the data is synced to the disk. `written`: "
        "when it is written to the operating system.",
        "fsync",
    ),
    "durable": Doc("Whether all changes were synced to the disk before this reply."),
    "dying": Doc("Messages on their way to the dead-letter topic."),
    "end_offset": Doc("The offset after the last message."),
    "end_physical_offset": Doc("The offset in the log at which the last batch ends."),
    "ended": Doc("Whether the lease existed."),
    "engine": Doc(
        "The algorithm that chooses the next topic: start-time fair queueing (sfq) or deficit "
        "round robin (dwrr).",
        "sfq",
    ),
    "expired": Doc("Messages that were settled because their time to live had passed."),
    "fairness": Doc("How the topics share the deliveries to the members."),
    "filter": Doc(
        "A filter for messages: tags separated by commas, or an SQL92 condition over properties. "
        "Null: all messages.",
        "region = 'EU'",
    ),
    "floor": Doc("All messages below this offset are settled."),
    "group": Doc("The group's name.", "billing"),
    "groups": Doc("The groups of this page."),
    "holder": Doc("The member that holds the message. Only present with `include_leased`."),
    "id": Doc("The lease's id."),
    "include_leased": Doc(
        "Also show messages that a member holds, with their `holder`. Only with `browse`."
    ),
    "in_flight": Doc("Messages that are leased now."),
    "key": Doc(
        "The message's key. It chooses the queue, and messages with the same key stay in order. "
        "Null: no key.",
        "customer-7",
    ),
    "UnitLimit.key": Doc("The key. Null: messages without a key."),
    "lag_bytes": Doc("Stored bytes from the first message that is not consumed to the end."),
    "lag_messages": Doc("Messages that are not consumed."),
    "lag_seconds": Doc("The age of the oldest message that is not consumed."),
    "last_value": Doc(
        "Deliver a message only while it is the newest message of its key in its queue."
    ),
    "lease": Doc("The lease that pins the messages of the plan."),
    "lease_ms": Doc("How long a message is leased, in milliseconds.", 30_000),
    "ReadLeaseRequest.lease_ms": Doc("The duration of the lease from now on.", 600_000),
    "limits": Doc("Limits for single queues or keys: the most messages that are wanted of each."),
    "lost": Doc(
        "Messages that were settled because retention deleted them or damage destroyed them."
    ),
    "max_attempts": Doc(
        "The number of failures that makes a message a dead letter. 0: no limit.", 16
    ),
    "max_bytes": Doc(
        "Most bytes of messages to deliver. The first message is delivered even if it is larger.",
        1_048_576,
    ),
    "TopicSettings.max_bytes": Doc(
        "Stored bytes above which publishes are refused (507). Null or 0: no limit.", 2**33
    ),
    "TopicConfigReply.max_bytes": Doc(
        "Stored bytes above which publishes are refused. Only present if the topic has this limit.",
        2**33,
    ),
    "max_in_flight": Doc("Highest number of leases of the whole group at once.", 1000),
    "max_in_flight_per_key": Doc("Highest number of leases of one key at once, in keyed mode.", 32),
    "max_in_flight_per_member": Doc("Highest number of leases of one member at once.", 1000),
    "max_message_bytes": Doc(
        "Largest body of a message. Key, tag and properties have their own limits.", 4_194_304
    ),
    "max_messages": Doc(
        "Most messages to deliver. 0: only return how many messages are available.", 32
    ),
    "max_offset": Doc("The offset that the queue's next message will get."),
    "member": Doc("The member's name.", "m1"),
    "member_ttl_ms": Doc(
        "A member is removed if it sends no request, has no waiting request and holds no lease "
        "for this long.",
        30_000,
    ),
    "members": Doc("The members that count as present."),
    "message_id": Doc("The message's id. It can be used to look up the message.", _ID),
    "messages": Doc("The messages, in order."),
    "PublishRequest.messages": Doc(
        "The messages to publish. If not given, the request itself is one message."
    ),
    "min_offset": Doc("The first offset that is kept."),
    "mode": Doc("How the messages are shared among the members.", "competing"),
    "newest_timestamp_ms": Doc("When the newest message was stored. Null: there is no message."),
    "next": Doc("The value of `after` for the next page. Null on the last page."),
    "QueueLagReply.next": Doc("No message at or after this offset was delivered."),
    "next_offset": Doc("The offset to continue from.", 12),
    "no_local": Doc(
        "The session whose own messages the reply leaves out: the name or number of a producer, a "
        'range of such numbers ("10-19"), or the container-id of an AMQP client.',
        "billing-1",
    ),
    "notice": Doc(
        "Whether this member is served from now on. Its first messages come with its next request."
    ),
    "offset": Doc("The message's offset in its queue.", 12),
    "QueueLagReply.offset": Doc("The stored offset. Null: no offset is stored."),
    "OffsetReply.offset": Doc("The offset that was found."),
    "offsets": Doc("Queue number as text -> offset."),
    "SeekReply.offsets": Doc("Topic -> queue number as text -> offset."),
    "phase": Doc("The broker's phase, such as ready or draining.", "ready"),
    "physical_offset": Doc("The offset in the log at which the first batch begins."),
    "priority": Doc("0 to 9, in a topic with priority levels. 4 if not given.", 4),
    "priority_levels": Doc("The number of priority levels. 1: no priorities.", 1),
    "problem": Doc("Why this queue was not read."),
    "properties": Doc("Texts by name. Filters and consumers can use them.", {"region": "EU"}),
    "queue": Doc("The queue's number.", 0),
    "queue_count": Doc("The number of queues of the topic, in all priority levels.", 4),
    "queues": Doc("The state of each queue."),
    "TopicSettings.queues": Doc("The number of queues in each priority level.", 4),
    "ResetRequest.queues": Doc("Only these queues. All queues if not given.", [0, 1]),
    "rate": Doc("Messages per second over the last minute."),
    "read_leases": Doc("The read leases of the topic and what they pin."),
    "read_only": Doc(
        "Why no message can be published until a restart. Null: messages can be published."
    ),
    "reason": Doc("The reason, as a stable word for programs."),
    "receipt": Doc("The receipt that settles the message. Null: the message needs no settling."),
    "redelivered": Doc("Whether the message may have been delivered before."),
    "results": Doc("One result for each message or batch, in the order of the request."),
    "SettledReply.results": Doc("One result for each receipt, in the order of the request."),
    "retention_bytes": Doc(
        "Size above which the oldest messages may be deleted. Null or 0: no limit.", 10_737_418_240
    ),
    "retention_ms": Doc(
        "Age above which messages may be deleted. Null or 0: no limit.", 604_800_000
    ),
    "segments": Doc("The segment files that contain the pieces, as far as the files are complete."),
    "served": Doc("Deliveries since the broker started."),
    "settle": Doc("What to settle before messages are received. Not with NDJSON."),
    "settled": Doc("Acknowledge each message when it is sent. The messages have no receipts."),
    "size": Doc("Size of the file in bytes."),
    "skipped": Doc("Ranges of messages that were skipped because they are damaged or deleted."),
    "splits": Doc("The pieces of the plan."),
    "standing": Doc(
        "The number that determines when the topic is served: its tag (sfq) or its deficit (dwrr)."
    ),
    "start": Doc("Where the group begins in a queue that is new to it.", "earliest"),
    "start_offset": Doc("The first offset."),
    "SegmentReply.start_offset": Doc(
        "The offset in the log at which the file begins. It is also the file's name."
    ),
    "status": Doc("The result, as a stable word for programs."),
    "Problem.status": Doc("The HTTP status."),
    "store_timestamp_ms": Doc(
        "When the broker stored the message, milliseconds since 1970.", _TIME_MS
    ),
    "strict_leases": Doc("Refuse to settle a message after its lease has ended."),
    "superseded": Doc("Messages that were settled because a later one has the same key."),
    "tag": Doc("The message's tag, for filters. Null: no tag.", "paid"),
    "timestamp_ms": Doc("The time.", _TIME_MS),
    "title": Doc("A short text for this type of problem."),
    "to": Doc("The target: an end of the queues, a time, or offsets.", "earliest"),
    "topic": Doc("The topic's name.", "orders"),
    "topic_id": Doc(
        "The topic's number. A topic that is deleted and created again has a new number.", 1
    ),
    "topics": Doc("The topics, by name."),
    "ReceiveRequest.topics": Doc("Only messages of these topics.", ["orders"]),
    "GroupSummary.topics": Doc("The names of the group's topics."),
    "TopicsReply.topics": Doc("The topics of this page."),
    "GroupReply.topics": Doc("How far the group is behind in each of its topics."),
    "ttl_ms": Doc("How long groups may deliver the message, in milliseconds.", 60_000),
    "type": Doc("The type of the problem. It is stable and meant for programs."),
    "verb": Doc("How to settle the messages: the endpoint of the same name describes it.", "ack"),
    "until_ms": Doc("The end time, milliseconds since 1970.", _TIME_MS),
    "used_ms": Doc("How long the member worked on each message, in milliseconds."),
    "wait_ms": Doc("How long to wait for a first message, in milliseconds.", 20_000),
    "waiting": Doc("Requests that wait for messages."),
    "weight": Doc("The topic's share. 0: the topic is served when no other topic has messages.", 1),
    # Replies for operators
    "certificate": Doc(
        "The name of the client certificate, if this is not a token. Null: a token."
    ),
    "created_ms": Doc("When the token was created, milliseconds since 1970.", _TIME_MS),
    "events": Doc("The events, each with time, act, object, outcome, principal and client."),
    "TokenReply.expired": Doc("Whether the token has expired."),
    "name": Doc("A label."),
    "token_id": Doc("The id of the token. It is no secret.", "5f1c0a93be27"),
    "tokens": Doc("The tokens."),
    "amqp": Doc("Connections of AMQP over TCP and TLS."),
    "amqp_links": Doc("Links of these connections."),
    "amqp_sessions": Doc("Sessions of these connections."),
    "AmqpLinkReply.address": Doc("The address of the link's source or target.", "/groups/billing"),
    "AmqpLinkReply.attached": Doc("Whether messages and credit may be sent."),
    "AmqpLinkReply.available": Doc("How many messages the sending end has, by its last report."),
    "AmqpLinkReply.name": Doc("The name of the link, which the client chose.", "receiver-1"),
    "channel": Doc("The channel of the session, as the client numbers it.", 0),
    "connection": Doc("The number of the connection, since the broker started.", 7),
    "container_id": Doc("The container-id of the client.", "billing-service"),
    "credit": Doc("How many messages the sending end may send now.", 100),
    "draining": Doc("Whether the receiving end wants the credit used up or given back."),
    "link_count": Doc("How many links the session has."),
    "links": Doc("The links of the session."),
    "role": Doc("What the client is: a sender sends messages to the broker."),
    "sessions": Doc("The sessions of this page."),
    "unsettled_in": Doc("Messages of the client that are not settled."),
    "unsettled_out": Doc("Messages to the client that are not settled."),
    "window_in": Doc("How many frames with messages the client may send now."),
    "window_out": Doc("How many frames with messages the broker may send now."),
    "MessageStateReply.last_value": Doc("Whether the group delivers only the newest of each key."),
    "arriving_bytes": Doc("Bytes of requests that arrive or are processed."),
    "client": Doc("The client.", "10.0.0.7"),
    "clients": Doc("The clients of this page."),
    "held_back": Doc("Clients that must wait because of a rate limit."),
    "http": Doc("Connections of HTTP, also those of WebSockets."),
    "HeldBackReply.limit": Doc("The kind of the limit."),
    "unsent_bytes": Doc("Bytes of replies that the client has not read yet."),
    "wait_seconds": Doc("After how many seconds the client is served again."),
    "AccessReply.principal": Doc("The caller. Names no secret.", "token:5f1c0a93be27"),
    "BrowsedQueue.next_offset": Doc("The start of the next request in the same order."),
    "BrowsedQueue.start_offset": Doc("Where this request began in the queue."),
    "GroupFiguresReply.count": Doc("Groups with leases."),
    "OverviewReply.topics": Doc("How many topics exist."),
    "OverviewReply.groups": Doc("Figures of the groups with leases."),
    "leases": Doc("The leases of this page."),
    "amqp_connections": Doc("Open connections of AMQP over TCP and TLS."),
    "at_limit": Doc("Some of the groups that deliver no new message because of a limit."),
    "at_limit_count": Doc("How many groups deliver no new message because of a limit."),
    "authentication": Doc("Whether the broker authenticates its clients."),
    "bytes_in_total": Doc("Bytes of the stored batches since the broker started."),
    "bytes_out_total": Doc("Bytes of the replies with messages since the broker started."),
    "bytes_per_day": Doc("How many bytes were written to the log per day lately."),
    "connections": Doc("Open connections of HTTP, also those of WebSockets."),
    "dead_letter_id": Doc("The id of the dead letter of the message.", _ID),
    "dead_letters": Doc("Messages that became dead letters."),
    "delivered_ms": Doc(
        "Since when the member holds the message, milliseconds since 1970.", _TIME_MS
    ),
    "disk": Doc("The disk of the log."),
    "event_loop_lag_seconds": Doc("How late the event loop last was for a timer."),
    "expired_leases": Doc("Leases that expired."),
    "expires_ms": Doc("When the token expires, milliseconds since 1970. Null: never.", _TIME_MS),
    "failures": Doc("How many deliveries of the message failed."),
    "free_bytes": Doc("Free bytes."),
    "grants": Doc("What the token grants.", ["consume:orders.:billing"]),
    "held_pulls": Doc("Pulls and event streams that are held now."),
    "letters_not_kept": Doc("Dead letters that could not be stored."),
    "log_bytes": Doc("Bytes of the files of the log."),
    "messages_in_total": Doc(
        "Messages that were acknowledged to publishers since the broker started."
    ),
    "messages_out_total": Doc("Messages that were delivered since the broker started."),
    "min_free_bytes": Doc("The disk alarm is raised below this."),
    "more": Doc("Whether there is more."),
    "outcomes": Doc("The results of `settle`, in the same order."),
    "names": Doc("The names that were found, sorted.", ["orders"]),
    "state": Doc("The state of the message in the group."),
    "sync_p99_seconds": Doc(
        "A time that 99 % of the syncs of the log did not exceed. Null: unknown."
    ),
    "total_bytes": Doc("The size of the disk in bytes."),
    "uptime_seconds": Doc("For how long the broker has run."),
    "version": Doc("The version of the broker.", "0.1.0"),
}

#: Fields whose numbers have 32 bits. The numbers of all other fields have 64 bits.
INT32 = frozenset({"queue", "queues", "queue_count", "priority", "priority_levels", "status"})

_TEXT: _Json = {"type": "string"}
_WHOLE: _Json = {"type": "integer", "format": "int64"}
_ANY: _Json = {}

#: The fields of problems in addition to those of RFC 9457, each with its schema and meaning.
PROBLEM_MEMBERS: Mapping[str, tuple[_Json, str]] = {
    "alarms": ({"type": "object"}, "The alarms that stop publishing now."),
    "allowed": (_ANY, "The allowed values: a text, or a list."),
    "batch": (_WHOLE, "The index of the batch in the request, counted from 0."),
    "current_epoch": (_WHOLE, "The producer's current epoch."),
    "dead_letter_topic": (_TEXT, "The topic that dead letters were taken from."),
    "degraded": (
        {"type": "array", "items": {}},
        "Faults that do not stop the broker from serving requests.",
    ),
    "entries": (_WHOLE, "Index entries that are not committed yet."),
    "epoch": (_WHOLE, "The producer's epoch in the request."),
    "existing": (_ANY, "The existing value."),
    "expected": (_ANY, "The expected value."),
    "field": (_TEXT, "The setting that is wrong or differs."),
    "found": (_ANY, "The value that was found."),
    "free_bytes": (_WHOLE, "The free space on the disk."),
    "given": (_ANY, "The value in the request."),
    "group": (_TEXT, "The group."),
    "groups": ({"type": "array", "items": {"type": "string"}}, "Some of the affected groups."),
    "holder": (_ANY, "The member that holds the group. Null: not known yet."),
    "in_flight": (_WHOLE, "Messages that are leased."),
    "index": (_WHOLE, "The index of the message in the request, counted from 0."),
    "kind": (_TEXT, "The kind of the name: topic or group."),
    "lease_id": (_TEXT, "The lease."),
    "limit": ({"type": "number"}, "The limit."),
    "limit_name": (_TEXT, "The limit's name in the configuration."),
    "max_offset": (_WHOLE, "The offset that the queue's next message will get."),
    "member": (_TEXT, "The member."),
    "message_id": (_TEXT, "The message."),
    "min_free_bytes": (_WHOLE, "The least free space that the disk must have."),
    "min_offset": (_WHOLE, "The first offset that is kept."),
    "mode": (_TEXT, "The group's mode."),
    "name": (_TEXT, "The name that was refused."),
    "needed_bytes": (_WHOLE, "The free space that the disk would need."),
    "next_offset": (_WHOLE, "The offset to continue from."),
    "offset": (_WHOLE, "The offset."),
    "oldest": (_WHOLE, "The oldest sequence that the broker remembers."),
    "parameter": (_TEXT, "The parameter, header or field of the body that is wrong."),
    "phase": (_TEXT, "The broker's phase, such as recovering or draining."),
    "position": (
        _ANY,
        "The position of the error in the filter, counted from 0. Null: no single position.",
    ),
    "progress": ({"type": "object"}, "The progress of the recovery."),
    "queue": (_WHOLE, "The queue."),
    "queue_count": (_WHOLE, "The number of queues of the topic."),
    "read_only": (_ANY, "Why no message can be published. Null: messages can be published."),
    "reason": (_TEXT, "The reason, as a stable word for programs."),
    "redriven": (_WHOLE, "Dead letters that were published again before this one."),
    "size": (_WHOLE, "The actual size."),
    "stored": (_TEXT, "Whether the messages were stored: `unknown`."),
    "stored_bytes": (_WHOLE, "The bytes that the topic stores."),
    "timeout_ms": (_WHOLE, "The timeout that has passed."),
    "topic": (_TEXT, "The topic."),
    "topic_id": (_ANY, "The topic's number. Null: it has none yet."),
    "topics": (
        {"type": "object"},
        "Dead letters that were published again before this one, by topic.",
    ),
    "used_bytes": (_WHOLE, "The memory in use."),
    "verb": (_TEXT, "The verb that the token does not grant."),
    "version": (_WHOLE, "The version of the stored offsets."),
    "waiting_bytes": (_WHOLE, "Bytes that wait for the log."),
}


def describe_field(schema_name: str, name: str, schema: _Json) -> _Json:
    """Return a field's schema, with a description, an example and the width of numbers added."""
    doc = FIELDS.get(f"{schema_name}.{name}") or FIELDS.get(name)
    described: _Json = plain_schema(schema, is_short=name in INT32)
    # Code generators treat a field with a default as always present.
    default = described.pop("default", None)
    if doc is not None and "description" not in described:
        described = {**described, "description": doc.text}
        if doc.example is not None and "examples" not in described:
            described["examples"] = [doc.example]
    if default is not None:
        described["description"] += f" If not given: {json.dumps(default)}."
    return described


def plain_schema(schema: Any, *, is_short: bool = False) -> Any:
    """Return a schema in the form that code generators understand best.

    In this form each whole number has a width, an enumeration of texts has the type "string", and a
    nullable value has a list of types.
    """
    if isinstance(schema, list):
        return [plain_schema(each, is_short=is_short) for each in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {
        name: value
        if name in ("default", "examples", "enum", "properties")
        else plain_schema(value, is_short=is_short)
        for name, value in schema.items()
        if not (name == "default" and value is None)
    }
    if plain.get("type") == "integer" and "format" not in plain:
        plain["format"] = "int32" if is_short else "int64"
    if "enum" in plain and "type" not in plain and all(isinstance(e, str) for e in plain["enum"]):
        plain["type"] = "string"
    if "$ref" in plain:
        plain.pop("type", None)
    if "description" in plain:
        plain["description"] = " ".join(plain["description"].split())
    return _without_null_branch(plain)


def _without_null_branch(schema: _Json) -> _Json:
    branches = schema.get("anyOf", ())
    others = [each for each in branches if each != {"type": "null"}]
    if len(branches) != 2 or len(others) != 1 or not isinstance(others[0].get("type"), str):
        return schema
    other, rest = others[0], {name: each for name, each in schema.items() if name != "anyOf"}
    if "enum" in other:
        other = {**other, "enum": [*other["enum"], None]}
    return {**other, **rest, "type": [other["type"], "null"]}
