"""Finds the end of a chunked body, and checks that only an empty line follows its last chunk. Pure.

aiohttp's parser silently skips trailers (headers after the last chunk). A proxy in front of the
broker may take them for ordinary headers, or for the next request. So this file reads the sizes of
the chunks a second time, to find the end of the body.

Small chunks are cheap to send, and a packet has room for many. One regular expression matches many
small chunks at once. A Python step for each chunk would take about seven times as long. The first
small chunk compiles the expressions (10 ms), because most brokers never get one.
"""

import re
from functools import cache
from itertools import islice

_LF = b"\n"
#: Chunks of fewer bytes than this are small. One match of _small_chunks() skips many small chunks.
_LARGE_CHUNK = 64
_SMALL_CHUNK = rb"0{0,8}(?:%s)" % b"|".join(
    rb"%x(?:;[^\r\n]{0,64})?\r\n.{%d}\r\n" % (size, size) for size in range(1, _LARGE_CHUNK)
)
#: At most 500 chunks per match: until a match ends, it uses about 100 bytes for each chunk.
_MANY_SMALL = rb"(?:%s){1,500}" % _SMALL_CHUNK
#: Maximum length in bytes of the line with a chunk's size in hexadecimal and its extensions.
_MAX_SIZE_LINE = 1024
#: Bytes of memory of a parsed chunk in addition to its data, until the chunk is read: a byte string
#: object, an offset object, and an entry in a list for each of the two.
_CHUNK_MEMORY = 100
#: An upper bound: the parser makes at most 257 chunks of a body that is not read, then it pauses.
_MAX_UNREAD_CHUNKS = 300


class UnclearEnd(Exception):
    """A chunk has no valid size, or more than an empty line follows the last chunk."""


class ChunkWalk:
    """A position in one chunked body. It starts at the body's first byte and `feed` advances it."""

    __slots__ = ("_chunk_count", "_is_last", "_is_small", "_left", "_line")

    def __init__(self) -> None:
        self._chunk_count = 0
        self._left = 0
        """How many bytes of the current chunk are missing, including the line end after it."""
        self._line = b""
        """The beginning of an incomplete line."""
        self._is_last = False
        self._is_small = False
        """Whether the current chunk is small. If so, the next chunks may be small, too."""

    @property
    def chunk_memory(self) -> int:
        """An upper bound of the memory that the chunks occupy until the body is read, in bytes.

        The data of the chunks is not included.
        """
        return _CHUNK_MEMORY * min(self._chunk_count, _MAX_UNREAD_CHUNKS)

    def feed(self, data: bytes, at: int) -> int:
        """Process the bytes of the body that begin at index `at` of `data`.

        Return the index after the end of the body, or -1 if `data` ends before the body does.
        Raises UnclearEnd.
        """
        size = len(data)
        while at < size:
            if self._left:
                step = min(self._left, size - at)
                self._left -= step
                at += step
                continue
            if self._is_small and not self._line:
                small = _small_chunks().match(data, at)
                if small is not None:
                    self._count_small(small)
                    at = small.end()
                    continue
            end = data.find(_LF, at) + 1
            self._line += data[at : end or size]
            if len(self._line) > _MAX_SIZE_LINE:
                raise UnclearEnd
            if self._is_last and not b"\r\n".startswith(self._line):
                raise UnclearEnd
            if not end:
                return -1
            at = end
            line, self._line = self._line, b""
            if self._is_last:
                return at
            self._begin_chunk(line)
        return -1

    def _count_small(self, small: re.Match[bytes]) -> None:
        left = _MAX_UNREAD_CHUNKS - self._chunk_count
        if left > 0:
            each = _one_small().finditer(small.string, small.start(), small.end())
            self._chunk_count += sum(1 for _ in islice(each, left))

    def _begin_chunk(self, line: bytes) -> None:
        try:
            size = int(line.partition(b";")[0].rstrip(b"\r\n"), 16)
        except ValueError:
            raise UnclearEnd from None
        self._chunk_count += 1
        self._is_last = size == 0
        self._is_small = 0 < size < _LARGE_CHUNK
        self._left = size + 2 if size > 0 else 0


@cache
def _one_small() -> re.Pattern[bytes]:
    return re.compile(_SMALL_CHUNK, re.DOTALL | re.IGNORECASE)


@cache
def _small_chunks() -> re.Pattern[bytes]:
    return re.compile(_MANY_SMALL, re.DOTALL | re.IGNORECASE)
