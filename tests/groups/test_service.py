"""Groups over a real storage: receives, waits, settlements and restarts."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec import UNSET

from holdfast.consumequeue.errors import UnknownGroup, UnknownTopic
from holdfast.groups.config import GroupsConfig
from holdfast.groups.core.receipts import ReceiptCodec
from holdfast.groups.errors import (
    ExclusiveHeld,
    GroupBusy,
    GroupsStopping,
    InvalidGroup,
    NotSubscribed,
    TooManyMembers,
)
from holdfast.groups.service_types import Status, Verb
from holdfast.groups.serving.receive_flow import MESSAGES_A_TURN
from holdfast.groups.settings import FairnessSettings, GroupSettings, Subscription
from holdfast.holdservice.config import HoldServiceConfig
from holdfast.holdservice.errors import HoldLimitExceeded
from tests.support.calls_a_turn import calls_a_turn
from tests.support.group_broker import bodies_of, receipts_of, running, turns
from tests.support.stored import copy_running, until


async def test_messages_are_received_and_settled(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group()
        await broker.publish(["a", "b", "c"])
        first = await broker.receive(2)
        assert bodies_of(first) == ["a", "b"]
        assert [each.attempt for each in first.deliveries] == [1, 1]
        assert first.available == 1
        assert await broker.settle(first) == [Status.DONE] * 2
        assert await broker.settle(first) == [Status.DONE] * 2
        rest = await broker.receive()
        assert bodies_of(rest) == ["c"]
        assert await broker.settle(receipts_of(rest), Verb.NACK, delay_ms=0) == [Status.DONE]
        again = await broker.receive()
        assert bodies_of(again) == ["c"]
        assert again.deliveries[0].redelivered
        assert again.deliveries[0].attempt == 2
        assert await broker.settle(receipts_of(rest)) == [Status.STALE]
        assert await broker.settle(["nonsense"]) == [Status.INVALID]


async def test_a_large_receive_is_made_some_messages_a_turn_of_the_loop(tmp_path: Path) -> None:
    bodies = [str(number) for number in range(2500)]
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group(max_in_flight=5000, max_in_flight_per_member=5000)
        await broker.publish(bodies)
        with calls_a_turn(ReceiptCodec, "encode") as receipts:
            assert bodies_of(await broker.receive(2500)) == bodies
        assert receipts.total == 2500
        assert receipts.most <= MESSAGES_A_TURN


async def test_a_waiting_receive_is_answered_by_an_arrival(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group()
        waiting = [
            asyncio.create_task(broker.receive(member=name, wait_s=30.0)) for name in ("a", "b")
        ]
        await until(lambda: broker.groups.stats().waiting == 2)
        await broker.publish("x")
        done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [bodies_of(task.result()) for task in done] == [["x"]]
        await turns()
        assert broker.groups.stats().waiting == 1, "one message wakes one member"
        await broker.publish("y")
        assert bodies_of(await pending.pop()) == ["y"]


async def test_a_waiting_receive_ends_at_its_deadline_with_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group()
        received = await broker.receive(wait_s=0.02)
        assert received.deliveries == []
        assert received.active


async def test_what_comes_back_wakes_who_waits(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group(lease_ms=5_000)
        await broker.publish("x")
        for way in ("release", "nack", "expiry", "leave"):
            held = await broker.receive(member="a")
            assert bodies_of(held) == ["x"], way
            waiting = asyncio.create_task(broker.receive(member="b", wait_s=30.0))
            await until(lambda: broker.groups.stats().waiting == 1)
            if way == "release":
                await broker.settle(held, Verb.RELEASE)
            elif way == "nack":
                await broker.settle(held, Verb.NACK, delay_ms=1)
            elif way == "expiry":
                broker.later(5.1)
            else:
                await broker.groups.leave("g", "a")
            received = await waiting
            assert bodies_of(received) == ["x"], way
            await broker.settle(received, Verb.RELEASE)
        assert broker.groups.stats().expired_leases_total == 1


async def test_a_receive_that_is_cancelled_while_it_waits_takes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group()
        waiting = asyncio.create_task(broker.receive(member="a", wait_s=30.0))
        await until(lambda: broker.groups.stats().waiting == 1)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert broker.groups.stats().waiting == 0
        assert broker.hold.stats().held == 0
        await broker.publish("x")
        assert bodies_of(await broker.receive(member="b")) == ["x"]


async def test_who_is_cancelled_waits_no_more_in_the_same_turn(tmp_path: Path) -> None:
    # L17
    """This holds even before the task runs: all messages that return meanwhile skip this
    request."""
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group()
        await broker.publish(["x", "y"])
        had = await broker.receive(member="b")
        many = [asyncio.create_task(broker.receive(member="a", wait_s=30.0)) for _ in range(500)]
        await until(lambda: broker.groups.stats().waiting == 500)
        for waiting in many:
            waiting.cancel()
        assert broker.groups.stats().waiting == 0
        broker.groups.release_undelivered("g", had.receipts())
        assert broker.groups.stats().in_flight == 0
        await asyncio.wait(many)
        assert broker.groups.stats().undelivered_total == 2
        assert bodies_of(await broker.receive(member="c")) == ["x", "y"]


async def test_a_receive_that_is_cancelled_as_it_is_answered_gives_back(tmp_path: Path) -> None:
    # Q10, L17
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group()
        for turn in range(12):
            waiting = asyncio.create_task(broker.receive(member="a", wait_s=30.0))
            await until(lambda: broker.groups.stats().waiting == 1)
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


async def test_a_reply_that_could_not_be_sent_is_given_back(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group()
        await broker.publish(["x", "y"])
        lost = await broker.receive(member="a")
        broker.groups.release_undelivered("g", lost.receipts())
        received = await broker.receive(member="b")
        assert bodies_of(received) == ["x", "y"]
        assert broker.groups.stats().undelivered_total == 2
        assert await broker.settle(lost) == [Status.STALE] * 2


async def test_a_repeated_attempt_gets_the_same_answer(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group()
        await broker.publish(["x", "y", "z"])
        first = await broker.receive(2, attempt_id="1")
        again = await broker.receive(2, attempt_id="1")
        assert bodies_of(again) == bodies_of(first) == ["x", "y"]
        assert await broker.settle(again) == [Status.DONE] * 2


@pytest.mark.parametrize("is_killed", [False, True])
async def test_outstanding_receipts_hold_over_a_restart(tmp_path: Path, is_killed: bool) -> None:
    async with running(tmp_path / "data") as broker:
        await broker.topic()
        await broker.group()
        await broker.publish([str(n) for n in range(10)])
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


async def test_a_group_begins_where_it_is_told(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await broker.topic()
        await broker.publish(["a", "b", "c"])
        await broker.store.offsets.store_offsets("stored", topic, {0: 2})
        await broker.group("early")
        await broker.group("late", start="latest")
        await broker.group("stored")
        assert bodies_of(await broker.receive(group="early")) == ["a", "b", "c"]
        assert bodies_of(await broker.receive(group="late")) == []
        assert bodies_of(await broker.receive(group="stored")) == ["c"]
        assert broker.groups.groups() == ["early", "late", "stored"]
        assert (await broker.groups.floors("late", "t")) == {0: 3}


async def test_floors_are_mirrored_as_stored_offsets(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await broker.topic()
        await broker.group()
        await broker.publish(["a", "b", "c"])
        await broker.settle(await broker.receive(2))
        await broker.groups.exporter.export_all()
        assert broker.store.offsets.stored_offsets("g", topic).offsets == {0: 2}
        await broker.groups.delete_group("g")
        assert broker.store.table.groups() == []


async def test_a_group_that_is_deleted_is_gone(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group()
        await broker.publish("x")
        held = await broker.receive()
        waiting = asyncio.create_task(broker.receive(member="b", wait_s=30.0))
        await until(lambda: broker.groups.stats().waiting == 1)
        await broker.groups.delete_group("g")
        with pytest.raises(UnknownGroup):
            await waiting
        with pytest.raises(UnknownGroup):
            await broker.receive()
        assert not broker.groups.has_leases("g")
        await broker.group()
        assert await broker.settle(held) == [Status.INVALID], "a group made anew is another"
        assert bodies_of(await broker.receive()) == ["x"]
    async with running(tmp_path) as broker:
        assert broker.groups.groups() == ["g"]


async def test_a_topic_that_is_deleted_leaves_the_group(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        for name in ("t", "u"):
            await broker.topic(name)
        await broker.group(topics={"t": Subscription(), "u": Subscription(2)})
        await broker.publish("x", "t")
        await broker.publish("y", "u")
        held = await broker.receive()
        assert sorted(bodies_of(held)) == ["x", "y"]
        await broker.store.topics.delete("t")
        assert sorted(await broker.settle(held), key=str) == [Status.DONE, Status.STALE]
        assert set(broker.groups.group_state("g").topics) == {"u"}
        assert broker.groups.stats().in_flight == 0
        assert bodies_of(await broker.receive(topics=["t"])) == [], "it may be made again"
        with pytest.raises(UnknownTopic):
            await broker.receive(topics=["never"])
    async with running(tmp_path) as broker:
        assert [each.topic for each in (await broker.groups.describe("g")).topics] == ["u"]


async def test_queues_that_a_topic_gets_later_are_served(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group(start="latest")
        await broker.store.topics.change("t", queues=3, fields={})
        waiting = asyncio.create_task(broker.receive(wait_s=30.0))
        await until(lambda: broker.groups.stats().waiting == 1)
        await broker.publish("x", queue=2)
        received = await waiting
        assert [(each.queue, each.offset) for each in received.deliveries] == [(2, 0)]
        await broker.settle(received)
    async with running(tmp_path) as broker:
        assert (await broker.receive()).deliveries == []


async def test_a_seek_starts_again_and_old_receipts_are_stale(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group()
        await broker.publish(["a", "b", "c"])
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


async def test_a_topic_that_is_not_the_groups_is_said_to_be_that(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.topic("u")
        await broker.group()
        with pytest.raises(NotSubscribed, match="'g' does not subscribe to a topic 'u'"):
            await broker.receive(topics=("u",))


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (GroupSettings(), "topics"),
        (GroupSettings(topics={}), "topics"),
        (GroupSettings(topics={"t": Subscription()}, dead_letter_topic="t"), "dead_letter_topic"),
    ],
)
async def test_what_no_group_can_be_is_refused(
    tmp_path: Path, spec: GroupSettings, field: str
) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        with pytest.raises(InvalidGroup) as caught:
            await broker.groups.put_group("g", spec)
        assert caught.value.field == field
        assert broker.groups.groups() == []


async def test_a_longer_lease_than_ever_is_stored_before_it_is_given(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group(lease_ms=2_000)
        await broker.publish(["x", "y"])
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


async def test_filters_of_group_and_member(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group("tags", {"t": Subscription(filter="404,500")})
        await broker.group("sql", {"t": Subscription(filter="kind = 'b'")})
        await broker.group("plain")
        for n in range(40):
            await broker.publish(
                str(n), tag=("200", "404", "500")[n % 3], properties={"kind": "ab"[n % 2]}
            )
        tags = await broker.receive(100, group="tags", wait_s=5.0)
        assert bodies_of(tags) == [str(n) for n in range(40) if n % 3]
        await broker.settle(tags, group="tags")
        assert (await broker.groups.floors("tags", "t")) == {0: 40}, "what is not wanted is settled"
        found = bodies_of(await broker.receive(100, group="sql", wait_s=5.0))
        assert found == [str(n) for n in range(40) if n % 2]
        mine = await broker.receive(100, group="plain", filter="500", wait_s=5.0)
        assert bodies_of(mine) == [str(n) for n in range(40) if n % 3 == 2]
        rest = await broker.receive(100, group="plain", member="b")
        assert len(rest.deliveries) == 40 - len(mine.deliveries)


async def test_keyed_groups_keep_the_order_of_a_key(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group(mode="keyed", max_in_flight_per_key=1)
        for n in range(6):
            await broker.publish(str(n), key=f"k{n % 2}")
        a = await broker.receive(member="a")
        assert bodies_of(a) == ["0", "1"]
        assert bodies_of(await broker.receive(member="b")) == []
        await broker.settle(receipts_of(a)[:1])
        await broker.settle(receipts_of(a)[1:], Verb.NACK, delay_ms=0)
        assert bodies_of(await broker.receive(member="b")) == ["1", "2"]


async def test_one_active_member_at_a_time(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group("one", mode="single_active")
        await broker.group("own", mode="exclusive")
        await broker.publish(["x", "y"])
        held = await broker.receive(1, group="one")
        assert not (await broker.receive(member="b", group="one")).active
        waiting = asyncio.create_task(broker.receive(member="b", group="one", wait_s=30.0))
        await until(lambda: broker.groups.stats().waiting == 1)
        await broker.settle(held, group="one")
        await broker.groups.leave("one", "a")
        notice = await waiting
        assert notice.notice
        assert notice.active
        assert bodies_of(await broker.receive(member="b", group="one")) == ["y"]
        await broker.receive(1, group="own")
        with pytest.raises(ExclusiveHeld):
            await broker.receive(member="b", group="own")


@pytest.mark.parametrize("mode", ["single_active", "exclusive", "competing"])
async def test_who_is_active_is_shown(tmp_path: Path, mode: str) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group(mode=mode)
        await broker.publish(["x", "y"])

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
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group(mode="single_active")
        await broker.publish(["x", "y"])
        await broker.receive(1)
        received = await broker.receive(member="b", wait_s=0.02)
        assert (received.deliveries, received.active, received.available) == ([], False, 0)


async def test_settled_as_they_are_sent_and_browsed(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group()
        await broker.publish(["a", "b", "c", "d"])
        assert bodies_of(await broker.receive(2, browse=True)) == ["a", "b"]
        assert bodies_of(await broker.receive(2, browse=True)) == ["c", "d"]
        assert bodies_of(await broker.receive(2, browse=True)) == []
        assert bodies_of(await broker.receive(2, browse=True)) == ["a", "b"]
        sent = await broker.receive(3, settled=True)
        assert bodies_of(sent) == ["a", "b", "c"]
        assert receipts_of(sent) == []
        assert (await broker.groups.describe("g")).in_flight == 0
    async with running(tmp_path) as broker:
        assert bodies_of(await broker.receive()) == ["d"]


async def test_no_more_wait_than_may(tmp_path: Path) -> None:
    hold = HoldServiceConfig(max_held=3, max_held_per_client=2)
    async with running(tmp_path, hold=hold) as broker:
        await broker.topic()
        await broker.group()
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


async def test_a_group_takes_in_no_more_members_than_it_may(tmp_path: Path) -> None:
    async with running(tmp_path, limits=GroupsConfig(max_members=3)) as broker:
        await broker.topic()
        await broker.group(member_ttl_ms=10_000)
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
    async with running(tmp_path, hold=config) as broker:
        await broker.topic()
        await broker.group()
        async with asyncio.timeout(10):
            received = await broker.receive(wait_s=3600.0)
        assert not received.deliveries
    config = HoldServiceConfig(long_polling=False, short_polling_ms=3_600_000)
    async with running(tmp_path, hold=config) as broker:
        waiting = asyncio.create_task(broker.receive(wait_s=3600.0))
        await until(lambda: broker.groups.stats().waiting == 1)
        await broker.publish("x")
        assert bodies_of(await asyncio.wait_for(waiting, 10)) == ["x"]


async def test_a_group_is_described(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic(queues=2)
        await broker.group()
        await broker.publish(["abc", "d"], queue=0)
        await broker.publish(["e"], queue=1)
        await broker.settle(receipts_of(await broker.receive(1)))
        await broker.receive(1)
        found = await broker.groups.describe("g")
        topic = found.topics[0]
        assert found.in_flight == 1
        assert [(each.floor, each.max_offset, each.lag_messages) for each in topic.queues] == [
            (1, 2, 1),
            (0, 1, 1),
        ]
        assert topic.available == 1
        assert topic.served
        assert topic.served.count == 2
        assert found.members
        assert [(each.member, each.in_flight) for each in found.members] == [("a", 1)]


async def test_an_answer_tells_how_long_it_was_waited_for(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group()
        assert (await broker.receive(wait_s=0.02)).held_s >= 0.015
        await broker.publish("x")
        assert (await broker.receive(wait_s=30.0)).held_s == 0
