"""Requests that arrive over another protocol. The application of the HTTP API answers them.

The other protocol has authenticated the caller (`Peer.principal`). Everything else is as over HTTP:
the grants, the limits, the problems, the audit log, the access log and the metrics. The request
accepts only JSON, so no reply is a stream.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from holdfast.http_api.app import App
from holdfast.http_api.routing.codecs import JSON
from holdfast.http_api.wire.aiohttp_parser import (
    EMPTY_PAYLOAD,
    MAX_LINE_BYTES,
    HttpVersion11,
    RawRequestMessage,
    hdrs,
)
from holdfast.http_api.wire.body_buffer import WholeBody
from holdfast.http_api.wire.body_reader import ArrivingBytes, overloaded
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.reply import Reply, problem_reply
from holdfast.http_api.wire.request import Peer, Request

_METHOD = re.compile(r"[A-Z]{1,20}", re.ASCII)
#: A path and a query, percent-encoded: the visible characters of ASCII, except `#`.
_TARGET = re.compile(rf"/[!-\"$-~]{{0,{MAX_LINE_BYTES}}}", re.ASCII)


class _Memory:
    """Implements RequestSource. Counts the memory of one request, and later of its reply."""

    def __init__(self, arriving: ArrivingBytes, client: str, now: float) -> None:
        self._arriving, self._client, self._size = arriving, client, 0
        self.received_at = now

    def expect_body(self, *, sends_continue: bool) -> None:
        """Do nothing: the whole body has arrived."""

    def count_more(self, size: int) -> str | None:
        """Count `size` more bytes. Return None, or the name of the limit that refuses them."""
        refused = self._arriving.take(self, self._client, self._size + size)
        if refused is None:
            self._size += size
        return refused

    def release(self) -> None:
        """Stop counting."""
        self._arriving.release(self)


@asynccontextmanager
async def answer_inner(
    app: App, peer: Peer, method: str, target: str, body: bytes
) -> AsyncIterator[Reply]:
    """Answer one request; `target` is the path with the query, percent-encoded.

    The limits of arriving bytes count the reply until the context ends. The caller must call
    `on_undelivered` of the reply if the client does not get the reply. Errors are replies.
    """
    http = app.http
    now = asyncio.get_running_loop().time()
    memory = _Memory(http.connections.arriving, peer.client, now)
    try:
        if _METHOD.fullmatch(method) and _TARGET.fullmatch(target):
            reply = await app.answer(_request(peer, method, target, body, memory))
        else:
            reply = problem_reply(_malformed())
        refused = memory.count_more(reply.size)
        if refused is not None:
            reply.on_undelivered()
            reply = problem_reply(overloaded(refused, http.config))
        yield reply
    finally:
        memory.release()


def _request(peer: Peer, method: str, target: str, body: bytes, memory: _Memory) -> Request:
    headers = CIMultiDict({hdrs.ACCEPT: JSON})
    if body:
        headers[hdrs.CONTENT_TYPE] = JSON
        headers[hdrs.CONTENT_LENGTH] = str(len(body))
    message = RawRequestMessage(
        method, target, HttpVersion11, CIMultiDictProxy(headers), (),
        should_close=False, compression=None, upgrade=False, chunked=False,
        url=URL(target, encoded=True),
    )  # fmt: skip
    return Request(message, WholeBody(body) if body else EMPTY_PAYLOAD, peer, memory)


def _malformed() -> Problem:
    return Problem(
        "malformed-request",
        "the request is not a method, such as GET, and a path that begins with / and is "
        "percent-encoded; send both",
    )
