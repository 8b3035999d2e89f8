"""What a group is asked and what it answers, for those who serve it. Plain data.

Names are those of the HTTP API; times are in milliseconds, rates in messages a second.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.commitlog.batch import Batch
from holdfast.consumequeue.errors import LimitReached, UnknownTopic
from holdfast.consumequeue.topics import Topic
from holdfast.groups.config import BACKOFF_MS, LONGEST_LEASE_MS
from holdfast.groups.errors import GroupError
from holdfast.groups.settling import Status, Verb

__all__ = [
    "Delivery",
    "GroupBusy",
    "GroupDescription",
    "GroupServiceStats",
    "GroupSpec",
    "GroupState",
    "InvalidGroup",
    "MemberDescription",
    "NotSubscribed",
    "QueueDescription",
    "ReceiveAsk",
    "Received",
    "SeekTarget",
    "Served",
    "Status",
    "TooManyMembers",
    "TopicDescription",
    "TopicSpec",
    "Verb",
]

STARTS = ("earliest", "latest")
MAX_WEIGHT = 1_000_000

SeekTarget = str | int | Mapping[str, Mapping[int, int]]
"""Where to go: "earliest", "latest", a time in milliseconds, or topic -> queue -> offset."""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """What a group wants of one topic. `filter`: tags separated by commas, or an SQL92 condition;
    None: every message. A topic of weight 0 is served when no other has anything."""

    weight: int = 1
    filter: str | None = None


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """What a PUT gives of a group. None: not given, so a new group gets the default and one that
    is there keeps what it has. `topics`, when given, are all of its topics. An empty
    `dead_letter_topic` means none."""

    topics: Mapping[str, TopicSpec] | None = None
    mode: str | None = None
    engine: str | None = None
    cost: str | None = None
    start: str | None = None
    lease_ms: int | None = None
    max_in_flight: int | None = None
    max_in_flight_per_member: int | None = None
    max_in_flight_per_key: int | None = None
    max_attempts: int | None = None
    backoff_ms: Sequence[int] | None = None
    dead_letter_topic: str | None = None
    strict_leases: bool | None = None
    member_ttl_ms: int | None = None


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group's configuration as it is in force."""

    name: str
    group_id: int
    topics: Mapping[str, TopicSpec]
    mode: str = "competing"
    engine: str = "sfq"
    cost: str = "count"
    start: str = "earliest"
    lease_ms: int = 30_000
    #: The longest lease that may be asked for: the broker's limit, not a setting of the group.
    longest_lease_ms: int = LONGEST_LEASE_MS
    max_in_flight: int = 1_000
    max_in_flight_per_member: int = 1_000
    max_in_flight_per_key: int = 32
    max_attempts: int = 16
    backoff_ms: tuple[int, ...] = BACKOFF_MS
    #: None: what is rejected or has failed too often is dropped.
    dead_letter_topic: str | None = None
    strict_leases: bool = False
    member_ttl_ms: int = 30_000
    created_timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class ReceiveAsk:
    """One request for messages. `client` is the address that asks: limits on what may wait are
    per client. `lease_ms` and `topics` None: the group's own.

    `settled`: messages are settled as they are sent, without receipts. `browse`: nothing is
    acquired; a member's next browse goes on behind what it was shown, and after an empty answer
    begins again; it never waits.
    """

    member: str
    client: str
    max_messages: int = 32
    max_bytes: int = 1024 * 1024
    wait_s: float = 0.0
    lease_ms: int | None = None
    topics: Sequence[str] | None = None
    filter: str | None = None
    settled: bool = False
    browse: bool = False
    attempt_id: str | None = None


class Delivery(NamedTuple):
    """One message: a row of a stored batch. `receipt` None: there is nothing to settle."""

    topic: Topic
    queue: int
    offset: int
    batch: Batch
    row: int
    receipt: str | None
    attempt: int
    redelivered: bool


@dataclass(frozen=True, slots=True)
class Received:
    """What a receive answers. Empty: nothing came in time, or the broker is stopping, or the
    member is not the active one. `notice`: it just became the active one; its first messages
    come when it asks again. `available`: how many messages more could be had at that moment, at
    most. `held_s`: how long it waited for something to come."""

    deliveries: list[Delivery]
    available: int = 0
    active: bool = True
    notice: bool = False
    held_s: float = 0.0

    def receipts(self) -> list[str]:
        """Return the receipts of what was leased."""
        return [each.receipt for each in self.deliveries if each.receipt is not None]


@dataclass(frozen=True, slots=True)
class Served:
    """What was delivered since the broker started, redeliveries too; `rate` over the last minute,
    or as much of it as there was."""

    count: int = 0
    bytes: int = 0
    rate: float = 0.0


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """Where a group stands in one queue: everything below `floor` is settled, nothing at `next`
    or beyond was delivered. `available` and `lag` (what is not settled) are upper bounds while a
    filter has not looked. `dead`, `expired`, `lost` (to retention, to damage) count what was
    settled so."""

    queue: int
    floor: int
    next: int
    end: int
    available: int
    in_flight: int
    delayed: int
    dead: int
    expired: int
    lost: int
    lag: int
    served: Served


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic of a group. `standing` is the topic's deficit (dwrr) or its tag (sfq)."""

    topic: str
    weight: int
    filter: str | None
    available: int
    standing: float
    served: Served
    queues: list[QueueDescription]


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member that is taken to be there. `active`: it may be served."""

    name: str
    in_flight: int
    waiting: int
    active: bool


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """Everything about a group. `dying`: messages on their way to the dead letters."""

    state: GroupState
    topics: list[TopicDescription]
    members: list[MemberDescription]
    in_flight: int
    waiting: int
    dying: int


@dataclass(frozen=True, slots=True)
class GroupServiceStats:
    """Figures of all groups: what is now, and counts since the start."""

    groups: int = 0
    waiting: int = 0
    in_flight: int = 0
    delivered_total: int = 0
    redelivered_total: int = 0
    #: By (verb, status), both as their values read.
    settled_total: Mapping[tuple[str, str], int] = field(default_factory=dict)
    dead_letters_total: int = 0
    expired_leases_total: int = 0
    undelivered_total: int = 0
    commits_total: int = 0
    commit_failures_total: int = 0


class NotSubscribed(UnknownTopic):
    """A topic is not among a group's."""

    def __init__(self, group: str, topic: str) -> None:
        super().__init__(topic)
        self.group = group

    def __str__(self) -> str:
        return (
            f"the group {self.group!r} does not subscribe to a topic {self.topic!r}; leave it "
            "out, or change the group's topics"
        )


class TooManyMembers(LimitReached):
    """A group has as many members as one may have."""

    def __init__(self, group: str, limit: int) -> None:
        super().__init__("groups.max_members", limit)
        self.group = group

    def __str__(self) -> str:
        return (
            f"the group {self.group!r} has {self.limit} members, as {self.limit_name} allows; let "
            "some leave, ask again when idle ones are gone (member_ttl_ms), or raise it in the "
            "configuration"
        )


class InvalidGroup(GroupError):
    """A setting of a group that cannot be. `field` names it as the HTTP API does."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


class GroupBusy(GroupError):
    """The mode of a group cannot change while messages are leased."""

    def __init__(self, group: str, in_flight: int) -> None:
        super().__init__(group, in_flight)
        self.group = group
        self.in_flight = in_flight

    def __str__(self) -> str:
        return (
            f"{self.in_flight} messages of {self.group!r} are leased, or may be since before a "
            "restart; its mode can change once they are settled or their leases have ended"
        )
