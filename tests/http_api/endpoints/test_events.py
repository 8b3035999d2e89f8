"""H3: pulls and polls as streams of events (text/event-stream)."""

import asyncio
import gc
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.http_api.access.audit import AuditFile, AuditLog
from holdfast.http_api.app import BrokerStatus
from holdfast.http_api.endpoints.events import PIECE_BYTES
from holdfast.http_api.endpoints.held_read import QueueRead
from holdfast.http_api.wire.reply import StreamPiece
from holdfast.http_api.wire.response_writer import ResponseWriter
from tests.support.clients.raw_http import raw_connection
from tests.support.clients.tokens import access_of, bearer, make_token
from tests.support.event_loop.freed import freed
from tests.support.servers.api_server import Api, running_api
from tests.support.storage.stored import until

PULL = "/v1/topics/orders/queues/0/messages"
POLL = "/v1/topics/orders/messages"
ACCEPT = {"Accept": "text/event-stream"}


@dataclass(frozen=True, slots=True)
class Event:
    """A block of the stream, up to a blank line."""

    id: str = ""
    event: str = "message"
    data: Any = None
    comment: str = ""


class Stream:
    """The events of a reply, read one by one."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def block(self) -> Event | None:
        """Return the next block, or None at the end of the stream."""
        found = Event()
        async with asyncio.timeout(30):
            while line := (await self.response.content.readline()).decode().rstrip("\n"):
                name, _, value = line.partition(": ")
                if name in ("id", "event"):
                    found = replace(found, **{name: value})
                elif name == "data":
                    found = replace(found, data=msgspec.json.decode(value))
                elif name == "":
                    found = replace(found, comment=value)
        return None if found == Event() and self.response.content.at_eof() else found

    async def event(self) -> Event:
        """Return the next block with data."""
        while (found := await self.block()) is not None:
            if found.data is not None:
                return found
        raise AssertionError("the stream has ended")

    async def bodies(self, count: int) -> list[str]:
        return [(await self.event()).data["body"] for _ in range(count)]


@asynccontextmanager
async def streaming(api: Api, path: str, **headers: str) -> AsyncIterator[Stream]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with api.session.get(api.url + path, headers={**ACCEPT, **named}) as response:
        assert response.status == 200, await response.read()
        assert response.headers["Content-Type"] == "text/event-stream"
        yield Stream(response)


async def publish(api: Api, *bodies: str, queue: int = 0, **fields: object) -> None:
    await api.publish("orders", *({"body": body, "queue": queue, **fields} for body in bodies))


async def test_stored_and_new_messages_are_events(api: Api) -> None:
    await publish(api, "a", "b", key="k")
    async with streaming(api, f"{PULL}?from=earliest") as stream:
        first = await stream.event()
        assert (first.id, first.event) == ("0:1", "message")
        pulled = (await api.get(f"{PULL}?offset=0")).json()["messages"]
        assert first.data == pulled[0]
        assert (await stream.event()).id == "0:2"
        await api.held(1)
        await publish(api, "c\nd")
        event = await stream.event()
        assert (event.id, event.data["body"]) == ("0:3", "c\nd")
        assert stream.response.headers["Cache-Control"] == "no-cache"


async def test_a_client_resumes_after_its_last_event(api: Api) -> None:
    await publish(api, "a", "b", "c")
    async with streaming(api, f"{PULL}?from=earliest", Last_Event_ID="0:2") as stream:
        assert await stream.bodies(1) == ["c"]
    async with streaming(api, PULL, Last_Event_ID="0:1") as stream:
        assert await stream.bodies(2) == ["b", "c"]


async def test_a_stream_at_the_end_begins_with_its_offset(api: Api) -> None:
    """A client that is disconnected before the first message can then resume without a loss."""
    await publish(api, "a")
    async with streaming(api, f"{PULL}?from=latest") as stream:
        first = await stream.block()
        assert first is not None
        assert (first.id, first.data) == ("0:1", None)


async def test_a_poll_streams_all_queues_of_a_topic(api: Api) -> None:
    await publish(api, "a", "b", queue=0)
    await publish(api, "c", queue=1)
    async with streaming(api, f"{POLL}?from=earliest") as stream:
        events = [await stream.event() for _ in range(3)]
        assert [each.id for each in events] == ["0:1,1:0", "0:2,1:0", "0:2,1:1"]
        await api.held(1)
        await publish(api, "d", queue=1)
        assert (await stream.event()).id == "0:2,1:2"
    async with streaming(api, POLL, Last_Event_ID=events[1].id) as stream:
        assert await stream.bodies(2) == ["c", "d"]


async def test_a_stream_skips_messages_that_do_not_match(api: Api) -> None:
    await publish(api, "a", "b", tag="no")
    await publish(api, "c", tag="yes")
    async with streaming(api, f"{PULL}?from=earliest&tag=yes") as stream:
        event = await stream.event()
        assert (event.id, event.data["body"]) == ("0:3", "c")


async def test_many_messages_come_in_order(api: Api) -> None:
    for start in range(0, 3000, 1000):
        await publish(api, *map(str, range(start, start + 1000)))
    async with streaming(api, f"{PULL}?from=earliest&max_messages=700") as stream:
        assert await stream.bodies(3000) == list(map(str, range(3000)))


async def test_heartbeats_have_the_offsets_of_the_stream() -> None:
    async with (
        running_api(event_heartbeat_ms=20, orders=2) as api,
        streaming(api, f"{PULL}?from=earliest&tag=yes") as stream,
    ):
        await stream.block()
        for _ in range(3):
            found = await stream.block()
            assert found is not None
            assert (found.comment, found.id, found.data) == ("heartbeat", "0:0", None)
        await publish(api, "a", tag="no")
        while (found := await stream.block()) is not None and found.id != "0:1":
            assert found.comment == "heartbeat"


async def test_a_stop_ends_every_stream(api: Api) -> None:
    async with streaming(api, f"{PULL}?from=earliest") as stream:
        await api.held(1)
        await api.server.stop()
        while (found := await stream.block()) is not None:
            assert found.event != "problem"
    assert api.context.stream_count == 0


async def test_a_disconnected_client_frees_its_slot(api: Api) -> None:
    async with streaming(api, f"{PULL}?from=earliest"):
        await api.held(1)
        assert api.context.stream_count == 1
    await api.held(0)
    await until(lambda: not api.context.stream_count)


@pytest.mark.parametrize(
    ("path", "last", "status", "problem"),
    [
        (PULL, None, 400, "missing-parameter"),
        (f"{PULL}?offset=9", None, 416, "offset-beyond-end"),
        ("/v1/topics/none/messages?from=latest", None, 404, "unknown-topic"),
        (f"{PULL}?from=latest&filter=a+=", None, 400, "invalid-filter"),
        (PULL, "x", 400, "invalid-parameter"),
        (PULL, "1:0", 400, "invalid-parameter"),
        (PULL, "0:0,1:0", 400, "invalid-parameter"),
        (POLL, "2:0", 404, "unknown-queue"),
        (POLL, "0:9", 416, "offset-beyond-end"),
    ],
)
async def test_an_error_of_the_first_read_is_a_problem(
    api: Api, path: str, last: str | None, status: int, problem: str
) -> None:
    headers = {} if last is None else {"Last_Event_ID": last}
    answer = await api.get(path, **ACCEPT, **headers)
    assert (answer.status, answer.problem) == (status, problem)
    assert api.context.stream_count == 0


@pytest.mark.parametrize("path", [f"{PULL}?offset=0", f"{POLL}?from=earliest"])
async def test_the_header_of_a_stream_is_checked_and_has_no_effect_on_other_requests(
    api: Api, path: str
) -> None:
    """The OpenAPI document gives the header a pattern, and cannot limit it to a media type."""
    await publish(api, "a", "b")
    answer = await api.get(path, Last_Event_ID="zS*5+*c2Q")
    assert (answer.status, answer.problem) == (400, "invalid-parameter")
    answer = await api.get(path, Last_Event_ID="0:1")
    assert [each["body"] for each in answer.json()["messages"]] == ["a", "b"]


async def test_a_topic_that_is_deleted_ends_its_streams_with_a_problem(api: Api) -> None:
    async with streaming(api, f"{PULL}?from=earliest") as stream:
        await api.held(1)
        await api.ask("DELETE", "/v1/topics/orders?confirm=orders")
        event = await stream.event()
        assert (event.event, event.data["type"]) == ("problem", "/problems/unknown-topic")
        assert await stream.block() is None


async def test_a_token_that_is_revoked_ends_its_streams(api: Api, tmp_path: Path) -> None:
    token, text = make_token("consume:=orders")
    api.context.http.access = access_of(token)
    file = AuditFile(tmp_path / "audit.log", 1 << 20, 2)
    audit = api.context.http.audit = AuditLog(file, max_denied_per_second=100)
    audit.start()
    async with streaming(api, f"{PULL}?from=earliest", **bearer(text)) as stream:
        await api.held(1)
        api.context.http.access.tokens = access_of().tokens
        await api.fill(1)
        event = await stream.event()
        assert (event.event, event.data["status"]) == ("problem", 401)
    audit.stop()
    (line,) = map(json.loads, file.path.read_text().splitlines())
    assert (line["object"], line["outcome"]) == (f"GET {PULL}", "denied")
    assert (line["principal"], line["status"]) == (f"token:{token.token_id}", 401)


@pytest.mark.parametrize(("limit", "is_let_in"), [(1, False), (2, True), (3, True)])
async def test_the_number_of_streams_is_limited(limit: int, is_let_in: bool) -> None:
    async with (
        running_api(max_event_streams=limit, orders=1) as api,
        streaming(api, f"{PULL}?from=earliest"),
    ):
        answer = api.session.get(f"{api.url}{PULL}?from=earliest", headers=ACCEPT)
        async with answer as response:
            assert response.status == (200 if is_let_in else 429)
            if not is_let_in:
                assert (await response.json(content_type=None))["limit_name"] == (
                    "max_event_streams"
                )


async def test_a_broker_that_holds_no_requests_ends_a_stream_at_once() -> None:
    async with running_api(max_wait_ms=0, orders=2) as api:
        await publish(api, "a", "b")
        async with streaming(api, f"{PULL}?from=earliest&max_messages=1") as stream:
            assert await stream.bodies(2) == ["a", "b"]
            assert await stream.block() is None


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    async with running_api(
        send_buffer_bytes=4096, transfer_grace_ms=100, write_timeout_ms=300
    ) as api:
        for _ in range(8):
            await api.fill(1 << 20)
        async with raw_connection(api.server.port) as connection:
            await connection.send(
                b"GET %b?from=earliest HTTP/1.1\r\nHost: h\r\n"
                b"Accept: text/event-stream\r\n\r\n" % PULL.encode()
            )
            async with asyncio.timeout(30):
                while not api.server._connections.closed_early["slow-reader"]:
                    await asyncio.sleep(0.01)
                while api.context.stream_count:
                    await asyncio.sleep(0.01)


async def ask_unread(api: Api, path: str) -> socket.socket:
    """Request a stream, and read nothing of it."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(one, ("127.0.0.1", api.server.port))
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
    await loop.sock_sendall(one, head.encode())
    return one


async def publish_to_many(api: Api, queues: int, bodies: list[str]) -> None:
    await api.store.topics.create("many", queues=queues)
    for queue in range(queues):
        await api.publish("many", *({"body": body, "queue": queue} for body in bodies))


async def test_the_memory_of_an_unread_stream_is_counted() -> None:
    """The messages read from every queue are counted, and the piece that is being sent.

    The system's buffer is small, and its bytes do not count.
    """
    async with running_api() as api:
        await publish_to_many(api, 4, ["x" * 1000] * 100)
        unsent = api.context.http.connections.unsent
        path = "/v1/topics/many/messages?from=earliest&max_messages=400&max_bytes=1000000"
        with await ask_unread(api, path):
            async with asyncio.timeout(30):
                await until(lambda: unsent.total_bytes)
            # All bytes except those in the system's buffer: 16 KiB, and one more write.
            assert 300_000 <= unsent.total_bytes <= 600_000
        async with asyncio.timeout(30):
            await until(lambda: not api.context.stream_count)
        assert unsent.total_bytes == 0


async def test_unread_streams_share_a_memory_limit() -> None:
    async with running_api(max_unsent_bytes=1_000_000) as api:
        await publish_to_many(api, 4, ["x" * 1000] * 100)
        connections = api.context.http.connections
        path = "/v1/topics/many/messages?from=earliest&max_messages=400&max_bytes=1000000"
        streams = []
        async with asyncio.timeout(30):
            while not connections.closed_early["unsent-limit"]:
                streams.append(await ask_unread(api, path))
                await until(lambda: connections.unsent.total_bytes != 0)
                await asyncio.sleep(0.01)
                assert connections.unsent.total_bytes <= 1_000_000
            for each in streams:
                each.close()
            await until(lambda: not api.context.stream_count)
        assert connections.unsent.total_bytes == 0


async def test_a_held_stream_frees_the_sent_messages(api: Api) -> None:
    await publish(api, "a" * 100_000, "b")
    async with streaming(api, f"{PULL}?from=earliest") as stream:
        assert len(await stream.bodies(2)) == 2
        await api.held(1)
        await freed(QueueRead, StreamPiece)


async def test_the_ids_count_in_the_size_of_a_piece(monkeypatch: Any) -> None:
    sizes = []
    send = ResponseWriter.send

    async def noting(self: ResponseWriter, parts: Any, size: int, kept_bytes: int = 0) -> None:
        sizes.append(size)
        await send(self, parts, size, kept_bytes)

    monkeypatch.setattr(ResponseWriter, "send", noting)
    async with running_api() as api:
        await publish_to_many(api, 128, ["x"] * 4)
        await api.publish("many", *({"body": "x", "queue": 0} for _ in range(2000)))
        path = "/v1/topics/many/messages?from=earliest&max_messages=10000"
        sizes.clear()
        async with streaming(api, path) as stream:
            assert len(await stream.bodies(128 * 4 + 2000)) == 128 * 4 + 2000
    assert max(sizes) <= PIECE_BYTES + 1024
    assert max(sizes) >= PIECE_BYTES // 2


async def test_the_first_read_of_a_large_stream_needs_a_slot() -> None:
    async with running_api(max_replies_at_work=1) as api:
        await publish_to_many(api, 1, ["a"])
        async with api.context.large_replies:
            path = "/v1/topics/many/queues/0/messages?from=earliest&max_messages=1000"
            asked = asyncio.create_task(api.get(path, **ACCEPT))
            await until(lambda: api.context.stream_count)
            for _ in range(100):
                await asyncio.sleep(0)
            assert not api.context.http.connections.unsent.total_bytes
            assert api.context.large_replies._waiters
            asked.cancel()
        async with streaming(api, path) as stream:
            assert await stream.bodies(1) == ["a"]


async def test_a_stream_over_its_rate_reads_again_and_loses_nothing() -> None:
    """While the client waits, no read messages are kept."""
    async with running_api(max_bytes_per_s_per_client=150_000, orders=1) as api:
        for _ in range(30):
            await api.fill(9_000)
        async with streaming(api, f"{PULL}?from=earliest&max_messages=100") as stream:
            assert len(await stream.bodies(20)) == 20
            async with asyncio.timeout(30):
                while any(isinstance(each, QueueRead) for each in gc.get_objects()):
                    await asyncio.sleep(0.01)
            assert [len(each) for each in await stream.bodies(10)] == [9_000] * 10


async def test_a_rate_limit_slows_a_stream_and_loses_nothing() -> None:
    async with running_api(max_bytes_per_s_per_client=20_000, orders=1) as api:
        for _ in range(3):
            await api.fill(9_000)
        async with streaming(api, f"{PULL}?from=earliest&max_messages=1") as stream:
            assert [len(each) for each in await stream.bodies(3)] == [9_000] * 3


async def test_a_long_message_is_sent_completely_over_the_rate() -> None:
    """JSON encodes each of its bytes as six: rendering them at once would block the event loop."""
    body = "\x00" * 400_000
    async with running_api(max_bytes_per_s_per_client=1_000_000) as api:
        topic, _ = await api.store.topics.create("orders", queues=1)
        for each in ("before", body, "behind"):
            block = encode_batch([each.encode()], queue_id=0)
            await api.store.publishing.publish(topic, [Batch.decode(block)])
        written = ResponseWriter.send
        most = 0

        async def noted(self: Any, parts: Any, size: int, kept_bytes: int = 0) -> None:
            nonlocal most
            most = max(most, size)
            await written(self, parts, size, kept_bytes)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ResponseWriter, "send", noted)
            async with streaming(api, f"{PULL}?from=earliest") as stream:
                received = b""
                async with asyncio.timeout(60):
                    while received.count(b"\n\n") < 4:  # the first block has the retry time
                        received += await stream.response.content.readany()
    lines = [line for line in received.decode().splitlines() if line.startswith("data: ")]
    found = [msgspec.json.decode(line.removeprefix("data: ")) for line in lines]
    assert [each["body"] for each in found] == ["before", body, "behind"]
    assert most < 1_200_000


async def test_a_head_request_gets_only_headers(api: Api) -> None:
    async with api.session.head(f"{api.url}{PULL}?from=earliest", headers=ACCEPT) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/event-stream"
    await until(lambda: not api.context.stream_count)


async def test_http_1_0_gets_its_stream_without_chunks(api: Api) -> None:
    await publish(api, "a")
    async with raw_connection(api.server.port) as connection:
        await connection.send(
            b"GET %b?from=earliest HTTP/1.0\r\nAccept: text/event-stream\r\n\r\n" % PULL.encode()
        )
        await api.held(1)
        await api.server.stop()
        received = await connection.reader.read()
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert body.startswith(b"retry: 2000\nid: 0:0\n\nid: 0:1\ndata: {")
    assert body.endswith(b"}\n\n")


async def test_json_is_the_default_media_type(api: Api) -> None:
    answer = await api.get(f"{PULL}?from=earliest", Accept="*/*")
    assert answer.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("phase", ["recovering", "draining"])
async def test_a_broker_that_is_not_ready_lets_an_event_source_reconnect(
    api: Api, phase: str
) -> None:
    """An EventSource treats any status other than 200 as final."""
    api.status = BrokerStatus(phase)
    answer = await api.get(f"{PULL}?from=earliest", **ACCEPT)
    assert (answer.status, answer.body) == (200, b"retry: 2000\n\n")
    assert answer.headers["Content-Type"] == "text/event-stream"
    assert answer.headers["Connection"] == "close"
    assert (await api.get(f"{PULL}?from=earliest")).status == 503
    assert (await api.get("/v1/topics", **ACCEPT)).status == 503
