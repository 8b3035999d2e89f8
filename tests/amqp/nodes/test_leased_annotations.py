"""The annotations of outcomes `modified`, on links of groups."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.amqp.engine.incoming_link import Delivery
from holdfast.amqp.messages.envelope import Envelope, encode_envelope
from holdfast.amqp.messages.sections import Sections
from holdfast.amqp.wire.performatives import Accepted, Modified, Rejected, Released
from holdfast.amqp.wire.types import Symbol, ULong, encode
from holdfast.commitlog.format.batch_encoding import Rows
from holdfast.groups.service_types import Verb
from tests.amqp.nodes.linked import Client, Receiver, body_of, linked
from tests.support.servers.group_broker import GroupBroker
from tests.support.storage.stored import until


def modified(failed: bool | None = True, **annotations: Any) -> Modified:
    return Modified(failed, None, {Symbol(key): each for key, each in annotations.items()})


def annotations(delivery: Delivery) -> dict[str, Any]:
    """Return the annotations of a delivery, without those of the broker."""
    found = Sections(delivery.message).annotations()
    return {key: each for key, each in found.items() if not key.startswith("x-opt-")}


async def attached(client: Client, credit: int = 1, **fields: Any) -> Receiver:
    receiver = await client.attach("/groups/g", **fields)
    receiver.grant(credit)
    return receiver


async def filled(broker: GroupBroker, count: int = 1, **group: Any) -> None:
    await broker.topic()
    await broker.group(**group)
    await broker.publish([f"m{number}" for number in range(count)])


@pytest.mark.parametrize("failed", [True, False, None])
async def test_the_annotations_are_merged_into_every_later_delivery(
    tmp_path: Path, failed: bool | None
) -> None:
    async with linked(tmp_path) as (broker, connect):
        await filled(broker, 2)
        first = await attached(connect())
        first.settle(await first.receive(1), modified(failed, a="x", b=ULong(1)))
        other = await attached(connect())
        (again,) = await other.receive(1)
        assert body_of(again) == "m0"
        assert annotations(again) == {"a": "x", "b": 1}
        assert type(annotations(again)["b"]) is ULong
        assert Sections(again.message).annotations()["x-opt-attempt"] == 2
        other.settle([again], modified(failed, b="y", c=[1]))
        other.grant(1)
        (again,) = await other.receive(1)
        assert annotations(again) == {"a": "x", "b": "y", "c": [1]}
        other.settle([again], Released())
        other.grant(2)
        got = await other.receive(2)
        assert [annotations(each) for each in got] == [{"a": "x", "b": "y", "c": [1]}, {}]


async def test_annotations_of_the_message_are_replaced_and_those_of_the_broker_are_not(
    tmp_path: Path,
) -> None:
    async with linked(tmp_path) as (broker, connect):
        await broker.topic()
        await broker.group()
        theirs = b"\x00\x53\x72" + encode({Symbol("mine"): 1, Symbol("color"): "red"})
        envelope = encode_envelope(Envelope(7, annotations=theirs, before=b"\x00\x53\x75\xa0\x02"))
        topic = broker.store.table.get("t")
        await broker.store.publishing.publish(topic, [Rows(0, [b"ab"], 1, envelopes=[envelope])])
        receiver = await attached(connect())
        delivery = await receiver.receive(1)
        given: dict[str, Any] = {
            "color": "blue",
            "x-opt-offset": "wrong",
            "x-opt-delay-ms": ULong(0),
            "n": 2,
        }
        receiver.settle(delivery, modified(**given))
        receiver.grant(1)
        (again,) = await receiver.receive(1)
        assert annotations(again) == {"mine": 1, "color": "blue", "n": 2}
        found = Sections(again.message).annotations()
        assert found["x-opt-offset"] == 0
        assert "x-opt-delay-ms" not in found
        assert body_of(again) == "ab"


async def test_another_group_does_not_get_them(tmp_path: Path) -> None:
    async with linked(tmp_path) as (broker, connect):
        await filled(broker)
        await broker.group("h")
        receiver = await attached(connect())
        receiver.settle(await receiver.receive(1), modified(a="x"))
        other = await connect().attach("/groups/h")
        other.grant(1)
        delivery = await other.receive(1)
        other.settle(delivery, Released())
        other.grant(1)
        (again,) = await other.receive(1)
        assert Sections(again.message).annotations()["x-opt-attempt"] == 2
        assert annotations(again) == {}


@pytest.mark.parametrize("outcome", [Accepted(), Rejected(), Modified(True, True, {})])
async def test_they_are_dropped_when_the_message_is_settled(tmp_path: Path, outcome: Any) -> None:
    async with linked(tmp_path) as (broker, connect):
        await filled(broker, 2)
        client = connect()
        kept = client.parts.modified
        receiver = await attached(client, 2)
        got = await receiver.receive(2)
        receiver.settle(got, modified(a="x"))
        receiver.grant(2)
        got = await receiver.receive(2)
        assert len(kept) == 2
        receiver.settle(got[:1], outcome)
        assert len(kept) == 1


async def test_they_are_dropped_when_the_message_becomes_a_dead_letter(tmp_path: Path) -> None:
    async with linked(tmp_path) as (broker, connect):
        await filled(broker, max_attempts=2)
        client = connect()
        receiver = await attached(client)
        receiver.settle(await receiver.receive(1), modified(a="x"))
        receiver.grant(1)
        got = await receiver.receive(1)
        assert len(client.parts.modified) == 1
        receiver.settle(got, modified(a="y"))
        assert len(client.parts.modified) == 0


async def _settle_over_http(broker: GroupBroker) -> None:
    await broker.settle(await broker.receive(member="http"))


async def _expire(broker: GroupBroker) -> None:
    broker.later(60)
    assert not (await broker.receive(member="http")).deliveries


async def _delete_the_group(broker: GroupBroker) -> None:
    await broker.groups.delete_group("g")


async def _delete_the_topic(broker: GroupBroker) -> None:
    await broker.store.topics.delete("t")


async def _seek(broker: GroupBroker) -> None:
    await broker.groups.seek("g", "earliest")


@pytest.mark.parametrize(
    "end", [_settle_over_http, _expire, _delete_the_group, _delete_the_topic, _seek]
)
async def test_they_are_dropped_when_the_message_ends_elsewhere(tmp_path: Path, end: Any) -> None:
    async with linked(tmp_path) as (broker, connect):
        client = connect()
        kept = client.parts.modified
        await broker.topic()
        await broker.group()
        now_us = client.parts.wall_us()
        await broker.publish("m", expires_timestamps_us=[(now_us + 30_000_000)])
        receiver = await attached(client)
        receiver.settle(await receiver.receive(1), modified(a="x"))
        assert len(kept) == 1
        await end(broker)
        # The next outcome, of another group, finds the entry.
        await broker.topic("u")
        await broker.group("h", "u")
        await broker.publish("m", topic="u")
        other = await client.attach("/groups/h")
        other.grant(1)
        other.settle(await other.receive(1), modified(b="y"))
        await until(lambda: len(kept) == 1)
        assert kept.bytes < 1_000


async def test_a_seek_back_delivers_the_message_without_them(tmp_path: Path) -> None:
    async with linked(tmp_path) as (broker, connect):
        await filled(broker)
        receiver = await attached(connect())
        receiver.settle(await receiver.receive(1), modified(a="x"))
        await broker.groups.seek("g", "earliest")
        receiver.grant(1)
        (again,) = await receiver.receive(1)
        assert annotations(again) == {}
        receiver.settle([again], modified(b="y"))
        receiver.grant(1)
        (again,) = await receiver.receive(1)
        assert annotations(again) == {"b": "y"}


async def test_a_stale_outcome_changes_nothing(tmp_path: Path) -> None:
    # The message of a keyed group returned because an earlier message of its key did.
    async with linked(tmp_path) as (broker, connect):
        await broker.topic()
        await broker.group(mode="keyed", max_in_flight_per_key=2)
        for body in ("m0", "m1"):
            await broker.publish(body, key="k")
        receiver = await attached(connect(), 2)
        first, second = await receiver.receive(2)
        receiver.settle([first], Released())
        receiver.settle([second], modified(a="x"))
        receiver.grant(2)
        assert [annotations(each) for each in await receiver.receive(2)] == [{}, {}]


async def test_a_link_with_settled_messages_gets_them_too(tmp_path: Path) -> None:
    async with linked(tmp_path) as (broker, connect):
        await filled(broker, 4)
        client = connect()
        receiver = await attached(client, 4)
        receiver.settle(await receiver.receive(4), modified(a="x"))
        session = client.session(2)
        settled = await attached(client, 4, session=session, snd_settle_mode=1)
        got = await settled.receive(2)
        session.set_incoming_window(10)
        got += await settled.receive(4 - len(got))  # the client may have renewed its window
        assert [annotations(each) for each in got] == [{"a": "x"}] * 4
        assert len(client.parts.modified) == 0


async def test_an_outcome_during_a_change_of_the_group_is_kept(tmp_path: Path) -> None:
    async with linked(tmp_path) as (broker, connect):
        await filled(broker)
        receiver = await attached(connect())
        delivery = await receiver.receive(1)
        server = broker.groups.registry.by_name["g"]
        with server.settling_paused():
            receiver.settle(delivery, modified(a="x"))
            receiver.grant(1)
        (again,) = await receiver.receive(1)
        assert annotations(again) == {"a": "x"}


async def test_the_delay_alone_is_not_an_annotation(tmp_path: Path) -> None:
    async with linked(tmp_path) as (broker, connect):
        await filled(broker)
        client = connect()
        receiver = await attached(client)
        receiver.settle(
            await receiver.receive(1), Modified(True, None, {Symbol("x-opt-delay-ms"): ULong(0)})
        )
        assert not client.parts.modified
        assert (await broker.groups.settle("g", Verb.ACK, [])) == []
