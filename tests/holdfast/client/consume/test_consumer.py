"""A member of a group, against a scriptable fake group."""

import asyncio
import logging
import threading
from functools import partial
from inspect import signature
from typing import Any

import pytest
from aiohttp import web

from holdfast.client.async_client import AsyncClient
from holdfast.client.consume import prefetch
from holdfast.client.consume.delivery import Delivery
from holdfast.client.errors import ExclusiveHeld, Forbidden
from holdfast.client.sync_client import Client
from tests.support.servers.fake_group import GROUP, FakeGroup, fake_group, until
from tests.support.servers.scripted_server import problem


def offsets(group: FakeGroup) -> list[int]:
    return sorted(offset for _, _, offset in group.acked)


def are_extended(group: FakeGroup, receipts: set[str], before: int) -> bool:
    """Return whether requests after the first `before` ones have extended all these leases."""
    extended = {r for body in group.named("extend")[before:] for r in body["receipts"]}
    return receipts <= extended


# -- iterating -------------------------------------------------------------------------------


async def test_the_next_delivery_acknowledges_the_current_one() -> None:
    async with fake_group(10) as (group, client):
        async with client.consume("t", GROUP, follow=False) as consumer:
            assert [delivery.offset async for delivery in consumer] == list(range(10))
        assert offsets(group) == list(range(10))
        assert not group.leased


async def test_leaving_a_loop_releases_the_current_and_the_waiting_messages() -> None:
    # T24
    async with fake_group(10) as (group, client):
        async with client.consume("t", GROUP) as consumer:
            async for delivery in consumer:
                if delivery.offset == 3:
                    break
        assert offsets(group) == [0, 1, 2]
        assert sorted(offset for _, _, offset in group.available) == [3, 4, 5, 6, 7, 8, 9]
        assert group.named("leave") == [{"member": consumer.member}]


async def test_the_first_settlement_of_a_message_counts() -> None:
    async with fake_group(4) as (group, client):
        settled = []
        async with client.consume("t", GROUP, follow=False) as consumer:
            for verb in ("ack", "reject", "nack", "release"):
                delivery = await anext(consumer)
                settled.append((delivery.receipt, verb))
                if verb == "nack":
                    delivery.nack(70)
                else:
                    getattr(delivery, verb)()
                delivery.ack()
                assert delivery.is_settled
                assert await getattr(delivery, verb)() == "done"
        for receipt, verb in settled:
            (body,) = [each for each in group.named(verb) if receipt in each["receipts"]]
            assert body.get("delay_ms") == (70 if verb == "nack" else None)
        assert offsets(group) == [0]


async def test_a_with_block_acknowledges_and_an_exception_in_it_nacks() -> None:
    async with fake_group(2) as (group, client):
        async with client.consume("t", GROUP) as consumer:
            with await anext(consumer) as first:
                pass
            with pytest.raises(ValueError, match="bad"), await anext(consumer):
                raise ValueError("bad")
            assert await first.ack() == "done"
        assert offsets(group) == [0]
        assert len(group.named("nack")) == 1


async def test_with_concurrency_each_delivery_is_settled_explicitly() -> None:
    async with fake_group(2, 4) as (group, client):
        async with client.consume("t", GROUP, concurrency=3) as consumer:
            taken = [await anext(consumer) for _ in range(3)]
            assert sorted({each.queue for each in taken}) == sorted(each.queue for each in taken)
            fourth = asyncio.create_task(consumer.next())
            await until(lambda: len(group.leased) > 3)
            assert not fourth.done()
            assert not group.acked
            assert await taken[1].ack() == "done"
            delivery = await asyncio.wait_for(fourth, 10)
            assert delivery is not None
            assert delivery.queue not in {taken[0].queue, taken[2].queue}
        assert len(group.acked) == 1
        assert len(group.available) == 7


async def test_commit_acknowledges_all_returned_deliveries_durably() -> None:
    async with fake_group(3) as (group, client):
        async with client.consume("t", GROUP) as consumer:
            await anext(consumer)
            await consumer.commit()
            assert offsets(group) == [0]
            assert (await anext(consumer)).offset == 1
        assert offsets(group) == [0]


async def test_settled_messages_need_no_acknowledgement() -> None:
    # T22
    async with fake_group(5) as (group, client):
        async with client.consume("t", GROUP, settled=True, follow=False) as consumer:
            async for delivery in consumer:
                assert delivery.receipt is None
                assert await delivery.ack() == "done"
        assert all(body["settled"] for body in group.named("receive"))
        assert not group.named("ack")


async def test_a_missing_group_is_created() -> None:
    async with fake_group(1, exists=False) as (group, client):
        async with client.consume(["t", "u"], GROUP, start="latest", follow=False) as consumer:
            assert [delivery.body async for delivery in consumer] == [b"0"]
        (put,) = group.named("put")
        assert put == {"topics": {"t": {"weight": 1}, "u": {"weight": 1}}, "start": "latest"}
        assert group.named("receive")[0]["topics"] == ["t", "u"]


@pytest.mark.parametrize(
    ("status", "type_", "error"),
    [(409, "group-exclusive", ExclusiveHeld), (403, "forbidden", Forbidden)],
)
async def test_a_refused_receive_is_raised_by_each_call(
    status: int, type_: str, error: type[Exception]
) -> None:
    # T29
    async with fake_group() as (group, client):

        async def refuse(name: str, asked: dict[str, Any]) -> web.StreamResponse | None:
            return problem(status, type_) if name == "receive" else None

        group.before = refuse
        async with client.consume("t", GROUP) as consumer:
            with pytest.raises(error):
                await anext(consumer)
            with pytest.raises(error):
                await anext(consumer)


# -- requests on the wire --------------------------------------------------------------------


async def test_a_receive_whose_reply_is_lost_is_repeated_with_its_attempt_id() -> None:
    async with fake_group(3) as (group, client):
        group.lose = {"receive": 1, "ack": 1}
        async with client.consume("t", GROUP, follow=False) as consumer:
            assert [delivery.offset async for delivery in consumer] == [0, 1, 2]
        attempts = [body["attempt_id"] for body in group.named("receive")]
        assert attempts[0] == attempts[1]
        assert len(set(attempts)) == len(attempts) - 1
        assert offsets(group) == [0, 1, 2]


@pytest.mark.parametrize(("status", "type_"), [(429, "too-many-held"), (503, "draining")])
async def test_requests_to_a_busy_broker_are_retried(status: int, type_: str) -> None:
    async with fake_group(1) as (group, client):
        refusals = {"receive": 2, "ack": 2, "describe": 1}

        async def refuse(name: str, asked: dict[str, Any]) -> web.StreamResponse | None:
            if not refusals.get(name):
                return None
            refusals[name] -= 1
            return problem(status, type_, 0)

        group.before = refuse
        async with client.consume("t", GROUP, follow=False) as consumer:
            assert [delivery.offset async for delivery in consumer] == [0]
        assert offsets(group) == [0]
        assert not any(refusals.values())


async def test_acknowledgements_are_sent_in_batches() -> None:
    # T26: a request leaves once `ack_batch` acknowledgements have gathered
    async with fake_group(200) as (group, client):
        async with client.consume(
            "t",
            GROUP,
            max_in_flight=200,
            concurrency=200,
            serial_by="nothing",
            ack_batch=50,
            ack_interval_ms=10**6,
        ) as consumer:
            taken = [await anext(consumer) for _ in range(200)]
            for delivery in taken[:49]:
                delivery.ack()
            await asyncio.sleep(0)
            assert not group.named("ack")
            taken[49].ack()
            await until(lambda: len(group.acked) == 50)
        assert [len(body["receipts"]) for body in group.named("ack")] == [50]


async def test_by_default_an_acknowledgement_is_sent_within_5_ms_and_at_the_end() -> None:
    # T26
    assert signature(AsyncClient.consume).parameters["ack_interval_ms"].default == 5
    options: dict[str, Any] = {"concurrency": 3, "serial_by": "nothing"}
    async with fake_group(4) as (group, client):
        async with client.consume("t", GROUP, **options) as consumer:
            (await anext(consumer)).ack()
            await until(lambda: offsets(group) == [0])
        async with client.consume("t", GROUP, ack_interval_ms=10**6, **options) as consumer:
            assert await (await anext(consumer)).ack() == "done"
            assert offsets(group) == [0, 1]
            (await anext(consumer)).ack()
        assert offsets(group) == [0, 1, 2]


async def test_when_all_messages_are_settled_the_buffer_is_empty_and_one_request_waits() -> None:
    # F12
    async with (
        fake_group(20) as (group, client),
        client.consume("t", GROUP, max_in_flight=8) as consumer,
    ):
        for _ in range(20):
            (await anext(consumer)).ack()
        waiting = asyncio.create_task(consumer.next())
        await until(lambda: len(group.acked) == 20 and not group.available)
        await until(lambda: not group.leased)
        await until(lambda: len(group.answers) == len(group.named("receive")) - 1)
        asked = group.named("receive")[-1]
        assert asked["max_messages"] <= 8
        assert asked["wait_ms"] > 0
        group.publish(1)
        delivery = await asyncio.wait_for(waiting, 10)
        assert delivery is not None
        assert delivery.offset == 20


async def test_an_idle_consumer_sends_its_acknowledgements_at_once() -> None:
    # T27
    async with (
        fake_group(1) as (group, client),
        client.consume("t", GROUP, ack_interval_ms=10**6) as consumer,
    ):
        await anext(consumer)
        waiting = asyncio.create_task(consumer.next())
        await until(lambda: len(group.acked) == 1)
        group.publish(1)
        assert await asyncio.wait_for(waiting, 10) is not None


async def test_a_consumer_never_holds_more_than_max_in_flight() -> None:
    # T18, F16
    async with fake_group(100) as (group, client):
        held = []

        async def watch(name: str, asked: dict[str, Any]) -> web.StreamResponse | None:
            carried = sum(len(each["receipts"]) for each in asked.get("settle", ()))
            held.append(len(group.leased) - carried + asked.get("max_messages", 0))
            return None

        group.before = watch
        async with client.consume("t", GROUP, max_in_flight=7, follow=False) as consumer:
            held += [len(group.leased) async for _ in consumer]
        assert len(group.acked) == 100
        assert max(held) <= 7


async def test_the_waiting_messages_of_a_slow_consumer_are_limited_in_number_and_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # L24: here 2 MB instead of 100 MiB
    assert signature(AsyncClient.consume).parameters["max_in_flight"].default <= 1_000
    assert prefetch.MAX_BUFFERED_BYTES == 100 * 1024 * 1024
    monkeypatch.setattr(prefetch, "MAX_BUFFERED_BYTES", 2_000_000)
    async with fake_group(200, padding=bytes(100_000)) as (group, client):
        async with client.consume(
            "t",
            GROUP,
            max_in_flight=200,
            max_bytes=500_000,
            concurrency=50,
            serial_by="nothing",
        ) as consumer:
            taken = [await anext(consumer) for _ in range(50)]  # the slow handlers
            await until(lambda: len(group.leased) >= 50 + 16)
            full = len(group.named("receive"))
            for _ in range(200):
                await asyncio.sleep(0.001)
                assert len(group.leased) * 100_000 <= 5_000_000 + 2_000_000
            assert len(group.named("receive")) == full, "a full consumer sends no requests"
            for _ in range(150):
                taken.pop(0).ack()
                taken.append(await anext(consumer))
            assert len({each.offset for each in taken}) == 50
        assert len(group.acked) == 150


async def test_a_message_whose_delay_has_just_ended_is_consumed_before_the_end() -> None:
    async with fake_group() as (group, client):

        async def describe(name: str, body: Any) -> web.StreamResponse | None:
            if name == "describe" and group.named("receive") and not group.bodies:
                group.publish(1)  # its delay ends before this answer, and after the empty receive
            return None

        group.before = describe
        consumer = client.consume("t", GROUP, follow=False, wait_for_delayed=True)
        assert [delivery.offset async for delivery in consumer] == [0]


async def test_leases_of_current_and_waiting_messages_are_extended_at_half_their_time() -> None:
    async with (
        fake_group(4, lease_ms=40) as (group, client),
        client.consume("t", GROUP) as consumer,
    ):
        delivery = await anext(consumer)
        await until(lambda: len(group.leased) >= 2)
        waiting = set(group.leased)
        for _ in range(2):
            before = len(group.named("extend"))
            await until(partial(are_extended, group, waiting, before))
        delivery.ack()
        assert await delivery.ack() == "done"
        settled = len(group.named("extend"))
        await until(lambda: len(group.named("extend")) > settled + 1)
        later = group.named("extend")[settled + 1 :]
        assert all(delivery.receipt not in body["receipts"] for body in later)


async def test_a_lost_lease_is_logged_and_its_waiting_messages_are_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        fake_group(2, lease_ms=40) as (group, client),
        client.consume("t", GROUP) as consumer,
    ):
        delivery = await anext(consumer)
        await until(lambda: len(group.leased) == 2)
        group.end_leases()
        await until(lambda: delivery.is_lost)
        assert await delivery.ack() in ("stale", "done")
        group.publish(1)
        # The waiting message is not handled: another member has it now.
        assert (await anext(consumer)).offset == 2
    assert "has ended while it was processed" in caplog.text


async def test_a_delivery_can_extend_its_lease() -> None:
    async with fake_group(1) as (group, client):
        async with client.consume("t", GROUP) as consumer:
            delivery = await anext(consumer)
            assert await delivery.extend(600_000) == "done"
            assert not delivery.is_settled
        assert group.named("extend") == [{"receipts": [delivery.receipt], "lease_ms": 600_000}]


async def test_later_messages_of_a_nacked_key_are_not_processed() -> None:
    # I11: the broker also revokes the leases of the later messages of the key.
    async with fake_group(mode="keyed") as (group, client):
        group.publish(3, key="a")
        group.publish(1, key="b")
        async with client.consume("t", GROUP, max_in_flight=8, concurrency=2) as consumer:
            first = await anext(consumer)
            second = await anext(consumer)
            assert (first.key, second.key) == ("a", "b")
            await until(lambda: len(group.leased) == 4)
            first.nack()
            again = await anext(consumer)
            assert again.offset == 0
            assert again.receipt != first.receipt


async def test_later_messages_of_a_nacked_key_may_be_in_an_older_reply() -> None:
    # I11: the reply was made before the broker received the nack, and arrives after it.
    async with fake_group(mode="keyed") as (group, client):
        group.publish(6, key="a")
        receives = 0

        async def answer_late(name: str, asked: dict[str, Any]) -> web.StreamResponse | None:
            nonlocal receives
            receives += name == "receive"
            if name != "receive" or receives != 2:
                return None
            answer = await group.reply_to(name, asked)
            await until(lambda: group.named("nack"))
            return answer

        group.before = answer_late
        seen = []

        async def handle(delivery: Delivery) -> None:
            seen.append(delivery.offset)
            if len(seen) == 1:
                await until(lambda: receives == 2)
                delivery.nack(0)

        await asyncio.wait_for(client.consume("t", GROUP, follow=False).run(handle), 20)
        assert group.named("extend")
        assert seen == [0, 0, 1, 2, 3, 4, 5]


async def test_processing_times_are_reported_by_topic_if_cost_is_time() -> None:
    async with fake_group(cost="time") as (group, client):
        group.publish(2, "slow")
        group.publish(2, "fast")
        time = asyncio.get_running_loop().time
        topics: list[str] = []
        begun_s, ended_s = [], [time()]
        async with client.consume(["slow", "fast"], GROUP, follow=False) as consumer:
            async for delivery in consumer:
                begun_s.append(time())
                topics.append(delivery.topic)
                await asyncio.sleep(0.03 if delivery.topic == "slow" else 0)
                ended_s.append(time())
            begun_s.append(time())
        # Each reported time is at least the handling time. It is at most the time from the request
        # for the message to the arrival of the next message.
        bounds_s = [
            (topic, ended_s[number + 1] - begun_s[number], begun_s[number + 1] - ended_s[number])
            for number, topic in enumerate(topics)
        ]
        of_receipt = {
            message["receipt"]: message["topic"]
            for messages in group.answers.values()
            for message in messages
        }
        for body in group.named("ack"):
            (topic,) = {of_receipt[receipt] for receipt in body["receipts"]}
            least_s = min(least for of, least, _ in bounds_s if of == topic)
            most_s = max(most for of, _, most in bounds_s if of == topic)
            assert least_s <= body["used_ms"] / 1000 <= most_s


# -- handlers --------------------------------------------------------------------------------


async def test_handlers_are_serial_by_queue_and_parallel_across() -> None:
    # T11, T12
    async with fake_group(20, 3) as (group, client):
        seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
        running: set[int] = set()
        peak = 0

        async def handle(delivery: Delivery) -> None:
            nonlocal peak
            assert delivery.queue not in running
            running.add(delivery.queue)
            peak = max(peak, len(running))
            seen[delivery.queue].append(delivery.offset)
            await asyncio.sleep(0)
            running.remove(delivery.queue)

        consumer = client.consume("t", GROUP, concurrency=2, follow=False)
        await consumer.run(handle)
        assert all(each == list(range(20)) for each in seen.values())
        assert peak == 2
        assert len(group.acked) == 60


async def test_a_handler_that_settles_early_keeps_its_queue_until_it_returns() -> None:
    # T12
    async with fake_group(5) as (group, client):
        running = 0

        async def handle(delivery: Delivery) -> None:
            nonlocal running
            running += 1
            assert running == 1
            assert await delivery.ack() == "done"
            running -= 1

        await client.consume("t", GROUP, concurrency=4, follow=False).run(handle)
        assert offsets(group) == [0, 1, 2, 3, 4]


async def test_a_handler_that_raises_nacks_its_message(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_group(3) as (group, client):
        failures = [1]

        async def handle(delivery: Delivery) -> None:
            if delivery.offset == 1 and failures:
                failures.pop()
                raise RuntimeError("no coffee")
            if delivery.offset == 2:
                delivery.reject()

        with caplog.at_level(logging.WARNING, "holdfast.client"):
            await client.consume("t", GROUP, follow=False).run(handle)
        assert len(group.named("nack")) == 1
        assert len(group.named("reject")) == 1
        assert offsets(group) == [0, 1]
        assert "no coffee" in caplog.text


async def test_a_plain_function_is_called_in_handler_threads() -> None:
    async with fake_group(5, 4) as (group, client):
        together = threading.Barrier(2, timeout=10)
        names = set()

        def handle(delivery: Delivery) -> None:
            names.add(threading.current_thread().name)
            if delivery.offset == 0:
                together.wait()

        await client.consume("t", GROUP, concurrency=2, follow=False).run(handle)
        assert len(group.acked) == 20
        assert all(name.startswith("holdfast-handler") for name in names)


async def test_a_function_that_returns_a_coroutine_is_awaited() -> None:
    async with fake_group(2) as (_, client):
        done = []

        async def work(delivery: Delivery) -> None:
            await asyncio.sleep(0)
            done.append(delivery.offset)

        await client.consume("t", GROUP, follow=False).run(lambda delivery: work(delivery))
        assert done == [0, 1]


async def test_closing_waits_for_handlers_and_releases_the_other_messages() -> None:
    async with fake_group(3) as (group, client):
        started, may_end = asyncio.Event(), asyncio.Event()

        async def handle(delivery: Delivery) -> None:
            started.set()
            await may_end.wait()

        consumer = client.consume("t", GROUP)
        running = asyncio.create_task(consumer.run(handle))
        await started.wait()
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        assert not closing.done()
        may_end.set()
        await asyncio.wait_for(asyncio.gather(closing, running), 10)
        assert offsets(group) == [0]
        assert sorted(offset for _, _, offset in group.available) == [1, 2]


async def test_a_handler_may_close_its_consumer() -> None:
    async with fake_group(3) as (group, client):
        consumer = client.consume("t", GROUP)

        async def handle(delivery: Delivery) -> None:
            await consumer.close()

        await asyncio.wait_for(consumer.run(handle), 10)
        assert offsets(group) == [0]


async def test_cancelling_waits_for_handlers_in_threads_and_settles_their_messages() -> None:
    async with fake_group(2) as (group, client):
        started, may_end = threading.Event(), threading.Event()

        def handle(delivery: Delivery) -> None:
            started.set()
            assert may_end.wait(60)

        running = asyncio.create_task(client.consume("t", GROUP, concurrency=1).run(handle))
        await until(started.is_set)
        running.cancel()
        done, _ = await asyncio.wait({running}, timeout=0.2)
        assert not done
        assert (0, 0) in [place[1:] for place in group.leased.values()]
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert offsets(group) == [0]
        assert [offset for _, _, offset in group.available] == [1]


@pytest.mark.parametrize(("is_plain", "is_closing"), [(False, False), (True, False), (True, True)])
async def test_cancelling_cancels_the_coroutine_of_a_handler(
    is_plain: bool, is_closing: bool
) -> None:
    """A plain handler is a function that returns a coroutine."""
    async with fake_group(3) as (group, client):
        started = asyncio.Event()

        async def wait_for_ever(delivery: Delivery) -> None:
            started.set()
            await asyncio.Event().wait()

        consumer = client.consume("t", GROUP)
        handler = (lambda delivery: wait_for_ever(delivery)) if is_plain else wait_for_ever
        running = asyncio.create_task(consumer.run(handler))
        await started.wait()
        if is_closing:
            consumer.stop()
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(running), 20)
        assert not group.acked
        assert len(group.available) == 3
        assert not group.named("nack")


async def test_a_coroutine_that_a_thread_returns_after_a_cancellation_is_cancelled() -> None:
    async with fake_group(1) as (group, client):
        started, may_return = threading.Event(), threading.Event()

        async def wait_for_ever() -> None:
            await asyncio.Event().wait()

        def handle(delivery: Delivery) -> Any:
            started.set()
            assert may_return.wait(60)
            return wait_for_ever()

        running = asyncio.create_task(client.consume("t", GROUP).run(handle))
        await until(started.is_set)
        running.cancel()
        may_return.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(running), 20)
        assert len(group.available) == 1


async def test_closing_the_client_closes_its_consumers() -> None:
    async with fake_group(3) as (group, _):
        async with AsyncClient(group.url) as other:
            consumer = other.consume("t", GROUP)
            await anext(consumer)
            (await anext(consumer)).ack()
        assert offsets(group) == [0, 1]
        assert len(group.named("leave")) == 1
        assert await consumer.next() is None


# -- threads ---------------------------------------------------------------------------------


async def test_the_blocking_consumer_iterates_runs_handlers_and_closes() -> None:
    async with fake_group(10, 3) as (group, _):

        def iterate() -> None:
            with Client(group.url) as client:
                with client.consume("t", GROUP) as consumer:
                    for count, delivery in enumerate(consumer, 1):
                        if count == 1:
                            assert delivery.reject().result(10) == "done"
                        if count == 5:
                            break
                assert len(group.acked) == 3

        def run() -> None:
            with Client(group.url) as client:
                threads = set()

                def handle(delivery: Delivery) -> None:
                    threads.add(threading.current_thread())
                    if delivery.offset % 2:
                        assert delivery.ack().result(10) == "done"

                client.consume("t", GROUP, concurrency=3, follow=False).run(handle)
                assert threading.current_thread() not in threads

        def close_inside() -> None:
            with Client(group.url) as client:
                consumer = client.consume("t", GROUP)
                consumer.run(lambda delivery: consumer.close())

        await asyncio.wait_for(asyncio.to_thread(iterate), 20)
        await asyncio.wait_for(asyncio.to_thread(run), 20)
        assert len(group.acked) == 29
        group.publish(3)
        await asyncio.wait_for(asyncio.to_thread(close_inside), 20)
        assert len(group.acked) == 30
