"""A body of known length on its way: its connection receives it straight into one buffer.

What aiohttp's parser is fed becomes a chunk for each read, and the chunks are joined in the end:
of a body of a megabyte that is three copies. Here the parser has seen the head alone, together
with what came beside it; the rest is taken by its count and goes where it will stay.
"""

import asyncio
from collections.abc import Callable

import numpy as np


class ArrivingBody:
    """A Content whose buffer is made once a reader is ready for it; `read_on` is called then.

    Until then nothing is received. A body that nobody wants any more is dropped, by its count.
    """

    __slots__ = ("_begun", "_buffer", "_error", "_is_dropped", "_length", "_read_on", "_whole",
                 "total_bytes")  # fmt: skip

    def __init__(self, length: int, begun: bytes, read_on: Callable[[], None]) -> None:
        self._length = length
        self._begun = begun
        self._read_on = read_on
        self._buffer: memoryview | None = None
        self._whole: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self._is_dropped = False
        self.total_bytes = len(begun)

    # -- the connection's side -----------------------------------------------------------------

    @property
    def is_wanted(self) -> bool:
        """Whether what comes is to be received."""
        return self._buffer is not None or self._is_dropped

    def room(self, scratch: memoryview) -> memoryview:
        """Return where the next bytes go, which is not empty and not beyond the body's end."""
        if self._buffer is not None:
            return self._buffer[self.total_bytes :]
        assert self._is_dropped, "reading goes on before anybody is ready for it"
        return scratch[: self._length - self.total_bytes]

    def received(self, count: int) -> bool:
        """Note that so many bytes came; return whether that was all of it."""
        self.total_bytes += count
        if self.total_bytes < self._length:
            return False
        if self._whole is not None and not self._whole.done():
            self._whole.set_result(None)
        return True

    def drop(self) -> None:
        """Let go of what came, and of what comes."""
        self._buffer = None
        self._begun = b""
        self._is_dropped = True

    # -- the reader's side ---------------------------------------------------------------------

    def is_eof(self) -> bool:
        """Whether it is there as a whole."""
        return self.total_bytes == self._length

    def set_read_chunk_size(self, n: int) -> None:
        """Make the buffer, of the body's length in any case, and begin to receive."""
        if self.is_wanted:
            return
        # Not filled with zeros first, as a bytearray is.
        self._buffer = np.empty(self._length, dtype=np.uint8).data
        self._buffer[: len(self._begun)] = self._begun
        self._begun = b""
        self._read_on()

    async def wait_eof(self) -> None:
        """Wait until it is there as a whole. Raises what `set_exception` was told."""
        if self._error is not None:
            raise self._error
        if not self.is_eof():
            self._whole = asyncio.get_running_loop().create_future()
            await self._whole

    def read_nowait(self, n: int = -1) -> bytes | memoryview:
        """Return the whole body, nothing before it is there. Raises what `set_exception` was
        told."""
        if self._error is not None:
            raise self._error
        if self._buffer is None or not self.is_eof():
            return b""
        body, self._buffer = self._buffer, None
        return body.toreadonly()

    async def readany(self) -> bytes | memoryview:
        """Wait for all of it."""
        await self.wait_eof()
        return self.read_nowait()

    def set_exception(self, exc: BaseException) -> None:
        """End it with this, unless it is there as a whole."""
        if self.is_eof():
            return
        self._error = exc
        if self._whole is not None and not self._whole.done():
            self._whole.set_exception(exc)
