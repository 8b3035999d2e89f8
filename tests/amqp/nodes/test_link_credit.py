"""What a link of a group sends for credit, drains and windows: exact counts, and the order on the
wire."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.amqp.engine.connection import ConnectionSettings
from holdfast.amqp.engine.events import Received
from holdfast.amqp.wire.performatives import Accepted, Detach, Flow, Released, Transfer
from tests.amqp.engine.pair import Pair
from tests.amqp.nodes.linked import Client, Receiver, body_of, linked
from tests.support.servers.group_broker import GroupBroker, turns
from tests.support.storage.stored import until


async def _filled(broker: GroupBroker, count: int, **group: Any) -> list[str]:
    """Make the topic t and the group g, and publish messages; return their bodies."""
    await broker.topic()
    await broker.group(**group)
    bodies = [f"m{number}" for number in range(count)]
    if bodies:
        await broker.publish(bodies)
    return bodies


async def _until_lag(broker: GroupBroker, count: int) -> None:
    """Wait until exactly `count` messages of the group are not settled."""
    async with asyncio.timeout(20):
        while (await broker.groups.lags("g"))["t"] != count:
            await turns(1)


async def test_the_same_credit_twice_does_not_add_up(tmp_path: Path) -> None:
    # A6
    async with linked(tmp_path) as (broker, connect):
        await _filled(broker, 0)
        receiver = await connect().attach("/groups/g")
        receiver.grant(50)
        receiver.grant(50)
        await until(lambda: broker.groups.stats().waiting == 1)
        await broker.publish([f"m{number}" for number in range(120)])
        assert await receiver.bodies(50) == [f"m{number}" for number in range(50)]
        assert await receiver.rest() == []
        assert (receiver.link.credit, receiver.link.available) == (0, 70)


@pytest.mark.parametrize("waits", [False, True])
async def test_a_burst_of_credits_counts_as_its_last(tmp_path: Path, waits: bool) -> None:
    # A7. Messages that arrive between the flows (`waits`) do not count against a later credit.
    async with linked(tmp_path) as (broker, connect):
        await broker.topic()
        await broker.group()
        for _ in range(8):
            await broker.publish(["m"] * 1_000)
        client = connect()
        receiver = await client.attach("/groups/g", client.session(10_000), snd_settle_mode=1)
        before = 0
        for credit in (100, 0, 1, 2_500, 5_000):
            receiver.link.grant(credit)
            if waits and credit in (100, 2_500):
                before += len(await receiver.receive(1))
        got = len(await receiver.receive(5_000))
        assert await receiver.rest() == []
        assert (got, receiver.link.credit) == (5_000, 0)
        assert receiver.link.available == 3_000 - before
        assert (before > 0) == waits


async def test_the_credit_of_links_moves_from_one_queue_to_another(tmp_path: Path) -> None:
    # A10
    async with linked(tmp_path) as (broker, connect):
        for name in ("q1", "q2"):
            await broker.topic(name)
            await broker.group(name, name)
            await broker.publish([f"{name} {number}" for number in range(100)], name)
        client = connect()
        session = client.session()
        first, second = [await client.attach(f"/groups/{each}", session, each)
                         for each in ("q1", "q2")]  # fmt: skip
        for receiver, name in ((first, "q1"), (second, "q2")):
            receiver.grant(10)
            assert await receiver.bodies(10) == [f"{name} {number}" for number in range(10)]
        first.link.grant(0)
        second.link.grant(50)
        client.pump()
        assert await second.bodies(50) == [f"q2 {number}" for number in range(10, 60)]
        assert (await first.rest(), await second.rest()) == ([], [])
        assert (first.link.available, second.link.available) == (90, 40)
        first.grant(50)
        assert await first.bodies(50) == [f"q1 {number}" for number in range(10, 60)]


@pytest.mark.parametrize("is_settled", [True, False])
async def test_settling_adds_no_credit(tmp_path: Path, is_settled: bool) -> None:
    # A19
    async with linked(tmp_path) as (broker, connect):
        await _filled(broker, 5)
        client = connect()
        receiver = await client.attach("/groups/g")
        receiver.grant(2)
        got = await receiver.receive(2)
        assert receiver.link.credit == 0
        sent = client.record()
        receiver.settle(got, Accepted(), is_settled=is_settled)
        await client.until(lambda: not len(receiver.session.incoming_unsettled))
        await _until_lag(broker, 3)
        await turns(20)
        client.pump()
        assert [each for each in sent if isinstance(each, Transfer)] == []
        assert await receiver.rest() == []
        assert (receiver.link.credit, receiver.link.available) == (0, 3)
        receiver.grant(1)
        assert await receiver.bodies(1) == ["m2"]
        assert await receiver.rest() == []


@pytest.mark.parametrize("queued", [3, 0, 12])
async def test_a_drain_is_answered_with_one_flow_after_the_messages(
    tmp_path: Path, queued: int
) -> None:
    # A26, A27
    async with linked(tmp_path) as (broker, connect):
        bodies = await _filled(broker, queued)
        client = connect()
        receiver = await client.attach("/groups/g")
        sent = client.record()
        receiver.grant(10, drain=True)
        assert await receiver.drained() == bodies[:10]
        *transfers, flow = sent
        assert [type(each) for each in transfers] == [Transfer] * min(queued, 10)
        assert isinstance(flow, Flow)
        assert (flow.delivery_count, flow.link_credit) == (10, 0)
        assert flow.available == max(0, queued - 10)
        assert receiver.link.credit == 0


@pytest.mark.parametrize("is_closed", [False, True])
async def test_messages_precede_the_answer_to_a_drain_and_a_closed_link_sends_neither(
    tmp_path: Path, is_closed: bool
) -> None:
    # A29: the window is shut when the drain arrives
    async with linked(tmp_path) as (broker, connect):
        bodies = await _filled(broker, 3)
        client = connect()
        session = client.session(0)
        receiver = await client.attach("/groups/g", session)
        sent = client.record()
        receiver.grant(2, drain=True)
        await turns(20)
        client.pump()
        assert (sent, receiver.link.is_draining) == ([], True)
        if is_closed:
            receiver.detach()
        session.set_incoming_window(10)
        if not is_closed:
            assert await receiver.drained() == ["m0", "m1"]
        await turns(20)
        client.pump()
        if is_closed:
            assert [type(each) for each in sent] == [Detach]
            other = await client.attach("/groups/g", session, "other")
            other.grant(3)
            assert await other.bodies(3) == bodies
        else:
            assert [type(each) for each in sent] == [Transfer, Transfer, Flow]
            assert (sent[2].delivery_count, sent[2].link_credit, sent[2].available) == (2, 0, 1)


@pytest.mark.parametrize("window", [0, 1, 2, 3])
async def test_a_message_of_three_frames_needs_a_window_of_three(
    tmp_path: Path, window: int
) -> None:
    # A45
    async with linked(tmp_path) as (broker, connect):
        await _filled(broker, 0)
        await broker.publish("x" * 2_500)
        client = connect(pair=Pair(client=ConnectionSettings("client", max_frame_bytes=1_000)))
        session = client.session(0)
        receiver = await client.attach("/groups/g", session)
        sent = client.record()
        receiver.grant(1)
        session.set_incoming_window(window)
        session.windows.incoming_size = 0  # so the client does not announce it again
        await client.until(lambda: len(sent) == window)
        await turns(20)
        client.pump()
        assert [each.more for each in sent] == [True, True, False][:window]
        assert len(receiver.take()) == (window == 3)
        if window < 3:
            session.set_incoming_window(3 - window)
            assert await receiver.bodies(1) == ["x" * 2_500]
            assert [each.more for each in sent] == [True, True, False]
        assert receiver.link.credit == 0


@pytest.mark.parametrize("queued", [0, 3, 5_000])
async def test_the_answer_to_an_echo_has_the_exact_number_of_available_messages(
    tmp_path: Path, queued: int
) -> None:
    # A39
    async with linked(tmp_path) as (broker, connect):
        await broker.topic()
        await broker.group()
        for first in range(0, queued, 1_000):
            await broker.publish(["m"] * min(1_000, queued - first))
        client = connect()
        receiver = await client.attach("/groups/g")
        sent = client.record()
        receiver.grant(0, echo=True)
        await client.until(lambda: sent)
        (flow,) = sent
        assert (flow.link_credit, flow.available) == (0, queued)
        receiver.grant(1, drain=True)
        await receiver.drained()
        assert sent[-1].available == max(0, queued - 1)


async def test_every_flow_of_a_link_has_the_number_of_available_messages(tmp_path: Path) -> None:
    # A39
    async with linked(tmp_path) as (broker, connect):
        await _filled(broker, 3, mode="single_active")
        client = connect()
        sent = client.record()
        first = await client.attach("/groups/g", name="first")
        second = await client.attach("/groups/g", name="second")
        first.grant(0, echo=True)
        second.grant(1, drain=True)
        await second.drained()
        first.detach()
        await client.until(lambda: len(second.states) == 2)
        second.grant(1, drain=True)
        await second.drained()
        flows = [each for each in sent if isinstance(each, Flow) and each.handle is not None]
        assert [each.available for each in flows] == [3, 0, 3, 0, 3, 2]


# -- a single active group -------------------------------------------------------------------------


def _of(sent: list[Any], receiver: Receiver) -> list[Any]:
    """Return the notices of one link (True or False) and its transfers (the class), in order."""
    remote = receiver.link.remote
    assert remote is not None
    found: list[Any] = []
    for each in sent:
        if isinstance(each, Flow) and each.handle == remote.handle and each.properties:
            found.append(each.properties["rabbitmq:active"])
        elif isinstance(each, Transfer) and each.handle == remote.handle:
            found.append(Transfer)
    return found


@pytest.mark.parametrize("settles", [False, True])
async def test_the_next_member_is_told_that_it_is_active_and_gets_the_rest_in_order(
    tmp_path: Path, settles: bool
) -> None:
    # A33: the first member stops, may settle the messages that it holds, and detaches
    async with linked(tmp_path) as (broker, connect):
        await _filled(broker, 5, mode="single_active")
        client = connect()
        session = client.session()
        first = await client.attach("/groups/g", session, "first")
        second = await client.attach("/groups/g", session, "second")
        sent = client.record()
        second.grant(10)
        first.grant(3)
        got = await first.receive(3)
        first.settle(got[:1], Accepted())
        first.grant(0, echo=True)
        assert await first.rest() == []
        if settles:
            first.settle(got[1:], Accepted())
        assert await second.rest() == []
        assert _of(sent, second) == []
        first.detach()
        left = ["m3", "m4"] if settles else ["m1", "m2", "m3", "m4"]
        assert await second.bodies(len(left)) == left
        assert await second.rest() == []
        assert _of(sent, second) == [True, *[Transfer] * len(left)]


async def test_the_order_survives_the_failure_of_two_members_one_after_the_other(
    tmp_path: Path,
) -> None:
    # A34: the first member detaches while it holds messages, the second one crashes
    async with linked(tmp_path) as (broker, connect):
        bodies = await _filled(broker, 6, mode="single_active")
        clients = [connect(container_id=f"c{number}") for number in range(3)]
        first, second, third = [await each.attach("/groups/g") for each in clients]
        for receiver in (first, second, third):
            receiver.grant(3)
        got = await first.receive(3)
        first.settle(got[:1], Accepted())
        first.detach()
        again = await second.receive(3)
        assert [body_of(each) for each in again] == ["m1", "m2", "m3"]
        # An outcome that comes too late changes nothing.
        first.session.dispose(got[1].id, got[2].id, Accepted(), settled=True)
        clients[0].pump()
        second.settle(again[:1], Accepted())
        second.grant(1)
        assert await second.bodies(1) == ["m4"]
        assert await third.rest() == []
        await _until_lag(broker, 4)
        clients[1].lose()
        assert await third.bodies(3) == ["m2", "m3", "m4"]
        third.grant(10)
        assert await third.bodies(1) == ["m5"]
        assert bodies[-1] == "m5"
        assert third.states[-1] == {"rabbitmq:active": True}


async def test_only_the_active_member_sees_available_messages(tmp_path: Path) -> None:
    # A37
    async with linked(tmp_path) as (broker, connect):
        await _filled(broker, 3, mode="single_active")
        first = await connect().attach("/groups/g")
        second = await connect().attach("/groups/g")

        async def available() -> tuple[int | None, int | None]:
            assert (await first.rest(), await second.rest()) == ([], [])
            return first.link.available, second.link.available

        assert await available() == (3, 0)
        first.detach()
        await second.client.until(lambda: len(second.states) == 2)
        first = await first.client.attach("/groups/g", name="again")
        assert await available() == (0, 3)


async def test_a_link_is_told_only_changes_of_its_activity(tmp_path: Path) -> None:
    # A41
    async with linked(tmp_path) as (broker, connect):
        await _filled(broker, 20, mode="single_active")
        client = connect()
        first = await client.attach("/groups/g", name="first")
        second = await client.attach("/groups/g", name="second")
        third = await client.attach("/groups/g", name="third")
        for _ in range(3):  # nothing of this changes who is active
            first.grant(1)
            first.settle(await first.receive(1), Accepted())
            first.grant(1, drain=True)
            first.settle(await first.receive(1), Released())
            for receiver in (first, second, third):
                await receiver.rest()
                receiver.grant(0)
            fourth = await client.attach("/groups/g", name="fourth")
            assert await fourth.rest() == []
            assert fourth.states == [{"rabbitmq:active": False}]
            fourth.detach()
            await broker.publish("more")
        active, waiting = {"rabbitmq:active": True}, {"rabbitmq:active": False}
        states = [each.states for each in (first, second, third)]
        assert states == [[active], [waiting], [waiting]]
        first.detach()
        await client.until(lambda: len(second.states) == 2)
        assert await second.rest() == []
        assert await third.rest() == []
        assert [each.states for each in (first, second, third)] == [
            [active], [waiting, active], [waiting]
        ]  # fmt: skip


# -- several sessions ------------------------------------------------------------------------------

LARGE = "x" * 500_000


async def _two_sessions(
    broker: GroupBroker, client: Client, large: int, window: int = 1_000
) -> tuple[Receiver, Receiver]:
    """Attach a link to large messages, and a link of another session to a topic without any. Both
    groups have delivered a message, because a group's first delivery waits for a commit."""
    for name in ("large", "urgent"):
        await broker.topic(name)
        await broker.group(name, name)
        await broker.publish("first", name)
        await broker.settle(await broker.receive(group=name), group=name)
    for _ in range(large):
        await broker.publish(LARGE, "large")
    first = await client.attach("/groups/large", client.session(window), "large")
    return first, await client.attach("/groups/urgent", client.session(), "urgent")


def _arrived(client: Client) -> list[str]:
    """Pass bytes; return the links of the messages that have arrived since the last call."""
    client.pump()
    deliveries = [each for event in client.pair.client.take(Received) for each in event.deliveries]
    return [each.link.name for each in deliveries]


@pytest.mark.parametrize("is_late", [False, True])
async def test_an_urgent_message_of_another_session_is_sent_among_large_messages(
    tmp_path: Path, is_late: bool
) -> None:
    # A44: 20 MB of large messages are ready, but only a few of them are sent before the urgent one
    async with linked(tmp_path) as (broker, connect):
        client = connect()
        large, urgent = await _two_sessions(broker, client, 40)
        order: list[str] = []

        def has(count: int) -> bool:
            order.extend(_arrived(client))
            return len(order) >= count

        await broker.publish("u", "urgent")
        large.link.grant(40)
        before = 0
        if is_late:
            await until(lambda: has(2))
            before = len(order)
            assert before < 40
        urgent.grant(1)
        await until(lambda: has(41))
        assert order.index("urgent") - before <= 8
        assert sorted(order) == ["large"] * 40 + ["urgent"]


async def test_an_urgent_message_overtakes_a_message_that_waits_for_its_window(
    tmp_path: Path,
) -> None:
    # A44
    async with linked(tmp_path) as (broker, connect):
        client = connect()
        large, urgent = await _two_sessions(broker, client, 1, window=0)
        sent = client.record()
        large.grant(1)
        large.session.set_incoming_window(2)
        large.session.windows.incoming_size = 0  # so the client does not announce it again
        await client.until(lambda: len(sent) == 2)
        urgent.grant(1)
        await broker.publish("u", "urgent")
        assert await urgent.bodies(1) == ["u"]
        assert [each.more for each in sent] == [True, True, False]
        large.session.set_incoming_window(100)
        assert await large.bodies(1) == [LARGE]
