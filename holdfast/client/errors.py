"""What a client can raise, by what the caller can do about it. Pure.

HoldfastError
  ConnectionFailed      no answer: refused, reset, timed out (after all retries)
    CertificateNotTrusted    TLS: not one that this client trusts; not tried again
  BadReply              an answer that the API does not promise, such as a proxy's page
  ClientClosed          the client was closed, perhaps while it was being read from
  ApiError              the broker refused: `type` is the stable word, `members` the values
    Unauthenticated     no token, or one that is not valid (any more)               401
    Forbidden           the token does not grant this                               403
    UnknownTopic, UnknownQueue, UnknownGroup, UnknownMessage                        404
    TopicConflict       the topic exists with another setting                       409
    TopicRecreated      the topic was deleted and made again                        409
    OffsetTrimmed       the offset is below what is kept                            410
    OffsetBeyondEnd     the offset is above max_offset                              416
    OffsetsChanged      another one moved the group's offsets                       412
    ExclusiveHeld       another member has the group to itself                      409
    GroupBusy           the group's mode cannot change while messages are leased    409
    MessageTooLarge     a message, key, tag or its properties are over the limit    413
    RecordCorrupt       the pull starts in a damaged range                          500
    SequenceGap, ProducerFenced    an idempotent producer's place was taken      409, 403
    TooManyHeld, Overloaded, DiskFull, Unavailable    passing: retried first
  ProducerError
    ProducerBufferFull  send() in asyncio while the buffer is full: await drain()
    ProducerClosed      send() after close
    PublishFailed       messages were not stored and nobody had looked at their handles
CorruptBatch            bytes that fail their checksum (holdfast.commitlog.errors)
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from holdfast.commitlog.errors import CorruptBatch as CorruptBatch


class HoldfastError(Exception):
    """Any failure that a client reports, but for CorruptBatch."""


class ConnectionFailed(HoldfastError):
    """The broker could not be reached, or the connection ended before its answer.

    `maybe_executed` is False when the request certainly never reached the broker.
    """

    def __init__(self, url: str, reason: str, maybe_executed: bool) -> None:
        super().__init__(url, reason, maybe_executed)
        self.url = url
        self.reason = reason
        self.maybe_executed = maybe_executed

    def __str__(self) -> str:
        return f"no answer from {self.url}: {self.reason}; is the broker running there?"


class CertificateNotTrusted(ConnectionFailed):
    """What answers at the address shows no certificate that this client trusts for it.

    Nothing was sent, and trying again would not help.
    """

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason, maybe_executed=False)
        self.args = (url, reason)

    def __str__(self) -> str:
        return (
            f"the certificate of {self.url} is not trusted: {self.reason}; use the name that it is "
            "for, or give the file of the authority that signed it (ca_file, --ca-file)"
        )


class BadReply(HoldfastError):
    """An answer that the API does not promise."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url = url
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.url} does not answer as a Holdfast broker does: {self.reason}"


class ClientClosed(HoldfastError):
    """The client is closed; what was under way has ended."""

    def __str__(self) -> str:
        return "the client is closed"


class ApiError(HoldfastError):
    """The broker refused a request; RFC 9457's members are the attributes.

    `type` is the stable word after /problems/, `members` holds what it adds, `retry_after_s`
    is None when the broker did not say.
    """

    #: Whether the same request may succeed in a while, with nothing done by anybody.
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
    """The broker asks for a token, and there was none, or one that is not valid (any more)."""


class Forbidden(ApiError):
    """The token is valid, but does not grant this."""

    @property
    def verb(self) -> str:
        """What it lacks: a verb, or several of which one would do."""
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
    """Nothing is stored for such a group."""


class UnknownMessage(ApiError):
    """There is no message with such an id (any more)."""


class TopicConflict(ApiError):
    """The topic exists, and `field` is `existing` where `given` was asked for."""

    @property
    def field(self) -> str:
        """The setting that differs."""
        return str(self.members["field"])

    @property
    def given(self) -> Any:
        """What was asked for."""
        return self.members["given"]

    @property
    def existing(self) -> Any:
        """What the topic has."""
        return self.members["existing"]


class TopicRecreated(ApiError):
    """The topic was deleted and made again under its name; its offsets mean other messages."""


class OffsetTrimmed(ApiError):
    """The offset is below what retention has kept; `min_offset` is the first that is there."""

    @property
    def min_offset(self) -> int:
        """The first offset that is kept."""
        return int(self.members["min_offset"])

    @property
    def max_offset(self) -> int:
        """The offset that the next message will get."""
        return int(self.members["max_offset"])


class OffsetBeyondEnd(ApiError):
    """The offset is above `max_offset`, so it was never given out (or lost with its disk)."""

    @property
    def max_offset(self) -> int:
        """The offset that the next message will get."""
        return int(self.members["max_offset"])


class OffsetsChanged(ApiError):
    """A compare-and-swap failed: the group's offsets are not those that were read."""


class ExclusiveHeld(ApiError):
    """The group is exclusive, and another member's until it leaves."""


class GroupBusy(ApiError):
    """Messages of the group are leased, so its mode cannot change now."""


class MessageTooLarge(ApiError):
    """A message, or one of its texts, is over the limit; nothing of the request was stored."""


class RecordCorrupt(ApiError):
    """The pull starts in a damaged range of the log; `next_offset` is past it."""

    @property
    def next_offset(self) -> int:
        """The first offset after the damage."""
        return int(self.members["next_offset"])


class SequenceGap(ApiError):
    """The broker does not know the batch before this one of the same producer."""


class ProducerFenced(ApiError):
    """A producer with the same id and a higher epoch took over."""


class TooManyHeld(ApiError):
    """The broker holds as many pulls as it may."""

    is_passing = True


class Overloaded(ApiError):
    """Too much waits to be written."""

    is_passing = True


class DiskFull(ApiError):
    """The broker's disk is full; publishing resumes by itself once there is room."""

    is_passing = True


class Unavailable(ApiError):
    """The broker is recovering or draining."""

    is_passing = True


#: Problem types with a class of their own; every other one is a plain ApiError.
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
    "message-too-large": MessageTooLarge,
    "corrupt-record": RecordCorrupt,
    "sequence-gap": SequenceGap,
    "producer-fenced": ProducerFenced,
    "too-many-held": TooManyHeld,
    "overloaded": Overloaded,
    "disk-full": DiskFull,
    "recovering": Unavailable,
    "draining": Unavailable,
}

_OWN_MEMBERS = {"type", "status", "title", "detail", "instance"}


def api_error(
    status: int, problem: Mapping[str, Any], retry_after_s: float | None = None
) -> ApiError:
    """Return the error that a problem (an object of RFC 9457) stands for."""
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
    """The producer holds as many unacknowledged bytes as it may."""

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
    """`message_count` messages were not stored (or not provably); `cause` is the first reason."""

    def __init__(self, topic: str, message_count: int, cause: Exception) -> None:
        super().__init__(topic, message_count, cause)
        self.topic = topic
        self.message_count = message_count
        self.cause = cause

    def __str__(self) -> str:
        return f"{self.message_count} messages to {self.topic} failed: {self.cause}"
