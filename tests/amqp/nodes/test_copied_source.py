from pathlib import Path
from typing import Any

import pytest

from holdfast.amqp.messages.sections import Sections
from holdfast.amqp.wire.conditions import (
    INVALID_FIELD,
    NOT_FOUND,
    RESOURCE_DELETED,
    RESOURCE_LIMIT_EXCEEDED,
    UNAUTHORIZED_ACCESS,
)
from holdfast.amqp.wire.performatives import Accepted, Modified, Rejected, Released
from holdfast.amqp.wire.types import Described, Symbol, Timestamp, ULong
from holdfast.http_api.access.grants import Principal, parse_grants
from tests.amqp.nodes.linked import body_of, linked
from tests.support.storage.stored import fill_segment, settled, until


def _start(value: Any) -> dict[str, Any]:
    return {"filter": {"s": Described(Symbol("rabbitmq:stream-offset-spec"), value)}}


def _selector(text: str) -> dict[str, Any]:
    return {"filter": {"f": Described(ULong(0x468C00000004), text)}}


FIRST = _start("first")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, []),
        (_start("next"), []),
        (FIRST, ["m0", "m1", "m2"]),
        (_start("last"), ["m2"]),
        (_start(ULong(1)), ["m1", "m2"]),
        (_start(ULong(99)), []),
        (_start(Timestamp(0)), ["m0", "m1", "m2"]),
        (_start(Timestamp(4_000_000_000_000)), []),
    ],
)
async def test_a_copy_begins_where_its_filter_says_and_follows_the_end(
    tmp_path: Path, fields: dict[str, Any], expected: list[str]
) -> None:
    # A1, T3
    async with linked(tmp_path) as (broker, connect):
        await broker.topic()
        await broker.publish(["m0", "m1", "m2"])
        receiver = await connect().attach("/topics/t", **fields)
        receiver.grant(10)
        if expected:
            assert await receiver.bodies(len(expected)) == expected
        await until(lambda: broker.hold.stats().held == 1)
        await broker.publish("later")
        assert await receiver.bodies(1) == ["later"]


async def test_copies_flow_by_credit_and_report_what_is_left(tmp_path: Path) -> None:
    # A2, A19, A26, A27, A36, A39
    async with linked(tmp_path) as (broker, connect):
        await broker.topic()
        await broker.publish([f"m{number}" for number in range(100)])
        receiver = await connect().attach("/topics/t", **FIRST)
        assert await receiver.rest() == []
        assert receiver.link.available == 100
        receiver.grant(10)
        got = await receiver.receive(10)
        receiver.settle(got, Accepted())
        assert await receiver.rest() == []
        receiver.grant(100, drain=True)
        assert await receiver.drained() == [f"m{number}" for number in range(10, 100)]
        assert (receiver.link.available, receiver.link.credit) == (0, 0)


async def test_readers_of_a_topic_do_not_affect_each_other(tmp_path: Path) -> None:
    # T3
    async with linked(tmp_path) as (broker, connect):
        await broker.topic()
        await broker.publish(["m0", "m1"])
        for _ in range(2):
            receiver = await connect().attach("/topics/t", **FIRST)
            receiver.grant(5)
            got = await receiver.receive(2)
            receiver.settle(got, Accepted())
            assert [body_of(each) for each in got] == ["m0", "m1"]


async def test_a_copy_has_the_messages_of_all_queues(tmp_path: Path) -> None:
    async with linked(tmp_path) as (broker, connect):
        await broker.topic(queues=3)
        for queue in range(3):
            await broker.publish([f"{queue}a", f"{queue}b"], queue=queue)
        client = connect()
        receiver = await client.attach("/topics/t", **FIRST)
        receiver.grant(100)
        got = await receiver.bodies(6)
        assert sorted(got) == ["0a", "0b", "1a", "1b", "2a", "2b"]
        only = await client.attach("/topics/t/queues/1", **FIRST)
        only.grant(100)
        assert await only.bodies(2) == ["1a", "1b"]
        assert await only.rest() == []


@pytest.mark.parametrize(
    ("state", "again", "failures"),
    [
        (Accepted(), [], 0),
        (Rejected(), [], 0),
        (Modified(True, True), [], 0),
        (Released(), ["m0", "m1"], 0),
        (Modified(delivery_failed=True), ["m0", "m1"], 1),
    ],
)
@pytest.mark.parametrize("is_settled", [True, False])
async def test_messages_that_are_given_back_come_again_in_place(
    tmp_path: Path, state: Any, again: list[str], failures: int, is_settled: bool
) -> None:
    # Q1
    async with linked(tmp_path) as (broker, connect):
        await broker.topic()
        await broker.publish(["m0", "m1", "m2", "m3"])
        receiver = await connect().attach("/topics/t", **FIRST)
        receiver.grant(3)
        got = await receiver.receive(3)
        receiver.settle([got[1], got[0]], state, is_settled=is_settled)
        await receiver.rest()
        assert len(receiver.session.incoming_unsettled) == 1
        receiver.grant(10)
        got = await receiver.receive(len(again) + 1)
        assert [body_of(each) for each in got] == [*again, "m3"]
        headers = [Sections(each.message).header() for each in got]
        assert [each.delivery_count for each in headers] == [failures] * len(again) + [0]


async def test_a_selector_leaves_messages_out(tmp_path: Path) -> None:
    async with linked(tmp_path) as (broker, connect):
        await broker.topic()
        client = connect()
        receiver = await client.attach("/topics/t", **_selector("n > 3 AND TAGS = 'x'"))
        receiver.grant(10)
        for number in range(6):
            await broker.publish(f"m{number}", tag="x", properties={"n": str(number)})
        assert await receiver.bodies(2) == ["m4", "m5"]
        assert await receiver.rest() == []


async def test_only_offsets_wait_while_the_window_or_the_socket_is_full(tmp_path: Path) -> None:
    # A29, A50
    async with linked(tmp_path) as (broker, connect):
        await broker.topic()
        bodies = [f"m{number}" for number in range(1_000)]
        await broker.publish(bodies)
        client = connect(has_room=False)
        session = client.session(0)
        receiver = await client.attach("/topics/t", session, snd_settle_mode=1, **FIRST)
        receiver.grant(5_000)
        session.set_incoming_window(5_000)
        assert await receiver.rest() == []
        assert receiver.link.available == 1_000
        client.has_room = True
        client.pair.server.connection.sessions[0].links[0].context.room_changed()
        assert await receiver.bodies(1_000) == bodies


async def test_a_client_settles_before_it_gets_more_than_it_may_have(tmp_path: Path) -> None:
    # T19
    async with linked(tmp_path, max_unsettled=3) as (broker, connect):
        await broker.topic()
        await broker.publish([f"m{number}" for number in range(6)])
        receiver = await connect().attach("/topics/t", **FIRST)
        receiver.grant(10)
        got = await receiver.receive(3)
        assert await receiver.rest() == []
        receiver.settle(got[:2], Accepted())
        assert await receiver.bodies(2) == ["m3", "m4"]


async def test_a_copy_continues_after_messages_that_retention_deleted(tmp_path: Path) -> None:
    async with linked(tmp_path) as (broker, connect):
        topic = await broker.topic()
        await broker.publish("first")
        receiver = await connect().attach("/topics/t", **FIRST)
        receiver.grant(1)
        assert await receiver.bodies(1) == ["first"]
        await fill_segment(broker.storage, topic)
        await fill_segment(broker.storage, topic)
        await settled(broker.storage)
        await broker.store.topics.change("t", fields={"retention_bytes": 1})
        await broker.storage.retention.run_once()
        begin = broker.store.reading.queue_state(topic, 0).min_offset
        assert begin > 1
        await broker.publish("last")
        receiver.grant(1)
        (got,) = await receiver.receive(1)
        assert Sections(got.message).annotations()["x-opt-offset"] == begin


async def test_expired_messages_are_not_sent(tmp_path: Path) -> None:
    # T32
    async with linked(tmp_path) as (broker, connect):
        await broker.topic()
        now_us = broker._now_us()
        expires = [now_us + 60_000_000, 0, now_us + 600_000_000]
        await broker.publish(["soon", "never", "later"], expires_timestamps_us=expires)
        broker.skipped_s = 61
        receiver = await connect().attach("/topics/t", **FIRST)
        receiver.grant(5)
        got = await receiver.receive(2)
        assert [body_of(each) for each in got] == ["never", "later"]
        ttls = [Sections(each.message).header().ttl for each in got]
        assert ttls[0] is None
        assert ttls[1] is not None
        assert 0 < ttls[1] < 540_000


@pytest.mark.parametrize(
    ("address", "fields", "grants", "condition"),
    [
        ("/topics/other", {}, "consume:*", NOT_FOUND),
        ("/topics/t/queues/9", {}, "consume:*", NOT_FOUND),
        ("/topics/t", _selector("a ="), "consume:*", INVALID_FIELD),
        ("/topics/t", {}, "consume:=u", UNAUTHORIZED_ACCESS),
        ("topic://new", {}, "consume:*", UNAUTHORIZED_ACCESS),
        ("/topics/wide", {}, "consume:*", RESOURCE_LIMIT_EXCEEDED),
    ],
)
async def test_what_cannot_be_copied_refuses_the_link(
    tmp_path: Path, address: str, fields: dict[str, Any], grants: str, condition: str
) -> None:
    async with linked(tmp_path, max_copied_queues=2) as (broker, connect):
        await broker.topic("t", queues=2)
        await broker.topic("wide", queues=3)
        principal = Principal("app", parse_grants(grants))
        receiver = await connect(principal=principal).attach(address, **fields)
        assert await receiver.error() == condition


async def test_the_topic_of_a_subscription_is_made(tmp_path: Path) -> None:
    async with linked(tmp_path) as (broker, connect):
        receiver = await connect().attach("news", capabilities=("topic",))
        receiver.grant(1)
        await until(lambda: broker.hold.stats().held == 1)
        await broker.publish("hello", topic="news")
        assert await receiver.bodies(1) == ["hello"]


async def test_a_copy_ends_with_its_topic(tmp_path: Path) -> None:
    async with linked(tmp_path) as (broker, connect):
        topic = await broker.topic()
        receiver = await connect().attach("/topics/t")
        receiver.grant(1)
        await until(lambda: broker.hold.stats().held == 1)
        await broker.store.topics.delete("t")
        broker.hold.topic_deleted(topic.topic_id)
        assert await receiver.error() == RESOURCE_DELETED


async def test_a_browser_sees_what_is_not_leased_and_takes_nothing(tmp_path: Path) -> None:
    # Q12, Q15
    async with linked(tmp_path) as (broker, connect):
        await broker.topic()
        await broker.group("g")
        await broker.publish(["m0", "m1", "m2", "m3"])
        client = connect()
        member = await client.attach("/groups/g")
        member.grant(1)
        assert await member.bodies(1) == ["m0"]
        browsers = [await client.attach("/groups/g", distribution_mode="copy") for _ in range(2)]
        for browser in browsers:
            browser.grant(2)
            got = await browser.receive(2)
            assert [body_of(each) for each in got] == ["m1", "m2"]
            browser.settle(got, Released())
            browser.grant(10, drain=True)
            assert await browser.drained() == ["m3"]
        browsers[0].grant(10)
        await until(lambda: broker.hold.stats().held == 1)
        await broker.publish("m4")
        assert await browsers[0].bodies(1) == ["m4"]
        member.grant(10)
        assert await member.bodies(4) == ["m1", "m2", "m3", "m4"]


async def test_a_browser_with_a_selector_and_a_small_window_misses_nothing(
    tmp_path: Path,
) -> None:
    # Q12
    async with linked(tmp_path) as (broker, connect):
        await broker.topic()
        await broker.group("g")
        for number in range(10):
            await broker.publish(f"m{number}", properties={"n": str(number)})
        client = connect()
        session = client.session(2)
        fields = {"distribution_mode": "copy", **_selector("n >= 2")}
        browser = await client.attach("/groups/g", session, **fields)
        browser.grant(3)
        got = await browser.bodies(3)
        browser.grant(10, drain=True)
        got += await browser.drained()
        assert got == [f"m{number}" for number in range(2, 10)]


async def test_the_filters_of_a_client_have_a_limited_length(tmp_path: Path) -> None:
    text = "n = 1"
    limit = 2 * len(text)
    for name in ("max_filter_characters", "max_client_filter_characters"):
        limits: Any = {name: limit}
        async with linked(tmp_path / name, **limits) as (broker, connect):
            await broker.topic()
            await broker.group("g")
            client = connect()
            fields = {"distribution_mode": "copy", **_selector(text)}
            first = await client.attach("/groups/g", **fields)
            await client.attach("/groups/g", **_selector(text))
            third = await client.attach("/topics/t", **_selector(text))
            assert await third.error() == RESOURCE_LIMIT_EXCEEDED
            first.detach()
            fourth = await client.attach("/topics/t", **_selector(text))
            assert fourth.link.remote is not None
            assert fourth.link.remote.source is not None
