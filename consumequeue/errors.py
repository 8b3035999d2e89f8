"""The errors of the message store. Each error carries its values.

StoreError
  InvalidName, UnknownTopic, UnknownQueue, UnknownGroup, UnknownMessage
  TopicConflict, InvalidTopicChange, KeyedBacklog, LimitReached, OffsetsChanged
  TopicFull              the topic's own max_bytes is reached: reading and retention continue
  OffsetTrimmed, OffsetBeyondEnd, QueueCorrupt
  TooManyReadLeases, UnknownReadLease
  StateUnavailable       topics or stored offsets could not be written
    StateFull            the same, because the disk is full
"""

from collections.abc import Sequence
from dataclasses import dataclass


class StoreError(Exception):
    """The message store cannot fulfil a request. The fields of an error are its `args`, so that it
    can be copied and pickled."""

    def __post_init__(self) -> None:
        self.args = tuple(self.__dict__.values())


@dataclass(eq=False, repr=False)
class IndexCorrupt(Exception):
    """The index on disk cannot be trusted: delete it and rebuild it from the log."""

    reason: str

    def __str__(self) -> str:
        return f"the index is damaged: {self.reason}"


@dataclass(eq=False, repr=False)
class InvalidName(StoreError):
    """The name of a topic or group is not allowed."""

    kind: str
    name: str

    def __str__(self) -> str:
        return (
            f"{self.name[:140]!r} is not a {self.kind} name: use 1 to 127 of A-Z a-z 0-9 . _ - , "
            "not '.' or '..'; names that begin with '__' are reserved for the broker"
        )


@dataclass(eq=False, repr=False)
class UnknownTopic(StoreError):
    """No topic has this name."""

    topic: str

    def __str__(self) -> str:
        return f"there is no topic {self.topic!r}; create it, or publish to it first"


@dataclass(eq=False, repr=False)
class UnknownQueue(StoreError):
    """The topic has no such queue."""

    topic: str
    queue: int
    queue_count: int

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} has no queue {self.queue}; "
            f"its queues are 0 to {self.queue_count - 1}"
        )


@dataclass(eq=False, repr=False)
class UnknownGroup(StoreError):
    """No group of this name has stored an offset."""

    group: str

    def __str__(self) -> str:
        return (
            f"there is no group {self.group!r}; PUT /v1/groups/{self.group} with topics creates a "
            "group that leases messages, storing offsets creates a group that only has offsets"
        )


@dataclass(eq=False, repr=False)
class UnknownMessage(StoreError):
    """No message has this id."""

    message_id: str

    def __str__(self) -> str:
        return f"there is no message {self.message_id[:64]!r}"


@dataclass(eq=False, repr=False)
class TopicConflict(StoreError):
    """The topic exists with another value in `field`."""

    topic: str
    field: str
    given: object
    existing: object

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} exists with {self.field} {self.existing!r}, not "
            f"{self.given!r}; change it with PATCH, or leave the field out"
        )


@dataclass(eq=False, repr=False)
class KeyedBacklog(StoreError):
    """Queues cannot be added while keyed groups have unacknowledged messages of the topic: the next
    messages of a key could go to a new queue and overtake them. `groups` names some of these
    groups."""

    topic: str
    groups: Sequence[str]

    def __str__(self) -> str:
        named = f" ({', '.join(self.groups)})" if self.groups else ""
        return (
            f"keyed groups{named} have unsettled messages of topic {self.topic!r}, and with more "
            "queues later messages of a key could overtake them; stop publishing messages with "
            "keys, wait until these groups have settled all messages, then add the queues"
        )


@dataclass(eq=False, repr=False)
class InvalidTopicChange(StoreError):
    """A change that is not possible for this topic. `detail` is the reason."""

    topic: str
    detail: str

    def __str__(self) -> str:
        return f"topic {self.topic!r}: {self.detail}"


@dataclass(eq=False, repr=False)
class LimitReached(StoreError):
    """The configured limit of topics, queues or groups is reached."""

    limit_name: str
    limit: int

    def __str__(self) -> str:
        return (
            f"{self.limit_name} is {self.limit}; request fewer, delete some, or raise the limit "
            "in the configuration"
        )


@dataclass(eq=False, repr=False)
class TopicFull(StoreError):
    """A publish would exceed the topic's `max_bytes`. `stored_bytes` is its current size."""

    topic: str
    stored_bytes: int
    limit: int

    def __str__(self) -> str:
        return (
            f"the topic {self.topic!r} has {self.stored_bytes} bytes, and this publish would "
            f"exceed its max_bytes ({self.limit}). Wait until its retention deletes old messages, "
            "or raise max_bytes with PATCH"
        )


@dataclass(eq=False, repr=False)
class OffsetTrimmed(StoreError):
    """The offset is below the queue's first kept message."""

    topic: str
    queue: int
    offset: int
    min_offset: int
    max_offset: int

    def __str__(self) -> str:
        return (
            f"queue {self.queue} of {self.topic!r} no longer has offset {self.offset}; "
            f"it begins at {self.min_offset}"
        )


@dataclass(eq=False, repr=False)
class OffsetBeyondEnd(StoreError):
    """The offset is after the next offset to be written."""

    topic: str
    queue: int
    offset: int
    min_offset: int
    max_offset: int

    def __str__(self) -> str:
        return (
            f"queue {self.queue} of {self.topic!r} ends at {self.max_offset}; "
            f"offset {self.offset} is beyond it"
        )


@dataclass(eq=False, repr=False)
class QueueCorrupt(StoreError):
    """The message at `offset` is damaged on disk. Readers can continue at `next_offset`."""

    topic: str
    queue: int
    offset: int
    next_offset: int
    min_offset: int
    max_offset: int
    reason: str

    def __str__(self) -> str:
        return (
            f"queue {self.queue} of {self.topic!r} is damaged at offset {self.offset} "
            f"({self.reason}); continue from {self.next_offset} and run 'holdfast check'"
        )


@dataclass(eq=False, repr=False)
class OffsetsChanged(StoreError):
    """The expected version of the stored offsets is not the current `version`."""

    group: str
    topic: str
    version: int

    def __str__(self) -> str:
        return (
            f"the offsets of group {self.group!r} for {self.topic!r} are at version "
            f"{self.version} now; read them again before storing"
        )


@dataclass(eq=False, repr=False)
class TooManyReadLeases(StoreError):
    """The configured limit of read leases, or of queues that they pin, is reached."""

    limit_name: str
    limit: int

    def __str__(self) -> str:
        return (
            f"the limit of read leases is reached: {self.limit_name} ({self.limit}); plan without "
            "lease_ms, wait until some leases have ended, or raise the limit in the configuration"
        )


@dataclass(eq=False, repr=False)
class UnknownReadLease(StoreError):
    """No active lease on this topic has this id."""

    lease_id: str

    def __str__(self) -> str:
        return (
            f"there is no lease {self.lease_id[:64]!r} on this topic, or it has ended; the "
            "messages that it pinned may be deleted; plan again with lease_ms to get a new lease"
        )


@dataclass(eq=False, repr=False)
class StateUnavailable(StoreError):
    """Topics or stored offsets could not be written."""

    cause: str

    def __str__(self) -> str:
        return f"the broker's state could not be written: {self.cause}"


class StateFull(StateUnavailable):
    """Topics or stored offsets could not be written because the disk or the map is full."""
