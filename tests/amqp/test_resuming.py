"""A client whose connection was lost resumes its sending link: no message is stored twice."""

import asyncio
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from holdfast.amqp.engine.connection import ConnectionSettings
from holdfast.amqp.engine.events import Attached, Disposed
from holdfast.amqp.engine.outgoing_link import OutgoingLink
from holdfast.amqp.wire.conditions import NOT_IMPLEMENTED
from holdfast.amqp.wire.frames import frame
from holdfast.amqp.wire.performatives import (
    Accepted,
    Properties,
    Rejected,
    Released,
    Transfer,
    encode_composite,
    from_described,
)
from holdfast.client import AsyncClient
from tests.amqp.broker import amqp_broker, figure
from tests.amqp.client import AmqpClient, amqp_client, data_message
from tests.amqp.exchange import run_until_cut, stored_bodies
from tests.support.damage.standing_syncs import StandingSyncs

FIRST, SECOND = 0, 1
COUNT = 8


class Publisher:
    """Sends messages on one link, over as many connections as it needs.

    It settles a delivery when it has its outcome. It uses every delivery-tag once, or with
    `reuses_tags` again as soon as the delivery is settled. `has_ids`: its messages have
    message-ids.
    """

    def __init__(
        self, topic: str, mode: int, *, has_ids: bool = False, reuses_tags: bool = False
    ) -> None:
        self.topic, self.mode = topic, mode
        self.has_ids, self.reuses_tags = has_ids, reuses_tags
        self.left = list(range(COUNT))
        self.unsettled: dict[bytes, int] = {}
        self.outcomes: dict[int, Any] = {}
        self.resumed = self.sent_again = 0
        """How many deliveries were resumed with their outcomes, and with their messages."""

    def message(self, number: int) -> bytes:
        """Return a message whose body is its number."""
        properties = encode_composite(Properties(message_id=f"m{number}"))
        return (properties if self.has_ids else b"") + data_message(b"%d" % number)

    async def run(self, port: int, frames: int) -> bool:
        """Connect, resume, and send, until the connection is lost after `frames` frames; return
        whether all was sent and settled before."""
        _, is_complete = await run_until_cut(port, frames, self._steps)
        return is_complete

    async def _steps(self, client: AmqpClient) -> None:
        await client.until(lambda: client.engine.remote)
        session = await client.session()
        link = await client.sender(
            session, self.topic, name="out", snd_settle_mode=0, rcv_settle_mode=self.mode,
            unsettled=dict.fromkeys(self.unsettled) or None,
        )  # fmt: skip
        remote = (link.remote and link.remote.unsettled) or {}
        assert set(remote) <= set(self.unsettled)
        by_id: dict[int, bytes] = {}
        for tag, number in list(self.unsettled.items()):
            await client.until(lambda: link.sendable, "credit")
            if tag in remote and remote[tag] is None:
                self.sent_again += 1
                by_id[link.resume(tag, None, settled=False, message=self.message(number))] = tag
            elif tag in remote:
                self.resumed += 1
                state = from_described(remote[tag])
                if self.resumed % 2:
                    link.resume(tag, state, settled=True)
                    self._settle(tag, state)
                else:
                    by_id[link.resume(tag, None, settled=False)] = tag
            else:
                by_id[link.send(self.message(number), tag=tag)] = tag
        while self.left or self.unsettled:
            await client.until(lambda: link.sendable, "credit")
            if self.left:
                tag = self._tag(self.left[0])
                self.unsettled[tag] = self.left.pop(0)
                number = self.unsettled[tag]
                by_id[link.send(self.message(number), tag=tag)] = tag
                if number % 3:
                    continue  # several deliveries are unsettled at once
            while self.unsettled:
                disposed = await client.next(Disposed)
                for delivery_id, _ in disposed.deliveries:
                    self._settle(by_id.pop(delivery_id), disposed.state)
                    if not disposed.is_settled:
                        session.dispose(
                            delivery_id, delivery_id, disposed.state, settled=True, role=False
                        )
                client.write()

    def _tag(self, number: int) -> bytes:
        if not self.reuses_tags:
            return b"tag-%d" % number
        return next(tag for each in count() if (tag := b"tag-%d" % each) not in self.unsettled)

    def _settle(self, tag: bytes, state: Any) -> None:
        self.outcomes[self.unsettled.pop(tag)] = state


async def bodies(http: AsyncClient, topic: str) -> list[int]:
    return [*map(int, await stored_bodies(http, topic))]


@pytest.mark.parametrize("has_ids", [False, True])
@pytest.mark.parametrize("mode", [FIRST, SECOND])
async def test_a_sender_that_is_cut_at_any_frame_resumes_its_link(
    tmp_path: Path, mode: int, *, has_ids: bool
) -> None:
    resumed = sent_again = 0
    async with amqp_broker(tmp_path) as broker, AsyncClient(broker.url) as http:
        assert broker.amqp_port is not None
        for frames in count(1):
            topic = f"cut-{frames}"
            await http.create_topic(topic, queues=1)
            # With the mode second, this end may not know yet that the sender has settled a tag.
            publisher = Publisher(topic, mode, has_ids=has_ids, reuses_tags=mode == FIRST)
            is_complete = await publisher.run(broker.amqp_port, frames)
            if not is_complete and not await publisher.run(broker.amqp_port, frames):
                assert await publisher.run(broker.amqp_port, 10_000)
            assert publisher.outcomes == dict.fromkeys(range(COUNT), Accepted())
            stored = await bodies(http, topic)
            assert set(stored) == set(range(COUNT))
            if mode == SECOND or has_ids:
                assert sorted(stored) == list(range(COUNT))
            resumed += publisher.resumed
            sent_again += publisher.sent_again
            if is_complete:
                break
        assert frames > 20
        assert resumed > 0 or mode == FIRST
        assert (sent_again > 0) is has_ids


async def test_a_delivery_that_is_being_stored_when_its_link_is_lost_is_known_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = StandingSyncs(monkeypatch)
    async with amqp_broker(tmp_path) as broker, AsyncClient(broker.url) as http:
        assert broker.amqp_port is not None
        await http.create_topic("orders", queues=1, durability="fsync")
        async with amqp_client(broker.amqp_port) as client:
            link = await client.sender(await client.session(), "orders", name="out")
            await client.until(lambda: link.sendable, "credit")
            syncs.hold()
            link.send(data_message(b"1"), tag=b"one")
            client.write()
            async with asyncio.timeout(20):
                while await figure(broker, "unsettled") != 1:
                    await asyncio.sleep(0.01)
            client.transport.abort()
            await client.lost()
        asyncio.get_running_loop().call_later(0.1, syncs.release)
        async with amqp_client(broker.amqp_port) as client:
            session = await client.session()
            link = await client.sender(
                session, "orders", name="out", unsettled={b"one": None, b"two": None}
            )
            assert link.remote is not None
            assert {
                tag: from_described(state) for tag, state in (link.remote.unsettled or {}).items()
            } == {b"one": Accepted()}
            await client.until(lambda: link.sendable, "credit")
            id_ = link.resume(b"one", None, settled=False)
            assert await client.outcomes([id_]) == {id_: Accepted()}
        assert await bodies(http, "orders") == [1]


async def test_a_session_that_has_ended_gets_no_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = StandingSyncs(monkeypatch)
    async with amqp_broker(tmp_path) as broker, AsyncClient(broker.url) as http:
        assert broker.amqp_port is not None
        await http.create_topic("orders", queues=1, durability="fsync")
        async with amqp_client(broker.amqp_port) as client:
            session = await client.session()
            link = await client.sender(session, "orders", name="out", rcv_settle_mode=SECOND)
            syncs.hold()
            await client.send(link, data_message(b"1"), tag=b"one")
            async with asyncio.timeout(20):
                while await figure(broker, "unsettled") != 1:
                    await asyncio.sleep(0.01)
            session.end()
            # The next session has the channel of the first, and its first delivery the same id.
            session = await client.session()
            other = await client.sender(session, "orders", name="other", rcv_settle_mode=SECOND)
            ids = await client.send(other, b"not a message", tag=b"two")
            syncs.release()
            assert type((await client.outcomes(ids))[ids[0]]) is Rejected
            link = await client.sender(
                session, "orders", name="out", rcv_settle_mode=SECOND, unsettled={b"one": None}
            )
            assert link.remote is not None
            assert list(link.remote.unsettled or ()) == [b"one"]
            assert not [each for each in client.events if isinstance(each, Disposed)]


async def test_every_outcome_is_known_after_a_session_or_a_link_ends(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, AsyncClient(broker.url) as http:
        assert broker.amqp_port is not None
        await http.create_topic("orders", queues=1)
        async with amqp_client(broker.amqp_port) as client:
            session = await client.session()
            tags: dict[bytes, Any] = {}
            for end in ("detach", "end", "detach"):
                link = await client.sender(
                    session, "orders", name="out", rcv_settle_mode=SECOND,
                    unsettled=dict.fromkeys(tags) or None,
                )  # fmt: skip
                assert link.remote is not None
                known = link.remote.unsettled or {}
                assert {tag: type(from_described(state)) for tag, state in known.items()} == tags
                for message in (data_message(b"x"), b"not a message"):
                    tag = b"tag %d" % len(tags)
                    ids = await client.send(link, message, tag=tag)
                    tags[tag] = type((await client.outcomes(ids))[ids[0]])
                if end == "detach":
                    link.detach(closed=False)
                    await client.detached(link)
                else:
                    session.end()
                    session = await client.session()
            assert list(tags.values()) == [Accepted, Rejected] * 3
            # The sender does not have the first four any more.
            last = dict(list(tags.items())[4:])
            link = await client.sender(
                session, "orders", name="out", rcv_settle_mode=SECOND,
                unsettled=dict.fromkeys(last),
            )  # fmt: skip
            assert link.remote is not None
            assert list(link.remote.unsettled or {}) == list(last)
            link.detach()  # closed: nothing is kept
            await client.detached(link)
            link = await client.sender(session, "orders", name="out", unsettled=dict.fromkeys(tags))
            assert link.remote is not None
            assert not link.remote.unsettled
        assert len(await stored_bodies(http, "orders")) == 3


async def test_outcomes_that_are_not_resumed_yet_count_against_the_limit(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path, max_client_suspended=3) as broker:
        assert broker.amqp_port is not None
        async with amqp_client(broker.amqp_port) as client:
            session = await client.session()

            async def lose(name: str) -> OutgoingLink:
                """Send two messages on a link, detach it, and attach it again."""
                link = await client.sender(session, "orders", name=name, rcv_settle_mode=SECOND)
                for tag in (b"1", b"2"):
                    await client.outcomes(await client.send(link, data_message(b"x"), tag=tag))
                link.detach(closed=False)
                await client.detached(link)
                return await client.sender(
                    session, "orders", name=name, rcv_settle_mode=SECOND,
                    unsettled={b"1": None, b"2": None},
                )  # fmt: skip

            first = await lose("first")
            assert first.remote is not None
            assert list(first.remote.unsettled or ()) == [b"1", b"2"]
            second = await lose("second")
            assert second.remote is not None
            assert not second.remote.unsettled
            await client.until(lambda: first.sendable >= 2, "credit")
            ids = [first.resume(tag, None, settled=False) for tag in (b"1", b"2")]
            assert await client.outcomes(ids) == dict.fromkeys(ids, Accepted())
            third = await lose("third")
            assert third.remote is not None
            assert list(third.remote.unsettled or ()) == [b"1", b"2"]


async def test_a_resumed_delivery_that_the_broker_does_not_know_is_ignored(
    tmp_path: Path,
) -> None:
    async with amqp_broker(tmp_path) as broker, AsyncClient(broker.url) as http:
        assert broker.amqp_port is not None
        await http.create_topic("orders", queues=1)
        async with amqp_client(broker.amqp_port) as client:
            link = await client.sender(await client.session(), "orders", name="out")
            await client.until(lambda: link.sendable, "credit")
            for number in range(400):  # more than the credit: each of them is given back
                await client.until(lambda: link.sendable, "credit")
                link.resume(b"%d" % number, Accepted(), settled=number % 2 == 0)
            ids = await client.send(link, data_message(b"1"))
            assert await client.outcomes(ids) == {ids[0]: Accepted()}
            assert await figure(broker, "unsettled") == 0
        assert await bodies(http, "orders") == [1]


async def test_a_link_that_receives_is_not_resumed(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker:
        assert broker.amqp_port is not None
        async with amqp_client(broker.amqp_port) as client:
            session = await client.session()
            link = await client.receiver(session, "orders", unsettled={b"1": Released()})
            assert link.remote is not None
            assert link.remote.source is None
            error = await client.detached(link)
            assert error.condition == NOT_IMPLEMENTED
            link = await client.receiver(session, "orders", unsettled={})
            assert link.is_attached
            assert not [each for each in client.events if isinstance(each, Attached)]


def with_id(name: str, body: bytes) -> bytes:
    return encode_composite(Properties(message_id=name)) + data_message(body)


async def attached_again(client: AmqpClient, tags: list[bytes], **options: Any) -> OutgoingLink:
    """Attach the link "out" with these unsettled deliveries; wait for credit."""
    session = await client.session()
    link = await client.sender(
        session, "orders", name="out", unsettled=dict.fromkeys(tags), **options
    )
    await client.until(lambda: link.sendable >= len(tags), "credit")
    return link


def unsettled_of(link: OutgoingLink) -> dict[bytes, Any]:
    assert link.remote is not None
    return link.remote.unsettled or {}


async def test_after_a_restart_an_equal_message_is_not_stored_again(tmp_path: Path) -> None:
    large = with_id("large", b"L" * 200_000)
    sent = {b"1": with_id("one", b"1"), b"2": with_id("two", b"2"), b"3": large}
    async with amqp_broker(tmp_path) as broker, AsyncClient(broker.url) as http:
        assert broker.amqp_port is not None
        await http.create_topic("orders", queues=2)
        async with amqp_client(broker.amqp_port) as client:
            link = await client.sender(await client.session(), "orders", name="out")
            for tag, message in sent.items():
                await client.outcomes(await client.send(link, message, tag=tag))
    # The fourth did not arrive; the client knows the outcome of the fifth.
    unsettled = {b"1": None, b"2": None, b"3": None, b"4": None, b"5": Accepted()}
    async with amqp_broker(tmp_path) as broker, AsyncClient(broker.url) as http:
        assert broker.amqp_port is not None
        async with amqp_client(broker.amqp_port) as client:  # lost before it resumes any
            session = await client.session()
            await client.sender(session, "orders", name="out", unsettled=unsettled)
        async with amqp_client(broker.amqp_port) as client:
            session = await client.session()
            link = await client.sender(session, "orders", name="out", unsettled=unsettled)
            assert unsettled_of(link) == dict.fromkeys([b"1", b"2", b"3", b"4"])
            await client.until(lambda: link.sendable >= 4, "credit")
            ids = [
                link.resume(tag, None, settled=False, message=message)
                for tag, message in (
                    (b"1", sent[b"1"]),
                    (b"2", with_id("four", b"4")),  # the tag was used again
                    (b"4", data_message(b"5")),
                    (b"unknown", sent[b"2"]),
                )
            ]
            assert await client.outcomes(ids[:3]) == dict.fromkeys(ids[:3], Accepted())
            received = client.received_bytes
            for at in range(0, len(large), 60_000):
                is_last = at + 60_000 >= len(large)
                transfer = Transfer(
                    link.handle, 4, b"3", 0, settled=False, more=not is_last, resume=True
                )
                octets = encode_composite(transfer) + large[at : at + 60_000]
                client.transport.write(frame(0, octets))
            await client.until(lambda: client.received_bytes > received, "disposition")
        stored = [b"1", b"2", b"4", b"5", b"L" * 200_000]
        assert sorted(await stored_bodies(http, "orders")) == stored


async def test_a_message_of_another_container_or_without_an_id_is_not_a_copy(
    tmp_path: Path,
) -> None:
    async with amqp_broker(tmp_path) as broker:
        assert broker.amqp_port is not None
        async with amqp_client(broker.amqp_port) as client:
            link = await client.sender(await client.session(), "orders", name="out")
            await client.outcomes(await client.send(link, data_message(b"1"), tag=b"1"))
        async with amqp_client(broker.amqp_port, ConnectionSettings("other")) as client:
            link = await client.sender(await client.session(), "orders", name="out")
            await client.outcomes(await client.send(link, with_id("one", b"1"), tag=b"1"))
        async with amqp_client(broker.amqp_port) as client:
            assert unsettled_of(await attached_again(client, [b"1"])) == {}
        async with amqp_client(broker.amqp_port, ConnectionSettings("other")) as client:
            assert unsettled_of(await attached_again(client, [b"1"])) == {b"1": None}


@pytest.mark.parametrize(
    ("other", "address"),
    [
        ("/topics/orders/queues/0", "/topics/orders/queues/1"),
        ("/exchanges/orders/a", "/exchanges/orders/b"),
        ("/exchanges/orders/a", "orders"),
        ("orders", "/exchanges/orders/b"),
    ],
)
async def test_a_message_at_another_address_of_the_topic_is_not_a_copy(
    tmp_path: Path, other: str, address: str
) -> None:
    async with amqp_broker(tmp_path) as broker, AsyncClient(broker.url) as http:
        assert broker.amqp_port is not None
        await http.create_topic("orders", queues=2)

        async def send(address: str, *, is_known: bool) -> None:
            """Send the message as one of a link that was lost."""
            async with amqp_client(broker.amqp_port or 0) as client:
                session = await client.session()
                link = await client.sender(session, address, name=address, unsettled={b"1": None})
                assert list(unsettled_of(link)) == [b"1"] * is_known
                await client.until(lambda: link.sendable, "credit")
                message = with_id("one", b"1")
                if is_known:
                    id_ = link.resume(b"1", None, settled=False, message=message)
                else:
                    id_ = link.send(message, tag=b"1")
                assert await client.outcomes([id_]) == {id_: Accepted()}

        await send(other, is_known=False)
        await send(address, is_known=False)
        assert await stored_bodies(http, "orders") == [b"1", b"1"]
        await send(other, is_known=True)
        await send(address, is_known=True)
        assert await stored_bodies(http, "orders") == [b"1", b"1"]


async def test_a_stored_message_is_the_copy_of_one_delivery_only(tmp_path: Path) -> None:
    message = with_id("one", b"1")  # sent twice; the second did not arrive
    async with amqp_broker(tmp_path) as broker, AsyncClient(broker.url) as http:
        assert broker.amqp_port is not None
        async with amqp_client(broker.amqp_port) as client:
            link = await client.sender(await client.session(), "orders", name="out")
            await client.outcomes(await client.send(link, message, tag=b"1"))
        for _ in range(2):  # once more: now both are stored
            async with amqp_client(broker.amqp_port) as client:
                link = await attached_again(client, [b"1", b"2"])
                ids = [
                    link.resume(tag, None, settled=False, message=message) for tag in (b"1", b"2")
                ]
                assert await client.outcomes(ids) == dict.fromkeys(ids, Accepted())
            assert await stored_bodies(http, "orders") == [b"1", b"1"]


async def test_copies_are_not_looked_for_beyond_the_limits(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path, max_client_suspended=5) as broker:
        assert broker.amqp_port is not None
        async with amqp_client(broker.amqp_port) as client:
            link = await client.sender(await client.session(), "orders", name="out")
            for number in range(6):
                message = with_id(f"m{number}", b"%d" % number)
                await client.outcomes(await client.send(link, message, tag=b"%d" % number))
        async with amqp_client(broker.amqp_port) as client:
            link = await attached_again(client, [b"5"])  # room for 4 copies
            assert unsettled_of(link) == {b"5": None}
            session = await client.session()
            other = await client.sender(session, "orders", name="b", unsettled={b"1": None})
            assert unsettled_of(other) == {}
            id_ = link.resume(b"5", None, settled=False, message=with_id("m5", b"5"))
            assert await client.outcomes([id_]) == {id_: Accepted()}
            # All are resumed: the room is free again.
            other = await client.sender(session, "orders", name="c", unsettled={b"1": None})
            assert unsettled_of(other) == {b"1": None}
    async with (
        amqp_broker(tmp_path, resume_timeout_ms=0) as broker,
        AsyncClient(broker.url) as http,
    ):
        assert broker.amqp_port is not None
        async with amqp_client(broker.amqp_port) as client:
            assert unsettled_of(await attached_again(client, [b"5"])) == {}
        assert len(await stored_bodies(http, "orders")) == 6
