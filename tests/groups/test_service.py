"""Groups over a real storage: receives, waits, settlements and restarts."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from holdfast.consumequeue.errors import UnknownTopic
from holdfast.groups.config import GroupsConfig
from holdfast.groups.errors import (
    ExclusiveHeld,
    GroupBusy,
    GroupsStopping,
    InvalidGroup,
    TooManyMembers,
)
from holdfast.groups.service_types import Status, Verb
from holdfast.groups.settings import FairnessSettings, GroupSettings, Subscription
from holdfast.holdservice.config import HoldServiceConfig
from holdfast.holdservice.errors import HoldLimitExceeded
from tests.support.servers.group_broker import bodies_of, receipts_of, running, running_group, turns
from tests.support.storage.stored import copy_running, until


async def test_a_cancelled_receive_stops_waiting_at_once(tmp_path: Path) -> None:
    # L17
    """This holds even before the task runs: all messages that return meanwhile skip this
    request."""
    async with running_group(tmp_path, ["x", "y"]) as broker:
        had = await broker.receive(member="b")
        many = [asyncio.create_task(broker.receive(member="a", wait_s=30.0)) for _ in range(500)]
        await until(lambda: broker.groups.stats().waiting == 500)
        for waiting in many:
            waiting.cancel()
        assert broker.groups.stats().waiting == 0
        broker.groups.release_undelivered("g", had.receipts())
        assert broker.groups.stats().in_flight == 0
        await asyncio.wait(many)
        assert broker.hold.stats().held == 0
        assert broker.groups.stats().undelivered_total == 2
        assert bodies_of(await broker.receive(member="c")) == ["x", "y"]


async def test_a_receive_that_is_cancelled_as_it_is_answered_gives_back(tmp_path: Path) -> None:
    # Q10, L17
    async with running_group(tmp_path) as broker:
        for turn in range(12):
            waiting = await broker.wait_to_receive(member="a")
            await broker.publish(f"x{turn}")
            await turns(turn)
            waiting.cancel()
            await asyncio.wait([waiting])
            if waiting.cancelled():
                received = await broker.receive(member="b", wait_s=5.0)
                assert bodies_of(received) == [f"x{turn}"], turn
            else:
                received = waiting.result()
            await broker.settle(received)
        assert broker.groups.stats().in_flight == 0


@pytest.mark.parametrize("is_killed", [False, True])
async def test_outstanding_receipts_hold_over_a_restart(tmp_path: Path, is_killed: bool) -> None:
    async with running_group(tmp_path / "data", [str(n) for n in range(10)]) as broker:
        acked = await broker.receive(3)
        await broker.settle(acked)
        held = await broker.receive(3)
        if is_killed:  # the state after a kill at this moment
            copy_running(tmp_path / "data", tmp_path / "killed")
    async with running(tmp_path / ("killed" if is_killed else "data")) as broker:
        received = await broker.receive()
        assert bodies_of(received) == ["6", "7", "8", "9"], "what was leased is not given again"
        receipts = receipts_of(held)
        assert await broker.settle(receipts[:1]) == [Status.DONE]
        assert await broker.settle(receipts[1:2], Verb.NACK, delay_ms=0) == [Status.DONE]
        again = await broker.receive()
        assert bodies_of(again) == ["4"]
        assert again.deliveries[0].redelivered
        broker.later(31)
        assert "5" in bodies_of(await broker.receive())
        assert await broker.settle(receipts[:1]) == [Status.DONE]
        assert (await broker.groups.describe("g")).topics[0].queues[0].floor == 4


async def test_a_topic_that_is_deleted_leaves_the_group(tmp_path: Path) -> None:
    async with running_group(
        tmp_path, topics={"t": Subscription(), "u": Subscription(2)}
    ) as broker:
        await broker.publish("x", "t")
        await broker.publish("y", "u")
        held = await broker.receive()
        assert sorted(bodies_of(held)) == ["x", "y"]
        await broker.store.topics.delete("t")
        assert sorted(await broker.settle(held), key=str) == [Status.DONE, Status.STALE]
        state = broker.groups.group_state("g")
        assert set(state.topics) == {"u"}
        assert set(state.record.subscriptions) == {"t", "u"}, "R7: it is subscribed by name"
        assert broker.groups.stats().in_flight == 0
        assert bodies_of(await broker.receive(topics=["t"])) == [], "it may be made again"
        with pytest.raises(UnknownTopic):
            await broker.receive(topics=["never"])
        await broker.group("h", "u")
        await broker.groups.delete_group("h")
    async with running(tmp_path) as broker:
        assert broker.groups.groups() == ["g"]
        assert [each.topic for each in (await broker.groups.describe("g")).topics] == ["u"]


async def test_queues_that_a_topic_gets_later_are_served(tmp_path: Path) -> None:
    async with running_group(tmp_path, start="latest") as broker:
        await broker.store.topics.change("t", queues=3, fields={})
        waiting = await broker.wait_to_receive()
        await broker.publish("x", queue=2)
        received = await waiting
        assert [(each.queue, each.offset) for each in received.deliveries] == [(2, 0)]
        await broker.settle(received)
    async with running(tmp_path) as broker:
        assert (await broker.receive()).deliveries == []


async def test_a_seek_starts_again_and_old_receipts_are_stale(tmp_path: Path) -> None:
    async with running_group(tmp_path, ["a", "b", "c"]) as broker:
        held = await broker.receive()
        await broker.settle(receipts_of(held)[:1])
        assert await broker.groups.seek("g", "earliest") == {"t": {0: 0}}
        assert await broker.settle(held) == [Status.STALE] * 3
        assert bodies_of(await broker.receive()) == ["a", "b", "c"]
        assert await broker.groups.seek("g", {"t": {0: 2}}) == {"t": {0: 2}}
        assert bodies_of(await broker.receive()) == ["c"]
        assert await broker.groups.seek("g", "latest") == {"t": {0: 3}}
        assert await broker.groups.seek("g", {"t": {0: 99}}) == {"t": {0: 3}}
        assert await broker.groups.seek("g", 1) == {"t": {0: 0}}
    async with running(tmp_path) as broker:
        assert bodies_of(await broker.receive()) == ["a", "b", "c"]


async def test_settings_change(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.topic("u")
        before = await broker.group(lease_ms=5_000)
        state, is_new = await broker.groups.put_group("g", GroupSettings(max_attempts=3))
        assert not is_new
        config = state.record.config
        assert (config.lease_ms, config.max_attempts) == (5_000, 3)
        assert state.record.group_id == before.record.group_id
        await broker.publish("x")
        held = await broker.receive()
        with pytest.raises(GroupBusy):
            await broker.groups.put_group("g", GroupSettings(mode="keyed"))
        await broker.settle(held, Verb.RELEASE)
        await broker.groups.put_group(
            "g", GroupSettings(mode="keyed", fairness=FairnessSettings("dwrr", "bytes"))
        )
        held = await broker.receive()
        assert bodies_of(held) == ["x"]
        await broker.groups.put_group("g", GroupSettings(topics={"u": Subscription(3)}))
        assert await broker.settle(held) == [Status.STALE]
        await broker.publish("y", "u")
        assert bodies_of(await broker.receive(wait_s=5.0)) == ["y"]
        changed = broker.groups.group_state("g")
        assert changed.topics == {"u": Subscription(3)}
    async with running(tmp_path) as broker:
        assert broker.groups.group_state("g") == changed


async def test_dead_letters_never_come_back_to_their_own_group(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.topic("u")
        before = await broker.group(dead_letter_topic="u")
        both = {"t": Subscription(), "u": Subscription()}
        for change in (GroupSettings(dead_letter_topic="t"), GroupSettings(topics=both)):
            with pytest.raises(InvalidGroup) as caught:
                await broker.groups.put_group("g", change)
            assert caught.value.field == "dead_letter_topic"
        assert broker.groups.group_state("g") == before


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (GroupSettings(), "topics"),
        (GroupSettings(topics={}), "topics"),
        (GroupSettings(topics={"t": Subscription()}, dead_letter_topic="t"), "dead_letter_topic"),
    ],
)
async def test_invalid_settings_are_refused(
    tmp_path: Path, spec: GroupSettings, field: str
) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        with pytest.raises(InvalidGroup) as caught:
            await broker.groups.put_group("g", spec)
        assert caught.value.field == field
        assert broker.groups.groups() == []


async def test_a_reply_waits_until_its_reserve_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_group(tmp_path, ["x"]) as broker:
        store, held = broker.storage.groups.store, list[Any]()
        commit = store.commit
        with monkeypatch.context() as patched:
            patched.setattr(store, "commit", lambda *what, **how: held.append((what, how)))
            receiving = broker.start_receiving()
            await until(lambda: held)
            await turns(10)
            is_done = receiving.done()
        for what, how in held:
            commit(*what, **how)
        assert bodies_of(await receiving) == ["x"]
        assert not is_done


async def test_a_longer_lease_than_ever_is_stored_before_it_is_given(tmp_path: Path) -> None:
    async with running_group(tmp_path, ["x", "y"], lease_ms=2_000) as broker:
        await broker.receive(1, lease_ms=90_000)
        record = broker.storage.groups.table.find("g")
        assert record is not None
        assert record.config.longest_lease_ms == 90_000
        broker.later(60)
        assert bodies_of(await broker.receive()) == ["y"]


async def test_a_group_waits_for_its_own_leases_not_for_those_of_others(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        for lease_ms, longest_ms in ((4_000, 4_000), (9_000, 9_000), (5_000, 9_000)):
            await broker.group(lease_ms=lease_ms)
            record = broker.storage.groups.table.find("g")
            assert record is not None
            assert record.config.longest_lease_ms == longest_ms


@pytest.mark.parametrize("mode", ["single_active", "exclusive", "competing"])
async def test_a_description_shows_the_active_members(tmp_path: Path, mode: str) -> None:
    async with running_group(tmp_path, ["x", "y"], mode=mode) as broker:

        async def active() -> list[str]:
            members = (await broker.groups.describe("g")).members
            assert members is not UNSET
            return [each.member for each in members if each.active]

        await broker.receive(1)
        for member in ("b", "c"):
            with suppress(ExclusiveHeld):
                await broker.receive(member=member)
        assert await active() == (["a", "b", "c"] if mode == "competing" else ["a"])
        await broker.groups.leave("g", "a")
        assert await active() == (["b", "c"] if mode == "competing" else [])
        await broker.receive(member="b")
        assert await active() == (["b", "c"] if mode == "competing" else ["b"])


async def test_a_member_that_waits_for_its_turn_in_vain_is_not_active(tmp_path: Path) -> None:
    async with running_group(tmp_path, ["x", "y"], mode="single_active") as broker:
        await broker.receive(1)
        received = await broker.receive(member="b", wait_s=0.02)
        assert (received.deliveries, received.active, received.available) == ([], False, 0)


async def test_no_more_wait_than_may(tmp_path: Path) -> None:
    hold = HoldServiceConfig(max_held=3, max_held_per_client=2)
    async with running_group(tmp_path, hold=hold) as broker:
        waiting = [asyncio.create_task(broker.receive(wait_s=30.0)) for _ in range(2)]
        await until(lambda: broker.groups.stats().waiting == 2)
        with pytest.raises(HoldLimitExceeded) as caught:
            await broker.receive(wait_s=30.0)
        assert caught.value.limit_name == "max_held_per_client"
        waiting.append(asyncio.create_task(broker.receive(wait_s=30.0, client="d")))
        await until(lambda: broker.groups.stats().waiting == 3)
        with pytest.raises(HoldLimitExceeded) as caught:
            await broker.receive(wait_s=30.0, client="e")
        assert caught.value.limit_name == "max_held"
        assert broker.hold.stats().held == 3
        assert broker.hold.stats().refused_total == 2
        broker.groups.drain()
        for task in waiting:
            # H7: the client would repeat the request at once after an empty answer
            with pytest.raises(GroupsStopping):
                await task
        assert broker.hold.stats().held == 0
        with pytest.raises(GroupsStopping):
            await broker.receive(wait_s=30.0)
        assert (await broker.receive()).deliveries == []


async def test_a_group_has_at_most_max_members(tmp_path: Path) -> None:
    async with running_group(
        tmp_path, limits=GroupsConfig(max_members=3), member_ttl_ms=10_000
    ) as broker:
        for member in ("a", "b", "c"):
            await broker.receive(member=member)
        with pytest.raises(TooManyMembers) as caught:
            await broker.receive(member="d", wait_s=30.0, lease_ms=90_000)
        assert (caught.value.limit_name, caught.value.limit) == ("groups.max_members", 3)
        record = broker.storage.groups.table.find("g")
        assert record is not None and record.config.longest_lease_ms < 90_000
        assert broker.groups.stats().waiting == 0
        # A request in a slot continues; a slot that is given up or not kept goes to the next
        # request.
        await broker.publish("x")
        assert bodies_of(await broker.receive(member="c")) == ["x"]
        await broker.groups.leave("g", "a")
        await broker.receive(member="d")
        with pytest.raises(TooManyMembers):
            await broker.receive(member="a")
        broker.later(20)
        await broker.receive(member="a")


async def test_without_long_polling_a_receive_waits_as_briefly_as_a_pull(tmp_path: Path) -> None:
    config = HoldServiceConfig(long_polling=False, short_polling_ms=20)
    async with running_group(tmp_path, hold=config) as broker:
        async with asyncio.timeout(10):
            received = await broker.receive(wait_s=3600.0)
        assert not received.deliveries
    config = HoldServiceConfig(long_polling=False, short_polling_ms=3_600_000)
    async with running(tmp_path, hold=config) as broker:
        waiting = asyncio.create_task(broker.receive(wait_s=3600.0))
        await until(lambda: broker.groups.stats().waiting == 1)
        await broker.publish("x")
        assert bodies_of(await asyncio.wait_for(waiting, 10)) == ["x"]


async def test_an_answer_reports_how_long_it_waited(tmp_path: Path) -> None:
    async with running_group(tmp_path) as broker:
        assert (await broker.receive(wait_s=0.02)).held_s >= 0.015
        await broker.publish("x")
        assert (await broker.receive(wait_s=30.0)).held_s == 0
