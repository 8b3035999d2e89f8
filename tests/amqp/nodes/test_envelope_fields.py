from typing import Any
from uuid import UUID

import pytest

from holdfast.amqp.messages.envelope import Envelope, encode_envelope
from holdfast.amqp.messages.to_rows import Rules, to_columns
from holdfast.amqp.nodes.envelope_fields import read_fields
from holdfast.amqp.wire.performatives import Header, Properties, encode_composite
from holdfast.amqp.wire.types import ULong
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_check import MessageLimits
from holdfast.commitlog.format.batch_encoding import encode_columns
from holdfast.commitlog.format.session_ids import publisher_hash
from holdfast.holdservice.envelope_columns import ENVELOPE_COLUMNS, set_reader
from holdfast.holdservice.filters import Sql92Filter
from holdfast.holdservice.no_local import not_published_by
from holdfast.holdservice.three_valued import Column

RULES = Rules(MessageLimits(), publisher_hash("me"), "holdfast-")
UUID_ = UUID("9b2c2d9e-6a0e-4c1c-8f7e-2d3e4f5a6b7c")


def _batch(*messages: bytes) -> Batch:
    """Return messages of the container "me", and a message of another protocol, as stored."""
    columns = to_columns(list(messages), 0, RULES)
    assert not columns.refused
    header, payload = encode_columns(
        [*columns.bodies, b"plain"], envelopes=[*columns.envelopes, b""]
    )
    return Batch.decode(header.encode() + payload)


def _message(header: Header | None = None, **properties: Any) -> bytes:
    octets = encode_composite(header) if header is not None else b""
    if properties:
        octets += encode_composite(Properties(**properties))
    return octets + b"\x00\x53\x75\xa0\x01x"


BATCH = _batch(
    _message(Header(True, 9), message_id="ID:1", correlation_id="c1"),
    _message(Header(False, 0), message_id="2", correlation_id=UUID_),
    _message(message_id=ULong(3), correlation_id=b"\xab"),
    _message(subject="no ids"),
    _message(),
)


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("JMSMessageID = 'ID:1'", [0]),
        ("JMSMessageID = 'ID:AMQP_NO_PREFIX:2'", [1]),
        ("JMSMessageID = 'ID:AMQP_ULONG:3'", [2]),
        ("JMSMessageID IS NULL", [3, 4, 5]),
        ("JMSCorrelationID = 'c1'", [0]),
        (f"JMSCorrelationID = 'ID:AMQP_UUID:{UUID_}'", [1]),
        ("JMSCorrelationID = 'ID:AMQP_BINARY:AB'", [2]),
        ("JMSPriority > 4", [0]),
        ("JMSPriority = 4", [2, 3, 4, 5]),
        ("JMSDeliveryMode = 'PERSISTENT'", [0, 5]),
        ("JMSDeliveryMode = 'NON_PERSISTENT'", [1, 2, 3, 4]),
        (not_published_by("me", None), [5]),
        (not_published_by("other", "JMSPriority > 4"), [0]),
    ],
)
def test_filters_select_by_the_fields_of_amqp_messages(condition: str, rows: list[int]) -> None:
    # T28
    set_reader(read_fields)
    assert Sql92Filter(condition).matching_rows(BATCH, 0, 6) == rows


@pytest.mark.parametrize(
    "before", [b"", b"\x00", b"\x00\x53\x73", b"\x00\x53\x77\xa1\x05", b"\x00\xa3\x01", b"\x99"]
)
def test_an_envelope_without_properties_has_no_ids(before: bytes) -> None:
    octets = encode_envelope(Envelope(7, False, 4, b"", before, b""))
    assert read_fields(octets, ENVELOPE_COLUMNS) == {
        Column.PRIORITY: "4",
        Column.DELIVERY_MODE: "NON_PERSISTENT",
        Column.PUBLISHER: "7",
    }
