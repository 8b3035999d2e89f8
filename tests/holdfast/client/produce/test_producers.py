import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.client.async_client import AsyncClient
from holdfast.client.errors import (
    ClientClosed,
    DiskFull,
    MessageTooLarge,
    ProducerBufferFull,
    ProducerClosed,
    PublishFailed,
    UnknownTopic,
)
from holdfast.client.produce.accumulator import PendingBatch
from holdfast.client.read.results import PublishResult
from holdfast.client.sync_client import Client
from holdfast.client.transport.async_transport import AsyncTransport
from holdfast.client.transport.retry import FOREVER
from holdfast.client.transport.target import Target
from holdfast.commitlog.format.batch import queue_for_key
from holdfast.commitlog.format.message_id import format_message_id
from tests.support.event_loop.freed import count_objects, freed
from tests.support.servers.publish_server import TOPIC_ID, StoredTopic, producing, publish_server
from tests.support.servers.scripted_server import drop, problem

NEVER_MS = 1e9  # a linger that never ends within a test


async def test_a_handle_returns_queue_offset_and_message_id() -> None:
    topic = StoredTopic()
    async with producing(topic) as producer:
        first, second = producer.send(b"1", key="k"), producer.send("zwei", key="k")
        assert not first.done()
        queue = queue_for_key("k", 4)
        assert await second == PublishResult(
            queue, 1, format_message_id(TOPIC_ID, queue, 1), durable=True
        )
        assert first.done()
        assert (await first).offset == 0
    assert topic.queues == {queue: [b"1", b"zwei"]}


async def test_a_queue_keeps_the_order_of_the_sends() -> None:
    topic = StoredTopic(queue_count=3)
    sent: dict[int, list[bytes]] = {}
    async with producing(topic, batch_bytes=2000, linger_ms=0) as producer:
        handles = []
        for number in range(3000):
            body = b"%d" % number
            key = f"k{number % 7}" if number % 3 else None
            handles.append((body, producer.send(body, key=key)))
            if number % 100 == 0:
                await producer.drain()
        for body, handle in handles:
            sent.setdefault((await handle).queue, []).append(body)
    for body, handle in handles:
        result = await handle
        assert topic.queues[result.queue][result.offset] == body
    assert topic.queues == sent
    assert len(topic.publishes) > 10


async def test_awaiting_a_handle_does_not_wait_for_the_linger_time() -> None:
    async with producing(StoredTopic(), linger_ms=NEVER_MS) as producer:
        for number in range(5):
            assert (await producer.send(b"x", queue=0)).offset == number


async def test_a_batch_is_sent_after_the_linger_time() -> None:
    topic = StoredTopic()
    async with producing(topic, linger_ms=1) as producer:
        handle = producer.send(b"x")
        async with asyncio.timeout(10):
            while not handle.done():
                await asyncio.sleep(0.001)
    (queue,) = topic.queues
    assert topic.counts == [[(queue, 1)]]


async def test_the_end_of_the_block_sends_all_messages() -> None:
    topic = StoredTopic()
    async with producing(topic, queue=2, linger_ms=NEVER_MS) as producer:
        for number in range(100):
            producer.send(b"%d" % number)
        assert topic.queues == {}
    assert topic.queues == {2: [b"%d" % number for number in range(100)]}
    with pytest.raises(ProducerClosed):
        producer.send(b"too late")
    await producer.close()


async def test_closing_the_client_sends_the_messages_of_open_producers() -> None:
    topic = StoredTopic()
    async with publish_server(topic) as (server, _):
        async with AsyncClient(server.url) as client:
            producer = client.producer("orders", queue=0, linger_ms=NEVER_MS)
            await producer.start()
            producer.send(b"x")
        assert topic.queues == {0: [b"x"]}


async def test_flush_waits_for_all_messages_sent_before() -> None:
    topic = StoredTopic()
    async with producing(topic, linger_ms=NEVER_MS) as producer:
        handles = [producer.send(b"x", queue=queue) for queue in range(4)]
        await producer.flush()
        assert all(handle.done() for handle in handles)
        await producer.flush()


async def test_waiting_batches_are_sent_in_one_request() -> None:
    topic = StoredTopic(queue_count=4, holds=True)
    async with producing(topic, linger_ms=NEVER_MS, max_in_flight=1) as producer:
        first = asyncio.ensure_future(producer.send(b"first", queue=0))
        await topic.received(1)
        for queue in range(4):
            producer.send(b"x", queue=queue)
        flush = asyncio.create_task(producer.flush())
        await asyncio.sleep(0)
        assert len(topic.publishes) == 1
        topic.may_answer.set()
        await flush
        await first
    assert topic.counts == [[(0, 1)], [(0, 1), (1, 1), (2, 1), (3, 1)]]


async def test_a_request_whose_reply_is_lost_is_not_stored_twice() -> None:
    topic = StoredTopic()
    topic.lose_reply = lambda number, request: drop(request) if number in (1, 2) else None
    async with publish_server(topic) as (server, client):
        async with client.producer("orders", queue=0) as producer:
            assert (await producer.send(b"1")).offset == 0
            assert (await producer.send(b"2")).offset == 1
        assert topic.queues == {0: [b"1", b"2"]}
        posts = [body for body in server.bodies if body]
        assert posts[0] == posts[1] == posts[2] != posts[3]


async def test_a_batch_is_sent_again_to_a_busy_broker() -> None:
    topic = StoredTopic()
    topic.refuse = lambda number, request: problem(503, "overloaded") if number < 3 else None
    async with producing(topic, queue=0) as producer:
        await producer.send(b"1")
    assert topic.queues == {0: [b"1"]}


async def test_the_handles_of_a_refused_batch_fail_and_later_batches_are_stored() -> None:
    topic = StoredTopic()
    topic.refuse = lambda number, request: problem(404, "unknown-topic") if number == 2 else None
    async with producing(topic, queue=0) as producer:
        await producer.send(b"1")
        refused = producer.send(b"2")
        with pytest.raises(UnknownTopic):
            await refused
        with pytest.raises(UnknownTopic):
            await refused
        assert (await producer.send(b"3")).offset == 1
    # Leaving raises nothing: the caller has read the error from the handle.
    assert topic.queues == {0: [b"1", b"3"]}
    assert {sequence for _, _, sequence in topic.offsets} == {0}
    assert len({producer_id for producer_id, _, _ in topic.offsets}) == 2


async def test_a_batch_whose_failure_was_raised_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    # A kept log record would refer to the batch.
    monkeypatch.setattr(logging.getLogger("holdfast.client"), "disabled", True)

    async def fail() -> None:
        topic = StoredTopic(refuse=lambda number, request: problem(404, "unknown-topic"))
        async with producing(topic, queue=0) as producer:
            with pytest.raises(UnknownTopic):
                await producer.send(b"never kept")

    before = count_objects(PendingBatch)
    await fail()
    await freed(PendingBatch, but=before)


async def test_an_unseen_failure_is_raised_at_the_end_of_the_block() -> None:
    topic = StoredTopic(refuse=lambda number, request: problem(507, "disk-full", retry_after_s=60))
    async with publish_server(topic) as (_, client):
        with pytest.raises(PublishFailed) as caught:
            async with client.producer("orders", delivery_timeout_ms=30_000) as producer:
                producer.send(b"1")
                producer.send(b"2")
        assert caught.value.message_count == 2
        assert isinstance(caught.value.cause, DiskFull)


async def test_a_failure_does_not_replace_the_error_of_the_block() -> None:
    topic = StoredTopic(refuse=lambda number, request: problem(404, "unknown-topic"))
    async with publish_server(topic) as (_, client):
        with pytest.raises(KeyError) as caught:
            async with client.producer("orders") as producer:
                producer.send(b"1")
                raise KeyError("mine")
        assert "1 messages to orders failed" in caught.value.__notes__[0]


async def test_send_raises_when_the_buffer_is_full_and_drain_waits_for_room() -> None:
    topic = StoredTopic(queue_count=1, holds=True)
    async with producing(topic, buffer_bytes=10_000) as producer:
        with pytest.raises(ProducerBufferFull, match=r"await producer\.drain"):
            for _ in range(1000):
                producer.send(b"x" * 100)
        drain = asyncio.create_task(producer.drain())
        await asyncio.sleep(0)
        assert not drain.done()
        topic.may_answer.set()
        await drain
        producer.send(b"room again")
    assert topic.queues[0][-1] == b"room again"


async def test_after_drain_half_of_the_buffer_is_free() -> None:
    topic = StoredTopic(queue_count=1)
    async with producing(topic, batch_bytes=1000, buffer_bytes=20_000) as producer:
        for _ in range(50):
            await producer.drain()
            for _ in range(10_000 // 1032):
                producer.send(b"x" * 1000)
    assert len(topic.queues[0]) == 450


LATEST_MS = (2**63 - 1) // 1000


@pytest.mark.parametrize("born_ms", [LATEST_MS + 1, 10**17, -1])
async def test_only_the_message_with_a_time_out_of_range_is_refused(born_ms: int) -> None:
    topic = StoredTopic()
    async with producing(topic, queue=0) as producer:
        handles = [producer.send(b"1", born_timestamp_ms=LATEST_MS)]
        with pytest.raises(ValueError, match=r"born_timestamp_ms|1970"):
            producer.send(b"2", born_timestamp_ms=born_ms)
        handles += [producer.send(b"3")]
        for handle in handles:
            await handle
    assert topic.queues == {0: [b"1", b"3"]}


async def test_only_the_message_over_the_topics_limit_is_refused() -> None:
    topic = StoredTopic(max_message_bytes=10)
    async with producing(topic, queue=0) as producer:
        producer.send(b"x" * 10)
        with pytest.raises(MessageTooLarge):
            producer.send(b"x" * 11)
    assert topic.queues == {0: [b"x" * 10]}


async def test_a_missing_topic_is_created_if_the_broker_allows_it() -> None:
    topic = StoredTopic(exists=False, auto_create_topics=False)
    async with publish_server(topic) as (_, client):
        with pytest.raises(UnknownTopic):
            await client.producer("orders").start()
    topic = StoredTopic(exists=False)
    async with publish_server(topic) as (server, client):
        async with client.producer("orders") as producer:
            await producer.send(b"x")
        assert server.requests[:4] == [
            "GET /v1/topics/orders",
            "GET /v1/info",
            "PUT /v1/topics/orders",
            "GET /v1/topics/orders",
        ]


async def test_a_producer_must_be_started() -> None:
    producer = AsyncClient("http://127.0.0.1:1").producer("orders")
    with pytest.raises(ProducerClosed, match=r"with client\.producer"):
        producer.send(b"x")
    with pytest.raises(ProducerClosed):
        await producer.drain()
    await producer.close()


@pytest.mark.parametrize(
    "options",
    [
        {"batch_bytes": 0},
        {"buffer_bytes": -1},
        {"max_in_flight": 0},
        {"linger_ms": -1},
        {"delivery_timeout_ms": 0},
    ],
)
def test_invalid_options_are_refused(options: dict[str, int]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=name):
        AsyncClient().producer("orders", **options)  # type: ignore[arg-type]


async def test_closing_the_transport_fails_the_requests_in_flight() -> None:
    topic = StoredTopic(holds=True)
    async with publish_server(topic) as (server, _):
        transport = AsyncTransport(Target.parse(server.url, None, None), FOREVER)
        client = AsyncClient.over(transport)
        producer = client.producer("orders")
        await producer.start()
        handle = asyncio.ensure_future(producer.send(b"x"))
        await topic.received(1)
        await transport.close()
        with pytest.raises(ClientClosed):
            await handle
        await client.close()


async def test_cancelled_request_tasks_fail_the_waiting_batches_too() -> None:
    topic = StoredTopic(queue_count=1, holds=True)
    async with publish_server(topic) as (_, client):
        producer = client.producer("orders", batch_bytes=1)
        await producer.start()
        others = asyncio.all_tasks()
        handles = [producer.send(b"%d" % number) for number in range(100)]
        for task in asyncio.all_tasks() - others:
            task.cancel()  # as asyncio.run does at its end, here before the request has begun
        async with asyncio.timeout(10):
            for handle in handles:
                with pytest.raises(ClientClosed):
                    await handle
        await producer.close()


# -- the producer for threads ----------------------------------------------------------------


async def test_threads_share_a_producer_and_each_keeps_its_order() -> None:
    topic = StoredTopic(queue_count=2)

    def publish(url: str) -> None:
        with Client(url) as client, client.producer("orders", batch_bytes=500) as producer:

            def send(thread: int) -> list[PublishResult]:
                handles = [
                    producer.send(b"%d:%d" % (thread, n), key=f"k{thread}") for n in range(500)
                ]
                return [handle.result(30) for handle in handles]

            with ThreadPoolExecutor(4) as pool:
                results = list(pool.map(send, range(4)))
            for thread, placed in enumerate(results):
                assert [result.offset for result in placed] == sorted(
                    result.offset for result in placed
                )
                for n, result in enumerate(placed):
                    assert topic.queues[result.queue][result.offset] == b"%d:%d" % (thread, n)

    async with publish_server(topic) as (server, _):
        await asyncio.to_thread(publish, server.url)
    assert sum(map(len, topic.queues.values())) == 2000


async def test_send_waits_while_the_buffer_is_full() -> None:
    topic = StoredTopic(queue_count=1, holds=True)
    progress: list[int] = []

    def publish(url: str) -> None:
        with Client(url) as client, client.producer("orders", buffer_bytes=10_000) as producer:
            for number in range(1000):
                producer.send(b"x" * 100)
                progress.append(number)

    async with publish_server(topic) as (server, _):
        publishing = asyncio.create_task(asyncio.to_thread(publish, server.url))
        await topic.received(1)
        await asyncio.sleep(0.05)
        # The buffer, an open batch of half its size, and the messages sent before the first count.
        assert len(progress) < 200
        assert not publishing.done()
        topic.may_answer.set()
        await publishing
    assert len(topic.queues[0]) == 1000


async def test_a_result_may_be_awaited_again_after_a_timeout() -> None:
    topic = StoredTopic(holds=True)

    def publish(url: str, loop: asyncio.AbstractEventLoop) -> None:
        with Client(url) as client, client.producer("orders") as producer:
            handle = producer.send(b"x")
            with pytest.raises(TimeoutError):
                handle.result(0.01)
            with pytest.raises(TimeoutError):
                producer.flush(0.01)
            assert not handle.done()
            loop.call_soon_threadsafe(topic.may_answer.set)
            assert handle.result(10).offset == 0

    async with publish_server(topic) as (server, _):
        await asyncio.to_thread(publish, server.url, asyncio.get_running_loop())


async def test_the_end_of_the_block_of_a_blocking_producer_raises_failures() -> None:
    topic = StoredTopic(refuse=lambda number, request: problem(404, "unknown-topic"))

    def publish(url: str) -> None:
        with (
            Client(url) as client,
            pytest.raises(PublishFailed, match="1 messages to orders"),
            client.producer("orders") as producer,
        ):
            producer.send(b"x")

    async with publish_server(topic) as (server, _):
        await asyncio.to_thread(publish, server.url)


async def test_closing_the_client_closes_its_producers() -> None:
    topic = StoredTopic()

    def publish(url: str) -> None:
        with Client(url) as client:
            producer = client.producer("orders", queue=0, linger_ms=NEVER_MS)
            producer.start()
            producer.send(b"x")
        with pytest.raises(ProducerClosed):
            producer.send(b"y")

    async with publish_server(topic) as (server, _):
        await asyncio.to_thread(publish, server.url)
    assert topic.queues == {0: [b"x"]}
