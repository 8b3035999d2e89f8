import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest
from aiohttp import web

from holdfast.client.async_client import AsyncClient
from holdfast.client.errors import (
    BadReply,
    ConnectionFailed,
    HoldfastError,
    OffsetsChanged,
    OffsetTrimmed,
)
from holdfast.client.read.group_offsets import GroupOffsets, OffsetProgress
from holdfast.client.read.message import Message, MessageList
from holdfast.client.read.sources import Range
from holdfast.client.transport.async_transport import AsyncTransport
from holdfast.client.transport.requests import Transport
from holdfast.client.transport.retry import RetryPolicy
from holdfast.client.transport.target import Target
from holdfast.testing import RunningBroker
from tests.support.servers.fake_group import delivered_message
from tests.support.servers.scripted_server import drop, problem, scripted_server

GROUP = "billing"


@pytest.fixture
async def client(shared_broker: RunningBroker) -> AsyncIterator[AsyncClient]:
    async with shared_broker.async_client() as client:
        yield client


async def publish(client: AsyncClient, topic: str, count: int, queues: int = 1) -> None:
    await client.create_topic(topic, queues=queues)
    async with client.producer(topic) as producer:
        for number in range(count):
            producer.send(b"%d" % number, queue=number % queues)


async def offsets_of(client: AsyncClient, topic: str) -> dict[int, int]:
    return (await client.stored_offsets(GROUP, topic)).offsets


async def consume_all(client: AsyncClient, topic: str, **options: Any) -> list[tuple[int, int]]:
    """Return the queues and offsets of all messages from the stored offsets on."""
    async with client.consume_by_offsets(topic, GROUP, follow=False, **options) as consumer:
        return [(message.queue, message.offset) async for message in consumer]


async def test_a_group_continues_at_its_stored_offsets(client: AsyncClient, topic: str) -> None:
    # L2
    await publish(client, topic, 20, queues=2)
    assert len(await consume_all(client, topic)) == 20
    assert await offsets_of(client, topic) == {0: 10, 1: 10}
    await publish(client, topic, 4, queues=2)
    assert await consume_all(client, topic) == [(0, 10), (0, 11), (1, 10), (1, 11)]


async def test_the_current_message_is_redelivered_unless_it_was_committed(
    client: AsyncClient, topic: str
) -> None:
    # L2
    await publish(client, topic, 10)
    for last, commits, offset in ((3, False, 3), (6, True, 7)):
        async with client.consume_by_offsets(topic, GROUP, commit_interval_ms=10**9) as consumer:
            async for message in consumer:
                if message.offset == last:
                    if commits:
                        await consumer.commit()
                    break
        assert await offsets_of(client, topic) == {0: offset}


@pytest.mark.parametrize("failure_count", [0, 1])
async def test_offsets_are_stored_at_each_interval_also_after_a_bad_reply(
    client: AsyncClient, topic: str, monkeypatch: pytest.MonkeyPatch, failure_count: int
) -> None:
    store, failures = GroupOffsets.store, [BadReply(client.url, "a gateway's page")] * failure_count

    async def fail_first(
        offsets: GroupOffsets, transport: Transport, wanted: Mapping[int, int]
    ) -> None:
        if failures:
            raise failures.pop()
        await store(offsets, transport, wanted)

    monkeypatch.setattr(GroupOffsets, "store", fail_first)
    await publish(client, topic, 3)
    await client.store_offsets(GROUP, topic, {0: 0})
    async with (
        asyncio.timeout(20),
        client.consume_by_offsets(topic, GROUP, commit_interval_ms=1) as consumer,
    ):
        await anext(consumer)
        await anext(consumer)
        while await offsets_of(client, topic) != {0: 1}:
            await asyncio.sleep(0.001)
    assert not failures


async def test_without_an_interval_each_offset_is_stored_before_the_next_message(
    client: AsyncClient, topic: str
) -> None:
    await publish(client, topic, 5)
    async with client.consume_by_offsets(
        topic, GROUP, follow=False, commit_interval_ms=0
    ) as consumer:
        async for message in consumer:
            if message.offset:
                assert await offsets_of(client, topic) == {0: message.offset}
    assert await offsets_of(client, topic) == {0: 5}


async def test_queues_without_a_stored_offset_begin_at_start(
    client: AsyncClient, topic: str
) -> None:
    await publish(client, topic, 10, queues=2)
    await client.store_offsets(GROUP, topic, {1: 3})
    assert await consume_all(client, topic, start="latest") == [(1, 3), (1, 4)]


async def test_messages_that_do_not_match_the_filter_count_as_processed(
    client: AsyncClient, topic: str
) -> None:
    await publish(client, topic, 10)
    assert await consume_all(client, topic, tag="none") == []
    assert await offsets_of(client, topic) == {0: 10}


async def test_a_second_consumer_is_detected(client: AsyncClient, topic: str) -> None:
    await publish(client, topic, 10)
    async with client.consume_by_offsets(topic, GROUP, commit_interval_ms=10**9) as consumer:
        await anext(consumer)
        await anext(consumer)
        await consumer.commit()
        async with client.consume_by_offsets(topic, GROUP) as rival:
            await anext(rival)
            await anext(rival)
            await rival.commit()
        await anext(consumer)
        with pytest.raises(OffsetsChanged):
            await consumer.commit()
        with pytest.raises(OffsetsChanged):
            await anext(consumer)
    # The second consumer owns the group: closing the first one did not overwrite the offsets.
    assert await offsets_of(client, topic) == {0: 4}


async def test_a_second_consumer_ends_a_consumer_that_commits_at_intervals(
    client: AsyncClient, topic: str
) -> None:
    await publish(client, topic, 10)
    async with asyncio.timeout(20):
        async with client.consume_by_offsets(topic, GROUP, commit_interval_ms=1) as consumer:
            await anext(consumer)
            await client.store_offsets(GROUP, topic, {0: 9})
            with pytest.raises(OffsetsChanged):
                while True:
                    await anext(consumer)
                    await asyncio.sleep(0.01)
            with pytest.raises(OffsetsChanged):
                await anext(consumer)
    assert await offsets_of(client, topic) == {0: 9}


async def test_a_stored_offset_that_was_trimmed_raises() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/offsets"):
            return web.json_response({"offsets": {"0": 3}}, headers={"ETag": '"1"'})
        if request.path.endswith("/messages"):
            return problem(410, "offset-trimmed", min_offset=7, max_offset=9)
        return web.json_response(
            {
                "topic_id": 1,
                "queue_count": 1,
                "queues": [{"queue": 0, "min_offset": 7, "max_offset": 9}],
                "config": {"max_message_bytes": 1},
            }
        )

    async with scripted_server(answer) as server, AsyncClient(server.url) as client:
        with pytest.raises(OffsetTrimmed) as caught:
            await anext(client.consume_by_offsets("orders", GROUP))
        assert caught.value.min_offset == 7


# -- progress, tested alone ------------------------------------------------------------------


def message(queue: int, offset: int) -> Message:
    return delivered_message(offset, queue=queue).as_message()


def test_progress_follows_the_returned_messages() -> None:
    progress = OffsetProgress()
    fetched = Range(
        [MessageList(0, [message(0, 4), message(0, 6)]), MessageList(1, [message(1, 2)])],
        {0: 9, 1: 3},
    )
    seen = [((m.queue, m.offset), progress.offsets()) for m in progress.track(fetched)]
    assert seen == [((0, 4), {0: 4}), ((0, 6), {0: 6}), ((1, 2), {0: 7, 1: 2})]
    assert progress.offsets() == {0: 9, 1: 3}


def test_the_current_message_can_be_finished() -> None:
    progress = OffsetProgress()
    messages = progress.track(Range([MessageList(0, [message(0, 4), message(0, 6)])], {0: 9}))
    next(messages)
    progress.finish_current()
    progress.finish_current()
    assert progress.offsets() == {0: 5}
    next(messages)
    assert progress.offsets() == {0: 6}


# -- compare-and-swap with lost replies ------------------------------------------------------


class OffsetsServer:
    """Stored offsets with a version. It loses replies or requests on demand.

    A test must lose two: a store is sent again at once if the connection of the load has ended.
    """

    def __init__(self) -> None:
        self.offsets: dict[str, int] = {}
        self.version = 0
        self.methods: list[str] = []
        self.lose_replies = 0
        self.lose_requests = 0
        self.holds_replies = False
        self.is_held = asyncio.Event()
        #: Responses that replace the replies to PUTs; the PUTs are executed all the same.
        self.gateway_replies: list[web.Response] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.methods.append(request.method)
        if request.method == "PUT":
            if self.lose_requests:
                self.lose_requests -= 1
                return drop(request)
            if self.lose_replies == 1:
                self.lose_replies = 0
                return drop(request)
            if request.headers["If-Match"] != f'"{self.version}"':
                return problem(412, "offsets-changed")
            self.store_as_another((await request.json())["offsets"])
            if self.holds_replies:
                self.is_held.set()
                await asyncio.Event().wait()
            if self.gateway_replies:
                return self.gateway_replies.pop()
            if self.lose_replies:
                self.lose_replies -= 1
                return drop(request)
        elif not self.version:
            return problem(404, "unknown-group")
        return web.json_response({"offsets": self.offsets}, headers={"ETag": f'"{self.version}"'})

    def store_as_another(self, offsets: Mapping[str, int]) -> None:
        self.offsets.update(offsets)
        self.version += 1


Store = Callable[[dict[int, int]], Awaitable[None]]


@asynccontextmanager
async def storing(give_up_after_s: float = 0) -> AsyncIterator[tuple[OffsetsServer, Store]]:
    """Yield a server, and a function that stores offsets there for a consumer that has loaded."""
    server = OffsetsServer()
    async with scripted_server(server.answer) as script:
        retry = RetryPolicy(give_up_after_s=give_up_after_s, first_pause_s=0.001)
        transport = AsyncTransport(Target.parse(script.url, None, None), retry)
        offsets = GroupOffsets(GROUP, "orders")
        assert await offsets.load(transport) == {}
        yield server, lambda changed: offsets.store(transport, changed)
        await transport.close()


async def test_only_changed_offsets_are_stored() -> None:
    async with storing(give_up_after_s=10) as (server, store):
        await store({0: 5, 1: 7})
        await store({0: 5, 1: 7})
        await store({0: 5, 1: 8})
        assert server.offsets == {"0": 5, "1": 8}
        assert server.methods == ["GET", "PUT", "PUT"]


async def test_a_store_recognizes_itself_as_often_as_its_reply_is_lost() -> None:
    async with storing(give_up_after_s=10) as (server, store):
        server.lose_replies = 3  # of the store, and of the store that follows its recognition
        await store({0: 5})
        assert server.offsets == {"0": 5}
        assert not server.lose_replies


@pytest.mark.parametrize(
    ("give_up_after_s", "stores"),
    [
        (10, [(1, 0), (0, 0)]),  # a reply is lost, and the store is sent again
        (0, [(2, 0), (0, 0), (0, 2), (0, 0)]),  # failed stores that were executed or not
        (0, [(2, 0), (0, 2), (0, 2), (0, 0)]),  # an executed store before stores that were not
    ],
)
async def test_a_store_that_was_lost_is_no_second_consumer(
    give_up_after_s: int, stores: Sequence[tuple[int, int]]
) -> None:
    """Each store loses some replies and requests. A store that loses two of them fails."""
    async with storing(give_up_after_s) as (server, store):
        for offset, (lost_replies, lost_requests) in enumerate(stores, 5):
            server.lose_replies, server.lose_requests = lost_replies, lost_requests
            is_failing = 2 in (lost_replies, lost_requests)
            with pytest.raises(ConnectionFailed) if is_failing else nullcontext():
                await store({0: offset})
        assert server.offsets == {"0": 4 + len(stores)}


@pytest.mark.parametrize("status", [200, 404, 502])
async def test_a_store_that_a_gateway_answered_is_no_second_consumer(status: int) -> None:
    async with storing() as (server, store):
        server.gateway_replies = [web.Response(status=status, text="<p>I am a gateway</p>")]
        with pytest.raises(HoldfastError):
            await store({0: 5})
        await store({0: 6})
        assert server.offsets == {"0": 6}


async def test_a_cancelled_store_may_have_been_executed() -> None:
    async with storing() as (server, store):
        server.holds_replies = True
        storing_five = asyncio.ensure_future(store({0: 5}))
        await server.is_held.wait()
        storing_five.cancel()
        with pytest.raises(asyncio.CancelledError):
            await storing_five
        server.holds_replies = False
        await store({0: 6})
        assert server.offsets == {"0": 6}


async def test_a_second_consumer_is_no_lost_reply() -> None:
    async with storing() as (server, store):
        await store({0: 5})
        server.lose_requests = 2
        with pytest.raises(ConnectionFailed):
            await store({0: 6})
        server.store_as_another({"0": 4})
        for _ in range(2):  # also after an error, the offsets of the other consumer stay
            with pytest.raises(OffsetsChanged):
                await store({0: 7})
        assert server.offsets == {"0": 4}
