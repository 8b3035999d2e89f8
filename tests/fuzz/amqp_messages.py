"""Fuzz what AMQP stores of a message: it is refused, or it comes back from a batch unchanged.

The input is the encoded message.
"""

from holdfast.amqp.messages.envelope import decode_envelope
from holdfast.amqp.messages.sections import Sections
from holdfast.amqp.messages.to_rows import Rules, column, to_columns
from holdfast.amqp.wire.conditions import AmqpError
from holdfast.amqp.wire.performatives import Header, Properties, encode_composite
from holdfast.amqp.wire.types import Described, Symbol, Timestamp, ULong, encode
from holdfast.commitlog.format.batch_check import LimitExceeded, MessageLimits, check_batch
from holdfast.commitlog.format.batch_encoding import Rows, as_batch

LIMITS = MessageLimits(4096, 64, 32, 256)
RULES = Rules(LIMITS, publisher=7, reserved_prefix="holdfast-dead-")


def _section(kind: int, value: object) -> bytes:
    return encode(Described(ULong(kind), value))


def seeds() -> list[bytes]:
    """Return messages of every shape."""
    header = encode_composite(Header(True, 9, 70_000, delivery_count=2))
    properties = encode_composite(
        Properties(
            "id", b"user", "to", "red", absolute_expiry_time=Timestamp(2**60), group_id="key"
        )
    )
    annotations = _section(0x72, {Symbol("x-opt-partition-key"): "k", Symbol("n"): 5})
    application = _section(0x74, {"n": 5, "text": "é", "flag": True, "": None})
    data, footer = _section(0x75, b"hello"), _section(0x78, {Symbol("crc"): 7})
    return [
        data,
        _section(0x75, bytes(300)),
        data * 2,
        _section(0x76, [1, "two", [3]]),
        _section(0x77, "text"),
        _section(0x77, {"a": 1}),
        header + _section(0x71, {Symbol("d"): 1}) + data,
        header + annotations + properties + application + data + footer,
    ]


def check(data: bytes) -> None:
    """Raise for any behaviour that the storing of messages must not show."""
    columns = to_columns([data], 1_700_000_000_000, RULES)
    if columns.refused:
        assert isinstance(columns.refused[0], AmqpError | LimitExceeded)
        return
    index = range(1)
    rows = Rows(
        0,
        columns.bodies,
        1,
        column(columns.keys, index, None),
        column(columns.tags, index, None),
        column(columns.properties, index, None),
        column(columns.expires_us, index, 0),
        envelopes=columns.envelopes,
    )
    batch = as_batch(rows)
    assert batch.total_size == rows.total_size
    check_batch(batch, LIMITS)
    envelope = decode_envelope(batch.envelope(0))
    bare = Sections(data).bare()
    assert envelope.annotations + envelope.message(batch.body(0)) == bare
    Sections(bare).annotations()
