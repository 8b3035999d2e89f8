import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.amqp.wire.conditions import DecodeError
from holdfast.amqp.wire.frames import EMPTY_FRAME, SASL_FRAME, Frame, cut, frame


def test_a_frame_has_the_bytes_of_the_specification() -> None:
    assert frame(0x0102, b"body").hex() == "0000000c02000102" + b"body".hex()
    assert frame(0, b"", SASL_FRAME).hex() == "0000000802010000"
    assert EMPTY_FRAME.hex() == "0000000802000000"


@given(st.lists(st.binary(max_size=30), max_size=5), st.data())
def test_frames_are_cut_wherever_the_bytes_end(bodies: list[bytes], data: st.DataObject) -> None:
    octets = b"".join(frame(index, body) for index, body in enumerate(bodies))
    end = data.draw(st.integers(0, len(octets)))
    frames = list(cut(octets, 0, end, 512))
    whole, size = [], 0
    for body in bodies:
        size += 8 + len(body)
        if size <= end:
            whole.append(body)
    assert [octets[each.start : each.end] for each in frames] == whole
    assert [each.channel for each in frames] == list(range(len(whole)))


def test_an_extended_header_is_skipped() -> None:
    octets = bytes.fromhex("00000010 03010001 deadbeef 01020304")
    assert list(cut(octets, 0, len(octets), 512)) == [Frame(1, 1, 12, 16)]


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_frame_above_the_limit_is_refused_before_it_has_arrived(more: int) -> None:
    octets = frame(0, bytes(512 - 8 + more))
    if more > 0:
        with pytest.raises(DecodeError, match="is larger than 512") as caught:
            list(cut(octets, 0, 8, 512))
        assert caught.value.condition == "amqp:connection:framing-error"
    else:
        assert len(list(cut(octets, 0, len(octets), 512))) == 1


@pytest.mark.parametrize("head", ["0000000801000000", "0000000800000000", "0000000703000000",
                                  "0000000002000000", "0000000803000000"])  # fmt: skip
def test_a_header_that_is_not_valid_is_refused(head: str) -> None:
    with pytest.raises(DecodeError, match="header is not valid"):
        list(cut(bytes.fromhex(head), 0, 8, 512))
