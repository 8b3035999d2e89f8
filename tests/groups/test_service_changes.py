"""Changes of groups: nothing is leased under them, and a crash at any write leaves the group as it
was or as it is to be."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.consumequeue.errors import StateUnavailable, UnknownGroup
from holdfast.groups.service_types import GroupBusy, GroupSpec, Status, TopicSpec
from tests.support.group_broker import GroupBroker, bodies_of, receipts_of, running, turns
from tests.support.stored import copy_running, until


@asynccontextmanager
async def crashes(broker: GroupBroker, data_dir: Path) -> AsyncIterator[list[Path]]:
    """Yield what a broker would leave that is killed before or after any write of the state or of
    cursors, in the order of time."""
    left: list[Path] = []
    commit_state, commit_rows = broker.store.commit_state, broker.storage.groups.store.commit

    def crash() -> None:
        left.append(data_dir.with_name(f"killed-{len(left)}"))
        copy_running(data_dir, left[-1])

    async def state(changes: Mapping[bytes, bytes | None]) -> None:
        crash()
        await commit_state(changes)
        crash()

    def rows(writes: Any, done: Any, **how: Any) -> None:
        def written(error: Exception | None) -> None:
            crash()
            done(error)

        crash()
        commit_rows(writes, written, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker.store, "commit_state", state)
        patch.setattr(broker.storage.groups.store, "commit", rows)
        yield left
        crash()


# -- where what is new begins ----------------------------------------------------------------


async def test_a_group_that_crashes_as_it_is_made_begins_where_it_was_to(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as broker:
        await broker.topic(queues=2)
        await broker.publish(["old", "older"])
        async with crashes(broker, tmp_path / "data") as left:
            await broker.group(start="latest")
    found = []
    for killed in left:
        async with running(killed) as broker:
            found.append(broker.groups.groups())
            await broker.group(start="latest")
            assert broker.groups.floors("g", "t") == {0: 2, 1: 0}, killed.name
            await broker.publish("new")
            assert bodies_of(await broker.receive()) == ["new"], killed.name
    assert (found[0], found[-1]) == ([], ["g"])


async def test_a_topic_that_is_new_in_a_group_begins_where_it_was_to(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as broker:
        await broker.topic()
        await broker.topic("u")
        await broker.group(start="latest")
        await broker.publish(["old", "older"], "u")
        both = {"t": TopicSpec(), "u": TopicSpec()}
        async with crashes(broker, tmp_path / "data") as left:
            await broker.groups.put_group("g", GroupSpec(topics=both))
    for killed in left:
        async with running(killed) as broker:
            if "u" in broker.groups.group_state("g").topics:
                assert broker.groups.floors("g", "u") == {0: 2}, killed.name
    assert "u" in broker.groups.group_state("g").topics


async def test_a_group_that_cannot_be_stored_is_none_and_may_be_made_again(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await broker.topic()
        await broker.publish(["a", "b"])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(broker.store, "commit_state", refuse)
            with pytest.raises(StateUnavailable):
                await broker.group(start="latest")
        with pytest.raises(UnknownGroup):
            await broker.receive()
        await broker.store.store_offsets("g", topic, {0: 1})
        await broker.group()
        assert bodies_of(await broker.receive()) == ["b"]


# -- another mode ----------------------------------------------------------------------------


async def refuse(changes: Mapping[bytes, bytes | None]) -> None:
    await asyncio.sleep(0)
    raise StateUnavailable("the disk refuses")


async def test_nothing_is_leased_while_another_mode_is_stored(tmp_path: Path) -> None:
    """Neither to who waits nor to who asks then; both get it in the new mode."""
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group()
        waiting = asyncio.create_task(broker.receive(1, wait_s=30.0))
        await until(lambda: broker.groups.stats().waiting == 1)
        asked: list[asyncio.Task[Any]] = []
        commit = broker.store.commit_state

        async def slowly(changes: Mapping[bytes, bytes | None]) -> None:
            await broker.publish(["x", "y"])
            asked.append(asyncio.create_task(broker.receive(1)))
            await turns(10)
            assert broker.groups.stats().in_flight == 0
            await commit(changes)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(broker.store, "commit_state", slowly)
            await broker.groups.put_group("g", GroupSpec(mode="keyed"))
        async with asyncio.timeout(10):
            assert bodies_of(await waiting) + bodies_of(await asked[0]) == ["x", "y"]
        assert broker.groups.group_state("g").mode == "keyed"
        assert broker.groups.stats().in_flight == 2


async def test_a_mode_that_cannot_be_stored_leaves_the_group_as_it_was(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        before = await broker.group()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(broker.store, "commit_state", refuse)
            with pytest.raises(StateUnavailable):
                await broker.groups.put_group("g", GroupSpec(mode="keyed"))
        assert broker.groups.group_state("g") == before
        waiting = asyncio.create_task(broker.receive(wait_s=30.0))
        await broker.publish("x")
        assert bodies_of(await waiting) == ["x"], "it goes on"


async def test_a_crash_never_leaves_another_mode_with_what_was_leased_before(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "data") as broker:
        await broker.topic()
        await broker.group()
        await broker.publish(["x", "y"])
        async with crashes(broker, tmp_path / "data") as left:
            held = await broker.receive(1)
            with pytest.raises(GroupBusy) as caught:
                await broker.groups.put_group("g", GroupSpec(mode="keyed"))
            assert caught.value.in_flight == 1
            busy = len(left)
            await broker.settle(held)
            await broker.groups.put_group("g", GroupSpec(mode="keyed"))
            await broker.receive(1)
    modes = []
    for count, killed in enumerate(left):
        async with running(killed) as broker:
            mode = broker.groups.group_state("g").mode
            modes.append(mode)
            queue = broker.groups.describe("g").topics[0].queues[0]
            assert mode == "competing" or queue.floor == 1, killed.name
            if count < busy:
                assert mode == "competing"
    assert modes == sorted(modes)
    assert modes[-1] == "keyed"


async def test_a_mode_waits_for_leases_of_before_a_restart_too(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as broker:
        await broker.topic()
        await broker.group()
        await broker.publish(["x", "y"])
        held = await broker.receive()
        copy_running(tmp_path / "data", tmp_path / "killed")
    async with running(tmp_path / "killed") as broker:
        with pytest.raises(GroupBusy) as caught:
            await broker.groups.put_group("g", GroupSpec(mode="keyed"))
        assert caught.value.in_flight == 2
        assert await broker.settle(receipts_of(held)[:1]) == [Status.DONE]
        broker.later(31)
        await broker.groups.put_group("g", GroupSpec(mode="keyed"))
        assert bodies_of(await broker.receive()) == ["y"]
