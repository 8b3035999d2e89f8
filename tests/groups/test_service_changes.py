"""Changes of groups: no message is leased during a change, and a crash at any write leaves the
group in its old or its new state."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.consumequeue.errors import StateUnavailable, UnknownGroup
from holdfast.groups.errors import GroupBusy
from holdfast.groups.service_types import Status
from holdfast.groups.settings import GroupSettings, Subscription
from tests.support.servers.group_broker import (
    GroupBroker,
    bodies_of,
    receipts_of,
    running,
    running_group,
    turns,
)
from tests.support.storage.stored import copy_running


@asynccontextmanager
async def crashes(broker: GroupBroker, data_dir: Path) -> AsyncIterator[list[Path]]:
    """Yield copies of the data directory, before and after each write of the state or of cursors.

    They are in order of time; each is the state that a kill at that moment leaves.
    """
    left: list[Path] = []
    commit_state, commit_rows = broker.store.state.commit, broker.storage.groups.store.commit

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
        patch.setattr(broker.store.state, "commit", state)
        patch.setattr(broker.storage.groups.store, "commit", rows)
        yield left
        crash()


# -- where new queues begin ------------------------------------------------------------------


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
            assert (await broker.groups.floors("g", "t")) == {0: 2, 1: 0}, killed.name
            await broker.publish("new")
            assert bodies_of(await broker.receive()) == ["new"], killed.name
    assert (found[0], found[-1]) == ([], ["g"])


async def test_a_topic_that_is_new_in_a_group_begins_where_it_was_to(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as broker:
        await broker.topic()
        await broker.topic("u")
        await broker.group(start="latest")
        await broker.publish(["old", "older"], "u")
        both = {"t": Subscription(), "u": Subscription()}
        async with crashes(broker, tmp_path / "data") as left:
            await broker.groups.put_group("g", GroupSettings(topics=both))
    for killed in left:
        async with running(killed) as broker:
            if "u" in broker.groups.group_state("g").topics:
                assert (await broker.groups.floors("g", "u")) == {0: 2}, killed.name
    assert "u" in broker.groups.group_state("g").topics


async def test_a_group_that_cannot_be_stored_is_none_and_may_be_made_again(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await broker.topic()
        await broker.publish(["a", "b"])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(broker.store.state, "commit", refuse)
            with pytest.raises(StateUnavailable):
                await broker.group(start="latest")
        with pytest.raises(UnknownGroup):
            await broker.receive()
        await broker.store.offsets.store_offsets("g", topic, {0: 1})
        await broker.group()
        assert bodies_of(await broker.receive()) == ["b"]


# -- another mode ----------------------------------------------------------------------------


async def refuse(changes: Mapping[bytes, bytes | None]) -> None:
    await asyncio.sleep(0)
    raise StateUnavailable("the disk refuses")


async def test_nothing_is_leased_while_another_mode_is_stored(tmp_path: Path) -> None:
    """Neither waiting nor new requests get a message; both get messages in the new mode."""
    async with running_group(tmp_path) as broker:
        waiting = await broker.wait_to_receive(1)
        asked: list[asyncio.Task[Any]] = []
        commit = broker.store.state.commit

        async def slowly(changes: Mapping[bytes, bytes | None]) -> None:
            await broker.publish(["x", "y"])
            asked.append(asyncio.create_task(broker.receive(1)))
            await turns(10)
            assert broker.groups.stats().in_flight == 0
            await commit(changes)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(broker.store.state, "commit", slowly)
            await broker.groups.put_group("g", GroupSettings(mode="keyed"))
        async with asyncio.timeout(10):
            assert bodies_of(await waiting) + bodies_of(await asked[0]) == ["x", "y"]
        assert broker.groups.group_state("g").record.config.mode == "keyed"
        assert broker.groups.stats().in_flight == 2


async def test_a_mode_that_cannot_be_stored_leaves_the_group_as_it_was(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        before = await broker.group()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(broker.store.state, "commit", refuse)
            with pytest.raises(StateUnavailable):
                await broker.groups.put_group("g", GroupSettings(mode="keyed"))
        assert broker.groups.group_state("g") == before
        waiting = asyncio.create_task(broker.receive(wait_s=30.0))
        await broker.publish("x")
        assert bodies_of(await waiting) == ["x"], "it goes on"


async def test_a_crash_never_leaves_a_new_mode_with_old_leases(tmp_path: Path) -> None:
    async with (
        running_group(tmp_path / "data", ["x", "y"]) as broker,
        crashes(broker, tmp_path / "data") as left,
    ):
        held = await broker.receive(1)
        with pytest.raises(GroupBusy) as caught:
            await broker.groups.put_group("g", GroupSettings(mode="keyed"))
        assert caught.value.in_flight == 1
        busy = len(left)
        await broker.settle(held)
        await broker.groups.put_group("g", GroupSettings(mode="keyed"))
        await broker.receive(1)
    modes = []
    for count, killed in enumerate(left):
        async with running(killed) as broker:
            mode = broker.groups.group_state("g").record.config.mode
            modes.append(mode)
            queue = (await broker.groups.describe("g")).topics[0].queues[0]
            assert mode == "competing" or queue.floor == 1, killed.name
            if count < busy:
                assert mode == "competing"
    assert modes == sorted(modes)
    assert modes[-1] == "keyed"


# -- filters ---------------------------------------------------------------------------------


async def test_a_crash_never_leaves_a_new_filter_with_messages_that_the_old_filter_skipped(
    tmp_path: Path,
) -> None:
    # R8: messages that a filter skipped ahead of `next` are offered to the next filter
    async with running(tmp_path / "data") as broker:
        await broker.topic()
        await broker.group(topics={"t": Subscription(filter="few")})
        await broker.publish(["a", "b"], tag="few")
        await broker.publish(["x", "y", "z"], tag="rest")
        await broker.settle(await broker.receive(1))
        assert (await broker.groups.describe("g")).topics[0].queues[0].lag_messages < 4, (
            "it has looked ahead"
        )
        async with crashes(broker, tmp_path / "data") as left:
            await broker.groups.put_group(
                "g", GroupSettings(topics={"t": Subscription(filter="rest")})
            )
            queue = (await broker.groups.describe("g")).topics[0].queues[0]
            assert (queue.floor, queue.next, queue.lag_messages) == (1, 1, 4)
    filters: list[str] = []
    for killed in left:
        async with running(killed) as broker:
            wanted = broker.groups.group_state("g").topics["t"].filter
            filters.append(wanted or "")
            found = ["x", "y", "z"] if wanted == "rest" else ["b"]
            assert bodies_of(await broker.receive()) == found, killed.name
    assert filters == sorted(filters)
    assert (filters[0], filters[-1]) == ("few", "rest")


async def test_a_mode_waits_for_leases_of_before_a_restart_too(tmp_path: Path) -> None:
    async with running_group(tmp_path / "data", ["x", "y"]) as broker:
        held = await broker.receive()
        copy_running(tmp_path / "data", tmp_path / "killed")
    async with running(tmp_path / "killed") as broker:
        with pytest.raises(GroupBusy) as caught:
            await broker.groups.put_group("g", GroupSettings(mode="keyed"))
        assert caught.value.in_flight == 2
        assert await broker.settle(receipts_of(held)[:1]) == [Status.DONE]
        broker.later(31)
        await broker.groups.put_group("g", GroupSettings(mode="keyed"))
        assert bodies_of(await broker.receive()) == ["y"]


# -- a topic that is deleted and created again -------------------------------------------------


async def test_a_topic_that_is_added_again_continues_at_the_floor(tmp_path: Path) -> None:
    both = {"t": Subscription(), "u": Subscription()}
    async with running_group(tmp_path, topics=both) as broker:
        await broker.publish(["a", "b", "c", "d", "e"])
        held = receipts_of(await broker.receive())
        assert await broker.settle(held[:3]) == [Status.DONE] * 3
        assert await broker.settle(held[4:]) == [Status.DONE]
        for topics in ({"u": Subscription()}, both):
            await broker.groups.put_group("g", GroupSettings(topics=topics))
        assert bodies_of(await broker.receive()) == ["d", "e"], "e was settled above the floor"


async def test_a_receipt_is_stale_after_its_topic_was_removed_and_added_again(
    tmp_path: Path,
) -> None:
    both = {"t": Subscription(), "u": Subscription()}
    async with running_group(tmp_path, topics=both) as broker:
        await broker.publish(["x", "y"])
        old: list[str] = []
        numbers: set[int] = set()
        for _ in range(3):  # mostly within a second
            held = await broker.receive()
            lanes = broker.groups.registry.by_name["g"].lanes()
            found = {each.number for lane in lanes for each in lane.cursor.leases}
            assert not numbers & found
            numbers |= found
            if old:
                assert await broker.settle(old) == [Status.STALE] * len(old)
            old += receipts_of(held)
            for topics in ({"u": Subscription()}, both):
                await broker.groups.put_group("g", GroupSettings(topics=topics))
        assert await broker.settle(old) == [Status.STALE] * 6, "nobody has them"
