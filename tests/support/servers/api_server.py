"""The HTTP API on a free port, over a real storage in memory, the hold service and groups."""

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, cast

import aiohttp
import msgspec
from prometheus_client import CollectorRegistry
from yarl import URL

from holdfast.commitlog.ageing_clock import wall_clock_us
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import Rows, as_batch, encode_batch
from holdfast.config import Config
from holdfast.consumequeue.config import TopicsConfig
from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.publishing import BegunPublish
from holdfast.consumequeue.topics import QueueKey, Topic
from holdfast.groups.config import GroupsConfig
from holdfast.holdservice.config import HoldServiceConfig
from holdfast.holdservice.pull_request_hold_service import PullRequestHoldService
from holdfast.http_api.app import ApiContext, BrokerStatus, HttpContext, make_app
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.routing.openapi_fields import PROBLEM_MEMBERS
from holdfast.http_api.server import Server, start_server
from holdfast.http_api.wire.connection import Connection
from holdfast.storage.storage import Storage
from tests.support.servers.aiohttp_connection import start_aiohttp_server
from tests.support.servers.recorded_groups import RecordedGroups
from tests.support.storage.memory_folder import MemoryDisk, folder_in_memory
from tests.support.storage.stored import MIB, forget_newest_blocks, open_storage, small_config


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole reply."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def problem(self) -> str:
        """Check that the reply is a valid problem, and return its slug."""
        assert self.headers["Content-Type"] == "application/problem+json", self.body
        problem = self.json()
        assert problem["status"] == self.status
        assert problem["title"]
        assert problem["detail"]
        unknown = problem.keys() - PROBLEM_MEMBERS.keys() - {"type", "title", "status", "detail"}
        assert not unknown, f"not in the OpenAPI document: {unknown}"
        return str(problem["type"]).removeprefix("/problems/")


@dataclass(slots=True)
class Api:
    """A running API and a client for it."""

    storage: Storage
    hold: PullRequestHoldService
    groups: RecordedGroups
    context: ApiContext
    server: Server
    session: aiohttp.ClientSession
    _status: BrokerStatus
    publishes: list[tuple[str, list[Batch], str | None]] = field(default_factory=list)
    """The stored publishes: topic, batches, and the requested durability."""
    publish_gate: asyncio.Event | None = None
    """If set, publishes are stored at once but acknowledged only after this event is set."""

    @property
    def status(self) -> BrokerStatus:
        return self._status

    @status.setter
    def status(self, status: BrokerStatus) -> None:
        self._status, self.context.http.phase = status, status.phase

    @property
    def store(self) -> MessageStore:
        return self.storage.store

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    @property
    def connections(self) -> list[Connection]:
        """The broker's open connections."""
        return cast("list[Connection]", list(self.context.http.connections.open))

    async def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> Answer:
        """Send a request with `path` unchanged. `Content_Type="..."` sets the header
        Content-Type."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.request(
            method, URL(self.url + path, encoded=True), data=body, headers=named
        ) as response:
            return Answer(response.status, response.headers, await response.read())

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.ask("GET", path, None, **headers)

    async def send_json(self, method: str, path: str, value: object, **headers: str) -> Answer:
        body = msgspec.json.encode(value)
        return await self.ask(method, path, body, Content_Type="application/json", **headers)

    async def publish(self, topic: str, *messages: Mapping[str, object], query: str = "") -> Answer:
        """Publish messages as JSON."""
        path = f"/v1/topics/{topic}/messages{query}"
        return await self.send_json("POST", path, {"messages": list(messages)})

    async def fill(self, size: int, count: int = 1) -> None:
        """Put `count` messages of `size` bytes into queue 0 of "orders", directly in the store.

        Publishing over HTTP could miss the deadline on a slow machine if a test sets short
        deadlines.
        """
        topic, _ = await self.store.topics.create("orders")
        block = encode_batch([b"x" * size], queue_id=0)
        for _ in range(count):
            await self.store.publishing.publish(topic, [Batch.decode(block)])

    def damage(self, queue: int, offset: int) -> None:
        """Change the last byte of the stored batch of "orders" that begins at this offset."""
        forget_newest_blocks(self.storage)
        key = (self.store.table.get("orders").topic_id, queue)
        entries = self.storage.opened.queues[key].entries
        (unit,) = (each for each in entries if each.base_offset == offset)
        segment = self.storage.log.segment_at(unit.physical_offset)
        assert segment is not None
        with segment.path.open("r+b") as file:
            file.seek(unit.physical_offset - segment.start_offset + unit.size - 1)
            last = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([last[0] ^ 1]))

    def trim(self, queue: int, min_offset: int) -> None:
        """Trim a queue of "orders" as retention does: delete messages below `min_offset`."""
        cq = self.storage.opened.queues[self.store.table.get("orders").topic_id, queue]
        cq.trim_queue(min_offset, cq.min_bytes)

    async def held_pull(self, path: str, **headers: str) -> "asyncio.Task[Answer]":
        """Start a pull, and return when it is held. No other pull may be held."""
        pull = asyncio.create_task(self.get(path, **headers))
        await self.held(1)
        return pull

    async def held(self, count: int) -> None:
        """Wait until exactly `count` pulls are held."""
        async with asyncio.timeout(10):
            while self.hold.stats().held != count:
                await asyncio.sleep(0)


@asynccontextmanager
async def running_api(
    *,
    topics: TopicsConfig | None = None,
    hold: HoldServiceConfig | None = None,
    limits: GroupsConfig | None = None,
    by_aiohttp: bool = False,
    orders: int = 0,
    **settings: Any,
) -> AsyncIterator[Api]:
    """Serve the API, with aiohttp's server if `by_aiohttp`. `settings` are fields of HttpConfig.

    If `orders` is not 0, there is a topic "orders" with this number of queues.
    """
    config = replace(HttpConfig(port=0), **settings)
    with tempfile.TemporaryDirectory(dir=folder_in_memory(64 * MIB)) as folder:
        async with open_storage(
            _storage_config(Path(folder), topics),
            arrived=lambda advanced: arrived(advanced),
            disk=MemoryDisk(),
        ) as storage:
            store = storage.store
            holder = PullRequestHoldService(
                hold or HoldServiceConfig(),
                max_offset=store.reading.max_offset,
                scan=store.reading.scan_hot,
            )
            store.topics.deleted_listeners.append(holder.topic_deleted)
            groups = RecordedGroups(
                store,
                storage.groups,
                limits or GroupsConfig(),
                hold=holder,
                ageing_us=storage.ageing.now_us,
                wall_us=wall_clock_us,
                passed_s=time.monotonic,
            )
            store.topics.check_new_queues = groups.registry.check_new_queues
            store.topics.created = groups.changes.topic_created
            store.topics.deleted_listeners.append(groups.registry.topic_deleted)
            await groups.start()

            def arrived(advanced: dict[QueueKey, int]) -> None:
                holder.message_arriving(advanced)
                groups.queue_changes.note(advanced)

            http = HttpContext(
                config=config,
                status=lambda: api.status,
                phase="ready",
                registry=CollectorRegistry(),
                version="9.9.9",
                info=lambda: {"data_dir": "/nowhere"},
            )
            context = ApiContext(
                http=http,
                store=store,
                hold=holder,
                groups=groups,
                topics_config=topics or TopicsConfig(),
                groups_config=limits or GroupsConfig(),
            )
            app = make_app(http)
            app.serve(context)
            server: Any  # both servers have the attributes that tests use
            if by_aiohttp:
                server = await start_aiohttp_server(app, config)
            else:
                server = await start_server(app, config)
            async with aiohttp.ClientSession(skip_auto_headers=["Content-Type"]) as session:
                status = BrokerStatus("ready")
                api = Api(storage, holder, groups, context, server, session, status)
                _record_publishes(api)
                if orders:
                    await store.topics.create("orders", queues=orders)
                await holder.start(groups.scan)
                try:
                    yield api
                finally:
                    await server.stop()
                    await holder.stop()
                    await groups.stop()


def raising(error: Exception) -> Callable[..., Awaitable[NoReturn]]:
    """Return a coroutine function that raises an error, to replace a method of the store."""

    async def fail(*args: object, **more: object) -> NoReturn:
        raise error

    return fail


def _storage_config(folder: Path, topics: TopicsConfig | None) -> Config:
    config = small_config(folder, segment_bytes=64 * MIB)
    queues = replace(
        config.consumequeue,
        tail_entries=10_000,  # `damage` finds the entries in memory
        max_read_leases=3,
        max_leased_queues=100,
    )
    return replace(config, consumequeue=queues, topics=topics or TopicsConfig())


def raising_at_once(error: Exception) -> Callable[..., NoReturn]:
    """Return a function that raises an error, to replace a method of the store."""

    def fail(*args: object, **more: object) -> NoReturn:
        raise error

    return fail


def _record_publishes(api: Api) -> None:
    begin, loop = api.store.publishing.begin, asyncio.get_running_loop()

    def recorded(
        topic: Topic, batches: Sequence[Batch | Rows], *, durability: str | None = None, **more: Any
    ) -> BegunPublish:
        stored = [as_batch(each) if isinstance(each, Rows) else each for each in batches]
        begun = begin(topic, batches, durability=durability, **more)
        gated: asyncio.Future[None] = loop.create_future()
        acknowledging = loop.create_task(
            acknowledge(begun.future, gated, topic, stored, durability)
        )
        gated.add_done_callback(lambda _: acknowledging.cancel())
        return msgspec.structs.replace(begun, future=gated)

    async def acknowledge(
        ended: asyncio.Future[None],
        gated: asyncio.Future[None],
        topic: Topic,
        stored: list[Batch],
        durability: str | None,
    ) -> None:
        try:
            await ended
        except Exception as error:
            gated.set_exception(error)
            return
        api.publishes.append((topic.name, stored, durability))
        if api.publish_gate is not None:
            await api.publish_gate.wait()
        gated.set_result(None)

    api.store.publishing.begin = recorded  # type: ignore[method-assign]
