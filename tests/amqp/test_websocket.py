"""AMQP over WebSocket is the same AMQP: messages, logins, and a stop of the broker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from holdfast.amqp.engine.events import Opened
from holdfast.amqp.wire.performatives import Accepted
from holdfast.broker import Broker
from holdfast.http_api.access.token_file import TokenFile, revoke_tokens
from tests.amqp.broker import amqp_broker, figure
from tests.amqp.client import AmqpClient, amqp_client, data_message
from tests.amqp.test_listener import AUTHENTICATION, port_of, token_of

MIB = 1024 * 1024


class _Messages(asyncio.Transport):
    """Sends each write as messages of at most `message_bytes`, through a queue."""

    def __init__(self, message_bytes: int) -> None:
        super().__init__()
        self.queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._message_bytes = message_bytes

    def write(self, data: Any) -> None:
        for start in range(0, len(data), self._message_bytes):
            self.queue.put_nowait(bytes(data[start : start + self._message_bytes]))

    def close(self) -> None:
        """Do nothing: the broker closes the WebSocket when AMQP is closed at both ends."""


@asynccontextmanager
async def websocket_client(
    broker: Broker, path: str = "/amqp", *, token: str = "", message_bytes: int = MIB, **sasl: Any
) -> AsyncIterator[tuple[AmqpClient, ClientConnection]]:
    """Connect over WebSocket, and wait until the broker has opened the connection."""
    client, transport = AmqpClient(**sasl), _Messages(message_bytes)

    async def send(socket: ClientConnection) -> None:
        while True:
            await socket.send(await transport.queue.get())

    async def receive(socket: ClientConnection) -> None:
        try:
            while True:
                client.data_received(await socket.recv(decode=False))
        except ConnectionClosed:
            client.connection_lost(None)

    async with connect(
        broker.url.replace("http", "ws", 1) + path,
        subprotocols=[Subprotocol("amqp")],
        additional_headers={"Authorization": f"Bearer {token}"} if token else None,
        compression=None,
    ) as socket:
        tasks = [asyncio.create_task(send(socket)), asyncio.create_task(receive(socket))]
        try:
            client.connection_made(transport)
            await client.next(Opened)
            yield client, socket
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(("path", "message_bytes"), [("/amqp", MIB), ("/amqp", 7), ("/", MIB)])
async def test_messages_pass_between_websocket_and_tcp(
    tmp_path: Path, path: str, message_bytes: int
) -> None:
    large = bytes(400_000 if message_bytes == MIB else 600)
    bodies = [*(b"%d" % index for index in range(50)), large]
    async with (
        amqp_broker(tmp_path) as broker,
        websocket_client(broker, path, message_bytes=message_bytes) as (client, _),
        amqp_client(port_of(broker)) as by_tcp,
    ):
        session, other = await client.session(), await by_tcp.session()
        sender = await client.sender(session, "orders")
        ids = await client.send(sender, *map(data_message, bodies))
        assert await client.outcomes(ids) == dict.fromkeys(ids, Accepted())
        back = await by_tcp.sender(other, "replies")
        await by_tcp.outcomes(await by_tcp.send(back, *map(data_message, bodies)))
        await by_tcp.receiver(other, "orders", credit=len(bodies))
        await client.receiver(session, "replies", credit=len(bodies))
        for found in (await by_tcp.receive(len(bodies)), await client.receive(len(bodies))):
            for delivery, body in zip(found, bodies, strict=True):
                assert bytes(delivery.message).endswith(data_message(body))


async def test_a_caller_logs_in_by_its_handshake_or_by_sasl(tmp_path: Path) -> None:
    _, token = token_of(tmp_path, "publish:orders", "admin:orders")
    plain = b"\x00user\x00" + token.encode()
    async with amqp_broker(tmp_path, access=AUTHENTICATION) as broker:
        for login in (
            {"token": token, "mechanism": "EXTERNAL"},
            {"token": token, "mechanism": "PLAIN", "response": plain},
            {"mechanism": "PLAIN", "response": plain},
        ):
            async with websocket_client(broker, **login) as (client, _):
                assert ("EXTERNAL" in client.mechanisms) is ("token" in login)
                session = await client.session()
                allowed = await client.sender(session, "orders")
                await client.outcomes(await client.send(allowed, data_message(b"x")))
                refused = await client.sender(session, "others")
                error = await client.detached(refused)
                assert error.condition == "amqp:unauthorized-access"


async def test_a_revoked_token_ends_the_websocket_that_it_opened(tmp_path: Path) -> None:
    token_id, token = token_of(tmp_path, "all")
    _, operator = token_of(tmp_path, "operate")
    async with (
        amqp_broker(tmp_path, access=AUTHENTICATION) as broker,
        websocket_client(broker, token=token, mechanism="EXTERNAL") as (client, _),
    ):
        assert await figure(broker, "connections", operator) == 1
        revoke_tokens(TokenFile(tmp_path / "data"), [token_id])
        assert (await client.closed()).condition == "amqp:unauthorized-access"


async def test_a_stop_closes_amqp_and_then_the_websocket(tmp_path: Path) -> None:
    async with (
        amqp_broker(tmp_path) as broker,
        websocket_client(broker) as (client, socket),
    ):
        stopped = asyncio.create_task(broker.stop())
        assert (await client.closed()).condition == "amqp:connection:forced"
        await client.lost()
        assert socket.close_code == 1000
        await stopped
