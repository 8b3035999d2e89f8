"""A real Connection over a transport in memory gives complete responses, however bytes are cut."""

import asyncio
import re
from collections.abc import Iterable
from typing import Any

from holdfast.http_api.config import HttpConfig
from holdfast.http_api.wire.body_reader import BodyReader
from holdfast.http_api.wire.connection import Connection
from holdfast.http_api.wire.connection_registry import Connections
from holdfast.http_api.wire.problems import problem_for
from holdfast.http_api.wire.reply import Reply, problem_reply
from holdfast.http_api.wire.request import Request

_CONFIG = HttpConfig(max_request_bytes=1000)
_ANSWER = re.compile(rb"HTTP/1\.1 (100|200|4\d\d) [^\r\n]+\r\n(?:[^\r\n]+\r\n)*\r\n")
_LENGTH = re.compile(rb"Content-Length: (\d+)")


class Wire(asyncio.Transport):
    """Records all written bytes; the feeder checks `reads_on` before each piece."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 5)})
        self.sent = b""
        self.reads_on = True
        self.is_closed = self.is_aborted = self.is_ended = False

    def write(self, data: Any) -> None:
        assert not self.is_ended, "something is sent behind the end"
        self.sent += bytes(data)

    def writelines(self, parts: Iterable[Any]) -> None:
        for each in parts:
            self.write(each)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_ended = True

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True

    def pause_reading(self) -> None:
        self.reads_on = False

    def resume_reading(self) -> None:
        self.reads_on = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0


def check_wire(data: bytes, piece_bytes: int) -> None:
    """Raise for any behaviour that a connection must not show with these bytes."""
    asyncio.run(_feed(data, piece_bytes))


async def _feed(data: bytes, piece_bytes: int) -> None:
    connections = Connections(_CONFIG)
    bodies = BodyReader(_CONFIG, connections.arriving)
    methods: list[str] = []

    async def answer(request: Request) -> Reply:
        methods.append(request.method)
        try:
            return Reply(200, "text/plain", [bytes(await bodies.read(request))])
        except Exception as error:  # as the application does
            return problem_reply(problem_for(error))
        finally:
            bodies.done(request)

    connection = Connection(answer, asyncio.get_running_loop(), _CONFIG, connections)
    wire = Wire()
    connection.connection_made(wire)
    left = memoryview(data)
    while left and wire.reads_on and not wire.is_closed:
        room = connection.get_buffer(-1)
        count = min(len(room), len(left), piece_bytes)
        room[:count] = left[:count]
        connection.buffer_updated(count)
        left = left[count:]
        # one event loop iteration to begin the answer, and some to wait for a body and to go on
        for _ in range(4):
            await asyncio.sleep(0)
    assert not wire.is_aborted, "a connection failed"
    _check_answers(wire.sent, methods)
    task = connection.task
    connection.connection_lost(None)
    if task is not None:
        await asyncio.wait([task], timeout=5)
        assert task.done()
    assert not connections.open
    assert connections.limits.count == 0
    assert connections.arriving.total_bytes == 0
    connections.abort_all()


def _check_answers(sent: bytes, methods: Iterable[str]) -> None:
    """Check that all responses are complete; the last one may answer bytes without a request."""
    methods = iter(methods)
    while sent:
        head = _ANSWER.match(sent)
        assert head, sent[:200]
        length = _LENGTH.search(head[0])
        size = int(length[1]) if length else 0
        sent = sent[head.end() :]
        if b" 100 " not in head[0][:16] and next(methods, None) == "HEAD":
            size = 0  # a response to HEAD has a length but no body
        assert len(sent) >= size
        sent = sent[size:]


def wire_seeds() -> list[bytes]:
    """Return connections with valid and with invalid requests."""
    get = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
    post = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
    chunks = (
        b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
    )
    return [
        get + post + chunks + get,
        post.replace(b"Host: x", b"Host: x\r\nExpect: 100-continue"),
        get.replace(b"Host: x", b"Connection: close") + get,
        post.replace(b"Content-Length: 5", b"Content-Length: 2000") + b"x" * 1995 + get,
        chunks.replace(b"2\r\nhi", b"zz\r\nhi") + get,
        b"\r\n\r\n" + get + b"nonsense\r\n\r\n",
        post.replace(b"POST", b"HEAD") + b"nonsense\r\n\r\n",
    ]
