"""A large reply is passed to the system piece by piece."""

import pytest

from holdfast.http_api.wire.reply import Bytes
from holdfast.http_api.wire.response_writer import _PIECE_BYTES, _pieces
from tests.support.api_server import Api


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([0], []),
        ([1], [1]),
        ([_PIECE_BYTES - 1, 1], [_PIECE_BYTES]),
        ([_PIECE_BYTES - 1, 2], [_PIECE_BYTES, 1]),
        ([_PIECE_BYTES], [_PIECE_BYTES]),
        ([3 * _PIECE_BYTES + 5, 0, 7], [_PIECE_BYTES] * 3 + [12]),
    ],
)
def test_pieces_are_full_but_the_last(sizes: list[int], expected: list[int]) -> None:
    parts: list[Bytes] = [bytes([number]) * size for number, size in enumerate(sizes)]
    pieces = list(_pieces(parts))
    assert [sum(map(len, piece)) for piece in pieces] == expected
    assert b"".join(each for piece in pieces for each in piece) == b"".join(parts)


@pytest.mark.parametrize("more", [-1, 0, 1, 3 * _PIECE_BYTES])
async def test_a_large_reply_arrives_completely(api: Api, more: int) -> None:
    size = _PIECE_BYTES + more
    await api.fill(size)
    path = "/v1/topics/orders/queues/0/messages?offset=0"
    batch = await api.get(path, Accept="application/vnd.holdfast.batch")
    assert batch.body.count(b"x") >= size
    assert (await api.get(path)).json()["messages"][0]["body"] == "x" * size
