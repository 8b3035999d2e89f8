"""How a source behaves when the broker misbehaves, against a scripted broker."""

import asyncio

import pytest
from aiohttp import web

from holdfast.client.async_client import AsyncClient
from holdfast.client.errors import (
    BadReply,
    OffsetTrimmed,
    RecordCorrupt,
    TopicRecreated,
    Unavailable,
)
from holdfast.client.read import sources
from holdfast.client.read.message import Skipped
from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from tests.support.scripted_server import drop, problem, scripted_server


def block(base_offset: int, count: int, queue: int = 0) -> bytes:
    batch = Batch.decode(encode_batch([b"%d" % (base_offset + n) for n in range(count)]))
    header = batch.header.stamped(
        physical_offset=0,
        durable_offset=0,
        base_offset=base_offset,
        topic_id=1,
        queue_id=queue,
        store_timestamp_us=1,
        tag_summary=0,
    )
    return bytes(header.encode()) + bytes(batch.block[128:])


def found(body: bytes, next_offset: int, max_offset: int = 100, topic_id: int = 1) -> web.Response:
    return web.Response(
        body=body,
        content_type="application/vnd.holdfast.batch",
        headers={
            "Holdfast-Next-Offset": str(next_offset),
            "Holdfast-Min-Offset": "0",
            "Holdfast-Max-Offset": str(max_offset),
            "Holdfast-Topic-Id": str(topic_id),
        },
    )


class Scripted:
    """Sends the given responses in turn; then it waits, as a broker that holds a pull does."""

    def __init__(self, *responses: web.Response) -> None:
        self.responses = list(responses)
        self.all_asked = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if not self.responses:
            self.all_asked.set()
            await asyncio.Event().wait()
        response = self.responses.pop(0)
        return drop(request) if response.status == 500 else response


async def test_the_next_range_is_requested_while_one_is_processed() -> None:
    script = Scripted(found(block(0, 3), 3), found(block(3, 2), 5))
    async with scripted_server(script.answer) as server, AsyncClient(server.url) as client:
        async with client.pull("orders", 0, 0) as messages, asyncio.timeout(10):
            assert (await anext(messages)).offset == 0
            while len(server.requests) < 2:
                await asyncio.sleep(0.001)
            assert [(await anext(messages)).offset for _ in range(4)] == [1, 2, 3, 4]
            await script.all_asked.wait()
        assert [
            request.partition("offset=")[2].partition("&")[0] for request in server.requests
        ] == [
            "0",
            "3",
            "5",
        ]


async def test_a_whole_batch_counts_even_if_the_limit_ends_within_it() -> None:
    # max_messages ended at offset 2, but the whole batch arrived: it is not fetched again.
    script = Scripted(found(block(0, 5), 2), found(block(5, 1), 6, max_offset=6))
    async with (
        scripted_server(script.answer) as server,
        AsyncClient(server.url) as client,
        client.pull("orders", 0, 0) as messages,
    ):
        assert [(await anext(messages)).offset for _ in range(6)] == [0, 1, 2, 3, 4, 5]
        assert "offset=5&" in server.requests[1]


async def test_the_first_pull_does_not_wait_and_later_pulls_continue_at_its_offset() -> None:
    script = Scripted(found(b"", 7, max_offset=7), found(block(7, 1), 8))
    async with scripted_server(script.answer) as server, AsyncClient(server.url) as client:
        async with client.pull("orders", 0, start="latest") as messages:
            assert (await anext(messages)).offset == 7
        assert "from=latest" in server.requests[0]
        assert "wait_ms=0" in server.requests[0]
        assert "offset=7" in server.requests[1]
        assert "wait_ms=20000" in server.requests[1]


async def test_pulls_to_a_broker_that_does_not_hold_them_have_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(delay_s: float) -> None:
        pauses.append(delay_s)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", noted)
    # a request takes only a tiny part of this time
    monkeypatch.setattr(sources, "EMPTY_PULL_S", 60.0)
    empty = [found(b"", 5, max_offset=5) for _ in range(4)]
    script = Scripted(*empty, found(block(5, 1), 6))
    async with (
        scripted_server(script.answer) as server,
        AsyncClient(server.url) as client,
        client.pull("orders", 0, 5) as messages,
    ):
        await anext(messages)
    long = [pause for pause in pauses if pause > 30.0]
    assert len(long) == 3
    assert all(pause <= sources.EMPTY_PULL_S for pause in long)


async def test_a_following_reader_continues_after_transient_failures() -> None:
    script = Scripted(
        found(block(0, 1), 1),
        problem(503, "draining", retry_after_s=0),
        web.Response(status=500),  # makes the server drop the connection
        problem(503, "recovering", retry_after_s=0),
        found(block(1, 1), 2),
    )
    async with (
        scripted_server(script.answer) as server,
        AsyncClient(server.url, timeout_ms=0) as client,
        client.pull("orders", 0, 0) as messages,
        asyncio.timeout(20),
    ):
        assert [(await anext(messages)).offset for _ in range(2)] == [0, 1]


async def test_a_reader_that_does_not_follow_gives_up() -> None:
    script = Scripted(problem(503, "draining", retry_after_s=5))
    async with (
        scripted_server(script.answer) as server,
        AsyncClient(server.url, timeout_ms=100) as client,
    ):
        with pytest.raises(Unavailable):
            await anext(client.pull("orders", 0, 0, follow=False))


@pytest.mark.parametrize(
    ("refusal", "error", "attribute"),
    [
        (problem(410, "offset-trimmed", min_offset=9, max_offset=20), OffsetTrimmed, "min_offset"),
        (problem(500, "corrupt-record", next_offset=9), RecordCorrupt, "next_offset"),
    ],
)
async def test_an_unreadable_range_ends_the_reading_with_the_offset_after_it(
    refusal: web.Response, error: type[Exception], attribute: str
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        assert isinstance(refusal.body, bytes)
        return web.Response(
            status=refusal.status, body=refusal.body, content_type="application/problem+json"
        )

    async with scripted_server(answer) as server, AsyncClient(server.url) as client:
        messages = client.pull("orders", 0, 5)
        for _ in range(2):  # the next call raises it again
            with pytest.raises(error) as caught:
                await anext(messages)
            assert getattr(caught.value, attribute) == 9
            with pytest.raises(error):
                async for _ in messages:
                    pass
        assert len(server.requests) == 1


async def test_damage_is_skipped_on_request_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reply = found(block(0, 2) + block(5, 2), 7)
    reply.headers["Holdfast-Skipped"] = "0:2:5"
    script = Scripted(reply)
    async with scripted_server(script.answer) as server, AsyncClient(server.url) as client:
        pulled = await client.pull_once("orders", 0, 0, max_messages=4, skip_corrupt=True)
        assert [message.offset for message in pulled.messages] == [0, 1, 5, 6]
        assert pulled.skipped == (Skipped(0, 2, 5),)
        assert "skip_corrupt=true" in server.requests[0]
    assert "queue 0 of 'orders' from offset 2 to 5" in caplog.text


@pytest.mark.parametrize("told", ["", "0:2", "a:b:c", "0:1:2,"])
async def test_an_invalid_list_of_skipped_ranges_is_a_bad_reply(told: str) -> None:
    reply = found(block(0, 2), 2)
    reply.headers["Holdfast-Skipped"] = told
    script = Scripted(reply)
    async with scripted_server(script.answer) as server, AsyncClient(server.url) as client:
        with pytest.raises(BadReply):
            await client.pull_once("orders", 0, 0)


@pytest.mark.parametrize("position", [20, 130, 150])
async def test_a_damaged_batch_is_not_returned(position: int) -> None:
    damaged = bytearray(block(0, 5))
    damaged[position] ^= 1
    script = Scripted(found(bytes(damaged), 5))
    async with scripted_server(script.answer) as server, AsyncClient(server.url) as client:
        with pytest.raises(CorruptBatch):
            await anext(client.pull("orders", 0, 0))


async def test_a_batch_of_another_queue_is_a_bad_reply() -> None:
    script = Scripted(found(block(0, 5, queue=3), 5))
    async with scripted_server(script.answer) as server, AsyncClient(server.url) as client:
        with pytest.raises(BadReply):
            await anext(client.pull("orders", 0, 0))


async def test_a_changed_topic_id_raises_topic_recreated() -> None:
    script = Scripted(found(block(0, 1), 1), found(block(1, 1), 2, topic_id=2))
    async with scripted_server(script.answer) as server, AsyncClient(server.url) as client:
        messages = client.pull("orders", 0, 0)
        await anext(messages)
        with pytest.raises(TopicRecreated):
            await anext(messages)


async def test_a_reply_without_offsets_is_a_bad_reply() -> None:
    script = Scripted(web.Response(body=b"", content_type="application/vnd.holdfast.batch"))
    async with scripted_server(script.answer) as server, AsyncClient(server.url) as client:
        with pytest.raises(BadReply):
            await anext(client.pull("orders", 0, 0))
