"""Push is pull in a loop: the requests of a waiting consumer, and which calls wait for which."""

import asyncio
import threading
import tracemalloc
from collections.abc import Sequence
from inspect import signature
from typing import Any

import pytest
from aiohttp import web

from holdfast.client.async_client import AsyncClient
from holdfast.client.consume.delivery import Delivery
from holdfast.client.read.pull import PullOptions
from holdfast.client.sync_client import Client
from holdfast.client.transport.async_transport import AsyncConnection
from holdfast.client.transport.http1 import ReplyParser
from holdfast.testing import RunningBroker
from tests.support.clients.broker_calls import Calls
from tests.support.damage.dropping_proxy import dropping_proxy
from tests.support.servers.fake_group import GROUP, fake_group, until

TIMEOUT_S = 30


# -- requests on the wire --------------------------------------------------------------------


def test_following_a_topic_sends_only_pulls_and_one_per_wait(
    shared_broker: RunningBroker, topic: str
) -> None:
    # L1, L3: an idle consumer sends three requests a minute
    with shared_broker.client() as publisher:
        publisher.create_topic(topic, queues=1)
        with (
            dropping_proxy(shared_broker.url, lambda _: False) as proxy,
            Client(proxy.url) as client,
        ):
            messages = client.pull(topic, queue=0, offset=0)
            for body in (b"a", b"b", b"c"):
                publisher.publish(topic, body)
                assert next(messages).body == body
        publisher.publish(topic, b"d")  # ends a pull that the proxy may still wait for
    waits = [target for target in proxy.targets if "wait_ms=0" not in target]
    assert {target.split("?")[0] for target in proxy.targets} == {
        f"/v1/topics/{topic}/queues/0/messages"
    }
    assert all("wait_ms=20000" in target for target in waits)
    assert len(waits) <= 3
    assert 60_000 / PullOptions.wait_ms <= 5


async def test_a_waiting_member_has_one_receive_in_flight_and_sends_nothing_else() -> None:
    # L1, L3
    async with fake_group() as (group, client), client.consume("t", GROUP) as consumer:
        waiting = asyncio.create_task(consumer.next())
        for number in range(3):
            await until(lambda: len(group.named("receive")) == len(group.answers) + 1)
            assert not waiting.done()
            group.publish(1)
            delivery = await waiting
            assert delivery is not None
            assert delivery.offset == number
            waiting = asyncio.create_task(consumer.next())
        await until(lambda: len(group.acked) == 3)
        waiting.cancel()
        held = [body for body in group.named("receive") if body["wait_ms"]]
        assert all(body["wait_ms"] == 20_000 for body in held)
        assert {name for name, _ in group.asked} <= {"describe", "put", "receive", "ack"}


async def test_the_client_waits_ten_seconds_longer_than_the_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # L6
    waits: list[float] = []
    exchange = AsyncConnection.exchange

    async def note(
        self: AsyncConnection, head: bytes, body: Sequence[bytes], wait_s: float
    ) -> ReplyParser:
        waits.append(wait_s)
        return await exchange(self, head, body, wait_s)

    monkeypatch.setattr(AsyncConnection, "exchange", note)
    async with fake_group(1) as (group, client):
        async with client.consume("t", GROUP) as consumer:
            await anext(consumer)
            await until(lambda: len(waits) == len(group.asked))
        by_name = dict(zip((name for name, _ in group.asked), waits, strict=False))
    assert (by_name["describe"], by_name["receive"]) == (10, 30)


# -- members ---------------------------------------------------------------------------------


async def test_each_consumer_of_a_program_has_its_own_limit() -> None:
    # T5
    async with fake_group(40) as (group, client):
        options: dict[str, Any] = {"max_in_flight": 10, "concurrency": 10, "serial_by": "nothing"}
        async with (
            client.consume("t", GROUP, **options) as one,
            client.consume("t", GROUP, **options) as other,
        ):
            for consumer in (one, other):
                for _ in range(10):
                    assert await consumer.next() is not None
            held = [list(group.holders.values()).count(each.member) for each in (one, other)]
            assert held == [10, 10]


def test_a_backlog_of_a_million_does_not_grow_a_consumer_without_settings(
    shared_broker: RunningBroker, topic: str
) -> None:
    # T19: the client's default holds few messages, and the group's default is the ceiling
    assert signature(AsyncClient.consume).parameters["max_in_flight"].default == 32
    with shared_broker.client() as client, shared_broker.client() as observer:
        client.create_topic(topic, queues=1, durability="written")
        client.create_group(topic, [topic])
        with client.producer(topic) as producer:
            for _ in range(1_000_000):
                producer.send(b"x")

        def in_flight() -> int:
            return observer.describe_group(topic).in_flight or 0

        with client.consume(topic, topic) as consumer:
            for _ in range(1_000):  # a buffer grows to its size, and caches fill
                consumer.next()
            held = [in_flight()]
            tracemalloc.start()
            for number in range(3_000):
                consumer.next()
                if number % 500 == 0:
                    held.append(in_flight())
            _, peak_bytes = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert consumer.available > 990_000
        assert 1 < max(held) <= 32
        assert peak_bytes < 1 << 20
        calls = Calls(shared_broker.url)
        for member in "abc":
            asked = {"member": member, "max_messages": 10_000}
            assert calls("POST", f"/v1/groups/{topic}/receive", asked).status == 200
        assert in_flight() == 1_000


async def test_ack_returns_before_the_broker_has_answered() -> None:
    # T21: `ack` returns before the broker has answered
    may_answer = asyncio.Event()

    async def delay(name: str, asked: dict[str, Any]) -> web.StreamResponse | None:
        if name == "ack":
            await may_answer.wait()
        return None

    async with fake_group(2) as (group, client):
        group.before = delay
        async with client.consume("t", GROUP, concurrency=2, serial_by="nothing") as consumer:
            for offset in range(2):
                delivery = await consumer.next()
                assert delivery is not None
                assert delivery.offset == offset
                delivery.ack()
            await until(lambda: group.named("ack"))
            assert group.acked == []
            may_answer.set()
        assert [offset for _, _, offset in group.acked] == [0, 1]


async def test_closing_a_consumer_ends_a_wait_without_a_time_limit() -> None:
    # T9
    async with fake_group() as (group, client):
        consumer = client.consume("t", GROUP)
        waiting = asyncio.create_task(consumer.next())
        await until(lambda: group.named("receive"))
        assert not waiting.done()
        await consumer.close()
        async with asyncio.timeout(TIMEOUT_S):
            assert await waiting is None


async def test_an_empty_queue_ends_the_consumer_at_once() -> None:
    # T9
    async with fake_group() as (group, client):
        async with client.consume("t", GROUP, follow=False) as consumer:
            assert await consumer.next() is None
        assert [body["wait_ms"] for body in group.named("receive")] == [0]


# -- handlers --------------------------------------------------------------------------------


@pytest.mark.parametrize(("queues", "threads", "peak"), [(2, 8, 2), (8, 2, 2), (5, 5, 5)])
async def test_queues_and_threads_limit_how_many_handlers_run_at_once(
    queues: int, threads: int, peak: int
) -> None:
    # T13
    lock, together = threading.Lock(), threading.Barrier(peak, timeout=TIMEOUT_S)
    running, most = 0, 0

    def handle(delivery: Delivery) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        if delivery.offset == 0 and delivery.queue < peak:
            together.wait()  # passes only when `peak` handlers have reached it together
        with lock:
            running -= 1

    async with fake_group(4, queues) as (group, client):
        await client.consume("t", GROUP, concurrency=threads, follow=False).run(handle)
        assert len(group.acked) == 4 * queues
    assert most == peak


async def test_stuck_handlers_do_not_stop_lease_extensions_and_acknowledgements() -> None:
    # T10
    may_end = threading.Event()

    def handle(delivery: Delivery) -> None:
        if delivery.offset == 1:
            delivery.ack()  # settled by a handler that does not return
            may_end.wait(TIMEOUT_S)

    async with fake_group(3, 2, lease_ms=40) as (group, client):
        consumer = client.consume("t", GROUP, concurrency=2)
        running = asyncio.create_task(consumer.run(handle))
        try:
            await until(lambda: sum(offset == 1 for _, _, offset in group.acked) == 2)
            extended = len(group.named("extend"))
            await until(lambda: len(group.named("extend")) >= extended + 2)
        finally:
            may_end.set()
            consumer.stop()
            await running


async def test_a_handler_may_call_the_client_that_called_it() -> None:
    # T16
    async with fake_group(3) as (group, _):

        def run() -> None:
            with Client(group.url) as client:

                def handle(delivery: Delivery) -> None:
                    assert client.receive(GROUP, "another", max_messages=0).messages == []
                    assert delivery.ack().result(TIMEOUT_S) == "done"

                client.consume("t", GROUP, follow=False).run(handle)

        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.to_thread(run)
        assert len(group.acked) == 3
