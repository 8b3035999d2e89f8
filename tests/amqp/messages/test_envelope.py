from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.amqp.messages.envelope import (
    Envelope,
    data_head,
    decode_envelope,
    encode_envelope,
)
from holdfast.amqp.wire.types import Described, ULong, encode
from holdfast.commitlog.errors import CorruptBatch, UnknownFormatVersion
from holdfast.commitlog.format.session_ids import publisher_hash

PUBLISHER = publisher_hash("container")
PLAIN = Envelope(PUBLISHER, is_durable=True, priority=9)
FULL = Envelope(PUBLISHER, False, 4, b"annotations", b"before", b"after")
GOLDEN = {
    PLAIN: "11 09 19 03 6f 72",
    FULL: "21 04 19 03 6f 72 0b 00 00 00 06 00 00 00" + (b"annotationsbeforeafter").hex(" "),
}


def test_the_hash_of_a_publisher_is_the_checksum_of_its_name() -> None:
    assert publisher_hash("123456789") == 0xE3069283


@pytest.mark.parametrize("envelope", list(GOLDEN))
def test_an_envelope_has_these_bytes(envelope: Envelope) -> None:
    octets = bytes.fromhex(GOLDEN[envelope])
    assert encode_envelope(envelope).hex(" ") == octets.hex(" ")
    assert decode_envelope(octets) == envelope


@given(
    st.builds(
        Envelope,
        st.integers(0, 2**32 - 1),
        st.booleans(),
        st.integers(0, 255),
        *([st.binary()] * 3),
    )
)
def test_an_envelope_is_decoded_as_it_was_encoded(envelope: Envelope) -> None:
    assert decode_envelope(encode_envelope(envelope)) == envelope


@pytest.mark.parametrize("size", [0, 1, 255, 256, 70_000])
def test_a_message_without_sections_is_one_data_section(size: int) -> None:
    body = bytes(size)
    assert PLAIN.message(body) == data_head(size) + body == encode(Described(ULong(0x75), body))


def test_the_body_lies_between_the_sections() -> None:
    assert FULL.message(b" body ") == b"before body after"


def test_envelopes_that_are_cut_off_are_refused() -> None:
    for size in range(len(encode_envelope(PLAIN))):
        with pytest.raises(CorruptBatch):
            decode_envelope(encode_envelope(PLAIN)[:size])
    octets = encode_envelope(FULL)
    for size in range(len(octets) - len(FULL.after)):
        with pytest.raises(CorruptBatch):
            decode_envelope(octets[:size])
    with pytest.raises(CorruptBatch):
        decode_envelope(encode_envelope(PLAIN) + b"x")


@pytest.mark.parametrize("first", [0x02, 0x00, 0x41, 0x91])
def test_envelopes_of_a_newer_version_are_refused_by_name(first: int) -> None:
    with pytest.raises(UnknownFormatVersion):
        decode_envelope(bytes((first,)) + encode_envelope(PLAIN)[1:])


@given(st.binary(max_size=64))
def test_random_bytes_are_an_envelope_or_refused(octets: bytes) -> None:
    with suppress(CorruptBatch, UnknownFormatVersion):
        assert encode_envelope(decode_envelope(octets)) == octets
