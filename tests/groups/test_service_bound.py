"""Bound leases and their members, as links of streaming protocols use them.

A bound lease has no deadline. It ends when it is settled, when its member leaves, or with the
broker's process. Its member stays in the group until it leaves.
"""

import asyncio
import math
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.groups.config import GroupsConfig
from holdfast.groups.core.members import OneActive
from holdfast.groups.core.requests import Waiters
from holdfast.groups.errors import ExclusiveHeld, TooManyMembers
from holdfast.groups.service_types import Delivery, Receipt, Received, ReceiveRequest, Status, Verb
from holdfast.groups.serving import commits
from tests.support.event_loop.calls_a_turn import calls_a_turn
from tests.support.servers.group_broker import GroupBroker, bodies_of, running_group, turns
from tests.support.storage.stored import copy_running, settled, small_config, until

DONE, STALE = Status.DONE, Status.STALE
LEASE_MS = 30_000
BOOT, OTHER_BOOT = bytes(range(1, 17)), bytes(range(2, 18))


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


async def link(broker: GroupBroker, most: int = 32, member: str = "a", **fields: Any) -> Received:
    """Receive as a link does."""
    return await broker.receive(most, member, bound=True, receipt_values=True, **fields)


def values_of(received: Received) -> list[Receipt]:
    """Return the receipts of the messages, which must be values."""
    found = [each.receipt for each in received.deliveries]
    values = [each for each in found if isinstance(each, Receipt)]
    assert values == found
    return values


def found(received: Received) -> list[tuple[str, int, int, bool]]:
    """Return (body, attempt, failures, redelivered) of the messages."""
    return [
        (body, each.attempt, each.failures, each.redelivered)
        for body, each in zip(bodies_of(received), received.deliveries, strict=True)
    ]


@asynccontextmanager
async def started(
    data_dir: Path, boot_id: bytes = BOOT, count: int = 0, **settings: Any
) -> AsyncIterator[GroupBroker]:
    """Run a broker on a machine with this boot id. With `count`, publish so many messages and
    create a group."""
    broker = GroupBroker(small_config(data_dir), boot_id=boot_id)
    await broker.start()
    try:
        if count:
            await broker.topic()
            await broker.publish(numbers(count))
            await broker.group(**settings)
        yield broker
    finally:
        await broker.stop()


async def copy_of(broker: GroupBroker, data_dir: Path, after: Path) -> None:
    """Copy the files of a running broker, as a kill would leave them now."""
    await settled(broker.storage)
    for server in broker.groups.registry.by_name.values():
        await server.commits.wait()
    copy_running(data_dir, after)


@pytest.mark.parametrize("end", ["stopped", "killed", "power loss"])
async def test_bound_leases_end_with_the_broker(tmp_path: Path, end: str) -> None:
    """The messages are available at once, in place. The attempts of a power loss are lost."""
    before, after = tmp_path / "before", tmp_path / "after"
    async with started(before, count=6, lease_ms=LEASE_MS, backoff_ms=[600_000]) as broker:
        first = values_of(await link(broker, 4))
        await broker.settle(first[1:2])
        await broker.settle(first[2:3], Verb.NACK, delay_ms=0)
        assert found(await link(broker, 1)) == [("2", 2, 1, True)]
        if end != "stopped":
            await copy_of(broker, before, after)
    if end == "stopped":
        shutil.copytree(before, after)
    async with started(after, OTHER_BOOT if end == "power loss" else BOOT) as broker:
        assert broker.groups.stats().in_flight == 0
        again = await link(broker, member="b")
        attempts = (1, 2, 1) if end == "power loss" else (2, 3, 2)
        returned = [
            (body, attempt, failures, True)
            for body, attempt, failures in zip("023", attempts, (0, 1, 0), strict=True)
        ]
        new = [(body, 1, 0, end == "power loss") for body in "45"]
        assert found(again) == returned + new
        assert await broker.settle(values_of(again)) == [DONE] * 5
        if end != "power loss":
            assert await broker.settle(first[:1]) == [STALE]


@pytest.mark.parametrize("has_timed", [False, True])
async def test_only_a_group_with_timed_leases_waits_after_a_power_loss(
    tmp_path: Path, has_timed: bool
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    async with started(before, count=4, lease_ms=LEASE_MS) as broker:
        assert bodies_of(await link(broker, 2)) == ["0", "1"]
        if has_timed:  # by now the reserve is durable, so the broker need not commit because of it
            assert bodies_of(await broker.receive(1, "http")) == ["2"]
        await copy_of(broker, before, after)
    async with started(after, OTHER_BOOT) as broker:
        assert bodies_of(await link(broker)) == ([] if has_timed else numbers(4))
        broker.later(LEASE_MS / 1000)
        assert bodies_of(await link(broker)) == (numbers(4) if has_timed else [])


async def test_a_killed_broker_keeps_timed_leases_next_to_bound_ones(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    async with started(before, count=6, lease_ms=LEASE_MS) as broker:
        bound, timed = await link(broker, 2), await broker.receive(2, "http")
        assert bodies_of(bound) + bodies_of(timed) == numbers(4)
        await copy_of(broker, before, after)
    async with started(after) as broker:
        assert found(await link(broker, 3, "b")) == [
            ("0", 2, 0, True),
            ("1", 2, 0, True),
            ("4", 1, 0, False),
        ]
        assert await broker.settle(timed) == [DONE] * 2


async def test_a_bound_lease_has_no_deadline_and_its_member_stays(tmp_path: Path) -> None:
    async with running_group(tmp_path, ["x"], lease_ms=1_000, member_ttl_ms=1_000) as broker:
        had = values_of(await link(broker))
        assert await broker.settle(had, Verb.EXTEND, lease_ms=1_000) == [DONE]
        broker.later(3_600)
        assert bodies_of(await broker.receive(member="b")) == []
        assert broker.groups.stats().in_flight == 1
        record = broker.storage.groups.table.find("g")
        assert record is not None
        assert record.config.longest_lease_ms == 1_000
        assert await broker.settle(had) == [DONE]
        broker.later(3_600)
        assert broker.groups.registry.get("g").core.members.is_bound("a")


async def test_what_a_member_holds_returns_in_place_when_it_leaves(tmp_path: Path) -> None:
    # T24, Q1, Q16, I9: this is not a failure
    async with running_group(tmp_path, max_in_flight_per_member=3, max_attempts=2) as broker:
        await broker.publish(["1"])
        for number in range(2, 8):
            assert len((await link(broker, 1, "ab"[number % 2])).deliveries) == 1
            await broker.publish([str(number)])
        await broker.groups.leave("g", "a")
        again = await link(broker, member="c")
        assert found(again) == [("1", 2, 0, True), ("3", 2, 0, True), ("5", 2, 0, True)] or found(
            again
        ) == [("2", 2, 0, True), ("4", 2, 0, True), ("6", 2, 0, True)]


async def test_one_of_several_members_of_a_connection_leaves(tmp_path: Path) -> None:  # T5
    async with running_group(tmp_path, numbers(4)) as broker:
        for member in ("c-1", "c-2"):
            await link(broker, 2, member)
        waiting = await broker.wait_to_receive(member="c-2", bound=True, wait_s=math.inf)
        await broker.groups.leave("g", "c-1")
        assert bodies_of(await waiting) == ["0", "1"]
        assert broker.groups.stats().in_flight == 4


@pytest.mark.parametrize("how", ["nack", "release", "leave", "expire"])
async def test_only_a_nack_counts_as_a_failure(tmp_path: Path, how: str) -> None:  # I9
    async with running_group(tmp_path, numbers(2), lease_ms=LEASE_MS) as broker:
        for attempt in (1, 2, 3):
            is_timed = how == "expire"
            received = await broker.receive(1, bound=not is_timed, receipt_values=True)
            failures = attempt - 1 if how == "nack" else 0
            assert found(received) == [("0", attempt, failures, attempt > 1)]
            if how == "leave":
                await broker.groups.leave("g", "a")
            elif is_timed:
                broker.later(LEASE_MS / 1000)
            else:
                await broker.settle(values_of(received), Verb(how), delay_ms=0)


@pytest.mark.parametrize("delay_ms", [0, None, 700])
async def test_a_nack_waits_as_long_as_it_says_or_as_the_group_says(
    tmp_path: Path, delay_ms: int | None
) -> None:
    async with running_group(tmp_path, numbers(2), backoff_ms=[5_000]) as broker:
        had = values_of(await link(broker, 1))
        waiting = None
        statuses, _ = broker.groups.begin_settling("g", Verb.NACK, had, delay_ms=delay_ms)
        assert statuses == [DONE]
        wait_s = {0: 0, None: 5, 700: 0.7}[delay_ms]
        if wait_s:
            assert bodies_of(await link(broker, 1)) == ["1"]
            waiting = await broker.wait_to_receive(member="b")
            broker.later(wait_s)
        assert bodies_of(await (waiting or link(broker))) == (["0"] if waiting else ["0", "1"])


async def test_settlements_of_one_commit_share_a_future(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_group(tmp_path, numbers(4)) as broker:
        had = values_of(await link(broker))
        store, held = broker.storage.groups.store, list[object]()
        with monkeypatch.context() as patched:
            patched.setattr(store, "commit", lambda writes, done, **how: held.append(done))
            first, in_first = broker.groups.begin_settling("g", Verb.ACK, had[:1])
            more, in_first_too = broker.groups.begin_settling("g", Verb.RELEASE, had[1:2])
            assert (first, more) == ([DONE], [DONE])
            assert in_first is in_first_too
            await until(lambda: held)
            _, in_second = broker.groups.begin_settling("g", Verb.ACK, had[2:3])
            assert in_second is not in_first
            await turns(5)
            assert in_first is not None
            assert not in_first.done(), "nothing is durable yet"
            assert broker.groups.stats().in_flight == 1, "but it is applied"
        held[0](None)  # type: ignore[operator]
        await in_first
        assert in_second is not None
        await in_second
        nothing = broker.groups.begin_settling("g", Verb.NACK, [*had[:1], replace_group(had[3])])
        assert nothing == ([STALE, Status.INVALID], None)


async def test_a_caller_that_does_not_wait_begins_no_commit_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each settled outcome of a client of AMQP began a commit of its own
    async with running_group(tmp_path, numbers(3)) as broker:
        had = values_of(await link(broker))
        await broker.groups.registry.get("g").commits.wait()
        monkeypatch.setattr(commits, "QUIET_S", 3600.0)
        with calls_a_turn(broker.storage.groups.store, "commit") as begun:
            for receipt in had[:2]:
                settled = broker.groups.begin_settling("g", Verb.ACK, [receipt], waits=False)
                assert settled == ([DONE], None)
                await turns(5)
            assert begun.total == 0
            _, durable = broker.groups.begin_settling("g", Verb.ACK, had[2:])
            assert durable is not None
            await durable
        assert begun.total == 1, "one commit has all three"


def replace_group(receipt: Receipt) -> Receipt:
    return replace(receipt, group_id=99)


async def test_a_dead_letter_names_the_reason_of_its_member(tmp_path: Path) -> None:
    async with running_group(tmp_path, numbers(2), dead_letter_topic="dead") as broker:
        had = values_of(await link(broker))
        broker.groups.begin_settling("g", Verb.REJECT, had[:1], reason="amqp:decode-error")
        broker.groups.begin_settling("g", Verb.REJECT, had[1:])
        await broker.group("letters", "dead")
        letters: list[Delivery] = []
        while len(letters) < 2:
            letters += (await broker.receive(group="letters", wait_s=30.0)).deliveries
        reasons = [each.batch.properties(each.row)["holdfast-dead-reason"] for each in letters]
        assert reasons == ["amqp:decode-error", "rejected"]


async def test_settling_waits_for_a_change_of_the_group(tmp_path: Path) -> None:
    async with running_group(tmp_path, numbers(2)) as broker:
        had = values_of(await link(broker))
        server = broker.groups.registry.get("g")
        with server.settling_paused():
            statuses, later = broker.groups.begin_settling("g", Verb.ACK, had)
            await turns(5)
            assert later is not None
            assert (statuses, later.done()) == ([], False)
            assert broker.groups.stats().in_flight == 2
        assert await later == [DONE] * 2


async def test_texts_and_values_of_a_receipt_are_the_same(tmp_path: Path) -> None:
    async with running_group(tmp_path, numbers(4)) as broker:
        texts = await broker.receive(2, bound=True)
        values = await broker.receive(2, receipt_values=True)
        assert [isinstance(each, str) for each in texts.receipts()] == [True, True]
        mixed = [*texts.receipts(), values_of(values)[0]]
        assert await broker.groups.settle("g", Verb.ACK, mixed) == [DONE] * 3
        broker.groups.release_undelivered("g", values.receipts())
        assert found(await link(broker)) == [("3", 2, 0, True)]


@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_at_its_limit_a_member_gets_as_many_as_it_settles(tmp_path: Path, more: int) -> None:
    # T18: below a link's credit there is the limit of its member
    async with running_group(tmp_path, numbers(100), max_in_flight_per_member=10) as broker:
        had = await link(broker, 10 + more)
        assert len(had.deliveries) == min(10 + more, 10)
        await link(broker, 1)
        waiting = await broker.wait_to_receive(50, bound=True, receipt_values=True)
        await broker.settle(values_of(had)[:3])
        got = await waiting
        while len(got.deliveries) < 3:
            got = Received([*got.deliveries, *(await link(broker, 50)).deliveries])
        assert bodies_of(got) == ["10", "11", "12"]
        assert bodies_of(await link(broker, 50)) == []


async def test_a_request_without_limit_waits_until_it_is_cancelled(tmp_path: Path) -> None:
    async with running_group(tmp_path, member_ttl_ms=1_000) as broker:
        waiting = await broker.wait_to_receive(bound=True, wait_s=math.inf)
        broker.later(10 * 24 * 3_600)
        await turns()
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await broker.publish(["x"])
        assert bodies_of(await link(broker, member="b")) == ["x"], "no other member had leased it"


async def test_available_counts_what_a_link_could_get(tmp_path: Path) -> None:  # A35, A39
    async with running_group(tmp_path, max_in_flight=10_000) as broker:
        request = ReceiveRequest("a", 256, bound=True)

        def available() -> int:
            return broker.groups.available("g", request)

        assert available() == 0
        await broker.publish(numbers(4))
        assert available() == 4
        had = values_of(await link(broker, 1))
        assert available() == 3
        await broker.settle(had, Verb.RELEASE)
        assert available() == 4
        await broker.publish(numbers(4_996))
        assert available() == 5_000
        assert broker.groups.available("g", replace(request, topic_names=["t"])) == 5_000


async def test_the_next_link_of_a_single_active_group_is_told_and_begins_in_order(
    tmp_path: Path,
) -> None:  # A33, A34, A37, T24
    async with running_group(tmp_path, numbers(6), mode="single_active") as broker:
        told: list[tuple[str, bool]] = []

        def join(member: str) -> bool:
            return broker.groups.join(
                "g", member, lambda is_active: told.append((member, is_active))
            )

        assert [join(each) for each in ("a", "b", "c")] == [True, False, False]
        had = values_of(await link(broker, 4))
        await broker.settle(had[:1])
        assert (await link(broker, member="b")).active is False
        waiting = await broker.wait_to_receive(2, member="c", bound=True, wait_s=math.inf)
        seen = [broker.groups.available("g", ReceiveRequest(each)) for each in ("a", "b", "c")]
        assert seen == [2, 0, 0]
        await turns()
        assert told == []
        await broker.groups.leave("g", "a")
        await turns()
        assert told == [("b", True)], "the one that waited longest, although it asks for nothing"
        seen = [broker.groups.available("g", ReceiveRequest(each)) for each in ("b", "c")]
        assert seen == [5, 0]
        assert found(await link(broker, 4, "b")) == [
            ("1", 2, 0, True),
            ("2", 2, 0, True),
            ("3", 2, 0, True),
            ("4", 1, 0, False),
        ]
        await broker.groups.leave("g", "b")
        assert bodies_of(await waiting) == ["1", "2"], "without a notice before"
        await turns()
        assert told == [("b", True), ("c", True)]


async def test_members_without_requests_and_leases_leave_without_a_search(tmp_path: Path) -> None:
    # thousands of links of one group end together when a network fails
    async with running_group(tmp_path, mode="single_active") as broker:
        told: list[str] = []
        members = numbers(50)

        def join(member: str) -> None:
            broker.groups.join("g", member, lambda is_active: told.append(member))

        for member in members:
            join(member)
        with (
            calls_a_turn(Waiters, "__iter__") as searched,
            calls_a_turn(OneActive, "is_active") as asked,
        ):
            for member in members:
                await broker.groups.leave("g", member)
            await turns()
        assert searched.total == 0
        assert asked.total <= 4 * len(members)
        assert told == members[1:]


async def test_an_exclusive_group_refuses_a_second_link(tmp_path: Path) -> None:
    async with running_group(tmp_path, ["x"], mode="exclusive") as broker:
        assert broker.groups.join("g", "a")
        with pytest.raises(ExclusiveHeld):
            broker.groups.join("g", "b")
        await broker.groups.leave("g", "a")
        assert broker.groups.join("g", "b")


async def test_members_learn_of_another_mode(tmp_path: Path) -> None:
    async with running_group(tmp_path, mode="competing") as broker:
        told: list[bool] = []
        broker.groups.join("g", "a")
        broker.groups.join("g", "b", told.append)
        for mode, changes in (("single_active", [False]), ("competing", [False, True])):
            await broker.group(mode=mode)
            await turns()
            assert told == changes


@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_a_group_has_at_most_max_members_that_join(tmp_path: Path, more: int) -> None:
    async with running_group(tmp_path, limits=GroupsConfig(max_members=3)) as broker:
        for number in range(min(3 + more, 3)):
            broker.groups.join("g", str(number))
        if more > 0:
            with pytest.raises(TooManyMembers):
                broker.groups.join("g", "one more")
        broker.groups.join("g", "1")


async def test_a_bound_active_member_blocks_no_other_member_after_a_kill(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    async with started(before, count=3, mode="exclusive", member_ttl_ms=600_000) as broker:
        assert bodies_of(await link(broker, 2)) == ["0", "1"]
        await copy_of(broker, before, after)
    async with started(after) as broker:
        assert bodies_of(await link(broker, member="b")) == numbers(3)
