"""How a source behaves when the broker misbehaves, against a scripted broker."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

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
from holdfast.client.read.results import Skipped
from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.batch_encoding import encode_batch
from tests.support.servers.scripted_server import ScriptedServer, drop, problem, scripted_server
from tests.support.storage.batches import stamped


def block(base_offset: int, count: int, queue: int = 0) -> bytes:
    batch = stamped(
        encode_batch([b"%d" % (base_offset + n) for n in range(count)]),
        physical_offset=0,
        base_offset=base_offset,
        topic_id=1,
        queue_id=queue,
        store_timestamp_us=1,
    )
    return bytes(batch.block)


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


@asynccontextmanager
async def reading(
    *responses: web.Response, **options: Any
) -> AsyncIterator[tuple[ScriptedServer, AsyncClient]]:
    """Yield a server and a client of it. The server sends the responses in turn, a dropped
    connection for status 500. Later requests wait, as held pulls do."""
    left = list(responses)

    async def answer(request: web.Request) -> web.StreamResponse:
        if not left:
            await asyncio.Event().wait()
        response = left.pop(0)
        return drop(request) if response.status == 500 else response

    async with scripted_server(answer) as server, AsyncClient(server.url, **options) as client:
        yield server, client


async def test_the_next_range_is_requested_while_one_is_processed() -> None:
    async with reading(found(block(0, 3), 3), found(block(3, 2), 5)) as (server, client):
        async with client.pull("orders", 0, 0) as messages, asyncio.timeout(10):
            assert (await anext(messages)).offset == 0
            while len(server.requests) < 2:
                await asyncio.sleep(0.001)
            assert [(await anext(messages)).offset for _ in range(4)] == [1, 2, 3, 4]
            while len(server.requests) < 3:
                await asyncio.sleep(0.001)
        asked = [re.search(r"\boffset=(\d+)", request) for request in server.requests]
        assert [match and match[1] for match in asked] == ["0", "3", "5"]


async def test_a_whole_batch_counts_even_if_the_limit_ends_within_it() -> None:
    # max_messages ended at offset 2, but the whole batch arrived: it is not fetched again.
    responses = found(block(0, 5), 2), found(block(5, 1), 6, max_offset=6)
    async with reading(*responses) as (server, client):
        messages = client.pull("orders", 0, 0)
        assert [(await anext(messages)).offset for _ in range(6)] == [0, 1, 2, 3, 4, 5]
        assert "offset=5&" in server.requests[1]


async def test_the_first_pull_does_not_wait_and_later_pulls_continue_at_its_offset() -> None:
    async with reading(found(b"", 7, max_offset=7), found(block(7, 1), 8)) as (server, client):
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
    async with reading(*empty, found(block(5, 1), 6)) as (_, client):
        await anext(client.pull("orders", 0, 5))
    long = [pause for pause in pauses if pause > 30.0]
    assert len(long) == 3
    assert all(pause <= sources.EMPTY_PULL_S for pause in long)


async def test_a_following_reader_continues_after_transient_failures() -> None:
    responses = (
        found(block(0, 1), 1),
        problem(503, "draining", retry_after_s=0),
        web.Response(status=500),
        problem(503, "recovering", retry_after_s=0),
        found(block(1, 1), 2),
    )
    async with reading(*responses, timeout_ms=0) as (_, client), asyncio.timeout(20):
        messages = client.pull("orders", 0, 0)
        assert [(await anext(messages)).offset for _ in range(2)] == [0, 1]


async def test_a_reader_that_does_not_follow_gives_up() -> None:
    refusal = problem(503, "draining", retry_after_s=5)
    async with reading(refusal, timeout_ms=100) as (_, client):
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


async def test_damage_is_skipped_on_request_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    reply = found(block(0, 2) + block(5, 2), 7)
    reply.headers["Holdfast-Skipped"] = "0:2:5"
    async with reading(reply) as (server, client):
        pulled = await client.pull_once("orders", 0, 0, max_messages=4, skip_corrupt=True)
        assert [message.offset for message in pulled.messages] == [0, 1, 5, 6]
        assert pulled.skipped == (Skipped(0, 2, 5),)
        assert "skip_corrupt=true" in server.requests[0]
    assert "queue 0 of 'orders' from offset 2 to 5" in caplog.text


def with_skipped(text: str) -> web.Response:
    reply = found(block(0, 2), 2)
    reply.headers["Holdfast-Skipped"] = text
    return reply


def damaged(position: int) -> web.Response:
    batch = bytearray(block(0, 5))
    batch[position] ^= 1
    return found(bytes(batch), 5)


@pytest.mark.parametrize(
    ("response", "error"),
    [
        *((with_skipped(text), BadReply) for text in ("", "0:2", "a:b:c", "0:1:2,")),
        *((damaged(position), CorruptBatch) for position in (20, 130, 150)),
        (found(block(0, 5, queue=3), 5), BadReply),
        (found(b"".join(block(at, 2) for at in (0, 2, 3, 5, 7)), 9), BadReply),
        (web.Response(body=b"", content_type="application/vnd.holdfast.batch"), BadReply),
    ],
    ids=[*["skipped"] * 4, *["damaged"] * 3, "another queue", "overlap", "no offsets"],
)
async def test_messages_of_an_invalid_reply_are_not_returned(
    response: web.Response, error: type[Exception]
) -> None:
    async with reading(response) as (_, client):
        with pytest.raises(error):
            await anext(client.pull("orders", 0, 0))


async def test_a_changed_topic_id_raises_topic_recreated() -> None:
    responses = found(block(0, 1), 1), found(block(1, 1), 2, topic_id=2)
    async with reading(*responses) as (_, client):
        messages = client.pull("orders", 0, 0)
        await anext(messages)
        with pytest.raises(TopicRecreated):
            await anext(messages)
