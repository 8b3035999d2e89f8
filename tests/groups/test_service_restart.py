"""A served group after a restart: after an orderly stop or a kill its state is unchanged."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.consumequeue.message_store import MessageStore
from holdfast.groups.config import GroupsConfig
from holdfast.groups.errors import ExclusiveHeld
from holdfast.groups.service_types import Received, Status, Verb
from tests.support.servers.group_broker import (
    GroupBroker,
    bodies_of,
    receipts_of,
    running,
    running_group,
)
from tests.support.storage.stored import copy_running, settled, small_config

HOUR_MS = 3_600_000
DONE, STALE = Status.DONE, Status.STALE
ends = pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])


@dataclass
class Lives:
    """A data directory on which brokers run one after another."""

    path: Path
    is_killed: bool
    number: int = 0

    @asynccontextmanager
    async def next(self) -> AsyncIterator[GroupBroker]:
        """Run the next broker; at the end of the block it is stopped in order or killed."""
        data_dir = self.path / str(self.number)
        self.number += 1
        after = self.path / str(self.number)
        async with running(data_dir) as broker:
            yield broker
            if self.is_killed:
                await settled(broker.storage)  # a file cannot be copied while it is written
                await asyncio.gather(
                    *(each.commits.wait() for each in broker.groups.registry.by_name.values())
                )
                copy_running(data_dir, after)
        if not self.is_killed:
            shutil.copytree(data_dir, after)


def found(received: Received) -> list[tuple[str, int, bool]]:
    """Return (body, attempt, redelivered) of the delivered messages."""
    deliveries = received.deliveries
    return [
        (body, each.attempt, each.redelivered)
        for body, each in zip(bodies_of(received), deliveries, strict=True)
    ]


@ends
async def test_only_leased_messages_wait_until_their_own_deadlines(
    tmp_path: Path, is_killed: bool
) -> None:  # R1
    lives = Lives(tmp_path, is_killed)
    async with lives.next() as broker:
        await broker.topic()
        await broker.publish([str(n) for n in range(10)])
        await broker.group()
        first = await broker.receive(7, "a")
        long = await broker.receive(1, "b", lease_ms=12 * HOUR_MS)
        assert await broker.settle(receipts_of(first)[:4], Verb.RELEASE) == [DONE] * 4
        assert await broker.settle(receipts_of(first)[4:5], Verb.NACK, delay_ms=20_000) == [DONE]
        assert broker.groups.registry.get("g").core.available() == 6
    async with lives.next() as broker:
        assert broker.groups.registry.get("g").core.available() == 6
        again = await broker.receive(100, "c")
        fresh = [(str(n), 1, False) for n in (8, 9)]
        assert found(again) == [(str(n), 2, True) for n in range(4)] + fresh
        broker.later(25)
        assert found(await broker.receive(100, "c")) == [("4", 2, True)], "its delay is over"
        broker.later(10)
        assert [body for body, _, _ in found(await broker.receive(2, "c"))] == ["0", "1"]
        assert await broker.settle(long, Verb.ACK) == [DONE]


async def test_after_a_slow_start_no_lease_ends_early_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.publish(["0"])
        await broker.group()
    slow = GroupBroker(small_config(tmp_path))
    open_at_once = slow.storage.open

    async def open_slowly() -> MessageStore:
        store = await open_at_once()
        slow.skipped_s = 20
        return store

    monkeypatch.setattr(slow.storage, "open", open_slowly)
    await slow.start()
    assert bodies_of(await slow.receive(1, "a", lease_ms=30_000)) == ["0"]
    await slow.stop()
    async with running(tmp_path, skipped_s=20 + 20) as broker:
        assert bodies_of(await broker.receive(1, "b")) == [], "10 s are left of the lease"
        broker.later(15)
        assert bodies_of(await broker.receive(1, "b")) == ["0"]


@ends
async def test_messages_that_were_never_delivered_are_first_deliveries(
    tmp_path: Path, is_killed: bool
) -> None:  # R1, R2
    """A member's filter skipped it, or it comes after a message that was settled when sent."""
    lives = Lives(tmp_path, is_killed)
    async with lives.next() as broker:
        await broker.topic()
        for n in range(6):
            await broker.publish(str(n), tag="ab"[n % 2])
        await broker.group()
        await broker.group("at-most-once")
        assert bodies_of(await broker.receive(2, "a", filter="b")) == ["1", "3"]
        sent = await broker.receive(2, "a", "at-most-once", settled=True)
        assert bodies_of(sent) == ["0", "1"]
    async with lives.next() as broker:
        assert found(await broker.receive(9, "b")) == [(n, 1, False) for n in "0245"]
        left = await broker.receive(9, "b", "at-most-once")
        assert found(left) == [(n, 1, False) for n in "2345"]


@ends
async def test_messages_of_a_member_that_left_are_available_at_once(
    tmp_path: Path, is_killed: bool
) -> None:  # R1
    lives = Lives(tmp_path, is_killed)
    async with lives.next() as broker:
        await broker.topic()
        await broker.publish(["0", "1", "2"])
        await broker.group(mode="single_active")
        await broker.receive(2, "a", lease_ms=HOUR_MS)
        await broker.groups.leave("g", "a")
    async with lives.next() as broker:
        assert found(await broker.receive(9, "b")) == [
            ("0", 2, True),
            ("1", 2, True),
            ("2", 1, False),
        ]


@ends
async def test_a_returned_message_of_a_higher_level_is_delivered_first(
    tmp_path: Path, is_killed: bool
) -> None:  # R1
    lives = Lives(tmp_path, is_killed)
    async with lives.next() as broker:
        await broker.store.topics.create("t", queues=2, priority_levels=2)
        await broker.publish(["low"] * 2, queue=0)
        await broker.publish(["high"] * 3, queue=1)
        await broker.group()
        held = await broker.receive(3)
        assert bodies_of(held) == ["high"] * 3
        await broker.settle(receipts_of(held)[:2], Verb.RELEASE)
    async with lives.next() as broker:
        assert bodies_of(await broker.receive(9)) == ["high"] * 2 + ["low"] * 2


@ends
async def test_a_key_stays_with_its_member_and_other_keys_continue(
    tmp_path: Path, is_killed: bool
) -> None:  # R1
    lives = Lives(tmp_path, is_killed)
    async with lives.next() as broker:
        await broker.topic()
        for n, key in enumerate("kkljkl"):
            await broker.publish(str(n), key=key)
        await broker.group(mode="keyed", max_in_flight_per_key=1)
        assert bodies_of(await broker.receive(1, "a", lease_ms=HOUR_MS)) == ["0"]
        other = await broker.receive(1, "b")
        assert bodies_of(other) == ["2"]
        await broker.settle(other, Verb.RELEASE)
    async with lives.next() as broker:
        assert found(await broker.receive(9, "c")) == [("2", 2, True), ("3", 1, False)]
        assert bodies_of(await broker.receive(9, "a")) == [], "one of a key at a time"


@ends
async def test_a_returned_message_of_a_keyed_group_regains_its_place(
    tmp_path: Path, is_killed: bool
) -> None:
    """The page has the keys of leased messages, before the rest of the queue is read."""
    lives = Lives(tmp_path, is_killed)
    async with lives.next() as broker:
        await broker.topic()
        for n, key in enumerate("klmn"):
            await broker.publish(str(n), key=key)
        await broker.group(mode="keyed")
        held = await broker.receive(3, "a")
        await broker.settle(receipts_of(held)[:2], Verb.RELEASE)
    async with lives.next() as broker:
        assert await broker.settle(receipts_of(held)[2:], Verb.RELEASE) == [DONE]
        received = await broker.receive(9, "b")
        assert found(received) == [(n, 2, True) for n in "012"] + [("3", 1, False)]


@ends
@pytest.mark.parametrize("mode", ["exclusive", "single_active"])
async def test_the_active_member_continues_and_the_others_wait(
    tmp_path: Path, mode: str, is_killed: bool
) -> None:  # R3
    lives = Lives(tmp_path, is_killed)
    async with lives.next() as broker:
        await broker.topic()
        await broker.publish(["0", "1", "2"])
        await broker.group(mode=mode, member_ttl_ms=10_000, lease_ms=20_000)
        held = await broker.receive(1, "a")
    async with lives.next() as broker:
        if mode == "exclusive":
            with pytest.raises(ExclusiveHeld):
                await broker.receive(9, "b")
        else:
            assert (await broker.receive(9, "b")).deliveries == []
        assert bodies_of(await broker.receive(1, "a")) == ["1"]
        assert await broker.settle(held) == [DONE]
        assert broker.groups.registry.get("g").core.activity.active == "a"
    async with lives.next() as broker:  # the member does not return
        broker.later(19)
        if mode == "exclusive":
            with pytest.raises(ExclusiveHeld):
                await broker.receive(9, "b")
        broker.later(15)
        received = await broker.receive(9, "b")
        assert found(received) == [("1", 2, True), ("2", 1, False)]


@ends
async def test_an_attempt_counts_on(tmp_path: Path, is_killed: bool) -> None:  # R5
    lives = Lives(tmp_path, is_killed)
    async with lives.next() as broker:
        await broker.topic()
        await broker.publish("x")
        await broker.group()
        assert found(await broker.receive()) == [("x", 1, False)]
    for attempt in range(1, 6):
        async with lives.next() as broker:
            assert found(await broker.receive()) == []
            broker.later(40)
            assert found(await broker.receive()) == [("x", attempt + 1, True)]


@ends
async def test_a_request_is_answered_once_more(tmp_path: Path, is_killed: bool) -> None:  # R5
    lives = Lives(tmp_path, is_killed)
    async with lives.next() as broker:
        await broker.topic(queues=2)
        for queue in (0, 1):
            await broker.publish([f"{queue}.{n}" for n in range(4)], queue=queue)
        await broker.group()
        first = await broker.receive(6, attempt_id="once")
        await broker.settle(receipts_of(first)[:1])
        gone = set(bodies_of(first)[:1])
    async with lives.next() as broker:
        again = await broker.receive(6, attempt_id="once")
        assert set(bodies_of(again)) == set(bodies_of(first)) - gone
        assert {each.attempt for each in again.deliveries} == {1}
        assert await broker.settle(again) == [DONE] * 5
        assert await broker.settle(receipts_of(first)[1:]) == [DONE] * 5, "under the same leases"
        broker.later(301)
        assert not set(bodies_of(await broker.receive(6, attempt_id="once"))) & set(
            bodies_of(first)
        )


@ends
@pytest.mark.parametrize("verb", [Verb.ACK, Verb.REJECT, Verb.RELEASE, Verb.NACK])
async def test_a_repeated_settlement_gets_the_same_answer(
    tmp_path: Path, verb: Verb, is_killed: bool
) -> None:  # R6
    lives = Lives(tmp_path, is_killed)
    async with lives.next() as broker:
        await broker.topic()
        await broker.publish(["0", "1"])
        await broker.group(backoff_ms=(0,))
        early = await broker.receive(1)
        await broker.settle(early, Verb.RELEASE)
        held = await broker.receive(2)
        assert await broker.settle(held, verb) == [DONE] * 2
    others = [each for each in Verb if each not in (verb, Verb.EXTEND)]
    for _ in range(2):
        async with lives.next() as broker:
            assert await broker.settle(held, verb) == [DONE] * 2
            for other in others:
                assert await broker.settle(held, other) == [STALE] * 2
            is_released = verb is Verb.RELEASE
            assert await broker.settle(early, Verb.ACK) == [STALE]
            assert is_released or await broker.settle(early, Verb.RELEASE) == [STALE]


async def test_rows_of_dead_letters_do_not_pile_up(  # R12
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.groups.cursor.cursor.SETTLED_KEPT", 20)
    async with running_group(tmp_path) as broker:
        for count, rows in ((19, 19), (20 - 19, 20), (1, 20), (100, 20)):
            await broker.publish(["x"] * count)
            received = await broker.receive(100)
            assert await broker.settle(received, Verb.REJECT) == [DONE] * count
            assert _rows(broker, b"\4") == rows
        assert await broker.settle(received, Verb.REJECT) == [STALE] * 80 + [DONE] * 20


def _rows(broker: GroupBroker, table: bytes) -> int:
    with broker.storage.groups.store.env.transaction() as txn:
        return sum(key[:1] == table for key, _ in txn.cursor())


@pytest.mark.parametrize("year_s", [4_102_444_800, 5_872_262_400, 5_872_262_399, 7_258_118_400])
async def test_a_group_is_made_whatever_the_year(tmp_path: Path, year_s: int) -> None:  # R13
    """The years 2100 and 2200, the second at which epochs wrap around, and the second before it."""
    async with running(tmp_path, limits=GroupsConfig()) as broker:
        await broker.topic()
        await broker.publish(["0", "1"])
        broker.skipped_s = year_s - 1_800_000_000
        await broker.group()
        received = await broker.receive()
        assert await broker.settle(received) == [DONE] * 2
        await broker.groups.seek("g", "earliest")
        assert await broker.settle(received) == [STALE] * 2
        assert bodies_of(await broker.receive()) == ["0", "1"]


async def test_a_member_that_holds_leases_does_not_time_out(tmp_path: Path) -> None:  # R14
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.publish("x")
        await broker.group(member_ttl_ms=1_000, lease_ms=8_000)
        await broker.receive(member="a")
        broker.later(7.5)
        assert (await broker.receive(member="b")).deliveries == []
        broker.later(0.6)
        assert found(await broker.receive(member="b")) == [("x", 2, True)]
