"""The end of a chunked body, however the body is cut into packets."""

import random

import pytest

from holdfast.http_api.wire.chunk_walk import ChunkWalk, UnclearEnd

BEHIND = b"GET / HTTP/1.1\r\n\r\n"
BODIES = (
    b"0\r\n\r\n",
    b"1\r\nx\r\n0\r\n\r\n",
    b"00a;name=value\r\n0\r\n\r\n0\r\n\r\n\r\n000;x\r\n\r\n",
    b"FF\r\n" + b"\r\n" * 127 + b"0\r\n0\r\n\r\n",
    b"3\r\nabc\r\n" * 50 + b"0\r\n\r\n",
    b"".join(b"%x\r\n%s\r\n" % (n, b"\n" * n) for n in (*range(1, 80), *range(80, 1, -1)))
    + b"0\r\n\r\n",
    b"".join(b'%X;a="b"\r\n%s\r\n' % (n, b"0" * n) for n in range(1, 40)) + b"0\r\n\r\n",
    b"0001\r\nx\r\n00000000001\r\ny\r\n1\r\n0\r\n00000;x\r\n\r\n",
    b"1;" + b"e" * 64 + b"\r\nx\r\n1;" + b"e" * 65 + b"\r\nx\r\n1;\rx\r\ny\r\n0\r\n\r\n",
    b"2\r\n\r\n\r\n1\r\nx\r\n1\nxyz1\r\nx\r\n0\r\n\r\n",
)
UNCLEAR = (
    b"0\r\nX: y\r\n\r\n",
    b"0\r\n0: y\r\n\r\n",
    b"0\r\n\n",
    b"0\r\n \r\n",
    b"0\r\nGET / HTTP/1.1\r\n\r\n",
    b"x\r\n\r\n",
    b"\r\n\r\n",
    b"-1\r\nx\r\n",
    b"1;" + b"e" * 1100 + b"\r\nx\r\n0\r\n\r\n",
    b"1\r\nx\r\n" * 9 + b"x\r\n",
    b"1\r\nx\r\n" * 9 + b"0\r\n1\r\nx\r\n0\r\n\r\n",
)
SMALL_CHUNKS = (
    b"1\r\nx\r\n",
    b"3f\r\n" + b"x" * 63 + b"\r\n",
    b"3F\r\n" + b"x" * 63 + b"\r\n",
    b"001\r\nx\r\n",
    b"1;a\r\nx\r\n",
    b'00000002;name="value"\r\nxy\r\n',
    b"1\r\nx\r\n" + b"A;b\r\n" + b"y" * 10 + b"\r\n",
)


def end_of(data: bytes, sizes: list[int]) -> int:
    """Return the end of the body; the data is cut into packets of these sizes in turn."""
    walk, at = ChunkWalk(), 0
    while at < len(data):
        size = sizes[at % len(sizes)]
        end = walk.feed(data[at : at + size], 0)
        if end >= 0:
            return at + end
        at += size
    return -1


@pytest.mark.parametrize("body", BODIES)
def test_the_end_is_after_the_empty_line_wherever_packets_end(body: bytes) -> None:
    for size in (*range(1, 12), len(body), 10_000):
        assert end_of(body + BEHIND, [size]) == len(body), size
        assert ChunkWalk().feed(b"head" + body + BEHIND, 4) == 4 + len(body)
    for seed in range(50):
        choose = random.Random(seed)
        assert end_of(body + BEHIND, [choose.randint(1, 9) for _ in range(7)]) == len(body), seed
    for length in range(len(body)):
        assert ChunkWalk().feed(body[:length], 0) == -1


@pytest.mark.parametrize("body", UNCLEAR)
def test_other_bytes_after_the_last_chunk_are_unclear_wherever_packets_end(body: bytes) -> None:
    for size in (1, 2, 3, 4, 7, len(body)):
        with pytest.raises(UnclearEnd):
            end_of(body + BEHIND, [size])


@pytest.mark.parametrize(("count", "most"), [(299, 299), (300, 300), (301, 300)])
def test_the_memory_of_unread_chunks_has_an_upper_bound(count: int, most: int) -> None:
    walk = ChunkWalk()
    assert walk.feed(b"1\r\nx\r\n" * count, 0) == -1
    assert walk.chunk_memory == most * 100


@pytest.mark.parametrize("size", [1, 5, 63, 64, 300])
def test_chunks_of_any_size_are_counted_one_by_one(size: int) -> None:
    walk = ChunkWalk()
    for packet in range(1, 30):
        assert walk.feed(b"%x\r\n%s\r\n" % (size, b"\n" * size) * 10, 0) == -1
        assert walk.chunk_memory == packet * 10 * 100


@pytest.mark.parametrize("chunk", SMALL_CHUNKS)
def test_many_small_chunks_are_skipped_at_once(chunk: bytes) -> None:
    steps = 0

    class CountedWalk(ChunkWalk):
        def _begin_chunk(self, line: bytes) -> None:
            nonlocal steps
            steps += 1
            super()._begin_chunk(line)

    walk = CountedWalk()
    body = chunk * (128 * 1024 // len(chunk)) + b"0\r\n\r\n"
    for packet in range(0, len(body), 16 * 1024):
        end = walk.feed(body[packet : packet + 16 * 1024], 0)
    assert packet + end == len(body)
    # The first chunk, the last one, and the chunks that cross a packet border.
    assert steps <= 2 + 8
