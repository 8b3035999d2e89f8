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


class IndexCorrupt(Exception):
    """The index on disk cannot be trusted: delete it and rebuild it from the log."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the index is damaged: {self.reason}"


class StoreError(Exception):
    """The message store cannot fulfil a request."""


class InvalidName(StoreError):
    """The name of a topic or group is not allowed."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(kind, name)
        self.kind = kind
        self.name = name

    def __str__(self) -> str:
        return (
            f"{self.name[:140]!r} is not a {self.kind} name: use 1 to 127 of A-Z a-z 0-9 . _ - , "
            "not '.' or '..'; names that begin with '__' are reserved for the broker"
        )


class UnknownTopic(StoreError):
    """No topic has this name."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return f"there is no topic {self.topic!r}; create it, or publish to it first"


class UnknownQueue(StoreError):
    """The topic has no such queue."""

    def __init__(self, topic: str, queue: int, queue_count: int) -> None:
        super().__init__(topic, queue, queue_count)
        self.topic = topic
        self.queue = queue
        self.queue_count = queue_count

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} has no queue {self.queue}; "
            f"its queues are 0 to {self.queue_count - 1}"
        )


class UnknownGroup(StoreError):
    """No group of this name has stored an offset."""

    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.group = group

    def __str__(self) -> str:
        return (
            f"there is no group {self.group!r}; PUT /v1/groups/{self.group} with topics creates a "
            "group that leases messages, storing offsets creates a group that only has offsets"
        )


class UnknownMessage(StoreError):
    """No message has this id."""

    def __init__(self, message_id: str) -> None:
        super().__init__(message_id)
        self.message_id = message_id

    def __str__(self) -> str:
        return f"there is no message {self.message_id[:64]!r}"


class TopicConflict(StoreError):
    """The topic exists with another value in `field`."""

    def __init__(self, topic: str, field: str, given: object, existing: object) -> None:
        super().__init__(topic, field, given, existing)
        self.topic = topic
        self.field = field
        self.given = given
        self.existing = existing

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} exists with {self.field} {self.existing!r}, not "
            f"{self.given!r}; change it with PATCH, or leave the field out"
        )


class KeyedBacklog(StoreError):
    """Queues cannot be added while keyed groups have unacknowledged messages of the topic: the next
    messages of a key could go to a new queue and overtake them. `groups` names some of these
    groups."""

    def __init__(self, topic: str, groups: Sequence[str]) -> None:
        super().__init__(topic, groups)
        self.topic = topic
        self.groups = list(groups)

    def __str__(self) -> str:
        named = f" ({', '.join(self.groups)})" if self.groups else ""
        return (
            f"keyed groups{named} have unsettled messages of topic {self.topic!r}, and with more "
            "queues later messages of a key could overtake them; stop publishing messages with "
            "keys, wait until these groups have settled all messages, then add the queues"
        )


class InvalidTopicChange(StoreError):
    """A change that is not possible for this topic. `detail` is the reason."""

    def __init__(self, topic: str, detail: str) -> None:
        super().__init__(topic, detail)
        self.topic = topic
        self.detail = detail

    def __str__(self) -> str:
        return f"topic {self.topic!r}: {self.detail}"


class LimitReached(StoreError):
    """The configured limit of topics, queues or groups is reached."""

    def __init__(self, limit_name: str, limit: int) -> None:
        super().__init__(limit_name, limit)
        self.limit_name = limit_name
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"{self.limit_name} is {self.limit}; request fewer, delete some, or raise the limit "
            "in the configuration"
        )


class TopicFull(StoreError):
    """A publish would exceed the topic's `max_bytes`. `stored_bytes` is its current size."""

    def __init__(self, topic: str, stored_bytes: int, limit: int) -> None:
        super().__init__(topic, stored_bytes, limit)
        self.topic = topic
        self.stored_bytes = stored_bytes
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"the topic {self.topic!r} has {self.stored_bytes} bytes, and this publish would "
            f"exceed its max_bytes ({self.limit}). Wait until its retention deletes old messages, "
            "or raise max_bytes with PATCH"
        )


class OffsetTrimmed(StoreError):
    """The offset is below the queue's first kept message."""

    def __init__(
        self, topic: str, queue: int, offset: int, min_offset: int, max_offset: int
    ) -> None:
        super().__init__(topic, queue, offset, min_offset, max_offset)
        self.topic = topic
        self.queue = queue
        self.offset = offset
        self.min_offset = min_offset
        self.max_offset = max_offset

    def __str__(self) -> str:
        return (
            f"queue {self.queue} of {self.topic!r} no longer has offset {self.offset}; "
            f"it begins at {self.min_offset}"
        )


class OffsetBeyondEnd(StoreError):
    """The offset is after the next offset to be written."""

    def __init__(
        self, topic: str, queue: int, offset: int, min_offset: int, max_offset: int
    ) -> None:
        super().__init__(topic, queue, offset, min_offset, max_offset)
        self.topic = topic
        self.queue = queue
        self.offset = offset
        self.min_offset = min_offset
        self.max_offset = max_offset

    def __str__(self) -> str:
        return (
            f"queue {self.queue} of {self.topic!r} ends at {self.max_offset}; "
            f"offset {self.offset} is beyond it"
        )


class QueueCorrupt(StoreError):
    """The message at `offset` is damaged on disk. Readers can continue at `next_offset`."""

    def __init__(
        self,
        topic: str,
        queue: int,
        offset: int,
        next_offset: int,
        min_offset: int,
        max_offset: int,
        reason: str,
    ) -> None:
        super().__init__(topic, queue, offset, next_offset, min_offset, max_offset, reason)
        self.topic = topic
        self.queue = queue
        self.offset = offset
        self.next_offset = next_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"queue {self.queue} of {self.topic!r} is damaged at offset {self.offset} "
            f"({self.reason}); continue from {self.next_offset} and run 'holdfast check'"
        )


class OffsetsChanged(StoreError):
    """The expected version of the stored offsets is not the current `version`."""

    def __init__(self, group: str, topic: str, version: int) -> None:
        super().__init__(group, topic, version)
        self.group = group
        self.topic = topic
        self.version = version

    def __str__(self) -> str:
        return (
            f"the offsets of group {self.group!r} for {self.topic!r} are at version "
            f"{self.version} now; read them again before storing"
        )


class TooManyReadLeases(StoreError):
    """The configured limit of read leases, or of queues that they pin, is reached."""

    def __init__(self, limit_name: str, limit: int) -> None:
        super().__init__(limit_name, limit)
        self.limit_name = limit_name
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"the limit of read leases is reached: {self.limit_name} ({self.limit}); plan without "
            "lease_ms, wait until some leases have ended, or raise the limit in the configuration"
        )


class UnknownReadLease(StoreError):
    """No active lease on this topic has this id."""

    def __init__(self, lease_id: str) -> None:
        super().__init__(lease_id)
        self.lease_id = lease_id

    def __str__(self) -> str:
        return (
            f"there is no lease {self.lease_id[:64]!r} on this topic, or it has ended; the "
            "messages that it pinned may be deleted; plan again with lease_ms to get a new lease"
        )


class StateUnavailable(StoreError):
    """Topics or stored offsets could not be written."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause

    def __str__(self) -> str:
        return f"the broker's state could not be written: {self.cause}"


class StateFull(StateUnavailable):
    """Topics or stored offsets could not be written because the disk or the map is full."""
