import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.amqp.wire.conditions import DecodeError
from holdfast.amqp.wire.fast_transfer import TransferEncoder, decode_transfer
from holdfast.amqp.wire.frames import cut
from holdfast.amqp.wire.performatives import (
    Accepted,
    Detach,
    Transfer,
    decode_composite,
    encode_composite,
)
from holdfast.amqp.wire.types import Described, UInt, ULong, encode

_uints = st.one_of(st.integers(0, 300), st.integers(0, 2**32 - 1))
_transfers = st.builds(
    Transfer,
    _uints,
    st.none() | _uints,
    st.none() | st.binary(max_size=32),
    st.none() | st.sampled_from([0, 1, 2**31]),
    st.none() | st.booleans(),
    st.booleans(),
    st.none() | st.integers(0, 1),
    st.none() | st.just(Accepted()),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


@given(_transfers, st.binary(max_size=20), st.booleans())
def test_a_transfer_is_decoded_as_by_the_generic_decoder(
    transfer: Transfer, message: bytes, is_wide: bool
) -> None:
    octets = encode_composite(transfer)
    if is_wide:
        octets = _widened(octets)
    data = b"xx" + octets + message
    found, start = decode_transfer(data, 2, len(data))
    assert (found, data[start:]) == (transfer, message)
    assert (found, start) == decode_composite(data, 2)


def _widened(octets: bytes) -> bytes:
    size, count = octets[4], octets[5]
    head = octets[:3] + b"\xd0" + (size + 3).to_bytes(4, "big") + count.to_bytes(4, "big")
    return head + octets[6:]


@given(_transfers, st.data())
def test_a_changed_transfer_is_decoded_or_refused_as_by_the_generic_decoder(
    transfer: Transfer, data: st.DataObject
) -> None:
    octets = bytearray(encode_composite(transfer) + b"message")
    bit = data.draw(st.integers(0, 8 * len(octets) - 1))
    octets[bit // 8] ^= 1 << bit % 8
    octets = octets[: data.draw(st.integers(0, len(octets)))]
    found = expected = None
    with contextlib.suppress(DecodeError):
        found = decode_transfer(octets, 0, len(octets))
    with contextlib.suppress(DecodeError):
        expected = decode_composite(octets, 0)
    if expected is not None and type(expected[0]) is not Transfer:
        expected = None
    assert found == expected


@pytest.mark.parametrize(
    "octets",
    [
        b"",
        encode_composite(Detach(0)),
        encode(Described(ULong(0x14), [])),
        encode(Described(ULong(0x14), [UInt(0), UInt(1), b"t", UInt(0), True, UInt(1)])),
        encode(Described(ULong(0x14), [True])),
    ],
)
def test_bytes_that_are_no_transfer_are_refused(octets: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_transfer(octets, 0, len(octets))


@pytest.mark.parametrize("handle", [0, 255, 256, 2**32 - 1])
@pytest.mark.parametrize("size", [0, 1, 470, 500, 512, 1_000, 5_000])
@pytest.mark.parametrize("is_settled", [False, True])
def test_a_delivery_is_cut_into_frames_that_the_peer_allows(
    handle: int, size: int, is_settled: bool
) -> None:
    message = bytes(range(256)) * 20
    encoder = TransferEncoder(7, handle, 512)
    frames = encoder.frames(2**32 - 1, b"tag", is_settled, message[:size])
    data = b"".join(frames)
    parts = []
    for each in cut(data, 0, len(data), 512):
        transfer, start = decode_transfer(data, each.start, each.end)
        assert (each.channel, transfer.handle) == (7, handle)
        parts.append((transfer, data[start : each.end]))
    first = parts[0][0]
    assert (first.delivery_id, first.delivery_tag, first.message_format) == (2**32 - 1, b"tag", 0)
    assert first.settled is is_settled
    assert [transfer.more for transfer, _ in parts] == [True] * (len(parts) - 1) + [False]
    assert b"".join(part for _, part in parts) == message[:size]
    assert len(frames) == len(parts)
    assert all(len(frame) <= 512 for frame in frames)
    assert all(len(frame) == 512 for frame in frames[:-1])
    number = (2**32 - 1).to_bytes(4, "big")
    whole = encoder.frames(2**32 - 1, number, is_settled, message[:size])
    fast = encoder.run([2**32 - 1, 0], is_settled, [message[:size], b""])
    if len(whole) == 1:
        second = encoder.frames(0, bytes(4), is_settled, b"")
        assert (b"".join(fast), len(fast)) == (whole[0] + second[0], 4)
    else:
        assert fast == []
