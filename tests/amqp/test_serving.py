"""What links do on a real broker: attach, refusals, defects, clients that do not read."""

import asyncio
import gc
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

from holdfast.amqp.engine.connection import ConnectionSettings
from holdfast.amqp.engine.events import Ended
from holdfast.amqp.messages.sections import Sections
from holdfast.amqp.nodes.publish_target import PublishTarget
from holdfast.amqp.protocol import AmqpConnection
from holdfast.amqp.wire.frames import frame
from holdfast.amqp.wire.performatives import (
    Accepted,
    Attach,
    Begin,
    Coordinator,
    Detach,
    Modified,
    Open,
    Properties,
    Rejected,
    Released,
    Source,
    Target,
    TransactionalState,
    Transfer,
    encode_composite,
)
from holdfast.amqp.wire.types import Symbol
from holdfast.http_api.access.token_file import TokenFile, revoke_tokens
from tests.amqp.broker import amqp_broker, figure
from tests.amqp.client import TIMEOUT_S, AmqpClient, amqp_client, data_message
from tests.amqp.test_listener import AUTHENTICATION, port_of, raw_frames, token_of


async def test_messages_go_from_a_sender_to_a_receiver(tmp_path: Path) -> None:
    # A1, A2
    async with amqp_broker(tmp_path) as broker, amqp_client(port_of(broker)) as client:
        session = await client.session()
        sender = await client.sender(session, "orders")
        ids = await client.send(sender, *[data_message(b"%d" % index) for index in range(20)])
        outcomes = await client.outcomes(ids)
        assert set(outcomes.values()) == {Accepted()}
        receiver = await client.receiver(session, "orders", credit=10)
        deliveries = await client.receive(10)
        assert [each.message[-1:] for each in deliveries] == [b"%d" % index for index in range(10)]
        assert receiver.credit == 0
        session.dispose(deliveries[0].id, deliveries[-1].id, Accepted(), settled=True)
        receiver.grant(10)
        assert (await client.receive(10))[0].message[-2:] == b"10"


async def test_the_annotations_of_an_outcome_last_until_the_broker_restarts(tmp_path: Path) -> None:
    async def receive(client: AmqpClient, outcome: Any) -> dict[str, Any]:
        """Settle the message with an outcome, and return its annotations."""
        session = await client.session()
        await client.receiver(session, "orders", credit=1)
        (delivery,) = await client.receive(1)
        session.dispose(delivery.id, delivery.id, outcome, settled=True)
        client.write()
        return Sections(delivery.message).annotations()

    changed = Modified(True, None, {Symbol("note"): "broken"})
    async with amqp_broker(tmp_path) as broker, amqp_client(port_of(broker)) as client:
        sender = await client.sender(await client.session(), "orders")
        await client.outcomes(await client.send(sender, data_message(b"first")))
        assert "note" not in await receive(client, changed)
        async with amqp_client(port_of(broker)) as other:
            assert (await receive(other, Released()))["note"] == "broken"
        assert 640 < await figure(broker, "modified_bytes") < 700
        assert await figure(broker, "modified_dropped_total") == 0
    async with amqp_broker(tmp_path) as broker, amqp_client(port_of(broker)) as client:
        again = await receive(client, Accepted())
        assert "note" not in again
        assert again["x-opt-attempt"] == 3


async def test_messages_of_a_woken_link_leave_before_the_outcome_of_their_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with amqp_broker(tmp_path) as broker, amqp_client(port_of(broker)) as client:
        session = await client.session()
        sender = await client.sender(session, "orders")
        receivers = [
            await client.receiver(session, address, credit=10)
            for address in ("orders", "/topics/orders")
        ]
        written: list[bytes] = []
        transport = type(client.transport)
        write = transport.write

        def record(self: asyncio.Transport, data: bytes) -> None:
            written.append(data)
            write(self, data)

        monkeypatch.setattr(transport, "write", record)
        await client.outcomes(await client.send(sender, data_message(b"hello")))
        await client.receive(len(receivers))
    outcome = b"\x00\x53\x15"
    assert outcome not in next(each for each in written if b"x-opt-offset" in each)
    assert sum(outcome in each for each in written) == 1


async def test_each_of_two_receivers_of_one_session_gets_only_its_own_messages(
    tmp_path: Path,
) -> None:
    # T7
    async with amqp_broker(tmp_path) as broker, amqp_client(port_of(broker)) as client:
        session = await client.session()
        names = ("orders", "letters")
        senders = [await client.sender(session, name) for name in names]
        for name in names:
            await client.receiver(session, name, credit=100)
        for number in range(50):
            for name, sender in zip(names, senders, strict=True):
                await client.send(sender, data_message(b"%b %02d" % (name.encode(), number)))
        received: dict[str, list[bytes]] = {}
        for each in await client.receive(100):
            body = Sections(each.message).body_value()
            received.setdefault(each.link.name, []).append(body)
        assert received == {
            f"from-{name}": [b"%b %02d" % (name.encode(), number) for number in range(50)]
            for name in names
        }


async def test_messages_whose_frames_alternate_on_one_connection_arrive_whole(
    tmp_path: Path,
) -> None:
    # T17: ten links, each with a message of 1 MiB; no frame follows one of its own message
    async with (
        amqp_broker(tmp_path, commitlog={"segment_bytes": 16 << 20}) as broker,
        amqp_client(port_of(broker)) as client,
    ):
        session = await client.session()
        links = [await client.sender(session, "orders", f"link {at}") for at in range(10)]
        for link in links:
            await client.until(lambda link=link: link.sendable, "credit")  # type: ignore[misc]
        bodies = [Random(at).randbytes(1 << 20) for at in range(10)]
        messages = [data_message(body) for body in bodies]
        part = 40_000
        for start in range(0, len(messages[0]), part):
            for at, link in enumerate(links):
                transfer = Transfer(link.handle, more=start + part < len(messages[at]))
                if not start:
                    transfer = transfer._replace(
                        delivery_id=at, delivery_tag=b"t", message_format=0
                    )
                payload = messages[at][start : start + part]
                client.transport.write(frame(session.channel, encode_composite(transfer) + payload))
        async with amqp_client(port_of(broker)) as other:
            await other.receiver(await other.session(), "orders", credit=20)
            found = await other.receive(10)
        assert sorted(Sections(each.message).body_value() for each in found) == sorted(bodies)


async def test_the_answer_to_an_attach_has_the_values_in_force(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, amqp_client(port_of(broker)) as client:
        session = await client.session()
        sender = await client.sender(session, "orders", snd_settle_mode=0, rcv_settle_mode=1)
        assert sender.remote
        assert isinstance(sender.remote.target, Target)
        assert (sender.remote.target.address, sender.remote.target.capabilities) == (
            "orders",
            ("queue",),
        )
        assert (sender.remote.snd_settle_mode, sender.remote.rcv_settle_mode) == (0, 1)
        assert sender.remote.max_message_size == 4 * 1024 * 1024
        receiver = await client.receiver(session, "orders")
        assert receiver.remote
        assert isinstance(receiver.remote.source, Source)
        assert receiver.remote.source.address == "orders"
        assert receiver.remote.source.default_outcome is not None
        assert receiver.remote.source.outcomes


async def test_a_message_above_its_topics_limit_does_not_end_the_relay(tmp_path: Path) -> None:
    # The relay is the only sender of programs such as those with spring-amqp-client.
    def to(address: str, size: int) -> bytes:
        return encode_composite(Properties(to=address)) + data_message(b"x" * size)

    segments = {"segment_bytes": 16 << 20}
    async with (
        amqp_broker(tmp_path, commitlog=segments) as broker,
        amqp_client(port_of(broker)) as client,
    ):
        async with aiohttp.ClientSession() as http:
            settings = {"queues": 1, "max_message_bytes": 6 << 20}
            async with http.put(f"{broker.url}/v1/topics/large", json=settings) as reply:
                assert reply.status == 201
        session = await client.session()
        relay = await client.sender(session, "", "relay", target=Target())
        assert relay.remote
        assert relay.remote.max_message_size == 16 << 20
        messages = to("small", 5 << 20), to("large", 5 << 20), to("small", 5)
        ids = [number for each in messages for number in await client.send(relay, each)]
        outcomes = await client.outcomes(ids)
        refused, *others = [outcomes[each] for each in ids]
        assert isinstance(refused, Rejected)
        assert refused.error is not None
        assert refused.error.condition == "amqp:link:message-size-exceeded"
        assert others == [Accepted(), Accepted()]


@pytest.mark.parametrize(
    ("is_sender", "terminus", "condition"),
    [
        (True, Target("/groups/g"), "amqp:not-allowed"),
        (True, Target("/temp/unknown"), "amqp:not-found"),
        (True, Target("/nonsense/at/all"), "amqp:invalid-field"),
        (True, Target(""), "amqp:invalid-field"),
        (True, Target("x" * 1025), "amqp:invalid-field"),
        (True, Target(7), "amqp:invalid-field"),
        (True, Target("/topics/orders/queues/9"), "amqp:not-found"),
        (True, Coordinator(), "amqp:not-implemented"),
        (False, None, "amqp:not-found"),
        (False, Source("/groups/unknown"), "amqp:not-found"),
        (False, Source("/temp/unknown"), "amqp:not-found"),
        (False, Source(None), "amqp:invalid-field"),
    ],
)
async def test_a_refused_link_is_attached_without_a_terminus_and_detached(
    tmp_path: Path, is_sender: bool, terminus: Any, condition: str
) -> None:
    async with amqp_broker(tmp_path) as broker, amqp_client(port_of(broker)) as client:
        session = await client.session()
        link: Any
        if is_sender:
            link = await client.sender(session, None, target=terminus)
            assert link.remote.target is None
        else:
            link = await client.receiver(session, "x", source=terminus)
            assert link.remote.source is None
        assert (await client.detached(link)).condition == condition
        await client.send(await client.sender(session, "orders"), data_message(b"still served"))


async def test_a_link_needs_a_grant(tmp_path: Path) -> None:
    token = token_of(tmp_path, "publish:orders", "admin:orders", "consume:read:g")[1]
    async with (
        amqp_broker(tmp_path, access=AUTHENTICATION) as broker,
        amqp_client(
            port_of(broker), mechanism="PLAIN", response=b"\x00x\x00" + token.encode()
        ) as client,
    ):
        session = await client.session()
        allowed = await client.sender(session, "orders")
        await client.outcomes(await client.send(allowed, data_message(b"")))
        for link in (
            await client.sender(session, "others"),
            await client.receiver(session, "orders"),
        ):
            assert (await client.detached(link)).condition == "amqp:unauthorized-access"


async def test_a_revoked_token_ends_links_and_the_connection(tmp_path: Path) -> None:
    token_id, token = token_of(tmp_path, "all")
    plain: dict[str, Any] = {"mechanism": "PLAIN", "response": b"\x00x\x00" + token.encode()}
    async with (
        amqp_broker(tmp_path, access=AUTHENTICATION) as broker,
        amqp_client(port_of(broker), **plain) as client,
    ):
        session = await client.session()
        link = await client.receiver(session, "orders", credit=1)
        revoke_tokens(TokenFile(tmp_path / "data"), [token_id])
        assert (await client.detached(link)).condition == "amqp:unauthorized-access"
        assert (await client.closed()).condition == "amqp:unauthorized-access"


@pytest.mark.parametrize("limit", ["max_total_links", "max_client_links"])
async def test_the_number_of_links_is_limited(tmp_path: Path, limit: str) -> None:
    async with (
        amqp_broker(tmp_path, **{limit: 2}) as broker,
        amqp_client(port_of(broker)) as client,
    ):
        session = await client.session()
        links = [await client.sender(session, "orders", f"{index}") for index in range(3)]
        assert (await client.detached(links[2])).condition == "amqp:resource-limit-exceeded"
        links[0].detach()
        await client.detached(links[0])
        await client.sender(await client.session(), "orders", "again")
        assert await figure(broker, "links") == 2


async def test_grants_of_credit_to_publishers_are_counted(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, amqp_client(port_of(broker)) as client:
        sender = await client.sender(await client.session(), "orders")
        await client.until(lambda: sender.credit == 170, "credit")
        assert await figure(broker, "credit_grants_total") == 1
        await client.outcomes(await client.send(sender, *[data_message(b"x")] * 85))
        await client.until(lambda: sender.credit == 170, "more credit")
        assert await figure(broker, "credit_grants_total") == 2


async def test_unsettled_deliveries_are_counted(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, amqp_client(port_of(broker)) as client:
        session = await client.session()
        sender = await client.sender(session, "orders")
        await client.outcomes(await client.send(sender, *[data_message(b"")] * 3))
        await client.receiver(session, "orders", credit=3)
        deliveries = await client.receive(3)
        assert await figure(broker, "unsettled") == 3
        session.dispose(deliveries[0].id, deliveries[1].id, Accepted(), settled=True)
        client.write()
        async with asyncio.timeout(TIMEOUT_S):
            while await figure(broker, "unsettled") != 1:
                await asyncio.sleep(0.02)


async def test_a_handle_above_max_links_closes_the_connection(tmp_path: Path) -> None:
    async with (
        amqp_broker(tmp_path, max_links=1) as broker,
        amqp_client(port_of(broker)) as client,
    ):
        session = await client.session()
        await client.sender(session, "orders")
        attach = Attach("x", 1, False, source=Source(), target=Target("orders"))
        client.transport.write(frame(session.channel, encode_composite(attach)))
        assert (await client.closed()).condition == "amqp:connection:framing-error"


async def test_a_link_that_is_detached_at_once_is_served_nothing(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, amqp_client(port_of(broker)) as client:
        session = await client.session()
        for name in ("short", "shorter"):
            attach = Attach(name, 5, True, source=Source("orders"), target=Target("client"))
            octets = encode_composite(attach), encode_composite(Detach(5, closed=True))
            client.transport.write(b"".join(frame(session.channel, each) for each in octets))
        await client.outcomes(
            await client.send(await client.sender(session, "orders"), data_message(b""))
        )
        async with asyncio.timeout(TIMEOUT_S):
            while await figure(broker, "links") != 1:
                await asyncio.sleep(0.02)


async def test_a_transaction_ends_the_session(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, amqp_client(port_of(broker)) as client:
        session = await client.session()
        await client.outcomes(
            await client.send(await client.sender(session, "orders"), data_message(b""))
        )
        await client.receiver(session, "orders", credit=1)
        (delivery,) = await client.receive(1)
        session.dispose(delivery.id, delivery.id, TransactionalState(b"t"), settled=False)
        ended = await client.next(Ended)
        assert ended.error
        assert ended.error.condition == "amqp:not-implemented"


# -- defects, and clients that do not read ---------------------------------------------------------


async def test_a_defect_closes_only_the_connection_that_meets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    take = PublishTarget.deliveries_arrived

    def fail(target: PublishTarget, deliveries: Any) -> None:
        if deliveries[0].message.endswith(b"poison"):
            raise ZeroDivisionError
        take(target, deliveries)

    monkeypatch.setattr(PublishTarget, "deliveries_arrived", fail)
    async with (
        amqp_broker(tmp_path) as broker,
        amqp_client(port_of(broker)) as client,
        amqp_client(port_of(broker), ConnectionSettings("other")) as other,
    ):
        link = await client.sender(await client.session(), "orders")
        sender = await other.sender(await other.session(), "orders")
        await client.send(link, data_message(b"poison"))
        assert (await client.closed()).condition == "amqp:internal-error"
        await other.outcomes(await other.send(sender, data_message(b"")))
        assert "ZeroDivisionError" in caplog.text


async def test_the_broker_stops_reading_from_a_client_that_does_not_read(tmp_path: Path) -> None:
    # A51: the client sends 16 MB of frames, which need as many bytes of answers
    attach = Attach("x" * 4000, 5, False, source=Source(), target=Target("orders"))
    pair = [(0, attach), (0, Detach(5, closed=True))]
    data = raw_frames([(0, Open("c")), (0, Begin(None, 0, 9, 9)), *(pair * 4000)])
    async with amqp_broker(tmp_path) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(broker))
        writer.write(data)
        async with asyncio.timeout(TIMEOUT_S):
            before = -1.0
            while (now := await figure(broker, "bytes_in_total")) != before:
                before = now
                await asyncio.sleep(0.2)
        assert now < len(data) - 1024 * 1024  # the broker does not read
        async with amqp_client(port_of(broker), ConnectionSettings("other")) as other:
            await other.session()
        async with asyncio.timeout(TIMEOUT_S):
            await reader.readexactly(4000 * 4000)
        writer.close()


async def test_a_clean_stop_answers_outstanding_publishes(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, amqp_client(port_of(broker)) as client:
        sender = await client.sender(await client.session(), "orders")
        ids = await client.send(sender, *[data_message(b"") for _ in range(100)])
        async with asyncio.timeout(TIMEOUT_S):
            while await figure(broker, "messages_in_total") < 100:
                await asyncio.sleep(0)
        stopping = asyncio.create_task(broker.stop())
        assert set((await client.outcomes(ids)).values()) == {Accepted()}
        assert (await client.closed()).condition == "amqp:connection:forced"
        await stopping


def handshake() -> bytes:
    """Return the bytes with which a client opens a connection and begins a session."""
    client = AmqpClient()
    client.engine.sasl_init("ANONYMOUS", b"", None)
    client.engine.open()
    return client.engine.take_output()


async def test_connections_that_stop_at_every_byte_of_the_handshake_end(tmp_path: Path) -> None:
    async with (
        amqp_broker(tmp_path, handshake_timeout_ms=3_000) as broker,
        amqp_client(port_of(broker)) as client,
    ):
        data = handshake()
        sockets = []
        for size in range(len(data)):
            for _ in range(3):
                _, writer = await asyncio.open_connection("127.0.0.1", port_of(broker))
                writer.write(data[:size])
                sockets.append(writer)
        sender = await client.sender(await client.session(), "orders")
        await client.outcomes(await client.send(sender, data_message(b"others are served")))
        async with asyncio.timeout(TIMEOUT_S):
            while await figure(broker, "connections") > 1:
                await asyncio.sleep(0.1)
        for writer in sockets:
            writer.close()


async def test_an_ended_connection_is_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker:
        gc.collect()
        gc.disable()
        try:
            for name in ("sent", "resumable", "received", "copied", "stopped"):
                settings = ConnectionSettings(name)
                async with amqp_client(port_of(broker), settings, opens=name != "stopped") as one:
                    if name == "stopped":
                        continue
                    session = await one.session()
                    if name in ("sent", "resumable"):  # resumable: the outcome is kept for it
                        mode = int(name == "resumable")
                        link = await one.sender(session, "orders", rcv_settle_mode=mode)
                        await one.outcomes(await one.send(link, data_message(b"")))
                    elif name == "received":
                        await one.receiver(session, "orders", credit=10)
                        await one.receive(1)
                    else:
                        await one.receiver(session, "/topics/orders", credit=10)
            async with asyncio.timeout(TIMEOUT_S):
                while any(isinstance(each, AmqpConnection) for each in gc.get_objects()):
                    await asyncio.sleep(0.1)
        finally:
            gc.enable()


async def test_messages_that_wait_for_windows_count_as_unsent(tmp_path: Path) -> None:
    # A52: of two connections whose windows are shut, one is cut off at the limit
    async with (
        amqp_broker(tmp_path, http={"max_unsent_bytes": 2_000_000}) as broker,
        amqp_client(port_of(broker)) as publisher,
        AsyncExitStack() as stack,
    ):
        sender = await publisher.sender(await publisher.session(), "/topics/orders")
        for name in ("one", "another"):
            settings = ConnectionSettings(name, incoming_window=1)
            client = await stack.enter_async_context(amqp_client(port_of(broker), settings))
            for index in range(3):
                session = await client.session()
                await client.receiver(session, "/topics/orders", f"{index}", credit=1)
            client.transport.pause_reading()
        ids = await publisher.send(sender, data_message(bytes(400_000)))
        await publisher.outcomes(ids)
        async with asyncio.timeout(TIMEOUT_S):
            while await figure(broker, "closed_early_total") != 1:
                await asyncio.sleep(0.05)
        assert await figure(broker, "connections") == 2


async def test_a_session_that_fails_leaves_the_other_sessions_of_its_connection(
    tmp_path: Path,
) -> None:
    # A43
    async with amqp_broker(tmp_path) as broker, amqp_client(port_of(broker)) as client:
        senders = []
        for number in range(100):
            session = await client.session()
            senders.append(await client.sender(session, f"orders-{number}"))
            await client.receiver(session, f"orders-{number}", credit=1)
        detach = encode_composite(Detach(77, closed=True))
        client.transport.write(frame(session.channel, detach))
        ended = await client.next(Ended)
        assert ended.session is session
        assert ended.error
        assert ended.error.condition == "amqp:session:unattached-handle"
        for number, sender in enumerate(senders[:-1]):
            await client.send(sender, data_message(b"%02d" % number))
        received = await client.receive(99)
        assert {each.link.name: each.message[-2:] for each in received} == {
            f"from-orders-{number}": b"%02d" % number for number in range(99)
        }
