"""The errors that a client raises, grouped by what the caller can do. Pure.

"Retried first" means that the client retries and raises the error only if the retries fail.

HoldfastError
  ConnectionFailed      no reply: refused, reset, timed out (after all retries)
    CertificateNotTrusted    this client does not trust the broker's certificate; not retried
  BadReply              a reply that the API does not define, such as a proxy's page
  ClientClosed          the client was closed, perhaps during the call
  ApiError              the broker refused; `type` is the stable code, `members` has the values
    Unauthenticated     no token, or a token that is invalid or has expired         401
    Forbidden           the token does not grant this                               403
    UnknownTopic, UnknownQueue, UnknownGroup, UnknownMessage                        404
    TopicConflict       the topic exists with a different setting                   409
    TopicRecreated      the topic was deleted and created again                     409
    OffsetTrimmed       retention has deleted the offset                            410
    OffsetBeyondEnd     the offset is above max_offset                              416
    OffsetsChanged      another consumer changed the group's offsets                412
    ExclusiveHeld       the group is exclusive, and another member holds it         409
    GroupBusy           the group's mode cannot change while messages are leased    409
    RedriveRunning      another redrive of the group is running; retried first      409
    MessageTooLarge     a message, key, tag or its properties exceed the limit      413
    RecordCorrupt       the pull starts in a damaged range                          500
    SequenceGap         the broker has not stored the producer's preceding batch    409
    ProducerFenced      a newer producer with the same id has taken over            403
    TooManyProducers    the limit of idempotent producers is reached                409
    TooManyHeld, Overloaded, DiskFull, Unavailable    transient; retried first
    SyncTimeout         the disk has not confirmed a publish in time; retried first,
                        without storing it twice                                    503
  ProducerError
    ProducerBufferFull  the buffer is full (asyncio only): await drain() before send()
    ProducerClosed      send() before the start or after close()
    PublishFailed       messages were not stored, and no handle has reported it
CorruptBatch            bytes that fail their checksum (holdfast.commitlog.errors)
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from holdfast.commitlog.errors import CorruptBatch as CorruptBatch


class HoldfastError(Exception):
    """Any failure that a client reports, except CorruptBatch."""


class ConnectionFailed(HoldfastError):
    """The broker could not be reached, or the connection ended before the reply.

    `maybe_executed` is False when the request certainly did not reach the broker.
    """

    def __init__(self, url: str, reason: str, maybe_executed: bool) -> None:
        super().__init__(url, reason, maybe_executed)
        self.url = url
        self.reason = reason
        self.maybe_executed = maybe_executed

    def __str__(self) -> str:
        return f"no answer from {self.url}: {self.reason}; is the broker running there?"


class CertificateNotTrusted(ConnectionFailed):
    """This client does not trust the certificate of the server at this address.

    No request was sent, and a retry would not help.
    """

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason, maybe_executed=False)
        self.args = (url, reason)

    def __str__(self) -> str:
        return (
            f"the certificate of {self.url} is not trusted: {self.reason}; use the name that it is "
            "for, or give the file of the authority that signed it (ca_file, --tls-ca-file)"
        )


class BadReply(HoldfastError):
    """A reply that the API does not define."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url = url
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.url} does not answer as a Holdfast broker does: {self.reason}"


class ClientClosed(HoldfastError):
    """The client is closed; requests in flight have ended."""

    def __str__(self) -> str:
        return "the client is closed"


class ApiError(HoldfastError):
    """The broker refused a request. The attributes are the fields of its problem object (RFC 9457).

    `type` is the last part of the problem's type URI, a stable code. `members` holds the fields
    that RFC 9457 does not define. `retry_after_s` is None if the broker sent no Retry-After.
    """

    #: Whether the error is transient: the same request may succeed later.
    is_passing: ClassVar[bool] = False

    def __init__(
        self,
        status: int,
        type: str,
        title: str = "",
        detail: str = "",
        members: Mapping[str, Any] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(status, type, title, detail, members, retry_after_s)
        self.status = status
        self.type = type
        self.title = title
        self.detail = detail
        self.members: Mapping[str, Any] = members or {}
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.detail or self.title or 'refused'} ({self.status} {self.type})"


class Unauthenticated(ApiError):
    """The broker requires a token; it was missing, invalid or expired."""


class Forbidden(ApiError):
    """The token is valid but does not grant this request."""

    @property
    def verb(self) -> str:
        """The missing permission: one verb, or several verbs of which any one is enough."""
        return str(self.members.get("verb", ""))


class UnknownTopic(ApiError):
    """There is no such topic."""


class UnknownQueue(ApiError):
    """The topic has no such queue."""

    @property
    def queue_count(self) -> int:
        """How many queues the topic has."""
        return int(self.members["queue_count"])


class UnknownGroup(ApiError):
    """The broker stores nothing for this group."""


class UnknownMessage(ApiError):
    """No message with this id exists, or it was deleted."""


class TopicConflict(ApiError):
    """The topic exists, but its setting `field` has the value `existing`, not the `given` one."""

    @property
    def field(self) -> str:
        """The setting that differs."""
        return str(self.members["field"])

    @property
    def given(self) -> Any:
        """The value that was requested."""
        return self.members["given"]

    @property
    def existing(self) -> Any:
        """The topic's value."""
        return self.members["existing"]


class TopicRecreated(ApiError):
    """The topic was deleted and created again, so its old offsets now belong to other messages."""


class OffsetTrimmed(ApiError):
    """Retention has deleted the offset; `min_offset` is the first offset that exists."""

    @property
    def min_offset(self) -> int:
        """The first offset that exists."""
        return int(self.members["min_offset"])

    @property
    def max_offset(self) -> int:
        """The offset that the next message will get."""
        return int(self.members["max_offset"])


class OffsetBeyondEnd(ApiError):
    """The offset is above `max_offset`: it was never assigned, or was lost with a disk."""

    @property
    def max_offset(self) -> int:
        """The offset that the next message will get."""
        return int(self.members["max_offset"])


class OffsetsChanged(ApiError):
    """A compare-and-swap failed: the group's offsets changed after they were read."""


class ExclusiveHeld(ApiError):
    """The group is exclusive: another member receives all messages until that member leaves."""


class GroupBusy(ApiError):
    """Messages of the group are leased, so its mode cannot change now."""


class RedriveRunning(ApiError):
    """Another request is redriving the group's dead letters."""

    is_passing = True


class MessageTooLarge(ApiError):
    """A message, or its key, tag or properties, exceeds the limit; nothing was stored."""


class RecordCorrupt(ApiError):
    """The pull starts in a damaged range of the log; `next_offset` is after that range."""

    @property
    def next_offset(self) -> int:
        """The first offset after the damaged range."""
        return int(self.members["next_offset"])


class SequenceGap(ApiError):
    """The broker does not know the preceding batch of the same producer."""


class ProducerFenced(ApiError):
    """A producer with the same id and a higher epoch has taken over."""


class TooManyProducers(ApiError):
    """The broker's limit of idempotent producers is reached; it accepts no new one."""


class TooManyHeld(ApiError):
    """The broker's limit of held pulls is reached."""

    is_passing = True


class Overloaded(ApiError):
    """The broker's write backlog is too large."""

    is_passing = True


class DiskFull(ApiError):
    """The broker's disk is full; publishing resumes automatically once there is room."""

    is_passing = True


class Unavailable(ApiError):
    """The broker is recovering or draining."""

    is_passing = True


class SyncTimeout(ApiError):
    """The disk has not confirmed a publish in time: the messages may be stored or not."""

    is_passing = True


#: Problem types with their own class; any other type is a plain ApiError.
_CLASS_BY_TYPE: dict[str, type[ApiError]] = {
    "unauthenticated": Unauthenticated,
    "forbidden": Forbidden,
    "unknown-topic": UnknownTopic,
    "unknown-queue": UnknownQueue,
    "unknown-group": UnknownGroup,
    "unknown-message": UnknownMessage,
    "topic-conflict": TopicConflict,
    "topic-recreated": TopicRecreated,
    "offset-trimmed": OffsetTrimmed,
    "offset-beyond-end": OffsetBeyondEnd,
    "offsets-changed": OffsetsChanged,
    "group-exclusive": ExclusiveHeld,
    "group-busy": GroupBusy,
    "redrive-running": RedriveRunning,
    "message-too-large": MessageTooLarge,
    "corrupt-record": RecordCorrupt,
    "sequence-gap": SequenceGap,
    "producer-fenced": ProducerFenced,
    "too-many-producers": TooManyProducers,
    "too-many-held": TooManyHeld,
    "overloaded": Overloaded,
    "disk-full": DiskFull,
    "sync-timeout": SyncTimeout,
    "recovering": Unavailable,
    "draining": Unavailable,
}

_OWN_MEMBERS = {"type", "status", "title", "detail", "instance"}


def api_error(
    status: int, problem: Mapping[str, Any], retry_after_s: float | None = None
) -> ApiError:
    """Return the error for a problem object (RFC 9457)."""
    type_ = str(problem.get("type", "about:blank")).rsplit("/", 1)[-1]
    return _CLASS_BY_TYPE.get(type_, ApiError)(
        status,
        type_,
        str(problem.get("title", "")),
        str(problem.get("detail", "")),
        {name: value for name, value in problem.items() if name not in _OWN_MEMBERS},
        retry_after_s,
    )


class ProducerError(HoldfastError):
    """A failure of a batching producer."""


class ProducerBufferFull(ProducerError):
    """The producer's limit of unacknowledged bytes is reached."""

    def __init__(self, buffer_bytes: int) -> None:
        super().__init__(buffer_bytes)
        self.buffer_bytes = buffer_bytes

    def __str__(self) -> str:
        return (
            f"{self.buffer_bytes} bytes wait for the broker, as many as may; "
            "`await producer.drain()` between sends waits for room"
        )


class ProducerClosed(ProducerError):
    """The producer is not open: not started yet, or closed."""

    def __str__(self) -> str:
        return "the producer is not open; use it inside `with client.producer(...) as producer:`"


class PublishFailed(ProducerError):
    """`message_count` messages failed: not stored, or possibly stored without confirmation.
    `cause` is the first error."""

    def __init__(self, topic: str, message_count: int, cause: Exception) -> None:
        super().__init__(topic, message_count, cause)
        self.topic = topic
        self.message_count = message_count
        self.cause = cause

    def __str__(self) -> str:
        return f"{self.message_count} messages to {self.topic} failed: {self.cause}"
