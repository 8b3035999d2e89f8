"""What the endpoints are handed: the parts of the broker below them, and their own state."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from holdfast.consumequeue.config import TopicsConfig
from holdfast.consumequeue.damage_book import Fault
from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.topics import Topic
from holdfast.groups.config import GroupsConfig
from holdfast.groups.service import GroupService
from holdfast.holdservice.pull_request_hold_service import PullRequestHoldService
from holdfast.http_api.access.audit import AuditLog
from holdfast.http_api.access.door import Access
from holdfast.http_api.bodies import BodyReader
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.connections import Connections
from holdfast.http_api.metrics import Metrics
from holdfast.http_api.rate_limiter import RateLimiter

T = TypeVar("T")

#: As many as there are threads that read from the disk.
LARGE_REPLIES = 4
#: Large texts that are made into messages at once: 16 MiB may take 300 MiB as objects.
LARGE_TEXTS = 2


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """How the broker is. `read_only` says why nothing can be published, None when it can."""

    phase: str
    """recovering, ready, draining or stopped."""
    degraded: tuple[Fault, ...] = ()
    read_only: str | None = None
    alarms: Mapping[str, str] = field(default_factory=dict)
    """What stops publishing now, by name, until it passes by itself."""
    progress: Mapping[str, object] = field(default_factory=dict)
    """How far recovery has come."""


@dataclass(slots=True)
class ApiContext:
    """The broker as the API sees it. Belongs to one event loop.

    While `status` says "recovering" the store, the hold service and the groups are not touched,
    so they may be set later.
    """

    store: MessageStore
    hold: PullRequestHoldService
    groups: GroupService
    config: HttpConfig
    topics_config: TopicsConfig
    groups_config: GroupsConfig
    status: Callable[[], BrokerStatus]
    phase: Callable[[], str]
    """What `status` says of the phase: every request asks for that."""
    registry: CollectorRegistry
    version: str
    info: Callable[[], Mapping[str, object]]
    access: Access = field(default_factory=Access)
    audit: AuditLog | None = None
    metrics: Metrics = field(init=False)
    bodies: BodyReader = field(init=False)
    connections: Connections = field(init=False)
    rate_limiter: RateLimiter | None = field(init=False, default=None)
    """None when nobody's rate is limited."""
    large_replies: asyncio.Semaphore = field(init=False)
    """A turn each for the large replies that may be made at once."""
    openapi: bytes = field(init=False, default=b"")
    """This API's description."""
    large_texts: asyncio.Semaphore = field(init=False)
    """A turn each for the large texts that may be made into messages at once."""
    filter_reading: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    """Held by the one that reads a long filter, apart from the event loop."""
    _turns: dict[int, int] = field(init=False, default_factory=dict)
    _changes: set[asyncio.Task[Any]] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.metrics = Metrics(self.registry)
        self.bodies = BodyReader(self.config)
        self.connections = Connections(self.config)
        if self.config.max_requests_per_s_per_client or self.config.max_bytes_per_s_per_client:
            self.rate_limiter = RateLimiter(self.config)
        self.large_replies = asyncio.Semaphore(LARGE_REPLIES)
        self.large_texts = asyncio.Semaphore(LARGE_TEXTS)

    def next_turn(self, topic: Topic) -> int:
        """Return whose turn it is among a topic's queues, counted on for ever."""
        turn = self._turns.get(topic.topic_id, -1) + 1
        self._turns[topic.topic_id] = turn
        return turn

    def forget_topic(self, topic: Topic) -> None:
        """Drop what is kept for a topic that was deleted."""
        self._turns.pop(topic.topic_id, None)
        self.metrics.forget_topic(topic.name)

    async def to_the_end(self, change: Coroutine[Any, Any, T]) -> T:
        """Await a change that must not be cut in half when its client goes away.

        Cancelling lets go of the change, not of its end: `changes_done` waits for it.
        """
        task = asyncio.ensure_future(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_look_at)
            raise

    async def changes_done(self) -> None:
        """Wait for every change that is under way."""
        while self._changes:
            await asyncio.wait(self._changes)


def _look_at(task: asyncio.Task[Any]) -> None:
    """Take a failure that nobody is left to be told of."""
    if not task.cancelled():
        task.exception()
