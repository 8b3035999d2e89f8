"""A body of known length that is arriving. Its connection receives it directly into one buffer.

With aiohttp's parser, each read becomes a chunk, and the chunks are joined at the end. For a body
of a megabyte, that makes three copies. Here the parser gets only the head and the bytes that
arrived with it. The remaining bytes are counted and received directly into the final buffer.
"""

import asyncio
from collections.abc import Callable

import numpy as np


class WholeBody:
    """A Content that arrived completely, together with its head."""

    __slots__ = ("_body", "total_bytes")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.total_bytes = len(body)

    def is_eof(self) -> bool:
        return True

    def read_nowait(self, n: int = -1) -> bytes:
        """Return the whole body; empty bytes if it was returned before."""
        body, self._body = self._body, b""
        return body

    async def readany(self) -> bytes:
        return self.read_nowait()

    async def wait_eof(self) -> None:
        """Return at once: the whole body has arrived."""

    def set_read_chunk_size(self, n: int) -> None:
        """Do nothing: the whole body has arrived."""

    def set_exception(self, exc: BaseException) -> None:
        """Do nothing: the whole body has arrived."""


class ArrivingBody:
    """A Content that makes its buffer when a reader is ready, and then calls `read_on`.

    The connection receives nothing before the reader is ready. If the body is no longer needed, it
    is dropped: its remaining bytes are counted and discarded.
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
        """Whether the connection should receive further bytes, to keep or to discard them."""
        return self._buffer is not None or self._is_dropped

    def room(self, scratch: memoryview) -> memoryview:
        """Return the buffer for the next bytes. It is never empty and ends where the body ends."""
        if self._buffer is not None:
            return self._buffer[self.total_bytes :]
        assert self._is_dropped, "bytes are received before a reader is ready"
        return scratch[: self._length - self.total_bytes]

    def received(self, count: int) -> bool:
        """Count `count` more received bytes. Return whether the body is now complete."""
        self.total_bytes += count
        if self.total_bytes < self._length:
            return False
        if self._whole is not None and not self._whole.done():
            self._whole.set_result(None)
        return True

    def drop(self) -> None:
        """Free the received bytes, and discard the bytes that still arrive."""
        self._buffer = None
        self._begun = b""
        self._is_dropped = True

    # -- the reader's side ---------------------------------------------------------------------

    def is_eof(self) -> bool:
        return self.total_bytes == self._length

    def set_read_chunk_size(self, n: int) -> None:
        """Make the buffer and begin to receive.

        The buffer has the body's length, whatever `n` is.
        """
        if self.is_wanted:
            return
        # Unlike bytearray, this does not fill the buffer with zeros first.
        self._buffer = np.empty(self._length, dtype=np.uint8).data
        self._buffer[: len(self._begun)] = self._begun
        self._begun = b""
        self._read_on()

    async def wait_eof(self) -> None:
        """Wait until the whole body has arrived. Raises the error of `set_exception`."""
        if self._error is not None:
            raise self._error
        if not self.is_eof():
            self._whole = asyncio.get_running_loop().create_future()
            await self._whole

    def read_nowait(self, n: int = -1) -> bytes | memoryview:
        """Return the whole body, or empty bytes if it has not arrived completely.

        Raises the error of `set_exception`.
        """
        if self._error is not None:
            raise self._error
        if self._buffer is None or not self.is_eof():
            return b""
        body, self._buffer = self._buffer, None
        return body.toreadonly()

    async def readany(self) -> bytes | memoryview:
        await self.wait_eof()
        return self.read_nowait()

    def set_exception(self, exc: BaseException) -> None:
        """Make the methods that read the body raise `exc`, unless the whole body has arrived."""
        if self.is_eof():
            return
        self._error = exc
        if self._whole is not None and not self._whole.done():
            self._whole.set_exception(exc)
