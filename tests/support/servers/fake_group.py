"""One group of a broker in memory, for tests of group clients. Its leases have no clock.

It implements the part of the API that consumers use, and delivers in offset order. A test can make
it return errors, lose replies or end leases.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from holdfast.client.async_client import AsyncClient
from holdfast.client.consume.delivery import DeliveredMessage
from holdfast.commitlog.format.message_id import format_message_id
from tests.support.servers.scripted_server import drop, problem, scripted_server

GROUP = "billing"
Place = tuple[str, int, int]


def delivered_message(offset: int = 5, key: str | None = "a", **fields: Any) -> DeliveredMessage:
    """Return a message as a group delivers it; other fields have defaults."""
    defaults: dict[str, Any] = {
        "topic": "t",
        "queue": 0,
        "message_id": format_message_id(1, fields.get("queue", 0), offset),
        "body": b"",
        "tag": None,
        "properties": {},
        "born_timestamp_ms": 1,
        "store_timestamp_ms": 2,
    }
    return DeliveredMessage(offset=offset, key=key, **{**defaults, **fields})


@dataclass
class FakeGroup:
    """The messages by topic, queue and offset, and the state of each."""

    mode: str = "competing"
    cost: str = "count"
    lease_ms: int = 30_000
    #: The end of every body.
    padding: bytes = b""
    exists: bool = True
    #: Whether the broker knows the field `settle` of a receive.
    knows_settle: bool = True
    #: The longest wait of a receive.
    max_wait_ms: int = 60_000
    url: str = ""
    bodies: dict[Place, tuple[bytes, str | None]] = field(default_factory=dict)
    available: list[Place] = field(default_factory=list)
    leased: dict[str, Place] = field(default_factory=dict)
    holders: dict[str, str] = field(default_factory=dict)
    acked: list[Place] = field(default_factory=list)
    #: The body of every answered request, with the last element of its path.
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    answers: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    #: Called with a request's name and body before the request is answered. A response that it
    #: returns is the answer; None means: answer as usual.
    before: Callable[[str, dict[str, Any]], Awaitable[web.StreamResponse | None]] | None = None
    #: The number of replies to lose, by request name.
    lose: dict[str, int] = field(default_factory=dict)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _receipts: int = 0

    def publish(self, count: int, topic: str = "t", queue: int = 0, key: str | None = None) -> None:
        start = sum(place[:2] == (topic, queue) for place in self.bodies)
        for offset in range(start, start + count):
            self.bodies[topic, queue, offset] = b"%d" % offset + self.padding, key
            self.available.append((topic, queue, offset))
        self._arrived.set()

    def named(self, name: str) -> list[dict[str, Any]]:
        """Return the bodies of all requests with this name."""
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
        answer = await self.reply_to(name, asked)
        if self.lose.get(name):
            self.lose[name] -= 1
            return drop(request)
        return answer

    async def reply_to(self, name: str, asked: dict[str, Any]) -> web.StreamResponse:
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

    async def _receive(self, asked: dict[str, Any]) -> web.StreamResponse:
        if "settle" in asked and not self.knows_settle:
            return problem(400, "invalid-parameter", parameter="settle")
        if asked["wait_ms"] > self.max_wait_ms:
            return problem(400, "limit-exceeded", parameter="wait_ms", limit=self.max_wait_ms)
        outcomes = [
            {"results": [{"status": self._settle(each["verb"], r)} for r in each["receipts"]]}
            for each in asked.get("settle", ())
        ]
        key = asked.get("attempt_id", "")
        if not self.answers.get(key):
            picked = self._pick(asked)
            if not picked and asked["wait_ms"]:
                with suppress(TimeoutError):
                    async with asyncio.timeout(asked["wait_ms"] / 1000):
                        while not picked:
                            self._arrived.clear()
                            await self._arrived.wait()
                            picked = self._pick(asked)
            self.answers[key] = [self._delivered(place, asked) for place in picked]
        reply = {
            "messages": self.answers[key],
            "available": len(self.available),
            "active": True,
            "outcomes": outcomes,
        }
        return web.Response(body=msgspec.msgpack.encode(reply), content_type="application/msgpack")

    def _pick(self, asked: dict[str, Any]) -> list[Place]:
        """Remove the messages for one receive request from the available ones, within its
        limits."""
        self.available.sort(key=lambda place: place[2])
        rooms = {
            (each["topic"], each.get("queue"), each.get("key")): each["max_messages"]
            for each in asked.get("limits", [])
        }
        picked: list[Place] = []
        left_bytes = asked.get("max_bytes", 1 << 60)
        for place in self.available:
            topic, queue, _ = place
            limited = [(topic, queue, None), (topic, None, self.bodies[place][1])]
            limited = [each for each in limited if each in rooms]
            if len(picked) < asked["max_messages"] and all(rooms[each] for each in limited):
                left_bytes -= len(self.bodies[place][0])
                if picked and left_bytes < 0:
                    break
                picked.append(place)
                for each in limited:
                    rooms[each] -= 1
        self.available = [place for place in self.available if place not in set(picked)]
        return picked

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
        """End all leases, as if another member now had the messages: the receipts are stale."""
        self.leased.clear()


@asynccontextmanager
async def fake_group(
    count: int = 0, queues: int = 1, **settings: Any
) -> AsyncIterator[tuple[FakeGroup, AsyncClient]]:
    """Serve a fake group with `count` messages per queue, and yield it with a client of it."""
    group = FakeGroup(**settings)
    for queue in range(queues):
        group.publish(count, queue=queue)
    async with scripted_server(group.answer) as server:
        group.url = server.url
        async with AsyncClient(server.url) as client:
            yield group, client


async def until(condition: Callable[[], Any]) -> None:
    """Wait until the condition is true, for 30 s at most."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)
