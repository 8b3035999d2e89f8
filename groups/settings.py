"""The settings of a group, as requests give them and replies show them, with their bounds. Pure.

Decoding a request checks the types, the choices and the minima. It does not check the maxima, which
the HTTP API checks (`maxima`), so that the problem of a larger value is limit-exceeded. The fixed
maxima are also in the OpenAPI document. `GroupConfig` has the defaults.
"""

from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast.groups.config import (
    LONGEST_LEASE_MS,
    SHORTEST_LEASE_MS,
    Cost,
    Engine,
    GroupsConfig,
    Mode,
)

MAX_WEIGHT = 1_000_000
#: A backoff table may have at most this many entries.
MAX_BACKOFFS = 100
#: The longest delay in a backoff table: 7 days.
MAX_BACKOFF_MS = 7 * 86_400_000
MAX_ATTEMPTS = 60_000
MAX_MEMBER_TTL_MS = 86_400_000
#: The longest `auto_delete_after_ms`: 365 days.
MAX_AUTO_DELETE_MS = 365 * 86_400_000


def _bounded(low: int, high: int) -> Meta:
    return Meta(ge=low, extra_json_schema={"maximum": high})


Name = Annotated[str, Meta(extra_json_schema={"pattern": "^[A-Za-z0-9_.-]{1,127}$"})]
NameOrPattern = Annotated[str, Meta(extra_json_schema={"pattern": "^[A-Za-z0-9_.*?-]{1,127}$"})]
LeaseMs = Annotated[int, _bounded(SHORTEST_LEASE_MS, LONGEST_LEASE_MS)]
DelayMs = Annotated[int, _bounded(0, MAX_BACKOFF_MS)]
InFlight = Annotated[int, Meta(ge=1)]
Start = Literal["earliest", "latest"]


class Subscription(Struct, frozen=True, forbid_unknown_fields=True):
    """A group's subscription to a topic.

    `filter` has tags separated by commas, or an SQL92 condition. A topic with the weight 0 is
    served when no other topic has messages.
    """

    weight: Annotated[int, _bounded(0, MAX_WEIGHT)] = 1
    filter: str | None = None


class FairnessSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How a group's topics share the deliveries to its members."""

    engine: Engine | UnsetType = UNSET
    cost: Cost | UnsetType = UNSET


class GroupSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a group with leases.

    On creation, an omitted setting gets its default. On a change, an omitted setting stays
    unchanged. If `topics` is given, it is the complete list: names of topics, also of topics that
    do not exist yet, and patterns with `*` and `?`. If `dead_letter_topic` is null, the group keeps
    no dead letters.
    """

    topics: dict[NameOrPattern, Subscription] | UnsetType = UNSET
    fairness: FairnessSettings | UnsetType = UNSET
    mode: Mode | UnsetType = UNSET
    start: Start | UnsetType = UNSET
    lease_ms: LeaseMs | UnsetType = UNSET
    max_in_flight: InFlight | UnsetType = UNSET
    max_in_flight_per_member: InFlight | UnsetType = UNSET
    max_in_flight_per_key: InFlight | UnsetType = UNSET
    max_attempts: Annotated[int, _bounded(0, MAX_ATTEMPTS)] | UnsetType = UNSET
    backoff_ms: (
        Annotated[list[DelayMs], Meta(extra_json_schema={"maxItems": MAX_BACKOFFS})] | UnsetType
    ) = UNSET
    dead_letter_topic: Name | UnsetType | None = UNSET
    strict_leases: bool | UnsetType = UNSET
    member_ttl_ms: Annotated[int, _bounded(SHORTEST_LEASE_MS, MAX_MEMBER_TTL_MS)] | UnsetType = (
        UNSET
    )
    auto_delete_after_ms: Annotated[int, _bounded(0, MAX_AUTO_DELETE_MS)] | UnsetType = UNSET
    last_value: bool | UnsetType = UNSET


def maxima(limits: GroupsConfig) -> dict[str, tuple[int, str | None]]:
    """Return the maximum of each setting that is a number, and the name of the configuration
    setting that gives this maximum, or None if the maximum is fixed."""
    in_flight = (limits.max_in_flight, "max_in_flight")
    return {
        "lease_ms": (limits.max_lease_ms, "max_lease_ms"),
        "max_in_flight": in_flight,
        "max_in_flight_per_member": in_flight,
        "max_in_flight_per_key": in_flight,
        "max_attempts": (MAX_ATTEMPTS, None),
        "member_ttl_ms": (MAX_MEMBER_TTL_MS, None),
        "auto_delete_after_ms": (MAX_AUTO_DELETE_MS, None),
    }


def filter_texts(topics: Iterable[Subscription]) -> set[str]:
    """Return the filter texts of these subscriptions, each once."""
    return {each.filter for each in topics if each.filter is not None}


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
    auto_delete_after_ms: int = 0
    last_value: bool = False
