"""Sessions: links with credit, over both transports, against a real broker in this process."""

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import holdfast
from holdfast.amqp.engine.incoming_link import IncomingLink
from holdfast.broker import Broker
from holdfast.client import AsyncReceiver, AsyncSession, LinkMessage
from holdfast.client.errors import ConnectionFailed, Unauthenticated, UnknownGroup
from tests.amqp.broker import amqp_broker
from tests.amqp.test_listener import AUTHENTICATION, port_of, token_of
from tests.support.clients.certificates import Certificates


@pytest.fixture(params=["websocket", "tcp"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def address(broker: Broker, transport: str) -> str | None:
    return f"amqp://127.0.0.1:{port_of(broker)}" if transport == "tcp" else None


@asynccontextmanager
async def running(
    tmp_path: Path, transport: str
) -> AsyncIterator[tuple[Broker, holdfast.AsyncClient, AsyncSession]]:
    async with (
        amqp_broker(tmp_path) as broker,
        holdfast.AsyncClient(broker.url) as client,
        client.session(address(broker, transport)) as session,
    ):
        for name in ("orders", "others"):
            await client.create_topic(name, queues=1)
            await client.create_group(name, [name])
        yield broker, client, session


async def take(receiver: AsyncReceiver, count: int) -> list[LinkMessage]:
    async with asyncio.timeout(30):
        return [await anext(receiver) for _ in range(count)]


async def until_buffered(receiver: AsyncReceiver, count: int) -> None:
    async with asyncio.timeout(30):
        while receiver.buffered < count:
            await asyncio.sleep(0.01)


async def send(session: AsyncSession, topic: str, count: int) -> None:
    sender = await session.sender(topic)
    await asyncio.gather(*(sender.send(b"%d" % number) for number in range(count)))


async def test_a_message_arrives_with_its_fields(tmp_path: Path, transport: str) -> None:
    # A1
    async with running(tmp_path, transport) as (_, client, session):
        sender = await session.sender("orders")
        await sender.send("a tea", key="table-8", tag="drinks", properties={"cups": "2"})
        await client.publish("orders", b"\xff", key="k", tag="t", properties={"p": "1"})
        receiver = await session.receiver(group="orders")
        mine, theirs = await take(receiver, 2)
        assert (mine.text, mine.key, mine.tag) == ("a tea", "table-8", "drinks")
        assert (mine.offset, mine.queue, mine.attempt) == (0, 0, 1)
        assert mine.properties == {"cups": "2"}
        assert (theirs.body, theirs.key, theirs.tag) == (b"\xff", "k", "t")
        assert (theirs.offset, theirs.properties) == (1, {"p": "1"})
        await receiver.accept(mine, theirs)
        assert (await client.describe_group("orders")).in_flight == 0


async def test_outcomes(tmp_path: Path, transport: str) -> None:
    async with running(tmp_path, transport) as (_, client, session):
        await send(session, "orders", 4)
        receiver = await session.receiver(group="orders")
        accepted, rejected, released, failed = await take(receiver, 4)
        await receiver.accept(accepted)
        await receiver.reject(rejected)
        await receiver.release(released)
        await receiver.modify(failed)
        again = sorted(await take(receiver, 2), key=lambda each: each.offset)
        assert [(each.offset, each.attempt) for each in again] == [(2, 2), (3, 2)]
        await receiver.accept(*again)
        assert (await client.describe_group("orders")).in_flight == 0


@pytest.mark.parametrize(("credit", "count"), [(10, 30), (200, 2_000), (1, 5)])
async def test_credit_is_renewed(
    tmp_path: Path,
    transport: str,
    credit: int,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A5, A11: `flows` counts the frames that grant credit, by the end that the link belongs to
    flows: Counter[object] = Counter()
    send_flow = IncomingLink.send_flow

    def count_flow(link: IncomingLink, *, echo: bool = False) -> None:
        flows[link.context] += 1
        send_flow(link, echo=echo)

    monkeypatch.setattr(IncomingLink, "send_flow", count_flow)
    async with running(tmp_path, transport) as (_, client, session):
        async with client.producer("orders") as producer:
            for number in range(count):
                producer.send(str(number))
        receiver = await session.receiver(group="orders", credit=credit)
        found: list[LinkMessage] = []
        while len(found) < count:
            found += await take(receiver, 1)
            assert credit / 2 <= receiver.credit + receiver.buffered <= credit
            receiver.accept(found[-1])
        assert count / credit <= flows[receiver] <= 2 * count / credit
        assert [each.offset for each in found] == list(range(count))
        assert [each.text for each in found] == [str(number) for number in range(count)]


async def test_prefetch_moves_between_receivers(tmp_path: Path, transport: str) -> None:
    # A9, A10
    async with running(tmp_path, transport) as (_, client, session):
        await send(session, "orders", 300)
        await send(session, "others", 300)
        first = await session.receiver(group="orders", credit=10)
        second = await session.receiver(group="others", credit=0)
        await until_buffered(first, 10)
        assert second.buffered == 0
        first.set_credit(0)
        second.set_credit(50)
        await until_buffered(second, 50)
        await take(first, 10)
        first.set_credit(100)
        await until_buffered(first, 100)
        first.set_credit(1)
        await take(first, 101)
        assert ((await client.describe_group("orders")).in_flight or 0) <= 112
        assert second.buffered == 50


async def test_sessions_have_limits_of_their_own(tmp_path: Path, transport: str) -> None:
    # T5
    async with running(tmp_path, transport) as (broker, client, session):
        await send(session, "orders", 30)
        async with client.session(address(broker, transport)) as other:
            mine = await session.receiver(group="orders", credit=10)
            theirs = await other.receiver(group="orders", credit=10)
            await until_buffered(mine, 10)
            await until_buffered(theirs, 10)
            assert (await client.describe_group("orders")).in_flight == 20


async def test_a_slow_receiver_holds_back_only_itself(tmp_path: Path, transport: str) -> None:
    async with running(tmp_path, transport) as (_, client, session):
        slow = await session.receiver(group="orders", credit=10)
        fast = await session.receiver(group="others", credit=10)
        await send(session, "orders", 100)
        await send(session, "others", 100)
        await take(fast, 100)
        assert slow.buffered == 10
        assert (await client.describe_group("orders")).in_flight == 10


async def test_drain_pause_and_resume(tmp_path: Path, transport: str) -> None:
    async with running(tmp_path, transport) as (_, _, session):
        receiver = await session.receiver(group="orders", credit=10)
        assert await receiver.drain() == 0
        await send(session, "orders", 4)
        assert await receiver.drain() == 4
        assert receiver.credit == 0
        await send(session, "orders", 1)
        receiver.resume()
        await until_buffered(receiver, 5)
        receiver.pause()
        assert receiver.credit == 0


async def test_a_topic_is_read_without_settling(tmp_path: Path, transport: str) -> None:
    async with running(tmp_path, transport) as (_, _, session):
        sender = await session.sender("orders", settled=True)
        for number in range(5):
            await sender.send(str(number))
        receiver = await session.receiver(topic="orders", settled=True, start="first")
        found = await take(receiver, 5)
        assert [each.text for each in found] == ["0", "1", "2", "3", "4"]
        assert {each.delivery_id for each in found} == {None}
        from_third = await session.receiver(topic="orders", start=3)
        assert [each.text for each in await take(from_third, 2)] == ["3", "4"]


async def test_refusals_are_errors_of_the_client(tmp_path: Path, transport: str) -> None:
    async with running(tmp_path, transport) as (_, _, session):
        with pytest.raises(UnknownGroup):
            await session.receiver(group="unknown")
        await send(session, "orders", 1)


async def test_a_token_opens_a_session(tmp_path: Path, transport: str) -> None:
    _, token = token_of(tmp_path, "all")
    async with amqp_broker(tmp_path, access=AUTHENTICATION) as broker:
        url = address(broker, transport)
        async with (
            holdfast.AsyncClient(broker.url, token=token) as client,
            client.session(url) as session,
        ):
            await send(session, "orders", 1)
        async with holdfast.AsyncClient(broker.url, token="wrong") as client:
            with pytest.raises(Unauthenticated):
                await client.session(url).__aenter__()


async def test_a_session_over_tls(tmp_path: Path, transport: str) -> None:
    certificates = Certificates(tmp_path)
    certificate, key = certificates.issue("broker")
    tls = {"tls_certificate": str(certificate), "tls_key": str(key)}
    async with amqp_broker(tmp_path, http=tls) as broker:
        url = f"https://localhost:{broker.url.rpartition(':')[2]}"
        link_url = f"amqps://localhost:{broker.amqp_tls_port}" if transport == "tcp" else None
        async with (
            holdfast.AsyncClient(url, ca_file=certificates.ca_file) as client,
            client.session(link_url) as session,
        ):
            await send(session, "orders", 1)


async def test_a_lost_connection_raises_and_returns_messages(
    tmp_path: Path, transport: str
) -> None:
    async with running(tmp_path, transport) as (broker, _, session):
        await send(session, "orders", 3)
        port = port_of(broker) if transport == "tcp" else int(broker.url.rpartition(":")[2])
        async with relay(port) as (relayed, cut):
            scheme = "amqp" if transport == "tcp" else "http"
            url = f"{scheme}://127.0.0.1:{relayed}"
            client_url = broker.url if transport == "tcp" else url
            async with (
                holdfast.AsyncClient(client_url) as other,
                other.session(url if transport == "tcp" else None) as doomed,
            ):
                receiver = await doomed.receiver(group="orders")
                sender = await doomed.sender("others")
                first, second, _ = await take(receiver, 3)
                await receiver.accept(first)
                cut()
                with pytest.raises(ConnectionFailed):
                    await take(receiver, 1)
                with pytest.raises(ConnectionFailed):
                    await sender.send("too late")
                with pytest.raises(ConnectionFailed):
                    await receiver.accept(second)
        again = await session.receiver(group="orders")
        assert [each.offset for each in await take(again, 2)] == [1, 2]


async def test_a_closed_receiver_ends_and_returns_messages(tmp_path: Path, transport: str) -> None:
    async with running(tmp_path, transport) as (_, _, session):
        await send(session, "orders", 3)
        async with await session.receiver(group="orders") as receiver:
            await take(receiver, 1)
        assert [each async for each in receiver] == []
        again = await session.receiver(group="orders")
        assert [each.offset for each in await take(again, 3)] == [0, 1, 2]


@asynccontextmanager
async def relay(port: int) -> AsyncIterator[tuple[int, Callable[[], None]]]:
    """Forward connections to a port. Return the port of the relay, and a function that cuts the
    connections."""
    writers: list[asyncio.StreamWriter] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while data := await reader.read(65_536):
            writer.write(data)

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, ours), copy(theirs, writer), return_exceptions=True)

    def cut() -> None:
        for writer in writers:
            writer.transport.abort()

    server = await asyncio.start_server(forward, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], cut
    finally:
        cut()
        server.close()


async def test_a_session_without_an_event_loop(tmp_path: Path, transport: str) -> None:
    def use(url: str, link_url: str | None) -> list[str]:
        with (
            holdfast.Client(url) as client,
            client.session(link_url) as session,
            session.sender("orders") as sender,
            session.receiver(group="orders", credit=2) as receiver,
        ):
            sender.send("a tea")
            sender.send("a coffee")
            found = []
            for message in receiver:
                receiver.accept(message)
                found.append(message.text)
                if len(found) == 2:
                    break
            return found

    async with running(tmp_path, transport) as (broker, _, _):
        found = await asyncio.to_thread(use, broker.url, address(broker, transport))
        assert found == ["a tea", "a coffee"]


def test_amqp_is_imported_with_the_first_session() -> None:
    code = (
        "import sys, holdfast; holdfast.Client, holdfast.AsyncClient;"
        "sys.exit(any(each.startswith(('holdfast.amqp', 'websockets')) for each in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_a_reply_comes_back_through_a_temporary_queue(tmp_path: Path, transport: str) -> None:
    async with running(tmp_path, transport) as (_, _, session):
        replies = await session.receiver(dynamic=True)
        assert replies.address.startswith("/temp/")
        requests = await session.sender("orders")
        await requests.send(b"2", reply_to=replies.address, correlation_id="first")
        (request,) = await take(await session.receiver(group="orders"), 1)
        assert (request.reply_to, request.correlation_id) == (replies.address, "first")
        assert request.reply_to is not None
        answers = await session.sender(request.reply_to)
        await answers.send(b"4", correlation_id=request.correlation_id)
        (reply,) = await take(replies, 1)
        assert (reply.body, reply.correlation_id, reply.reply_to) == (b"4", "first", None)
        await replies.accept(reply)
        with pytest.raises(ValueError, match="one of group, topic and dynamic"):
            await session.receiver(dynamic=True, topic="orders")
