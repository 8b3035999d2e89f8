"""The HTTP API over a FakeStore, FakeGroups and the real hold service, on a free port."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import aiohttp
import msgspec
from prometheus_client import CollectorRegistry
from yarl import URL

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.consumequeue.config import TopicsConfig
from holdfast.groups.config import GroupsConfig
from holdfast.holdservice.config import HoldServiceConfig
from holdfast.holdservice.pull_request_hold_service import PullRequestHoldService
from holdfast.http_api.app import ApiContext, BrokerStatus, HttpContext, make_app
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.routing.openapi_fields import PROBLEM_MEMBERS
from holdfast.http_api.server import Server, start_server
from holdfast.http_api.wire.connection import Connection
from tests.support.aiohttp_connection import start_aiohttp_server
from tests.support.fake_groups import FakeGroups
from tests.support.fake_store import FakeStore


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

    store: FakeStore
    hold: PullRequestHoldService
    groups: FakeGroups
    context: ApiContext
    server: Server
    session: aiohttp.ClientSession
    status: BrokerStatus

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
    **settings: Any,
) -> AsyncIterator[Api]:
    """Serve the API, with aiohttp's server if `by_aiohttp`. `settings` are fields of HttpConfig."""
    store = FakeStore(topics)
    config = replace(HttpConfig(port=0), **settings)
    holder = PullRequestHoldService(
        hold or HoldServiceConfig(),
        max_offset=store.reading.max_offset,
        scan=store.reading.scan_hot,
    )
    store.arrived = holder.message_arriving
    store.topic_deleted = holder.topic_deleted
    groups = FakeGroups(store)
    http = HttpContext(
        config=config,
        status=lambda: api.status,
        phase=lambda: api.status.phase,
        registry=CollectorRegistry(),
        version="9.9.9",
        info=lambda: {"data_dir": "/nowhere"},
    )
    context = ApiContext(
        http=http,
        store=store.as_store(),
        hold=holder,
        groups=groups.as_service(),
        topics_config=store.config,
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
        api = Api(store, holder, groups, context, server, session, BrokerStatus("ready"))
        await holder.start()
        try:
            yield api
        finally:
            await server.stop()
            await holder.stop()
