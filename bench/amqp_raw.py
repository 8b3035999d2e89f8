"""A client of AMQP that sends frames made in advance, over TCP. It costs as little as possible.

The client decodes the performatives that it gets, except transfers, of which it reports only the
arrival.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from holdfast.amqp.wire.frames import (
    AMQP_HEADER,
    HEADER_BYTES,
    SASL_FRAME,
    SASL_HEADER,
    cut,
    frame,
)
from holdfast.amqp.wire.performatives import (
    Attach,
    Begin,
    Open,
    SaslInit,
    decode_composite,
    encode_composite,
)

WINDOW = 2**31 - 1
_MAX_FRAME_BYTES = 1 << 20
_TRANSFER_CODE = 0x14
#: What the client reports for a transfer.
TRANSFER = object()


def encoded(*values: Any) -> bytes:
    """Return performatives as frames of channel 0."""
    return b"".join(frame(0, encode_composite(each)) for each in values)


def handshake(
    *attaches: Attach, container_id: str = "bench", idle_timeout_ms: int | None = None
) -> bytes:
    """Return what a client sends at first, up to the attaches of one session."""
    return b"".join((
        SASL_HEADER,
        frame(0, encode_composite(SaslInit("ANONYMOUS", b"")), SASL_FRAME),
        AMQP_HEADER,
        encoded(
            Open(container_id, idle_time_out=idle_timeout_ms),
            Begin(None, 0, WINDOW, WINDOW, handle_max=WINDOW),
            *attaches,
        ),
    ))  # fmt: skip


class RawClient(asyncio.Protocol):
    """One connection. `on_performative` gets each performative, or TRANSFER."""

    def __init__(self, octets: bytes, on_performative: Callable[["RawClient", Any], None]) -> None:
        """`octets` are sent when the connection exists."""
        self._octets = octets
        self._on_performative = on_performative
        self._rest = b""
        self.transport: asyncio.Transport

    @classmethod
    async def connect(
        cls, port: int, octets: bytes, on_performative: Callable[["RawClient", Any], None]
    ) -> "RawClient":
        """Connect to a port of this machine."""
        loop = asyncio.get_running_loop()
        make = lambda: cls(octets, on_performative)  # noqa: E731
        return (await loop.create_connection(make, "127.0.0.1", port))[1]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self._octets)
        self._octets = b""

    def data_received(self, data: bytes) -> None:
        data, at = self._rest + data, 0
        while True:
            if data.startswith(b"AMQP", at) and len(data) >= at + HEADER_BYTES:
                at += HEADER_BYTES
            is_header = False
            for each in cut(data, at, len(data), _MAX_FRAME_BYTES):
                at = each.end
                if each.start < each.end:
                    self._read(data, each.start, each.end)
                is_header = data.startswith(b"AMQP", at)
                if is_header:
                    break
            if not is_header:
                break
        self._rest = data[at:]

    def _read(self, data: bytes, start: int, end: int) -> None:
        if data[start + 2] == _TRANSFER_CODE:
            self._on_performative(self, TRANSFER)
        else:
            self._on_performative(self, decode_composite(data, start, end)[0])
