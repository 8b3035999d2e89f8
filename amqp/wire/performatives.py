"""The composite types of AMQP 1.0: one NamedTuple and one table row for each. Pure.

A row lists the wire type of each field in order. A field marked "!" is mandatory; a field marked
"*" holds several symbols, as a tuple of str. "any" is a value of any type; if it
is a composite value, its NamedTuple is decoded. The NamedTuple has the default of each field.

Decoding accepts a number or a symbol as the descriptor, and a list with short or long sizes. It
checks the type of every field. Encoding writes the exact type of every field, because some clients
close the connection if a ubyte is encoded as a uint. Encoding omits empty fields at the end.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from holdfast.amqp.wire.conditions import DecodeError
from holdfast.amqp.wire.types import (
    Array,
    Buffer,
    Described,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    compound,
    decode,
    encode,
    symbols,
)

_Composite = TypeVar("_Composite", bound=type)


class _Field(NamedTuple):
    name: str
    kind: str
    is_mandatory: bool
    is_multiple: bool
    default: Any


class _Layout(NamedTuple):
    type: type
    code: int
    fields: tuple[_Field, ...]


_BY_TYPE: dict[type, _Layout] = {}
_BY_DESCRIPTOR: dict[Any, _Layout] = {}


def _composite(code: int, name: str, *kinds: str) -> Callable[[_Composite], _Composite]:
    """Register the wire form of a NamedTuple: its descriptor, and the kinds of its fields."""

    def register(composite: _Composite) -> _Composite:
        names: tuple[str, ...] = composite._fields  # type: ignore[attr-defined]
        defaults: dict[str, Any] = composite._field_defaults  # type: ignore[attr-defined]
        fields = tuple(
            _Field(field, kind.strip("!*"), "!" in kind, "*" in kind, defaults.get(field))
            for field, kind in zip(names, kinds, strict=True)
        )
        layout = _Layout(composite, code, fields)
        _BY_TYPE[composite] = _BY_DESCRIPTOR[code] = _BY_DESCRIPTOR[name] = layout
        return composite

    return register


# ---- Errors and delivery states --------------------------------------------------------------


@_composite(0x1D, "amqp:error:list", "symbol!", "string", "map")
class Error(NamedTuple):
    """Part 2.8.14: why a connection, session, link or delivery failed."""

    condition: str
    description: str | None = None
    info: dict[str, Any] | None = None


@_composite(0x23, "amqp:received:list", "uint!", "ulong!")
class Received(NamedTuple):
    """Part 3.4.1: how much of a delivery arrived; not terminal."""

    section_number: int
    section_offset: int


@_composite(0x24, "amqp:accepted:list")
class Accepted(NamedTuple):
    """Part 3.4.2: an outcome, the message was processed."""


@_composite(0x25, "amqp:rejected:list", "any")
class Rejected(NamedTuple):
    """Part 3.4.3: an outcome, the message is not valid."""

    error: Error | None = None


@_composite(0x26, "amqp:released:list")
class Released(NamedTuple):
    """Part 3.4.4: an outcome, the message was not processed."""


@_composite(0x27, "amqp:modified:list", "boolean", "boolean", "map")
class Modified(NamedTuple):
    """Part 3.4.5: an outcome, the message was not processed, and is changed."""

    delivery_failed: bool | None = None
    undeliverable_here: bool | None = None
    message_annotations: dict[Any, Any] | None = None


# ---- Sources and targets ---------------------------------------------------------------------


@_composite(
    0x28, "amqp:source:list", "any", "uint", "symbol", "uint", "boolean", "map", "symbol", "map",
    "any", "symbol*", "symbol*",
)  # fmt: skip
class Source(NamedTuple):
    """Part 3.5.3: where the messages of a link come from."""

    address: Any = None
    durable: int = 0
    expiry_policy: str = "session-end"
    timeout: int = 0
    dynamic: bool = False
    dynamic_node_properties: dict[str, Any] | None = None
    distribution_mode: str | None = None
    filter: dict[str, Any] | None = None
    default_outcome: Any = None
    outcomes: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()


@_composite(
    0x29, "amqp:target:list", "any", "uint", "symbol", "uint", "boolean", "map", "symbol*"
)  # fmt: skip
class Target(NamedTuple):
    """Part 3.5.4: where the messages of a link go."""

    address: Any = None
    durable: int = 0
    expiry_policy: str = "session-end"
    timeout: int = 0
    dynamic: bool = False
    dynamic_node_properties: dict[str, Any] | None = None
    capabilities: tuple[str, ...] = ()


@_composite(0x2B, "amqp:delete-on-close:list")
class DeleteOnClose(NamedTuple):
    """Part 3.5.10: the lifetime of a dynamic node, until its link closes."""


@_composite(0x2C, "amqp:delete-on-no-links:list")
class DeleteOnNoLinks(NamedTuple):
    """Part 3.5.11: the lifetime of a dynamic node, until it has no link."""


@_composite(0x2D, "amqp:delete-on-no-messages:list")
class DeleteOnNoMessages(NamedTuple):
    """Part 3.5.12: the lifetime of a dynamic node, until it has no message."""


@_composite(0x2E, "amqp:delete-on-no-links-or-messages:list")
class DeleteOnNoLinksOrMessages(NamedTuple):
    """Part 3.5.13: the lifetime of a dynamic node, until it has no link and no message."""


# ---- Transactions ----------------------------------------------------------------------------


@_composite(0x30, "amqp:coordinator:list", "symbol*")
class Coordinator(NamedTuple):
    """Part 4.5.1: the target of a link to the coordinator of transactions."""

    capabilities: tuple[str, ...] = ()


@_composite(0x31, "amqp:declare:list", "any")
class Declare(NamedTuple):
    """Part 4.5.2: begins a transaction."""

    global_id: Any = None


@_composite(0x32, "amqp:discharge:list", "binary!", "boolean")
class Discharge(NamedTuple):
    """Part 4.5.3: ends a transaction."""

    txn_id: bytes
    fail: bool | None = None


@_composite(0x33, "amqp:declared:list", "binary!")
class Declared(NamedTuple):
    """Part 4.5.5: the outcome of Declare."""

    txn_id: bytes


@_composite(0x34, "amqp:transactional-state:list", "binary!", "any")
class TransactionalState(NamedTuple):
    """Part 4.5.8: the state of a delivery inside a transaction."""

    txn_id: bytes
    outcome: Any = None


# ---- Performatives ---------------------------------------------------------------------------


@_composite(
    0x10, "amqp:open:list", "string!", "string", "uint", "ushort", "uint", "symbol*", "symbol*",
    "symbol*", "symbol*", "map",
)  # fmt: skip
class Open(NamedTuple):
    """Part 2.7.1: the first frame of a connection. `idle_time_out` is in milliseconds."""

    container_id: str
    hostname: str | None = None
    max_frame_size: int = 0xFFFFFFFF
    channel_max: int = 0xFFFF
    idle_time_out: int | None = None
    outgoing_locales: tuple[str, ...] = ()
    incoming_locales: tuple[str, ...] = ()
    offered_capabilities: tuple[str, ...] = ()
    desired_capabilities: tuple[str, ...] = ()
    properties: dict[str, Any] | None = None


@_composite(
    0x11, "amqp:begin:list", "ushort", "uint!", "uint!", "uint!", "uint", "symbol*", "symbol*",
    "map",
)  # fmt: skip
class Begin(NamedTuple):
    """Part 2.7.2: begins a session; windows count transfer frames."""

    remote_channel: int | None
    next_outgoing_id: int
    incoming_window: int
    outgoing_window: int
    handle_max: int = 0xFFFFFFFF
    offered_capabilities: tuple[str, ...] = ()
    desired_capabilities: tuple[str, ...] = ()
    properties: dict[str, Any] | None = None


@_composite(
    0x12, "amqp:attach:list", "string!", "uint!", "boolean!", "ubyte", "ubyte", "any", "any", "map",
    "boolean", "uint", "ulong", "symbol*", "symbol*", "map",
)  # fmt: skip
class Attach(NamedTuple):
    """Part 2.7.3: attaches a link. `role` is True for a receiver.

    Settle modes: sender 0 unsettled, 1 settled, 2 mixed; receiver 0 first, 1 second.
    """

    name: str
    handle: int
    role: bool
    snd_settle_mode: int = 2
    rcv_settle_mode: int = 0
    source: Source | None = None
    target: Target | Coordinator | None = None
    unsettled: dict[bytes, Any] | None = None
    incomplete_unsettled: bool = False
    initial_delivery_count: int | None = None
    max_message_size: int | None = None
    offered_capabilities: tuple[str, ...] = ()
    desired_capabilities: tuple[str, ...] = ()
    properties: dict[str, Any] | None = None


@_composite(
    0x13, "amqp:flow:list", "uint", "uint!", "uint!", "uint!", "uint", "uint", "uint", "uint",
    "boolean", "boolean", "map",
)  # fmt: skip
class Flow(NamedTuple):
    """Part 2.7.4: windows of a session and, with a handle, the credit of a link."""

    next_incoming_id: int | None
    incoming_window: int
    next_outgoing_id: int
    outgoing_window: int
    handle: int | None = None
    delivery_count: int | None = None
    link_credit: int | None = None
    available: int | None = None
    drain: bool = False
    echo: bool = False
    properties: dict[str, Any] | None = None


@_composite(
    0x14, "amqp:transfer:list", "uint!", "uint", "binary", "uint", "boolean", "boolean", "ubyte",
    "any", "boolean", "boolean", "boolean",
)  # fmt: skip
class Transfer(NamedTuple):
    """Part 2.7.5: one frame of a delivery; a part of the message follows the transfer."""

    handle: int
    delivery_id: int | None = None
    delivery_tag: bytes | None = None
    message_format: int | None = None
    settled: bool | None = None
    more: bool = False
    rcv_settle_mode: int | None = None
    state: Any = None
    resume: bool = False
    aborted: bool = False
    batchable: bool = False


@_composite(
    0x15, "amqp:disposition:list", "boolean!", "uint!", "uint", "boolean", "any", "boolean"
)  # fmt: skip
class Disposition(NamedTuple):
    """Part 2.7.6: the state of deliveries. `role` is True if their receiver sends this frame."""

    role: bool
    first: int
    last: int | None = None
    settled: bool = False
    state: Any = None
    batchable: bool = False


@_composite(0x16, "amqp:detach:list", "uint!", "boolean", "any")
class Detach(NamedTuple):
    """Part 2.7.7: detaches a link; `closed` also destroys its terminus."""

    handle: int
    closed: bool = False
    error: Error | None = None


@_composite(0x17, "amqp:end:list", "any")
class End(NamedTuple):
    """Part 2.7.8: ends a session."""

    error: Error | None = None


@_composite(0x18, "amqp:close:list", "any")
class Close(NamedTuple):
    """Part 2.7.9: the last frame of a connection."""

    error: Error | None = None


# ---- SASL ------------------------------------------------------------------------------------


@_composite(0x40, "amqp:sasl-mechanisms:list", "symbol*!")
class SaslMechanisms(NamedTuple):
    """Part 5.3.3.1: the mechanisms that the server offers."""

    mechanisms: tuple[str, ...]


@_composite(0x41, "amqp:sasl-init:list", "symbol!", "binary", "string")
class SaslInit(NamedTuple):
    """Part 5.3.3.2: the mechanism that the client chose."""

    mechanism: str
    initial_response: bytes | None = None
    hostname: str | None = None


@_composite(0x42, "amqp:sasl-challenge:list", "binary!")
class SaslChallenge(NamedTuple):
    """Part 5.3.3.3: a challenge of the server."""

    challenge: bytes


@_composite(0x43, "amqp:sasl-response:list", "binary!")
class SaslResponse(NamedTuple):
    """Part 5.3.3.4: the response to a challenge."""

    response: bytes


@_composite(0x44, "amqp:sasl-outcome:list", "ubyte!", "binary")
class SaslOutcome(NamedTuple):
    """Part 5.3.3.5: codes 0 ok, 1 wrong credentials, 2 to 4 system errors (4: transient)."""

    code: int
    additional_data: bytes | None = None


# ---- Message sections ------------------------------------------------------------------------


@_composite(0x70, "amqp:header:list", "boolean", "ubyte", "uint", "boolean", "uint")
class Header(NamedTuple):
    """Part 3.2.1: how to deliver a message. `ttl` is in milliseconds."""

    durable: bool = False
    priority: int = 4
    ttl: int | None = None
    first_acquirer: bool = False
    delivery_count: int = 0


@_composite(
    0x73, "amqp:properties:list", "any", "binary", "any", "string", "any", "any", "symbol",
    "symbol", "timestamp", "timestamp", "string", "uint", "string",
)  # fmt: skip
class Properties(NamedTuple):
    """Part 3.2.4: immutable properties of a message. Times are in milliseconds since 1970."""

    message_id: Any = None
    user_id: bytes | None = None
    to: Any = None
    subject: str | None = None
    reply_to: Any = None
    correlation_id: Any = None
    content_type: str | None = None
    content_encoding: str | None = None
    absolute_expiry_time: int | None = None
    creation_time: int | None = None
    group_id: str | None = None
    group_sequence: int | None = None
    reply_to_group_id: str | None = None


# ---- Encoding and decoding -------------------------------------------------------------------


def encode_composite(value: tuple[Any, ...]) -> bytes:
    """Encode a composite value with its descriptor. Raises ValueError for a field out of range."""
    layout = _BY_TYPE[type(value)]
    fields = [_encode_field(field, each) for field, each in zip(layout.fields, value, strict=True)]
    while fields and fields[-1] == b"\x40":
        fields.pop()
    head = bytes((0x00, 0x53, layout.code))
    if not fields:
        return head + b"\x45"
    return head + compound(0xC0, 0xD0, len(fields), b"".join(fields))


def _encode_field(field: _Field, value: Any) -> bytes:
    if field.is_multiple:
        return encode(symbols(*value))
    if value is None or (value == field.default and not field.is_mandatory):
        return b"\x40"
    return _ENCODE[field.kind](value)


def encode_any(value: Any) -> bytes:
    """Encode a value that may be composite, or a list or map that contains composite values."""
    if type(value) in _BY_TYPE:
        return encode_composite(value)
    if type(value) is dict:
        octets = b"".join(encode_any(key) + encode_any(each) for key, each in value.items())
        return compound(0xC1, 0xD1, 2 * len(value), octets)
    if type(value) is list and value:
        return compound(0xC0, 0xD0, len(value), b"".join(map(encode_any, value)))
    return encode(value)


def _encode_map(value: dict[Any, Any]) -> bytes:
    """Encode a map whose keys are names. Some clients refuse names that are not symbols."""
    names = (Symbol(key) if type(key) is str else key for key in value)
    return encode_any(dict(zip(names, value.values(), strict=True)))


#: Kind of a field -> its encoder. `_DECODED` has the type that a decoded value must have.
_ENCODE: dict[str, Callable[[Any], bytes]] = {
    "boolean": encode,
    "ubyte": lambda value: encode(UByte(value)),
    "ushort": lambda value: encode(UShort(value)),
    "uint": lambda value: encode(UInt(value)),
    "ulong": lambda value: encode(ULong(value)),
    "timestamp": lambda value: encode(Timestamp(value)),
    "string": encode,
    "symbol": lambda value: encode(Symbol(value)),
    "binary": encode,
    "map": _encode_map,
    "any": encode_any,
}
_DECODED: dict[str, type] = {
    "boolean": bool,
    "ubyte": UByte,
    "ushort": UShort,
    "uint": UInt,
    "ulong": ULong,
    "timestamp": Timestamp,
    "string": str,
    "symbol": Symbol,
    "binary": bytes,
    "map": dict,
    "any": object,
}


def decode_composite(buffer: Buffer, offset: int = 0, end: int | None = None) -> tuple[Any, int]:
    """Decode the composite value at `offset`. Return it, and the offset after it.

    Raises DecodeError if the bytes are not a composite value of this module.
    """
    value, offset = decode(buffer, offset, end)
    found = from_described(value)
    if type(found) not in _BY_TYPE:
        raise DecodeError("the bytes are not a composite type of AMQP 1.0")
    return found, offset


def from_described(value: Any) -> Any:
    """Return the composite value that `value` describes. Return any other value unchanged.

    Raises DecodeError if the fields do not have the types of the composite value.
    """
    if type(value) is not Described:
        return value
    layout = _BY_DESCRIPTOR.get(value.descriptor) if _is_key(value.descriptor) else None
    if layout is None:
        return value
    if type(value.value) is not list:
        raise DecodeError(f"{layout.type.__name__} is not a list")
    if len(value.value) > len(layout.fields):
        raise DecodeError(f"{layout.type.__name__} has too many fields")
    fields = value.value + [None] * (len(layout.fields) - len(value.value))
    return layout.type(*(
        _decode_field(layout, field, each)
        for field, each in zip(layout.fields, fields, strict=True)
    ))  # fmt: skip


def _is_key(descriptor: Any) -> bool:
    return type(descriptor) is ULong or type(descriptor) is Symbol


def _decode_field(layout: _Layout, field: _Field, value: Any) -> Any:
    if value is None:
        if field.is_mandatory:
            raise DecodeError(f"{layout.type.__name__} has no {field.name}")
        return field.default
    if field.is_multiple:
        found = value.elements if type(value) is Array else [value]
        if any(type(each) is not Symbol for each in found):
            raise DecodeError(f"{layout.type.__name__}.{field.name} is not of type symbol")
        return tuple(found)
    if field.kind == "any":
        return from_described(value)
    if type(value) is not _DECODED[field.kind]:
        raise DecodeError(f"{layout.type.__name__}.{field.name} is not of type {field.kind}")
    return value
