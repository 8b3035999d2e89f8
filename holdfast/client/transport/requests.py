"""The interface for API requests, and the common code of its two implementations: over asyncio and
over blocking sockets.

A request returns the reply. It raises an ApiError if the broker or a gateway reports a problem,
ConnectionFailed if the connection is lost, and BadReply if the API does not define such a reply.
"""

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

from holdfast.client.transport.http1 import ReplyParser, query_string, request_head
from holdfast.client.transport.reply import Reply, raise_for_status
from holdfast.client.transport.retry import RetryPolicy, run_with_retries
from holdfast.client.transport.retry_log import RetryLog
from holdfast.client.transport.target import Target

JSON = "application/json"
MSGPACK = "application/msgpack"
BATCH = "application/vnd.holdfast.batch"

CONNECT_TIMEOUT_S = 10.0
#: How long the broker may take for a reply, in addition to the time for which a request asks the
#: broker to wait.
ANSWER_TIMEOUT_S = 10.0
#: A connection that was idle for longer than this is not used again, because the broker closes idle
#: connections after 75 s.
KEEPALIVE_S = 60.0

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,127}", re.ASCII)

Body = bytes | Sequence[bytes]


class Transport(Protocol):
    """Sends API requests to the broker at `url`. Retries are recorded in `retry_log`."""

    url: str
    retry_log: RetryLog

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        safe: bool = True,
        wait_s: float = 0.0,
        retry: RetryPolicy | None = None,
    ) -> Reply:
        """Send a request, with retries as the policy allows, and return its reply.

        Set `safe` if the broker may execute the request twice without harm. `wait_s` is how long
        the request asks the broker to wait. Raises ApiError, ConnectionFailed, BadReply or
        ClientClosed.
        """
        ...

    def now_s(self) -> float:
        """Return the time of a clock in seconds, for timeouts. The clock may stop while a reply
        waits until the caller reads it."""
        ...

    async def pause(self, seconds: float) -> None:
        """Wait. If the client is closed meanwhile, ClientClosed may be raised, at once or at the
        end of the time."""
        ...

    async def close(self) -> None:
        """Close all connections; requests in flight end with ClientClosed. May be repeated."""
        ...


class BaseTransport(Transport):
    """Checks replies and retries requests. A subclass provides `_send_once`, which sends a request
    one time. `retry` is the policy for requests without a policy of their own."""

    def __init__(
        self, target: Target, retry: RetryPolicy, retry_log: RetryLog | None = None
    ) -> None:
        self.url = target.url
        self.retry = retry
        self.retry_log = retry_log or RetryLog()
        self._target = target

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        safe: bool = True,
        wait_s: float = 0.0,
        retry: RetryPolicy | None = None,
    ) -> Reply:
        """Send a request. Implements `Transport.request`."""
        head, blocks = encode_request(self._target, method, path, params, headers, body)

        async def once() -> Reply:
            parsed = await self._send_once(head, blocks, wait_s + ANSWER_TIMEOUT_S, safe=safe)
            return raise_for_status(Reply(parsed.status, parsed.headers, parsed.body, self.url))

        return await run_with_retries(
            once, retry or self.retry, safe=safe, clock=self, log=self.retry_log
        )

    @abstractmethod
    async def _send_once(
        self, head: bytes, blocks: Sequence[bytes], quiet_timeout_s: float, *, safe: bool
    ) -> ReplyParser:
        """Send a request once and return its complete reply. Raises if the connection makes no
        progress for `quiet_timeout_s`."""


def encode_request(
    target: Target,
    method: str,
    path: str,
    params: Mapping[str, str | int] | None = None,
    headers: Mapping[str, str] | None = None,
    body: Body | None = None,
) -> tuple[bytes, Sequence[bytes]]:
    """Return a request's head and the blocks of its body."""
    blocks: Sequence[bytes]
    if body is None:
        blocks, size = (), None if method == "GET" else 0
    elif isinstance(body, bytes):
        blocks, size = (body,), len(body)
    else:
        blocks, size = body, sum(map(len, body))
    where = target.prefix + path
    if params:
        where += query_string(params)
    return request_head(method, where, target.headers, headers, size), blocks


def check_name(kind: str, name: str) -> str:
    """Return a topic's or group's name for use in a path.

    Raises ValueError for an invalid name, which could otherwise change the path.
    """
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise ValueError(
            f"a {kind} is named by 1 to 127 letters, digits, dots, hyphens and underscores, "
            f"not {name!r}"
        )
    return name
