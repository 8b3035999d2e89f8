"""The fields of AMQP messages that filters may use, read from envelopes. Pure.

| name             | value                                                            |
|------------------|------------------------------------------------------------------|
| JMSMessageID     | the message-id, as JMS clients show it                           |
| JMSCorrelationID | the correlation-id, as JMS clients show it                       |
| JMSPriority      | the priority of the header                                       |
| JMSDeliveryMode  | PERSISTENT or NON_PERSISTENT, by the header's `durable`          |
| $publisher       | the number that stands for the container of the publisher        |

Messages of other protocols have priority 4 and are persistent; they have no other field.
"""

from collections.abc import Set
from typing import Any
from uuid import UUID

from holdfast.amqp.messages.envelope import Envelope, decode_envelope
from holdfast.amqp.wire.conditions import DecodeError
from holdfast.amqp.wire.types import ULong, decode, skip
from holdfast.holdservice.three_valued import Column, Name

_PROPERTIES = b"\x00\x53\x73"
_MESSAGE_ID, _CORRELATION_ID = 0, 5


def read_fields(octets: bytes, columns: Set[Column]) -> dict[Name, str]:
    """Return those of `columns` that the message of an envelope has. `octets` is the envelope, or
    b"" if the message has none."""
    envelope = decode_envelope(octets) if octets else Envelope(0, True)
    found: dict[Name, str] = {
        Column.PRIORITY: str(envelope.priority),
        Column.DELIVERY_MODE: "PERSISTENT" if envelope.is_durable else "NON_PERSISTENT",
    }
    if octets:
        found[Column.PUBLISHER] = str(envelope.publisher)
    if Column.MESSAGE_ID in columns or Column.CORRELATION_ID in columns:
        fields = _properties(envelope.before or b"")
        for column, place in (
            (Column.MESSAGE_ID, _MESSAGE_ID), (Column.CORRELATION_ID, _CORRELATION_ID),
        ):  # fmt: skip
            text = _jms_id(fields[place], column) if len(fields) > place else None
            if text is not None:
                found[column] = text
    return {column: text for column, text in found.items() if column in columns}


def _properties(before: bytes) -> list[Any]:
    """Return the fields of the properties section at the beginning of `before`."""
    try:
        if not before.startswith(_PROPERTIES):
            if before[:1] != b"\x00" or decode(before, 1)[0] not in (0x73, "amqp:properties:list"):
                return []
            value = skip(before, 1)
        else:
            value = len(_PROPERTIES)
        fields = decode(before, value)[0]
    except DecodeError:  # `before` ends within a body section: there are no properties
        return []
    return fields if isinstance(fields, list) else []


def _jms_id(value: Any, column: Column) -> str | None:
    """Return an id as JMS clients show it (the JMS mapping of AMQP, section 3.2.1.1)."""
    if isinstance(value, UUID):
        return f"ID:AMQP_UUID:{value}"
    if isinstance(value, ULong):
        return f"ID:AMQP_ULONG:{int(value)}"
    if isinstance(value, bytes):
        return f"ID:AMQP_BINARY:{value.hex().upper()}"
    if not isinstance(value, str):
        return None
    if column is Column.MESSAGE_ID and not value.startswith("ID:"):
        return f"ID:AMQP_NO_PREFIX:{value}"
    return str(value)
