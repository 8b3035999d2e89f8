"""A limited number of large replies is rendered at once; other large ones wait, small ones do
not."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest

from holdfast.consumequeue.slices import ITEMS_A_TURN
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.endpoints import group_lag
from holdfast.http_api.endpoints.held_read import LARGE_BYTES
from holdfast.http_api.limits.reply_slots import ClientPlaces, LargeReplySlot, OneALoopTurn
from holdfast.http_api.routing.context import SEARCHES_AT_WORK, WIDE_AT_WORK
from tests.support.clients.raw_http import until
from tests.support.event_loop.calls_a_turn import calls_a_turn
from tests.support.servers.api_server import Api, running_api

LARGE_REPLIES = HttpConfig().max_replies_at_work


async def test_a_slot_ends_with_its_block_and_may_be_taken_again() -> None:
    turns = asyncio.Semaphore(1)
    with LargeReplySlot(turns) as slot:
        await slot.acquire()
        await slot.acquire()
        assert turns.locked()
        slot.release()
        slot.release()
        assert not turns.locked()
        await slot.acquire()
    assert turns._value == 1


async def test_a_cancelled_wait_takes_no_slot() -> None:
    turns = asyncio.Semaphore(1)

    async def wait() -> None:
        with LargeReplySlot(turns) as slot:
            await slot.acquire()

    with LargeReplySlot(turns) as first:
        await first.acquire()
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    assert turns._value == 1


async def test_without_slots_no_request_waits() -> None:
    with LargeReplySlot(None) as slot:
        await slot.acquire()
        slot.release()


async def test_large_replies_wait_before_they_read_and_small_ones_do_not(api: Api) -> None:
    await api.publish("orders", {"body": "x", "queue": 0})
    large = "/v1/topics/orders/queues/0/messages?offset=0&max_messages=501"
    turns = api.context.large_replies
    for _ in range(LARGE_REPLIES):
        await turns.acquire()
    waiting = [asyncio.create_task(api.get(large)) for _ in range(3)]
    heavy = large.replace("max_messages=501", f"max_bytes={LARGE_BYTES + 1}")
    waiting.append(asyncio.create_task(api.get(heavy)))
    waiting.append(
        asyncio.create_task(api.get("/v1/topics/orders/messages?offsets=0:0&max_messages=501"))
    )
    await until(lambda: len(turns._waiters or ()) >= 5)
    assert (await api.get(large.replace("501", "500"))).status == 200
    assert (await api.get(heavy.replace(str(LARGE_BYTES + 1), str(LARGE_BYTES)))).status == 200
    assert (await api.get(large, Accept="application/vnd.holdfast.batch")).status == 200
    assert not any(each.done() for each in waiting)
    for _ in range(LARGE_REPLIES):
        turns.release()
    assert [(await each).status for each in waiting] == [200] * 5
    assert turns._value == LARGE_REPLIES


async def test_a_held_pull_keeps_no_slot(api: Api) -> None:
    held = [
        asyncio.create_task(
            api.get("/v1/topics/orders/queues/0/messages?offset=0&max_messages=501&wait_ms=60000")
        )
        for _ in range(LARGE_REPLIES + 1)
    ]
    await api.held(LARGE_REPLIES + 1)
    assert api.context.large_replies._value == LARGE_REPLIES
    await api.publish("orders", {"body": "x", "queue": 0})
    assert [(await each).status for each in held] == [200] * (LARGE_REPLIES + 1)
    assert api.context.large_replies._value == LARGE_REPLIES


@pytest.mark.parametrize(("queues", "takes_turn"), [(64, False), (65, True)])
async def test_a_poll_over_many_queues_takes_a_slot_and_releases_it_while_held(
    queues: int, takes_turn: bool
) -> None:
    # M1: a thousand polls over a thousand queues each ran before the requests of all other clients
    async with running_api() as api:
        await api.store.topics.create("wide", queues=queues)
        turns = api.context.large_replies
        for _ in range(LARGE_REPLIES):
            await turns.acquire()
        offsets = ",".join(f"{queue}:0" for queue in range(queues))
        path = f"/v1/topics/wide/messages?offsets={offsets}&wait_ms=60000"
        polling = asyncio.create_task(api.get(path))
        if takes_turn:
            await until(lambda: turns._waiters)
            assert api.hold.stats().held == 0
            turns.release()
        await api.held(1)
        assert turns._value == (1 if takes_turn else 0)
        await api.publish("wide", {"body": "x", "queue": 1})
        assert (await polling).status == 200


class LoopTurns:
    """Counts the iterations of the event loop from now on."""

    def __init__(self) -> None:
        self.count = 0
        self._next()

    def _next(self) -> None:
        self.count += 1
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def stop(self) -> None:
        self._handle.cancel()


async def test_one_expensive_request_begins_per_loop_iteration_and_clients_take_turns() -> None:
    # M1: one client's polls ran before the requests of all other clients
    turns, costly = LoopTurns(), OneALoopTurn()
    begun: list[tuple[str, int]] = []

    async def begin(client: str) -> None:
        await costly.begin(client)
        begun.append((client, turns.count))

    tasks = [asyncio.create_task(begin(client)) for client in ("a", "a", "a", "b", "a", "b", "c")]
    await asyncio.wait(tasks)
    turns.stop()
    assert [client for client, _ in begun] == ["a", "b", "c", "a", "b", "a", "a"]
    assert len({turn for _, turn in begun}) == len(begun)


async def test_a_cancelled_request_does_not_delay_the_next_one() -> None:
    turns, costly = LoopTurns(), OneALoopTurn()
    is_reserve_released = [asyncio.create_task(costly.begin("a")) for _ in range(100)]
    await asyncio.sleep(0)
    for each in is_reserve_released[1:]:
        each.cancel()
    last = asyncio.create_task(costly.begin("a"))
    await asyncio.wait([last])
    turns.stop()
    assert turns.count < 10


async def test_one_poll_over_many_queues_reads_per_loop_iteration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # M1: sixty-four polls that one message woke blocked the loop for a third of a second
    async with running_api() as api:
        await api.store.topics.create("wide", queues=65)
        path = "/v1/topics/wide/messages?from=latest&wait_ms=60000"
        reads: Counter[int] = Counter()
        read_many = api.context.store.reading.read_many

        async def counted(*args: Any, **options: Any) -> Any:
            reads[turns.count] += 1
            return await read_many(*args, **options)

        monkeypatch.setattr(api.context.store.reading, "read_many", counted)
        turns = LoopTurns()
        polling = [asyncio.create_task(api.get(path)) for _ in range(20)]
        await api.held(20)
        await api.publish("wide", {"body": "x", "queue": 1})
        assert [(await each).status for each in polling] == [200] * 20
        turns.stop()
    assert reads.total() == 40
    assert max(reads.values()) == 1


async def test_a_client_has_one_place_and_the_clients_take_turns() -> None:
    # A thousand descriptions of a wide topic grew in parallel until the memory was full.
    places = ClientPlaces(2)
    at_work: list[str] = []
    begun: list[str] = []
    go_on = asyncio.Event()

    async def work(client: str) -> None:
        async with places.place(client):
            begun.append(client)
            at_work.append(client)
            assert len(at_work) <= 2
            assert at_work.count(client) == 1
            await go_on.wait()
            await asyncio.sleep(0)
            at_work.remove(client)

    tasks = [asyncio.create_task(work(client)) for client in "aaaabbc"]
    for _ in range(10):
        await asyncio.sleep(0)
    assert begun == ["a", "b"]
    go_on.set()
    await asyncio.gather(*tasks)
    assert begun[2] == "c"
    assert Counter(begun) == Counter("aaaabbc")
    async with places.place("a"), places.place("b"):
        pass


async def test_a_place_that_is_given_up_goes_to_the_next_request() -> None:
    places = ClientPlaces(1)
    async with places.place("a"):
        waiting = [asyncio.create_task(_take(places, client)) for client in "abbc"]
        await asyncio.sleep(0)
        for each in waiting[:-1]:
            each.cancel()
        await asyncio.wait(waiting[:-1])
    # The last request gets the slot, but gives it up before it runs.
    await asyncio.sleep(0)
    waiting[-1].cancel()
    await asyncio.wait(waiting)
    async with asyncio.timeout(10):
        await _take(places, "d")


async def _take(places: ClientPlaces, client: str) -> None:
    async with places.place(client):
        pass


@pytest.mark.parametrize(("queues", "waits"), [(ITEMS_A_TURN, False), (ITEMS_A_TURN + 1, True)])
async def test_descriptions_of_wide_topics_wait_for_a_place(queues: int, waits: bool) -> None:
    async with running_api() as api:
        await api.store.topics.create("wide", queues=queues)
        await _waits(api, api.context.wide_requests, WIDE_AT_WORK, "/v1/topics/wide", waits)


async def test_the_lag_of_many_queues_is_collected_over_many_loop_iterations() -> None:
    queues = 4 * ITEMS_A_TURN
    async with running_api() as api:
        topic, _ = await api.store.topics.create("wide", queues=queues)
        await api.store.offsets.store_offsets("g", topic, {0: 0})
        with (
            calls_a_turn(api.store.reading, "queue_state") as looked,
            calls_a_turn(group_lag, "_next_offset") as begun,
            calls_a_turn(group_lag, "QueueLagReply") as made,
        ):
            answer = await api.get("/v1/groups/g")
    assert len(answer.json()["topics"][0]["queues"]) == queues
    assert looked.total == begun.total == made.total == queues
    assert max(looked.most, begun.most, made.most) <= ITEMS_A_TURN


@pytest.mark.parametrize("path", ["/v1/groups", "/v1/topics/orders/splits"])
async def test_lists_of_groups_and_plans_wait_for_a_place(api: Api, path: str) -> None:
    await _waits(api, api.context.wide_requests, WIDE_AT_WORK, path, True)


async def test_a_search_waits_for_a_place_and_for_the_slot_of_a_large_reply(api: Api) -> None:
    path = "/v1/topics/orders/messages/search?key=k"
    await _waits(api, api.context.searches, SEARCHES_AT_WORK, path, True)
    turns = api.context.large_replies
    for _ in range(LARGE_REPLIES):
        await turns.acquire()
    searching = asyncio.create_task(api.get(path))
    await until(lambda: turns._waiters)
    turns.release()
    assert (await searching).status == 200
    assert turns._value == 1


async def _waits(api: Api, places: ClientPlaces, count: int, path: str, waits: bool) -> None:
    """Assert that a request waits, or does not wait, while other clients have all slots."""
    async with AsyncExitStack() as stack:
        for number in range(count):
            await stack.enter_async_context(places.place(f"other {number}"))
        asking = asyncio.create_task(api.get(path))
        await until(lambda: bool(places._waiting or asking.done()))
        assert bool(places._waiting) == waits
    assert (await asking).status == 200
    assert places._free == count
