"""Reports to the service manager that started the process, in systemd's sd_notify protocol.

A report is one datagram to the socket that NOTIFY_SOCKET names. Without this variable nothing is
sent. A report that cannot be sent is logged; it never stops the broker.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Mapping

_logger = logging.getLogger(__name__)

#: Each report during a long start extends the time allowed for it by this much. The reports come
#: every few seconds, so only a broker whose event loop is blocked runs out of time.
START_EXTENSION_S = 60
_RETRY_S = 0.05  # until the service manager has read earlier reports


class ServiceManager:
    """The service manager of this process, if there is one. Belongs to one event loop.

    `environ` gives NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID. Every method may be called twice,
    and does nothing after `close`.
    """

    def __init__(self, environ: Mapping[str, str], pid: int | None = None) -> None:
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._socket: socket.socket | None = None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        self._watchdog_s = _watchdog_s(environ, os.getpid() if pid is None else pid)
        self._next_alive: asyncio.TimerHandle | None = None
        self._next_ready: asyncio.TimerHandle | None = None

    def extend_start(self, status: str) -> None:
        """Report that the start goes on. It may then take START_EXTENSION_S more."""
        self._send(f"EXTEND_TIMEOUT_USEC={START_EXTENSION_S * 1_000_000}\nSTATUS={status}")

    def ready(self, status: str) -> None:
        """Report that the broker serves requests. If the socket is full, report it again soon."""
        _cancel(self._next_ready)
        if not self._send(f"READY=1\nSTATUS={status}"):
            loop = asyncio.get_running_loop()
            self._next_ready = loop.call_later(_RETRY_S, self.ready, status)

    def stopping(self, reason: str) -> None:
        """Report that the broker begins to stop."""
        _cancel(self._next_ready)
        self._send(f"STOPPING=1\nSTATUS=stopping: {reason}")

    def start_watchdog(self) -> None:
        """Report that the event loop runs, at once and then twice within WATCHDOG_USEC.

        The reports come from the event loop itself: if it is blocked, they cease, and the service
        manager ends the process. Do nothing if the service manager has not asked for reports.
        """
        if self._next_alive is None:
            self._report_alive()

    def close(self) -> None:
        """Stop the reports, and close the socket."""
        _cancel(self._next_alive)
        _cancel(self._next_ready)
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _report_alive(self) -> None:
        if self._socket is None or self._watchdog_s is None:
            return
        self._send("WATCHDOG=1")
        loop = asyncio.get_running_loop()
        self._next_alive = loop.call_later(self._watchdog_s / 2, self._report_alive)

    def _send(self, report: str) -> bool:
        """Return False if the socket is full, so that the same report may be sent later."""
        if self._socket is None:
            return True
        try:
            self._socket.sendto(report.encode(), self._address)
        except BlockingIOError:
            return False
        except OSError as error:
            _logger.warning("cannot report to the service manager: %s", error)
        return True


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _address(text: str) -> str:
    """Return the address of the socket; "" if there is none, or if it is of another kind. An
    "@" at the beginning means a name in the abstract namespace, which begins with a zero byte."""
    if text.startswith("@") and len(text) > 1:
        return "\0" + text[1:]
    if text.startswith("/") and len(text) > 1:
        return text
    if text:
        _logger.warning("NOTIFY_SOCKET is not a path or an abstract name: nothing is reported")
    return ""


def _watchdog_s(environ: Mapping[str, str], pid: int) -> float | None:
    """Return within how many seconds the service manager wants a report; None if it wants none, or
    if the variables are meant for another process."""
    if environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    text = environ.get("WATCHDOG_USEC", "")
    return int(text) / 1_000_000 if text.isdecimal() and int(text) > 0 else None
