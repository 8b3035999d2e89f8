import tracemalloc
from collections.abc import AsyncIterator

import pytest

from holdfast.amqp.messages.envelope import Envelope, encode_envelope
from holdfast.amqp.nodes import stored_copies
from holdfast.amqp.nodes.stored_copies import digest_of, find_copies
from holdfast.amqp.wire.performatives import Header, Properties, encode_composite
from holdfast.amqp.wire.types import Described, Symbol, ULong, encode
from holdfast.commitlog.format.batch_encoding import Rows
from holdfast.commitlog.format.session_ids import publisher_hash
from tests.amqp.nodes.publishing import Publishing, data, publishing
from tests.support.damage.standing_syncs import StandingSyncs
from tests.support.storage.stored import MIB, until

PUBLISHER = publisher_hash("client")
DURABLE = encode_composite(Header(durable=True))


def message(number: int, body: bytes = b"x") -> bytes:
    return encode_composite(Properties(message_id=f"m{number}")) + data(body)


def annotated(number: int, value: str) -> bytes:
    return encode(Described(ULong(0x72), {Symbol("x-opt-a"): value})) + message(number)


@pytest.fixture
async def node() -> AsyncIterator[Publishing]:
    async with publishing(orders=3) as node:
        yield node


async def found(node: Publishing, publisher: int = PUBLISHER, most: int = 100) -> frozenset[bytes]:
    topic = node.store.table.get("orders")
    return frozenset(await find_copies(node.store, topic, publisher, most))


def test_only_a_valid_message_with_a_message_id_has_a_digest() -> None:
    assert digest_of(message(1)) == digest_of(message(1))
    assert digest_of(DURABLE + message(1)) == digest_of(message(1))
    differing = [message(1), message(2), message(1, b"y"), annotated(1, "a"), annotated(1, "b")]
    assert len({digest_of(each) for each in differing}) == len(differing)
    for without in (data(b"x"), b"", b"not a message", message(1)[:-1], message(1)[:5]):
        assert digest_of(without) is None


async def test_copies_are_found_as_they_were_published(node: Publishing) -> None:
    link = await node.sender()
    sent = [message(1), DURABLE + message(2), annotated(3, "a"), message(4, bytes(70_000))]
    sent.append(encode_composite(Properties(message_id="no body")))
    sent.append(encode_composite(Properties(message_id="v")) + encode(Described(ULong(0x77), [1])))
    for each in sent:
        await node.publish(link, [each])
    await node.publish(link, [data(b"without an id")])
    digests = await found(node)
    # A message without a body is stored with one; it is the same when it is sent again.
    assert digests == {digest_of(each) for each in sent}


async def test_copies_of_another_container_or_another_protocol_are_not_found(
    node: Publishing,
) -> None:
    link = await node.sender()
    await node.publish(link, [message(1)])
    node.container_id = "another"
    other = await node.sender(name="other")
    await node.publish(other, [message(2)])
    topic = node.store.table.get("orders")
    before = encode_composite(Properties(message_id="m4"))
    envelopes = [
        encode_envelope(Envelope(publisher, before=before + data(b"x")[:-1]))
        for publisher in (publisher_hash("another"), publisher_hash("third"))
    ]
    rows = Rows(0, [b"x"] * 4, 1, envelopes=[b"", *envelopes, encode_envelope(Envelope(PUBLISHER))])
    await node.store.publishing.publish(topic, [rows])
    assert await found(node) == {digest_of(message(1))}
    another = {digest_of(message(2)), digest_of(message(4))}
    assert await found(node, publisher_hash("another")) == another
    assert await found(node, publisher_hash("third")) == {digest_of(message(4))}
    assert await found(node, publisher_hash("unknown")) == frozenset()


async def test_the_newest_copies_of_all_queues_are_found(
    node: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = await node.sender()
    topic = node.store.table.get("orders")
    for number in range(60):
        await node.publish(link, [message(number)])
        if number % 20 == 0:
            await node.store.publishing.publish(topic, [Rows(number % 3, [b"x"] * 30, 1)])
    monkeypatch.setattr(stored_copies, "_CHUNK", 7)
    everything = [digest_of(message(number)) for number in range(60)]
    assert await found(node) == set(everything)
    assert len(await found(node, most=13)) == 13
    assert await found(node, most=30) >= set(everything[-9:])  # of each queue, the newest
    monkeypatch.setattr(stored_copies, "_MOST_EXAMINED", 1)
    assert await found(node) < set(everything)


async def test_large_messages_after_many_small_ones_take_little_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with publishing() as node:
        topic = node.store.table.get("orders")
        await node.store.publishing.publish(topic, [Rows(0, [b"x"] * 20_000, 1)])
        link = await node.sender()
        for number in range(20):  # the size of the second is not the size of its body
            await node.publish(link, [message(2 * number, bytes(MIB))])
            await node.publish(link, [annotated(2 * number + 1, "x" * MIB)])
        tracemalloc.start()
        try:
            assert len(await found(node)) == 40
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 16 * MIB
        monkeypatch.setattr(stored_copies, "_MOST_BYTES", 8 * MIB)
        assert 7 <= len(await found(node)) <= 10


async def test_a_copy_that_asked_for_durability_is_found_once_it_is_durable(
    node: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = StandingSyncs(monkeypatch)
    topic, _ = await node.store.topics.create("quick", queues=1, fields={"durability": "written"})
    link = await node.sender(topic)
    syncs.hold()
    await node.publish(link, [message(1)])
    link.send(DURABLE + message(2))
    node.pair.pump()
    await until(lambda: node.store.reading.max_offset((topic.topic_id, 0)) == 2)
    assert await find_copies(node.store, topic, PUBLISHER, 9) == [digest_of(message(1))]
    syncs.release()
    await node.settled(link)
    assert len(await find_copies(node.store, topic, PUBLISHER, 9)) == 2


async def test_the_newest_copies_of_a_queue_are_found_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stored_copies, "_CHUNK", 4)
    async with publishing() as node:
        link = await node.sender()
        for first in range(0, 30, 3):
            await node.publish(link, [message(first + each) for each in range(3)])
        for most in (1, 5, 29):
            newest = {digest_of(message(number)) for number in range(30 - most, 30)}
            assert await found(node, most=most) == newest
