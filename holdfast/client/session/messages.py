"""Messages of links, encoded and decoded as the sections of AMQP 1.0. Pure."""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.amqp.wire.performatives import Header, Properties, encode_composite, from_described
from holdfast.amqp.wire.types import Described, Symbol, ULong, decode, encode

_ANNOTATIONS, _APPLICATION_PROPERTIES, _DATA, _VALUE = 0x72, 0x74, 0x75, 0x77


@dataclass(frozen=True, slots=True, eq=False)
class LinkMessage:
    """One message, as a link delivers it. `attempt` is the number of this delivery, from 1. A
    missing key or tag is None.

    `properties` has the values as text: numbers in decimal form, binary values in base64.
    `delivery_id` is the number of the delivery in its session; it is None if the message needs no
    settling.
    """

    body: bytes
    queue: int
    offset: int
    key: str | None
    tag: str | None
    properties: dict[str, str]
    attempt: int
    born_timestamp_ms: int | None
    store_timestamp_ms: int
    delivery_id: int | None = field(default=None, repr=False)
    reply_to: str | None = None
    """The address that the sender gave for replies, such as "/temp/ID"."""
    correlation_id: str | None = None
    """What the sender gave to find the request of a reply, as text."""

    @property
    def text(self) -> str:
        """The body as text. Raises UnicodeDecodeError when it is not UTF-8."""
        return str(self.body, "utf-8")

    def json(self) -> Any:
        """Return the body, decoded from JSON. Raises ValueError when it is not JSON."""
        return msgspec.json.decode(self.body)


def encode_message(
    body: bytes,
    key: str | None = None,
    tag: str | None = None,
    properties: Mapping[str, str] | None = None,
    ttl_ms: int | None = None,
    priority: int | None = None,
    reply_to: str | None = None,
    correlation_id: str | None = None,
) -> bytes:
    """Return a message as AMQP sections. The sections that would be empty are left out."""
    sections = []
    if ttl_ms is not None or priority is not None:
        header = Header(ttl=ttl_ms) if priority is None else Header(priority=priority, ttl=ttl_ms)
        sections.append(encode_composite(header))
    named = Properties(subject=tag, group_id=key, reply_to=reply_to, correlation_id=correlation_id)
    if any(each is not None for each in named):
        sections.append(encode_composite(named))
    if properties:
        sections.append(_section(_APPLICATION_PROPERTIES, dict(properties)))
    sections.append(_section(_DATA, body))
    return b"".join(sections)


def decode_message(octets: bytes, delivery_id: int | None) -> LinkMessage:
    """Return the message in the sections of a delivery. A body that is not binary or text is
    returned as its encoded sections. Raises DecodeError."""
    annotations: dict[Any, Any] = {}
    applied: dict[Any, Any] = {}
    named = Properties()
    contents: list[Any] = []
    body_start = body_end = 0
    at = 0
    while at < len(octets):
        section, end = decode(octets, at)
        code = section.descriptor if type(section) is Described else None
        if code == _ANNOTATIONS:
            annotations = section.value
        elif code == _APPLICATION_PROPERTIES:
            applied = section.value
        elif code is not None and _DATA <= code <= _VALUE:
            contents.append(section.value)
            body_start, body_end = body_start or at, end
        elif type(found := from_described(section)) is Properties:
            named = found
        at = end
    if len(contents) == 1 and type(contents[0]) is str:
        body = contents[0].encode()
    elif all(type(each) is bytes for each in contents):
        body = b"".join(contents)
    else:
        body = octets[body_start:body_end]
    texts = {str(name): _text(value) for name, value in applied.items() if value is not None}
    if named.content_type is not None:
        texts["content-type"] = str(named.content_type)
    key = named.group_id or annotations.get(Symbol("x-opt-partition-key"))
    return LinkMessage(
        body,
        int(annotations[Symbol("x-opt-queue")]),
        int(annotations[Symbol("x-opt-offset")]),
        str(key) if key else None,
        named.subject or None,
        texts,
        int(annotations[Symbol("x-opt-attempt")]),
        int(named.creation_time) if named.creation_time is not None else None,
        int(annotations[Symbol("x-opt-enqueued-time")]),
        delivery_id,
        None if named.reply_to is None else str(named.reply_to),
        None if named.correlation_id is None else _text(named.correlation_id),
    )


def _section(code: int, value: Any) -> bytes:
    return encode(Described(ULong(code), value))


def _text(value: Any) -> str:
    if type(value) is bytes:
        return b64encode(value).decode()
    return str(value).lower() if type(value) is bool else str(value)
