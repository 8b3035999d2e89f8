"""The bodies of requests that use groups with leases: receive, settle, seek, leave, redrive."""

from typing import Annotated, Generic, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast.groups.settings import DelayMs, LeaseMs, Name
from holdfast.http_api.schemas.groups import START_DOC, OffsetsByQueue, StartText, TimestampMs
from holdfast.http_api.schemas.messages import MessageHead, Offset, QueueId, Request

#: A receive may have at most this many entries in `settle`.
MAX_SETTLES = 100

OffsetsByTopic = dict[str, OffsetsByQueue]
Mark = Annotated[str, Meta(extra_json_schema={"pattern": "^[!-~]{1,127}$"})]
"""A name that a client has chosen for itself or for one of its requests."""
Receipts = Annotated[list[str], Meta(description="The receipts of the messages, in any order.")]
UsedMs = Annotated[
    float,
    Meta(
        ge=0,
        description="How long the member worked on each message, if shares are measured in time.",
    ),
]

AnyLeased = TypeVar("AnyLeased")
"""LeasedMessage in JSON, PackedLeasedMessage in msgpack."""


# -- receiving -----------------------------------------------------------------------------


class UnitLimit(Request):
    """The maximum number of messages of one queue, or of one key in a keyed group, in the reply.

    If `max_messages` is 0, the reply has no messages of the queue or key. Exactly one of `queue`
    and `key` must be given.
    """

    topic: Name
    max_messages: Annotated[int, Meta(ge=0)]
    queue: QueueId | None = None
    key: str | None = None


class SettleRequest(Request):
    """Messages that a receive settles first: the request of the endpoint that `verb` names.

    Only the fields of that endpoint may be given.
    """

    verb: Literal["ack", "nack", "release", "reject"]
    receipts: Receipts
    cumulative: bool = False
    delay_ms: DelayMs | None = None
    used_ms: UsedMs | None = None


class ReceiveRequest(Request):
    """A member's request for messages.

    `member` may be omitted in competing groups, where all members are alike. If `max_messages` is
    0, the reply only reports how many messages are available. `topics` restricts the reply to
    messages of these topics. With `settled`, each message is acknowledged when it is sent. With
    `browse`, messages are only read, without leases; with `include_leased` too, the reply also has
    messages that a member holds. A second request with the same `attempt_id`
    gets the same messages, if they are still leased. `limits` restricts the messages of single
    queues and keys. With `no_local`, the reply has no messages that this session published: the
    name or number of a producer (`Holdfast-Producer-Id`), a range of such numbers ("10-19"), or the
    container-id of an AMQP client.
    `settle` settles other messages before the request receives.
    """

    member: Mark | None = None
    max_messages: Annotated[int, Meta(ge=0)] | None = None
    max_bytes: Annotated[int, Meta(ge=1)] | None = None
    wait_ms: Annotated[int, Meta(ge=0)] = 0
    lease_ms: LeaseMs | None = None
    topics: list[Name] | None = None
    filter: str | None = None
    no_local: Mark | None = None
    settled: bool = False
    browse: bool = False
    include_leased: bool = False
    attempt_id: Mark | None = None
    limits: list[UnitLimit] | None = None
    settle: (
        Annotated[list[SettleRequest], Meta(extra_json_schema={"maxItems": MAX_SETTLES})] | None
    ) = None


class HolderReply(Struct):
    """The member that holds a message, until `until_ms`.

    `member` is null if the member is not known after a restart of the broker. `until_ms` is null if
    the lease lasts as long as the member's link of AMQP.
    """

    member: str | None
    until_ms: int | None


class LeasedMessageHead(MessageHead):
    """The fields of a leased message, except its body."""

    receipt: str | None
    attempt: int
    redelivered: bool
    holder: HolderReply | UnsetType = UNSET


class LeasedMessage(LeasedMessageHead):
    """A message that a group delivers in JSON.

    `receipt` settles the message; it is null if the message needs no settling. `attempt` is the
    number of this delivery, counted from 1. `redelivered` is true if the message may have been
    delivered before. `holder` is only present if `include_leased` shows a message that a member
    holds.
    """

    body: str | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET


class PackedLeasedMessage(LeasedMessageHead):
    """A message that a group delivers in msgpack. `body` has the msgpack type bin."""

    body: bytes = b""


class ReceiveReply(Struct, Generic[AnyLeased]):
    """The messages for a member.

    `available` is an upper bound of how many more messages are available. In a keyed group, it also
    counts messages that wait for an earlier message of their key. If `active` is false, only
    another member gets messages now. If `notice` is true, this member gets messages from now on,
    the first of them with its next request. `outcomes` is only present if the request has
    `settle`, and has an entry for each of its entries.
    """

    messages: list[AnyLeased]
    available: int
    active: bool
    notice: bool | UnsetType = UNSET
    outcomes: "list[SettledReply] | UnsetType" = UNSET


# -- settling ------------------------------------------------------------------------------


class AckRequest(Request):
    """Messages to acknowledge.

    With `cumulative`, each receipt also acknowledges all earlier messages of the same queue that
    its member has leased.
    """

    receipts: Receipts
    cumulative: bool = False
    used_ms: UsedMs | None = None


class NackRequest(Request):
    """Messages that failed. They are redelivered after `delay_ms`, or after the group's backoff."""

    receipts: Receipts
    delay_ms: DelayMs | None = None
    used_ms: UsedMs | None = None


class ReleaseRequest(Request):
    """Messages to give back, because the member has not processed them."""

    receipts: Receipts


class ExtendRequest(Request):
    """Messages whose leases are extended to `lease_ms` from now, or to the group's lease_ms."""

    receipts: Receipts
    lease_ms: LeaseMs | None = None


class RejectRequest(Request):
    """Messages that cannot be processed. They become dead letters."""

    receipts: Receipts
    used_ms: UsedMs | None = None


class StatusReply(Struct):
    """The result for a receipt.

    `done` means that this request, or an earlier one with the same receipt, took effect. `stale`
    means that the receipt cannot be used any more, for example because the message was delivered
    again or settled differently. `invalid` means that the text is not a receipt of this group.
    """

    status: Literal["done", "stale", "invalid"]


class SettledReply(Struct):
    """The result for each receipt, in the order of the request."""

    results: list[StatusReply]


# -- seeking and leaving -------------------------------------------------------------------


class SeekRequest(Request):
    """Where a group starts again: an end of the queues, a time, or offsets by topic and queue.

    If offsets are given, other queues keep their offsets.
    """

    to: Annotated[
        StartText | TimestampMs | OffsetsByTopic,
        Meta(description=f"{START_DOC} Or offsets: topic -> queue number as text -> offset."),
    ]


class SeekReply(Struct):
    """The new offsets of the group, for the queues whose offsets were set."""

    group: str
    offsets: OffsetsByTopic


class LeaveRequest(Request):
    """A member to remove."""

    member: Mark


class LeaveReply(Struct):
    """The member that was removed."""

    group: str
    member: str


# -- dead letters --------------------------------------------------------------------------


class RedriveRequest(Request):
    """Which dead letters to put back into the topics from which they came."""

    dead_letter_topic: Annotated[
        Name | None,
        Meta(
            description="The topic with the letters. If not given, the group's dead_letter_topic."
        ),
    ] = None
    offsets: Annotated[
        dict[str, list[Offset]] | None,
        Meta(
            description="Only these letters: queue number of the dead-letter topic as text -> "
            "offsets in it. All if not given.",
            examples=[{"0": [12, 40]}],
        ),
    ] = None
    limit: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="Most letters to publish again. If not given, groups.max_redrive_letters."
        ),
    ] = None
    dry_run: Annotated[
        bool,
        Meta(description="Only count the letters that would be published again. Change nothing."),
    ] = False
    discard: Annotated[
        bool,
        Meta(
            description="Do not publish the letters, and never put them back. Letters that were "
            "found stuck less than a minute ago are discarded by a later request."
        ),
    ] = False


class RedriveReply(Struct):
    """The dead letters that were put back, or with `dry_run` would be put back."""

    group: str
    dead_letter_topic: str
    dry_run: bool
    redriven: Annotated[
        int,
        Meta(
            description="Letters that were durably published again by this request, not by an "
            "earlier one."
        ),
    ]
    topics: Annotated[dict[str, int], Meta(description="The same number for each topic.")]
    stuck: Annotated[
        int,
        Meta(
            description="Letters that stay, because their original topic is unknown, does not "
            "exist any more, or is not a topic of the group. Letters of earlier requests are "
            "counted too. They are tried again after a minute at the earliest."
        ),
    ]
    more: Annotated[
        bool,
        Meta(
            description="Whether there may be more letters. Send the request again to publish them."
        ),
    ]
    discarded: Annotated[
        int | UnsetType,
        Meta(description="Letters that were discarded, if the request asks to discard."),
    ] = UNSET
