"""AMQP error conditions, and the exceptions that have them, for errors of a peer. Pure.

AmqpError
  ConnectionFailed   the connection must be closed with the error
    DecodeError      the bytes are not AMQP values, or the values are not a performative
  SessionFailed      the session must be ended with the error
  LinkFailed         the link must be detached with the error

The conditions are those of part 2, sections 2.8.15 to 2.8.18 of the specification.
"""

from dataclasses import dataclass, field

INTERNAL_ERROR = "amqp:internal-error"
NOT_FOUND = "amqp:not-found"
UNAUTHORIZED_ACCESS = "amqp:unauthorized-access"
DECODE_ERROR = "amqp:decode-error"
RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
NOT_ALLOWED = "amqp:not-allowed"
INVALID_FIELD = "amqp:invalid-field"
NOT_IMPLEMENTED = "amqp:not-implemented"
RESOURCE_LOCKED = "amqp:resource-locked"
PRECONDITION_FAILED = "amqp:precondition-failed"
RESOURCE_DELETED = "amqp:resource-deleted"
ILLEGAL_STATE = "amqp:illegal-state"
FRAME_SIZE_TOO_SMALL = "amqp:frame-size-too-small"

CONNECTION_FORCED = "amqp:connection:forced"
FRAMING_ERROR = "amqp:connection:framing-error"

WINDOW_VIOLATION = "amqp:session:window-violation"
ERRANT_LINK = "amqp:session:errant-link"
HANDLE_IN_USE = "amqp:session:handle-in-use"
UNATTACHED_HANDLE = "amqp:session:unattached-handle"

DETACH_FORCED = "amqp:link:detach-forced"
TRANSFER_LIMIT_EXCEEDED = "amqp:link:transfer-limit-exceeded"
MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded"
STOLEN = "amqp:link:stolen"


@dataclass(eq=False)
class AmqpError(Exception):
    """An error that is reported to the peer. `info` is its `info` map, with symbols as keys."""

    condition: str
    description: str = ""
    info: dict[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.condition}: {self.description}" if self.description else self.condition


class ConnectionFailed(AmqpError):
    """The connection must be closed."""


class DecodeError(ConnectionFailed):
    """Bytes of the peer are not valid; the connection must be closed."""

    def __init__(self, description: str, condition: str = DECODE_ERROR) -> None:
        super().__init__(condition, description)


class SessionFailed(AmqpError):
    """The session must be ended; the connection stays open."""


class LinkFailed(AmqpError):
    """The link must be detached; its session stays open."""
