"""The errors that a client raises, grouped by what the caller can do. Pure.

The client retries transient errors (marked *), and raises them only if the retries fail.

HoldfastError
  ConnectionFailed*
    CertificateNotTrusted
  BadReply
  ClientClosed
    ChannelClosed
  StaleDelivery, TooManyChannels (channels)
  FilesUnreadable, PackageMissing, UndecodableBody (tables)
  ApiError: the broker refused; `type` is the stable code, `members` has the values
    401  Unauthenticated
    403  Forbidden, ProducerFenced
    404  UnknownTopic, UnknownQueue, UnknownGroup, UnknownMessage
    409  TopicConflict, TopicRecreated, ExclusiveHeld, GroupBusy, RedriveRunning*, SequenceGap,
         TooManyProducers
    410  OffsetTrimmed
    412  OffsetsChanged
    413  MessageTooLarge
    416  OffsetBeyondEnd
    422  Unroutable
    429  TooManyHeld*
    500  RecordCorrupt
    503  Overloaded*, Unavailable*, SyncTimeout*
    507  DiskFull*
    0    MessageReleased* (sessions)
  ProducerError
    ProducerBufferFull, ProducerClosed, PublishFailed
CorruptBatch (holdfast.commitlog.errors)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.commitlog.errors import CorruptBatch as CorruptBatch

#: Problem types with their own class; any other type is a plain ApiError.
_CLASS_BY_TYPE: dict[str, "type[ApiError]"] = {}


class HoldfastError(Exception):
    """Any failure that a client reports, except CorruptBatch."""

    def __post_init__(self) -> None:
        self.args = tuple(vars(self).values())  # for pickling


@dataclass(eq=False, repr=False)
class ConnectionFailed(HoldfastError):
    """The broker could not be reached, or the connection ended before the reply.

    `maybe_executed` is False when the request certainly did not reach the broker.
    """

    url: str
    reason: str
    maybe_executed: bool

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
            f"the certificate of {self.url} is not trusted: {self.reason}; use the name in the "
            "certificate, or give the file of the authority that signed it (ca_file, --tls-ca-file)"
        )


@dataclass(eq=False, repr=False)
class BadReply(HoldfastError):
    """A reply that the API does not define."""

    url: str
    reason: str

    def __str__(self) -> str:
        return f"{self.url} does not answer as a Holdfast broker does: {self.reason}"


class ClientClosed(HoldfastError):
    """The client is closed; requests in flight have ended."""

    def __str__(self) -> str:
        return "the client is closed"


class ChannelClosed(ClientClosed):
    """The channel is closed; its calls have ended."""

    def __str__(self) -> str:
        return "the channel is closed"


class StaleDelivery(HoldfastError):
    """The connection that delivered a message was lost: the group delivers the message again."""

    def __str__(self) -> str:
        return "the connection that delivered the message was lost; its group delivers it again"


class TooManyChannels(HoldfastError):
    """All 65,535 channels of a connection are open."""

    def __str__(self) -> str:
        return "all 65,535 channels of the connection are open; close some, or connect again"


@dataclass(eq=False, repr=False)
class PackageMissing(HoldfastError, ImportError):
    """This call needs a package that is not installed. `extra` is the extra of holdfast and
    holdfast-client that installs it."""

    package: str
    extra: str

    def __str__(self) -> str:
        # Not the extra: the client's own wheel does not have the name of the broker's.
        return f"{self.package} is not installed; pip install {self.package}"


@dataclass(eq=False, repr=False)
class FilesUnreadable(HoldfastError):
    """A data directory cannot be read from here, or its state is damaged."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"the log in the data directory {self.path} cannot be read here: {self.reason}"


@dataclass(eq=False, repr=False)
class UndecodableBody(HoldfastError, ValueError):
    """A message's body is not of the form that the caller asked for. `offset` is its offset."""

    topic: str
    queue: int
    offset: int
    reason: str

    def __str__(self) -> str:
        where = f"the body at offset {self.offset} of queue {self.queue} of {self.topic}"
        return f"{where} {self.reason}; read bodies as binary to get it"


class ApiError(HoldfastError):
    """The broker refused a request. The attributes are the fields of its problem object (RFC 9457).

    `type` is the last part of the problem's type URI, a stable code. `status` is 0 for errors of a
    session, which have no HTTP status; their `type` may be a condition of AMQP. `members` holds
    the fields that RFC 9457 does not define. `retry_after_s` is None if the broker sent no
    Retry-After.
    """

    #: Whether the error is transient: the same request may succeed later.
    is_passing: ClassVar[bool] = False

    def __init_subclass__(cls, types: tuple[str, ...]) -> None:
        _CLASS_BY_TYPE.update(dict.fromkeys(types, cls))

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
        code = f"{self.status} {self.type}" if self.status else self.type
        return f"{self.detail or self.title or 'refused'} ({code})"


class Unauthenticated(ApiError, types=("unauthenticated",)):
    """The broker requires a token; it was missing, invalid or expired."""


class Forbidden(ApiError, types=("forbidden",)):
    """The token is valid but does not grant this request."""

    @property
    def verb(self) -> str:
        """The missing permission: one verb, or several verbs of which the token needs only one."""
        return str(self.members.get("verb", ""))


class UnknownTopic(ApiError, types=("unknown-topic",)):
    """There is no such topic."""


class UnknownQueue(ApiError, types=("unknown-queue",)):
    """The topic has no such queue."""

    @property
    def queue_count(self) -> int:
        return int(self.members["queue_count"])


class UnknownGroup(ApiError, types=("unknown-group",)):
    """The broker stores nothing for this group."""


class UnknownMessage(ApiError, types=("unknown-message",)):
    """No message with this id exists, or it was deleted."""


class TopicConflict(ApiError, types=("topic-conflict",)):
    """The topic exists, but its setting `field` has the value `existing`, not the `given` one."""

    @property
    def field(self) -> str:
        return str(self.members["field"])

    @property
    def given(self) -> Any:
        return self.members["given"]

    @property
    def existing(self) -> Any:
        return self.members["existing"]


class TopicRecreated(ApiError, types=("topic-recreated",)):
    """The topic was deleted and created again, so its old offsets now belong to other messages."""


class OffsetTrimmed(ApiError, types=("offset-trimmed",)):
    """Retention has deleted the message at this offset. `min_offset` is the first offset that
    exists; `max_offset` is the offset that the next message will get."""

    @property
    def min_offset(self) -> int:
        return int(self.members["min_offset"])

    @property
    def max_offset(self) -> int:
        return int(self.members["max_offset"])


class OffsetBeyondEnd(ApiError, types=("offset-beyond-end",)):
    """The offset is above `max_offset`, the offset that the next message will get. The offset was
    never assigned, or its message was lost because a disk was lost."""

    @property
    def max_offset(self) -> int:
        return int(self.members["max_offset"])


class Unroutable(ApiError, types=("unroutable",)):
    """The publish was mandatory, and no group would get one of its messages. Nothing of the request
    was stored."""

    @property
    def index(self) -> int:
        """The number of the first message that no group would get; the first message of the
        request has the number 0."""
        return int(self.members.get("index", 0))


class OffsetsChanged(ApiError, types=("offsets-changed",)):
    """A compare-and-swap failed: the group's offsets changed after they were read."""


class ExclusiveHeld(ApiError, types=("group-exclusive",)):
    """The group is exclusive: another member receives all messages until that member leaves."""


class GroupBusy(ApiError, types=("group-busy",)):
    """Messages of the group are leased, so its mode cannot change now."""


class RedriveRunning(ApiError, types=("redrive-running",)):
    """Another request is redriving the group's dead letters."""

    is_passing = True


class MessageTooLarge(ApiError, types=("message-too-large",)):
    """A message, or its key, tag or properties, exceeds the limit; nothing was stored."""


class RecordCorrupt(ApiError, types=("corrupt-record",)):
    """The pull starts in a damaged range of the log; `next_offset` is after that range."""

    @property
    def next_offset(self) -> int:
        return int(self.members["next_offset"])


class SequenceGap(ApiError, types=("sequence-gap",)):
    """The broker does not know the preceding batch of the same producer."""


class ProducerFenced(ApiError, types=("producer-fenced",)):
    """A producer with the same id and a higher epoch has taken over."""


class TooManyProducers(ApiError, types=("too-many-producers",)):
    """The broker's limit of idempotent producers is reached; it accepts no new one."""


class TooManyHeld(ApiError, types=("too-many-held",)):
    """The broker's limit of held pulls is reached."""

    is_passing = True


class Overloaded(ApiError, types=("overloaded",)):
    """The broker's write backlog is too large."""

    is_passing = True


class DiskFull(ApiError, types=("disk-full",)):
    """The broker's disk is full; publishing resumes automatically once there is room."""

    is_passing = True


class Unavailable(ApiError, types=("recovering", "draining")):
    """The broker is recovering or draining."""

    is_passing = True


class SyncTimeout(ApiError, types=("sync-timeout",)):
    """The disk has not confirmed a publish in time: the messages may be stored or not."""

    is_passing = True


class MessageReleased(ApiError, types=("amqp:released",)):
    """The broker did not store a message of a session's sender, and may store it later."""

    is_passing = True


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


@dataclass(eq=False, repr=False)
class ProducerBufferFull(ProducerError):
    """The producer's limit of unacknowledged bytes is reached."""

    buffer_bytes: int

    def __str__(self) -> str:
        return (
            f"the buffer is full: {self.buffer_bytes} bytes wait for the broker; "
            "call `await producer.drain()` between sends to wait for room"
        )


class ProducerClosed(ProducerError):
    """The producer is not open: not started yet, or closed."""

    def __str__(self) -> str:
        return "the producer is not open; use it inside `with client.producer(...) as producer:`"


@dataclass(eq=False, repr=False)
class PublishFailed(ProducerError):
    """The publish of `message_count` messages failed. The broker has not stored them, or has not
    confirmed that it stored them. `cause` is the first error."""

    topic: str
    message_count: int
    cause: Exception

    def __str__(self) -> str:
        return f"{self.message_count} messages to {self.topic} failed: {self.cause}"
