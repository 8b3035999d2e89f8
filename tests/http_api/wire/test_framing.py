"""Requests that two servers might separate differently: one answer, then the connection ends.

Each is sent with a complete request after it. Only a wrong separation would cause a second answer
or a stored message.
"""

import asyncio
import re
from collections.abc import Sequence
from itertools import product

import pytest

from tests.support.cases import case
from tests.support.clients.raw_http import raw_connection
from tests.support.servers.api_server import Api, running_api

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
    "HTTP/0.9": b"GET /healthz HTTP/0.9\r\nHost: x\r\n\r\n",
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
    "HTTP/2 for a path that needs no more": b"GET /v1/topics HTTP/2.0\r\nHost: x\r\n\r\n",
    "another host in the target": b"GET http://y/healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "a user in the target": b"GET http://u@x/healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "another port in the target": b"GET http://x:81/healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "another scheme in the target": b"GET ftp://x/healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "no path": b"GET  HTTP/1.1\r\nHost: x\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /healthz HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "a port that is none": b"GET http://x:99999/healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "a host that is none": b"GET http://[::1/healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "another request's middle": b"\x00\x01 garbage\r\n\r\n",
}


async def everything(api: Api, sent: bytes, *, until_closed: bool = True) -> bytes:
    """Return all bytes that are answered to `sent`, until the connection ends."""
    async with raw_connection(api.server.port) as connection, asyncio.timeout(10):
        await connection.send(sent)
        return await connection.closed()


def statuses(answers: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", answers)]


AMBIGUOUS = {
    "length": LENGTHS,
    "coding": CODINGS,
    "line end": LINE_ENDS,
    "chunk": CHUNKS,
    "request line": REQUEST_LINES,
}


@pytest.mark.parametrize("kind", AMBIGUOUS)
async def test_ambiguous_requests_are_refused_and_end_the_connection(api: Api, kind: str) -> None:
    for what, sent in AMBIGUOUS[kind].items():
        with case(what):
            answers = await everything(api, sent + GET)
            assert statuses(answers) == [400], answers
            assert b"/problems/malformed-request" in answers
            assert api.publishes == []


UPGRADES: Sequence[bytes] = [
    b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAA\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\n\r\n",
]


@pytest.mark.parametrize("sent", UPGRADES)
async def test_an_upgrade_is_ignored_and_bytes_after_it_are_not_parsed(
    api: Api, sent: bytes
) -> None:
    answers = await everything(api, sent)
    assert statuses(answers) == [200]
    assert b"Connection: close" in answers
    assert statuses(await everything(api, sent + LINE + b"Content-Length: 1\r\n\r\nx")) == [200]
    assert api.publishes == []


@pytest.mark.parametrize("target", [b"evil:80", b"/healthz"])
async def test_connect_is_refused(api: Api, target: bytes) -> None:
    sent = b"CONNECT " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n"
    answers = await everything(api, sent + GET)
    assert len(statuses(answers)) == 1
    assert statuses(answers)[0] in (400, 404, 405)


TRAILERS = {
    "a trailer": CHUNKED + b"1\r\nx\r\n0\r\nX-Checksum: abc\r\n\r\n",
    "an announced one": LINE
    + b"Transfer-Encoding: chunked\r\nTrailer: X-Checksum\r\n\r\n0\r\nX-Checksum: abc\r\n\r\n",
    "one named as a size": CHUNKED + b"0\r\n0: 0\r\n\r\n",
    "one behind an extension": CHUNKED + b"1;a=b\r\nx\r\n00;c\r\nX: y\r\n\r\n",
}


@pytest.mark.parametrize("before", [b"", GET, CHUNKED + b"1\r\nx\r\n0\r\n\r\n"])
async def test_trailers_are_refused(before: bytes) -> None:
    # S6: the parser skips trailers, but a proxy may not
    async with running_api(orders=1) as api:
        for what, sent in TRAILERS.items():
            with case(what):
                answers = await everything(api, before + sent + GET)
                assert statuses(answers) == [*[200] * bool(before), 400], answers
                assert len(api.publishes) == (before.startswith(b"POST"))
            api.publishes.clear()


async def test_a_trailer_is_found_wherever_packets_end() -> None:
    sent = CHUNKED + b"1\r\nx\r\n0\r\nX"  # refused at this byte, without waiting for more
    async with running_api(orders=1) as api:
        for size in (1, 2, 3, 7, 64):
            with case(size):
                async with raw_connection(api.server.port) as connection, asyncio.timeout(10):
                    for at in range(0, len(sent), size):
                        await connection.send(sent[at : at + size])
                        for _ in range(5):
                            await asyncio.sleep(0)
                    assert statuses(await connection.closed()) == [400]
                assert api.publishes == []


@pytest.mark.parametrize("size", [1, 2, 3, 5, 11, 50, 64, 100, 1000])
async def test_chunked_bodies_one_after_another_are_accepted(api: Api, size: int) -> None:
    body = b"3;e=1\r\n0\r\n\r\n5\r\nhello\r\n000\r\n\r\n"
    one = CHUNKED + body
    known = post(b"Content-Length: 9", b"0\r\n\r\n1234")
    sent = one + one + known + one + GET + known + known + one + GET
    async with raw_connection(api.server.port) as connection, asyncio.timeout(30):
        for at in range(0, len(sent), size):
            await connection.send(sent[at : at + size])
            if size < 64:
                await asyncio.sleep(0)
        for _ in range(9):
            assert (await connection.answer())[0] == 200
    chunked, length = b"0\r\nhello", b"0\r\n\r\n1234"
    assert bodies_of(api) == [chunked, chunked, length, chunked, length, length, chunked]


@pytest.mark.parametrize("sent", [b"GET /healthz\r\n\r\n", b"GET /healthz HTTP/0.9\r\n\r\n"])
async def test_http_0_9_is_refused_also_if_no_bytes_follow(api: Api, sent: bytes) -> None:
    # S6: HTTP/0.9 has no headers, so nothing identifies the client of the request
    answers = await everything(api, sent)
    assert statuses(answers) == [400]
    assert b"HTTP/0.9" in answers


async def test_an_absolute_target_is_its_path(api: Api) -> None:
    for target in (b"http://x/healthz", b"http://X:80/healthz"):
        sent = b"\r\nGET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % target
        assert statuses(await everything(api, sent)) == [200]


async def test_a_bare_line_end_before_a_request_is_refused() -> None:
    get = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    async with running_api() as api:
        for end, is_behind in product([b"\n", b"\r", b"\r\n\n"], [False, True]):
            with case(end, is_behind):
                found = statuses(await everything(api, get * is_behind + end + get))
                assert found == [200] * is_behind + [400]


CLOSING = {
    "close": LINE + b"Connection: close\r\n",
    "HTTP/1.0": b"POST /v1/topics/orders/messages?queue=0 HTTP/1.0\r\n",
}
BODIES = {
    "length": b"Content-Length: 1\r\n\r\nx",
    "chunks": b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
}
BEHIND = {
    "a request": LINE + b"Content-Length: 1\r\n\r\ny",
    "the beginning of one": LINE,
    "the first byte of one": b"P",
    "what is none": b"nonsense\r\n\r\n",
    "what is another protocol": bytes(range(256)),
    "a line end": b"\r\n",
}


CLOSED = [
    pytest.param(CLOSING["close"] + BODIES["length"], id="close, length"),
    pytest.param(CLOSING["close"] + BODIES["chunks"], id="close, chunks"),
    pytest.param(CLOSING["HTTP/1.0"] + BODIES["length"], id="HTTP/1.0, length"),
]


def bodies_of(api: Api) -> list[bytes]:
    return [batch.body(0) for _, stored, _ in api.publishes for batch in stored]


@pytest.mark.parametrize("closing", CLOSED)
async def test_bytes_after_a_request_that_ends_the_connection_are_ignored(closing: bytes) -> None:
    """RFC 9112 section 9.6. The last byte of the request arrives together with these bytes."""
    async with running_api(orders=1) as api:
        for what, before, size in product(
            BEHIND, (b"", GET, LINE + BODIES["chunks"]), (1, 7, 64, 10_000)
        ):
            with case(what, before, size):
                answers = await pieces_answered(api, before + closing, BEHIND[what], size)
                assert statuses(answers) == [*[200] * bool(before), 200], answers
                assert answers.count(b"Connection: close") == 1
                assert bodies_of(api) == [b"x"] * (1 + before.startswith(b"POST"))
            api.publishes.clear()


async def pieces_answered(api: Api, sent: bytes, behind: bytes, size: int) -> bytes:
    """Send in pieces of `size`, the last byte of `sent` together with `behind`; return all bytes
    that are answered."""
    first = sent[:-1]
    pieces = [first[at : at + size] for at in range(0, len(first), size)]
    if size > len(first):
        pieces = [sent + behind]
    else:
        pieces.append(sent[-1:] + behind)
    async with raw_connection(api.server.port) as connection, asyncio.timeout(10):
        for piece in pieces:
            await connection.send(piece)
            await asyncio.sleep(0)
        return await connection.closed()


async def test_a_refused_request_that_ends_the_connection_is_answered_alone() -> None:
    heads = (
        (b"GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
        (b"GET /nothing HTTP/1.0\r\n\r\n", 404),
        (b"GET /healthz#/../v1 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    )
    async with running_api() as api:
        for what, (head, status) in product(BEHIND, heads):
            with case(what, head):
                assert statuses(await everything(api, head + BEHIND[what])) == [status]
                assert api.publishes == []


@pytest.mark.parametrize("before", [GET, LINE + BODIES["length"], LINE + BODIES["chunks"]])
async def test_requests_before_a_malformed_one_are_answered(before: bytes) -> None:
    malformed = (b"nonsense\r\n\r\n", LINE + b"Content-Length: x\r\n\r\n")
    async with running_api(orders=1) as api:
        for count, behind in product((1, 3, 4, 5, 9), malformed):
            with case(count, behind):
                answers = await everything(api, before * count + behind + GET)
                assert statuses(answers) == [*[200] * count, 400], answers
                assert len(api.publishes) == count * before.startswith(b"POST")
            api.publishes.clear()


async def test_a_request_before_a_malformed_one_is_not_done_without_a_reply(api: Api) -> None:
    good = post(b"Content-Length: 1")
    answers = await everything(api, good + post(b"Content-Length: x"))
    assert statuses(answers)[-1] == 400
    assert statuses(answers).count(200) == len(api.publishes)


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
        if "connection" not in fields:  # the body was complete, so the connection continues
            assert (await connection.answer())[0] == 200
    assert api.publishes == []
