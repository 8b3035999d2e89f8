"""The state of groups and their lag, as replies to HTTP requests contain it. Plain data.

serving/describe.py fills in the state of leases; the HTTP API fills in the lag, also of groups
without leases. Fields that apply only to groups with leases are omitted for other groups.
"""

from typing import Literal

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
    were settled for these reasons. Only groups with `last_value` have `superseded`: how many
    messages were settled since the broker started because a later one has the same key.
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
    superseded: int | UnsetType = UNSET


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


class LeaseReply(Struct):
    """A message that a member holds, since `delivered_ms` and until `until_ms`.

    `until_ms` is null if the lease lasts as long as the member's link of AMQP. `attempt` is the
    number of this delivery, counted from 1.
    """

    topic: str
    queue: int
    offset: int
    message_id: str
    member: str
    delivered_ms: int
    until_ms: int | None
    attempt: int


MessageState = Literal[
    "available", "leased", "delayed", "restart-wait", "dying",
    "settled", "dead", "expired", "deleted",
    "read", "unread",
]  # fmt: skip


class MessageStateReply(Struct):
    """The state of one message in one group.

    `attempt` is the number of its deliveries, and `failures` counts those that failed; both are
    omitted if it was never returned. A leased message has `member` and `delivered_ms`. `until_ms`
    is when a lease or a delay ends. A dead message has the topic of its dead letter, and the id of
    the letter if that topic has one queue. `last_value` is true if the group has this setting:
    then a settled message may be superseded by a later one with its key.
    """

    group: str
    state: MessageState
    attempt: int | UnsetType = UNSET
    failures: int | UnsetType = UNSET
    member: str | UnsetType = UNSET
    delivered_ms: int | UnsetType = UNSET
    until_ms: int | UnsetType = UNSET
    dead_letter_topic: str | UnsetType = UNSET
    dead_letter_id: str | UnsetType = UNSET
    last_value: bool | UnsetType = UNSET
