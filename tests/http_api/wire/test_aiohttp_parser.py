"""What the broker needs of aiohttp beyond its public API. Each assertion names what has changed."""

import asyncio
from typing import Any

import pytest
from aiohttp import EMPTY_PAYLOAD, HttpVersion11
from aiohttp.http_parser import HttpRequestParserPy

from holdfast.http_api.wire.aiohttp_parser import (
    MAX_HEADERS,
    MAX_LINE_BYTES,
    BadHttpMessage,
    HttpProcessingError,
    HttpRequestParser,
    LineTooLong,
    ParserMissing,
    check_parser,
    new_parser,
)
from holdfast.http_api.wire.request import Content

GET = b"GET /a?b=%2F HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
LENGTH = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


class Owner:
    """A connection as a body sees it. Any other attribute that aiohttp reads is an error."""

    connected = True

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self, resume_parser: bool = True) -> None:
        self.calls.append(f"resume {resume_parser}")


def parser_of(owner: Owner) -> HttpRequestParser:
    return new_parser(owner, asyncio.get_running_loop())


def fed(parser: HttpRequestParser, data: bytes) -> tuple[Any, Any]:
    """Feed bytes that hold exactly one head; return the head and the body."""
    ((message, content),) = parser.feed_data(data)[0]
    return message, content


async def test_feed_data_returns_messages_and_whether_the_protocol_changes() -> None:
    result = parser_of(Owner()).feed_data(GET)
    assert len(result) == 3, "feed_data() no longer returns (messages, is_upgraded, rest)"
    assert len(result[0]) == 1, "feed_data() no longer returns a message for a complete head"
    assert result[1] is False, "feed_data()[1] no longer says whether the protocol changes"


async def test_the_attributes_of_a_message() -> None:
    message, _ = fed(parser_of(Owner()), GET)
    expected = {
        "method": "GET",
        "path": "/a?b=%2F",
        "version": HttpVersion11,
        "raw_headers": ((b"Host", b"x"),),
        "should_close": False,
        "chunked": False,
    }
    for name, value in expected.items():
        assert getattr(message, name) == value, f"RawRequestMessage.{name} has changed"
    assert message.url.raw_query_string == "b=%2F", "RawRequestMessage.url is decoded"
    assert message.headers.getall("hOST") == ["x"], "RawRequestMessage.headers has changed"
    message, _ = fed(parser_of(Owner()), CHUNKED)
    assert message.chunked, "RawRequestMessage.chunked is not set for a chunked body"
    message, _ = fed(parser_of(Owner()), GET.replace(b"Host", b"Connection: close\r\nHost"))
    assert message.should_close, "RawRequestMessage.should_close ignores Connection: close"


async def test_a_request_without_a_body_has_the_empty_payload() -> None:
    _, content = fed(parser_of(Owner()), GET)
    assert content is EMPTY_PAYLOAD, "a request without a body has another body than EMPTY_PAYLOAD"
    for member in vars(Content):
        if not member.startswith("_"):
            assert hasattr(content, member), f"EMPTY_PAYLOAD.{member} is missing"
    assert content.is_eof(), "EMPTY_PAYLOAD is not complete"
    assert content.total_bytes == 0, "EMPTY_PAYLOAD.total_bytes is not 0"
    assert content.read_nowait() == b"", "EMPTY_PAYLOAD.read_nowait() does not return b''"


async def test_a_body_in_pieces() -> None:
    parser = parser_of(Owner())
    _, content = fed(parser, LENGTH % 4 + b"ab")
    for member in (*Content.__annotations__, *vars(Content)):
        if not member.startswith("_"):
            assert hasattr(content, member), f"StreamReader.{member} is missing"
    assert not content.is_eof(), "StreamReader.is_eof() is true before the end of the body"
    assert content.total_bytes == 2, "StreamReader.total_bytes does not count the received bytes"
    parser.feed_data(b"cd")
    assert content.is_eof(), "StreamReader.is_eof() is false at the end of the body"
    assert content.read_nowait() == b"abcd", "StreamReader.read_nowait() lost bytes"
    assert content.is_eof(), "StreamReader.is_eof() depends on what was read"


async def test_the_error_of_a_body() -> None:
    parser = parser_of(Owner())
    _, content = fed(parser, LENGTH % 4 + b"ab")
    waiting = asyncio.create_task(content.wait_eof())
    await asyncio.sleep(0)
    content.set_exception(KeyError("x"))
    with pytest.raises(KeyError):
        await asyncio.wait_for(waiting, 10)
    with pytest.raises(KeyError):
        await asyncio.wait_for(content.readany(), 10)
    with pytest.raises(KeyError):
        content.read_nowait()


async def test_the_parser_pauses_after_each_request() -> None:
    parser = parser_of(Owner())
    found = parser.feed_data(GET * 2)[0]
    assert len(found) == 1, "max_msg_queue_size=1 no longer pauses the parser after a request"
    found = parser.feed_data(b"")[0]
    assert len(found) == 1, "feed_data(b'') no longer continues with the bytes that were held back"


async def test_a_valid_request_survives_an_error_after_it() -> None:
    parser = parser_of(Owner())
    fed(parser, GET + b"nonsense\r\n\r\n")
    with pytest.raises(BadHttpMessage):
        parser.feed_data(b"")


async def test_a_paused_parser_holds_back_the_rest_of_a_body() -> None:
    parser = parser_of(Owner())
    _, content = fed(parser, CHUNKED)
    parser.pause_reading()
    parser.feed_data(b"1\r\nx\r\n1\r\ny\r\n0\r\n\r\n")
    assert not content.is_eof(), "pause_reading() no longer pauses before the rest of a body"
    for _ in range(3):
        parser.feed_data(b"")
    assert content.is_eof(), "feed_data(b'') no longer continues after pause_reading()"


async def test_a_body_pauses_and_resumes_its_connection() -> None:
    owner = Owner()
    parser = parser_of(owner)
    _, content = fed(parser, CHUNKED + b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
    assert "pause" in owner.calls, "a full body no longer calls pause_reading() of its connection"
    content.read_nowait()
    assert "resume True" in owner.calls, "a body that was read no longer calls resume_reading()"
    content.set_read_chunk_size(1 << 20)
    owner.calls.clear()
    parser.feed_data(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
    assert owner.calls == [], "set_read_chunk_size() no longer raises the limit of the buffer"


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"nonsense\r\n\r\n", BadHttpMessage),
        (b"GET /" + b"a" * MAX_LINE_BYTES + b" HTTP/1.1\r\n\r\n", LineTooLong),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * (MAX_HEADERS + 1) + b"\r\n", HttpProcessingError),
    ],
)
async def test_the_errors_of_the_parser(sent: bytes, error: type[HttpProcessingError]) -> None:
    with pytest.raises(error) as raised:
        parser_of(Owner()).feed_data(sent)
    assert isinstance(raised.value, HttpProcessingError), f"{error.__name__} has another base"
    assert isinstance(raised.value.message, str), "HttpProcessingError.message is missing"


async def test_compressed_bodies_are_not_decompressed() -> None:
    sent = (LENGTH % 1).replace(b"Host", b"Content-Encoding: gzip\r\nHost") + b"x"
    _, content = fed(parser_of(Owner()), sent)
    assert content.read_nowait() == b"x", "auto_decompress=False is ignored"


async def test_a_broken_chunk_becomes_the_error_of_its_body() -> None:
    parser = parser_of(Owner())
    _, content = fed(parser, CHUNKED)
    with pytest.raises(HttpProcessingError):
        parser.feed_data(b"zz\r\n")
    assert content.exception() is None or not content.is_eof(), "a broken body seems complete"


def test_the_broker_refuses_to_serve_without_the_c_parser() -> None:
    """Most request smuggling bugs were found in the parser written in Python."""
    assert HttpRequestParser is not HttpRequestParserPy, "aiohttp has no parser written in C"
    check_parser()
    with pytest.raises(ParserMissing, match="AIOHTTP_NO_EXTENSIONS"):
        check_parser(HttpRequestParserPy)
