"""Receives of messages on disk, over a real storage: replies are filled up to their limits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.core.settling import Verb
from holdfast.groups.serving import receive_flow
from tests.support.servers.group_broker import GroupBroker, bodies_of, running, running_group
from tests.support.storage.stored import settled, until

BIG = 400_000


@asynccontextmanager
async def cold(
    path: Path, bodies: list[str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[GroupBroker]:
    """Run a broker again after these bodies were published in a block each, with nothing in
    memory.

    The time limit for disk reads is raised, so that a slow machine does not reach it.
    """
    monkeypatch.setattr(receive_flow, "MAX_FILL_S", 60.0)
    async with running_group(path, max_in_flight=5_000) as broker:
        await asyncio.gather(*map(broker.publish, bodies))
        await settled(broker.storage)
    async with running(path) as broker:
        monkeypatch.setattr(broker.store.reading, "read_hot", lambda *place, **how: None)
        monkeypatch.setattr(broker.store.reading, "newest_alone", lambda *place: None)
        yield broker


async def test_one_receive_gets_all_that_it_asks_for_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [str(n) for n in range(2_500)]
    async with cold(tmp_path, bodies, monkeypatch) as broker:
        assert bodies_of(await broker.receive(5_000)) == bodies


async def test_one_receive_fills_its_bytes_with_large_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [f"{n:02}" + "x" * BIG for n in range(40)]
    async with cold(tmp_path, bodies, monkeypatch) as broker:
        received = await broker.receive(1_000, max_bytes=30 * (BIG + 2))
        assert bodies_of(received) == bodies[:30]
        assert received.available == 10


async def test_messages_are_not_held_back_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [f"{n:02}" + "x" * BIG for n in range(10)]
    async with cold(tmp_path, bodies, monkeypatch) as broker:
        monkeypatch.setattr(receive_flow, "MAX_FILL_S", 0.0)
        got: list[str] = []
        while len(got) < len(bodies):
            some = bodies_of(await broker.receive(max_bytes=100 * BIG))
            assert 1 <= len(some) < 5, "what the first read brought"
            got += some
        assert got == bodies


async def test_a_message_that_returns_while_a_reply_is_filled_comes_after_its_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [f"{n:02}" + "x" * BIG for n in range(20)]
    async with cold(tmp_path, bodies, monkeypatch) as broker:
        first = await broker.receive(1, "b")
        source = broker.groups.registry.by_name["g"].source
        fetch, may_go = source.fetch, asyncio.Event()
        fetched: list[int] = []

        async def slow(queue: QueueKey, offset: int, max_bytes: int = 1 << 20) -> None:
            fetched.append(offset)
            if len(fetched) == 2:
                await may_go.wait()
            await fetch(queue, offset, max_bytes)

        monkeypatch.setattr(source, "fetch", slow)
        receiving = asyncio.create_task(broker.receive(max_bytes=100 * BIG))
        await until(lambda: len(fetched) == 2)
        await broker.settle(first, Verb.RELEASE)
        may_go.set()
        got = bodies_of(await receiving)
        assert got[: fetched[1] - 1] == bodies[1 : fetched[1]], "selected before it came back"
        assert got[fetched[1] - 1 :] == bodies[:1] + bodies[fetched[1] :]


@pytest.mark.parametrize("how", ["cancel", "fail", "stop"])
async def test_a_receive_that_ends_while_it_is_filled_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    bodies = [f"{n:02}" + "x" * BIG for n in range(20)]
    async with cold(tmp_path, bodies, monkeypatch) as broker:
        source = broker.groups.registry.by_name["g"].source
        fetch, may_go = source.fetch, asyncio.Event()
        fetched: list[int] = []

        async def slow(queue: QueueKey, offset: int, max_bytes: int = 1 << 20) -> None:
            fetched.append(offset)
            if len(fetched) == 2:
                await may_go.wait()
                if how == "fail":
                    raise OSError("for a test")
            await fetch(queue, offset, max_bytes)

        monkeypatch.setattr(source, "fetch", slow)
        receiving = asyncio.create_task(broker.receive(max_bytes=100 * BIG))
        await until(lambda: len(fetched) == 2)
        assert broker.groups.stats().in_flight > 0
        if how == "cancel":
            receiving.cancel()
            await asyncio.wait([receiving])
            assert broker.groups.stats().in_flight == 0
            got = []
        elif how == "fail":
            may_go.set()
            got = bodies_of(await receiving)
            assert 1 <= len(got) < 5
        else:
            broker.groups.registry.by_name["g"].drain()
            may_go.set()
            got = bodies_of(await receiving)
            assert got == bodies[: len(got)]
            assert len(fetched) == 2, "nothing more is read"
            return
        while len(got) < len(bodies):
            got += bodies_of(await broker.receive(max_bytes=100 * BIG))
        assert got == bodies
