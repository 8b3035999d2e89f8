"""Groups with leases over HTTP, with a real broker in this process, including log, cursors and
disk."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import aiohttp

from holdfast.broker import Broker
from holdfast.config import load_config


class GroupApi:
    """A client of one broker. By default it uses the group "g" and the topic "orders".

    A status other than 200 or 201 fails the test, except in `refused`.
    """

    def __init__(
        self, broker: Broker, session: aiohttp.ClientSession, skip: Callable[[float], None]
    ) -> None:
        self.broker = broker
        self.session = session
        self._skip = skip

    def later(self, seconds: float) -> None:
        """Advance the time for messages, leases and delays, and let every group process it."""
        self._skip(seconds)
        assert self.broker._groups is not None
        for group in self.broker._groups.registry.by_name.values():
            group.process_deadlines()

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        async with self.session.request(method, path, json=body) as response:
            assert response.status in (200, 201), await response.text()
            return await response.json()

    async def refused(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        """Return the status and the problem of a refused request."""
        async with self.session.request(method, path, json=body) as response:
            problem = await response.json(content_type="application/problem+json")
            return response.status, problem["type"].removeprefix("/problems/")

    async def topic(self, name: str = "orders", queues: int = 1, **more: object) -> None:
        await self.ask("PUT", f"/v1/topics/{name}", {"queues": queues, **more})

    async def group(self, name: str = "g", topics: object = None, **settings: object) -> Any:
        topics = {"orders": {}} if topics is None else topics
        return await self.ask("PUT", f"/v1/groups/{name}", {"topics": topics, **settings})

    async def publish(
        self, *bodies: str, topic: str = "orders", queue: int = 0, **more: Any
    ) -> Any:
        messages = [{"body": body, "queue": queue, **more} for body in bodies]
        return await self.ask("POST", f"/v1/topics/{topic}/messages", {"messages": messages})

    async def receive(self, member: str = "m", group: str = "g", **more: Any) -> Any:
        body = {"member": member, **more}
        return await self.ask("POST", f"/v1/groups/{group}/receive", body)

    def waiting(self, member: str = "m", **more: Any) -> "asyncio.Task[Any]":
        """Start a receive in a task, with `wait_ms` of a minute by default. `held` waits until it
        is held."""
        return asyncio.create_task(self.receive(member, **{"wait_ms": 60_000, **more}))

    async def wait_to_receive(self, member: str = "m", **more: Any) -> "asyncio.Task[Any]":
        """Start a receive that waits for a minute by default, and return its task when the broker
        holds the receive."""
        count = await self.metric("holdfast_group_waiting")
        task = self.waiting(member, **more)
        await self.held(int(count) + 1)
        return task

    async def held(self, count: int, within_s: float = 10.0) -> None:
        """Wait until exactly `count` receives are held."""
        await until(lambda: self._held(count), within_s)

    async def _held(self, count: int) -> bool:
        return await self.metric("holdfast_group_waiting") == count

    async def settle(self, verb: str, *what: Any, group: str = "g", **more: Any) -> list[str]:
        """Settle receipts, messages, or all messages of replies; return the statuses."""
        receipts = [receipt for each in what for receipt in _receipts(each)]
        body = {"receipts": receipts, **more}
        reply = await self.ask("POST", f"/v1/groups/{group}/{verb}", body)
        return [each["status"] for each in reply["results"]]

    async def describe(self, group: str = "g") -> Any:
        return await self.ask("GET", f"/v1/groups/{group}")

    async def queue(self, queue: int = 0, topic: int = 0, group: str = "g") -> Any:
        """Return the progress of a group in one queue."""
        return (await self.describe(group))["topics"][topic]["queues"][queue]

    async def metric(self, name: str) -> float:
        async with self.session.get("/metrics") as response:
            for line in (await response.text()).splitlines():
                if line.startswith(f"{name} "):
                    return float(line.rpartition(" ")[2])
        raise AssertionError(f"there is no {name}")


def bodies(reply: Any) -> list[str]:
    """Return the bodies of a reply's messages."""
    return [each["body"] for each in reply["messages"]]


async def until(condition: Callable[[], Awaitable[bool]], within_s: float = 10.0) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(within_s):
        while not await condition():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def serving_groups(
    data_dir: Path, flags: dict[str, str] | None = None
) -> AsyncIterator[GroupApi]:
    """Run a broker on a directory until the block ends."""
    told = {"data_dir": str(data_dir), "http_api.port": "0", "commitlog.segment_bytes": "1MiB"}
    config = load_config(file=None, environ={}, flags={**told, **(flags or {})})
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(90)  # longer than any receive waits
    with _time_to_skip() as skip:
        async with (
            Broker(config) as broker,
            aiohttp.ClientSession(broker.url, timeout=timeout, connector=connector) as session,
        ):
            yield GroupApi(broker, session, skip)


@contextmanager
def _time_to_skip() -> Iterator[Callable[[float], None]]:
    """Let the wall clock and the clock of elapsed time run ahead by the sum of the skipped seconds.

    Both clocks do so when a machine wakes from sleep. The clock of the event loop is not changed.
    """
    skipped_s = 0.0
    wall_ns, read_s = time.time_ns, time.clock_gettime

    def skip(seconds: float) -> None:
        nonlocal skipped_s
        skipped_s += seconds

    def now_ns() -> int:
        return wall_ns() + round(skipped_s * 1e9)

    with (
        patch.object(time, "time_ns", now_ns),
        patch("holdfast.http_api.endpoints.publish.time_ns", now_ns),
        patch.object(time, "clock_gettime", lambda clock: read_s(clock) + skipped_s),
    ):
        yield skip


def _receipts(what: Any) -> list[str]:
    if isinstance(what, str):
        return [what]
    return [each["receipt"] for each in what.get("messages", [what])]
