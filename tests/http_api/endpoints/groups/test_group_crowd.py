"""Two thousand receives wait on one group: one message wakes one of them."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.histories.crowd import files_that_may_be_open
from tests.support.servers.group_api import GroupApi, bodies, serving_groups

MEMBERS = 2_000

Waiting = set["asyncio.Task[Any]"]


@asynccontextmanager
async def crowd(tmp_path: Path, **settings: Any) -> AsyncIterator[GroupApi]:
    """Run a topic of four queues and a group on it, for thousands of waiting receives.

    No wake-up may be lost: at the end the scan must have found nothing.
    """
    if files_that_may_be_open() < 3 * MEMBERS:
        pytest.skip(f"{MEMBERS} connections need more open files than the hard limit allows")
    async with serving_groups(tmp_path / "data") as api:
        await api.topic(queues=4)
        await api.group(member_ttl_ms=600_000, **settings)
        yield api
        assert await api.metric("holdfast_scan_rescues_total") == 0


async def all_wait(api: GroupApi, members: int = MEMBERS) -> Waiting:
    waiting = {api.waiting(f"m{number}", max_messages=1) for number in range(members)}
    await api.held(members, within_s=60)
    return waiting


async def next_ones(waiting: Waiting, count: int) -> list[Any]:
    """Wait for `count` answers, remove them from `waiting`, and return them."""
    replies: list[Any] = []
    async with asyncio.timeout(30):
        while len(replies) < count:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            waiting -= done
            replies += [each.result() for each in done]
    return replies


def one_each(replies: Iterable[Any]) -> list[str]:
    assert all(len(reply["messages"]) == 1 for reply in replies)
    return sorted(body for reply in replies for body in bodies(reply))


@pytest.mark.parametrize("mode", ["competing", "keyed"])
async def test_one_message_wakes_one_member_of_two_thousand(tmp_path: Path, mode: str) -> None:
    # L25, I13
    async with crowd(tmp_path, mode=mode, max_in_flight=MEMBERS) as api:
        waiting = await all_wait(api)
        for number in range(20):
            await api.publish(f"{number}", queue=number % 4, key=f"{number}")
            (reply,) = await next_ones(waiting, 1)
            assert bodies(reply) == [f"{number}"]
            assert await api.metric("holdfast_group_waiting") == len(waiting)
        # Publish the remaining messages at once: each member gets exactly one, and none is left.
        rest = [f"{number}" for number in range(20, MEMBERS)]
        for queue in range(4):
            batch = [{"body": body, "queue": queue, "key": body} for body in rest[queue::4]]
            await api.ask("POST", "/v1/topics/orders/messages", {"messages": batch})
        assert one_each(await next_ones(waiting, MEMBERS - 20)) == sorted(rest)
        described = await api.describe()
        assert (described["in_flight"], described["available"]) == (MEMBERS, 0)
