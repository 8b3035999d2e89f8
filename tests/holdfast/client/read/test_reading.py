"""AsyncClient's readers against a real broker."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from holdfast.client import errors
from holdfast.client.async_client import AsyncClient
from holdfast.client.read import sources
from holdfast.client.read.message import Message
from holdfast.testing import RunningBroker


@pytest.fixture
async def client(shared_broker: RunningBroker) -> AsyncIterator[AsyncClient]:
    """A client of a broker that holds no pull: the broker may notice earlier disconnects late."""
    async with shared_broker.async_client() as client:
        await wait_for_pulls(client, are_held=False)
        yield client


async def publish(
    client: AsyncClient, topic: str, count: int, *, queues: int | None = None, start: int = 0
) -> None:
    """Publish numbered messages in batches of 10, the first ones to queue 0. With `queues`, create
    the topic first."""
    if queues is not None:
        await client.create_topic(topic, queues=queues)
    async with client.producer(topic, linger_ms=1e6) as producer:
        queue_count = (await client.describe_topic(topic)).queue_count
        for number in range(start, start + count):
            producer.send(
                b"%3d" % number,
                tag="even" if number % 2 == 0 else "odd",
                properties={"n": str(number)},
                queue=(number // 10) % queue_count,
            )
            if number % 10 == 9:
                await producer.flush()


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]


def numbered(*numbers: int) -> list[bytes]:
    return [b"%3d" % number for number in numbers]


async def test_reading_a_queue_yields_every_message_from_the_offset_on(
    client: AsyncClient, topic: str
) -> None:
    await publish(client, topic, 95, queues=1)
    for offset in (0, 1, 10, 37, 94, 95):
        found = [m async for m in client.pull(topic, 0, offset, follow=False)]
        assert bodies(found) == numbered(*range(offset, 95))
        assert [m.offset for m in found] == list(range(offset, 95))
    assert {(m.topic, m.queue) for m in found} <= {(topic, 0)}


async def test_reading_can_start_at_an_end_or_at_a_time(client: AsyncClient, topic: str) -> None:
    await publish(client, topic, 10, queues=1)
    found: list[Message] = []
    time = (await client.pull_once(topic, 0, 0)).messages[0].store_timestamp_ms + 1
    while not found:
        await client.publish(topic, b"later")
        found = [m async for m in client.pull(topic, 0, timestamp_ms=time, follow=False)]
    assert (found[0].offset, found[0].store_timestamp_ms) == await client.offset_at(topic, 0, time)
    assert found[0].store_timestamp_ms >= time
    assert [m async for m in client.pull(topic, 0, start="latest", follow=False)] == []
    everything = [m async for m in client.pull(topic, 0, follow=False)]
    assert everything[0].offset == 0


async def test_a_reader_waits_for_the_next_message(client: AsyncClient, topic: str) -> None:
    await client.create_topic(topic, queues=2)
    async with asyncio.timeout(20):
        for queue in (0, None):
            await wait_for_pulls(client, are_held=False)
            async with client.pull(topic, queue, start="latest") as messages:
                waiting = asyncio.ensure_future(anext(messages))
                await wait_for_pulls(client)
                await client.publish(topic, f"to {queue}", queue=0)
                assert (await waiting).body == f"to {queue}".encode()
                await client.publish(topic, b"more", queue=0)
                assert (await anext(messages)).body == b"more"


async def wait_for_pulls(client: AsyncClient, *, are_held: bool = True) -> None:
    """Wait until the broker holds a pull, or until it holds none."""
    while not re.search(f"long_poll_parked {'[1-9]' if are_held else '0'}", await client.metrics()):
        await asyncio.sleep(0.005)


async def test_reading_a_topic_yields_all_of_its_queues_each_in_order(
    client: AsyncClient, topic: str
) -> None:
    await publish(client, topic, 300, queues=3)
    by_queue: dict[int, list[bytes]] = {}
    async for message in client.pull(topic, follow=False):
        by_queue.setdefault(message.queue, []).append(message.body)
    assert by_queue == {
        queue: [b"%3d" % n for n in range(300) if (n // 10) % 3 == queue] for queue in range(3)
    }


async def test_reading_a_topic_ends_at_the_max_offsets_of_its_start(
    client: AsyncClient, topic: str
) -> None:
    await publish(client, topic, 40, queues=2)
    found = []
    async for message in client.pull(topic, follow=False, max_bytes=1):
        found.append(message)
        if len(found) == 1:
            await publish(client, topic, 40, start=40)
    assert sorted(bodies(found)) == numbered(*range(40))


async def test_the_broker_applies_tags_and_filters(client: AsyncClient, topic: str) -> None:
    await publish(client, topic, 40, queues=2)
    for queue, numbers in ((0, [*range(10), *range(20, 30)]), (None, [*range(40)])):
        odd = [m async for m in client.pull(topic, queue, tag="odd", follow=False)]
        assert sorted(bodies(odd)) == numbered(*(n for n in numbers if n % 2))
        assert {m.tag for m in odd} == {"odd"}
        low = [m async for m in client.pull(topic, queue, filter="n = '3'", follow=False)]
        assert bodies(low) == numbered(3)
        assert low[0].properties == {"n": "3"}


async def test_added_queues_are_read(
    client: AsyncClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "NEW_QUEUES_S", 0.0)
    await client.create_topic(topic, queues=1)
    async with asyncio.timeout(20), client.pull(topic, start="latest", wait_ms=50) as messages:
        waiting = asyncio.ensure_future(anext(messages))
        await wait_for_pulls(client)
        await client.change_topic(topic, queues=2)
        await client.publish(topic, b"new", queue=1)
        assert (await waiting).queue == 1


async def test_one_pull_returns_no_more_than_requested(client: AsyncClient, topic: str) -> None:
    await publish(client, topic, 30, queues=1)
    result = await client.pull_once(topic, 0, 5, max_messages=12)
    assert bodies(result.messages) == numbered(*range(5, 17))
    assert (result.next_offset, result.min_offset, result.max_offset) == (17, 0, 30)
    tagged = await client.pull_once(topic, 0, 5, max_messages=2, tag="even")
    assert bodies(tagged.messages) == numbered(6, 8)
    end = await client.pull_once(topic, 0, 30, wait_ms=10)
    assert end == ([], 30, 0, 30, ())


async def test_batches_are_limited_to_the_range(client: AsyncClient, topic: str) -> None:
    await publish(client, topic, 30, queues=1)
    parts = [part async for part in client.pull_batches(topic, 0, 7, follow=False)]
    assert [(part.start_offset, part.end_offset) for part in parts] == [(7, 10), (10, 20), (20, 30)]
    assert bytes(parts[1].batch.bodies) == b"".join(numbered(*range(10, 20)))
    assert [m.offset for part in parts for m in part] == list(range(7, 30))


async def test_reading_a_missing_topic_queue_or_offset_raises(
    client: AsyncClient, topic: str
) -> None:
    with pytest.raises(errors.UnknownTopic):
        await anext(client.pull(topic, 0))
    with pytest.raises(errors.UnknownTopic):
        await anext(client.pull(topic))
    await client.create_topic(topic, queues=2)
    with pytest.raises(errors.UnknownQueue) as unknown:
        await anext(client.pull(topic, 2))
    assert unknown.value.queue_count == 2
    with pytest.raises(errors.OffsetBeyondEnd) as beyond:
        await anext(client.pull(topic, 0, 5))
    assert beyond.value.max_offset == 0
    with pytest.raises(errors.ApiError, match="invalid-filter"):
        await anext(client.pull(topic, 0, filter="n = = 3"))


def test_an_ambiguous_start_is_refused() -> None:
    client = AsyncClient()
    for arguments in (
        {"queue": 0, "offset": 0, "start": "latest"},
        {"queue": 0, "start": "latest", "timestamp_ms": 5},
        {"queue": 0, "start": "middle"},
        {"offset": 5},
        {"topic": "a/b"},
    ):
        with pytest.raises(ValueError):
            client.pull(**{"topic": "orders", **arguments})  # type: ignore[arg-type]


async def test_reading_ends_when_the_topic_was_created_again(
    client: AsyncClient, topic: str
) -> None:
    for queue in (0, None):
        await publish(client, topic, 1, queues=1)
        async with client.pull(topic, queue, wait_ms=50) as messages:
            await anext(messages)
            await client.delete_topic(topic)
            await publish(client, topic, 1, queues=1)
            with pytest.raises((errors.TopicRecreated, errors.UnknownTopic)):
                await anext(messages)
        await client.delete_topic(topic)


async def test_closing_the_client_ends_a_reader_that_waits(
    shared_broker: RunningBroker, client: AsyncClient, topic: str
) -> None:
    await client.create_topic(topic, queues=1)
    reading = shared_broker.async_client()
    waiting = asyncio.ensure_future(anext(reading.pull(topic, 0)))
    await wait_for_pulls(client)
    await reading.close()
    with pytest.raises(errors.ClientClosed):
        await waiting


async def test_leaving_the_loop_ends_the_request_that_waits(
    client: AsyncClient, topic: str
) -> None:
    await publish(client, topic, 1, queues=1)
    messages = client.pull(topic, 0)
    async with asyncio.timeout(20):
        async for _ in messages:
            await wait_for_pulls(client)
            break
        await wait_for_pulls(client, are_held=False)
    assert [m async for m in messages] == []


async def test_a_cancelled_wait_for_a_message_loses_nothing(
    client: AsyncClient, topic: str
) -> None:
    await client.create_topic(topic, queues=1)
    async with client.pull(topic, 0) as messages:
        waiting = asyncio.ensure_future(anext(messages))
        await wait_for_pulls(client)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        await client.publish(topic, b"first")
        assert (await anext(messages)).body == b"first"


async def test_single_messages_are_found_by_id_and_by_key(client: AsyncClient, topic: str) -> None:
    placed = await client.publish(
        topic, "hallo €", key="k", tag="t", properties={"a": "b"}, ttl_ms=3_600_000
    )
    found = await client.message(placed.message_id)
    assert (found.topic, found.queue, found.offset) == (topic, placed.queue, placed.offset)
    assert found.body == "hallo €".encode()
    assert (found.key, found.tag, found.properties) == ("k", "t", {"a": "b"})
    assert await client.search(topic, "k") == [found]
    assert await client.search(topic, "other") == []
    for unknown in ("F" * 32, "no id", "../topics"):
        with pytest.raises(errors.UnknownMessage):
            await client.message(unknown)


@pytest.mark.crash
async def test_a_reader_continues_after_a_kill_of_the_broker(
    holdfast_broker: RunningBroker,
) -> None:
    async with asyncio.timeout(60), holdfast_broker.async_client() as client:
        await client.create_topic("orders", queues=2)
        for queue in (0, None):
            await wait_for_pulls(client, are_held=False)
            async with client.pull("orders", queue, start="latest") as messages:
                waiting = asyncio.ensure_future(anext(messages))
                await wait_for_pulls(client)
                await asyncio.to_thread(holdfast_broker.kill)
                await asyncio.to_thread(holdfast_broker.start)
                placed = await client.publish("orders", b"after", queue=0)
                assert (await waiting).message_id == placed.message_id


@pytest.mark.crash
async def test_a_producer_continues_after_a_kill_of_the_broker(
    holdfast_broker: RunningBroker,
) -> None:
    async with asyncio.timeout(60), holdfast_broker.async_client() as client:
        await client.create_topic("orders", queues=2)
        async with client.producer("orders", batch_bytes=1000) as producer:
            handles = []
            for number in range(2000):
                handles.append(producer.send(b"%d" % number, key=str(number % 5)))
                if number == 1000:
                    await asyncio.sleep(0.01)
                    await asyncio.to_thread(holdfast_broker.kill)
                    await asyncio.to_thread(holdfast_broker.start)
            places = [await handle for handle in handles]
        stored = {(m.queue, m.offset): m.body async for m in client.pull("orders", follow=False)}
    assert len(stored) == 2000
    assert [stored[place.queue, place.offset] for place in places] == [
        b"%d" % number for number in range(2000)
    ]


async def test_every_method_accepts_a_datetime_or_a_fraction_as_time(
    client: AsyncClient, topic: str
) -> None:
    # C4: the URL quoting raised a TypeError
    await publish(client, topic, 10, queues=1)
    first = await anext(client.pull(topic, 0, 0))
    at = datetime.fromtimestamp(first.store_timestamp_ms / 1000, UTC)
    for time in (at, first.store_timestamp_ms + 0.0):
        for queue in (0, None):
            found = [m async for m in client.pull(topic, queue, timestamp_ms=time, follow=False)]
            assert len(found) == 10
        batches = client.pull_batches(topic, 0, timestamp_ms=time, follow=False)
        assert (await anext(batches)).start_offset == 0
        assert (await client.offset_at(topic, 0, time))[0] == 0
        assert await client.splits(topic, start_timestamp_ms=time, end_timestamp_ms=time) == []
        await client.create_group(f"g-{topic}", topic)
        assert await client.seek_group(f"g-{topic}", time) == {topic: {0: 0}}
        moved = await client.reset_offsets(f"g-{topic}", topic, time)
        assert moved["after"] == {"0": 0}
    with pytest.raises(ValueError, match="time zone"):
        client.pull(topic, timestamp_ms=datetime(2026, 1, 1))


@pytest.mark.parametrize("queue", [0, None])
async def test_an_invalid_filter_is_refused_on_an_empty_topic(
    client: AsyncClient, topic: str, queue: int | None
) -> None:
    # C4: the topic was empty, so the client did not ask the broker
    await client.create_topic(topic, queues=3)
    for start in ("earliest", "latest"):
        with pytest.raises(errors.ApiError) as refused:
            async for _ in client.pull(topic, queue, start=start, filter="a ==", follow=False):
                pass
        assert refused.value.type == "invalid-filter"
    assert [m async for m in client.pull(topic, queue, filter="a = 1", follow=False)] == []


async def test_small_batches_that_the_broker_merges_are_read_with_every_field(
    client: AsyncClient, topic: str
) -> None:
    """`pull_batches` gets the batches as they are stored; `pull` gets them merged."""
    await client.create_topic(topic, queues=1, durability="written")
    for number in range(120):
        await client.publish(
            topic, b"%d" % number, key=f"k{number}", tag=f"t{number % 3}", properties={"n": "v"}
        )
    stored = [batch async for batch in client.pull_batches(topic, 0, 0, follow=False)]
    assert [len(batch) for batch in stored] == [1] * 120
    expected = [message.to_dict() for batch in stored for message in batch]
    pulled = [message async for message in client.pull(topic, 0, 0, follow=False)]
    assert [message.to_dict() for message in pulled] == expected
