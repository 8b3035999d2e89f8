"""One aiohttp session to one broker: requests out, replies or errors back, with retries.

Everything that a reply can be is sorted out here: a problem becomes its ApiError, a lost
connection ConnectionFailed, anything else that is no answer of a broker BadReply.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
import msgspec
from aiohttp import payload
from aiohttp.abc import AbstractStreamWriter
from yarl import URL

from holdfast.client.errors import (
    BadReply,
    CertificateNotTrusted,
    ClientClosed,
    ConnectionFailed,
    api_error,
)
from holdfast.client.retry import RetryPolicy, retried
from holdfast.client.tls import TlsFiles

T = TypeVar("T")

JSON = "application/json"
MSGPACK = "application/msgpack"
BATCH = "application/vnd.holdfast.batch"

CONNECT_TIMEOUT_S = 10.0
#: How long the broker may take beyond what a pull asks it to wait.
ANSWER_TIMEOUT_S = 10.0

#: As large as a reply of small messages: the reader is paused seldom.
_READ_BUFFER_BYTES = 2 * 1024 * 1024
#: Below the broker's 75 s, so that an idle connection is given up here first.
_KEEPALIVE_S = 60.0

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,127}", re.ASCII)

_problem_decoder = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply that is no problem; `content_type` has no parameters."""

    status: int
    headers: Mapping[str, str]
    content_type: str
    body: bytes
    url: str

    def json(self, type_: type[T]) -> T:
        """Return the JSON body as `type_`; BadReply when it is something else."""
        return self._decoded(msgspec.json.decode, type_)

    def msgpack(self, type_: type[T]) -> T:
        """Return the msgpack body as `type_`; BadReply when it is something else."""
        return self._decoded(msgspec.msgpack.decode, type_)

    def _decoded(self, decode: Any, type_: type[T]) -> T:
        try:
            decoded: T = decode(self.body, type=type_)
        except msgspec.DecodeError as error:
            raise BadReply(self.url, str(error)) from error
        return decoded

    def header_int(self, name: str) -> int:
        """Return a header that the API promises, as a number; BadReply when it is none."""
        try:
            return int(self.headers[name])
        except (KeyError, ValueError) as error:
            raise BadReply(self.url, f"no number in the header {name}") from error


class Transport:
    """Sends requests to the broker at `url`. Belongs to one event loop; made without one.

    `retry` is what requests follow that bring no policy of their own.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None,
        retry: RetryPolicy,
        tls: TlsFiles | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        parsed = URL(self.url)
        if parsed.raw_user is not None or parsed.raw_password is not None:
            raise ValueError("a broker's address takes no user and no password; give a token")
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError(f"a broker's address looks like http://127.0.0.1:8711, not {url!r}")
        self.retry = retry
        self._token = None if token is None else checked_token(token)
        self._tls = tls.context() if tls is not None else None
        if self._tls is not None and parsed.scheme != "https":
            raise ValueError(f"files for TLS go with an address that begins https://, not {url!r}")
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | Sequence[bytes] | None = None,
        safe: bool = True,
        wait_s: float = 0.0,
        retry: RetryPolicy | None = None,
    ) -> Reply:
        """Send a request, again as the policy allows, and return its reply.

        `safe` says that running it twice does no harm; `wait_s` is how long the broker was
        asked to hold it. Raises ApiError, ConnectionFailed, BadReply or ClientClosed.
        """
        url = URL(self.url + path)
        if params:
            url = url.with_query(params)

        async def once() -> Reply:
            return await self._once(method, url, headers, body, wait_s)

        return await retried(once, retry or self.retry, safe=safe)

    async def _once(
        self,
        method: str,
        url: URL,
        headers: Mapping[str, str] | None,
        body: bytes | Sequence[bytes] | None,
        wait_s: float,
    ) -> Reply:
        session = self._open_session()
        timeout = aiohttp.ClientTimeout(
            sock_connect=CONNECT_TIMEOUT_S, sock_read=wait_s + ANSWER_TIMEOUT_S
        )
        data = body if isinstance(body, bytes | None) else _Blocks(body)
        try:
            async with session.request(
                method, url, headers=headers, data=data, timeout=timeout, allow_redirects=False
            ) as response:
                content = await response.read()
                reply = Reply(
                    response.status,
                    response.headers,
                    response.content_type,
                    content,
                    self.url,
                )
        except aiohttp.ClientConnectorCertificateError as error:
            reason = str(error.certificate_error)
            raise CertificateNotTrusted(self.url, reason) from error
        except aiohttp.ClientConnectorError as error:
            raise ConnectionFailed(self.url, str(error), maybe_executed=False) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if self._is_closed:
                raise ClientClosed from error
            reason = str(error) or type(error).__name__
            raise ConnectionFailed(self.url, reason, maybe_executed=True) from error
        if reply.status >= 300:
            raise _refusal(reply)
        return reply

    def _open_session(self) -> aiohttp.ClientSession:
        if self._is_closed:
            raise ClientClosed
        if self._session is None:
            headers = {"Accept-Encoding": "identity"}
            if self._token is not None:
                headers["Authorization"] = f"Bearer {self._token}"
            self._session = aiohttp.ClientSession(
                # Held pulls each keep a connection, so their number is the caller's affair.
                connector=aiohttp.TCPConnector(
                    limit=0, keepalive_timeout=_KEEPALIVE_S, ssl=self._tls or True
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=headers,
                read_bufsize=_READ_BUFFER_BYTES,
            )
        return self._session

    async def close(self) -> None:
        """Close all connections; requests under way end with ClientClosed. May be repeated."""
        self._is_closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None


class _Blocks(payload.Payload):
    """A request body of several blocks, written one after another and none copied.

    Can be sent more than once, which a retry needs.
    """

    def __init__(self, blocks: Sequence[bytes]) -> None:
        super().__init__(blocks, content_type=BATCH)
        self._size = sum(map(len, blocks))

    async def write(self, writer: AbstractStreamWriter) -> None:
        for block in self._value:
            await writer.write(block)

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        # The length announced is always the whole size.
        await self.write(writer)

    async def as_bytes(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return b"".join(self._value)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._value).decode(encoding, errors)


def _refusal(reply: Reply) -> Exception:
    try:
        problem = _problem_decoder.decode(reply.body)
    except msgspec.DecodeError:
        text = reply.body[:200].decode(errors="replace")
        if reply.status < 500:
            return BadReply(reply.url, f"status {reply.status}: {text!r}")
        # A gateway's own page in front of the broker.
        problem = {"type": "about:blank", "title": text}
    return api_error(reply.status, problem, _retry_after_s(reply.headers.get("Retry-After")))


def _retry_after_s(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header; its date form is not the broker's."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if seconds >= 0 else None


def checked_token(token: str) -> str:
    """Return a token as it goes into a header, without blanks around it.

    Raises ValueError for a text that is none; the error does not repeat it.
    """
    stripped = token.strip()
    if not stripped.isascii() or not stripped.isprintable() or not stripped or " " in stripped:
        raise ValueError(
            "the token is empty, or holds a blank or a sign that no token has; give it as "
            "'holdfast token create' printed it"
        )
    return stripped


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
