"""Descriptions of topics, groups and the broker, as the broker reports them. Pure.

Each description has the documented fields of the reply as attributes. It is also a read-only
mapping of the whole reply, for example `described["lag_messages"]`. The mapping also contains
fields that a newer broker adds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform

from holdfast.client.errors import BadReply
from holdfast.client.values import Cost, Durability, End, Engine, Mode

D = TypeVar("D", bound="Description")


@dataclass_transform(frozen_default=True, eq_default=False, kw_only_default=True)
@dataclass(frozen=True, eq=False, kw_only=True)
class Description(Mapping[str, Any]):
    """A reply of the broker, equal to any mapping with the same items. A frozen dataclass."""

    reply: Mapping[str, Any] = field(repr=False)

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, eq=False, kw_only=True)(cls)

    @classmethod
    def from_reply(cls: type[D], reply: Mapping[str, Any]) -> D:
        """Return the description that a reply contains. Raises KeyError if a field is missing."""
        values: dict[str, Any] = {"reply": reply}
        for each in fields(cls):
            if each.name in reply and each.name != "reply":
                values[each.name] = _convert_value(reply[each.name], **each.metadata)
            elif each.name != "reply" and each.default is MISSING:
                raise KeyError(each.name)
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return the whole reply as plain dicts and lists, for example to write it as JSON."""
        return dict(self.reply)

    def __getitem__(self, name: str) -> Any:
        return self.reply[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.reply)

    def __len__(self) -> int:
        return len(self.reply)


def parse_description(kind: type[D], reply: Mapping[str, Any], url: str = "the broker") -> D:
    """Return the description that a reply contains. Raises BadReply if a field is missing."""
    try:
        return kind.from_reply(reply)
    except KeyError as error:
        raise BadReply(url, f"the member {error.args[0]!r} is missing") from error


def _convert_value(
    value: Any, of: type[Description] | None = None, is_by_name: bool = False
) -> Any:
    if isinstance(value, list):
        return tuple(_convert_value(each, of) for each in value)
    if of is None or value is None:
        return value
    if is_by_name:
        return {name: of.from_reply(each) for name, each in value.items()}
    return of.from_reply(value)


class QueueDescription(Description):
    """A queue with its first offset and the offset that the next message gets (`max_offset`).
    `bytes` is the size of all its messages."""

    queue: int
    min_offset: int
    max_offset: int
    bytes: int
    newest_timestamp_ms: int | None


class TopicConfig(Description):
    """A topic's settings; None means no limit."""

    durability: Durability
    retention_ms: int | None
    retention_bytes: int | None
    max_message_bytes: int
    max_bytes: int | None = None
    priority_levels: int = 1


class TopicSummary(Description):
    """A topic in a listing."""

    topic: str
    topic_id: int
    queue_count: int
    created_timestamp_ms: int
    config: TopicConfig = field(metadata={"of": TopicConfig})


class TopicDescription(TopicSummary):
    """A topic with its queues."""

    queues: tuple[QueueDescription, ...] = field(metadata={"of": QueueDescription})


class Split(Description):
    """One range of a plan for parallel readers: from start_offset (inclusive) to end_offset
    (exclusive)."""

    queue: int
    start_offset: int
    end_offset: int
    bytes: int


class Served(Description):
    """The deliveries since the broker started; `rate` is in messages per second."""

    count: int
    bytes: int
    rate: float


class GroupQueue(Description):
    """A group's lag on a queue. Without a stored `offset`, the lag counts all stored messages.
    In a group that only stores offsets, the attributes after `lag_seconds` are None."""

    queue: int
    offset: int | None
    min_offset: int
    max_offset: int
    lag_messages: int
    lag_bytes: int
    lag_seconds: float
    floor: int | None = None
    next: int | None = None
    available: int | None = None
    in_flight: int | None = None
    delayed: int | None = None
    dead: int | None = None
    expired: int | None = None
    lost: int | None = None
    served: Served | None = field(default=None, metadata={"of": Served})
    superseded: int | None = None


class GroupTopic(Description):
    """A group's lag on a topic. In a group that only stores offsets, the attributes after `queues`
    are None."""

    topic: str
    topic_id: int
    lag_messages: int
    lag_bytes: int
    lag_seconds: float
    queues: tuple[GroupQueue, ...] = field(metadata={"of": GroupQueue})
    available: int | None = None
    served: Served | None = field(default=None, metadata={"of": Served})
    standing: float | None = None


class GroupMember(Description):
    """A member of a group that has not left and has not expired."""

    member: str
    in_flight: int
    waiting: int
    active: bool


class Subscription(Description):
    """A group's subscription to a topic."""

    weight: int
    filter: str | None


class Fairness(Description):
    """How a group shares deliveries among its topics."""

    engine: Engine
    cost: Cost


class GroupConfig(Description):
    """A group's current settings."""

    topics: Mapping[str, Subscription] = field(metadata={"of": Subscription, "is_by_name": True})
    fairness: Fairness = field(metadata={"of": Fairness})
    mode: Mode
    start: End
    lease_ms: int
    max_in_flight: int
    max_in_flight_per_member: int
    max_in_flight_per_key: int
    max_attempts: int
    backoff_ms: tuple[int, ...]
    dead_letter_topic: str | None
    strict_leases: bool
    member_ttl_ms: int
    auto_delete_after_ms: int = 0
    last_value: bool = False


class GroupSummary(Description):
    """A group in a listing. Without a `mode` it only stores offsets."""

    group: str
    topics: tuple[str, ...]
    lag_messages: int
    mode: Mode | None = None


class GroupDescription(Description):
    """A group's lag. In a group that only stores offsets, the attributes after `topics` are None
    or empty. `dying` counts messages that are being moved to the dead-letter topic."""

    group: str
    lag_messages: int
    lag_bytes: int
    lag_seconds: float
    topics: tuple[GroupTopic, ...] = field(metadata={"of": GroupTopic})
    config: GroupConfig | None = field(default=None, metadata={"of": GroupConfig})
    available: int | None = None
    in_flight: int | None = None
    waiting: int | None = None
    dying: int | None = None
    members: tuple[GroupMember, ...] = field(default=(), metadata={"of": GroupMember})


class OffsetsReset(Description):
    """The offsets of the affected queues before and after a reset. `before` contains only queues
    that had a stored offset. The keys are queue numbers as text."""

    group: str
    topic: str
    dry_run: bool
    before: Mapping[str, int]
    after: Mapping[str, int]


class BrokerInfo(Description):
    """The broker's version and settings."""

    version: str
    auto_create_topics: bool = True
