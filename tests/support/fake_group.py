"""One group of a broker, in memory, for tests of its clients: leases without a clock.

It speaks the wire of the real one as far as a consumer goes, delivers in order of offset, and
does as it is told when a test wants an error, a lost reply or a lease that has ended.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from holdfast.client.async_client import AsyncClient
from holdfast.commitlog.message_id import format_message_id
from tests.support.scripted_server import drop, problem, scripted_server

GROUP = "billing"
Place = tuple[str, int, int]


@dataclass
class FakeGroup:
    """The messages by topic, queue and offset, and what became of each."""

    mode: str = "competing"
    cost: str = "count"
    lease_ms: int = 30_000
    exists: bool = True
    url: str = ""
    bodies: dict[Place, tuple[bytes, str | None]] = field(default_factory=dict)
    available: list[Place] = field(default_factory=list)
    leased: dict[str, Place] = field(default_factory=dict)
    holders: dict[str, str] = field(default_factory=dict)
    acked: list[Place] = field(default_factory=list)
    #: The body of every request that was answered, by its last path element.
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    answers: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    #: Called with a request's name and body before it is answered; what it returns is the answer.
    before: Callable[[str, dict[str, Any]], Awaitable[web.StreamResponse | None]] | None = None
    #: Requests of a name whose replies get lost.
    lose: dict[str, int] = field(default_factory=dict)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _receipts: int = 0

    def publish(self, count: int, topic: str = "t", queue: int = 0, key: str | None = None) -> None:
        start = sum(place[:2] == (topic, queue) for place in self.bodies)
        for offset in range(start, start + count):
            self.bodies[topic, queue, offset] = b"%d" % offset, key
            self.available.append((topic, queue, offset))
        self._arrived.set()

    def named(self, name: str) -> list[dict[str, Any]]:
        """Return the bodies of all requests of a name."""
        return [body for asked, body in self.asked if asked == name]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        asked = msgspec.json.decode(body) if body else {}
        name = request.path.rsplit("/", 1)[-1]
        if name == GROUP:
            name = {"GET": "describe", "PUT": "put"}[request.method]
        self.asked.append((name, asked))
        if self.before is not None and (given := await self.before(name, asked)) is not None:
            return given
        answer = await self._answer(name, asked)
        if self.lose.get(name):
            self.lose[name] -= 1
            return drop(request)
        return answer

    async def _answer(self, name: str, asked: dict[str, Any]) -> web.StreamResponse:
        if name == "put":
            self.exists = True
            return web.json_response(self._described())
        if not self.exists:
            return problem(404, "unknown-group")
        if name == "describe":
            return web.json_response(self._described())
        if name == "receive":
            return await self._receive(asked)
        if name == "leave":
            for receipt in [r for r, holder in self.holders.items() if holder == asked["member"]]:
                self._give_back(receipt)
            return web.json_response({"group": GROUP, "member": asked["member"]})
        statuses = [{"status": self._settle(name, each)} for each in asked["receipts"]]
        return web.json_response({"results": statuses})

    def _described(self) -> dict[str, Any]:
        config = {"mode": self.mode, "lease_ms": self.lease_ms, "fairness": {"cost": self.cost}}
        return {"group": GROUP, "topics": [], "config": config}

    async def _receive(self, asked: dict[str, Any]) -> web.Response:
        key = asked.get("attempt_id", "")
        if key not in self.answers:
            if not self.available and asked["wait_ms"]:
                self._arrived.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._arrived.wait(), asked["wait_ms"] / 1000)
            self.available.sort(key=lambda place: place[2])
            picked = self.available[: asked["max_messages"]]
            del self.available[: len(picked)]
            self.answers[key] = [self._delivered(place, asked) for place in picked]
        reply = {
            "messages": self.answers[key],
            "available": len(self.available),
            "active": True,
        }
        return web.Response(body=msgspec.msgpack.encode(reply), content_type="application/msgpack")

    def _delivered(self, place: Place, asked: dict[str, Any]) -> dict[str, Any]:
        topic, queue, offset = place
        body, key = self.bodies[place]
        receipt = None
        if not asked.get("settled"):
            self._receipts += 1
            receipt = f"r{self._receipts}"
            self.leased[receipt] = place
            self.holders[receipt] = asked["member"]
        return {
            "topic": topic,
            "queue": queue,
            "offset": offset,
            "message_id": format_message_id(1, queue, offset),
            "key": key,
            "tag": None,
            "properties": {},
            "body": body,
            "born_timestamp_ms": 1,
            "store_timestamp_ms": 1,
            "receipt": receipt,
            "attempt": 1,
            "redelivered": False,
        }

    def _settle(self, verb: str, receipt: str) -> str:
        if receipt not in self.leased:
            return "done" if receipt in self.holders and verb == "ack" else "stale"
        if verb == "ack":
            self.acked.append(self.leased.pop(receipt))
        elif verb in ("nack", "release"):
            place = self.leased[receipt]
            self._give_back(receipt)
            if self.mode == "keyed":
                for other, later in list(self.leased.items()):
                    if later > place and self.bodies[later][1] == self.bodies[place][1]:
                        self._give_back(other)
        elif verb == "reject":
            del self.leased[receipt]
        return "done"

    def _give_back(self, receipt: str) -> None:
        place = self.leased.pop(receipt, None)
        if place is not None:
            self.available.append(place)
            self._arrived.set()

    def end_leases(self) -> None:
        """Make the messages that are leased another member's: their receipts are stale."""
        self.leased.clear()


@asynccontextmanager
async def fake_group(**settings: Any) -> AsyncIterator[tuple[FakeGroup, AsyncClient]]:
    """Serve a fake group, and give a client of it."""
    group = FakeGroup(**settings)
    async with scripted_server(group.answer) as server:
        group.url = server.url
        async with AsyncClient(server.url) as client:
            yield group, client
