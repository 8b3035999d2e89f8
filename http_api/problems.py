"""Every problem that the API answers with, and which exception becomes which (RFC 9457).

One table names the kinds, one the exceptions; nothing else in the API chooses a status for an
error. A problem's `type` is stable and for machines, as are its members; its `detail` is a
sentence for people that names the mend.
"""

import errno
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.commitlog.batch_check import LimitExceeded
from holdfast.commitlog.errors import (
    BatchTooLarge,
    CorruptRecord,
    DiskFull,
    DiskLow,
    IndexBehind,
    LogClosed,
    LogOverloaded,
    LogPoisoned,
    MemoryLow,
    NoSegment,
    ProducerFenced,
    SequenceGap,
    SequenceTooOld,
)
from holdfast.consumequeue.errors import (
    IndexCorrupt,
    InvalidName,
    InvalidTopicChange,
    LimitReached,
    OffsetBeyondEnd,
    OffsetsChanged,
    OffsetTrimmed,
    QueueCorrupt,
    StateFull,
    StateUnavailable,
    TooManyReadLeases,
    TopicConflict,
    UnknownGroup,
    UnknownMessage,
    UnknownQueue,
    UnknownReadLease,
    UnknownTopic,
)
from holdfast.groups.errors import ExclusiveHeld, FilterNotAllowed
from holdfast.groups.service_types import GroupBusy, InvalidGroup, NotSubscribed, TooManyMembers
from holdfast.holdservice.errors import HoldLimitExceeded, InvalidFilter

_logger = logging.getLogger(__name__)

TYPE_PREFIX = "/problems/"

#: No text of an answer is longer: what a client sent must not come back to it whole.
MAX_TEXT_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of problem. With `retry_after_s` the same request may succeed later."""

    status: int
    title: str
    retry_after_s: int | None = None


KINDS: Mapping[str, Kind] = {
    # What was sent cannot be understood.
    "malformed-request": Kind(400, "Not a well-formed HTTP request"),
    "malformed-json": Kind(400, "The body is not well-formed JSON"),
    "malformed-msgpack": Kind(400, "The body is not well-formed msgpack"),
    "malformed-batch": Kind(400, "The body is not a whole, intact batch"),
    "malformed-encoding": Kind(400, "The body cannot be decompressed"),
    "invalid-parameter": Kind(400, "A value that is not allowed"),
    "missing-parameter": Kind(400, "A value is missing"),
    "limit-exceeded": Kind(400, "A parameter above its limit"),
    "invalid-name": Kind(400, "Not a name for a topic or group"),
    "invalid-filter": Kind(400, "The filter cannot be used"),
    "filter-not-allowed": Kind(400, "Members of this group have no filters of their own"),
    "confirm-required": Kind(400, "Deleting needs a confirmation"),
    "request-timeout": Kind(408, "The body did not arrive in time"),
    "request-too-large": Kind(413, "The request is too large"),
    "message-too-large": Kind(413, "A message is too large"),
    "unsupported-media-type": Kind(415, "This content type is not understood here"),
    "unsupported-encoding": Kind(415, "This content encoding is not understood"),
    "header-too-large": Kind(431, "The request's head is too large"),
    "not-acceptable": Kind(406, "None of the accepted media types can be sent"),
    # What was named does not exist.
    "not-found": Kind(404, "There is nothing at this path"),
    "method-not-allowed": Kind(405, "This path does not take this method"),
    "unknown-topic": Kind(404, "There is no such topic"),
    "unknown-queue": Kind(404, "The topic has no such queue"),
    "unknown-group": Kind(404, "There is no such group"),
    "unknown-read-lease": Kind(404, "There is no such lease"),
    "unknown-message": Kind(404, "There is no such message"),
    # Who asks is not known, or may not do it.
    "unauthenticated": Kind(401, "A token is needed"),
    "forbidden": Kind(403, "Who asks may not do this"),
    # It exists, but not as was thought.
    "producer-fenced": Kind(403, "A newer producer took over"),
    "topic-conflict": Kind(409, "The topic exists with other settings"),
    "topic-recreated": Kind(409, "The topic is another one than the batch names"),
    "sequence-gap": Kind(409, "A sequence was left out"),
    "sequence-too-old": Kind(409, "The sequence's offsets are no longer remembered"),
    "limit-reached": Kind(409, "As many exist as are allowed"),
    "group-exclusive": Kind(409, "The group is another member's"),
    "group-busy": Kind(409, "The group cannot change like this now"),
    "group-without-leases": Kind(409, "The group only stores offsets"),
    "offset-trimmed": Kind(410, "The offset is no longer kept"),
    "offsets-changed": Kind(412, "The stored offsets changed meanwhile"),
    "offset-beyond-end": Kind(416, "The offset is beyond the end of the queue"),
    "invalid-topic-change": Kind(422, "The topic cannot be changed like this"),
    "invalid-group": Kind(422, "The group cannot be like this"),
    # The broker cannot do it, or not now.
    "rate-limited": Kind(429, "Too much of one client"),
    "too-many-client-connections": Kind(429, "Too many connections of one client", retry_after_s=1),
    "too-many-connections": Kind(503, "Too many connections", retry_after_s=1),
    "too-many-read-leases": Kind(429, "Too much is leased to readers", retry_after_s=10),
    "too-many-held": Kind(429, "Too many pulls are held", retry_after_s=1),
    "internal-error": Kind(500, "The broker failed"),
    "corrupt-record": Kind(500, "The message is damaged on disk"),
    "damaged-index": Kind(500, "The index is damaged on disk"),
    "recovering": Kind(503, "The broker is recovering", retry_after_s=1),
    "draining": Kind(503, "The broker is stopping", retry_after_s=2),
    "read-only": Kind(503, "The broker is read-only"),
    "overloaded": Kind(503, "Too much waits to be written", retry_after_s=1),
    "storage-unavailable": Kind(503, "The storage cannot take it now", retry_after_s=1),
    "disk-full": Kind(507, "The disk is full", retry_after_s=10),
}


class Problem(Exception):
    """An answer that is an error: a kind from KINDS, a sentence, members for machines."""

    def __init__(self, slug: str, detail: str, **members: object) -> None:
        super().__init__(slug, detail)
        self.slug = slug
        self.detail = detail
        self.members = members
        self.headers: list[tuple[str, str]] = []
        """Sent beside Content-Type and Retry-After."""

    def __str__(self) -> str:
        return f"{self.slug}: {self.detail}"

    @property
    def kind(self) -> Kind:
        """Status and title."""
        return KINDS[self.slug]

    def body(self) -> dict[str, object]:
        """Return the problem object; members of its own come after the standard ones."""
        kind = self.kind
        members = {
            name: _printable(value) if isinstance(value, str) else value
            for name, value in self.members.items()
        }
        return {
            "type": TYPE_PREFIX + self.slug,
            "title": kind.title,
            "status": kind.status,
            "detail": _printable(self.detail),
            **members,
        }

    def encode(self) -> bytes:
        """Return the problem object as JSON."""
        return msgspec.json.encode(self.body())

    def all_headers(self) -> list[tuple[str, str]]:
        """Return the headers to send, but for the content's own."""
        retry_after_s = self.kind.retry_after_s
        if retry_after_s is None:
            return self.headers
        return [*self.headers, ("Retry-After", str(retry_after_s))]


def _printable(text: str) -> str:
    """Return a text that JSON can carry: bytes of a head that are not UTF-8 become escapes. Of one
    that is too long its beginning is left."""
    if len(text) > MAX_TEXT_CHARACTERS:
        text = f"{text[: MAX_TEXT_CHARACTERS - 3]}..."
    return text.encode(errors="backslashreplace").decode()


@dataclass(frozen=True, slots=True)
class _Rule:
    """An exception's kind, which of its values are members, and the mend that its own
    sentence leaves out."""

    slug: str
    members: tuple[str, ...] = ()
    mend: Callable[[Any], str] | str = ""


_RULES: Mapping[type[Exception], _Rule] = {
    InvalidName: _Rule("invalid-name", ("kind", "name")),
    UnknownTopic: _Rule("unknown-topic", ("topic",)),
    NotSubscribed: _Rule("unknown-topic", ("topic", "group")),
    UnknownQueue: _Rule("unknown-queue", ("topic", "queue", "queue_count")),
    UnknownGroup: _Rule("unknown-group", ("group",)),
    UnknownMessage: _Rule(
        "unknown-message",
        ("message_id",),
        "take the message_id from a publish or a pull; a topic that was deleted and made again "
        "has new ones",
    ),
    TopicConflict: _Rule("topic-conflict", ("topic", "field", "given", "existing")),
    InvalidTopicChange: _Rule("invalid-topic-change", ("topic",)),
    LimitReached: _Rule("limit-reached", ("limit_name", "limit")),
    TooManyMembers: _Rule("limit-reached", ("group", "limit_name", "limit")),
    OffsetTrimmed: _Rule(
        "offset-trimmed",
        ("topic", "queue", "offset", "min_offset", "max_offset"),
        lambda error: f"go on from offset={error.min_offset}, or pull with from=earliest",
    ),
    OffsetBeyondEnd: _Rule(
        "offset-beyond-end",
        ("topic", "queue", "offset", "min_offset", "max_offset"),
        lambda error: f"use an offset up to {error.max_offset}, or pull with from=latest",
    ),
    QueueCorrupt: _Rule(
        "corrupt-record",
        ("topic", "queue", "offset", "next_offset", "min_offset", "max_offset", "reason"),
    ),
    CorruptRecord: _Rule(
        "corrupt-record", ("next_offset", "reason"), "run 'holdfast check' on the data directory"
    ),
    IndexCorrupt: _Rule(
        "damaged-index", (), "restart the broker: it rebuilds the index from the log"
    ),
    OffsetsChanged: _Rule("offsets-changed", ("group", "topic", "version")),
    StateUnavailable: _Rule("storage-unavailable", (), "wait a moment and send the request again"),
    StateFull: _Rule(
        "disk-full", (), "free space on the broker's disk, then send the request again"
    ),
    BatchTooLarge: _Rule(
        "request-too-large",
        ("limit", "size"),
        "send fewer messages in a batch, or raise segment_bytes in the configuration",
    ),
    LogClosed: _Rule("draining", (), "send the request again once the broker is back"),
    LogOverloaded: _Rule(
        "overloaded",
        ("limit", "limit_name", "waiting_bytes"),
        "wait a moment and send the request again",
    ),
    DiskFull: _Rule("disk-full", ("needed_bytes",)),
    DiskLow: _Rule("disk-full", ("free_bytes", "min_free_bytes")),
    MemoryLow: _Rule(
        "overloaded", ("used_bytes", "limit", "limit_name"), "wait a moment and send it again"
    ),
    IndexBehind: _Rule(
        "overloaded", ("entries", "limit", "limit_name"), "wait a moment and send it again"
    ),
    NoSegment: _Rule("storage-unavailable", (), "wait a moment and send the request again"),
    LogPoisoned: _Rule("read-only", ()),
    SequenceGap: _Rule(
        "sequence-gap",
        ("expected", "found"),
        lambda error: f"send the request with sequence {error.expected} first",
    ),
    SequenceTooOld: _Rule(
        "sequence-too-old",
        ("found", "oldest"),
        "do not send it again: it was stored",
    ),
    ProducerFenced: _Rule(
        "producer-fenced",
        ("epoch", "current_epoch"),
        lambda error: f"stop this producer, or start anew with epoch {error.current_epoch + 1}",
    ),
    LimitExceeded: _Rule(
        "message-too-large",
        ("limit", "limit_name", "found"),
        "send a smaller message, or raise the limit",
    ),
    ExclusiveHeld: _Rule(
        "group-exclusive",
        ("member", "holder"),
        "ask again later; it is free once its holder has left and nothing of it is leased",
    ),
    FilterNotAllowed: _Rule("filter-not-allowed", ("mode",), "leave it out"),
    GroupBusy: _Rule("group-busy", ("group", "in_flight")),
    InvalidGroup: _Rule("invalid-group", ("field", "reason")),
    TooManyReadLeases: _Rule("too-many-read-leases", ("limit", "limit_name")),
    UnknownReadLease: _Rule("unknown-read-lease", ("lease_id",)),
    HoldLimitExceeded: _Rule("too-many-held", ("limit", "limit_name")),
    InvalidFilter: _Rule(
        "invalid-filter",
        ("reason", "position"),
        "use an SQL92 expression over properties, such as colour = 'red' AND size > 3",
    ),
}


def problem_for(error: Exception) -> Problem:
    """Return the problem to answer with. What has no rule is a fault of the broker: it is
    logged with its traceback, and the client is told no more than that."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, MemoryError):
        return Problem(
            "overloaded", "there is no memory for this now; wait a moment and send it again"
        )
    rule = _RULES.get(type(error))
    if isinstance(error, OSError) and error.errno == errno.EIO:
        _logger.error("the disk failed a read: %s", error)
        return Problem(
            "storage-unavailable",
            "the broker's disk failed a read; send the request again, and see the broker's disk "
            "should it fail again",
        )
    if rule is None:
        _logger.error("a request failed", exc_info=error)
        return Problem(
            "internal-error",
            "the broker failed to answer; send the request again, and see the broker's log "
            "should it fail again",
        )
    mend = rule.mend if isinstance(rule.mend, str) else rule.mend(error)
    return Problem(
        rule.slug,
        f"{error}; {mend}" if mend else str(error),
        **{name: getattr(error, name) for name in rule.members},
    )
