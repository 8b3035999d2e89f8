"""Requests to groups and their answers, for the layers above. Plain data.

The names are those of the HTTP API. Times are in milliseconds, rates in messages a second.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.commitlog.format.batch import Batch
from holdfast.consumequeue.errors import LimitReached, UnknownTopic
from holdfast.consumequeue.topics import Topic
from holdfast.groups.config import BACKOFF_MS, LONGEST_LEASE_MS, TopicSpec
from holdfast.groups.core.requests import MayConsume, ReceiveRequest, UnitLimit
from holdfast.groups.core.settling import Status, Verb
from holdfast.groups.errors import GroupError

__all__ = [
    "Delivery",
    "GroupBusy",
    "GroupDescription",
    "GroupServiceStats",
    "GroupSpec",
    "GroupState",
    "InvalidGroup",
    "MayConsume",
    "MemberDescription",
    "NotSubscribed",
    "QueueDescription",
    "ReceiveRequest",
    "Received",
    "RedriveOptions",
    "RedriveResult",
    "SeekTarget",
    "Served",
    "Status",
    "TooManyMembers",
    "TopicDescription",
    "TopicSpec",
    "UnitLimit",
    "Verb",
]

SeekTarget = str | int | Mapping[str, Mapping[int, int]]
"""Target of a seek: "earliest", "latest", a time in milliseconds, or topic -> queue -> offset."""

CheckTopic = Callable[[str], None]
"""A function that raises an exception if the caller may not access this topic."""

CheckGroup = Callable[[str], None]
"""A function that raises an exception if the caller may not change this group."""


MayPublish = Callable[[str], bool]
"""A function that returns whether the caller may publish to this topic."""


CountPublished = Callable[[int, int], bool]
"""A function that counts published messages, given their number and bytes. It returns False if the
caller must stop publishing for now."""


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """The settings in a PUT of a group. If a setting is None, a new group gets the default, and an
    existing group keeps its value. `topics`, if given, replaces all subscriptions; its keys are
    topic names (the topics need not exist yet) and patterns (core/subscribing.py). An empty
    `dead_letter_topic` removes the dead-letter topic."""

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
    """The present settings of a group."""

    name: str
    group_id: int
    topics: Mapping[str, TopicSpec]
    """topic name -> subscription, for the topics that match the subscriptions now."""
    subscriptions: Mapping[str, TopicSpec] = field(default_factory=dict)
    """The subscriptions as given: topic names and patterns."""
    mode: str = "competing"
    engine: str = "sfq"
    cost: str = "count"
    start: str = "earliest"
    lease_ms: int = 30_000
    #: The longest lease that a member may request: a limit of the broker, not a group's setting.
    longest_lease_ms: int = LONGEST_LEASE_MS
    max_in_flight: int = 1_000
    max_in_flight_per_member: int = 1_000
    max_in_flight_per_key: int = 32
    max_attempts: int = 16
    backoff_ms: tuple[int, ...] = BACKOFF_MS
    #: If it is None, messages that are rejected or fail too often are dropped.
    dead_letter_topic: str | None = None
    strict_leases: bool = False
    member_ttl_ms: int = 30_000
    created_timestamp_ms: int = 0


class Delivery(NamedTuple):
    """One message: a row of a stored batch. `receipt` is None if the message is already settled, or
    was only shown (browse)."""

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
    """The answer to a receive. It has no messages if none came in time, or if the member is not the
    active member, or if it has just become the active member."""

    deliveries: list[Delivery]
    #: An upper bound of the number of messages that were still available.
    available: int = 0
    #: Whether the member may get messages.
    active: bool = True
    #: If true, the member has just become the active member; its next request gets messages.
    notice: bool = False
    #: How long the request waited.
    held_s: float = 0.0

    def receipts(self) -> list[str]:
        """Return the receipts of the leased messages."""
        return [each.receipt for each in self.deliveries if each.receipt is not None]


@dataclass(frozen=True, slots=True)
class RedriveOptions:
    """A request to put dead letters back, that is to publish them to their original topics."""

    #: At most this many letters are put back.
    limit: int
    #: The topic of the letters. If it is None, it is the group's dead-letter topic.
    dead_letter_topic: str | None = None
    #: queue -> offsets of the letters to put back. If it is None, all letters are put back.
    offsets: Mapping[int, Sequence[int]] | None = None
    #: If true, only count the letters.
    dry_run: bool = False
    #: If it is None, letters may go to every topic of the group.
    may_publish: MayPublish | None = field(default=None, compare=False)
    #: Called for letters that were put back: it counts them as publishes of the caller.
    published: CountPublished | None = field(default=None, compare=False)


@dataclass(slots=True)
class RedriveResult:
    """The result of a redrive."""

    dead_letter_topic: str
    #: topic name -> how many letters were put back to it. Letters that an earlier redrive had
    #: already put back are not counted.
    topics: dict[str, int] = field(default_factory=dict)
    #: How many letters cannot be put back: they do not name their topic, or the group does not
    #: subscribe to it, or the caller may not publish to it.
    stuck: int = 0
    #: If true, there may be more letters, which this redrive has not reached.
    more: bool = False
    #: The id of the letter at which `failure` occurred.
    failed_id: str = ""
    #: The error that ended the redrive.
    failure: Exception | None = None

    @property
    def total(self) -> int:
        """How many letters were put back."""
        return sum(self.topics.values())

    def fail(self, letter_id: str, error: Exception) -> None:
        """Record a failure and set `more`. Later failures are ignored."""
        if self.failure is None:
            self.failed_id, self.failure, self.more = letter_id, error, True


@dataclass(frozen=True, slots=True)
class Served:
    """The deliveries since the broker started, including redeliveries. `rate` is the average of the
    last minute, or of the time since counting began if that is shorter."""

    count: int = 0
    bytes: int = 0
    rate: float = 0.0


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """A group's progress in one queue. `available` and `lag` are upper bounds, because filters may
    not have been applied to all messages yet."""

    queue: int
    #: All messages below this offset are settled.
    floor: int
    #: No message at this offset or beyond was delivered.
    next: int
    #: The offset after the last message.
    end: int
    available: int
    in_flight: int
    delayed: int
    #: How many messages were settled because they failed too often or were rejected.
    dead: int
    #: How many messages were settled because their time to live was over.
    expired: int
    #: How many messages were settled because retention or damage had removed them.
    lost: int
    #: How many messages are not settled.
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
    """A member of a group."""

    name: str
    #: How many messages it has leased.
    in_flight: int
    #: How many of its requests wait.
    waiting: int
    #: Whether it may get messages.
    active: bool


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """The complete description of a group."""

    state: GroupState
    topics: list[TopicDescription]
    members: list[MemberDescription]
    #: How many messages are leased.
    in_flight: int
    #: How many requests wait.
    waiting: int
    #: How many messages are being appended to the dead-letter topic.
    dying: int


@dataclass(frozen=True, slots=True)
class GroupServiceStats:
    """Figures of all groups: current values, and counts since the start."""

    groups: int = 0
    waiting: int = 0
    in_flight: int = 0
    #: The groups that may not lease new messages now: they have `max_in_flight` leases, or the
    #: number of returned messages has reached its limit.
    at_limit: Sequence[str] = ()
    delivered_total: int = 0
    redelivered_total: int = 0
    #: (verb, status) -> count; both are values of the enums.
    settled_total: Mapping[tuple[str, str], int] = field(default_factory=dict)
    dead_letters_total: int = 0
    #: reason -> the number of dead letters that are not kept in a dead-letter topic.
    letters_not_kept_total: Mapping[str, int] = field(default_factory=dict)
    expired_leases_total: int = 0
    undelivered_total: int = 0
    commits_total: int = 0
    commit_failures_total: int = 0


class NotSubscribed(UnknownTopic):
    """A group does not subscribe to a topic."""

    def __init__(self, group: str, topic: str) -> None:
        super().__init__(topic)
        self.group = group

    def __str__(self) -> str:
        return (
            f"the group {self.group!r} does not subscribe to a topic {self.topic!r}; leave it "
            "out, or change the group's topics"
        )


class TooManyMembers(LimitReached):
    """The group has as many members as it may have."""

    def __init__(self, group: str, limit: int) -> None:
        super().__init__("groups.max_members", limit)
        self.group = group

    def __str__(self) -> str:
        return (
            f"the group {self.group!r} has {self.limit} members, the limit of {self.limit_name}; "
            "remove some, try again when idle members are removed (member_ttl_ms), or raise the "
            "limit in the configuration"
        )


class InvalidGroup(GroupError):
    """A setting of a group is invalid. `field` is its name in the HTTP API."""

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
            f"{self.in_flight} messages of {self.group!r} are leased, or may still be leased from "
            "before a restart; the mode can change when they are settled or their leases have ended"
        )
