import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.amqp.wire.conditions import DecodeError
from holdfast.amqp.wire.fast_disposition import decode_disposition, encode_disposition
from holdfast.amqp.wire.performatives import (
    Accepted,
    Close,
    Disposition,
    Error,
    Modified,
    Rejected,
    Released,
    decode_composite,
    encode_composite,
)

_serials = st.one_of(st.integers(0, 300), st.integers(0, 2**32 - 1))
_states = st.sampled_from(
    [None, Accepted(), Released(), Modified(True), Rejected(Error("amqp:not-found"))]
)
_dispositions = st.builds(
    Disposition, st.booleans(), _serials, st.none() | _serials, st.booleans(), _states,
    st.booleans(),
)  # fmt: skip


def _exact(disposition: Disposition | None) -> Any:
    return disposition and (disposition, type(disposition.state))


@given(_dispositions)
def test_a_disposition_is_decoded_as_by_the_generic_decoder(disposition: Disposition) -> None:
    for octets in (encode_composite(disposition), encode_disposition(disposition)):
        found = decode_disposition(b"xx" + octets + b"x", 2, 2 + len(octets))
        assert _exact(found) == _exact(disposition)


@given(_dispositions, st.data())
def test_a_changed_disposition_is_decoded_or_refused_as_by_the_generic_decoder(
    disposition: Disposition, data: st.DataObject
) -> None:
    octets = bytearray(encode_disposition(disposition))
    bit = data.draw(st.integers(0, 8 * len(octets) - 1))
    octets[bit // 8] ^= 1 << bit % 8
    octets = octets[: data.draw(st.integers(0, len(octets)))]
    found = expected = None
    with contextlib.suppress(DecodeError):
        found = decode_disposition(octets, 0, len(octets))
    with contextlib.suppress(DecodeError):
        decoded, end = decode_composite(octets, 0)
        expected = decoded if type(decoded) is Disposition and end == len(octets) else None
    assert _exact(found) == _exact(expected)


@given(_dispositions)
def test_a_list_with_wide_sizes_is_decoded_the_same(disposition: Disposition) -> None:
    """go-amqp writes these."""
    octets = encode_disposition(disposition)
    assert octets[3] == 0xC0
    size, count = octets[4] + 3, octets[5]
    wide = octets[:3] + b"\xd0" + struct.pack(">II", size, count) + octets[6:]
    assert _exact(decode_disposition(wide, 0, len(wide))) == _exact(disposition)


def test_an_outcome_in_a_list_of_no_fields_is_accepted() -> None:
    octets = bytes.fromhex("005315c00c05 41 43 52 01 41 005324c00100")
    assert decode_disposition(octets, 0, len(octets)) == Disposition(True, 0, 1, True, Accepted())


@pytest.mark.parametrize("octets", [b"", encode_composite(Close())])
def test_bytes_that_are_no_disposition_are_refused(octets: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_disposition(octets, 0, len(octets))
