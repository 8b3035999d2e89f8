"""One keep-alive HTTP connection to the broker, with retries.

It runs on the driver and in every task, so it must not need packages that executors may lack. On
transient failures (no connection, 429, 502, 503, 504, and 507 for a publish) it retries, after
growing pauses with jitter or after Retry-After, for up to `retry_for_s`. So every request must be
safe to repeat, or its caller must accept at-least-once. Use it from one thread at a time.
"""

import itertools
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import Any

from holdfast.client.errors import CertificateNotTrusted as ServerNotTrusted
from holdfast.client.errors import ConnectionFailed
from holdfast.client.transport.blocking_connection import BlockingConnection, Fill
from holdfast.client.transport.http1 import ConnectionLost, MalformedReply
from holdfast.client.transport.requests import (
    BATCH,
    JSON,
    encode_request,
    parse_problem,
    parse_retry_after,
)
from holdfast.client.transport.retry import RetryPolicy
from holdfast.client.transport.target import Target, TlsFiles, TlsFilesUnusable
from holdfast.commitlog.format.batch_header import Buffer
from holdfast.spark.broker.block_receiver import BlockGatherer
from holdfast.spark.errors import (
    BrokerRefused,
    BrokerUnavailable,
    CertificateNotTrusted,
    InvalidOption,
    ReplyMismatch,
)
from holdfast.spark.options.location import Address

_log = logging.getLogger("holdfast.spark")

RETRY_FOR_S = 60.0
TIMEOUT_S = 30.0  # for connecting, and for each wait for bytes
_RETRIED = frozenset({429, 502, 503, 504})
#: A 429 that is not retried: the caller continues without a lease.
NO_LEASES_LEFT = "/problems/too-many-read-leases"
_DISK_FULL = 507  # retried only for a publish, until the disk has room

Query = Mapping[str, str | int]
_Request = tuple[bytes, Sequence[bytes]]  # the head, and the body


@dataclass(frozen=True, slots=True)
class Reply:
    """A successful reply. Header names are lower case. `body` is None if a gatherer took it."""

    headers: Mapping[str, str]
    body: Buffer | None

    def json(self) -> Any:
        """Return the decoded body. Raises ReplyMismatch if it is not JSON."""
        try:
            return json.loads(bytes(self.body or b""))
        except ValueError as error:
            raise ReplyMismatch(f"the broker's reply is not JSON: {error}") from error


class Transport:
    """Sends requests to the broker at `address`. `close` may be called twice. A request
    may raise BrokerRefused, BrokerUnavailable or CertificateNotTrusted, or InvalidOption if a TLS
    file cannot be used."""

    def __init__(
        self,
        address: Address,
        *,
        retry_for_s: float = RETRY_FOR_S,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._address = address
        self._retry_for_s = retry_for_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._sleep = sleep
        self._connection: BlockingConnection | None = None

    def close(self) -> None:
        """Close the connection. The next request opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get(
        self,
        path: str,
        query: Query | None = None,
        *,
        accept: str = JSON,
        retry_for_s: float | None = None,
        gatherer: BlockGatherer | None = None,
    ) -> Reply:
        """Send a GET request. With a `gatherer`, the reply's blocks are added to it, not yet
        verified, or returned as the body if they do not fit into it."""
        return self._request(
            "GET", path, query, {"Accept": accept}, retry_for_s=retry_for_s, gatherer=gatherer
        )

    def put(self, path: str, content: object, *, if_match: str | None = None) -> Reply:
        headers = {"Accept": JSON, "Content-Type": JSON}
        if if_match is not None:
            headers["If-Match"] = if_match
        return self._request("PUT", path, None, headers, json.dumps(content).encode())

    def post(self, path: str, body: bytes, query: Query | None = None) -> Reply:
        """Send a POST request with encoded batches. Also retry while the broker's disk is full."""
        return self._request("POST", path, query, {"Accept": JSON, "Content-Type": BATCH}, body)

    def delete(self, path: str) -> Reply:
        """Send a DELETE request, without retries."""
        return self._request("DELETE", path, None, {"Accept": JSON}, retry_for_s=0)

    def _request(
        self,
        method: str,
        path: str,
        query: Query | None,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        retry_for_s: float | None = None,
        gatherer: BlockGatherer | None = None,
    ) -> Reply:
        """Send a request, and retry for up to `retry_for_s`; None means the transport's default."""
        request = encode_request(self._target, method, path, query, headers, body)
        retry = RetryPolicy(
            self._retry_for_s if retry_for_s is None else retry_for_s, first_pause_s=0.1
        )
        started = self._clock()
        for tries in itertools.count(1):
            try:
                return self._send_once(method, request, gatherer)
            except _TransientError as error:
                pause_s = max(error.retry_after_s, retry.backoff_s(tries))
                waited_s = self._clock() - started
                if retry.is_over(waited_s + pause_s):
                    raise BrokerUnavailable(self._address.url, waited_s, error.reason) from error
                _log.info("%s %s failed (%s), retry in %.1f s", method, path, error.reason, pause_s)
                self._sleep(pause_s)
        raise AssertionError("unreachable")

    def _send_once(self, method: str, request: _Request, gatherer: BlockGatherer | None) -> Reply:
        is_kept = self._connection is not None
        try:
            status, reply = self._exchange(request, gatherer)
        except ServerNotTrusted as error:
            raise CertificateNotTrusted(self._address.url, error.reason) from error
        except (ConnectionFailed, ConnectionLost, MalformedReply, OSError) as error:
            if is_kept:
                # The broker may close a kept connection at any time, so try once with a new one.
                return self._send_once(method, request, gatherer)
            cause = error.__cause__ or error
            raise _TransientError(f"{type(cause).__name__}: {cause}") from error
        if status < 300:
            return reply
        problem = parse_problem(reply.body or b"") or {"title": _PHRASES.get(status, "unknown")}
        refused = BrokerRefused(status, problem)
        if _is_transient(method, refused):
            retry_after_s = parse_retry_after(reply.headers.get("retry-after")) or 0.0
            raise _TransientError(str(refused), retry_after_s) from refused
        raise refused

    def _exchange(self, request: _Request, gatherer: BlockGatherer | None) -> tuple[int, Reply]:
        """Send a request and return status and reply. On any error, close the connection."""
        blocks: Buffer | None = None

        def receive_body(fill: Fill, size: int) -> None:
            nonlocal blocks
            assert gatherer is not None
            blocks = gatherer.receive(fill, size)

        try:
            if self._connection is None:
                self._connection = BlockingConnection(self._target, self._timeout_s)
            self._connection.send(*request, self._timeout_s)
            parsed = self._connection.receive(
                self._timeout_s, None if gatherer is None else receive_body
            )
        except BaseException:
            self.close()
            raise
        if not parsed.keeps_alive:
            self.close()
        body = parsed.body if parsed.unread_bytes is None else blocks
        return parsed.status, Reply(parsed.headers, body)

    @cached_property
    def _target(self) -> Target:
        """The broker's address and TLS context. Made here, because a driver may lack the files that
        its executors have."""
        address = self._address
        files = TlsFiles(address.ca_file, address.cert_file, address.key_file)
        try:
            return Target.parse(address.url, address.token, files)
        except TlsFilesUnusable as error:
            option = "caFile" if error.file == address.ca_file else "certFile"
            detail = f"{error.file} cannot be used on this machine: {error.reason}"
            raise InvalidOption(option, detail) from error
        except ValueError as error:
            raise InvalidOption("url", str(error)) from error


_PHRASES = {status.value: status.phrase for status in HTTPStatus}


@dataclass(eq=False)
class _TransientError(Exception):
    """A transient failure. Retry no earlier than after `retry_after_s` seconds."""

    reason: str
    retry_after_s: float = 0.0


def _is_transient(method: str, refused: BrokerRefused) -> bool:
    """Return True if the same request may soon succeed."""
    if refused.status == _DISK_FULL:
        return method == "POST"
    return refused.status in _RETRIED and refused.type != NO_LEASES_LEFT
