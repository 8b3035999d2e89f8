"""What the store answers when it cannot do what was asked. Each error carries its values.

StoreError
  InvalidName, UnknownTopic, UnknownQueue, UnknownGroup, UnknownMessage
  TopicConflict, InvalidTopicChange, LimitReached, OffsetsChanged
  OffsetTrimmed, OffsetBeyondEnd, QueueCorrupt
  TooManyReadLeases, UnknownReadLease
  StateUnavailable       topics or stored offsets could not be written: the disk's fault
    StateFull            ... it is full
"""


class IndexCorrupt(Exception):
    """The index on disk cannot be trusted: delete it and rebuild it from the log."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the index is damaged: {self.reason}"


class StoreError(Exception):
    """Any refusal of the message store."""


class InvalidName(StoreError):
    """A topic or group name outside the one pattern that is allowed."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(kind, name)
        self.kind = kind
        self.name = name

    def __str__(self) -> str:
        return (
            f"{self.name[:140]!r} is no {self.kind} name: use 1 to 127 of A-Z a-z 0-9 . _ - , "
            "not '.' or '..'; names that begin with '__' are the broker's own"
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
            f"there is no group {self.group!r}; PUT /v1/groups/{self.group} with its topics makes "
            "one that leases messages, storing offsets for it one that keeps them"
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


class InvalidTopicChange(StoreError):
    """A change that no topic can take."""

    def __init__(self, topic: str, detail: str) -> None:
        super().__init__(topic, detail)
        self.topic = topic
        self.detail = detail

    def __str__(self) -> str:
        return f"topic {self.topic!r}: {self.detail}"


class LimitReached(StoreError):
    """As many topics, queues or groups exist as the configuration allows."""

    def __init__(self, limit_name: str, limit: int) -> None:
        super().__init__(limit_name, limit)
        self.limit_name = limit_name
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"{self.limit_name} is {self.limit}; ask for fewer, delete some, or raise it in the "
            "configuration"
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
    """The offset is beyond the next one to be written."""

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
    """The message at `offset` is damaged on disk; `next_offset` is the first one after it."""

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
            f"({self.reason}); go on from {self.next_offset} and run 'holdfast check'"
        )


class OffsetsChanged(StoreError):
    """A compare-and-swap of stored offsets found another version than expected."""

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
    """As many leases, or queues that they pin, are out as the configuration allows."""

    def __init__(self, limit_name: str, limit: int) -> None:
        super().__init__(limit_name, limit)
        self.limit_name = limit_name
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"{self.limit_name} is {self.limit}, and so many are leased to readers; plan without "
            "lease_ms, wait until some have ended, or raise it in the configuration"
        )


class UnknownReadLease(StoreError):
    """No lease of this id lives on this topic."""

    def __init__(self, lease_id: str) -> None:
        super().__init__(lease_id)
        self.lease_id = lease_id

    def __str__(self) -> str:
        return (
            f"there is no lease {self.lease_id[:64]!r} on this topic, or not any more, and what it "
            "pinned may be trimmed; plan again with lease_ms to take another"
        )


class StateUnavailable(StoreError):
    """Topics or stored offsets could not be written."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause

    def __str__(self) -> str:
        return f"the broker's state could not be written: {self.cause}"


class StateFull(StateUnavailable):
    """Topics or stored offsets could not be written for want of room."""
