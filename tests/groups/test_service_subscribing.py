"""R7: groups subscribe by name and by pattern, over a real storage."""

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.consumequeue.errors import KeyedBacklog, LimitReached
from holdfast.consumequeue.slices import LoopBudget
from holdfast.groups.config import GroupsConfig
from holdfast.groups.errors import InvalidGroup
from holdfast.groups.service_types import ChangeChecks, Verb
from holdfast.groups.settings import GroupSettings, Subscription
from tests.groups.test_service_changes import crashes
from tests.support.servers.group_broker import (
    GroupBroker,
    bodies_of,
    receipts_of,
    running,
    running_group,
)
from tests.support.storage.stored import until

ALL = {"*": Subscription()}


def _topics(broker: GroupBroker, group: str = "g") -> list[str]:
    return sorted(broker.groups.group_state(group).topics)


async def test_a_topic_that_is_deleted_and_created_again_is_added_to_its_groups(
    tmp_path: Path,
) -> None:
    # R7: the group received nothing any more, and reported lag 0
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group(start="latest", topics={"t": Subscription(3, "red")})
        await broker.publish("old", tag="red")
        held = await broker.receive()
        await broker.store.topics.delete("t")
        assert bodies_of(await broker.receive()) == []
        assert broker.groups.group_state("g").record.subscriptions == {"t": Subscription(3, "red")}
        await broker.topic(queues=2)
        await broker.publish(["new"], queue=1, tag="red")
        again = await broker.receive(wait_s=10.0)
        assert bodies_of(again) == ["new"]
        assert await broker.settle(held) != await broker.settle(again)
        assert broker.groups.group_state("g").topics == {"t": Subscription(3, "red")}
    async with running(tmp_path) as broker:
        await broker.publish("newer", tag="red")
        assert bodies_of(await broker.receive(wait_s=10.0)) == ["newer"]


async def test_a_topic_may_be_named_before_it_is_there_and_a_receive_waits_for_it(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        state, is_new = await broker.groups.put_group("g", GroupSettings({"later": Subscription()}))
        assert (is_new, state.topics, list(state.record.subscriptions)) == (True, {}, ["later"])
        assert bodies_of(await broker.receive(topics=["later"])) == []
    async with running(tmp_path) as broker:
        waiting = broker.start_receiving(wait_s=10.0)
        await until(lambda: broker.groups.stats().waiting == 1)
        await broker.topic("later")
        await broker.publish("x", "later")
        assert bodies_of(await waiting) == ["x"]


async def test_a_pattern_finds_topics_that_are_there_and_that_come(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        for name in ("orders.eu", "orders", "bills"):
            await broker.topic(name)
            await broker.publish(name, name)
        await broker.groups.put_group(
            "g", GroupSettings({"orders.*": Subscription(2)}, start="latest")
        )
        assert _topics(broker) == ["orders.eu"]
        await broker.topic("orders.us", queues=3)
        await broker.topic("payments")
        await broker.publish("first", "orders.us", queue=2)
        assert bodies_of(await broker.receive(wait_s=10.0)) == ["first"]
        assert broker.groups.group_state("g").topics == dict.fromkeys(
            ("orders.eu", "orders.us"), Subscription(2)
        )
    async with running(tmp_path) as broker:
        assert _topics(broker) == ["orders.eu", "orders.us"]
        await broker.groups.put_group("g", GroupSettings({"bill?": Subscription()}))
        assert _topics(broker) == ["bills"]


async def test_dead_letters_and_the_brokers_own_topics_match_no_pattern(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        for name in ("t", "mine.dead", "others.dead", "became.dead"):
            await broker.topic(name)
        await broker.group("other", "t", dead_letter_topic="others.dead")
        await broker.group("g", ALL, dead_letter_topic="mine.dead")
        assert _topics(broker) == ["became.dead", "t"]
        await broker.group("third", "t", dead_letter_topic="became.dead")
        assert _topics(broker) == ["t"]
        await broker.group("fourth", "t", dead_letter_topic="yet.to.be.made")
        await broker.topic("yet.to.be.made")
        assert _topics(broker) == ["t"]
        await broker.publish("x", "t")
        await broker.settle(await broker.receive(), Verb.REJECT)
        await until(lambda: broker.groups.stats().dead_letters_total == 1)
        assert bodies_of(await broker.receive()) == []
        await broker.group("named", "others.dead")
        assert _topics(broker, "named") == ["others.dead"], "by its name it may be had"
        with pytest.raises(InvalidGroup):
            await broker.group("g", "t", dead_letter_topic="t")


def _forbid(group: str) -> None:
    raise PermissionError(group)


async def _broker_with_some_settled(tmp_path: Path, broker: GroupBroker) -> None:
    """Let the group `g` get the topic `t` by a pattern, and settle the first two of four
    messages."""
    await broker.topic()
    await broker.topic("u")
    await broker.group("g", {"t*": Subscription(3)})
    await broker.publish(["0", "1", "2", "3"])
    await broker.settle(await broker.receive(2))


@pytest.mark.parametrize("way", ["another topic", "none", "the group is deleted"])
async def test_a_topic_that_ceases_to_be_a_dead_letter_topic_continues_at_its_floor(
    tmp_path: Path, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with running(tmp_path) as broker:
        await _broker_with_some_settled(tmp_path, broker)
        await broker.group("other", "u", dead_letter_topic="t")
        assert _topics(broker) == []
        assert "'g' lost the topic 't', which is the dead-letter topic of 'other'" in (caplog.text)
        assert bodies_of(await broker.receive()) == []
        waiting = await broker.wait_to_receive()
        if way == "another topic":
            await broker.group("other", "u", dead_letter_topic="v")
        elif way == "none":
            await broker.group("other", "u", dead_letter_topic="")
        else:
            await broker.groups.delete_group("other")
        assert bodies_of(await waiting) == ["2", "3"]
        assert broker.groups.group_state("g").topics == {"t": Subscription(3)}
        assert "'g' has the topic 't' again" in caplog.text


async def test_a_dead_letter_topic_is_added_when_no_group_names_it_any_more(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await _broker_with_some_settled(tmp_path, broker)
        await broker.group("first", "u", dead_letter_topic="t")
        await broker.group("second", "u", dead_letter_topic="t")
        await broker.groups.delete_group("first")
        assert _topics(broker) == []
        await broker.groups.delete_group("second")
        assert _topics(broker) == ["t"]


async def test_a_group_whose_own_dead_letter_topic_it_was_gets_it_by_its_pattern(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.topic("u")
        await broker.group("g", ALL, dead_letter_topic="t")
        assert _topics(broker) == ["u"]
        await broker.groups.put_group("g", GroupSettings(dead_letter_topic=""))
        assert _topics(broker) == ["t", "u"]


async def test_a_former_dead_letter_topic_continues_at_its_floor_after_restarts(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        await _broker_with_some_settled(tmp_path, broker)
        await broker.group("other", "u", dead_letter_topic="t")
    async with running(tmp_path) as broker:
        assert _topics(broker) == []
        await broker.groups.delete_group("other")
        assert bodies_of(await broker.receive(1)) == ["2"]
    async with running(tmp_path, skipped_s=60.0) as broker:
        assert bodies_of(await broker.receive()) == ["2", "3"]


async def test_a_crash_as_a_former_dead_letter_topic_is_added_keeps_its_floor(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "data") as broker:
        await _broker_with_some_settled(tmp_path, broker)
        await broker.group("other", "u", dead_letter_topic="t")
        async with crashes(broker, tmp_path / "data") as left:
            await broker.groups.delete_group("other")
    found = []
    for killed in left:
        async with running(killed) as broker:
            has_topic = "other" not in broker.groups.groups()
            found.append(has_topic)
            assert _topics(broker) == ["t"] * has_topic, killed.name
            assert bodies_of(await broker.receive()) == ["2", "3"] * has_topic, killed.name
    assert True in found


async def test_a_caller_that_may_not_change_a_group_removes_no_topic_from_it(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        await _broker_with_some_settled(tmp_path, broker)
        spec = GroupSettings({"u": Subscription()}, dead_letter_topic="t")
        with pytest.raises(PermissionError, match="g"):
            await broker.groups.put_group("other", spec, checks=ChangeChecks(loser=_forbid))
        assert broker.groups.groups() == ["g"]
        assert bodies_of(await broker.receive(1)) == ["2"]
        named = GroupSettings({"t": Subscription()})
        await broker.groups.put_group("g", named)
        await broker.groups.put_group("other", spec, checks=ChangeChecks(loser=_forbid))
        assert _topics(broker) == ["t"], "who has it by its name loses nothing"
        await broker.groups.put_group("other", spec, checks=ChangeChecks(loser=_forbid))


async def test_a_pattern_matches_only_topics_that_its_owner_may_consume_at_that_time(
    tmp_path: Path,
) -> None:
    may = {"alice": {"a1", "a2", "b1"}, "bob": {"a1", "b2"}}
    async with running(tmp_path) as broker:
        broker.may_subscribe = lambda owner, topic, group: topic in may.get(owner, ())
        await broker.topic("a1")
        await broker.groups.put_group("g", GroupSettings({"a*": Subscription()}), "alice")
        await broker.topic("a2")
        await broker.topic("a3")
        assert _topics(broker) == ["a1", "a2"]
        del may["alice"]  # revoked token: existing matches stay, no new ones
        await broker.topic("a4")
        may["bob"] |= {"a5"}
        await broker.topic("a5")
        assert _topics(broker) == ["a1", "a2"]
        await broker.groups.put_group("g", GroupSettings(lease_ms=5_000), "bob")
        assert _topics(broker) == ["a1", "a2"], "who changes something else does not own it"
        await broker.groups.put_group("g", GroupSettings({"a*": Subscription()}), "bob")
        assert _topics(broker) == ["a1", "a2", "a5"]
    async with running(tmp_path, may_subscribe=lambda *who: False) as broker:
        assert _topics(broker) == ["a1", "a2", "a5"]


@pytest.mark.parametrize(("limit", "found"), [(3, 3), (4, 4), (5, 4)])
async def test_a_group_gets_at_most_max_topics(tmp_path: Path, limit: int, found: int) -> None:
    async with running(tmp_path, limits=GroupsConfig(max_topics=limit)) as broker:
        for name in "ab":
            await broker.topic(name)
        await broker.groups.put_group("g", GroupSettings(ALL))
        for name in "cd":
            await broker.topic(name)
        assert len(_topics(broker)) == found
        if found == 3:
            with pytest.raises(LimitReached):
                await broker.groups.put_group("h", GroupSettings(ALL))
        else:
            await broker.groups.put_group("h", GroupSettings(ALL))


async def test_a_match_waits_for_room_among_all_groups_cursors(tmp_path: Path) -> None:
    async with running(tmp_path, limits=GroupsConfig(max_cursors=5)) as broker:
        await broker.topic("a", queues=3)
        await broker.groups.put_group("g", GroupSettings(ALL))
        await broker.topic("b", queues=3)
        await broker.topic("c", queues=2)
        assert _topics(broker) == ["a", "c"]


async def test_a_crash_as_a_topic_is_created_removes_it_from_no_group(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as broker:
        await broker.groups.put_group("g", GroupSettings(ALL, start="latest"))
        async with crashes(broker, tmp_path / "data") as left:
            await broker.topic()
            await broker.publish("x")
    found = []
    for killed in left:
        async with running(killed) as broker:
            has_topic = broker.store.table.find("t") is not None
            found.append(has_topic)
            assert _topics(broker) == ["t"] * has_topic, killed.name
            await broker.topic()
            await broker.publish("y")
            assert bodies_of(await broker.receive())[-1] == "y", killed.name
    assert True in found


async def test_a_crash_as_old_records_get_their_subscriptions_loses_none(tmp_path: Path) -> None:
    # R7: records of 0.1.0 have topics by id only; a start adds their names
    async with running(tmp_path / "data") as broker:
        for name in ("t", "u"):
            await broker.topic(name)
            await broker.group(f"of-{name}", name)
            await broker.publish(name, name)
        changes = broker.groups.changes
        old = [replace(each, subscriptions={}, owner="") for each in changes._table.all()]
        await changes._store_records(old, LoopBudget())
        for record in old:
            broker.groups.registry.by_name[record.name].record = record
        async with crashes(broker, tmp_path / "data") as left:
            await changes.find_topics()
    assert len(left) > 2
    for killed in left:
        async with running(killed) as broker:
            for name in ("t", "u"):
                state = broker.groups.group_state(f"of-{name}")
                assert list(state.record.subscriptions) == list(state.topics) == [name], killed.name
                received = await broker.receive(group=f"of-{name}", wait_s=10.0)
                assert bodies_of(received) == [name], killed.name


async def test_a_group_of_before_there_were_subscriptions_has_its_topics_by_name(
    tmp_path: Path,
) -> None:
    async with running_group(tmp_path) as broker:
        changes = broker.groups.changes
        (record,) = changes._table.all()
        object.__setattr__(record, "subscriptions", {})
        await changes._store_records([record], LoopBudget())
    async with running(tmp_path) as broker:
        assert broker.groups.group_state("g").record.subscriptions == {"t": Subscription()}
        await broker.store.topics.delete("t")
    async with running(tmp_path) as broker:
        assert broker.groups.group_state("g").record.subscriptions == {"t": Subscription()}
        await broker.topic()
        await broker.publish("x")
        assert bodies_of(await broker.receive(wait_s=10.0)) == ["x"]


# -- more queues under keyed groups ------------------------------------------------------------


async def test_queues_are_added_under_a_keyed_group_only_when_it_has_settled_all(
    tmp_path: Path,
) -> None:
    # R9: messages of a key were leased from its old and its new queue at the same time
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group("free", "t")
        await broker.group("keyed", ALL, mode="keyed")
        await broker.publish(["x", "y"], key="k")
        with pytest.raises(KeyedBacklog) as caught:
            await broker.store.topics.change("t", queues=4, fields={})
        assert caught.value.groups == ["keyed"]
        held = await broker.receive(group="keyed")
        await broker.settle([receipts_of(held)[0]], group="keyed")
        with pytest.raises(KeyedBacklog):
            await broker.store.topics.change("t", queues=4, fields={})
        await broker.store.topics.change("t", fields={"retention_ms": 1_000_000})
        await broker.settle([receipts_of(held)[1]], group="keyed")
        changed = await broker.store.topics.change("t", queues=4, fields={})
        assert changed.queue_count == 4
        await broker.publish("z", queue=3, key="k")
        assert bodies_of(await broker.receive(group="keyed", wait_s=10.0)) == ["z"]
