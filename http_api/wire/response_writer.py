"""The sending half of a connection: it writes replies, and cuts off clients that receive slowly.

The transport's write buffer has the limit 0, so asyncio pauses writing whenever the operating
system has not accepted the whole reply. That happens only with slow clients. From then on the reply
counts as unsent memory, and the client must receive with a minimum rate.
"""

import asyncio
import fcntl
import os
import select
import socket
import termios
from collections.abc import Iterable, Iterator, Sequence

from holdfast.consumequeue.thread_calls import call_in_thread
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.wire.connection_registry import Connections
from holdfast.http_api.wire.reply import Bytes
from holdfast.http_api.wire.request import UNKNOWN
from holdfast.http_api.wire.transfer_watch import TransferWatch

#: At most this many bytes of a reply are written in one loop iteration (about a millisecond).
_PIECE_BYTES = 1024 * 1024
#: The first bytes of a larger reply are sent by a thread. A thread costs about 0.1 ms, and copying
#: this many bytes to the kernel takes about 0.5 ms, during which no other client is served.
_THREAD_BYTES = 2 * 1024 * 1024
#: One system call sends at most this many buffers.
_MAX_BUFFERS = os.sysconf("SC_IOV_MAX")
#: At most this many bytes are encrypted in one step.
_TLS_PIECE_BYTES = 256 * 1024
#: TLS does not report when the operating system has accepted the bytes. So the broker checks this
#: again and again, with growing pauses.
_TLS_FIRST_PAUSE_S = 0.001
_TLS_LONGEST_PAUSE_S = 0.25


class ResponseWriter:
    """Writes replies, one at a time, to the transport of one connection."""

    __slots__ = ("_accepted", "_client", "_config", "_connections", "_loop", "_sending_bytes",
                 "_watch", "_written_bytes", "is_paused", "raw", "transport")  # fmt: skip

    def __init__(
        self, loop: asyncio.AbstractEventLoop, config: HttpConfig, connections: Connections
    ) -> None:
        self._loop = loop
        self._config = config
        self._connections = connections
        self.raw: asyncio.Transport | None = None
        """The TCP transport under TLS; None without TLS."""
        self._sending_bytes = 0
        self._written_bytes = 0
        self._watch: TransferWatch | None = None
        """Watches the current reply while its client is slow; otherwise None."""
        self._accepted: asyncio.Future[None] | None = None
        """Completed when the operating system has accepted the whole reply."""
        self.is_paused = False
        """Whether the operating system has not yet accepted the whole reply."""
        self._client = UNKNOWN
        self.transport: asyncio.Transport | None = None
        """None before the connection is made and after it is lost."""

    def attach(
        self, transport: asyncio.Transport, client: str, raw: asyncio.Transport | None
    ) -> None:
        """Write to this transport from now on. `raw` is the TCP transport under TLS."""
        self.transport, self._client, self.raw = transport, client, raw

    def detach(self) -> None:
        """Release the transport, and let `send` continue, because the connection is lost."""
        self.transport = self.raw = None
        self._stop_watch()
        self._complete_send()

    @property
    def is_open(self) -> bool:
        """Whether replies can be written: the connection is neither lost nor being closed."""
        return self.transport is not None and not self.transport.is_closing()

    async def send(self, parts: Sequence[Bytes], size: int, kept_bytes: int = 0) -> None:
        """Write a whole reply of `size` bytes, and wait until the operating system has accepted it.

        `kept_bytes` is further memory that is occupied until then; it is counted together with the
        reply. Raises ConnectionResetError if the client is gone.
        """
        transport = self.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client is gone")
        self._sending_bytes = size + kept_bytes
        self._written_bytes = size
        if self.raw is not None:
            await self._send_encrypted(parts, size, self.raw)
        elif size <= _PIECE_BYTES:
            _write(transport, parts)
        else:
            await self._send_large(transport, parts)
        if self.is_paused:
            await self.wait_until_accepted()

    def send_now(self, parts: Sequence[Bytes], size: int) -> bool:
        """Write a small reply without TLS as `send` does, but do not wait. If it returns True,
        the reply is written; while `is_paused` is set, await `wait_until_accepted`.

        Return False, and write nothing, if the reply is large or the connection has TLS. Then use
        `send`.
        Raises ConnectionResetError if the client is gone.
        """
        transport = self.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client is gone")
        if self.raw is not None or size > _PIECE_BYTES:
            return False
        self._sending_bytes = self._written_bytes = size
        _write(transport, parts)
        return True

    async def wait_until_accepted(self) -> None:
        """Wait until the operating system has accepted the reply. Call this only while `is_paused`
        is set. Raises ConnectionResetError if the client is gone."""
        self._accepted = self._loop.create_future()
        await self._accepted
        if self.transport is None:
            raise ConnectionResetError("the client is gone")

    async def _send_large(self, transport: asyncio.Transport, parts: Sequence[Bytes]) -> None:
        """Write a large reply piece by piece, one piece per loop iteration.

        The operating system or the transport copies each piece, which takes time. So a thread
        sends the first bytes of a very large reply: as many as the operating system accepts.
        """
        sent = await _send_in_thread(transport, parts) if self._written_bytes > _THREAD_BYTES else 0
        self._written_bytes = sent
        for piece in _pieces(_skip(parts, sent)):
            if self._written_bytes:
                await asyncio.sleep(0)
            if self.transport is None or transport.is_closing():
                raise ConnectionResetError("the client is gone")
            self._written_bytes += sum(map(len, piece))
            _write(transport, piece)

    async def _send_encrypted(
        self, parts: Sequence[Bytes], size: int, raw: asyncio.Transport
    ) -> None:
        """Encrypt and write a reply piece by piece.

        The flow control of asyncio's TLS ignores encrypted bytes, so this method waits after each
        piece until the operating system has accepted it.
        """
        if _has_closed(raw):  # TLS does not notice a client that vanished until it writes
            raise ConnectionResetError("the client is gone")
        self._written_bytes = 0
        # In addition to the reply, memory is needed for one encrypted piece in the TLS library and
        # for one in the transport.
        self._sending_bytes += 2 * min(size, _TLS_PIECE_BYTES)
        try:
            for part in parts:
                for start in range(0, len(part), _TLS_PIECE_BYTES):
                    transport = self.transport
                    if transport is None:
                        raise ConnectionResetError("the client is gone")
                    piece = memoryview(part)[start : start + _TLS_PIECE_BYTES]
                    self._written_bytes += len(piece)
                    transport.write(piece)
                    await self._wait_accepted(raw)
        finally:
            self._stop_watch()

    async def _wait_accepted(self, raw: asyncio.Transport) -> None:
        pause_s = _TLS_FIRST_PAUSE_S
        while raw.get_write_buffer_size() and self.transport is not None:
            if self._watch is None:
                self._start_watch()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _TLS_LONGEST_PAUSE_S)

    def limit_unsent(self, size: int) -> None:
        """Limit the bytes that the operating system buffers before it sends them.

        Bytes that are sent but not yet acknowledged do not count. So the limit does not reduce the
        throughput over a long distance.
        """
        wire = self.raw or self.transport
        if wire is not None:
            wire.get_extra_info("socket").setsockopt(
                socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, size
            )

    def has_unacknowledged_bytes(self) -> bool:
        """Return whether some bytes are not yet acknowledged by the client's system (TCP)."""
        wire = self.raw or self.transport
        if wire is None:
            return False
        count = bytearray(4)
        fcntl.ioctl(wire.get_extra_info("socket").fileno(), termios.TIOCOUTQ, count)
        return any(count)

    def pause(self) -> None:
        """Begin to enforce the minimum rate and the deadline, because the client is slow."""
        self.is_paused = True
        self._start_watch()

    def resume(self) -> None:
        """Let `send` continue, because the operating system has accepted all bytes."""
        self.is_paused = False
        self._stop_watch()
        self._complete_send()

    def half_close(self) -> None:
        """Show the client the end of the replies. With TLS, do nothing: TLS cannot half-close."""
        transport = self.transport
        if transport is not None and not transport.is_closing() and transport.can_write_eof():
            transport.write_eof()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def cut_off(self, reason: str) -> None:
        """Close immediately, because the client uses too much of a shared resource."""
        self._connections.closed_early[reason] += 1
        self._connections.log_seldom(
            reason, f"closed a connection of {self._client or 'a client'}: {reason}"
        )
        self._stop_watch()
        self.abort()

    def _complete_send(self) -> None:
        accepted, self._accepted = self._accepted, None
        if accepted is not None and not accepted.done():
            accepted.set_result(None)

    def _start_watch(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        self._watch = TransferWatch(
            self._loop,
            self._config,
            self._config.write_timeout_ms,
            self._accepted_bytes,
            lambda _: self.cut_off("slow-reader"),
            moved_before=self._accepted_bytes(),
        )
        for slowest in self._connections.unsent.add(self, self._client, self._sending_bytes):
            slowest.cut_off("unsent-limit")

    def _stop_watch(self) -> None:
        if self._watch is None:
            return
        self._watch.stop()
        self._watch = None
        self._connections.unsent.discard(self)

    def _accepted_bytes(self) -> int:
        """Return how many bytes of the reply the operating system has accepted."""
        wire = self.raw or self.transport
        return self._written_bytes - (wire.get_write_buffer_size() if wire is not None else 0)


def _write(transport: asyncio.Transport, parts: Sequence[Bytes]) -> None:
    if len(parts) == 1:
        transport.write(parts[0])
    else:
        transport.writelines(parts)
    if transport.is_closing():  # the operating system has noticed that the client is gone
        raise ConnectionResetError("the client is gone")


async def _send_in_thread(transport: asyncio.Transport, parts: Sequence[Bytes]) -> int:
    """Send as many bytes of `parts` as the operating system accepts without waiting, in a thread.
    Return their number; 0 if the transport has bytes of its own to send first.

    Call this only if nothing else writes to the transport meanwhile. After cancelling, it ends when
    the thread is done. Raises ConnectionResetError if the client is gone.
    """
    wire = transport.get_extra_info("socket")
    if wire is None or transport.get_write_buffer_size() or len(parts) > _MAX_BUFFERS:
        return 0
    try:
        # A descriptor of its own: if the transport closes meanwhile, the kernel may give the
        # number of the transport's descriptor to another client.
        descriptor = os.dup(wire.fileno())
    except OSError:  # all descriptors are in use
        return 0
    try:
        return await call_in_thread(os.writev, descriptor, parts)
    except BlockingIOError:
        return 0
    except OSError as error:
        raise ConnectionResetError("the client is gone") from error
    finally:
        os.close(descriptor)


def _skip(parts: Sequence[Bytes], size: int) -> Iterator[Bytes]:
    """Yield the bytes of `parts` after the first `size` bytes, without copying."""
    for part in parts:
        if size < len(part):
            yield memoryview(part)[size:] if size else part
        size = max(size - len(part), 0)


def _pieces(parts: Iterable[Bytes]) -> Iterator[list[Bytes]]:
    """Yield the bytes of `parts` in lists of buffers, without copying.

    The buffers of each list together have _PIECE_BYTES, except that the last list may have fewer.
    """
    piece: list[Bytes] = []
    room = _PIECE_BYTES
    for part in parts:
        start = 0
        while start < len(part):
            some = memoryview(part)[start : start + room]
            piece.append(some)
            start += len(some)
            room -= len(some)
            if not room:
                yield piece
                piece, room = [], _PIECE_BYTES
    if piece:
        yield piece


def _has_closed(raw: asyncio.Transport) -> bool:
    """Return whether the operating system knows that the client is gone."""
    poll = select.poll()
    poll.register(raw.get_extra_info("socket").fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
