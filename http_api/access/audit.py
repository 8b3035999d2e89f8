"""The audit log: who did what to the broker, one JSON object per line. FORMAT.md shows a line.

A thread writes the log, so callers never wait. If a line cannot be written to the file, the logger
`holdfast.audit` logs it. Lines are not synced: a power failure may lose the newest lines. No line
contains a secret: a token appears as its id, a request as its path without the query.
"""

import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from time import time
from types import MappingProxyType

import msgspec

from holdfast.commitlog.disk.owned_files import open_file
from holdfast.http_api.access.authorization import Denied
from holdfast.http_api.access.grants import Principal
from holdfast.http_api.access.tokens import redact_secrets
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.reply import Reply
from holdfast.http_api.wire.request import Request

_logger = logging.getLogger("holdfast.audit")

#: At most this many lines wait for the disk. Further lines are counted but not written.
MAX_WAITING = 10_000
#: `tail` reads at most this much of each file.
TAIL_BYTES = 256 * 1024


def audit_line(
    now_s: float,
    act: str,
    about: str,
    outcome: str,
    principal: str,
    client: str,
    details: Mapping[str, object],
) -> bytes:
    """Return one event as a line of JSON, with a line end. Pure."""
    at = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds")
    event = {
        "time": at.replace("+00:00", "Z"),
        "act": act,
        "object": about,
        "outcome": outcome,
        "principal": principal,
        "client": client,
        **details,
    }
    return msgspec.json.encode(event, enc_hook=str) + b"\n"


class AuditFile:
    """The audit file and the rotated older files. audit.log.1 is the newest rotated file.

    The file is opened for each write, so other processes may also write to it, or move it. All
    methods block.
    """

    def __init__(self, path: Path, max_bytes: int, max_files: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._max_files = max_files

    def append(self, lines: bytes) -> None:
        """Append whole lines, and rotate the file if it has become too large. Raises OSError."""
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor = open_file(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            while lines:
                lines = lines[os.write(descriptor, lines) :]
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        if size >= self._max_bytes:
            self._rotate()

    def tail(self, most: int) -> list[bytes]:
        """Return the newest whole lines, newest first: at most `most`, and only those in the last
        TAIL_BYTES of the file and of the newest rotated file. Raises OSError."""
        lines: list[bytes] = []
        for path in (self.path, self._rotated_path(1)):
            if len(lines) < most and os.path.lexists(path):
                lines += _last_lines(path)[::-1]
        return lines[:most]

    def _rotate(self) -> None:
        for number in range(self._max_files - 1, 0, -1):
            older = self._rotated_path(number)
            if os.path.lexists(older):
                older.rename(self._rotated_path(number + 1))
        self.path.rename(self._rotated_path(1))

    def _rotated_path(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


def _last_lines(path: Path) -> list[bytes]:
    descriptor = open_file(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        start = max(size - TAIL_BYTES, 0)
        content = os.pread(descriptor, TAIL_BYTES, start)
    finally:
        os.close(descriptor)
    lines = content.splitlines(keepends=True)
    if start:
        del lines[:1]  # it may lack its beginning
    return [each.rstrip(b"\n") for each in lines if each.endswith(b"\n")]


class AuditLog:
    """Accepts events and writes them in a thread. Only one thread may call `record` at a time."""

    def __init__(
        self,
        file: AuditFile,
        *,
        max_denied_per_second: int,
        now_s: Callable[[], float] = time,
    ) -> None:
        self._file = file
        self._max_denied = max_denied_per_second
        self._now_s = now_s
        self._waiting: queue.Queue[bytes | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._second = 0
        self._denied = 0
        self._not_named = 0
        self.lost = 0
        """How many lines were not written because too many lines were waiting."""

    def tail(self, most: int) -> list[bytes]:
        """Return the newest lines that are written, newest first. Blocks. Raises OSError."""
        return self._file.tail(most)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._write, name="holdfast-audit", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write all waiting lines, then end the thread. Blocks. May be called twice."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._count_not_named()
            self._waiting.put(None)
            thread.join()

    def record(
        self,
        act: str,
        about: str,
        *,
        outcome: str = "done",
        principal: str = "broker",
        client: str = "",
        details: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """Record an event; `details` become further JSON fields. Never waits and never fails."""
        line = audit_line(self._now_s(), act, about, outcome, principal, client, details)
        try:
            self._waiting.put_nowait(line)
        except queue.Full:
            if self.lost == 0:
                _logger.error("more events than the disk can write: some are only counted")
            self.lost += 1

    def denied(
        self, about: str, *, principal: str, client: str, details: Mapping[str, object]
    ) -> None:
        """Record a denied request. If this second's limit is reached, only count the request.

        One later line records how many requests were only counted.
        """
        second = int(self._now_s())
        if second != self._second:
            self._count_not_named()
            self._second, self._denied = second, 0
        self._denied += 1
        if self._denied > self._max_denied:
            self._not_named += 1
            return
        self.record(
            "request", about, outcome="denied", principal=principal, client=client, details=details
        )

    def _count_not_named(self) -> None:
        count, self._not_named = self._not_named, 0
        if count:
            details = {"count": count}
            self.record("request", "", outcome="denied", principal="several", details=details)

    def _write(self) -> None:
        while (line := self._waiting.get()) is not None:
            lines = [line]
            is_last = False
            while not self._waiting.empty():
                following = self._waiting.get()
                if following is None:
                    is_last = True
                    break
                lines.append(following)
            self._append(b"".join(lines))
            if is_last:
                return

    def _append(self, lines: bytes) -> None:
        try:
            self._file.append(lines)
        except OSError as error:
            _logger.error("%s cannot be written (%s): %s", self._file.path, error, lines.decode())


def record_denial(audit: AuditLog, request: Request, problem: Denied) -> None:
    """Record a denied request, whether it is administrative or not."""
    audit.denied(
        f"{request.method[:20]} {redact_secrets(request.url.raw_path)[:200]}",
        principal=problem.principal,
        client=request.peer.remote,
        details={"status": problem.kind.status, "reason": redact_secrets(problem.detail)},
    )


class AuditedRequest(msgspec.Struct):
    """Records the outcome of one authorized administrative request in the audit log.

    `act` names the request in the log; `path` has the parameters in its path.
    """

    audit: AuditLog
    request: Request
    act: str
    path: Mapping[str, str]
    principal: Principal

    def record_reply(self, reply: Reply) -> None:
        """Record that the act was done."""
        self._record("done", {"status": reply.status, **reply.note})

    def record_problem(self, problem: Problem) -> None:
        """Record that the act was refused or failed; it may have been partly done."""
        status = problem.kind.status
        outcome = "failed" if status >= 500 else "refused"
        self._record(outcome, {"status": status, "problem": problem.slug})

    def record_disconnect(self) -> None:
        """Record that the client disconnected before the reply.

        The act that has begun still completes.
        """
        self._record("begun, but its client went away", {})

    def _record(self, outcome: str, details: Mapping[str, object]) -> None:
        about = "/".join(self.path[name] for name in ("group", "topic") if name in self.path)
        self.audit.record(
            self.act,
            redact_secrets(about)[:300],
            outcome=outcome,
            principal=self.principal.name,
            client=self.request.peer.remote,
            details=details,
        )
