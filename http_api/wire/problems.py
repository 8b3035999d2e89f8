"""Every problem (RFC 9457 error reply) of the API, and the mapping from exceptions to problems.

The table KINDS has the kinds of problems, the table _RULES has the exceptions. No other code of the
API chooses a status for an error. Programs may rely on a problem's `type` and on the names of its
fields. Its `detail` is a sentence for people that explains how to fix the error.
"""

import errno
import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.commitlog import errors as log_errors
from holdfast.commitlog.format.batch_check import LimitExceeded
from holdfast.consumequeue import errors as queue_errors
from holdfast.groups import errors as group_errors
from holdfast.holdservice import errors as hold_errors

_logger = logging.getLogger(__name__)

TYPE_PREFIX = "/problems/"

#: The maximum length of a text in a problem, so that a reply does not repeat a long input.
MAX_TEXT_CHARACTERS = 1000


class Kind(msgspec.Struct, frozen=True):
    """One kind of problem. If `retry_after_s` is set, a retry after this time may succeed."""

    status: int
    title: str
    retry_after_s: int | None = None


KINDS: Mapping[str, Kind] = {
    # The request cannot be understood.
    "malformed-request": Kind(400, "Not a well-formed HTTP request"),
    "malformed-json": Kind(400, "The body is not well-formed JSON"),
    "malformed-msgpack": Kind(400, "The body is not well-formed msgpack"),
    "malformed-batch": Kind(400, "The body is not a complete, intact batch"),
    "malformed-encoding": Kind(400, "The body cannot be decompressed"),
    "invalid-parameter": Kind(400, "A value that is not allowed"),
    "missing-parameter": Kind(400, "A value is missing"),
    "limit-exceeded": Kind(400, "A parameter above its limit"),
    "reserved-property": Kind(400, "A property that only the broker may write"),
    "invalid-name": Kind(400, "Not a name for a topic or group"),
    "invalid-filter": Kind(400, "The filter cannot be used"),
    "filter-not-allowed": Kind(400, "Members of this group cannot have their own filters"),
    "confirm-required": Kind(400, "Deleting needs a confirmation"),
    "request-timeout": Kind(408, "The body did not arrive in time"),
    "request-too-large": Kind(413, "The request is too large"),
    "message-too-large": Kind(413, "A message is too large"),
    "unsupported-media-type": Kind(415, "This content type is not supported here"),
    "unsupported-encoding": Kind(415, "This content encoding is not supported"),
    "header-too-large": Kind(431, "The request's head is too large"),
    "not-acceptable": Kind(406, "None of the accepted media types can be sent"),
    # The named object does not exist.
    "not-found": Kind(404, "This path does not exist"),
    "method-not-allowed": Kind(405, "This path does not support this method"),
    "unknown-topic": Kind(404, "There is no such topic"),
    "unknown-queue": Kind(404, "The topic has no such queue"),
    "unknown-group": Kind(404, "There is no such group"),
    "unknown-read-lease": Kind(404, "There is no such lease"),
    "unknown-message": Kind(404, "There is no such message"),
    # The caller is not authenticated, or lacks a permission.
    "unauthenticated": Kind(401, "A token is needed"),
    "forbidden": Kind(403, "The caller may not do this"),
    "misdirected-request": Kind(421, "The broker does not accept this host name"),
    # The object exists, but its state does not allow the request.
    "producer-fenced": Kind(403, "A newer producer has replaced this one"),
    "too-many-producers": Kind(409, "The broker cannot remember another idempotent producer"),
    "topic-conflict": Kind(409, "The topic exists with other settings"),
    "keyed-backlog": Kind(409, "Keyed groups have unsettled messages of the topic"),
    "topic-recreated": Kind(409, "The batch has the id of another topic"),
    "sequence-gap": Kind(409, "A sequence is missing"),
    "sequence-too-old": Kind(409, "The broker no longer remembers the offsets of the sequence"),
    "limit-reached": Kind(409, "The highest allowed number exists already"),
    "group-exclusive": Kind(409, "Another member holds the group"),
    "group-busy": Kind(409, "The group cannot be changed like this now"),
    "no-dead-letters": Kind(409, "The group has no dead-letter topic"),
    "redrive-running": Kind(409, "A redrive of the group is running", retry_after_s=1),
    "group-without-leases": Kind(409, "The group only stores offsets"),
    "offset-trimmed": Kind(410, "The offset is no longer kept"),
    "offsets-changed": Kind(412, "The stored offsets have changed meanwhile"),
    "offset-beyond-end": Kind(416, "The offset is beyond the end of the queue"),
    "invalid-topic-change": Kind(422, "The topic cannot be changed like this"),
    "invalid-group": Kind(422, "The group cannot have these settings"),
    "unroutable": Kind(422, "No group would get a message"),
    # The broker cannot do what the request asks for, or cannot do it now.
    "rate-limited": Kind(429, "One client sends or receives too much"),
    "too-many-client-connections": Kind(429, "Too many connections of one client", retry_after_s=1),
    "too-many-connections": Kind(503, "Too many connections", retry_after_s=1),
    "too-many-read-leases": Kind(429, "Readers hold too many leases", retry_after_s=10),
    "too-many-held": Kind(429, "Too many pulls are held", retry_after_s=1),
    "internal-error": Kind(500, "The broker failed"),
    "corrupt-record": Kind(500, "The message is damaged on disk"),
    "damaged-index": Kind(500, "The index is damaged on disk"),
    "recovering": Kind(503, "The broker is recovering", retry_after_s=1),
    "draining": Kind(503, "The broker is stopping", retry_after_s=2),
    "read-only": Kind(503, "The broker is read-only"),
    "sync-timeout": Kind(503, "The disk did not confirm the write in time", retry_after_s=1),
    "overloaded": Kind(503, "Too much data waits to be processed", retry_after_s=1),
    "storage-unavailable": Kind(503, "The storage is not available now", retry_after_s=1),
    "topic-full": Kind(507, "The topic has reached its size limit", retry_after_s=10),
    "disk-full": Kind(507, "The disk is full", retry_after_s=10),
}


class Problem(Exception):
    """An error reply: a kind from KINDS, a sentence for people, and further JSON fields."""

    def __init__(self, slug: str, detail: str, **members: object) -> None:
        super().__init__(slug, detail)
        self.slug = slug
        self.detail = detail
        self.members = members
        self.headers: list[tuple[str, str]] = []
        """Headers to send in addition to Content-Type and Retry-After."""

    def __str__(self) -> str:
        return f"{self.slug}: {self.detail}"

    @property
    def kind(self) -> Kind:
        return KINDS[self.slug]

    def body(self) -> dict[str, object]:
        """Return the JSON object of the problem: the standard fields, then the problem's own."""
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
        """Return the body of the reply: the problem as JSON."""
        return msgspec.json.encode(self.body())

    def all_headers(self) -> list[tuple[str, str]]:
        """Return the headers of the reply, except Content-Type and Content-Length."""
        retry_after_s = self.kind.retry_after_s
        if retry_after_s is None:
            return self.headers
        return [*self.headers, ("Retry-After", str(retry_after_s))]


def request_too_large(limit_name: str, limit: int, detail: str) -> Problem:
    """Return the problem of a request that is larger than a limit.

    In `detail`, `{limit}` is replaced by the name and the value of the limit.
    """
    return Problem(
        "request-too-large",
        detail.format(limit=f"{limit_name} ({limit})"),
        limit=limit,
        limit_name=limit_name,
    )


def _printable(text: str) -> str:
    """Return `text` shortened to MAX_TEXT_CHARACTERS, in a form that JSON can represent.

    Bytes of a head that are not UTF-8 become escapes.
    """
    if len(text) > MAX_TEXT_CHARACTERS:
        text = f"{text[: MAX_TEXT_CHARACTERS - 3]}..."
    return text.encode(errors="backslashreplace").decode()


class _Rule(msgspec.Struct, frozen=True):
    """How an exception becomes a problem.

    `slug` is the kind of the problem. `members` are the attributes of the exception that become
    JSON fields. `fix` is appended to the exception's sentence: it explains how to fix the error.
    """

    slug: str
    members: tuple[str, ...] = ()
    fix: Callable[[Any], str] | str = ""


_RULES: Mapping[type[Exception], _Rule] = {
    queue_errors.InvalidName: _Rule("invalid-name", ("kind", "name")),
    queue_errors.UnknownTopic: _Rule("unknown-topic", ("topic",)),
    group_errors.NotSubscribed: _Rule("unknown-topic", ("topic", "group")),
    queue_errors.UnknownQueue: _Rule("unknown-queue", ("topic", "queue", "queue_count")),
    queue_errors.UnknownGroup: _Rule("unknown-group", ("group",)),
    queue_errors.UnknownMessage: _Rule(
        "unknown-message",
        ("message_id",),
        "use the message_id from a publish or a pull; a topic that was deleted and created again "
        "has new message ids",
    ),
    queue_errors.TopicConflict: _Rule("topic-conflict", ("topic", "field", "given", "existing")),
    queue_errors.KeyedBacklog: _Rule("keyed-backlog", ("topic", "groups")),
    queue_errors.InvalidTopicChange: _Rule("invalid-topic-change", ("topic",)),
    queue_errors.LimitReached: _Rule("limit-reached", ("limit_name", "limit")),
    queue_errors.TopicFull: _Rule("topic-full", ("topic", "stored_bytes", "limit")),
    group_errors.TooManyMembers: _Rule("limit-reached", ("group", "limit_name", "limit")),
    queue_errors.OffsetTrimmed: _Rule(
        "offset-trimmed",
        ("topic", "queue", "offset", "min_offset", "max_offset"),
        lambda error: f"continue from offset={error.min_offset}, or pull with from=earliest",
    ),
    queue_errors.OffsetBeyondEnd: _Rule(
        "offset-beyond-end",
        ("topic", "queue", "offset", "min_offset", "max_offset"),
        lambda error: f"use an offset up to {error.max_offset}, or pull with from=latest",
    ),
    queue_errors.QueueCorrupt: _Rule(
        "corrupt-record",
        ("topic", "queue", "offset", "next_offset", "min_offset", "max_offset", "reason"),
    ),
    log_errors.CorruptRecord: _Rule(
        "corrupt-record", ("next_offset", "reason"), "run 'holdfast check' on the data directory"
    ),
    queue_errors.IndexCorrupt: _Rule(
        "damaged-index", (), "restart the broker: it rebuilds the index from the log"
    ),
    queue_errors.OffsetsChanged: _Rule("offsets-changed", ("group", "topic", "version")),
    queue_errors.StateUnavailable: _Rule(
        "storage-unavailable", (), "wait a moment and send the request again"
    ),
    queue_errors.StateFull: _Rule(
        "disk-full", (), "free space on the broker's disk, then send the request again"
    ),
    log_errors.BatchTooLarge: _Rule(
        "request-too-large",
        ("limit", "size"),
        "send fewer messages in a batch, or raise segment_bytes in the configuration",
    ),
    log_errors.LogClosed: _Rule("draining", (), "send the request again when the broker is back"),
    log_errors.LogOverloaded: _Rule(
        "overloaded",
        ("limit", "limit_name", "waiting_bytes"),
        "wait a moment and send the request again",
    ),
    log_errors.DiskFull: _Rule("disk-full", ("needed_bytes",)),
    log_errors.DiskLow: _Rule("disk-full", ("free_bytes", "min_free_bytes")),
    log_errors.MemoryLow: _Rule(
        "overloaded", ("used_bytes", "limit", "limit_name"), "wait a moment and send it again"
    ),
    log_errors.IndexBehind: _Rule(
        "overloaded", ("entries", "limit", "limit_name"), "wait a moment and send it again"
    ),
    log_errors.NoSegment: _Rule(
        "storage-unavailable", (), "wait a moment and send the request again"
    ),
    log_errors.SyncTimeout: _Rule(
        "sync-timeout",
        ("stored", "timeout_ms"),
        "send the request again with the same producer id and sequence, so that it is stored only "
        "once; without them it may be stored twice",
    ),
    log_errors.LogPoisoned: _Rule("read-only", ()),
    log_errors.SequenceGap: _Rule(
        "sequence-gap",
        ("expected", "found"),
        lambda error: f"send the request with sequence {error.expected} first",
    ),
    log_errors.SequenceTooOld: _Rule(
        "sequence-too-old",
        ("found", "oldest"),
        "do not send it again: it was stored",
    ),
    log_errors.RoutedOtherwise: _Rule(
        "sequence-too-old",
        ("found",),
        "do not send it again: it was stored; send new messages with the next sequence",
    ),
    log_errors.TooManyProducers: _Rule(
        "too-many-producers",
        ("limit", "limit_name"),
        "publish as a known producer, raise the limit, or lower producer_expiry_ms",
    ),
    log_errors.ProducerFenced: _Rule(
        "producer-fenced",
        ("epoch", "current_epoch"),
        lambda error: f"stop this producer, or start again with epoch {error.current_epoch + 1}",
    ),
    LimitExceeded: _Rule(
        "message-too-large",
        ("limit", "limit_name", "found"),
        "send a smaller message, or raise the limit",
    ),
    group_errors.ExclusiveHeld: _Rule(
        "group-exclusive",
        ("member", "holder"),
        "try again later; the group is free when its holder has left and no message is leased",
    ),
    group_errors.FilterNotAllowed: _Rule("filter-not-allowed", ("mode",), "leave the filter out"),
    group_errors.GroupBusy: _Rule("group-busy", ("group", "in_flight")),
    group_errors.GroupsStopping: _Rule("draining", ()),
    group_errors.NoDeadLetters: _Rule("no-dead-letters", ("group",)),
    group_errors.RedriveRunning: _Rule("redrive-running", ("group",)),
    group_errors.InvalidGroup: _Rule("invalid-group", ("field", "reason")),
    group_errors.TooCostlyMandatory: _Rule(
        "limit-exceeded",
        ("limit", "limit_name"),
        "send fewer messages in a request, or send them without mandatory",
    ),
    queue_errors.TooManyReadLeases: _Rule("too-many-read-leases", ("limit", "limit_name")),
    queue_errors.UnknownReadLease: _Rule("unknown-read-lease", ("lease_id",)),
    hold_errors.HoldLimitExceeded: _Rule("too-many-held", ("limit", "limit_name")),
    hold_errors.InvalidFilter: _Rule(
        "invalid-filter",
        ("reason", "position"),
        "use an SQL92 expression over properties, such as colour = 'red' AND size > 3",
    ),
}


def problem_for(error: Exception) -> Problem:
    """Return the problem that the client gets for an exception.

    An exception without a rule is a defect of the broker: it is logged with its traceback, and the
    client gets no details.
    """
    if isinstance(error, Problem):
        return error
    if isinstance(error, MemoryError):
        return Problem(
            "overloaded", "there is not enough memory now; wait a moment and send it again"
        )
    rule = _RULES.get(type(error))
    if isinstance(error, OSError) and error.errno == errno.EIO:
        _logger.error("a read from the disk failed: %s", error)
        return Problem(
            "storage-unavailable",
            "a read from the broker's disk failed; send the request again, and check the broker's "
            "disk if it fails again",
        )
    if rule is None:
        _logger.error("a request failed", exc_info=error)
        return Problem(
            "internal-error",
            "the broker could not answer; send the request again, and see the broker's log "
            "if it fails again",
        )
    fix = rule.fix if isinstance(rule.fix, str) else rule.fix(error)
    return Problem(
        rule.slug,
        f"{error}; {fix}" if fix else str(error),
        **{name: getattr(error, name) for name in rule.members},
    )
