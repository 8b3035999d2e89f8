"""One connection of a blocking client: one request and its reply at a time."""

import os
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.client.errors import CertificateNotTrusted, ConnectionFailed
from holdfast.client.transport.http1 import ConnectionLost, ReplyParser
from holdfast.client.transport.requests import CONNECT_TIMEOUT_S
from holdfast.client.transport.target import Target
from holdfast.commitlog.lazy_import import import_at_first_use

if TYPE_CHECKING:
    import ssl
else:
    import_at_first_use(globals(), ssl="ssl")

_RECEIVED_BYTES = 64 * 1024
#: A buffer that is shorter than this is filled from a larger read, to save system calls.
_SHORT_BYTES = 8 * 1024
_TIMEVAL = struct.Struct("@ll")
#: Windows has these timeouts, but as a number of milliseconds.
_HAS_TIMEVAL = os.name == "posix"

#: Fills a buffer with the next bytes of a body. Raises the errors of the connection.
Fill = Callable[[memoryview], None]
#: Receives a body of a given size with the function that fills buffers.
ReceiveBody = Callable[[Fill, int], None]


class BlockingConnection:
    """A connection for one thread at a time; only `shut_down` may be called from any thread.

    The constructor raises CertificateNotTrusted or ConnectionFailed when it cannot connect.
    """

    def __init__(self, target: Target, connect_timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        self.idle_since_s = 0.0
        self._timeout_s = 0.0
        self._tls = target.tls is not None
        sock = None
        try:
            sock = socket.create_connection((target.host, target.port), connect_timeout_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if target.tls is not None:
                sock = target.tls.wrap_socket(sock, server_hostname=target.host)
            else:
                sock.settimeout(None)
        except OSError as error:
            if sock is not None:
                sock.close()
            if target.tls is not None and isinstance(error, ssl.SSLCertVerificationError):
                raise CertificateNotTrusted(target.url, error.verify_message) from error
            raise ConnectionFailed(target.url, str(error), maybe_executed=False) from error
        self._sock = sock

    def send(self, head: bytes, body: Sequence[bytes], quiet_timeout_s: float) -> None:
        """Send a request. `quiet_timeout_s` limits how long the connection may make no progress.

        Raises ConnectionLost, TimeoutError.
        """
        try:
            self._set_timeout(quiet_timeout_s)
            if sum(map(len, body)) <= _RECEIVED_BYTES:
                self._sock.sendall(b"".join((head, *body)))
            else:
                self._sock.sendall(head)
                for block in body:
                    self._sock.sendall(block)
        except (TimeoutError, BlockingIOError) as error:
            raise TimeoutError("the broker does not receive the request") from error
        except OSError as error:
            raise ConnectionLost(str(error), has_begun=False) from error

    def receive(
        self, quiet_timeout_s: float, receive_body: ReceiveBody | None = None
    ) -> ReplyParser:
        """Return the reply once it is complete.

        `receive_body` is called for the body of a successful reply, if the head gives its length.
        If it is called, it must receive the whole body; ignore the `body` of the result.
        Raises ConnectionLost, TimeoutError or MalformedReply.
        """
        reply = ReplyParser(leaves_body=receive_body is not None)
        sock = self._sock
        try:
            self._set_timeout(quiet_timeout_s)
            while True:
                space = reply.buffer()
                if space is None:
                    data = sock.recv(_RECEIVED_BYTES)
                    count, is_whole = len(data), bool(data) and reply.feed(data)
                else:
                    count = sock.recv_into(space)
                    is_whole = count > 0 and reply.advance(count)
                if is_whole or (not count and reply.feed_eof()):
                    if receive_body is not None and reply.unread_bytes is not None:
                        body = _BodySource(sock, reply.body, reply.unread_bytes, is_tls=self._tls)
                        receive_body(body.fill, len(reply.body) + reply.unread_bytes)
                    return reply
                if not count:
                    reason = "the connection ended before the reply did"
                    raise ConnectionLost(reason, has_begun=reply.has_begun)
        except (TimeoutError, BlockingIOError) as error:
            raise TimeoutError(f"no progress for {quiet_timeout_s:g} s") from error
        except OSError as error:
            raise ConnectionLost(str(error), has_begun=reply.has_begun) from error

    def _set_timeout(self, timeout_s: float) -> None:
        """Set how long a call may block.

        Without TLS, the timeouts of the operating system are used (except on Windows), because
        Python's own timeout needs a poll() for each call.
        """
        if timeout_s == self._timeout_s:
            return
        self._timeout_s = timeout_s
        if self._tls or not _HAS_TIMEVAL:
            self._sock.settimeout(timeout_s)
            return
        limit = _TIMEVAL.pack(int(timeout_s), int(timeout_s % 1 * 1e6))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def shut_down(self) -> None:
        """Shut down the connection, even while another thread uses it."""
        with suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket. May be repeated."""
        self._sock.close()


class _BodySource:
    """A body that is being received. `received` holds its first bytes, and `unread_bytes` is the
    number of bytes that follow."""

    def __init__(
        self, sock: socket.socket, received: bytes | memoryview, unread_bytes: int, *, is_tls: bool
    ) -> None:
        self._sock = sock
        # Without TLS, one call can fill a whole buffer. It returns early after the timeout.
        self._flags = 0 if is_tls else socket.MSG_WAITALL
        self._received = memoryview(received)
        self._unread_bytes = unread_bytes

    def fill(self, buffer: memoryview) -> None:
        """Fill the buffer with the next bytes. Raises ConnectionLost, OSError."""
        while len(buffer):
            count = min(len(buffer), len(self._received))
            if count:
                buffer[:count] = self._received[:count]
                self._received = self._received[count:]
            elif len(buffer) < _SHORT_BYTES:
                data = self._sock.recv(min(_SHORT_BYTES, self._unread_bytes))
                self._received = memoryview(data)
                self._count(len(data))
            else:
                count = self._sock.recv_into(buffer, 0, self._flags)
                self._count(count)
            buffer = buffer[count:]

    def _count(self, count: int) -> None:
        if not count:
            raise ConnectionLost("the connection ended before the reply did", has_begun=True)
        self._unread_bytes -= count
