"""The publishing part of a broker, in the test's event loop. It stores messages in lists."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from holdfast.client.async_client import AsyncClient
from holdfast.client.produce.producers import AsyncProducer
from holdfast.commitlog.format.batch import iter_batches
from holdfast.commitlog.format.message_id import format_message_id
from tests.support.servers.scripted_server import ScriptedServer, problem, scripted_server

TOPIC_ID = 9

#: Called with the number of the publish (from 1) and the request. A response that it returns is
#: sent instead of the result: by `refuse` before the messages are stored, by `lose_reply` after.
Fault = Callable[[int, web.Request], web.StreamResponse | None]


@dataclass
class StoredTopic:
    """The bodies of each queue (0 for single messages). A repeated sequence is stored once."""

    queue_count: int = 4
    max_message_bytes: int = 4 * 1024 * 1024
    queues: dict[int, list[bytes]] = field(default_factory=dict)
    #: The offset of each publish by producer, queue and sequence.
    offsets: dict[tuple[int, int, int], int] = field(default_factory=dict)
    #: The queues and bodies of each publish, including repeated and refused publishes.
    publishes: list[list[tuple[int, list[bytes]]]] = field(default_factory=list)
    refuse: Fault = lambda number, request: None
    lose_reply: Fault = lambda number, request: None
    #: Publishes wait for this event before they are answered. It is set from the start unless
    #: `holds`.
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    holds: bool = False
    exists: bool = True
    auto_create_topics: bool = True

    def __post_init__(self) -> None:
        if not self.holds:
            self.may_answer.set()

    @property
    def counts(self) -> list[list[tuple[int, int]]]:
        """The queues of each publish, each with its number of messages."""
        return [[(queue, len(bodies)) for queue, bodies in each] for each in self.publishes]

    @property
    def requests(self) -> list[list[bytes]]:
        """The bodies of each publish."""
        return [[body for _, bodies in each for body in bodies] for each in self.publishes]

    async def received(self, count: int) -> None:
        """Wait until `count` publishes have arrived."""
        async with asyncio.timeout(10):
            while len(self.publishes) < count:
                await asyncio.sleep(0.001)

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
        parts = await _parts_of(request)
        self.publishes.append([(queue, bodies) for _, queue, _, bodies in parts])
        number = len(self.publishes)
        await self.may_answer.wait()
        if (refusal := self.refuse(number, request)) is not None:
            return refusal
        is_single = request.content_type == "application/msgpack"
        results = []
        for producer, queue, sequence, bodies in parts:
            stored = self.queues.setdefault(queue, [])
            if (producer, queue, sequence) not in self.offsets:
                self.offsets[producer, queue, sequence] = len(stored)
                stored.extend(bodies)
            first = self.offsets[producer, queue, sequence]
            results += [
                {
                    "queue": queue,
                    "offset": offset,
                    "message_id": format_message_id(TOPIC_ID, queue, offset),
                }
                for offset in range(first, first + (len(bodies) if is_single else 1))
            ]
        durable = request.query.get("durability") != "written"
        return self.lose_reply(number, request) or web.json_response(
            {"results": results, "durable": durable}
        )

    def _description(self) -> dict[str, object]:
        return {
            "topic": "orders",
            "topic_id": TOPIC_ID,
            "queue_count": self.queue_count,
            "queues": [],
            "config": {"max_message_bytes": self.max_message_bytes},
        }


async def _parts_of(request: web.Request) -> list[tuple[int, int, int, list[bytes]]]:
    """Return the producer, queue, sequence and bodies of each batch, or of all single messages."""
    body = await request.read()
    if request.content_type == "application/msgpack":
        bodies = [message["body"] for message in msgspec.msgpack.decode(body)["messages"]]
        producer = int(request.headers["Holdfast-Producer-Id"])
        return [(producer, 0, int(request.headers["Holdfast-Producer-Sequence"]), bodies)]
    return [
        (
            block.header.producer_id,
            block.header.queue_id,
            block.header.sequence,
            [block.body(row) for row in range(len(block))],
        )
        for block in iter_batches(body)
    ]


@asynccontextmanager
async def publish_server(
    topic: StoredTopic, **options: Any
) -> AsyncIterator[tuple[ScriptedServer, AsyncClient]]:
    """Serve one topic until the block ends, and yield the server with a client of it."""
    async with (
        scripted_server(topic.answer) as server,
        AsyncClient(server.url, **options) as client,
    ):
        yield server, client


@asynccontextmanager
async def producing(topic: StoredTopic, **options: Any) -> AsyncIterator[AsyncProducer]:
    """Serve one topic, and yield a producer to it with these options."""
    async with (
        publish_server(topic) as (_, client),
        client.producer("orders", **options) as producer,
    ):
        yield producer
