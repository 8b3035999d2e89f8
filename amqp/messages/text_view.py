"""How other protocols, filters and Spark see an AMQP message. Pure.

| part of the AMQP message                        | seen as                                        |
|-------------------------------------------------|------------------------------------------------|
| one data section, or one string or binary value | the body                                       |
| any other body                                  | the encoded body sections, as the body         |
| group-id, else x-opt-partition-key              | the key                                        |
| subject                                         | the tag                                        |
| application-properties (with a name)            | properties, as text                            |
| ttl, absolute-expiry-time                       | the expiry time: the earlier of the two times  |
"""

from base64 import b64encode
from typing import Any, NamedTuple
from uuid import UUID

from holdfast.amqp.messages.sections import Kind, Sections
from holdfast.amqp.wire.types import Array, Described


class TextView(NamedTuple):
    """One message as other protocols see it. Times are in milliseconds since 1970."""

    body: bytes
    key: str | None
    tag: str | None
    properties: dict[str, str]
    expires_at_ms: int | None
    priority: int
    is_durable: bool


def text_view(sections: Sections, now_ms: int, max_tag_bytes: int) -> TextView:
    """Return the view of a message that arrived at `now_ms`.

    A subject that is empty or longer than `max_tag_bytes` is ignored. Raises DecodeError if
    a section is not valid.
    """
    header, properties = sections.header(), sections.routing()
    key = properties.group_id
    partition_key = sections.text_annotation("x-opt-partition-key")
    if key is None:
        key = partition_key
    sections.check_footer()
    tag = properties.subject
    if tag is not None and not 0 < len(tag.encode()) <= max_tag_bytes:
        tag = None
    expires_at_ms = properties.absolute_expiry_time or None
    if header.ttl and (expires_at_ms is None or now_ms + header.ttl < expires_at_ms):
        expires_at_ms = now_ms + header.ttl
    return TextView(
        _body(sections),
        key or None,
        tag,
        _text_properties(sections),
        expires_at_ms,
        header.priority,
        header.durable,
    )


def _body(sections: Sections) -> bytes:
    text = sections.only_text()
    if text is not None:
        return text
    sections.check_body()
    return sections.body_bytes()


def _text_properties(sections: Sections) -> dict[str, str]:
    if Kind.APPLICATION_PROPERTIES not in sections:
        return {}
    found = ((name, as_text(value)) for name, value in sections.application_properties().items())
    return {name: text for name, text in found if name and text is not None}


def as_text(value: Any) -> str | None:
    """Return a simple value as text; None for null and for values that contain other values.

    Numbers are decimal, booleans `true` and `false`, timestamps milliseconds, binary base64.
    """
    if value is None or isinstance(value, list | dict | Array | Described):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value))
    return str(value) if isinstance(value, str | UUID) else None
