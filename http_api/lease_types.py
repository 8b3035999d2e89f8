"""The bodies of requests that a group's members send, and of their replies."""

from typing import Annotated, Generic, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast.http_api.group_types import DelayMs, LeaseMs, Name, OffsetsByQueue
from holdfast.http_api.params import MAX_TIMESTAMP_MS
from holdfast.http_api.types import Request

OffsetsByTopic = dict[str, OffsetsByQueue]
Mark = Annotated[str, Meta(extra_json_schema={"pattern": "^[!-~]{1,127}$"})]
"""What a client calls itself, or one of its requests."""
Receipts = Annotated[
    list[str], Meta(description="Receipts as they came with their messages, in any order.")
]
UsedMs = Annotated[
    float,
    Meta(ge=0, description="How long each was worked on, where shares are counted in time."),
]

AnyLeased = TypeVar("AnyLeased")
"""LeasedMessage in JSON, PackedLeasedMessage in msgpack."""


# -- receiving -----------------------------------------------------------------------------


class ReceiveRequest(Request):
    """What a member asks for. `member` may be left out where all members are alike: in competing
    groups. `max_messages` 0: only tell what is available. `topics`: only of these. `settled`: as
    if each was acknowledged as it is sent. `browse`: only look. `attempt_id`: the same one again
    gets the same answer, as far as its leases live."""

    member: Mark | None = None
    max_messages: Annotated[int, Meta(ge=0)] | None = None
    max_bytes: Annotated[int, Meta(ge=1)] | None = None
    wait_ms: Annotated[int, Meta(ge=0)] = 0
    lease_ms: LeaseMs | None = None
    topics: list[Name] | None = None
    filter: str | None = None
    settled: bool = False
    browse: bool = False
    attempt_id: Mark | None = None


class LeasedMessage(Struct):
    """A message as a group delivers it in JSON. `receipt` settles it; null where it needs none.
    `attempt` counts its deliveries, this one too. `redelivered`: it may have been seen before."""

    topic: str
    queue: int
    offset: int
    message_id: str
    key: str | None
    tag: str | None
    properties: dict[str, str]
    born_timestamp_ms: int
    store_timestamp_ms: int
    receipt: str | None
    attempt: int
    redelivered: bool
    body: str | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET


class PackedLeasedMessage(Struct):
    """A message as a group delivers it in msgpack: `body` is bin."""

    topic: str
    queue: int
    offset: int
    message_id: str
    key: str | None
    tag: str | None
    properties: dict[str, str]
    born_timestamp_ms: int
    store_timestamp_ms: int
    receipt: str | None
    attempt: int
    redelivered: bool
    body: bytes


class ReceiveReply(Struct, Generic[AnyLeased]):
    """What a member gets. `available`: how many more could be had, at most. `active` false:
    another member is served. `notice`: this member is served from now on; its first messages
    come when it asks again."""

    messages: list[AnyLeased]
    available: int
    active: bool
    notice: bool | UnsetType = UNSET


# -- settling ------------------------------------------------------------------------------


class AckRequest(Request):
    """Messages that are done. `cumulative`: with each, all that this member holds below it in
    its queue."""

    receipts: Receipts
    cumulative: bool = False
    used_ms: UsedMs | None = None


class NackRequest(Request):
    """Messages that failed: they come again after `delay_ms`, else after what the group's table
    says."""

    receipts: Receipts
    delay_ms: DelayMs | None = None
    used_ms: UsedMs | None = None


class ReleaseRequest(Request):
    """Messages that were not worked on."""

    receipts: Receipts


class ExtendRequest(Request):
    """Messages that take longer: they are leased for `lease_ms` from now, else for as long as
    the group leases."""

    receipts: Receipts
    lease_ms: LeaseMs | None = None


class RejectRequest(Request):
    """Messages that nobody can work on: they go to the dead letters."""

    receipts: Receipts
    used_ms: UsedMs | None = None


class StatusReply(Struct):
    """What became of a receipt. `stale`: the message is another's by now, or was settled
    otherwise; `invalid`: it is no receipt of this group."""

    status: Literal["done", "stale", "invalid"]


class SettledReply(Struct):
    """What became of each receipt, in their order."""

    results: list[StatusReply]


# -- moving --------------------------------------------------------------------------------


class SeekRequest(Request):
    """Where a group starts again: an end of the queues, a time, or offsets by topic and queue.
    With these, queues that are not named stay where they are."""

    to: (
        Literal["earliest", "latest"]
        | Annotated[int, Meta(ge=0, le=MAX_TIMESTAMP_MS)]
        | OffsetsByTopic
    )


class SeekReply(Struct):
    """Where a group starts again, in the queues that were moved."""

    group: str
    offsets: OffsetsByTopic


class LeaveRequest(Request):
    """A member that goes."""

    member: Mark


class LeaveReply(Struct):
    """The member that went."""

    group: str
    member: str
