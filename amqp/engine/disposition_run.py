"""Reads consecutive dispositions of successive deliveries in one loop. Pure.

Many clients acknowledge each message in a frame of its own. These frames differ only in the
delivery-id, which increases by one. To process such a frame alone takes about 6 us; in a run, it
takes about 0.4 us. Any other frame ends the run. Both ways give equal results.
"""

from struct import Struct

from holdfast.amqp.wire.conditions import AmqpError
from holdfast.amqp.wire.fast_disposition import decode_disposition
from holdfast.amqp.wire.performatives import Accepted, Disposition, Released

_U32 = Struct(">I").unpack_from
_START = b"\x02\x00"
#: Constructor of the list -> where the four bytes of the delivery-id are in the frame.
_ID_AT = {0xC0: 16, 0xD0: 22}


def read_run(
    buffer: bytes, at: int, end: int, most: int, max_frame_bytes: int
) -> tuple[Disposition, int, int] | None:
    """Read at most `most` frames from `at` on. Return one disposition for all their deliveries, the
    offset after the last frame, and the number of frames.

    Return None if the frame at `at` is not a settled outcome of one delivery that was sent to the
    peer; then it must be processed alone. The caller has checked that it is a disposition, with at
    least 12 bytes.
    """
    (size,) = _U32(buffer, at)
    id_at = _ID_AT.get(buffer[at + 11])
    after = at + size
    if (
        id_at is None
        or after > end
        or not id_at + 4 < size <= max_frame_bytes
        or buffer[at + 4 : at + 6] != _START
        or buffer[at + id_at - 1] != 0x70
    ):
        return None
    try:
        found = decode_disposition(buffer, at + 8, after)
    except AmqpError:
        return None
    is_final = type(found.state) is Accepted or type(found.state) is Released
    is_one = found.last is None or found.last == found.first
    if not (found.role and found.settled and is_one and is_final):
        return None
    first = found.first
    head, tail = buffer[at : at + id_at], buffer[at + id_at + 4 : after]
    count = 1
    if found.last is not None:
        most = 1  # the next frame would differ in `last`, too
    while count < most:
        following = ((first + count) & 0xFFFFFFFF).to_bytes(4, "big")
        if buffer[after : after + size] != b"%b%b%b" % (head, following, tail):
            break
        after += size
        count += 1
    if count > 1:
        found = found._replace(last=(first + count - 1) & 0xFFFFFFFF)
    return found, after, count
