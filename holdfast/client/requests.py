"""What the API's requests are made through, whatever carries them: asyncio or blocking sockets.

Everything that a reply can be is sorted out here and in `reply`: a problem becomes its ApiError, a
lost connection ConnectionFailed, anything else that is no answer of a broker BadReply.
"""

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

from holdfast.client.http_wire import ReplyParser, query_string, request_head
from holdfast.client.reply import Reply, checked
from holdfast.client.retry import RetryPolicy, retried
from holdfast.client.target import Target

JSON = "application/json"
MSGPACK = "application/msgpack"
BATCH = "application/vnd.holdfast.batch"

CONNECT_TIMEOUT_S = 10.0
#: How long the broker may take beyond what a pull asks it to wait.
ANSWER_TIMEOUT_S = 10.0
#: Below the broker's 75 s, so that an idle connection is given up here first.
KEEPALIVE_S = 60.0

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,127}", re.ASCII)

Body = bytes | Sequence[bytes]


class Requests(Protocol):
    """A way to one broker, whose address is `url`: what the API's requests are made through."""

    url: str

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
        """Send a request, again as the policy allows, and return its reply.

        `safe` says that running it twice does no harm; `wait_s` is how long the broker was
        asked to hold it. Raises ApiError, ConnectionFailed, BadReply or ClientClosed.
        """
        ...

    def now_s(self) -> float:
        """Return a time that only goes on while requests do."""
        ...

    async def pause(self, seconds: float) -> None:
        """Wait. Raises ClientClosed, perhaps later, when the client is closed meanwhile."""
        ...

    async def close(self) -> None:
        """Close all connections; requests under way end with ClientClosed. May be repeated."""
        ...


class SentRequests(Requests):
    """Requests whose replies are checked, and that are sent again as the policy allows; a subclass
    sends each of them once. `retry` is what those follow that bring no policy of their own."""

    def __init__(self, target: Target, retry: RetryPolicy) -> None:
        self.url = target.url
        self.retry = retry
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
        """As in Requests."""
        head, blocks = _encoded(self._target, method, path, params, headers, body)

        async def once() -> Reply:
            parsed = await self._once(head, blocks, wait_s + ANSWER_TIMEOUT_S, safe=safe)
            return checked(Reply(parsed.status, parsed.headers, parsed.body, self.url))

        return await retried(once, retry or self.retry, safe=safe, waits=self)

    @abstractmethod
    async def _once(
        self, head: bytes, blocks: Sequence[bytes], quiet_timeout_s: float, *, safe: bool
    ) -> ReplyParser:
        """Send a request and return its reply, whole. It fails when nothing comes for so long."""


def _encoded(
    target: Target,
    method: str,
    path: str,
    params: Mapping[str, str | int] | None,
    headers: Mapping[str, str] | None,
    body: Body | None,
) -> tuple[bytes, Sequence[bytes]]:
    """Return a request's head, and its body's blocks."""
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


def checked_name(kind: str, name: str) -> str:
    """Return a topic's or group's name as it goes into a path.

    Raises ValueError for one that no broker takes, before it could become another path.
    """
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise ValueError(
            f"a {kind} is named by 1 to 127 letters, digits, dots, hyphens and underscores, "
            f"not {name!r}"
        )
    return name
