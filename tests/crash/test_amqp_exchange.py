"""A broker that is killed at any frame of an exchange loses and repeats nothing acknowledged."""

import asyncio
from itertools import count
from pathlib import Path

import pytest

from holdfast.free_port import free_port
from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.amqp.exchange import Exchange

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]


async def kill_at(broker: RunningBroker, port: int, frames: int) -> bool:
    """Kill the running broker at a frame, and start it again; return whether the exchange was
    complete before."""
    exchange = Exchange(f"kill-{frames}")
    async with broker.async_client() as http:
        await exchange.prepare(http)
    is_complete = await exchange.run(port, frames)
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.start)
    async with broker.async_client() as http:
        await exchange.check(port, http)
    return is_complete


def started(folder: Path) -> tuple[RunningBroker, int]:
    port = free_port()
    arguments = (*TEST_ARGUMENTS, "--amqp-port", str(port), "--topics-default-durability", "fsync")
    return RunningBroker(folder / "data", arguments), port


async def test_a_kill_at_some_frames_loses_and_repeats_nothing(tmp_path: Path) -> None:
    broker, port = started(tmp_path)
    with broker:
        for frames in (20, 36, 40):
            await kill_at(broker, port, frames)


@pytest.mark.fault
async def test_a_kill_at_any_frame_loses_and_repeats_nothing(tmp_path: Path) -> None:
    broker, port = started(tmp_path)
    with broker:
        for frames in count(1):
            if await kill_at(broker, port, frames):
                break
        assert frames > 30
