"""Encoded AMQP messages as columns of a batch. Pure.

Most messages are one data section. For these the loop in `to_columns` slices the body out of the
message, and all of them share one envelope. Other messages take ten times longer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast.amqp.messages.envelope import Envelope, data_head, encode_envelope
from holdfast.amqp.messages.sections import Sections
from holdfast.amqp.messages.text_view import TextView, text_view
from holdfast.amqp.wire.conditions import INVALID_FIELD, AmqpError
from holdfast.commitlog.format.batch_check import LimitExceeded, MessageLimits

_T = TypeVar("_T")

_SHORT_DATA, _LONG_DATA = b"\x00\x53\x75\xa0", b"\x00\x53\x75\xb0"
#: The latest expiry time that a batch can store, in microseconds.
_LATEST_US = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Rules:
    """What a topic accepts, and what is stored with every message.

    `publisher` is the result of `publisher_hash`. Messages with a property whose name begins with
    `reserved_prefix` are refused. `tag` replaces the tag of every message.
    """

    limits: MessageLimits
    publisher: int
    reserved_prefix: str
    tag: str | None = None


@dataclass(slots=True)
class Columns:
    """Messages that arrived together.

    `bodies` and `envelopes` have one value for each message, in order. The other columns are dicts
    from the index of a message to its value. Messages without a value are not in the dict.
    """

    bodies: list[bytes] = field(default_factory=list)
    envelopes: list[bytes] = field(default_factory=list)
    keys: dict[int, str] = field(default_factory=dict)
    tags: dict[int, str] = field(default_factory=dict)
    properties: dict[int, Mapping[str, str]] = field(default_factory=dict)
    expires_us: dict[int, int] = field(default_factory=dict)
    priorities: dict[int, int] = field(default_factory=dict)
    durable: set[int] = field(default_factory=set)
    """The messages whose header asks for durability."""
    refused: dict[int, Exception] = field(default_factory=dict)
    """AmqpError or LimitExceeded, for each message that must be rejected."""


def to_columns(messages: Sequence[bytes], now_ms: int, rules: Rules) -> Columns:
    """Return the columns of messages that arrived at `now_ms`. Messages that are not valid, or that
    are above a limit, are in `refused`."""
    columns = Columns()
    bodies, envelopes = columns.bodies, columns.envelopes
    plain = encode_envelope(Envelope(rules.publisher))
    limit = rules.limits.max_message_bytes
    for message in messages:
        size = len(message)
        head = message[:4]
        if head == _SHORT_DATA and size > 4 and message[4] == size - 5 and size <= limit:
            bodies.append(message[5:])
            envelopes.append(plain)
        elif head == _LONG_DATA and 8 < size <= limit and message[:8] == data_head(size - 8):
            bodies.append(message[8:])
            envelopes.append(plain)
        else:
            _add(columns, message, now_ms, rules)
    if rules.tag is not None:
        indexes, size = range(len(bodies)), len(rules.tag.encode())
        columns.tags = dict.fromkeys(indexes, rules.tag)
        if size > rules.limits.max_tag_bytes:
            error = LimitExceeded("max_tag_bytes", rules.limits.max_tag_bytes, size, 0)
            columns.refused = dict.fromkeys(indexes, error)
    return columns


def column(values: Mapping[int, _T], indexes: Sequence[int], absent: _T) -> list[_T] | None:
    """Return one value for each of `indexes`; None if there are no values at all."""
    return [values.get(index, absent) for index in indexes] if values else None


def _add(columns: Columns, message: bytes, now_ms: int, rules: Rules) -> None:
    """Add a message of any form, or its refusal."""
    index = len(columns.bodies)
    body, envelope = b"", b""
    try:
        _check("max_message_bytes", rules.limits.max_message_bytes, len(message))
        sections = Sections(message)
        view = text_view(sections, now_ms, rules.limits.max_tag_bytes)
        _check_view(view, rules)
        body, envelope = view.body, encode_envelope(_envelope(sections, view, rules.publisher))
    except (AmqpError, LimitExceeded) as error:
        columns.refused[index] = error
    else:
        if view.key is not None:
            columns.keys[index] = view.key
        if view.tag is not None:
            columns.tags[index] = view.tag
        if view.properties:
            columns.properties[index] = view.properties
        if view.expires_at_ms is not None:
            columns.expires_us[index] = min(max(view.expires_at_ms, 1) * 1000, _LATEST_US)
        columns.priorities[index] = view.priority
        if view.is_durable:
            columns.durable.add(index)
    columns.bodies.append(body)
    columns.envelopes.append(envelope)


def _envelope(sections: Sections, view: TextView, publisher: int) -> Envelope:
    annotations, before, after = sections.around_body()
    octets = sections.body_bytes()
    if len(octets) > len(view.body):  # the stored body is the content of the only section
        before += octets[: len(octets) - len(view.body)]
    if not annotations and not after and before[:3] == _SHORT_DATA[:3]:
        plain = Envelope(publisher, view.is_durable, view.priority)
        if plain.message(view.body) == octets:
            return plain
    return Envelope(publisher, view.is_durable, view.priority, annotations, before, after)


def _check_view(view: TextView, rules: Rules) -> None:
    """Raise AmqpError or LimitExceeded if the topic does not accept the message."""
    limits = rules.limits
    if view.key is not None:
        _check("max_key_bytes", limits.max_key_bytes, len(view.key.encode()))
    size = 0
    for name, value in view.properties.items():
        if name.startswith(rules.reserved_prefix):
            raise AmqpError(
                INVALID_FIELD,
                f"properties that begin with {rules.reserved_prefix!r} are written by the broker; "
                f"leave {name[:100]!r} out, or rename it",
                {"problem": "/problems/reserved-property"},
            )
        size += len(name.encode()) + len(value.encode())
    _check("max_properties_bytes", limits.max_properties_bytes, size)


def _check(name: str, limit: int, size: int) -> None:
    if size > limit:
        raise LimitExceeded(name, limit, size, 0)
