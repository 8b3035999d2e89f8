"""Every type of AMQP passes the broker unchanged, byte for byte (11.14)."""

from pathlib import Path
from typing import Any
from uuid import UUID

from holdfast.amqp.messages.sections import Kind, Sections
from holdfast.amqp.wire.performatives import Accepted
from holdfast.amqp.wire.types import (
    Array,
    Byte,
    Char,
    Decimal,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from holdfast.free_port import free_port
from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.support.clients.amqp_client import AmqpClient, data_message, section, value_message

SIMPLE: list[Any] = [
    None, True, False, UByte(255), UShort(65_535), UInt(0), UInt(200), UInt(2**32 - 1), ULong(0),
    ULong(200), ULong(2**64 - 1), Byte(-128), Short(-32_768), Int(-1), Int(-(2**31)), -1, -(2**63),
    Float(1.5), -0.1, Decimal(b"\x22\x50\x00\x01"), Decimal(b"\x22" + bytes(7)),
    Decimal(b"\x22\x08" + bytes(14)), Char("𝄞"), Timestamp(1_700_000_000_123), Timestamp(-1),
    UUID(int=2**127 + 1), b"", b"\x00\xff", bytes(300), "", "grüße", "x" * 300, Symbol("s"),
    Symbol("s" * 300),
]  # fmt: skip
COMPOUND: list[Any] = [
    [], [Int(1), "two", [True, None]], list(range(300)), {}, {"a": {"b": ULong(1)}, Int(2): None},
    Array(0xA1, ["one", "two"]), Array(0x54, [Int(1), Int(-1)]), Array(0xB3, []),
    Array(0xE0, [Array(0x50, [UByte(1)])]), Described(Symbol("example:point"), [1.0, 2.0]),
    Described(ULong(2**40), {"nested": Described(ULong(1), b"x")}),
]  # fmt: skip


def messages() -> list[bytes]:
    """Return one message per value, and messages with every section."""
    found = [value_message(value) for value in SIMPLE + COMPOUND]
    found += [
        section(0x72, {Symbol("x-opt-value"): value})
        + section(0x74, {"property": value} if value in SIMPLE else {"other": "text"})
        + value_message("body")
        for value in SIMPLE + COMPOUND
    ]
    properties = [
        UUID(int=7), b"user", "to", "subject", "reply", ULong(9), Symbol("text/plain"),
        Symbol("gzip"), Timestamp(4_102_444_800_000), Timestamp(5), "group", UInt(3), "reply-group",
    ]  # fmt: skip
    found.append(
        section(0x72, {Symbol("x-opt-mine"): UByte(1)})
        + section(0x73, properties)
        + section(0x74, {"one": Int(1), "two": "zwei"})
        + data_message(b"part one")
        + data_message(b"")
        + data_message(b"part three")
        + section(0x78, {Symbol("checksum"): b"1234"})
    )
    found.append(section(0x76, [Int(1)]) + section(0x76, []) + section(0x76, ["x"]))
    found.append(data_message(bytes(range(256)) * 1200))
    return found


def test_all_types_pass_unchanged(tmp_path: Path) -> None:
    port = free_port()
    arguments = (*TEST_ARGUMENTS, "--amqp-port", str(port))
    sent = messages()
    with RunningBroker(tmp_path / "data", arguments), AmqpClient(port) as client:
        link = client.sender("types")
        for message in sent:
            assert type(client.outcome(client.send(link, message))) is Accepted
        client.receiver("types", credit=len(sent))
        received = [each.message for each in client.take(len(sent))]
    for before, after in zip(sent, received, strict=True):
        check(Sections(before), Sections(after))


def check(before: Sections, after: Sections) -> None:
    assert after.body_bytes() == before.body_bytes()
    for kind in (Kind.PROPERTIES, Kind.APPLICATION_PROPERTIES, Kind.FOOTER):
        assert (kind in after) == (kind in before)
    assert after.properties() == before.properties()
    found, expected = after.annotations(), before.annotations()
    assert {key: found[key] for key in expected} == expected
    ours = {key for key in found if key not in expected}
    assert all(key.startswith("x-opt-") for key in ours)
    # The bytes after the annotations are the sender's.
    assert after.bare().endswith(_after_annotations(before))


def _after_annotations(message: Sections) -> bytes:
    bare = message.bare()
    if Kind.MESSAGE_ANNOTATIONS not in message:
        return bare
    return bare[len(section(0x72, message.annotations())) :]
