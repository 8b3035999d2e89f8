"""The sending half of a connection: replies go out whole, and a client must take them.

The write buffer's limits are 0: writing is paused whenever the system has not taken all of a
reply, which only a slow client brings about. From then on the reply counts among those that wait
in memory, and its client must keep up a least pace.
"""

import asyncio
import fcntl
import select
import termios
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.http_api.client_address import UNKNOWN
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.pace import Pace
from holdfast.http_api.reply import Bytes

if TYPE_CHECKING:
    from holdfast.http_api.connections import Connections

#: So much is encrypted at once; then, as long as the client has not taken it, it is looked at
#: again, ever less often: TLS tells nobody when that is.
_TLS_PIECE_BYTES = 256 * 1024
_TLS_FIRST_PAUSE_S = 0.001
_TLS_LONGEST_PAUSE_S = 0.25


class Sending(asyncio.BufferedProtocol):
    """Writes replies on a transport that its other half has set, one at a time."""

    __slots__ = (
        "_config",
        "_connections",
        "_loop",
        "_pace",
        "_raw",
        "_sending_bytes",
        "_taken",
        "_write_deadline",
        "_write_timer",
        "_written_bytes",
        "client",
        "transport",
        "writing_paused",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, config: HttpConfig, connections: "Connections"
    ) -> None:
        self._loop = loop
        self._config = config
        self._connections = connections
        self._raw: asyncio.Transport | None = None
        """What carries the transport's TLS."""
        self._sending_bytes = 0
        self._written_bytes = 0
        self._pace: Pace | None = None
        self._write_deadline = 0.0
        self._write_timer: asyncio.TimerHandle | None = None
        self._taken: asyncio.Future[None] | None = None
        self.client = UNKNOWN
        """Whose connection it is, for limits that are counted per client."""
        self.transport: asyncio.Transport | None = None
        """None before the connection is made and once it is lost."""
        self.writing_paused = False
        """Whether the client has not taken all of its reply."""

    async def send(self, parts: Sequence[Bytes], size: int) -> None:
        """Write a whole reply of `size` bytes, then wait until the system has taken all of it.

        Raises ConnectionResetError when the client is gone.
        """
        transport = self.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client is gone")
        self._sending_bytes = self._written_bytes = size
        if self._raw is not None:
            await self._send_encrypted(parts, self._raw)
        else:
            if len(parts) == 1:
                transport.write(parts[0])
            else:
                transport.writelines(parts)
            if transport.is_closing():  # the system had heard that the client is gone
                raise ConnectionResetError("the client is gone")
        if self.writing_paused:
            self._taken = self._loop.create_future()
            await self._taken
            if self.transport is None:
                raise ConnectionResetError("the client is gone")

    async def _send_encrypted(self, parts: Sequence[Bytes], raw: asyncio.Transport) -> None:
        """Send piece by piece: what TLS has encrypted, its own flow control counts no more."""
        if _has_closed(raw):  # without a word, TLS says nothing of it until something is written
            raise ConnectionResetError("the client is gone")
        self._written_bytes = 0
        # Beside the reply a piece of it waits encrypted, with the library and with the transport.
        self._sending_bytes += 2 * min(self._sending_bytes, _TLS_PIECE_BYTES)
        try:
            for part in parts:
                for start in range(0, len(part), _TLS_PIECE_BYTES):
                    transport = self.transport
                    if transport is None:
                        raise ConnectionResetError("the client is gone")
                    piece = memoryview(part)[start : start + _TLS_PIECE_BYTES]
                    self._written_bytes += len(piece)
                    transport.write(piece)
                    await self._until_taken(raw)
        finally:
            self._end_behind()

    async def _until_taken(self, raw: asyncio.Transport) -> None:
        pause_s = _TLS_FIRST_PAUSE_S
        while raw.get_write_buffer_size() and self.transport is not None:
            if self._pace is None:
                self._begin_behind()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _TLS_LONGEST_PAUSE_S)

    def _has_untaken(self) -> bool:
        """Say whether the client's system has not confirmed all that was sent."""
        wire = self._raw or self.transport
        if wire is None:
            return False
        untaken = bytearray(4)
        fcntl.ioctl(wire.get_extra_info("socket").fileno(), termios.TIOCOUTQ, untaken)
        return any(untaken)

    def pause_writing(self) -> None:
        """The client has fallen behind: from now on it must keep a pace, and come to an end."""
        self.writing_paused = True
        self._begin_behind()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.writing_paused = False
        self._end_behind()
        self._tell_taken()

    def close(self) -> None:
        """Close once what was written has been sent."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close without sending what is still to be sent."""
        if self.transport is not None:
            self.transport.abort()

    def cut_off(self, reason: str) -> None:
        """Close at once a client that uses up what is there for all."""
        self._connections.closed_early[reason] += 1
        self._connections.log_seldom(
            reason, f"closed a connection of {self.client or 'a client'}: {reason}"
        )
        self._end_behind()
        self.abort()

    def _lost(self) -> None:
        """Let go of everything: nothing can be sent any more."""
        self.transport = self._raw = None
        self._end_behind()
        self._tell_taken()

    def _tell_taken(self) -> None:
        """Let `send` go on: its reply is taken, or will never be."""
        taken, self._taken = self._taken, None
        if taken is not None and not taken.done():
            taken.set_result(None)

    def _begin_behind(self) -> None:
        now = self._loop.time()
        self._write_deadline = now + self._config.write_timeout_ms / 1000
        self._pace = Pace(self._config.min_transfer_bytes_per_s, now, self._taken_bytes())
        self._await_progress(now)
        for slowest in self._connections.unsent.add(self, self.client, self._sending_bytes):
            slowest.cut_off("unsent-limit")

    def _end_behind(self) -> None:
        if self._pace is None:
            return
        self._pace = None
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        self._connections.unsent.discard(self)

    def _await_progress(self, now: float) -> None:
        self._write_timer = self._loop.call_at(
            min(now + self._config.transfer_grace_ms / 1000, self._write_deadline),
            self._check_progress,
        )

    def _check_progress(self) -> None:
        now = self._loop.time()
        assert self._pace is not None
        if now >= self._write_deadline or self._pace.is_too_slow(now, self._taken_bytes()):
            self.cut_off("slow-reader")
        else:
            self._await_progress(now)

    def _taken_bytes(self) -> int:
        """Return how much of the reply the system has taken."""
        wire = self._raw or self.transport
        return self._written_bytes - (wire.get_write_buffer_size() if wire is not None else 0)


def _has_closed(raw: asyncio.Transport) -> bool:
    """Say whether a client is gone, as far as the system has heard."""
    poll = select.poll()
    poll.register(raw.get_extra_info("socket").fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
