"""Replies are parsed strictly, however their bytes are split."""

import pytest

from holdfast.client.transport.http1 import MalformedReply, ReplyParser, query_string, request_head


def fed(data: bytes, piece_bytes: int | None = None) -> ReplyParser | None:
    """Return the parsed reply of `data`, received in pieces; None if it is incomplete."""
    reply = ReplyParser()
    step = piece_bytes or max(1, len(data))
    at = 0
    while at < len(data):
        space = reply.buffer()
        if space is None:
            piece = data[at : at + step]
            is_whole = reply.feed(piece)
        else:
            piece = data[at : at + min(step, len(space))]
            space[: len(piece)] = piece
            is_whole = reply.advance(len(piece))
        at += len(piece)
        if is_whole:
            return reply
    return reply if reply.feed_eof() else None


HEAD = b"HTTP/1.1 200 OK\r\nHoldfast-Next-Offset: 5\r\n"
SIZED = HEAD + b"Content-Length: 11\r\n\r\nhello world"
CHUNKED = (
    HEAD
    + b"Transfer-Encoding: chunked\r\n\r\n"
    + b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nTrailer: t\r\n\r\n"
)
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + SIZED


@pytest.mark.parametrize("data", [SIZED, CHUNKED, INTERIM], ids=["sized", "chunked", "interim"])
@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 60, 1000])
def test_a_reply_is_complete_with_its_last_byte_however_it_is_split(
    data: bytes, piece_bytes: int
) -> None:
    # T8
    reply = fed(data, piece_bytes)
    assert reply is not None
    assert (reply.status, bytes(reply.body)) == (200, b"hello world")
    assert reply.headers["holdfast-next-offset"] == "5"
    assert reply.keeps_alive
    assert fed(data[:-1], piece_bytes) is None


def test_no_beginning_of_a_reply_is_complete() -> None:
    for end in range(len(SIZED)):
        assert fed(SIZED[:end]) is None, f"{end} bytes"


def test_a_reply_without_a_length_ends_with_its_connection() -> None:
    reply = fed(HEAD + b"\r\nhello world", 9)
    assert reply is not None
    assert (bytes(reply.body), reply.keeps_alive) == (b"hello world", False)


@pytest.mark.parametrize("status", [204, 304])
def test_replies_of_some_statuses_have_no_body(status: int) -> None:
    reply = fed(b"HTTP/1.1 %d X\r\nContent-Length: 5\r\n\r\n" % status)
    assert reply is not None
    assert (reply.status, reply.body) == (status, b"")


@pytest.mark.parametrize(
    "data",
    [
        SIZED + b"HTTP/1.1 200 OK\r\n",
        CHUNKED + b"x",
        SIZED.replace(b"\r\n", b"\r\nConnection: close\r\n", 1),
        SIZED.replace(b"HTTP/1.1", b"HTTP/1.0", 1),
    ],
    ids=["more than was asked", "more than was asked, chunked", "close", "1.0"],
)
def test_a_connection_with_excess_bytes_or_a_close_is_not_kept(data: bytes) -> None:
    reply = fed(data)
    assert reply is not None
    assert bytes(reply.body) == b"hello world"
    assert not reply.keeps_alive


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"HTTP/1.1 \xb2\xb2\xb2 OK\r\n\r\n",
        HEAD + b"Content-Length: +5\r\n\r\nhello",
        HEAD + b"Content-Length: 5_0\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: \xb2\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        HEAD + b"Content-Length: 99999999999999999999\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloo\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
        HEAD + b"Content-Length : 5\r\n\r\nhello",
        HEAD + b" Content-Length: 5\r\n\r\nhello",
        HEAD + b"nonsense\r\n\r\n",
        HEAD + b"x" * 70_000,
    ],
)
def test_an_ambiguous_reply_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedReply):
        fed(data)


def test_the_head_of_a_request_is_encoded() -> None:
    head = request_head("POST", "/v1/x?a=1", "Host: h\r\n", {"If-Match": '"7"'}, 5)
    assert head == (
        b'POST /v1/x?a=1 HTTP/1.1\r\nHost: h\r\nIf-Match: "7"\r\nContent-Length: 5\r\n\r\n'
    )


@pytest.mark.parametrize("value", ["a\r\nHost: other", "a\nb", "é", "\x00"])
def test_a_value_that_would_be_another_header_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="If-Match"):
        request_head("PUT", "/", "", {"If-Match": value}, None)


@pytest.mark.parametrize("target", ["/a HTTP/1.1\r\nHost: other", "/a b", "/a\nb", "/é", "/\x00"])
def test_a_target_that_would_be_another_request_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match="no request"):
        request_head("GET", target, "", None, None)


def test_parameters_are_quoted() -> None:
    assert query_string({}) == ""
    assert query_string({"n": 5, "offsets": "0:1,2:3"}) == "?n=5&offsets=0:1,2:3"
    assert query_string({"key": "ä b&c=d\r\n"}) == "?key=%C3%A4+b%26c%3Dd%0D%0A"
