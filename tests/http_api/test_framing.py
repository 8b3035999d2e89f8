"""Requests that two servers might cut apart in two ways: one answer, and the connection ends.

Each is sent with a whole request after it. Only if it were read otherwise would there be a second
answer, or something stored.
"""

import asyncio
import re
from collections.abc import Sequence

import pytest
from aiohttp.http_parser import HttpRequestParser, HttpRequestParserPy

from holdfast.http_api.framing import ParserMissing, check_parser
from tests.support.api_server import Api
from tests.support.raw_http import raw_connection

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
LINE = b"POST /v1/topics/orders/messages?queue=0 HTTP/1.1\r\nHost: x\r\n"
CHUNKED = LINE + b"Transfer-Encoding: chunked\r\n\r\n"


def post(head: bytes, body: bytes = b"x") -> bytes:
    return LINE + head + b"\r\n\r\n" + body


NO_CHUNK = b"0\r\n\r\n"

LENGTHS = {
    "a length and chunks": post(b"Content-Length: 5\r\nTransfer-Encoding: chunked", NO_CHUNK),
    "chunks and a length": post(b"Transfer-Encoding: chunked\r\nContent-Length: 5", NO_CHUNK),
    "the same length twice": post(b"Content-Length: 1\r\nContent-Length: 1"),
    "two lengths": post(b"Content-Length: 1\r\nContent-Length: 2"),
    "a list of lengths": post(b"Content-Length: 1, 1"),
    "a signed length": post(b"Content-Length: +1"),
    "a negative length": post(b"Content-Length: -1"),
    "a length beyond 64 bits": post(b"Content-Length: 18446744073709551617"),
    "a huge length": post(b"Content-Length: " + b"9" * 400),
    "a length in hexadecimal": post(b"Content-Length: 0x1"),
    "a length with an underscore": post(b"Content-Length: 1_0", b"x" * 10),
    "an empty length": post(b"Content-Length: "),
    "a length in two words": post(b"Content-Length: 1 1"),
}
CODINGS = {
    "a vertical tab before it": post(b"Transfer-Encoding: \x0bchunked", NO_CHUNK),
    "a vertical tab after it": post(b"Transfer-Encoding: chunked\x0b", NO_CHUNK),
    "chunked is not the last": post(b"Transfer-Encoding: chunked, identity", NO_CHUNK),
    "identity": post(b"Transfer-Encoding: identity", NO_CHUNK),
    "gzip, then chunked": post(b"Transfer-Encoding: gzip, chunked", NO_CHUNK),
    "chunked twice": post(b"Transfer-Encoding: chunked, chunked", NO_CHUNK),
    "two headers": post(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", NO_CHUNK),
    "two headers, one other": post(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x", NO_CHUNK),
    "an unknown one": post(b"Transfer-Encoding: xchunked", NO_CHUNK),
    "a quoted one": post(b'Transfer-Encoding: "chunked"', NO_CHUNK),
    "a Kelvin sign": post("Transfer-Encoding: chun\u212aed".encode(), NO_CHUNK),
    "a byte beyond ASCII": post(b"Transfer-Encoding: chunked\xa0", NO_CHUNK),
    "in HTTP/1.0": b"POST /v1/topics/orders/messages HTTP/1.0\r\nConnection: keep-alive\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n" + NO_CHUNK,
}
LINE_ENDS = {
    "a folded header": post(b"X: y\r\n Content-Length: 5\r\nContent-Length: 1"),
    "a folded coding": post(b"Transfer-Encoding:\r\n chunked", NO_CHUNK),
    "a bare line feed everywhere": b"GET /healthz HTTP/1.1\nHost: x\n\n",
    "a bare line feed in the head": post(b"X: y\nContent-Length: 1"),
    "a bare carriage return": post(b"X: y\rContent-Length: 1"),
    "a bare line feed at the end": LINE + b"Content-Length: 1\r\n\nx",
    "a space before the colon": post(b"Content-Length : 1"),
    "a tab before the colon": post(b"Content-Length\t: 1"),
    "a NUL in a value": post(b"X: a\0b\r\nContent-Length: 1"),
    "a NUL in a name": post(b"X\0: y\r\nContent-Length: 1"),
    "a header without a colon": post(b"X\r\nContent-Length: 1"),
    "a header without a name": post(b": y\r\nContent-Length: 1"),
    "a space before the first header": b"GET /healthz HTTP/1.1\r\n Host: x\r\n\r\n",
}
CHUNKS = {
    "an extension that ends in a line feed": CHUNKED + b"1;a\nx\r\nx\r\n0\r\n\r\n",
    "bare line feeds": CHUNKED + b"1\nx\n0\n\n",
    "a space after the size": CHUNKED + b"1 \r\nx\r\n0\r\n\r\n",
    "a size with 0x": CHUNKED + b"0x1\r\nx\r\n0\r\n\r\n",
    "a size with an underscore": CHUNKED + b"1_0\r\n" + b"x" * 16 + b"\r\n0\r\n\r\n",
    "a size beyond 64 bits": CHUNKED + b"10000000000000001\r\nx\r\n0\r\n\r\n",
    "a negative size": CHUNKED + b"-1\r\nx\r\n0\r\n\r\n",
    "more than its size": CHUNKED + b"1\r\nxx\r\n0\r\n\r\n",
    "a length in the trailer": CHUNKED + b"1\r\nx\r\n0\r\nContent-Length: 5\r\n\r\n",
}
REQUEST_LINES = {
    "no version": b"GET /healthz\r\n\r\n",
    "HTTP/2": b"GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n",
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/1.2": b"GET /healthz HTTP/1.2\r\nHost: x\r\n\r\n",
    "http in lower case": b"GET /healthz http/1.1\r\nHost: x\r\n\r\n",
    "a method in lower case": b"get /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "a NUL in the method": b"G\0T /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "a space in the path": b"GET /heal thz HTTP/1.1\r\nHost: x\r\n\r\n",
    "a NUL in the path": b"GET /heal\0thz HTTP/1.1\r\nHost: x\r\n\r\n",
    "a byte beyond ASCII in the query": b"GET /healthz?\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    "a fragment": b"GET /healthz#/../v1 HTTP/1.1\r\nHost: x\r\n\r\n",
    "no path": b"GET  HTTP/1.1\r\nHost: x\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /healthz HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "a port that is none": b"GET http://x:99999/healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "a host that is none": b"GET http://[::1/healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "another request's middle": b"\x00\x01 garbage\r\n\r\n",
}


async def everything(api: Api, sent: bytes, *, until_closed: bool = True) -> bytes:
    """Return all that is answered to `sent`, until the connection ends."""
    async with raw_connection(api.server.port) as connection, asyncio.timeout(10):
        await connection.send(sent)
        return await connection.closed()


def statuses(answers: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", answers)]


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(sent, id=f"{kind}: {what}")
        for kind, corpus in (
            ("length", LENGTHS),
            ("coding", CODINGS),
            ("line end", LINE_ENDS),
            ("chunk", CHUNKS),
            ("request line", REQUEST_LINES),
        )
        for what, sent in corpus.items()
    ],
)
async def test_what_can_be_read_in_two_ways_is_refused_and_ends_the_connection(
    api: Api, sent: bytes
) -> None:
    answers = await everything(api, sent + GET)
    assert statuses(answers) == [400], answers
    assert b"/problems/malformed-request" in answers
    assert api.store.publishes == []


UPGRADES: Sequence[bytes] = [
    b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAA\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\n\r\n",
]


@pytest.mark.parametrize("sent", UPGRADES)
async def test_an_upgrade_is_not_taken_and_nothing_is_read_after_it(api: Api, sent: bytes) -> None:
    answers = await everything(api, sent)
    assert statuses(answers) == [200]
    assert b"Connection: close" in answers
    assert statuses(await everything(api, sent + LINE + b"Content-Length: 1\r\n\r\nx")) == [200]
    assert api.store.publishes == []


@pytest.mark.parametrize("target", [b"evil:80", b"/healthz"])
async def test_connect_is_no_way_through(api: Api, target: bytes) -> None:
    sent = b"CONNECT " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n"
    answers = await everything(api, sent + GET)
    assert len(statuses(answers)) == 1
    assert statuses(answers)[0] in (400, 404, 405)


async def test_an_absolute_target_is_its_path(api: Api) -> None:
    sent = b"GET http://elsewhere/healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert statuses(await everything(api, sent)) == [200]


async def test_what_comes_before_what_is_malformed_is_not_carried_out_unanswered(api: Api) -> None:
    good = post(b"Content-Length: 1")
    answers = await everything(api, good + post(b"Content-Length: x"))
    assert statuses(answers)[-1] == 400
    assert statuses(answers).count(200) == len(api.store.publishes)


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/topics/orders/messages?queue=77 HTTP/1.1\r\nHost: x\r\n",
        b"POST /v1/topics/orders/messages?nothing=0 HTTP/1.1\r\nHost: x\r\n",
        b"POST /nothing HTTP/1.1\r\nHost: x\r\n",
        b"PUT /healthz HTTP/1.1\r\nHost: x\r\n",
    ],
)
async def test_the_body_of_a_refused_request_is_never_a_request(api: Api, head: bytes) -> None:
    hidden = LINE + b"Content-Length: 1\r\n\r\nx"
    sent = head + b"Content-Length: %d\r\n\r\n" % len(hidden) + hidden
    async with raw_connection(api.server.port) as connection, asyncio.timeout(10):
        await connection.send(sent + GET)
        status, fields, _ = await connection.answer()
        assert 400 <= status < 500
        if "connection" not in fields:  # the body was there, so the connection goes on behind it
            assert (await connection.answer())[0] == 200
    assert api.store.publishes == []


def test_without_the_parser_in_c_nothing_is_served() -> None:
    check_parser(HttpRequestParser)
    with pytest.raises(ParserMissing, match="AIOHTTP_NO_EXTENSIONS"):
        check_parser(HttpRequestParserPy)
