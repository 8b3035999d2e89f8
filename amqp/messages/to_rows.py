"""Encoded AMQP messages as columns of a batch. Pure.

Most messages are one data section, perhaps after a header that all messages of the sender have in
common. For these the loop in `to_columns` slices the body out of the message, and those with the
same header share one envelope. Other messages take ten times longer.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

import msgspec

from holdfast.amqp.messages.envelope import Envelope, data_head, encode_envelope
from holdfast.amqp.messages.fast_fields import read_header
from holdfast.amqp.messages.sections import Sections
from holdfast.amqp.messages.text_view import TextView, text_view
from holdfast.amqp.wire.conditions import INVALID_FIELD, AmqpError
from holdfast.amqp.wire.performatives import Header
from holdfast.commitlog.format.batch_check import LimitExceeded, MessageLimits

_T = TypeVar("_T")

_HEADER = b"\x00\x53\x70"
_SHORT_DATA, _LONG_DATA = b"\x00\x53\x75\xa0", b"\x00\x53\x75\xb0"
#: The latest expiry time that a batch can store, in microseconds.
_LATEST_US = 2**63 - 1


class Rules(msgspec.Struct, frozen=True):
    """What a topic accepts, and what is stored with every message.

    `publisher` is the result of `publisher_hash`. Messages with a property whose name begins with
    `reserved_prefix` are refused. `tag` replaces the tag of every message.
    """

    limits: MessageLimits
    publisher: int
    reserved_prefix: str
    tag: str | None = None


class Columns(msgspec.Struct):
    """Messages that arrived together.

    `bodies` and `envelopes` have one value for each message, in order. The other columns are dicts
    from the index of a message to its value. Messages without a value are not in the dict.
    """

    bodies: list[bytes] = msgspec.field(default_factory=list)
    envelopes: list[bytes] = msgspec.field(default_factory=list)
    keys: dict[int, str] = msgspec.field(default_factory=dict)
    tags: dict[int, str] = msgspec.field(default_factory=dict)
    properties: dict[int, Mapping[str, str]] = msgspec.field(default_factory=dict)
    expires_us: dict[int, int] = msgspec.field(default_factory=dict)
    priorities: dict[int, int] = msgspec.field(default_factory=dict)
    durable: set[int] = msgspec.field(default_factory=set)
    """The messages whose header asks for durability."""
    refused: dict[int, Exception] = msgspec.field(default_factory=dict)
    """AmqpError or LimitExceeded, for each message that must be rejected."""


def to_columns(messages: Sequence[bytes], now_ms: int, rules: Rules) -> Columns:
    """Return the columns of messages that arrived at `now_ms`. Messages that are not valid, or that
    are above a limit, are in `refused`."""
    columns = Columns()
    bodies, envelopes = columns.bodies, columns.envelopes
    limit = rules.limits.max_message_bytes
    common = _without_header(rules.publisher)
    #: Size of a message -> its sections up to the body. A message of this size that starts with
    #: these bytes has what `common` describes, and the body is the rest of it.
    starts: dict[int, bytes] = {}
    for message in messages:
        start = starts.get(len(message))
        body: bytes | None
        if start is not None and message.startswith(start):
            body = message[len(start) :]
        else:
            if not message.startswith(common.octets) or (
                not common.octets and message.startswith(_HEADER)
            ):
                common = _Common.of(message, rules)
                starts.clear()
            body = _data_body(message, len(common.octets)) if len(message) <= limit else None
            if body is None:
                _add(columns, message, now_ms, rules)
                continue
            starts[len(message)] = message[: len(message) - len(body)]
        header = common.header
        if header is not None:
            columns.priorities[len(bodies)] = header.priority
            if header.durable:
                columns.durable.add(len(bodies))
        bodies.append(body)
        envelopes.append(common.envelope)
    if rules.tag is not None:
        _replace_tags(columns, rules.tag, rules.limits.max_tag_bytes)
    return columns


def _replace_tags(columns: Columns, tag: str, limit: int) -> None:
    """Give every message this tag. Refuse all if the tag is longer than the limit."""
    indexes, size = range(len(columns.bodies)), len(tag.encode())
    columns.tags = dict.fromkeys(indexes, tag)
    if size > limit:
        columns.refused = dict.fromkeys(indexes, LimitExceeded("max_tag_bytes", limit, size, 0))


class _Common(NamedTuple):
    """What consecutive messages have in common: a header section, or none, and the envelope of
    those that have only a data section behind it."""

    octets: bytes
    """The header section. It contains its own size, so a message that starts with these bytes has
    this header."""
    header: Header | None
    envelope: bytes

    @classmethod
    def of(cls, message: bytes, rules: Rules) -> "_Common":
        """Return what `message` has at its start. A header with a ttl is not shared."""
        size = _header_bytes(message)
        header = read_header(message, 3, size) if size else None
        if header is None or header.ttl is not None:
            return _without_header(rules.publisher)
        envelope = Envelope(rules.publisher, header.durable, header.priority)
        return cls(message[:size], header, encode_envelope(envelope))


@lru_cache(maxsize=1024)
def _without_header(publisher: int) -> _Common:
    return _Common(b"", None, encode_envelope(Envelope(publisher)))


def _header_bytes(message: bytes) -> int:
    """Return the size of the header section with which a message starts; 0 if it starts with
    another section, or if only the generic codec can read its size."""
    if message.startswith(_HEADER) and len(message) > 8:
        code = message[3]
        if code == 0x45:
            return 4
        if code == 0xC0:
            return 5 + message[4]
        if code == 0xD0:
            return 8 + int.from_bytes(message[4:8], "big")
    return 0


def _data_body(message: bytes, at: int) -> bytes | None:
    """Return the content of the data section that begins at `at`, if it ends with the message and
    has its shortest form."""
    size, head = len(message) - at, message[at : at + 4]
    if head == _SHORT_DATA and size > 4 and message[at + 4] == size - 5:
        return message[at + 5 :]
    if head == _LONG_DATA and size > 8 and message[at : at + 8] == data_head(size - 8):
        return message[at + 8 :]
    return None


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
