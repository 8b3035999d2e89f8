"""A blocking connection whose caller receives the body itself."""

import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.client.transport.blocking_connection import BlockingConnection, Fill
from holdfast.client.transport.http1 import ConnectionLost, ReplyParser
from holdfast.client.transport.target import Target

BODY = bytes(range(256)) * 1024


@contextmanager
def connected(reply: bytes, piece_bytes: int) -> Iterator[BlockingConnection]:
    """Yield a connection to a server that sends a reply in pieces, and then closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            sock, _ = listening.accept()
            with sock:
                sock.recv(65536)
                for at in range(0, len(reply), piece_bytes):
                    sock.sendall(reply[at : at + piece_bytes])

        thread = threading.Thread(target=serve)
        thread.start()
        connection = BlockingConnection(
            Target.parse(f"http://127.0.0.1:{listening.getsockname()[1]}", None, None)
        )
        try:
            connection.send(b"GET / HTTP/1.1\r\n\r\n", (), 30)
            yield connection
        finally:
            connection.close()
            thread.join()


def receive_in(connection: BlockingConnection, sizes: list[int]) -> tuple[ReplyParser, list[bytes]]:
    """Receive a reply, its body in pieces of these sizes, repeated."""
    pieces: list[bytes] = []

    def receive_body(fill: Fill, size: int) -> None:
        for wanted in itertools.cycle(sizes):
            if size == 0:
                return
            piece = bytearray(min(wanted, size))
            fill(memoryview(piece))
            pieces.append(bytes(piece))
            size -= len(piece)

    return connection.receive(30, receive_body), pieces


@pytest.mark.parametrize("sizes", [[1 << 20], [128, 50_000, 7], [1000], [8191, 8192, 8193]])
@pytest.mark.parametrize("piece_bytes", [999, 70_000, 1 << 20])
def test_the_caller_receives_the_body_into_its_own_buffers(
    sizes: list[int], piece_bytes: int
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-Name: a\r\n\r\n" % len(BODY)
    with connected(head + BODY, piece_bytes) as connection:
        reply, pieces = receive_in(connection, sizes)
    assert b"".join(pieces) == BODY
    assert (reply.status, reply.headers["x-name"], reply.keeps_alive) == (200, "a", True)


def test_a_body_that_ends_early_is_a_lost_connection() -> None:
    with (
        connected(b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + BODY, 5000) as connection,
        pytest.raises(ConnectionLost, match="before the reply did"),
    ):
        receive_in(connection, [128, 50_000])


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 410 Gone\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nhello",
    ],
    ids=["refused", "chunked", "ended"],
)
def test_bodies_of_other_replies_are_in_the_reply(head: bytes) -> None:
    with connected(head, 20) as connection:
        reply, pieces = receive_in(connection, [100])
    assert (reply.body, pieces) == (b"hello", [])
