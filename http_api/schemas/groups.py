"""The bodies of requests and replies about groups: their settings, state and stored offsets.

The maximum of a number is in the OpenAPI document, but decoding does not check it. The endpoint
checks it, so that the problem of a larger value is limit-exceeded. Fields of a reply that apply
only to groups with leases are omitted for other groups.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast.groups.config import LONGEST_LEASE_MS, MAX_WEIGHT, SHORTEST_LEASE_MS
from holdfast.groups.settings import (
    MAX_ATTEMPTS,
    MAX_BACKOFF_MS,
    MAX_BACKOFFS,
    MAX_MEMBER_TTL_MS,
)
from holdfast.http_api.routing import moments
from holdfast.http_api.routing.moments import MAX_TIMESTAMP_MS
from holdfast.http_api.routing.params import invalid
from holdfast.http_api.schemas.messages import Offset, QueueId, Request

OffsetsByQueue = Annotated[
    dict[str, Offset], Meta(description="Queue number as text -> offset of the next message.")
]
Name = Annotated[str, Meta(extra_json_schema={"pattern": "^[A-Za-z0-9_.-]{1,127}$"})]
NameOrPattern = Annotated[str, Meta(extra_json_schema={"pattern": "^[A-Za-z0-9_.*?-]{1,127}$"})]
LeaseMs = Annotated[
    int, Meta(ge=SHORTEST_LEASE_MS, extra_json_schema={"maximum": LONGEST_LEASE_MS})
]
DelayMs = Annotated[int, Meta(ge=0, extra_json_schema={"maximum": MAX_BACKOFF_MS})]
InFlight = Annotated[int, Meta(ge=1)]

TimestampMs = Annotated[int, Meta(ge=0, le=MAX_TIMESTAMP_MS)]
#: A time as a text. The endpoint parses it (`time_of`), because a time may also be a number.
TimeText = Annotated[str, Meta(extra_json_schema={"pattern": moments.PATTERN})]
StartText = Annotated[
    str, Meta(extra_json_schema={"pattern": f"^(earliest|latest)$|{moments.PATTERN}"})
]
START_DOC = (
    "Where to start: `earliest`, `latest`, or a time, as milliseconds since 1970 or ISO 8601 "
    "with a time zone."
)


def start_of(parameter: str, given: str) -> str | int:
    """Parse where to start: return "earliest" or "latest", or a time in milliseconds since 1970.

    Raises Problem.
    """
    if given in ("earliest", "latest"):
        return given
    try:
        return moments.parse_time_ms(given)
    except ValueError:
        allowed = f"earliest or latest or a time: {moments.FORMS}"
        raise invalid(parameter, given, allowed) from None


def time_of(parameter: str, given: str | int) -> int:
    """Return a time in milliseconds since 1970. Raises Problem."""
    if isinstance(given, int):
        return given
    try:
        return moments.parse_time_ms(given)
    except ValueError as error:
        raise invalid(parameter, given, str(error)) from None


Mode = Literal["competing", "keyed", "single_active", "exclusive"]
Engine = Literal["sfq", "dwrr"]
Cost = Literal["count", "bytes", "time"]

# -- settings of a group -------------------------------------------------------------------


class Subscription(Request):
    """A group's subscription to a topic.

    `filter` has tags separated by commas, or an SQL92 condition. A topic with the weight 0 is
    served when no other topic has messages.
    """

    weight: Annotated[int, Meta(ge=0, extra_json_schema={"maximum": MAX_WEIGHT})] = 1
    filter: str | None = None


class FairnessSettings(Request):
    """How a group's topics share the deliveries to its members."""

    engine: Engine | UnsetType = UNSET
    cost: Cost | UnsetType = UNSET


class GroupSettings(Request):
    """The settings of a group with leases.

    On creation, an omitted setting gets its default. On a change, an omitted setting stays
    unchanged. If `topics` is given, it is the complete list: names of topics, also of topics that
    do not exist yet, and patterns with `*` and `?`. If `dead_letter_topic` is null, the group keeps
    no dead letters.
    """

    topics: dict[NameOrPattern, Subscription] | UnsetType = UNSET
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
    """A group's subscription to a topic."""

    weight: int
    filter: str | None


class FairnessReply(Struct):
    """How a group's topics share the deliveries to its members."""

    engine: Engine
    cost: Cost


class GroupConfigReply(Struct):
    """The current settings of a group."""

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
    """Offsets to store. Queues that are not in the request keep their offsets."""

    offsets: OffsetsByQueue


class OffsetsReply(Struct):
    """A group's stored offsets on a topic."""

    group: str
    topic: str
    offsets: OffsetsByQueue


class ResetTimestamp(Request):
    """Reset to the first message stored at or after a time."""

    timestamp_ms: TimestampMs | TimeText


class ResetRequest(Request):
    """Where to set a group's offsets. A number or an ISO 8601 text is a time.

    If `queues` is given, only the offsets of these queues are set, otherwise those of all queues.
    With `dry_run`, the request changes nothing and only returns the offsets.
    """

    to: Annotated[StartText | TimestampMs | ResetTimestamp, Meta(description=START_DOC)]
    dry_run: bool = False
    queues: list[QueueId] | None = None


class ResetReply(Struct):
    """The offsets of the queues `before` and `after` the reset.

    Queues that had no stored offset are not in `before`.
    """

    group: str
    topic: str
    dry_run: bool
    before: OffsetsByQueue
    after: OffsetsByQueue


# -- state of a group ----------------------------------------------------------------------


class ServedReply(Struct):
    """The deliveries since the broker started, including redeliveries.

    `rate` is in messages per second over the last minute.
    """

    count: int
    bytes: int
    rate: float


class QueueLagReply(Struct):
    """How far a group is behind on a queue.

    If no `offset` is stored (null), every kept message counts as not consumed. `lag_seconds` is the
    age of the first message that is not consumed.

    For a group with leases, `offset` is the same as `floor`: every message below it is settled. No
    message at or after `next` was delivered. `dead`, `expired` and `lost` count the messages that
    were settled for these reasons.
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
    """How far a group is behind on a topic.

    `standing` is the number that determines when the topic is served: its tag (sfq) or its deficit
    (dwrr).
    """

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
    """A current member of a group."""

    member: str
    in_flight: int
    waiting: int
    active: bool


class GroupReply(Struct):
    """How far a group is behind. `lag_seconds` is the largest `lag_seconds` of its queues.

    `config` and the fields after it are only present for groups with leases. `dying` counts the
    messages that are being appended to the dead-letter topic.
    """

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
    """A group in a list of groups. A group without a `mode` only stores offsets."""

    group: str
    topics: list[str]
    lag_messages: int
    mode: Mode | UnsetType = UNSET


class GroupsReply(Struct):
    """A page of groups, by name. `next` is the `after` of the next page; null on the last page."""

    groups: list[GroupSummary]
    next: str | None
