"""Requests and replies: the common part of the asyncio and the blocking transport."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.client.errors import BadReply, ConnectionFailed, api_error
from holdfast.client.transport.http1 import (
    ConnectionLost,
    MalformedReply,
    ReplyParser,
    query_string,
    request_head,
)
from holdfast.client.transport.retry import RetryLog, RetryPolicy, run_with_retries
from holdfast.client.transport.target import Target
from holdfast.commitlog.lazy_import import import_at_first_use

if TYPE_CHECKING:
    import json

    from holdfast.commitlog.format.batch_header import Buffer
else:
    import_at_first_use(globals(), json="json")

JSON = "application/json"
MSGPACK = "application/msgpack"
BATCH = "application/vnd.holdfast.batch"
#: The Accept header of a client that also reads merged blocks (the flag REBUILT).
REBUILT_BATCH = f"{BATCH}; rebuilt=1"

CONNECT_TIMEOUT_S = 10.0
#: How long the broker may take for a reply, in addition to the time for which a request asks the
#: broker to wait.
ANSWER_TIMEOUT_S = 10.0
#: A connection that was idle for longer than this is not used again, because the broker closes idle
#: connections after 75 s.
KEEPALIVE_S = 60.0

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,127}", re.ASCII)

T = TypeVar("T")
Body = bytes | Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Reply:
    """A successful reply. Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes | memoryview
    url: str

    def json(self, type_: type[T]) -> T:
        """Return the JSON body as `type_`. Raises BadReply if the body does not match."""
        return self._decode("json", type_)

    def msgpack(self, type_: type[T]) -> T:
        """Return the msgpack body as `type_`. Raises BadReply if the body does not match."""
        return self._decode("msgpack", type_)

    def _decode(self, form: str, type_: type[T]) -> T:
        import msgspec  # imported here because Spark's executors do not have it

        try:
            decoded: T = getattr(msgspec, form).decode(self.body, type=type_)
        except msgspec.DecodeError as error:
            raise BadReply(self.url, str(error)) from error
        return decoded

    def header(self, name: str) -> str | None:
        """Return a header's value; None if the header is missing."""
        return self.headers.get(name.lower())

    def header_int(self, name: str) -> int:
        """Return a header as a number. Raises BadReply if it is missing or not a number."""
        try:
            return int(self.headers[name.lower()])
        except (KeyError, ValueError) as error:
            raise BadReply(self.url, f"no number in the header {name}") from error


class Transport(ABC):
    """Sends requests to the broker at `url`, and retries them. A subclass sends a single attempt.

    `retry` is the policy for the requests that are sent without the parameter `retry`.
    """

    def __init__(
        self, target: Target, retry: RetryPolicy, retry_log: RetryLog | None = None
    ) -> None:
        self.url = target.url
        self.retry = retry
        self.retry_log = retry_log or RetryLog()
        self.target = target

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
        """Send a request, retry it as the policy allows, and return its reply.

        Set `safe` if the broker may execute the request twice without harm. `wait_s` is how long
        the request asks the broker to wait. Raises ApiError if the broker or a gateway reports a
        problem, ConnectionFailed if the connection is lost, BadReply if the API does not define
        such a reply, and ClientClosed.
        """
        head, blocks = encode_request(self.target, method, path, params, headers, body)

        async def once() -> Reply:
            try:
                parsed = await self._send_once(head, blocks, wait_s + ANSWER_TIMEOUT_S, safe=safe)
            except MalformedReply as error:
                raise BadReply(self.url, str(error)) from error
            except (ConnectionLost, OSError) as error:
                self.check_open()
                raise ConnectionFailed(self.url, str(error), maybe_executed=True) from error
            return _raise_for_status(Reply(parsed.status, parsed.headers, parsed.body, self.url))

        return await run_with_retries(
            once, retry or self.retry, safe=safe, clock=self, log=self.retry_log
        )

    @abstractmethod
    async def _send_once(
        self, head: bytes, blocks: Sequence[bytes], quiet_timeout_s: float, *, safe: bool
    ) -> ReplyParser:
        """Send a request once and return its complete reply.

        Raises MalformedReply, ConnectionLost or OSError. OSError is also raised if the connection
        makes no progress for `quiet_timeout_s`.
        """

    @abstractmethod
    def check_open(self) -> None:
        """Raise ClientClosed if the transport is closed."""

    @abstractmethod
    def now_s(self) -> float:
        """Return the time of a clock in seconds, for timeouts. The clock may stop while a reply
        waits until the caller reads it."""

    @abstractmethod
    async def call_blocking(self, function: Callable[[], T]) -> T:
        """Return the result of a function that may block, without blocking an event loop."""

    @abstractmethod
    async def pause(self, seconds: float) -> None:
        """Wait. If the client is closed meanwhile, ClientClosed may be raised, immediately or at
        the end of the time."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections; requests in flight end with ClientClosed. May be repeated."""


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
    path = target.prefix + path
    if params:
        path += query_string(params)
    return request_head(method, path, target.headers, headers, size), blocks


def _raise_for_status(reply: Reply) -> Reply:
    """Return the reply if its status is below 300.

    Otherwise raise the ApiError that the JSON body describes. A body that is not a JSON object does
    not come from a broker. For such a body raise BadReply if the status is below 500, otherwise an
    ApiError whose title is the beginning of the body (probably a gateway's error page).
    """
    if reply.status < 300:
        return reply
    problem = parse_problem(reply.body)
    if problem is None:
        text = bytes(reply.body[:200]).decode(errors="replace")
        if reply.status < 500:
            raise BadReply(reply.url, f"status {reply.status}: {text!r}")
        problem = {"type": "about:blank", "title": text}
    raise api_error(reply.status, problem, parse_retry_after(reply.header("Retry-After")))


def parse_problem(body: "Buffer") -> dict[str, Any] | None:
    """Return the JSON object in an error reply's body. Return None if the body is not one."""
    try:
        problem = json.loads(bytes(body))
    except ValueError:
        return None
    return problem if isinstance(problem, dict) else None


def parse_retry_after(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header. Return None if it is missing, or is a date (which
    brokers never send)."""
    try:
        seconds = float(value or "")
    except ValueError:
        return None
    return seconds if seconds >= 0 else None


def drop_none(**fields: T | None) -> dict[str, T]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def check_name(kind: str, name: str) -> str:
    """Return a topic's or group's name for use in a path.

    Raises ValueError for an invalid name, because such a name could change the path.
    """
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise ValueError(
            f"a {kind} is named by 1 to 127 letters, digits, dots, hyphens and underscores, "
            f"not {name!r}"
        )
    return name
