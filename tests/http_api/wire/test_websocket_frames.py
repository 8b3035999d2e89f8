"""The frames that the broker reads itself are read as the library `websockets` reads them."""

import pytest
from websockets.frames import Frame, Opcode

from holdfast.http_api.wire.websocket_frames import frame_end, take_payloads

LENGTHS = (0, 1, 125, 126, 127, 65_535, 65_536)


def masked(payload: bytes, opcode: Opcode = Opcode.BINARY, *, fin: bool = True) -> bytes:
    return Frame(opcode, payload, fin).serialize(mask=True)


def test_whole_messages_are_taken_one_after_another() -> None:
    payloads = [bytes(range(256)) * (length // 256) + bytes(length % 256) for length in LENGTHS]
    frames = [masked(each) for each in payloads]
    data = b"".join(frames)
    assert take_payloads(data, 0, 65_536) == (payloads, len(data))
    assert take_payloads(data, len(frames[0]), 65_536) == (payloads[1:], len(data))
    end = 0
    for each in frames:
        assert frame_end(data, end) == end + len(each)
        end += len(each)


@pytest.mark.parametrize("length", [0, 125, 126, 65_536])
def test_an_incomplete_frame_is_left(length: int) -> None:
    whole = masked(bytes(length))
    for size in (*range(16), len(whole) - 1):
        part = whole[: min(size, len(whole) - 1)]
        assert take_payloads(part, 0, 65_536) == ([], 0)
        assert len(part) < frame_end(part, 0) <= len(whole)


@pytest.mark.parametrize(("length", "is_taken"), [(299, True), (300, True), (301, False)])
def test_a_payload_above_the_limit_is_left(length: int, is_taken: bool) -> None:
    data = masked(bytes(length))
    assert take_payloads(data, 0, 300) == (([bytes(length)], len(data)) if is_taken else ([], 0))


@pytest.mark.parametrize(
    "other",
    [
        masked(b"x", Opcode.TEXT),
        masked(b"x", fin=False),
        masked(b"x", Opcode.CONT),
        masked(b"x", Opcode.PING),
        masked(b"", Opcode.CLOSE),
        b"\xc2\x81" + bytes(5),  # a reserved bit
        b"\x82\x01x\x82\x01x",  # not masked
        b"\x82\xff\xff" + bytes(20),  # more bytes than any memory has
    ],
    ids=["text", "not last", "next", "ping", "close", "reserved", "not masked", "huge"],
)
def test_any_other_frame_is_left(other: bytes) -> None:
    first = masked(b"first")
    assert take_payloads(first + other, 0, 100) == ([b"first"], len(first))
