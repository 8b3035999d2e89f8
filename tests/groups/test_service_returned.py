"""Returned messages: their number is limited per group and for all groups together."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.groups.config import GroupsConfig
from holdfast.groups.core.key_selection import LOOK_AHEAD
from holdfast.groups.core.selection import MAX_FILTERS, OrderedSelection
from holdfast.groups.cursor.cursor import Cursor
from holdfast.groups.service_types import Received, Verb
from holdfast.groups.settings import Subscription
from tests.support.event_loop.calls_a_turn import calls_a_turn
from tests.support.servers.group_broker import (
    GroupBroker,
    bodies_of,
    receipts_of,
    running,
    running_group,
)

DELAY_MS = 600_000


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


async def delayed(broker: GroupBroker, count: int, group: str = "g", **fields: Any) -> Received:
    """Receive messages, and nack them with a delay."""
    received = await broker.receive(count, group=group, **fields)
    assert len(received.deliveries) == count
    await broker.settle(received, Verb.NACK, group=group, delay_ms=DELAY_MS)
    return received


@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_a_group_at_its_limit_of_returned_messages_gets_no_new_messages(
    tmp_path: Path, more: int
) -> None:
    async with running_group(
        tmp_path, numbers(20), limits=GroupsConfig(max_returned_per_group=6)
    ) as broker:
        await delayed(broker, 6 + more)
        new = await broker.receive(2)
        assert bodies_of(new) == (["5", "6"] if more < 0 else [])
        assert broker.groups.stats().at_limit == ([] if more < 0 else ["g"])
        if more < 0:
            return
        taken = await broker.receive(2, settled=True)
        assert bodies_of(taken) == [str(6 + more), str(7 + more)], "what is settled is not kept"
        broker.later(DELAY_MS / 1000)
        due = await broker.receive(lease_ms=DELAY_MS)
        assert bodies_of(due) == numbers(6 + more), "what is due is delivered, and only that"
        waiting = await broker.wait_to_receive()
        await broker.settle(receipts_of(due)[:more])
        assert not waiting.done()
        await broker.settle(receipts_of(due)[more : more + 1])
        assert bodies_of(await waiting) == [str(each) for each in range(8 + more, 20)]


async def test_all_groups_together_have_a_most_of_returned_messages(tmp_path: Path) -> None:
    async with running_group(tmp_path, limits=GroupsConfig(max_returned=5)) as broker:
        await broker.group("h")
        await broker.publish(numbers(20))
        await delayed(broker, 3, "g")
        await delayed(broker, 2, "h")
        assert bodies_of(await broker.receive(group="g")) == []
        assert bodies_of(await broker.receive(group="h")) == []
        await broker.groups.delete_group("h")
        assert len((await broker.receive(2, group="g")).deliveries) == 2


async def test_returned_messages_that_a_members_filter_passes_over_count_too(
    tmp_path: Path,
) -> None:
    async with running_group(tmp_path, limits=GroupsConfig(max_returned_per_group=3)) as broker:
        for tag in "abcd":
            await broker.publish([tag, tag + tag], tag=tag)
        for tag in "ab":
            held = await broker.receive(filter=tag)
            await broker.settle(held, Verb.RELEASE)
        assert bodies_of(await broker.receive(filter="c")) == []
        assert bodies_of(await broker.receive(filter="b")) == ["b", "bb"]
        again = await broker.receive()
        assert bodies_of(again) == ["a", "aa"]
        await broker.settle(again)
        assert bodies_of(await broker.receive(filter="c")) == ["c", "cc"]


@pytest.mark.parametrize("rotating", [3, MAX_FILTERS + 2])
async def test_returned_messages_are_scanned_once_for_all_filters(
    tmp_path: Path, rotating: int
) -> None:
    # each new filter iterated over 100,000 messages, for 30 ms
    count = 300
    async with running_group(
        tmp_path, limits=GroupsConfig(max_returned_per_group=count), max_in_flight=2 * count
    ) as broker:
        await broker.publish(numbers(count), tag="a")
        await broker.settle(await broker.receive(count), Verb.RELEASE)
        lane = broker.groups.registry.by_name["g"].core.topics[1].lanes[0]
        with calls_a_turn(Cursor, "is_available") as looked:
            received = await broker.receive(1, filter="a")
            assert looked.total >= count
        for number in range(rotating):
            with calls_a_turn(Cursor, "is_available") as looked:
                received = await broker.receive(1, filter=f"a,b{number}")
            assert bodies_of(received) == [str(number + 1)], "and sees what was taken meanwhile"
            assert looked.total <= 2 * (number + 3)
        assert isinstance(lane.selection, OrderedSelection)
        assert len(lane.selection._pointers) <= MAX_FILTERS
        assert bodies_of(await broker.receive(count)) == numbers(count)[rotating + 1 :]


async def test_returned_messages_are_delivered_though_new_ones_lie_before_them(
    tmp_path: Path,
) -> None:
    """This also holds after a restart, when every pointer starts at the floor again."""
    limits = GroupsConfig(max_returned_per_group=2)
    async with running_group(tmp_path, limits=limits) as broker:
        for tag in "aba":
            await broker.publish([tag, tag], tag=tag)
        await broker.settle(await broker.receive(filter="b"), Verb.RELEASE)
        assert bodies_of(await broker.receive()) == ["b", "b"]
    async with running(tmp_path, limits=limits, skipped_s=60.0) as broker:
        broker.later(60.0)
        held = await broker.receive()
        assert bodies_of(held) == ["b", "b"]
        await broker.settle(held)
        assert bodies_of(await broker.receive()) == ["a"] * 4


async def test_returned_messages_count_after_a_restart(tmp_path: Path) -> None:
    async with running_group(tmp_path, numbers(9)) as broker:
        await delayed(broker, 4)
    async with running(tmp_path, limits=GroupsConfig(max_returned_per_group=4)) as broker:
        assert bodies_of(await broker.receive()) == []
    async with running(tmp_path, limits=GroupsConfig(max_returned_per_group=5)) as broker:
        assert bodies_of(await broker.receive(2)) == ["4", "5"]


async def test_a_seek_forgets_returned_messages(tmp_path: Path) -> None:
    async with running_group(
        tmp_path, numbers(9), limits=GroupsConfig(max_returned_per_group=4)
    ) as broker:
        await delayed(broker, 4)
        await broker.groups.seek("g", "earliest")
        assert bodies_of(await broker.receive()) == numbers(9)


@pytest.mark.parametrize("mode", ["single_active", "exclusive"])
async def test_it_holds_in_other_modes(tmp_path: Path, mode: str) -> None:
    async with running_group(
        tmp_path, numbers(9), limits=GroupsConfig(max_returned_per_group=2), mode=mode
    ) as broker:
        received = await broker.receive(2)
        if received.notice:
            received = await broker.receive(2)
        await broker.settle(received, Verb.NACK, delay_ms=DELAY_MS)
        assert bodies_of(await broker.receive()) == []


async def test_a_keyed_group_at_the_limit_delivers_messages_that_it_has_scanned(
    tmp_path: Path,
) -> None:
    """No key waits for another key, and yet the number of returnable messages is limited."""
    limits = GroupsConfig(max_returned_per_group=2)
    async with running_group(
        tmp_path, numbers(3 * LOOK_AHEAD), limits=limits, mode="keyed", max_in_flight=10_000
    ) as broker:
        back = 0
        while (held := await broker.receive(1_000)).deliveries:
            back += len(held.deliveries)
            await broker.settle(held, Verb.NACK, delay_ms=DELAY_MS)
        assert back <= LOOK_AHEAD + 1_000
    async with running(tmp_path, limits=limits) as broker:
        broker.later(DELAY_MS / 1000)
        held = await broker.receive(1_000)
        assert bodies_of(held) == numbers(1_000)


async def test_returned_messages_of_removed_topics_do_not_count(tmp_path: Path) -> None:
    async with running(tmp_path, limits=GroupsConfig(max_returned_per_group=2)) as broker:
        for name in ("t", "u"):
            await broker.topic(name)
            await broker.publish(numbers(5), name)
        await broker.group(topics={"t": Subscription(), "u": Subscription()})
        await delayed(broker, 2, topics=["t"])
        assert names_of(await broker.receive()) == []
        await broker.group(topics="u")
        assert names_of(await broker.receive()) == ["u"] * 5


def names_of(received: Received) -> Sequence[str]:
    return [each.topic.name for each in received.deliveries]
