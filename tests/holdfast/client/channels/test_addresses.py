"""The addresses of a connection, over both transports."""

import asyncio
from pathlib import Path

import holdfast
from tests.amqp.broker import amqp_broker
from tests.amqp.test_listener import port_of


async def test_channels_work_over_tcp_and_web_sockets(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, holdfast.AsyncClient(broker.url) as client:
        await client.create_topic("orders", queues=1)
        await client.create_group("orders", ["orders"])

        def use(url: str) -> str | None:
            with holdfast.connect(url) as connection:
                channel = connection.channel()
                channel.publish("orders", url)
                message = channel.get("orders", timeout_s=60)
                if message is not None:
                    message.ack()
                return None if message is None else message.text

        for url in (
            f"amqp://127.0.0.1:{port_of(broker)}",
            broker.url,
            broker.url.replace("http", "ws"),
        ):
            assert await asyncio.to_thread(use, url) == url
