"""M2, M3: no request blocks the event loop for long, with any number of queues and groups."""

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.consumequeue.slices import ITEMS_A_TURN
from holdfast.groups import service
from holdfast.groups.config import GroupsConfig
from holdfast.groups.core import settling, subscribing
from holdfast.groups.core.fair_set import FairSet
from holdfast.groups.core.group import ENDED_A_TURN, Group
from holdfast.groups.core.group_topic import QueueLane
from holdfast.groups.core.receipts import ReceiptCodec
from holdfast.groups.core.receiving import SELECTED_A_TURN
from holdfast.groups.core.requests import Waiters
from holdfast.groups.core.selection import OrderedSelection
from holdfast.groups.cursor.cursor import Cursor
from holdfast.groups.cursor.leases import Lease, Leases
from holdfast.groups.service import FLOORS_A_TURN
from holdfast.groups.service_types import GroupServiceStats, Status, Verb
from holdfast.groups.serving import describe, group_registry, scanning
from holdfast.groups.serving.group_changes import CHANGED_A_TURN
from holdfast.groups.serving.group_registry import GroupRegistry
from holdfast.groups.serving.group_server import SETTLED_A_TURN, GroupServer
from holdfast.groups.serving.queue_watch import GROUP_ITEMS
from holdfast.groups.serving.receive_flow import MESSAGES_A_TURN
from holdfast.groups.settings import GroupSettings, Subscription
from holdfast.groups.storage.group_table import GroupTable
from holdfast.holdservice.config import HoldServiceConfig
from tests.support.event_loop.calls_a_turn import Turns, calls_a_turn
from tests.support.servers.group_broker import bodies_of, receipts_of, running, running_group
from tests.support.storage.stored import batch, until

QUEUES = 2_000
#: The most queues that any operation may handle in one loop iteration.
MOST = 600


async def test_a_publish_costs_nothing_for_groups_without_waiting_requests(tmp_path: Path) -> None:
    # M3: each publish cost 16 us for every group of its topic
    async with running(tmp_path) as broker:
        await broker.topic()
        for number in range(50):
            await broker.group(f"g{number}")
        waiting = await broker.wait_to_receive(1, group="g7")
        with pytest.MonkeyPatch.context() as patch:
            told: list[int] = []
            note_end = Group.note_end

            def noted(self: Group, key: Any, end: int) -> None:
                told.append(self.group_id)
                note_end(self, key, end)

            patch.setattr(Group, "note_end", noted)
            await broker.publish("x")
            assert bodies_of(await waiting) == ["x"]
            assert set(told) == {broker.groups.group_state("g7").record.group_id}
        for number in range(50):
            description = await broker.groups.describe(f"g{number}")
            assert description.topics[0].queues[0].max_offset == 1
        assert bodies_of(await broker.receive(group="g3")) == ["x"]


async def test_a_message_that_arrives_as_a_receive_begins_to_wait_wakes_it(tmp_path: Path) -> None:
    # M3: between the check and the wait the group gets no notice of an arrival
    async with running_group(tmp_path, queues=3) as broker:
        served = broker.groups.registry.by_name["g"]
        ask = served._first_reply

        async def ask_and_then_it_comes(asked: Any) -> Any:
            reply = await ask(asked)
            await broker.publish("x", queue=2)
            return reply

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(served, "begin_receive", lambda asked: None)  # as if it must read
            patch.setattr(served, "_first_reply", ask_and_then_it_comes)
            received = await broker.receive(wait_s=20.0)
        assert bodies_of(received) == ["x"]
        assert broker.groups.scan() == 0


async def test_group_calls_over_many_queues_take_many_turns(tmp_path: Path) -> None:
    # M2: one group call over 10,000 queues delayed held pulls by 430 to 2,100 ms
    async with running(tmp_path) as broker:
        await broker.topic(queues=QUEUES)
        with (
            calls_a_turn(QueueLane, "__init__") as lanes,
            calls_a_turn(Cursor, "__init__") as cursors,
            calls_a_turn(group_registry, "take_writes") as rows,
            calls_a_turn(Group, "update_lane") as touched,
        ):
            await broker.group()
        assert (lanes.total, cursors.total, rows.total) == (QUEUES, QUEUES, QUEUES)
        assert max(lanes.most, cursors.most, rows.most, touched.most) <= CHANGED_A_TURN
        for target in ("latest", "earliest", 1_000_000):
            with (
                calls_a_turn(QueueLane, "seek") as moved,
                calls_a_turn(broker.store.reading, "queue_state") as looked,
                calls_a_turn(Group, "update_lane") as touched,
            ):
                await broker.groups.seek("g", target)
            assert moved.total == QUEUES
            assert max(moved.most, looked.most, touched.most) <= MOST
        with calls_a_turn(describe, "describe_queue") as described:
            description = await broker.groups.describe("g")
        assert len(description.topics[0].queues) == described.total == QUEUES
        assert described.most <= MOST
        with pytest.MonkeyPatch.context() as patch:
            read, floor = Turns(), vars(Cursor)["floor"].fget

            def noted(cursor: Cursor) -> int:
                read.note()
                return int(floor(cursor))

            patch.setattr(Cursor, "floor", property(noted))
            await broker.groups.floors("g", "t")
            read.stop()
        assert read.total == QUEUES
        assert read.most <= FLOORS_A_TURN
        with calls_a_turn(QueueLane, "configure") as changed:
            await broker.groups.put_group("g", GroupSettings(mode="keyed"))
        assert changed.total == QUEUES
        assert changed.most <= MOST
        with calls_a_turn(QueueLane, "set_filter") as changed:
            await broker.groups.put_group("g", GroupSettings({"t": Subscription(filter="x")}))
        assert changed.total == 2 * QUEUES
        assert changed.most <= MOST
        with calls_a_turn(broker.storage.groups.page, "drop") as dropped:
            await broker.store.topics.delete("t")
            await until(lambda: dropped.total == QUEUES)
        assert dropped.most <= MOST


async def test_group_calls_over_many_topics_of_few_queues_take_many_turns(tmp_path: Path) -> None:
    # no single topic has enough queues for one slice
    topics, queues = 300, 5
    async with running(tmp_path) as broker:
        await asyncio.gather(*(broker.topic(f"t{n}", queues=queues) for n in range(topics)))
        named = {f"t{number}": Subscription() for number in range(topics)}
        with (
            calls_a_turn(QueueLane, "__init__") as lanes,
            calls_a_turn(Cursor, "__init__") as cursors,
            calls_a_turn(broker.store.reading, "queue_state") as looked,
        ):
            await broker.group(topics=named)
        assert lanes.total == cursors.total == topics * queues
        assert max(lanes.most, cursors.most) <= CHANGED_A_TURN
        assert looked.most <= 2 * CHANGED_A_TURN
        with calls_a_turn(FairSet, "set_weight") as weighed:
            await broker.group(topics=named)
        assert weighed.total == topics
        assert weighed.most <= CHANGED_A_TURN
        with calls_a_turn(describe, "describe_queue") as described:
            await broker.groups.describe("g")
        assert described.total == topics * queues
        assert described.most <= MOST
        for target in ("earliest", 1_000_000, {name: dict.fromkeys(range(5), 0) for name in named}):
            with (
                calls_a_turn(QueueLane, "seek") as moved,
                calls_a_turn(broker.store.reading, "queue_state") as looked,
            ):
                await broker.groups.seek("g", target)
            assert moved.total == topics * queues
            assert max(moved.most, looked.most) <= MOST
        with (
            calls_a_turn(Group, "_mark_dirty") as dirty,
            calls_a_turn(group_registry, "all_of") as let,
        ):
            await broker.groups.put_group("g", GroupSettings({"t0": Subscription()}))
        assert let.total == topics - 1
        assert let.most <= MOST
        assert dirty.total <= 2 * topics, "a topic that goes marks no other as dirty"
        await broker.group("h", topics=named)
        with calls_a_turn(broker.storage.groups.page, "drop") as dropped:
            await broker.groups.delete_group("h")
        assert dropped.total == topics * queues
        assert dropped.most <= MOST


async def test_a_topic_is_matched_with_many_patterns_over_many_turns(tmp_path: Path) -> None:
    # 21,000 patterns blocked the loop for a second
    async with running(tmp_path) as broker:
        await broker.topic("first")
        for number in range(6):
            patterns = {f"*{each}-{number}": Subscription() for each in range(500)}
            await broker.group(f"g{number}", topics={"first": Subscription(), **patterns})
        with calls_a_turn(subscribing, "matches") as tried:
            await broker.topic("t17-3")
        assert tried.total > 2_500
        assert tried.most <= MOST
        assert broker.groups.group_state("g3").topics.keys() == {"first", "t17-3"}
        with calls_a_turn(subscribing, "matches") as tried:
            await broker.group("g9", topics=patterns)
        assert tried.most <= MOST


async def test_a_topic_that_many_groups_match_comes_to_them_over_many_turns(tmp_path: Path) -> None:
    groups = 400
    async with running(tmp_path) as broker:
        patterns = {"t*": Subscription()}
        await asyncio.gather(*(broker.group(f"g{n}", topics=patterns) for n in range(groups)))
        with (
            calls_a_turn(GroupRegistry, "_subscribe") as subscribed,
            calls_a_turn(GroupTable, "changes_of") as encoded,
            calls_a_turn(QueueLane, "__init__") as lanes,
        ):
            await broker.topic("t", queues=3)
        assert (subscribed.total, lanes.total) == (groups, 3 * groups)
        assert encoded.most <= ITEMS_A_TURN
        assert max(GROUP_ITEMS * subscribed.most, lanes.most) <= CHANGED_A_TURN + GROUP_ITEMS
        with calls_a_turn(broker.storage.groups.page, "drop") as dropped:
            await broker.store.topics.delete("t")
            await until(lambda: dropped.total == 3 * groups)
        assert dropped.most <= MOST


async def test_groups_that_a_new_topic_comes_to_have_no_more_queues_than_the_limit(
    tmp_path: Path,
) -> None:
    # each group was admitted based on the totals before any of them got the topic
    for limit, expected in ((9, 2), (8, 2), (12, 3), (11, 2)):
        path = tmp_path / str(limit)
        async with running(path, limits=GroupsConfig(max_cursors=limit)) as broker:
            for number in range(3):
                await broker.group(f"g{number}", topics={"t*": Subscription()})
            await broker.topic("t", queues=4)
            has = [
                each for each in broker.groups.groups() if broker.groups.group_state(each).topics
            ]
            assert len(has) == expected
            assert broker.groups.registry.cursor_count == 4 * expected
            await broker.groups.delete_group(has[0])
            assert broker.groups.registry.cursor_count == 4 * (expected - 1)


async def test_changes_of_many_queues_are_processed_over_many_turns(tmp_path: Path) -> None:
    # M2, M3: the work of one publish for a waiting group
    async with running(tmp_path) as broker:
        topic = await broker.topic(queues=QUEUES)
        await broker.group()
        waiting = await broker.wait_to_receive(1)
        with calls_a_turn(broker.store.reading, "bounds") as looked:
            broker.groups.queue_changes.note((topic.topic_id, queue) for queue in range(QUEUES))
            await until(lambda: looked.total == QUEUES)
        assert looked.most <= MOST
        await broker.publish("x")
        assert bodies_of(await waiting) == ["x"]


async def test_a_receive_looks_into_many_queues_over_many_turns(tmp_path: Path) -> None:
    # M2: one receive of 10,000 messages from 10,000 queues blocked the loop for 0.7 s
    async with running(tmp_path) as broker:
        topic = await broker.topic(queues=QUEUES)
        await broker.group(max_in_flight=QUEUES)
        for first in range(0, QUEUES, 500):
            await broker.store.publishing.publish(
                topic, [batch(["x"], queue) for queue in range(first, first + 500)]
            )
        with calls_a_turn(broker.store.reading, "newest_alone", "read") as looked:
            received = await broker.receive(QUEUES, wait_s=20.0)
        assert received.deliveries
        assert looked.most <= MOST
        with calls_a_turn(broker.store.reading, "newest_alone", "read") as looked:
            await broker.receive(1, filter="unknown")
        assert looked.most <= MOST


async def test_a_scan_skips_a_limited_number_of_groups_without_waiting_requests(
    tmp_path: Path,
) -> None:
    # 10,000 groups took 16 ms
    async with running(tmp_path, hold=HoldServiceConfig(scan_interval_ms=3_600_000)) as broker:
        await broker.topic()
        for number in range(12):
            await broker.group(f"g{number}")
        waiting = await broker.wait_to_receive(1, group="g11")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scanning, "QUEUES_A_CALL", 4)
            patch.setattr(scanning, "_STEP", 2)
            with calls_a_turn(Waiters, "__len__") as passed_by:
                while broker.groups._scan._round is not None or not passed_by.total:
                    assert broker.groups.scan() == 0
                    await asyncio.sleep(0)
            assert passed_by.total >= 12, "each group is looked at"
            assert passed_by.most <= 6, "and more than once where somebody waits"
        await broker.publish("x")
        assert bodies_of(await waiting) == ["x"]


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("waits", [False, True])
async def test_many_messages_are_received_over_many_turns(
    tmp_path: Path, waits: bool, settled: bool
) -> None:
    # 10,000 messages were selected and leased in one loop iteration, and counted in one
    count = 2 * max(SELECTED_A_TURN, MESSAGES_A_TURN) + 1
    bodies = [str(number) for number in range(count)]
    async with running_group(tmp_path, max_in_flight=count) as broker:
        if not waits:
            await broker.publish(bodies)
        with (
            calls_a_turn(
                *(QueueLane, "lease", "take_settled"),
                weigh=lambda lane, heads, *_: len(heads),
            ) as selected,
            calls_a_turn(GroupServer, "_count") as counted,
            calls_a_turn(ReceiptCodec, "encode") as encoded,
        ):
            waiting = broker.start_receiving(count, settled=settled, wait_s=60.0)
            if waits:
                await until(lambda: broker.groups.stats().waiting == 1)
                await broker.publish(bodies)
            received = await waiting
        assert bodies_of(received) == bodies
        assert selected.total == count
        assert selected.most <= SELECTED_A_TURN
        assert encoded.total == (0 if settled else count)
        assert encoded.most <= MESSAGES_A_TURN
        assert (counted.total, counted.most) == (-(-count // MESSAGES_A_TURN), 1)
        assert broker.groups.stats().delivered_total == count


async def test_a_receive_that_is_cancelled_between_turns_releases_its_leases(
    tmp_path: Path,
) -> None:
    count = 4 * SELECTED_A_TURN
    async with running_group(tmp_path, ["x"] * count, max_in_flight=count) as broker:
        waiting = broker.start_receiving(count)
        await until(lambda: broker.groups.stats().in_flight >= SELECTED_A_TURN)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: broker.groups.stats().in_flight == 0)
        assert len(bodies_of(await broker.receive(count))) == count


def count_leases(_: Leases, leases: Sequence[Lease]) -> int:
    return len(leases)


@pytest.mark.parametrize("verb", list(Verb))
async def test_many_receipts_are_settled_over_many_turns(tmp_path: Path, verb: Verb) -> None:
    # 10,000 receipts blocked the loop for 100 ms, and so did an undelivered reply with as many
    count = 2 * SETTLED_A_TURN + 1
    calls = {Verb.ACK: (Leases, "remove_run"), Verb.EXTEND: (Leases, "extend")}
    owner, name = calls.get(verb, (Cursor, "give_back"))
    weigh = count_leases if verb is Verb.ACK else lambda *_: 1
    async with running_group(
        tmp_path, [str(number) for number in range(count)], max_in_flight=count
    ) as broker:
        received = await broker.receive(count)
        receipts = [*receipts_of(received), "none", *receipts_of(received)[:1]]
        with (
            calls_a_turn(ReceiptCodec, "decode") as decoded,
            calls_a_turn(owner, name, weigh=weigh) as settled,
        ):
            statuses = await broker.settle(receipts, verb)
        assert (decoded.total, settled.total) == (count + 2, count + (verb is Verb.EXTEND))
        assert max(decoded.most, settled.most) <= SETTLED_A_TURN
        assert statuses == [Status.DONE] * count + [Status.INVALID, Status.DONE]
        stats = broker.groups.stats().settled_total
        assert stats == {(verb.value, "done"): count + 1, (verb.value, "invalid"): 1}


async def test_many_leases_and_delays_end_over_many_turns(tmp_path: Path) -> None:
    # up to 100,000 ended in one loop iteration
    count = 2 * ENDED_A_TURN + 1
    bodies = [str(number) for number in range(count)]
    async with running_group(tmp_path, bodies, max_in_flight=count) as broker:
        received = await broker.receive(count, lease_ms=60_000)
        with calls_a_turn(OrderedSelection, "mark_returned") as returned:
            broker.later(61.0)
            await until(lambda: broker.groups.stats().in_flight == 0)
        assert (returned.total, returned.most) == (count, ENDED_A_TURN)
        assert broker.groups.stats().expired_leases_total == count
        received = await broker.receive(count)
        assert bodies_of(received) == bodies
        await broker.settle(received, Verb.NACK, delay_ms=60_000)
        with calls_a_turn(OrderedSelection, "mark_returned") as returned:
            broker.later(61.0)
            await until(lambda: returned.total == count)
        assert returned.most == ENDED_A_TURN
        assert bodies_of(await broker.receive(count)) == bodies


async def test_leases_in_many_queues_end_over_many_turns(tmp_path: Path) -> None:
    queues = 2 * ENDED_A_TURN + 1
    async with running_group(tmp_path, queues=queues, max_in_flight=queues) as broker:
        for queue in range(queues):
            await broker.publish("x", queue=queue)
        while len((await broker.receive(queues, lease_ms=600_000)).deliveries):
            pass
        assert broker.groups.stats().in_flight == queues
        with calls_a_turn(QueueLane, "tick") as ticked:
            broker.later(601.0)
            await until(lambda: broker.groups.stats().in_flight == 0)
        assert ticked.most <= ENDED_A_TURN


async def test_a_member_with_many_leases_leaves_over_many_turns(tmp_path: Path) -> None:
    count = 2 * ENDED_A_TURN + 1
    bodies = [str(number) for number in range(count)]
    async with running_group(
        tmp_path, bodies, max_in_flight=count + 1, mode="single_active"
    ) as broker:
        held = await broker.receive(count)
        own = broker.start_receiving(1, wait_s=60.0)
        other = broker.start_receiving(count, member="b", wait_s=60.0)
        await until(lambda: broker.groups.stats().waiting == 2)
        with calls_a_turn(OrderedSelection, "mark_returned") as returned:
            await broker.groups.leave("g", "a")
        assert (returned.total, returned.most) == (count, ENDED_A_TURN)
        assert bodies_of(await own) == []
        assert (await other).notice
        assert bodies_of(await broker.receive(count, member="b")) == bodies
        assert set(await broker.settle(held)) == {Status.STALE}


async def test_many_messages_are_acknowledged_by_one_receipt_over_many_turns(
    tmp_path: Path,
) -> None:
    count = 2 * SETTLED_A_TURN + 1
    async with running_group(tmp_path, ["x"] * (count + 1), max_in_flight=count + 1) as broker:
        receipts = receipts_of(await broker.receive(count + 1))
        with calls_a_turn(Leases, "remove_run", weigh=count_leases) as settled:
            assert await broker.settle(receipts[-2:-1], cumulative=True) == [Status.DONE]
        assert (settled.total, settled.most) == (count, SETTLED_A_TURN)
        assert broker.groups.stats().in_flight == 1
        assert broker.groups.stats().settled_total == {("ack", "done"): 1}


async def test_many_cumulative_receipts_look_for_leases_once_a_turn(tmp_path: Path) -> None:
    # each receipt iterated over all leases of its member
    async with running_group(tmp_path, ["x"] * 100, max_in_flight=100) as broker:
        receipts = receipts_of(await broker.receive(100))
        with calls_a_turn(Leases, "of_member") as looked:
            statuses = await broker.settle(receipts[50:], cumulative=True)
        assert statuses == [Status.DONE] * 50
        assert looked.total == 1
        assert broker.groups.stats().in_flight == 0


async def test_settling_completes_when_the_client_disconnects(tmp_path: Path) -> None:
    count = 3 * SETTLED_A_TURN
    async with running_group(tmp_path, ["x"] * count, max_in_flight=count) as broker:
        receipts = receipts_of(await broker.receive(count))
        settled = asyncio.create_task(broker.settle(receipts))
        await asyncio.sleep(0)
        settled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await settled
        await until(lambda: broker.groups.stats().settled_total == {("ack", "done"): count})


async def test_a_large_reply_that_was_not_sent_is_given_back_over_many_turns(
    tmp_path: Path,
) -> None:
    count = 3 * SETTLED_A_TURN
    async with running_group(tmp_path, ["x"] * count, max_in_flight=count) as broker:
        receipts = receipts_of(await broker.receive(count))
        with (
            calls_a_turn(ReceiptCodec, "decode") as decoded,
            calls_a_turn(settling, "settle_receipt") as settled,
        ):
            broker.groups.release_undelivered("g", receipts)
            assert decoded.total == SETTLED_A_TURN, "the first at once"
            await until(lambda: broker.groups.stats().in_flight == 0)
        assert decoded.total == settled.total == count
        assert max(decoded.most, settled.most) <= SETTLED_A_TURN
        assert broker.groups.stats().undelivered_total == count


async def test_a_large_reply_is_given_back_whole_as_the_broker_stops(tmp_path: Path) -> None:
    count = 3 * SETTLED_A_TURN
    async with running_group(tmp_path, ["x"] * count, max_in_flight=count) as broker:
        receipts = receipts_of(await broker.receive(count))
        broker.groups.drain()
        broker.groups.release_undelivered("g", receipts)
        assert broker.groups.stats().in_flight == 0


async def test_a_scan_of_many_queues_continues_and_finds_messages_without_notification(
    tmp_path: Path,
) -> None:
    # M2: similarly, the periodic scan visited all queues of all waiting groups in one loop
    # iteration
    async with running(tmp_path, hold=HoldServiceConfig(scan_interval_ms=3_600_000)) as broker:
        topic = await broker.topic(queues=12)
        await broker.group()
        waiting = await broker.wait_to_receive(1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scanning, "QUEUES_A_CALL", 5)
            patch.setattr(scanning, "_STEP", 5)
            patch.setattr(broker.groups.queue_changes, "note", lambda advanced: None)
            await broker.publish("x", queue=11)
            with calls_a_turn(broker.groups._scan, "_max_offset") as looked:
                found: list[int] = []
                while sum(found) == 0 and len(found) < 20:
                    found.append(broker.groups.scan())
                    await asyncio.sleep(0)
            assert looked.most <= 5
            assert sum(found) == 1, "in the second round: the first might be too early"
            assert len(found) > 3
        assert bodies_of(await waiting) == ["x"]
        assert topic.queue_count == 12


async def test_the_figures_of_many_groups_are_added_over_many_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 10,000 groups took 40 ms in one loop iteration
    parts: list[int] = []
    add = service.add_figures

    def noted(stats: GroupServiceStats, groups: Collection[GroupServer]) -> None:
        parts.append(len(groups))
        add(stats, groups)

    async with running(tmp_path) as broker:
        await broker.topic()
        for number in range(ITEMS_A_TURN + 1):
            await broker.group(f"g{number}")
        monkeypatch.setattr(service, "add_figures", noted)
        assert await broker.groups.stats_in_slices() == broker.groups.stats()
        assert parts == [ITEMS_A_TURN, 1, ITEMS_A_TURN + 1]
