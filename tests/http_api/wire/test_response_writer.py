"""A large reply is passed to the system piece by piece; a thread sends its first bytes."""

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.http_api.wire.reply import Bytes
from holdfast.http_api.wire.response_writer import _PIECE_BYTES, _THREAD_BYTES, _pieces
from tests.support.clients.raw_http import raw_connection, until
from tests.support.servers.api_server import Api, running_api

PATH = "/v1/topics/orders/queues/0/messages?offset=0&max_bytes=16000000"
BINARY = "application/vnd.holdfast.batch"
DESCRIPTORS = Path("/proc/self/fd")


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([0], []),
        ([1], [1]),
        ([_PIECE_BYTES - 1, 1], [_PIECE_BYTES]),
        ([_PIECE_BYTES - 1, 2], [_PIECE_BYTES, 1]),
        ([_PIECE_BYTES], [_PIECE_BYTES]),
        ([3 * _PIECE_BYTES + 5, 0, 7], [_PIECE_BYTES] * 3 + [12]),
    ],
)
def test_pieces_are_full_but_the_last(sizes: list[int], expected: list[int]) -> None:
    parts: list[Bytes] = [bytes([number]) * size for number, size in enumerate(sizes)]
    pieces = list(_pieces(parts))
    assert [sum(map(len, piece)) for piece in pieces] == expected
    assert b"".join(each for piece in pieces for each in piece) == b"".join(parts)


@pytest.mark.parametrize("more", [-1, 0, 1, 3 * _PIECE_BYTES])
async def test_a_large_reply_arrives_completely(api: Api, more: int) -> None:
    size = _PIECE_BYTES + more
    await api.fill(size)
    path = "/v1/topics/orders/queues/0/messages?offset=0"
    batch = await api.get(path, Accept="application/vnd.holdfast.batch")
    assert batch.body.count(b"x") >= size
    assert (await api.get(path)).json()["messages"][0]["body"] == "x" * size


class RecordedWrites:
    """Replaces os.writev: it records the thread of each call and sends at most `most` bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int, error: int = 0) -> None:
        self._writev, self._most, self._error = os.writev, most, error
        self.threads: list[threading.Thread] = []
        monkeypatch.setattr(os, "writev", self)

    def __call__(self, descriptor: int, parts: Sequence[Bytes]) -> int:
        self.threads.append(threading.current_thread())
        if self._error:
            raise OSError(self._error, os.strerror(self._error))
        return self._writev(descriptor, [b"".join(parts)[: self._most]])


@pytest.mark.parametrize("most", [1, 100, _PIECE_BYTES, 3 * _PIECE_BYTES, 16 * _PIECE_BYTES])
async def test_a_thread_sends_the_first_bytes_of_a_very_large_reply(
    api: Api, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """The event loop sends the bytes that the system did not accept from the thread."""
    await api.fill(_THREAD_BYTES + 1)
    expected = await api.get(PATH, Accept=BINARY)
    writes = RecordedWrites(monkeypatch, most)
    assert (await api.get(PATH, Accept=BINARY)).body == expected.body
    assert len(writes.threads) == 1 and writes.threads[0] is not threading.main_thread()
    assert (await api.get(PATH, Accept=BINARY)).body == expected.body, "the connection is usable"


async def test_a_full_socket_leaves_the_whole_reply_to_the_event_loop(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.fill(_THREAD_BYTES + 1)
    writes = RecordedWrites(monkeypatch, 0, errno.EAGAIN)
    assert (await api.get(PATH, Accept=BINARY)).body.count(b"x") > _THREAD_BYTES
    assert len(writes.threads) == 1


async def test_a_reply_leaves_without_a_thread_if_no_descriptor_is_left(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    await api.fill(_THREAD_BYTES + 1)
    writes = RecordedWrites(monkeypatch, 16 * _PIECE_BYTES)
    monkeypatch.setattr(os, "dup", refuse)
    assert (await api.get(PATH, Accept=BINARY)).body.count(b"x") > _THREAD_BYTES
    assert writes.threads == []


async def test_a_client_that_is_gone_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_api() as api:
        await api.fill(_THREAD_BYTES + 1)
        await api.session.close()
        writes = RecordedWrites(monkeypatch, 0, errno.EPIPE)
        request = f"GET {PATH} HTTP/1.1\r\nHost: x\r\nAccept: {BINARY}\r\n\r\n"
        async with raw_connection(api.server.port) as one:
            await one.send(request.encode())
            await until(lambda: writes.threads and not api.connections)


async def test_threads_leave_no_descriptors_open(api: Api) -> None:
    await api.fill(_THREAD_BYTES + 1)
    await api.get(PATH, Accept=BINARY)
    before = len(list(DESCRIPTORS.iterdir()))
    for _ in range(20):
        await api.get(PATH, Accept=BINARY)
    assert len(list(DESCRIPTORS.iterdir())) < before + 20
