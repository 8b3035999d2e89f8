"""A broker in this process that listens for AMQP on any free port."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from holdfast.amqp.config import AmqpConfig
from holdfast.broker import Broker
from holdfast.commitlog.config import CommitLogConfig
from holdfast.config import Config
from holdfast.http_api.access.config import AccessConfig
from holdfast.http_api.config import HttpConfig


def amqp_config(folder: Path, **settings: Any) -> Config:
    """Return a configuration with these settings of AMQP; `http`, `access` and `commitlog` are
    sections."""
    commitlog = {"segment_bytes": 1 << 20, "reserve_bytes": 0, **settings.pop("commitlog", {})}
    return Config(
        data_dir=folder / "data",
        commitlog=CommitLogConfig(**commitlog),
        http_api=HttpConfig(port=0, **settings.pop("http", {})),
        access=AccessConfig(**settings.pop("access", {})),
        amqp=AmqpConfig(**settings),
    )


@asynccontextmanager
async def amqp_broker(folder: Path, **settings: Any) -> AsyncIterator[Broker]:
    """Run a broker; `settings` as for `amqp_config`."""
    broker = Broker(amqp_config(folder, **settings))
    broker.any_amqp_port = True
    async with broker:
        yield broker


async def figure(broker: Broker, name: str, token: str = "") -> float:
    """Return the sum of a metric of AMQP, such as "connections", over its labels."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"{broker.url}/metrics") as reply,
    ):
        assert reply.status == 200
        lines = (await reply.text()).splitlines()
    found = [
        line
        for line in lines
        if line.startswith((f"holdfast_amqp_{name} ", f"holdfast_amqp_{name}{{"))
    ]
    return sum(float(line.rpartition(" ")[2]) for line in found)
