"""A broker that is killed at any frame finds the messages of a link in its log when the link is
resumed: no message is lost, and none that has a message-id is stored twice."""

import asyncio
from itertools import count
from pathlib import Path

import pytest

from holdfast.amqp.wire.performatives import Accepted
from holdfast.testing import RunningBroker
from tests.amqp.test_resuming import COUNT, FIRST, SECOND, Publisher, bodies
from tests.crash.test_amqp_exchange import started

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]


async def kill_at(
    broker: RunningBroker, port: int, frames: int, mode: int, queues: int = 1
) -> Publisher | None:
    """Kill the running broker at a frame, start it again, and let the publisher resume its link.
    Return None if all was sent before."""
    topic = f"kill-{frames}"
    publisher = Publisher(topic, mode, has_ids=True, reuses_tags=True)
    async with broker.async_client() as http:
        await http.create_topic(topic, queues=queues)
        is_complete = await publisher.run(port, frames)
        if frames % 3:
            await bodies(http, topic)  # let the broker store what arrived
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.start)
    if not is_complete:
        assert await publisher.run(port, 10_000)
    assert publisher.outcomes == dict.fromkeys(range(COUNT), Accepted())
    async with broker.async_client() as http:
        assert sorted(await bodies(http, topic)) == list(range(COUNT))
    return None if is_complete else publisher


async def test_a_link_is_resumed_after_a_kill_at_some_frames(tmp_path: Path) -> None:
    broker, port = started(tmp_path)
    sent_again = 0
    with broker:
        for frames, mode in ((12, SECOND), (14, FIRST), (20, SECOND), (25, FIRST)):
            publisher = await kill_at(broker, port, frames, mode)
            assert publisher is not None
            sent_again += publisher.sent_again
    assert sent_again > 0


@pytest.mark.fault
@pytest.mark.parametrize("queues", [1, 3])
@pytest.mark.parametrize("mode", [FIRST, SECOND])
async def test_a_link_is_resumed_after_a_kill_at_any_frame(
    tmp_path: Path, mode: int, queues: int
) -> None:
    broker, port = started(tmp_path)
    sent_again = 0
    with broker:
        for frames in count(1):
            publisher = await kill_at(broker, port, frames, mode, queues)
            if publisher is None:
                break
            sent_again += publisher.sent_again
    assert frames > 20
    assert sent_again > 3
