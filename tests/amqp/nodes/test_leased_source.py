from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.amqp.engine.events import SenderSettled
from holdfast.amqp.messages.envelope import Envelope, encode_envelope
from holdfast.amqp.messages.sections import Sections
from holdfast.amqp.wire.conditions import (
    INVALID_FIELD,
    MESSAGE_SIZE_EXCEEDED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    RESOURCE_DELETED,
    RESOURCE_LIMIT_EXCEEDED,
    RESOURCE_LOCKED,
    UNAUTHORIZED_ACCESS,
)
from holdfast.amqp.wire.performatives import (
    Accepted,
    Modified,
    Received,
    Rejected,
    Released,
)
from holdfast.amqp.wire.types import Described, Symbol, ULong
from holdfast.commitlog.format.batch_encoding import Rows
from holdfast.commitlog.format.session_ids import producer_id_of, publisher_hash
from holdfast.groups.serving import commits
from holdfast.groups.settings import Subscription
from holdfast.holdservice.config import HoldServiceConfig
from holdfast.http_api.access.grants import Principal, parse_grants
from tests.amqp.nodes.linked import body_of, linked
from tests.support.event_loop.calls_a_turn import calls_a_turn
from tests.support.servers.group_broker import GroupBroker, turns
from tests.support.storage.stored import until

FAILED = Modified(delivery_failed=True)


async def _filled(broker: GroupBroker, count: int, **group: Any) -> list[str]:
    """Make the topic t and the group g, and publish messages; return their bodies."""
    await broker.topic()
    await broker.group(**group)
    bodies = [f"m{number}" for number in range(count)]
    if bodies:
        await broker.publish(bodies)
    return bodies


async def _in_flight(broker: GroupBroker) -> object:
    return (await broker.groups.describe("g")).in_flight


async def test_a_client_gets_as_many_messages_as_it_has_credit(tmp_path: Path) -> None:
    # A2, A3, A8, T20
    async with linked(tmp_path) as (broker, connect):
        bodies = await _filled(broker, 100)
        receiver = await connect().attach("/groups/g")
        assert await receiver.rest() == []
        receiver.grant(1)
        (first,) = await receiver.receive(1)
        receiver.grant(50)
        receiver.grant(9)
        got = await receiver.receive(9)
        receiver.settle([first, *got], Accepted())
        assert await receiver.rest() == []
        assert receiver.link.available == 90
        receiver.grant(2_500)
        got += await receiver.receive(90)
        assert [body_of(each) for each in [first, *got]] == bodies


async def test_an_ask_waits_for_messages_until_the_credit_is_gone(tmp_path: Path) -> None:
    # A32: credit 0 pauses the link, and the same link continues without redelivery
    async with linked(tmp_path) as (broker, connect):
        await _filled(broker, 0)
        receiver = await connect().attach("/groups/g")
        receiver.grant(10)
        await until(lambda: broker.groups.stats().waiting == 1)
        await broker.publish("first")
        assert await receiver.bodies(1) == ["first"]
        receiver.grant(0)
        await until(lambda: broker.groups.stats().waiting == 0)
        await broker.publish(["second", "third"])
        assert await receiver.rest() == []
        receiver.grant(10)
        assert await receiver.bodies(2) == ["second", "third"]


@pytest.mark.parametrize("queued", [3, 0])
async def test_a_drain_sends_what_there_is_and_gives_the_credit_back(
    tmp_path: Path, queued: int
) -> None:
    # A27, A28
    async with linked(tmp_path) as (broker, connect):
        bodies = await _filled(broker, queued)
        receiver = await connect().attach("/groups/g")
        receiver.grant(10, drain=True)
        assert await receiver.drained() == bodies
        assert receiver.link.credit == 0
        await broker.publish("later")
        assert await receiver.rest() == []
        receiver.grant(1)
        assert await receiver.bodies(1) == ["later"]


async def test_transfers_go_before_the_flow_of_a_drain_although_the_window_is_shut(
    tmp_path: Path,
) -> None:
    # A50
    async with linked(tmp_path) as (broker, connect):
        await _filled(broker, 3)
        client = connect()
        session = client.session(0)
        receiver = await client.attach("/groups/g", session)
        receiver.grant(2, drain=True)
        await turns(10)
        assert receiver.take() == []
        assert receiver.link.is_draining
        assert await _in_flight(broker) == 0
        session.set_incoming_window(10)
        assert await receiver.bodies(2) == ["m0", "m1"]
        assert await receiver.drained() == []
        assert receiver.link.available == 1


async def test_messages_stay_in_the_group_while_the_window_or_the_socket_is_full(
    tmp_path: Path,
) -> None:
    # A50, A52
    async with linked(tmp_path) as (broker, connect):
        await _filled(broker, 1_000)
        client = connect(has_room=False)
        session = client.session(0)
        receiver = await client.attach("/groups/g", session)
        receiver.grant(5_000)
        assert await receiver.rest() == []
        session.set_incoming_window(5_000)
        assert await receiver.rest() == []
        assert await _in_flight(broker) == 0
        client.has_room = True
        client.pair.server.connection.sessions[0].links[0].context.room_changed()
        got = await receiver.receive(1_000)
        assert [body_of(each) for each in got] == [f"m{number}" for number in range(1_000)]


async def test_a_message_needs_a_window_for_all_its_frames(tmp_path: Path) -> None:
    # T17
    async with linked(tmp_path) as (broker, connect):
        await _filled(broker, 0)
        await broker.publish(["x" * 200_000, "small"])
        client = connect()
        session = client.session(1)
        receiver = await client.attach("/groups/g", session)
        session.windows.incoming_size = 0
        receiver.grant(2)
        session.set_incoming_window(1)
        session.windows.incoming_size = 0
        assert await receiver.rest() == []
        session.set_incoming_window(100)
        assert [len(each) for each in await receiver.bodies(2)] == [200_000, 5]


async def test_unsettled_messages_of_a_detached_link_return_in_place(tmp_path: Path) -> None:
    # T24, Q1, Q17
    async with linked(tmp_path) as (broker, connect):
        await _filled(broker, 6)
        client = connect()
        first, second = await client.attach("/groups/g"), await client.attach("/groups/g")
        first.grant(1)
        held = await first.receive(1)
        second.grant(2)
        other = await second.receive(2)
        first.grant(1)
        held += await first.receive(1)
        first.detach()
        second.settle(other, Accepted())
        second.grant(10)
        got = await second.receive(4)
        assert [body_of(each) for each in got] == ["m0", "m3", "m4", "m5"]
        headers = [Sections(each.message).header() for each in got]
        assert [each.first_acquirer for each in headers] == [False, False, True, True]
        assert [each.delivery_count for each in headers] == [0] * 4


#: An outcome, whether the message comes again, and with how many failures.
OUTCOMES: list[tuple[Any, bool, int]] = [
    (Accepted(), False, 0),
    (Rejected(), False, 0),
    (Modified(undeliverable_here=True), False, 0),
    (Released(), True, 0),
    (Modified(), True, 0),
    (FAILED, True, 1),
    (Modified(True, None, {Symbol("x-opt-delay-ms"): ULong(0)}), True, 1),
]


@pytest.mark.parametrize(
    ("state", "again", "failures", "is_settled"),
    [(None, True, 0, True), *((*each, flag) for each in OUTCOMES for flag in (True, False))],
)
async def test_each_outcome_settles_its_message(
    tmp_path: Path, state: Any, again: bool, failures: int, is_settled: bool
) -> None:
    # T21, T25, Q17
    async with linked(tmp_path) as (broker, connect):
        await _filled(broker, 3)
        receiver = await connect().attach("/groups/g")
        receiver.grant(2)
        got = await receiver.receive(2)
        receiver.settle(got, state, is_settled=is_settled)
        if not is_settled:
            # The client has not settled: the broker settles after its commit (rcv-settle-mode
            # second).
            await receiver.client.until(lambda: not len(receiver.session.incoming_unsettled))
            answered = receiver.client.pair.client.take(SenderSettled)
            assert {type(each.state) for each in answered} == {type(state)}
        receiver.grant(1)
        (following,) = await receiver.receive(1)
        assert body_of(following) == ("m0" if again else "m2")
        sections = Sections(following.message)
        assert sections.header().delivery_count == failures
        assert sections.annotations()["x-opt-attempt"] == (2 if again else 1)


async def test_outcomes_that_the_client_has_settled_share_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with linked(tmp_path) as (broker, connect):
        await _filled(broker, 3)
        receiver = await connect().attach("/groups/g")
        receiver.grant(3)
        got = await receiver.receive(3)
        await broker.groups.registry.get("g").commits.wait()
        monkeypatch.setattr(commits, "QUIET_S", 3600.0)
        with calls_a_turn(broker.storage.groups.store, "commit") as begun:
            for each in got[:2]:
                receiver.settle([each], Accepted())
                await turns(5)
            assert await _in_flight(broker) == 1
            assert begun.total == 0
            receiver.settle(got[2:], Accepted(), is_settled=False)
            await receiver.client.until(lambda: not len(receiver.session.incoming_unsettled))
        assert begun.total == 1
        assert await _in_flight(broker) == 0


async def test_progress_settles_nothing(tmp_path: Path) -> None:
    async with linked(tmp_path) as (broker, connect):
        await _filled(broker, 1)
        receiver = await connect().attach("/groups/g")
        receiver.grant(1)
        got = await receiver.receive(1)
        receiver.settle(got, Received(0, 5), is_settled=False)
        await receiver.rest()
        assert await _in_flight(broker) == 1


@pytest.mark.parametrize("outcome", [None, FAILED, Accepted()])
async def test_the_default_outcome_applies_when_a_link_ends(tmp_path: Path, outcome: Any) -> None:
    # also at the end of a session
    async with linked(tmp_path) as (broker, connect):
        await _filled(broker, 1)
        client = connect()
        receiver = await client.attach("/groups/g", default_outcome=outcome)
        receiver.grant(1)
        await receiver.receive(1)
        receiver.session.end()
        client.pump()
        other = await client.attach("/groups/g")
        other.grant(1)
        if isinstance(outcome, Accepted):
            assert await other.rest() == []
            return
        (again,) = await other.receive(1)
        assert Sections(again.message).header().delivery_count == (outcome is FAILED)


@pytest.mark.parametrize("is_detached", [True, False])
async def test_the_end_of_a_link_alone_makes_no_dead_letters(
    tmp_path: Path, is_detached: bool
) -> None:
    # Such as each JmsTemplate.receive of Spring: its link takes one message of those it was sent.
    async with linked(tmp_path) as (broker, connect):
        await _filled(broker, 3, max_attempts=3)
        counts = []
        for _ in range(5):
            client = connect()
            receiver = await client.attach("/groups/g", default_outcome=FAILED)
            receiver.grant(3)
            got = await receiver.receive(3)
            assert [body_of(each) for each in got] == ["m0", "m1", "m2"]
            counts.append(Sections(got[0].message).header().delivery_count or 0)
            (receiver.detach if is_detached else receiver.session.end)()
            client.pump()
        assert counts == [0, 1, 2, 2, 2]
        receiver = await connect().attach("/groups/g")
        receiver.grant(3)
        receiver.settle((await receiver.receive(3))[:1], FAILED)
        assert await receiver.rest() == [], "a failure of the client itself still counts"


async def test_settled_messages_are_sent_at_most_once(tmp_path: Path) -> None:
    # T22
    async with linked(tmp_path) as (broker, connect):
        bodies = await _filled(broker, 600)
        client = connect()
        session = client.session(300)
        receiver = await client.attach("/groups/g", session, snd_settle_mode=1)
        receiver.grant(500)
        got = await receiver.receive(500)
        assert [body_of(each) for each in got] == bodies[:500]
        assert all(each.is_settled for each in got)
        receiver.detach()
        other = await client.attach("/groups/g")
        other.grant(1_000)
        assert await other.bodies(100) == bodies[500:]


async def test_messages_that_are_too_large_detach_the_link(tmp_path: Path) -> None:
    async with linked(tmp_path) as (broker, connect):
        await _filled(broker, 1)
        await broker.publish("x" * 1_000)
        client = connect()
        receiver = await client.attach("/groups/g", max_message_size=500)
        receiver.grant(5)
        assert await receiver.error() == MESSAGE_SIZE_EXCEEDED
        other = await client.attach("/groups/g")
        other.grant(5)
        assert [len(each) for each in await other.bodies(2)] == [2, 1_000]


async def test_one_member_has_an_exclusive_group(tmp_path: Path) -> None:
    # T29
    async with linked(tmp_path) as (broker, connect):
        await _filled(broker, 1, mode="exclusive")
        first = await connect().attach("/groups/g")
        second = await connect().attach("/groups/g")
        assert await second.error() == RESOURCE_LOCKED
        assert second.link.remote is not None
        assert second.link.remote.source is None
        first.grant(1)
        assert await first.bodies(1) == ["m0"]


async def test_a_consumer_of_a_single_active_group_learns_whether_it_is_active(
    tmp_path: Path,
) -> None:
    # I12
    async with linked(tmp_path) as (broker, connect):
        await _filled(broker, 3, mode="single_active")
        first = await connect().attach("/groups/g")
        second = await connect().attach("/groups/g")
        first.grant(1)
        assert await first.bodies(1) == ["m0"]
        second.grant(10)
        assert await second.rest() == []
        assert await first.rest() == []
        assert (first.link.available, second.link.available) == (2, 0)
        first.detach()
        assert await second.bodies(3) == ["m0", "m1", "m2"]
        assert [each["rabbitmq:active"] for each in first.states] == [True]
        assert [each["rabbitmq:active"] for each in second.states] == [False, True]


async def test_selectors_of_two_links_share_the_messages(tmp_path: Path) -> None:
    # Q3
    async with linked(tmp_path) as (broker, connect):
        await broker.topic()
        await broker.group()
        for number in range(20):
            await broker.publish(f"m{number}", properties={"odd": str(number % 2)})
        receivers = []
        for odd in (0, 1):
            selector = Described(ULong(0x468C00000004), f"odd = {odd}")
            receivers.append(await connect().attach("/groups/g", filter={"f": selector}))
        for odd, receiver in enumerate(receivers):
            assert receiver.link.remote is not None
            assert receiver.link.remote.source is not None
            assert list(receiver.link.remote.source.filter or {}) == ["f"]
            receiver.grant(100)
            assert await receiver.bodies(10) == [f"m{number}" for number in range(odd, 20, 2)]


@pytest.mark.parametrize(
    ("group", "address", "fields", "condition"),
    [
        ({}, "/groups/g", {"filter": {"f": Described(ULong(0x120), "a =")}}, INVALID_FIELD),
        (
            {"mode": "keyed"},
            "/groups/g",
            {"filter": {"f": Described(ULong(0x120), "a = 1")}},
            NOT_IMPLEMENTED,
        ),
        ({}, "/groups/other", {}, NOT_FOUND),
        ({}, "/groups/g/topics/other", {}, NOT_FOUND),
    ],
)
async def test_what_cannot_be_had_refuses_the_link(
    tmp_path: Path, group: dict[str, Any], address: str, fields: dict[str, Any], condition: str
) -> None:
    async with linked(tmp_path) as (broker, connect):
        await _filled(broker, 0, **group)
        receiver = await connect().attach(address, **fields)
        assert await receiver.error() == condition
        assert receiver.link.remote is not None
        assert receiver.link.remote.source is None


async def test_a_name_makes_its_topic_and_group(tmp_path: Path) -> None:
    # A1, Q2, Q8
    async with linked(tmp_path) as (broker, connect):
        await connect().attach("orders")
        state = broker.groups.group_state("orders")
        assert list(state.topics) == ["orders"]
        assert state.record.config.mode == "competing"
        assert broker.store.table.get("orders").queue_count == 1
        await broker.topic("old")
        await broker.publish("before", topic="old")
        receiver = await connect().attach("old")
        receiver.grant(1)
        assert await receiver.bodies(1) == ["before"]


@pytest.mark.parametrize(
    ("grants", "address", "condition"),
    [
        (["consume:=t:=other"], "/groups/g", UNAUTHORIZED_ACCESS),
        (["consume:=other:=g"], "/groups/g", UNAUTHORIZED_ACCESS),
        (["consume:=new:=new"], "new", UNAUTHORIZED_ACCESS),
        (["consume:=new:=new", "admin:=new"], "new", None),
        (["consume:=t:=g"], "/groups/g", None),
    ],
)
async def test_a_link_needs_the_grants_of_the_http_api(
    tmp_path: Path, grants: list[str], address: str, condition: str | None
) -> None:
    async with linked(tmp_path) as (broker, connect):
        await _filled(broker, 0)
        principal = Principal("app", [each for text in grants for each in parse_grants(text)])
        receiver = await connect(principal=principal).attach(address)
        if condition is None:
            assert receiver.link.remote is not None
            assert receiver.link.remote.source is not None
        else:
            assert await receiver.error() == condition


async def test_a_link_ends_with_its_group(tmp_path: Path) -> None:
    async with linked(tmp_path) as (broker, connect):
        await _filled(broker, 0)
        receiver = await connect().attach("/groups/g")
        receiver.grant(1)
        await until(lambda: broker.groups.stats().waiting == 1)
        await broker.groups.delete_group("g")
        assert await receiver.error() == RESOURCE_DELETED


async def test_messages_that_are_not_settled_for_too_long_return(tmp_path: Path) -> None:
    # T23
    async with linked(tmp_path, delivery_timeout_ms=100) as (broker, connect):
        await _filled(broker, 2)
        receiver = await connect().attach("/groups/g", default_outcome=FAILED)
        receiver.grant(2)
        got = await receiver.receive(2)
        receiver.settle(got[:1], Accepted())
        assert await receiver.error() == RESOURCE_LIMIT_EXCEEDED
        other = await connect().attach("/groups/g")
        other.grant(2)
        (again,) = await other.receive(1)
        assert body_of(again) == "m1"
        assert Sections(again.message).header().delivery_count == 1


async def test_a_member_has_at_most_as_many_leases_as_its_group_allows(tmp_path: Path) -> None:
    # T18
    async with linked(tmp_path) as (broker, connect):
        await _filled(broker, 30, max_in_flight_per_member=10)
        receiver = await connect().attach("/groups/g")
        receiver.grant(100)
        got = await receiver.receive(10)
        assert await receiver.rest() == []
        receiver.settle(got[:3], Accepted())
        assert await receiver.bodies(3) == ["m10", "m11", "m12"]
        assert await receiver.rest() == []


async def test_waiting_links_take_turns(tmp_path: Path) -> None:
    # Q6, Q27, T5
    async with linked(tmp_path) as (broker, connect):
        await _filled(broker, 0)
        client = connect()
        first, second = await client.attach("/groups/g"), await client.attach("/groups/g")
        idle = await client.attach("/groups/g")
        for receiver in (first, second):
            receiver.grant(2)
        await until(lambda: broker.groups.stats().waiting == 2)
        order: list[str] = []

        def has_arrived(count: int) -> bool:
            for name, receiver in (("first", first), ("second", second)):
                order.extend(name for _ in receiver.take())
            return len(order) == count

        for count in range(1, 5):
            await broker.publish("m")
            await until(partial(has_arrived, count))
        assert order == ["first", "second", "first", "second"]
        assert await idle.rest() == []


async def test_only_messages_of_the_topic_in_the_address_arrive(tmp_path: Path) -> None:
    async with linked(tmp_path) as (broker, connect):
        await broker.topic("t")
        await broker.topic("u")
        await broker.group(topics={"t": Subscription(), "u": Subscription()})
        await broker.publish("of t")
        await broker.publish("of u", topic="u")
        receiver = await connect().attach("/groups/g/topics/u")
        receiver.grant(10)
        assert await receiver.bodies(1) == ["of u"]
        assert await receiver.rest() == []


@pytest.mark.parametrize("mode", ["move", "copy"])
async def test_messages_name_their_topics_unless_the_group_has_that_name(
    tmp_path: Path, mode: str
) -> None:
    async with linked(tmp_path) as (broker, connect):
        await broker.topic("t")
        await broker.topic("g")
        await broker.group(topics={"t": Subscription(), "g": Subscription()})
        await broker.publish("of t")
        await broker.publish("of g", topic="g")
        receiver = await connect().attach("/groups/g", distribution_mode=mode)
        receiver.grant(10)
        found = {}
        for each in await receiver.receive(2):
            found[body_of(each)] = Sections(each.message).annotations().get("x-opt-topic")
        assert found == {"of t": "t", "of g": None}


async def test_a_client_does_not_get_its_own_messages_if_it_says_so(tmp_path: Path) -> None:
    # T28
    async with linked(tmp_path) as (broker, connect):
        await _filled(broker, 0)
        envelopes = [encode_envelope(Envelope(publisher_hash(name))) for name in ("mine", "other")]
        rows = Rows(0, [b"of mine", b"of other"], 1, envelopes=envelopes)
        await broker.store.publishing.publish(broker.store.table.get("t"), [rows])
        no_local = {"f": Described(ULong(0x468C00000003), [])}
        own = await connect(container_id="mine").attach("/groups/g", filter=no_local)
        own.grant(5)
        assert await own.bodies(1) == ["of other"]
        # A producer over HTTP that has the name of the container is the same session.
        by_http = Rows(0, [b"by http"], 1, producer_id=producer_id_of("mine"))
        await broker.store.publishing.publish(broker.store.table.get("t"), [by_http])
        assert await own.rest() == []
        other = await connect(container_id="other").attach("/groups/g", filter=no_local)
        other.grant(5)
        assert await other.bodies(2) == ["of mine", "by http"]


async def test_a_link_that_may_not_wait_tries_again(tmp_path: Path) -> None:
    hold = HoldServiceConfig(max_held_per_client=1)
    async with linked(tmp_path, hold=hold) as (broker, connect):
        await _filled(broker, 0)
        client = connect()
        first, second = await client.attach("/groups/g"), await client.attach("/groups/g")
        first.grant(1)
        await until(lambda: broker.groups.stats().waiting == 1)
        second.grant(1)
        await until(lambda: broker.hold.stats().refused_total == 1)
        await broker.publish(["m0", "m1"])
        assert await first.bodies(1) == ["m0"]
        assert await second.bodies(1) == ["m1"]
