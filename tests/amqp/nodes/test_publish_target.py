import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.amqp.engine.events import CreditChanged, Detached, Disposed
from holdfast.amqp.engine.outgoing_link import OutgoingLink
from holdfast.amqp.messages.envelope import Envelope, decode_envelope
from holdfast.amqp.wire.performatives import (
    Accepted,
    Header,
    Properties,
    Rejected,
    Released,
    Transfer,
    encode_composite,
)
from holdfast.amqp.wire.types import Described, ULong, encode
from holdfast.client.read.message import MessageBatch
from holdfast.commitlog.errors import DiskFull
from holdfast.commitlog.format.batch import iter_batches, queue_for_key
from holdfast.commitlog.format.session_ids import publisher_hash
from holdfast.http_api.access.grants import Principal, parse_grants
from holdfast.http_api.routing.codecs import BATCH
from tests.amqp.nodes.publishing import ACCEPTED, Publishing, data, publishing, send_all
from tests.support.damage.standing_syncs import StandingSyncs
from tests.support.storage.stored import until

HEADER = encode_composite(Header(durable=True))


def keyed(key: str, body: bytes = b"") -> bytes:
    return encode_composite(Properties(group_id=key)) + data(body or key.encode())


def to(address: Any, body: bytes = b"x") -> bytes:
    return encode_composite(Properties(to=address)) + data(body)


def condition(outcome: Any) -> str:
    assert type(outcome) is Rejected, outcome
    assert outcome.error is not None
    assert outcome.error.description
    return str(outcome.error.condition)


def flood(node: Publishing, link: OutgoingLink, **options: Any) -> int:
    """Send messages, each in a read of its own, until there is no credit; return how many."""
    sent = 0
    while link.credit:
        link.send(data(b"x"), **options)
        node.pair.pump()
        sent += 1
    return sent


@pytest.fixture
async def node() -> AsyncIterator[Publishing]:
    async with publishing() as node:
        yield node


async def test_messages_are_stored_in_order_and_accepted_with_one_disposition(
    node: Publishing,
) -> None:
    link = await node.sender()
    ids = [link.send(data(b"%d" % number)) for number in range(100)]
    node.pair.pump()
    await node.settled(link)
    (disposed,) = node.pair.client.take(Disposed)
    assert [each for each, _ in disposed.deliveries] == ids
    assert (disposed.state, disposed.is_settled) == (ACCEPTED, True)
    assert await node.bodies() == [b"%d" % number for number in range(100)]
    assert len(node.session.outgoing_unsettled) == 0
    counters = node.parts.topic_counters("orders")
    assert counters.messages_in == 100
    assert counters.bytes_in > 0


async def test_the_parts_of_a_message_are_stored(node: Publishing) -> None:  # T32
    message = (
        encode_composite(Header(durable=True, priority=7, ttl=60_000))
        + encode_composite(Properties(subject="red", group_id="k1"))
        + encode(Described(ULong(0x74), {"size": 3}))
        + encode(Described(ULong(0x77), "text"))
    )
    before_us = node.parts.wall_us()
    link = await node.sender()
    assert await node.publish(link, [data(b"plain"), message]) == [ACCEPTED] * 2
    (first, row), (second, at) = await node.rows()
    assert (first.body(row), first.key(row), first.tag(row)) == (b"plain", None, None)
    assert first.properties(row) == {}
    assert first.expires_timestamp_us(row) == 0
    assert (second.body(at), second.key(at), second.tag(at)) == (b"text", "k1", "red")
    assert second.properties(at) == {"size": "3"}
    assert -1_000 < second.expires_timestamp_us(at) - before_us - 60_000_000 < 60_000_000
    publisher = publisher_hash(node.container_id)
    assert decode_envelope(first.envelope(row)) == Envelope(publisher)
    envelope = decode_envelope(second.envelope(at))
    assert (envelope.publisher, envelope.is_durable, envelope.priority) == (publisher, True, 7)
    assert message.endswith(envelope.message(b"text"))


async def test_other_protocols_see_no_envelopes(node: Publishing) -> None:
    properties = encode_composite(Properties("id", subject="red", reply_to="elsewhere"))
    link = await node.sender()
    await node.publish(link, [data(b"plain"), properties + data(b"with sections")])
    path = "/v1/topics/orders/queues/0/messages?offset=0"
    as_json = await node.api.get(path)
    assert [each["body"] for each in as_json.json()["messages"]] == ["plain", "with sections"]
    assert b"elsewhere" not in as_json.body
    (batch,) = iter_batches((await node.api.get(path, Accept=BATCH)).body)
    seen = [(each.body, each.tag, each.properties) for each in MessageBatch("orders", batch, 0, 2)]
    assert seen == [(b"plain", None, {}), (b"with sections", "red", {})]


async def test_large_messages_of_several_links_arrive_whole(node: Publishing) -> None:  # T8, T17
    links = [await node.sender(name=f"link {number}") for number in range(3)]
    bodies = [bytes([number]) * (300_000 + number) for number in range(6)]
    ids = [links[number % 3].send(data(body)) for number, body in enumerate(bodies)]
    node.pair.pump(step=999)
    assert await node.outcomes(ids) == [ACCEPTED] * 6
    assert sorted(await node.bodies()) == bodies


async def test_messages_of_a_key_go_to_its_queue_and_others_round_robin() -> None:
    async with publishing(orders=4) as node:
        link = await node.sender()
        keys = [f"k{number % 10}" for number in range(60)]
        await node.publish(link, [keyed(key, b"%d" % at) for at, key in enumerate(keys)])
        for queue in range(4):
            expected = [b"%d" % at for at, key in enumerate(keys) if queue_for_key(key, 4) == queue]
            assert await node.bodies(queue=queue) == expected
        for _ in range(8):
            await node.publish(link, [data(b"a"), data(b"b")])
        counts = [len(await node.bodies(queue=queue)) for queue in range(4)]
        assert sum(counts) == 60 + 16
        for queue in range(4):  # two reads each
            assert (await node.bodies(queue=queue)).count(b"a") == 2


async def test_an_address_may_name_the_queue_and_the_tag() -> None:
    async with publishing(orders=4) as node:
        link = await node.sender(queue=2)
        await node.publish(link, [keyed("k1"), data(b"x")])
        assert await node.bodies(queue=2) == [b"k1", b"x"]
        link = await node.sender(name="tagged", queue=3, tag="KEY")
        subject = encode_composite(Properties(subject="red")) + data(b"y")
        await node.publish(link, [data(b"x"), subject])
        assert [batch.tag(row) for batch, row in await node.rows(queue=3)] == ["KEY", "KEY"]


async def test_a_priority_selects_the_level() -> None:  # Q20
    async with publishing() as node:
        topic, _ = await node.store.topics.create("levels", queues=2, priority_levels=2)
        link = await node.sender(topic)
        messages = [
            encode_composite(Header(priority=priority)) + keyed("k", b"%d" % priority)
            for priority in (0, 9, 4, 5)
        ]
        await node.publish(link, messages)
        queue = queue_for_key("k", 2) * 2
        assert await node.bodies("levels", queue) == [b"0", b"4"]
        assert await node.bodies("levels", queue + 1) == [b"9", b"5"]


@pytest.mark.parametrize(
    ("non_durable", "topic", "header", "waits"),
    [
        ("topic", "written", HEADER, True),
        ("topic", "written", b"", False),
        ("topic", "fsync", b"", True),
        ("written", "fsync", b"", False),
        ("written", "fsync", HEADER, True),
    ],
)
async def test_a_message_is_accepted_after_the_sync_that_it_asks_for(
    non_durable: str, topic: str, header: bytes, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = StandingSyncs(monkeypatch)
    async with publishing(non_durable=non_durable) as node:
        found, _ = await node.store.topics.create("t", queues=1, fields={"durability": topic})
        link = await node.sender(found)
        syncs.hold()
        try:
            ids = [link.send(header + data(b"x"))]
            node.pair.pump()
            if waits:
                await node.publish(await _written(node), [data(b"later")])
                assert node.target(link).unconfirmed == 1
        finally:
            if waits:
                syncs.release()
            assert await node.outcomes(ids) == [ACCEPTED]
            syncs.release()


async def _written(node: Publishing) -> OutgoingLink:
    """Return a link to a topic that does not wait for syncs."""
    topic, _ = await node.store.topics.create("w", queues=1, fields={"durability": "written"})
    return await node.sender(topic, "written")


async def test_the_order_of_a_link_is_that_of_the_queue(node: Publishing) -> None:
    link = await node.sender()
    sent = []
    for number in range(300):
        while not link.credit:
            node.pair.pump()
            await asyncio.sleep(0)
        sent.append(b"%d" % number)
        link.send((HEADER if number % 3 == 0 else b"") + data(sent[-1]))
        if number % 7 == 0:
            node.pair.pump()
            await asyncio.sleep(0)
    node.pair.pump()
    await node.settled(link)
    assert await node.bodies() == sent


# ---- Credit


async def test_credit_is_granted_again_when_half_of_it_is_left(node: Publishing) -> None:  # A12
    link = await node.sender()
    assert link.credit == 170
    await node.publish(link, [data(b"x")] * 84)
    assert link.credit == 86
    await node.publish(link, [data(b"x")])
    assert link.credit == 170


async def test_credit_values_are_settings() -> None:  # A13
    async with publishing(publish_credit=20) as node:
        link = await node.sender()
        assert link.credit == 20
        await node.publish(link, [data(b"x")] * 9)
        assert link.credit == 11
        await node.publish(link, [data(b"x")])
        assert link.credit == 20


@pytest.mark.parametrize("is_settled", [False, True])
async def test_a_slow_topic_never_has_more_than_255_unconfirmed_messages(  # A12, A14
    is_settled: bool, node: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = StandingSyncs(monkeypatch)
    link = await node.sender()
    syncs.hold()
    sent = flood(node, link, settled=is_settled)
    assert sent == node.target(link).unconfirmed == 255
    syncs.release()
    while sent < 2_000:
        sent += len(send_all(link, settled=is_settled))
        node.pair.pump()
        await asyncio.sleep(0)
        assert node.target(link).unconfirmed + link.credit <= 255
    await node.settled(link)
    assert node.most_unconfirmed <= 255
    assert len(await node.bodies()) == sent
    assert len(node.session.outgoing_unsettled) == 0
    assert bool(node.pair.client.take(Disposed)) != is_settled


async def test_a_slow_target_does_not_slow_the_other_links(  # A15, A17, A18
    node: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = StandingSyncs(monkeypatch)
    slow = await node.sender()
    fast = await _written(node)
    receiver, outgoing = node.pair.receiver(node.session)
    receiver.grant(2_000)
    syncs.hold()
    flood(node, slow)
    for _ in range(20):  # 2,000 messages pass in both directions while the slow target stands
        outcomes = await node.publish(fast, [data(b"x")] * 100)
        assert outcomes == [ACCEPTED] * 100
        assert fast.credit > 85
        ids = [outgoing.send(data(b"x")) for _ in range(100)]
        node.pair.pump()
        assert len(node.pair.client.messages()) == 100
        node.session.dispose(ids[0], ids[-1], Accepted(), settled=True)
        node.pair.pump()
        (disposed,) = node.pair.server.take(Disposed)
        assert [each for each, _ in disposed.deliveries] == ids
    assert slow.credit == 0
    assert node.target(slow).unconfirmed == 255
    syncs.release()
    await node.settled(slow)
    assert slow.credit > 85


async def test_settling_adds_no_credit(node: Publishing) -> None:  # A19
    link = await node.sender()
    node.pair.client.take(CreditChanged)
    await node.publish(link, [data(b"x")] * 10)
    assert link.credit == 160
    assert node.pair.client.take(CreditChanged) == []


async def test_a_client_above_its_rate_gets_credit_when_its_rate_allows_it() -> None:
    async with publishing(http={"max_publish_messages_per_s_per_client": 1_000}) as node:
        limiter, client = node.parts.publish_limiter, f"address {node.client}"
        limiter.published(client, node.principal, 1_500, 0)
        link = await node.sender()
        assert link.credit == 0
        await until(lambda: node.flushes)
        node.pair.pump()
        assert link.credit == 170
        limiter.published(client, node.principal, 1_000_000, 0)
        await node.publish(link, [data(b"x")] * 100)
        assert link.credit == 70


# ---- Outcomes


async def test_the_receiver_settles_second_if_the_sender_asks_for_it(node: Publishing) -> None:
    link = await node.sender(rcv_settle_mode=1)
    ids = [link.send(data(b"x")) for _ in range(3)]
    node.pair.pump()
    await until(lambda: node.flushes)
    node.pair.pump()
    (disposed,) = node.pair.client.take(Disposed)
    assert (disposed.state, disposed.is_settled) == (ACCEPTED, False)
    assert node.target(link).unconfirmed == 3
    node.session.dispose(ids[0], ids[1], Accepted(), settled=True, role=False)
    node.pair.pump()
    assert node.target(link).unconfirmed == 1


async def test_a_message_that_is_wrong_is_rejected_and_the_others_are_stored(
    node: Publishing,
) -> None:
    link = await node.sender()
    reserved = encode(Described(ULong(0x74), {"holdfast-dead-topic": "t"}))
    outcomes = await node.publish(
        link,
        [
            data(b"first"),
            b"no sections",
            keyed("k" * 5_000),
            reserved + data(b""),
            encode(Described(ULong(0x74), {"large": "x" * 40_000})) + data(b""),
            data(b"last"),
        ],
    )
    assert [outcomes[0], outcomes[-1]] == [ACCEPTED] * 2
    assert [condition(each) for each in outcomes[1:-1]] == [
        "amqp:decode-error",
        "amqp:link:message-size-exceeded",
        "amqp:invalid-field",
        "amqp:link:message-size-exceeded",
    ]
    assert await node.bodies() == [b"first", b"last"]
    assert node.target(link).unconfirmed == 0


async def test_a_settled_message_that_is_wrong_detaches_the_link(node: Publishing) -> None:
    link = await node.sender()
    for message in (data(b"first"), b"no sections", data(b"last")):
        link.send(message, settled=True)
    node.pair.pump()
    await until(lambda: not node.targets)
    node.pair.pump()
    (detached,) = node.pair.client.take(Detached)
    assert detached.error.condition == "amqp:decode-error"
    other = await node.sender(name="other")
    await node.publish(other, [data(b"after")])
    assert await node.bodies() == [b"first", b"last", b"after"]


@pytest.mark.parametrize(
    "transfer", [Transfer(0, 0, b"t", 1), Transfer(0, 0, b"t", 0, state=Accepted())]
)
async def test_an_unknown_format_is_rejected_and_the_link_stays(
    transfer: Transfer, node: Publishing
) -> None:
    link = await node.sender()
    link.send(data(b"x"))  # the client's delivery 0, whose frame is replaced
    node.pair.client.connection.take_output()
    from holdfast.amqp.wire.frames import frame

    octets = encode_composite(transfer) + data(b"x")
    node.pair.server.receive(frame(node.session.channel, octets))
    (outcome,) = await node.outcomes([0])
    assert condition(outcome) == "amqp:not-implemented"
    assert link.is_attached
    assert await node.bodies() == []


async def test_aborted_deliveries_do_not_use_up_the_credit_for_ever(node: Publishing) -> None:
    from holdfast.amqp.wire.frames import frame

    await node.sender()
    (link,) = node.targets
    for number in range(500):
        for each in (Transfer(0, number, b"t", more=True), Transfer(0, aborted=True)):
            node.pair.server.receive(frame(node.session.channel, encode_composite(each)))
    assert link.is_attached
    assert await node.bodies() == []


async def test_messages_are_released_while_the_disk_is_full_and_credit_is_withheld(
    node: Publishing,
) -> None:
    alarm: list[Exception] = []
    node.store.admission.alarms["test"] = lambda: alarm[0] if alarm else None  # type: ignore
    link = await node.sender()
    alarm.append(DiskFull(1))
    before = link.credit
    ids = [link.send(data(b"%d" % number)) for number in range(100)]
    node.pair.pump()
    assert await node.outcomes(ids) == [Released()] * 100
    assert link.credit == before - 100, "no credit while the disk is full"
    assert node.target(link).unconfirmed == 0
    alarm.clear()
    ids = [link.send(data(b"%d" % number)) for number in range(70)]
    node.pair.pump()
    assert await node.outcomes(ids) == [ACCEPTED] * 70


async def test_messages_for_a_full_topic_are_released(node: Publishing) -> None:
    topic, _ = await node.store.topics.create("small", queues=1, fields={"max_bytes": 1_000})
    full, link = await node.sender(topic, "full"), await node.sender()
    assert await node.publish(full, [data(bytes(700))]) == [ACCEPTED]
    assert await node.publish(full, [data(bytes(700))] * 2) == [Released()] * 2
    assert await node.publish(link, [data(b"x")]) == [ACCEPTED]


async def test_large_messages_of_one_read_fit_in_small_segments(node: Publishing) -> None:
    link = await node.sender()
    bodies = [bytes([number]) * 200_000 for number in range(10)]
    assert await node.publish(link, [data(body) for body in bodies]) == [ACCEPTED] * 10
    rows = await node.rows()
    assert [batch.body(row) for batch, row in rows] == bodies
    assert max(batch.total_size for batch, _ in rows) < 300_000


async def test_a_link_whose_topic_was_deleted_during_the_attach_is_detached(
    node: Publishing,
) -> None:
    topic = node.store.table.get("orders")
    await node.store.topics.delete("orders")
    link = await node.sender(topic)
    await until(lambda: not node.targets)
    node.pair.pump()
    (detached,) = node.pair.client.take(Detached)
    assert detached.link is link
    assert detached.error.condition == "amqp:resource-deleted"


async def test_a_link_of_a_deleted_topic_is_detached(node: Publishing) -> None:
    link = await node.sender()
    idle = await node.sender(name="idle")
    await node.store.topics.delete("orders")
    await until(lambda: not node.targets)
    node.pair.pump()
    for each in node.pair.client.take(Detached):
        assert each.link in (link, idle)
        assert each.error.condition == "amqp:resource-deleted"
    assert not link.is_attached and not idle.is_attached


async def test_stop_lets_the_outstanding_publishes_end(
    node: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = StandingSyncs(monkeypatch)
    link = await node.sender()
    target = node.target(link)
    syncs.hold()
    ids = send_all(link)
    node.pair.pump()
    target.stop(is_closed=False)
    finished = asyncio.create_task(target.finish())
    await asyncio.sleep(0)
    assert not finished.done()
    syncs.release()
    await finished
    node.pair.pump()
    assert not node.pair.client.take(Disposed), "the session may have ended"
    assert link.credit == 0, "a stopped target grants no credit"
    assert len(await node.bodies()) == len(ids)


# ---- Anonymous relay


async def test_the_relay_stores_each_message_where_it_says(node: Publishing) -> None:
    await node.store.topics.create("other", queues=2)
    await node.store.topics.create("secret", queues=1)
    grants = ["publish:=orders", "publish:=other", "publish:=unknown"]
    node.principal = Principal("p", [each for text in grants for each in parse_grants(text)])
    link = await node.sender(name="relay")
    outcomes = await node.publish(
        link,
        [
            to("orders", b"1"),
            to("/topics/other/queues/1", b"2"),
            to("/exchanges/orders/KEY", b"3"),
            to("unknown"),
            to("secret"),
            to("/topics/other/queues/2"),
            to("/groups/g"),
            to("/nonsense"),
            to(None),
            data(b"x"),
            to("orders", b"4"),
        ],
    )
    accepted = [index for index, each in enumerate(outcomes) if each == ACCEPTED]
    assert accepted == [0, 1, 2, 10]
    refused = [condition(each) for each in outcomes if each != ACCEPTED]
    assert refused == [
        *("amqp:unauthorized-access", "amqp:unauthorized-access"),
        *("amqp:not-found", "amqp:not-found"),
        *("amqp:invalid-field", "amqp:invalid-field", "amqp:invalid-field"),
    ]
    assert await node.bodies("orders") == [b"1", b"3", b"4"]
    assert await node.bodies("other", 1) == [b"2"]
    assert await node.bodies("secret") == []
    tags = [batch.tag(row) for batch, row in await node.rows("orders")]
    assert tags == [None, "KEY", None]


async def test_the_relay_creates_a_topic_and_keeps_the_order(node: Publishing) -> None:
    link = await node.sender(name="relay")
    messages = [to("orders", b"1"), to("new", b"2"), to("new", b"3"), to("orders", b"4")]
    ids = []
    for message in [*messages, to("newer", b"5"), to("new", b"6")]:  # each in a read of its own
        ids.append(link.send(message))
        node.pair.pump()
    assert await node.outcomes(ids) == [ACCEPTED] * 6
    assert await node.bodies("orders") == [b"1", b"4"]
    assert await node.bodies("new") == [b"2", b"3", b"6"]
    assert await node.bodies("newer") == [b"5"]
    assert node.store.table.get("new").queue_count == 1
    assert node.target(link).unconfirmed == 0


async def test_only_messages_of_the_topic_that_cannot_be_created_are_refused(
    node: Publishing,
) -> None:
    grants = [*parse_grants("publish:*"), *parse_grants("admin:=mine")]
    node.principal = Principal("p", grants)
    link = await node.sender(name="relay")
    outcomes = await node.publish(
        link, [to("theirs"), to("theirs"), to("mine", b"1"), to("/topics/mine", b"2")]
    )
    assert [condition(each) for each in outcomes[:2]] == ["amqp:unauthorized-access"] * 2
    assert outcomes[2:] == [ACCEPTED] * 2
    assert await node.bodies("mine") == [b"1", b"2"]


async def test_what_waits_for_a_topic_is_bounded_and_outlives_the_link() -> None:
    async with publishing(max_incoming_bytes=4096) as node:
        link = await node.sender(name="relay")
        outcomes = await node.publish(link, [to("new", b"x" * 3000), to("new", b"y" * 3000)])
        assert outcomes == [ACCEPTED, Released()]
        link = await node.sender(name="relay", snd_settle_mode=1)
        link.send(to("newest", b"last"), settled=True)
        link.detach()
        node.pair.pump()
        await until(lambda: node.store.table.find("newest") is not None)
        await until(lambda: node.store.reading.max_offset((_id_of(node, "newest"), 0)) == 1)


async def test_what_waits_for_topics_on_all_links_is_limited(node: Publishing) -> None:
    admission = node.store.admission
    admission.max_in_flight_bytes = 8000
    links = [await node.sender(name="relay")]
    links.append(node.pair.sender(node.session, "another relay")[0])
    node.pair.pump()
    ids = [link.send(to(f"new-{at}", bytes(5000))) for at, link in enumerate(links)]
    node.pair.pump()
    assert 5000 <= admission.in_flight_bytes <= 8000
    assert await node.outcomes(ids) == [ACCEPTED, Released()]
    assert admission.in_flight_bytes == 0
    assert node.store.table.find("new-1") is None


def _id_of(node: Publishing, topic: str) -> int:
    return node.store.table.get(topic).topic_id
