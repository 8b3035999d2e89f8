"""A plain connection: sends bytes unchanged, and reads the answers as they arrive."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class RawConnection:
    """One connection to a server under test."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Return the next complete answer: status, headers in lower case, body."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await self.reader.readexactly(int(fields.get("content-length", "0")))
        return int(head[0].split()[1]), fields, body

    async def closed(self) -> bytes:
        """Wait until the server closes the connection; return the bytes received before."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""


@asynccontextmanager
async def raw_connection(
    port: int, tls: ssl.SSLContext | None = None, *, address: str = "127.0.0.1"
) -> AsyncIterator[RawConnection]:
    """Connect from this address, with `tls` for the server name "localhost"."""
    name = "localhost" if tls is not None else None
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=tls, server_hostname=name, local_addr=(address, 0)
    )
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.close()


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition is true. It is checked in each iteration of the event loop."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)
