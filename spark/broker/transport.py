"""One keep-alive HTTP connection to the broker, with retries. Standard library only.

It runs on the driver and in every task, so it must not need packages that executors may lack. On
transient failures (no connection, 429, 502, 503, 504, and 507 for a publish) it retries, after
growing pauses with jitter or after Retry-After, for up to `retry_for_s`. So every request must be
safe to repeat, or its caller must accept at-least-once. Use it from one thread at a time.
"""

import http.client
import itertools
import json
import logging
import random
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from http.client import HTTPMessage
from typing import Any
from urllib.parse import urlencode, urlsplit

from holdfast.commitlog.format.batch_header import Buffer
from holdfast.spark.broker.block_receiver import BlockGatherer
from holdfast.spark.errors import (
    BrokerRefused,
    BrokerUnavailable,
    CertificateNotTrusted,
    ReplyMismatch,
)
from holdfast.spark.options.tls import NO_TLS_FILES, TlsFiles

_log = logging.getLogger("holdfast.spark")

RETRY_FOR_S = 60.0
TIMEOUT_S = 30.0  # for connecting, and for each wait for bytes
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_JSON = "application/json"
BATCH_TYPE = "application/vnd.holdfast.batch"
_CONNECTION_ERRORS = (OSError, http.client.HTTPException)
_RETRIED = frozenset({429, 502, 503, 504})
#: A 429 that is not retried: the caller continues without a lease.
NO_LEASES_LEFT = "/problems/too-many-read-leases"
_DISK_FULL = 507  # retried only for a publish, until the disk has room


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply of the broker. Callers of Transport only get replies with a success status."""

    status: int
    headers: HTTPMessage
    body: bytes
    blocks: Buffer | None = None
    """The body, if whole blocks were requested and not gathered; `body` is then empty."""

    def json(self) -> Any:
        """Return the decoded body. Raises ReplyMismatch if it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise ReplyMismatch(f"the broker's reply is not JSON: {error}") from error


@dataclass(frozen=True, slots=True)
class _Request:
    """A request, and the BlockGatherer for the blocks of its reply, if any."""

    method: str
    target: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: {"Accept": _JSON})
    gatherer: BlockGatherer | None = None


class Transport:
    """Sends requests to the broker at `url`. `close` may be called twice."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        retry_for_s: float = RETRY_FOR_S,
        timeout_s: float = TIMEOUT_S,
        tls: TlsFiles = NO_TLS_FILES,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = url
        self._parts = urlsplit(url)
        self._token = token
        self._tls = tls
        self._retry_for_s = retry_for_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._sleep = sleep
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Close the connection. The next request opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get(
        self,
        path: str,
        query: Mapping[str, object] | None = None,
        *,
        accept: str = _JSON,
        retry_for_s: float | None = None,
    ) -> Reply:
        """GET `path`. Raises BrokerRefused, BrokerUnavailable."""
        request = _Request("GET", _target(path, query), headers={"Accept": accept})
        return self._answer(request, retry_for_s)

    def get_blocks(self, path: str, query: Mapping[str, object], gatherer: BlockGatherer) -> Reply:
        """GET whole blocks, not yet verified. They are added to `gatherer` or, if they do not fit
        there, returned in `Reply.blocks`.

        Raises BrokerRefused, BrokerUnavailable.
        """
        headers = {"Accept": BATCH_TYPE}
        return self._answer(_Request("GET", _target(path, query), None, headers, gatherer))

    def put(self, path: str, content: object, *, if_match: str | None = None) -> Reply:
        """PUT a JSON body. Raises BrokerRefused, BrokerUnavailable."""
        headers = {"Accept": _JSON, "Content-Type": _JSON}
        if if_match is not None:
            headers["If-Match"] = if_match
        return self._answer(_Request("PUT", path, json.dumps(content).encode(), headers))

    def post(
        self, path: str, body: bytes, kind: str, query: Mapping[str, object] | None = None
    ) -> Reply:
        """POST a body of the content type `kind`. Also retries while the broker's disk is full.

        Raises BrokerRefused, BrokerUnavailable.
        """
        headers = {"Accept": _JSON, "Content-Type": kind}
        return self._answer(_Request("POST", _target(path, query), body, headers))

    def delete(self, path: str) -> Reply:
        """DELETE `path`, without retries. Raises BrokerRefused, BrokerUnavailable."""
        return self._answer(_Request("DELETE", path), 0)

    def _answer(self, request: _Request, retry_for_s: float | None = None) -> Reply:
        """Send a request, and retry for up to `retry_for_s`; None means the transport's default."""
        if retry_for_s is None:
            retry_for_s = self._retry_for_s
        if self._token is not None:
            named = {**request.headers, "Authorization": f"Bearer {self._token}"}
            request = replace(request, headers=named)
        started = self._clock()
        for attempt in itertools.count():
            try:
                return self._once(request)
            except _Again as again:
                pause_s = max(again.not_before_s, _pause_s(attempt))
                waited_s = self._clock() - started
                if waited_s + pause_s > retry_for_s:
                    raise BrokerUnavailable(self.url, waited_s, again.cause) from again
                _log.info(
                    "%s %s failed (%s), again in %.1f s",
                    request.method, request.target, again, pause_s,
                )  # fmt: skip
                self._sleep(pause_s)
        raise AssertionError("unreachable")

    def _once(self, request: _Request) -> Reply:
        kept = self._connection is not None
        try:
            reply = self._exchange(request)
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise CertificateNotTrusted(self.url, error.verify_message) from error
        except _CONNECTION_ERRORS as error:
            self.close()
            if not kept:
                raise _Again(f"{type(error).__name__}: {error}") from error
            # The broker may close a kept connection at any time, so try once with a new one.
            return self._once(request)
        if reply.status < 300:
            return reply
        refused = BrokerRefused(reply.status, _problem(reply))
        if _may_pass(request.method, refused):
            raise _Again(str(refused), _retry_after_s(reply.headers)) from refused
        raise refused

    def _exchange(self, request: _Request) -> Reply:
        """Send the request and return the reply, whatever its status."""
        if self._connection is None:
            self._connection = self._connect()
        target = self._parts.path + request.target
        self._connection.request(request.method, target, request.body, dict(request.headers))
        response = self._connection.getresponse()
        blocks: Buffer | None = None
        if request.gatherer is not None and response.status < 300:
            if response.length is None:
                blocks = response.read()
            else:
                blocks = request.gatherer.receive(partial(_fill, response), response.length)
        content = response.read()
        if response.will_close:
            self.close()
        return Reply(response.status, response.headers, content, blocks)

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname, self._parts.port
        assert host is not None  # options/address.py checked it
        if self._parts.scheme == "https":
            return http.client.HTTPSConnection(
                host, port, timeout=self._timeout_s, context=self._tls.context()
            )
        return http.client.HTTPConnection(host, port, timeout=self._timeout_s)


class _Again(Exception):
    """A transient failure. The earliest retry is in `not_before_s` seconds."""

    def __init__(self, cause: str, not_before_s: float = 0.0) -> None:
        super().__init__(cause)
        self.cause = cause
        self.not_before_s = not_before_s


def _target(path: str, query: Mapping[str, object] | None) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _may_pass(method: str, refused: BrokerRefused) -> bool:
    """Return True if the refusal is transient, so that the same request may soon succeed."""
    if refused.status == _DISK_FULL:
        return method == "POST"
    return refused.status in _RETRIED and refused.type != NO_LEASES_LEFT


def _fill(response: http.client.HTTPResponse, buffer: memoryview) -> None:
    """Fill the buffer with the next bytes. Raises IncompleteRead if the connection ends first."""
    while len(buffer):
        count = response.readinto(buffer)
        if count == 0:
            raise http.client.IncompleteRead(b"", len(buffer))
        buffer = buffer[count:]


def _problem(reply: Reply) -> dict[str, object]:
    """Return the problem+json of a refusal, or a problem with the status text if there is none."""
    if "json" in (reply.headers.get("Content-Type") or ""):
        try:
            problem = json.loads(reply.body)
        except ValueError:
            problem = None
        if isinstance(problem, dict):
            return problem
    return {"title": http.client.responses.get(reply.status, "unknown status")}


def _retry_after_s(fields: HTTPMessage) -> float:
    """Return Retry-After in seconds; 0 if it is absent or a date (the broker never sends a
    date)."""
    text = fields.get("Retry-After") or ""
    return float(text) if text.isascii() and text.isdecimal() else 0.0


def _pause_s(attempt: int) -> float:
    """Return the pause after a failed attempt. It doubles with each attempt up to a maximum, and
    half of it is random."""
    longest_s: float = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(attempt, 16))
    return longest_s * random.uniform(0.5, 1.0)  # noqa: S311  jitter, not a secret
