"""The publishing part of a broker, in the test's event loop: stores batches in lists, with
faults."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from holdfast.commitlog.format.batch import iter_batches
from holdfast.commitlog.format.message_id import format_message_id
from tests.support.scripted_server import ScriptedServer, problem, scripted_server

TOPIC_ID = 9

#: Called with the number of the publish (from 1) and the request. A response that it returns is
#: sent instead of the result: by `refuse` before the batches are stored, by `lose_reply` after.
Fault = Callable[[int, web.Request], web.StreamResponse | None]


@dataclass
class StoredTopic:
    """The stored content: the bodies of each queue. A repeated sequence is stored once."""

    queue_count: int = 4
    max_message_bytes: int = 4 * 1024 * 1024
    queues: dict[int, list[bytes]] = field(default_factory=dict)
    offsets: dict[tuple[int, int, int], int] = field(default_factory=dict)
    #: The batches of each publish, including repeated batches.
    publishes: list[list[tuple[int, int]]] = field(default_factory=list)
    refuse: Fault = lambda number, request: None
    lose_reply: Fault = lambda number, request: None
    #: Publishes wait for this event before they are answered.
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    exists: bool = True
    auto_create_topics: bool = True

    def __post_init__(self) -> None:
        self.may_answer.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a description, a creation or a publish."""
        if request.path == "/v1/info":
            return web.json_response({"auto_create_topics": self.auto_create_topics})
        if request.method == "PUT":
            self.exists = True
        if request.method in ("GET", "PUT"):
            if not self.exists:
                return problem(404, "unknown-topic")
            return web.json_response(self._description())
        blocks = list(iter_batches(await request.read()))
        self.publishes.append([(block.header.queue_id, len(block)) for block in blocks])
        number = len(self.publishes)
        refusal = self.refuse(number, request)
        if refusal is not None:
            return refusal
        results = []
        for block in blocks:
            header = block.header
            stored = self.queues.setdefault(header.queue_id, [])
            place = (header.producer_id, header.queue_id, header.sequence)
            if place not in self.offsets:
                self.offsets[place] = len(stored)
                stored.extend(block.body(row) for row in range(len(block)))
            offset = self.offsets[place]
            results.append(
                {
                    "queue": header.queue_id,
                    "offset": offset,
                    "count": len(block),
                    "message_id": format_message_id(TOPIC_ID, header.queue_id, offset),
                }
            )
        await self.may_answer.wait()
        return self.lose_reply(number, request) or web.json_response(
            {"results": results, "durable": True}
        )

    def _description(self) -> dict[str, object]:
        return {
            "topic": "orders",
            "topic_id": TOPIC_ID,
            "queue_count": self.queue_count,
            "queues": [],
            "config": {"max_message_bytes": self.max_message_bytes},
        }


@asynccontextmanager
async def publish_server(topic: StoredTopic) -> AsyncIterator[ScriptedServer]:
    """Serve one topic until the block ends."""
    async with scripted_server(topic.answer) as server:
        yield server
