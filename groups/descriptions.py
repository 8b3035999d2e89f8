"""The state of groups and their lag, as replies to HTTP requests contain it. Plain data.

serving/describe.py fills in the state of leases; the HTTP API fills in the lag, also of groups
without leases. Fields that apply only to groups with leases are omitted for other groups.
"""

from msgspec import UNSET, Struct, UnsetType

from holdfast.groups.settings import GroupConfigReply


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
    # An upper bound, because filters may not have been applied to all messages yet. `lag_messages`
    # of a group with leases is an upper bound, too.
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
