"""A gate at which the threads of a test work, pause and end together."""

import threading
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from tests.support.clients.broker_calls import Answer


class Gate:
    """Threads call `passes` before each step. The gate is open at first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_open = True
        self._is_over = False
        self._members = 0
        self._waiting = 0
        #: Whether the broker's disk is failing now. The broker may then answer 5xx to any request,
        #: and its acknowledgements are no promise: on a disk that loses power at this moment, an
        #: fdatasync that races with the shutdown of the file system may return 0 although its bytes
        #: are lost (seen on XFS without any broker). A real power loss also ends the process before
        #: it can acknowledge.
        self.disk_fails = False
        #: The number of disk failures so far. An answer from a failure may be seen only later.
        self.disk_failures = 0

    def enter(self) -> None:
        """Register the calling thread: `pause` waits for it."""
        with self._changed:
            self._members += 1

    def leave(self) -> None:
        """Unregister the calling thread."""
        with self._changed:
            self._members -= 1
            self._changed.notify_all()

    def passes(self) -> bool:
        """Wait during a pause. Return True to do another step, False to end."""
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_open or self._is_over)
            self._waiting -= 1
            return not self._is_over

    def wait(self, seconds: float) -> None:
        """Wait this many seconds, less if a pause or the end begins."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or not self._is_open, seconds)

    def close(self) -> None:
        """Let no thread begin another step."""
        with self._changed:
            self._is_open = False
            self._changed.notify_all()

    def pause(self, timeout_s: float = 60.0) -> None:
        """Close the gate; return once every registered thread has ended its step and waits."""
        self.close()
        with self._changed:
            paused = self._changed.wait_for(lambda: self._waiting == self._members, timeout_s)
            assert paused, f"{self._members - self._waiting} threads do not pause"

    def resume(self) -> None:
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()


class GateClient(threading.Thread):
    """A thread that sends HTTP requests to a broker until its first error, kept in `error`."""

    def __init__(self, name: str, url: str, gate: Gate) -> None:
        super().__init__(name=name, daemon=True)
        parts = urlsplit(url)
        assert parts.hostname
        self._address = (parts.hostname, parts.port)
        self._gate = gate
        self._connection: HTTPConnection | None = None
        self.timeout_s = 20.0
        self.error: BaseException | None = None

    def run(self) -> None:
        self._gate.enter()
        try:
            while self._gate.passes():
                self.turn()
        except BaseException as error:
            self.error = error
        finally:
            self._gate.leave()
            self._disconnect()

    def turn(self) -> None:
        """Do one step."""
        raise NotImplementedError

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> Answer | None:
        """Send a request and return its answer. For none, 429, 503, and any while the disk fails,
        wait a moment and return None."""
        try:
            if self._connection is None:
                self._connection = HTTPConnection(*self._address, timeout=self.timeout_s)
            fields = {name.replace("_", "-"): value for name, value in headers.items()}
            if body is not None:
                fields.setdefault("Content-Type", "application/json")
            self._connection.request(method, path, body, fields)
            response = self._connection.getresponse()
            raw = response.read()
        except (OSError, HTTPException):
            self._disconnect()
            self._gate.wait(0.02)
            return None
        if response.status in (429, 503) or self._gate.disk_fails:
            self._gate.wait(0.02)
            return None
        return Answer(response.status, dict(response.getheaders()), raw)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
