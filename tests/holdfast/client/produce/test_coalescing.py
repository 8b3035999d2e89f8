"""Many callers of one client's publish share requests, and no caller sees a difference."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from holdfast.client.async_client import AsyncClient
from holdfast.client.errors import (
    ApiError,
    ClientClosed,
    ConnectionFailed,
    MessageTooLarge,
    Overloaded,
    Unauthenticated,
    UnknownQueue,
)
from holdfast.client.produce.coalescing import PublishCoalescer
from holdfast.client.produce.identities import IdentityPool, ProducerIds
from holdfast.client.produce.new_message import NewMessage
from holdfast.client.produce.publish_queue import PublishOptions, PublishQueue
from holdfast.client.read.results import PublishResult
from holdfast.client.transport.http1 import ReplyParser
from holdfast.client.transport.requests import Transport
from holdfast.client.transport.retry import ONCE, RetryPolicy
from holdfast.client.transport.target import Target
from holdfast.client.values import Durability
from holdfast.commitlog.format.message_id import format_message_id
from holdfast.testing import RunningBroker
from tests.support.event_loop.freed import freed
from tests.support.servers.publish_server import StoredTopic, publish_server
from tests.support.servers.scripted_server import drop, problem

T = TypeVar("T")


def start(
    client: AsyncClient, *bodies: bytes, **options: Any
) -> list["asyncio.Task[PublishResult]"]:
    return [asyncio.create_task(client.publish("orders", body, **options)) for body in bodies]


async def test_publishes_during_a_request_share_the_next_request() -> None:
    topic = StoredTopic(queue_count=1, holds=True)
    async with publish_server(topic) as (_, client):
        calls = start(client, b"0")
        await topic.received(1)
        calls += start(client, b"1", b"2", b"3")
        await asyncio.sleep(0)
        topic.may_answer.set()
        results = await asyncio.gather(*calls)
    assert topic.requests == [[b"0"], [b"1", b"2", b"3"]]
    assert results == [
        PublishResult(0, offset, format_message_id(9, 0, offset), durable=True)
        for offset in range(4)
    ]


async def test_simultaneous_publishes_share_a_request() -> None:
    topic = StoredTopic(queue_count=1)
    async with publish_server(topic) as (server, client):
        await asyncio.gather(*start(client, b"0", b"1", b"2"))
        assert server.requests == ["POST /v1/topics/orders/messages"]
    assert topic.requests == [[b"0", b"1", b"2"]]


async def test_successive_publishes_have_a_request_each() -> None:
    topic = StoredTopic(queue_count=1)
    async with publish_server(topic) as (_, client):
        for number in range(3):
            assert (await client.publish("orders", b"%d" % number)).offset == number
    assert topic.requests == [[b"0"], [b"1"], [b"2"]]


async def test_topics_and_durabilities_neither_share_nor_wait_for_each_other() -> None:
    topic = StoredTopic(queue_count=1, holds=True)
    async with publish_server(topic) as (server, client):
        calls = [
            asyncio.create_task(client.publish("orders", b"1")),
            asyncio.create_task(client.publish("orders", b"2", durability="written")),
            asyncio.create_task(client.publish("orders", b"3", durability="fsync")),
            asyncio.create_task(client.publish("others", b"4")),
        ]
        await topic.received(4)
        topic.may_answer.set()
        results = await asyncio.gather(*calls)
        assert sorted(server.requests) == [
            "POST /v1/topics/orders/messages",
            "POST /v1/topics/orders/messages?durability=fsync",
            "POST /v1/topics/orders/messages?durability=written",
            "POST /v1/topics/others/messages",
        ]
    assert [result.durable for result in results] == [True, False, True, True]


async def test_a_large_message_is_sent_at_once_in_its_own_request() -> None:
    topic = StoredTopic(queue_count=1, holds=True)
    large = b"x" * 100_000
    async with publish_server(topic) as (_, client):
        calls = start(client, b"1", b"2", large)
        await topic.received(2)
        topic.may_answer.set()
        await asyncio.gather(*calls)
    assert sorted(topic.requests) == [[b"1", b"2"], [large]]


async def test_a_refused_message_fails_no_other() -> None:
    topic = StoredTopic(queue_count=1)
    topic.refuse = lambda *_: (
        problem(413, "message-too-large") if b"large" in topic.requests[-1] else None
    )
    async with publish_server(topic) as (_, client):
        good = [b"%d" % number for number in range(7)]
        calls = start(client, *good[:3], b"large", *good[3:])
        results = await asyncio.gather(*calls, return_exceptions=True)
    refused = results.pop(3)
    assert isinstance(refused, MessageTooLarge)
    assert topic.queues[0] == good
    assert [topic.queues[0][result.offset] for result in results] == good  # type: ignore[union-attr]
    assert [b"large"] in topic.requests


async def test_a_refusal_that_no_message_caused_is_raised_in_each_caller() -> None:
    topic = StoredTopic(queue_count=1, refuse=lambda *_: problem(401, "unauthenticated"))
    async with publish_server(topic) as (_, client):
        errors = await asyncio.gather(*start(client, b"1", b"2", b"3"), return_exceptions=True)
    assert all(isinstance(error, Unauthenticated) for error in errors)
    assert len(set(map(id, errors))) == 3
    assert len(topic.requests) == 1


async def test_a_request_whose_reply_is_lost_is_repeated_and_stored_once() -> None:
    topic = StoredTopic(queue_count=1)
    topic.lose_reply = lambda number, request: drop(request) if number <= 2 else None
    async with publish_server(topic) as (_, client):
        results = await asyncio.gather(*start(client, b"1", b"2", b"3"))
    assert topic.queues[0] == [b"1", b"2", b"3"]
    assert [result.offset for result in results] == [0, 1, 2]
    assert topic.requests == [[b"1", b"2", b"3"]] * 3


async def test_after_a_failure_new_messages_are_stored() -> None:
    topic = StoredTopic(queue_count=1)
    topic.refuse = lambda number, *_: problem(500, "internal-error") if number == 1 else None
    async with publish_server(topic) as (_, client):
        errors = await asyncio.gather(*start(client, b"1", b"2"), return_exceptions=True)
        assert all(isinstance(error, ApiError) for error in errors)
        await asyncio.gather(*start(client, b"3", b"4"))
    assert topic.queues[0] == [b"3", b"4"]


async def test_later_messages_do_not_wait_for_a_retried_request() -> None:
    topic = StoredTopic(queue_count=1)
    topic.refuse = lambda *_: (
        problem(503, "overloaded", retry_after_s=20) if b"first" in topic.requests[-1] else None
    )
    async with publish_server(topic) as (_, client):
        (first,) = start(client, b"first")
        await topic.received(1)
        assert (await asyncio.wait_for(client.publish("orders", b"second"), 10)).offset == 0
        assert not first.done()
        first.cancel()


async def test_each_caller_gets_the_error_for_an_unreachable_broker() -> None:
    async with AsyncClient("http://127.0.0.1:1", timeout_ms=1) as client:
        errors = await asyncio.gather(*start(client, b"1", b"2"), return_exceptions=True)
    assert all(isinstance(error, ConnectionFailed) for error in errors)


async def test_cancelling_removes_a_waiting_message() -> None:
    topic = StoredTopic(queue_count=1, holds=True)
    async with publish_server(topic) as (_, client):
        (first,) = start(client, b"first")
        await topic.received(1)
        left, last = start(client, b"left", b"last")
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.wait([left])
        topic.may_answer.set()
        await asyncio.gather(first, last)
    assert left.cancelled()
    assert topic.requests == [[b"first"], [b"last"]]


async def test_cancelling_one_caller_does_not_end_the_request_of_others() -> None:
    topic = StoredTopic(queue_count=1, holds=True)
    async with publish_server(topic) as (_, client):
        left, stays = start(client, b"left", b"stays")
        await topic.received(1)
        left.cancel()
        await asyncio.wait([left])
        topic.may_answer.set()
        assert (await stays).offset == 1
    assert left.cancelled()


async def test_a_request_without_callers_is_not_retried() -> None:
    topic = StoredTopic(queue_count=1)
    topic.refuse = lambda number, request: (
        problem(503, "overloaded", retry_after_s=0) if b"3" not in topic.requests[-1] else None
    )
    async with publish_server(topic) as (_, client):
        before = asyncio.all_tasks()
        calls = start(client, b"1", b"2")
        await topic.received(2)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        async with asyncio.timeout(10):
            while [each for each in asyncio.all_tasks() - before if "_run" in repr(each)]:
                await asyncio.sleep(0)
        await client.publish("orders", b"3")
    assert topic.queues[0] == [b"3"]


async def test_closing_ends_waiting_messages_and_requests_in_flight() -> None:
    topic = StoredTopic(queue_count=1, holds=True)
    async with publish_server(topic) as (_, client):
        under_way = start(client, b"1")
        await topic.received(1)
        waiting = start(client, b"2", b"3")
        await asyncio.sleep(0)
        await client.close()
        ends = await asyncio.gather(*under_way, *waiting, return_exceptions=True)
        assert [type(end) for end in ends] == [ClientClosed] * 3
        with pytest.raises(ClientClosed):
            await client.publish("orders", b"4")
        topic.may_answer.set()
    assert topic.requests == [[b"1"]]


async def test_a_client_forgets_idle_topics(shared_broker: RunningBroker, topic: str) -> None:
    async with AsyncClient(shared_broker.url) as client:
        await asyncio.gather(*(client.publish(f"{topic}-{number}", b"x") for number in range(5)))
        await freed(PublishQueue)


async def test_each_of_many_callers_gets_its_own_result_or_error(
    shared_broker: RunningBroker, topic: str
) -> None:
    async with AsyncClient(shared_broker.url) as client:
        await client.create_topic(topic, queues=3, durability="written", max_message_bytes=1000)

        async def published(number: int) -> PublishResult | Exception:
            body = b"%d" % number * (1000 if number % 50 == 0 else 1)
            queue = {0: 0, 7: 3}.get(number % 31)
            key = None if number % 3 else f"key-{number % 11}"
            durabilities: tuple[Durability | None, ...] = (None, "written", "fsync")
            durability = durabilities[number % 4 % 3]
            try:
                return await client.publish(
                    topic, body, key=key, queue=queue, durability=durability
                )
            except (MessageTooLarge, UnknownQueue) as error:
                return error

        numbers = range(1, 400)
        results = dict(zip(numbers, await asyncio.gather(*map(published, numbers)), strict=True))
        stored = {
            (message.queue, message.offset): int(message.body)
            async for message in client.pull(topic, follow=False)
        }
    errors = {n: type(end) for n, end in results.items() if isinstance(end, Exception)}
    placed = {n: end for n, end in results.items() if isinstance(end, PublishResult)}
    assert {n for n, error in errors.items() if error is MessageTooLarge} == set(range(50, 400, 50))
    assert {n for n in errors if n % 50} == {n for n in range(7, 400, 31) if n % 50}
    assert stored == {(result.queue, result.offset): n for n, result in placed.items()}
    assert {result.queue for n, result in placed.items() if n % 31 == 0} == {0}


class ClockedTransport(Transport):
    """A transport to a broker that is always overloaded. Only pauses advance its clock."""

    def __init__(self) -> None:
        super().__init__(Target.parse("http://nowhere", None, None), ONCE)
        self.time_s = 0.0
        self.tries = 0
        self.first_may_fail = asyncio.Event()

    async def _send_once(self, *_: object, **__: object) -> ReplyParser:
        self.tries += 1
        if self.tries == 1:
            await self.first_may_fail.wait()
        raise Overloaded(503, "overloaded", retry_after_s=1.0)

    def check_open(self) -> None:
        pass

    def now_s(self) -> float:
        return self.time_s

    async def call_blocking(self, function: Callable[[], T]) -> T:
        return function()

    async def pause(self, seconds: float) -> None:
        for _ in range(3):  # let callers that were resumed run before the time changes
            await asyncio.sleep(0)
        self.time_s += seconds

    async def close(self) -> None:
        pass


async def test_each_caller_fails_after_its_own_timeout() -> None:
    requests = ClockedTransport()
    sharing = PublishCoalescer(
        requests, IdentityPool(ProducerIds()), RetryPolicy(give_up_after_s=10)
    )
    ends: dict[str, float] = {}

    async def publish(name: str) -> None:
        with pytest.raises(Overloaded):
            await sharing.publish("orders", PublishOptions(), NewMessage(name.encode()))
        ends[name] = requests.time_s

    first = asyncio.create_task(publish("first"))
    async with asyncio.timeout(10):
        while not requests.tries:
            await asyncio.sleep(0)
    callers = []
    for asked_at_s in (0, 4, 8):
        requests.time_s = asked_at_s
        callers.append(asyncio.create_task(publish(f"at {asked_at_s}")))
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, *callers, return_exceptions=True)
    assert ends.keys() == {"at 0", "at 4", "at 8"}
    for asked_at_s in (0, 4, 8):
        # The caller fails within its own time limit, and not before the last allowed attempt.
        assert asked_at_s + 10 - 1.25 <= ends[f"at {asked_at_s}"] <= asked_at_s + 10
