"""Translates the broker's errors into AMQP errors and outcomes. No other file does this.

An error is first translated into a problem of the HTTP API. The table CONDITIONS has the AMQP
condition of each problem. So a client gets the same sentence over both protocols, and `info`
contains the problem, for example {problem: "/problems/unknown-topic"}.
"""

from collections.abc import Mapping
from typing import TypeVar

from holdfast.amqp.engine.link import error_of
from holdfast.amqp.wire.conditions import (
    CONNECTION_FORCED,
    DECODE_ERROR,
    ILLEGAL_STATE,
    INTERNAL_ERROR,
    INVALID_FIELD,
    MESSAGE_SIZE_EXCEEDED,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_DELETED,
    RESOURCE_LIMIT_EXCEEDED,
    RESOURCE_LOCKED,
    UNAUTHORIZED_ACCESS,
    AmqpError,
)
from holdfast.amqp.wire.performatives import Modified, Rejected, Released
from holdfast.http_api.wire.problems import TYPE_PREFIX, Problem, problem_for

CONDITIONS: Mapping[str, str] = {
    "malformed-request": DECODE_ERROR,
    "malformed-json": DECODE_ERROR,
    "malformed-msgpack": DECODE_ERROR,
    "malformed-batch": DECODE_ERROR,
    "malformed-encoding": DECODE_ERROR,
    "invalid-parameter": INVALID_FIELD,
    "missing-parameter": INVALID_FIELD,
    "limit-exceeded": INVALID_FIELD,
    "reserved-property": INVALID_FIELD,
    "invalid-name": INVALID_FIELD,
    "invalid-filter": INVALID_FIELD,
    "filter-not-allowed": NOT_IMPLEMENTED,
    "confirm-required": PRECONDITION_FAILED,
    "request-timeout": RESOURCE_LIMIT_EXCEEDED,
    "request-too-large": MESSAGE_SIZE_EXCEEDED,
    "message-too-large": MESSAGE_SIZE_EXCEEDED,
    "unsupported-media-type": NOT_IMPLEMENTED,
    "unsupported-encoding": NOT_IMPLEMENTED,
    "header-too-large": RESOURCE_LIMIT_EXCEEDED,
    "not-acceptable": NOT_IMPLEMENTED,
    "not-found": NOT_FOUND,
    "method-not-allowed": NOT_ALLOWED,
    "unknown-topic": NOT_FOUND,
    "unroutable": NOT_FOUND,
    "unknown-queue": NOT_FOUND,
    "unknown-group": NOT_FOUND,
    "unknown-read-lease": NOT_FOUND,
    "unknown-message": NOT_FOUND,
    "unauthenticated": UNAUTHORIZED_ACCESS,
    "forbidden": UNAUTHORIZED_ACCESS,
    "misdirected-request": UNAUTHORIZED_ACCESS,
    "producer-fenced": NOT_ALLOWED,
    "too-many-producers": RESOURCE_LIMIT_EXCEEDED,
    "topic-conflict": PRECONDITION_FAILED,
    "keyed-backlog": PRECONDITION_FAILED,
    "topic-recreated": RESOURCE_DELETED,
    "sequence-gap": ILLEGAL_STATE,
    "sequence-too-old": ILLEGAL_STATE,
    "limit-reached": RESOURCE_LIMIT_EXCEEDED,
    "group-exclusive": RESOURCE_LOCKED,
    "group-busy": RESOURCE_LOCKED,
    "no-dead-letters": PRECONDITION_FAILED,
    "redrive-running": RESOURCE_LOCKED,
    "group-without-leases": NOT_ALLOWED,
    "offset-trimmed": RESOURCE_DELETED,
    "offsets-changed": PRECONDITION_FAILED,
    "offset-beyond-end": INVALID_FIELD,
    "invalid-topic-change": INVALID_FIELD,
    "invalid-group": INVALID_FIELD,
    "rate-limited": RESOURCE_LIMIT_EXCEEDED,
    "too-many-client-connections": RESOURCE_LIMIT_EXCEEDED,
    "too-many-connections": RESOURCE_LIMIT_EXCEEDED,
    "too-many-read-leases": RESOURCE_LIMIT_EXCEEDED,
    "too-many-held": RESOURCE_LIMIT_EXCEEDED,
    "internal-error": INTERNAL_ERROR,
    "corrupt-record": INTERNAL_ERROR,
    "damaged-index": INTERNAL_ERROR,
    "recovering": CONNECTION_FORCED,
    "draining": CONNECTION_FORCED,
    "read-only": RESOURCE_LIMIT_EXCEEDED,
    "sync-timeout": INTERNAL_ERROR,
    "overloaded": RESOURCE_LIMIT_EXCEEDED,
    "storage-unavailable": INTERNAL_ERROR,
    "topic-full": RESOURCE_LIMIT_EXCEEDED,
    "disk-full": RESOURCE_LIMIT_EXCEEDED,
}

#: With these problems, the broker did not store the message, but may store it later. The sender
#: should send the message again.
_RELEASED = frozenset({
    "draining", "disk-full", "overloaded", "rate-limited", "read-only", "recovering",
    "storage-unavailable", "topic-full",
})  # fmt: skip

_Error = TypeVar("_Error", bound=AmqpError)


def amqp_error(error: Exception, kind: type[_Error]) -> _Error:
    """Return an error of the broker as an AMQP error of the class `kind`. An unexpected error is
    logged, and the client does not get its details."""
    if isinstance(error, AmqpError):
        return kind(error.condition, error.description, error.info)
    return _error_of_problem(problem_for(error), kind)


def publish_outcome(error: Exception) -> Rejected | Released | Modified:
    """Return the outcome of messages whose publish failed with `error`.

    A message that the broker may accept later is released. A message that may be stored already is
    modified as failed. Every other message is rejected.
    """
    if isinstance(error, AmqpError):
        return Rejected(error_of(error))
    problem = problem_for(error)
    if problem.slug in _RELEASED:
        return Released()
    if problem.slug == "sync-timeout":
        return Modified(delivery_failed=True)
    return Rejected(error_of(_error_of_problem(problem, AmqpError)))


def _error_of_problem(problem: Problem, kind: type[_Error]) -> _Error:
    info: dict[str, object] = {"problem": TYPE_PREFIX + problem.slug}
    return kind(CONDITIONS[problem.slug], str(problem.body()["detail"]), info)
