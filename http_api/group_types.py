"""The bodies of requests about groups and of their replies: what a group is, how it is, and the
offsets that it stores.

What a number may be at most stands in a type's schema, but the endpoint checks it, so that what
is above a limit is refused as that. A member of a reply that only groups with leases have is
left out for the others.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast.groups.config import LONGEST_LEASE_MS, SHORTEST_LEASE_MS
from holdfast.groups.group_specs import (
    MAX_ATTEMPTS,
    MAX_BACKOFF_MS,
    MAX_BACKOFFS,
    MAX_MEMBER_TTL_MS,
)
from holdfast.groups.service_types import MAX_WEIGHT
from holdfast.http_api.params import MAX_TIMESTAMP_MS
from holdfast.http_api.types import Offset, QueueId, Request

OffsetsByQueue = Annotated[
    dict[str, Offset], Meta(description="Queue number as text -> offset of the next message.")
]
Name = Annotated[str, Meta(extra_json_schema={"pattern": "^[A-Za-z0-9_.-]{1,127}$"})]
LeaseMs = Annotated[
    int, Meta(ge=SHORTEST_LEASE_MS, extra_json_schema={"maximum": LONGEST_LEASE_MS})
]
DelayMs = Annotated[int, Meta(ge=0, extra_json_schema={"maximum": MAX_BACKOFF_MS})]
InFlight = Annotated[int, Meta(ge=1)]

Mode = Literal["competing", "keyed", "single_active", "exclusive"]
Engine = Literal["sfq", "dwrr"]
Cost = Literal["count", "bytes", "time"]

# -- what a group is -----------------------------------------------------------------------


class Subscription(Request):
    """What a group wants of a topic. `filter`: tags separated by commas, or an SQL92 condition.
    A topic of weight 0 is served when no other has anything."""

    weight: Annotated[int, Meta(ge=0, extra_json_schema={"maximum": MAX_WEIGHT})] = 1
    filter: str | None = None


class FairnessSettings(Request):
    """How a group's topics share what its members take."""

    engine: Engine | UnsetType = UNSET
    cost: Cost | UnsetType = UNSET


class GroupSettings(Request):
    """A group with leases. What is left out is the default on creation, and stays as it is on a
    change; `topics`, when given, are all of them. `dead_letter_topic` null: none."""

    topics: dict[Name, Subscription] | UnsetType = UNSET
    fairness: FairnessSettings | UnsetType = UNSET
    mode: Mode | UnsetType = UNSET
    start: Literal["earliest", "latest"] | UnsetType = UNSET
    lease_ms: LeaseMs | UnsetType = UNSET
    max_in_flight: InFlight | UnsetType = UNSET
    max_in_flight_per_member: InFlight | UnsetType = UNSET
    max_in_flight_per_key: InFlight | UnsetType = UNSET
    max_attempts: (
        Annotated[int, Meta(ge=0, extra_json_schema={"maximum": MAX_ATTEMPTS})] | UnsetType
    ) = UNSET
    backoff_ms: (
        Annotated[list[DelayMs], Meta(extra_json_schema={"maxItems": MAX_BACKOFFS})] | UnsetType
    ) = UNSET
    dead_letter_topic: Name | UnsetType | None = UNSET
    strict_leases: bool | UnsetType = UNSET
    member_ttl_ms: (
        Annotated[int, Meta(ge=SHORTEST_LEASE_MS, extra_json_schema={"maximum": MAX_MEMBER_TTL_MS})]
        | UnsetType
    ) = UNSET


class SubscriptionReply(Struct):
    """What a group wants of a topic."""

    weight: int
    filter: str | None


class FairnessReply(Struct):
    """How a group's topics share what its members take."""

    engine: Engine
    cost: Cost


class GroupConfigReply(Struct):
    """A group's settings as they are in force."""

    topics: dict[str, SubscriptionReply]
    fairness: FairnessReply
    mode: Mode
    start: str
    lease_ms: int
    max_in_flight: int
    max_in_flight_per_member: int
    max_in_flight_per_key: int
    max_attempts: int
    backoff_ms: list[int]
    dead_letter_topic: str | None
    strict_leases: bool
    member_ttl_ms: int


class GroupDeletedReply(Struct):
    """The group that was deleted."""

    group: str


# -- stored offsets ------------------------------------------------------------------------


class OffsetsRequest(Request):
    """Offsets to store; queues that are not named keep theirs."""

    offsets: OffsetsByQueue


class OffsetsReply(Struct):
    """A group's stored offsets on a topic."""

    group: str
    topic: str
    offsets: OffsetsByQueue


class ResetTimestamp(Request):
    """Reset to the first message stored at or after a time."""

    timestamp_ms: Annotated[int, Meta(ge=0, le=MAX_TIMESTAMP_MS)]


class ResetRequest(Request):
    """Where to set a group's offsets; a bare number is a timestamp_ms. `queues`: only these,
    else all. `dry_run`: only tell."""

    to: (
        Literal["earliest", "latest"]
        | Annotated[int, Meta(ge=0, le=MAX_TIMESTAMP_MS)]
        | ResetTimestamp
    )
    dry_run: bool = False
    queues: list[QueueId] | None = None


class ResetReply(Struct):
    """The offsets of the queues concerned, before (where stored) and after."""

    group: str
    topic: str
    dry_run: bool
    before: OffsetsByQueue
    after: OffsetsByQueue


# -- how a group is ------------------------------------------------------------------------


class ServedReply(Struct):
    """What was delivered since the broker started, redeliveries too; `rate` is in messages a
    second over the last minute."""

    count: int
    bytes: int
    rate: float


class QueueLagReply(Struct):
    """How far a group is behind on a queue. Without a stored `offset` (null) all that is kept
    counts. Seconds: the age of the first message not consumed.

    Of a group with leases: everything below `floor`, which is its `offset`, is settled, nothing
    from `next` on was delivered. `dead`, `expired` and `lost` count what was settled so.
    """

    queue: int
    offset: int | None
    min_offset: int
    max_offset: int
    lag_messages: int
    lag_bytes: int
    lag_seconds: float
    floor: int | UnsetType = UNSET
    next: int | UnsetType = UNSET
    available: int | UnsetType = UNSET
    in_flight: int | UnsetType = UNSET
    delayed: int | UnsetType = UNSET
    dead: int | UnsetType = UNSET
    expired: int | UnsetType = UNSET
    lost: int | UnsetType = UNSET
    served: ServedReply | UnsetType = UNSET


class TopicLagReply(Struct):
    """How far a group is behind on a topic. `standing`: the tag (sfq) or the deficit (dwrr) by
    which the topics' turns are decided."""

    topic: str
    topic_id: int
    lag_messages: int
    lag_bytes: int
    lag_seconds: float
    queues: list[QueueLagReply]
    available: int | UnsetType = UNSET
    served: ServedReply | UnsetType = UNSET
    standing: float | UnsetType = UNSET


class MemberReply(Struct):
    """A member that is taken to be there."""

    member: str
    in_flight: int
    waiting: int
    active: bool


class GroupReply(Struct):
    """How far a group is behind; the seconds are those of its slowest queue. `config` and what
    follows is said of groups with leases; `dying` are messages on their way to the dead
    letters."""

    group: str
    lag_messages: int
    lag_bytes: int
    lag_seconds: float
    topics: list[TopicLagReply]
    config: GroupConfigReply | UnsetType = UNSET
    available: int | UnsetType = UNSET
    in_flight: int | UnsetType = UNSET
    waiting: int | UnsetType = UNSET
    dying: int | UnsetType = UNSET
    members: list[MemberReply] | UnsetType = UNSET


class GroupSummary(Struct):
    """A group in a listing. Without a `mode` it only stores offsets."""

    group: str
    topics: list[str]
    lag_messages: int
    mode: Mode | UnsetType = UNSET


class GroupsReply(Struct):
    """A page of groups, by name; `next` is the `after` of the next page, null on the last."""

    groups: list[GroupSummary]
    next: str | None
