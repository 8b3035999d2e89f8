"""What all endpoints share: the state of the HTTP server, and the parts of the broker."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
from prometheus_client import CollectorRegistry

from holdfast.consumequeue.config import TopicsConfig
from holdfast.consumequeue.damage.damage_book import Fault
from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.topics import Topic, is_own
from holdfast.groups.config import GroupsConfig
from holdfast.groups.service import GroupService
from holdfast.holdservice.pull_request_hold_service import PullRequestHoldService
from holdfast.http_api.access.audit import AuditLog
from holdfast.http_api.access.authorization import Access
from holdfast.http_api.access.browsers import CrossOrigin
from holdfast.http_api.access.grants import Principal
from holdfast.http_api.access.hosts import names_in
from holdfast.http_api.config import ConsoleConfig, HttpConfig
from holdfast.http_api.limits.rate_limiter import PublishLimiter, RateLimiter
from holdfast.http_api.limits.reply_slots import ClientPlaces, OneALoopTurn
from holdfast.http_api.metrics import Metrics
from holdfast.http_api.wire.body_reader import BodyReader
from holdfast.http_api.wire.connection_registry import Connections
from holdfast.http_api.wire.request import Peer

T = TypeVar("T")

AmqpFactory = Callable[[Principal | None, Peer], asyncio.Protocol]
"""Returns the protocol that serves AMQP to a client over a WebSocket.

The principal is None if the client has not been authenticated: it must authenticate with SASL.
"""

#: At most this many expensive requests run concurrently. These are requests that collect the state
#: of each queue of a topic with many queues, and requests that plan a read. Each uses at most about
#: 10 MB of memory, and a reader thread.
WIDE_AT_WORK = 2
#: At most this many searches by key run concurrently. Each uses max_pull_bytes of memory for
#: batches, and the memory of its reply.
SEARCHES_AT_WORK = 1
#: At most this many publishes with `mandatory` are compared with the filters of groups at once.
MANDATORY_AT_WORK = 2


class BrokerStatus(msgspec.Struct, frozen=True):
    """The broker's state at one moment."""

    phase: str
    """One of "recovering", "ready", "draining" and "stopped"."""
    degraded: tuple[Fault, ...] = ()
    """Known damage, and failed writes that the broker retries."""
    read_only: str | None = None
    """Why no message can be published until a restart; None if messages can be published."""
    alarms: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The name of each alarm -> why it stops publishing. An alarm ends when its cause is gone."""
    progress: Mapping[str, object] = msgspec.field(default_factory=dict)
    """The progress of the recovery."""


class BrokerFigures(msgspec.Struct, frozen=True):
    """Figures of parts of the broker that this package does not know."""

    free_bytes: int = 0
    """Free bytes of the log's disk."""
    total_bytes: int = 0
    min_free_bytes: int = 0
    log_bytes: int = 0
    bytes_per_day: int = 0
    """How much was written to the log lately."""
    sync_p99_s: float | None = None
    amqp_connections: int = 0


class AmqpUse(NamedTuple):
    """How many connections, sessions and links of AMQP each client has."""

    connections: Mapping[str, int] = {}
    sessions: Mapping[str, int] = {}
    links: Mapping[str, int] = {}


class AmqpSessions(Protocol):
    """Lists sessions of AMQP, with their links: those of a client, or of all clients if `client`
    is None, after a place (connection and channel), at most `limit`. Returns the sessions, as
    objects with the attributes of an AmqpSessionReply, and whether there are more."""

    def __call__(
        self, client: str | None, after: tuple[int, int], limit: int
    ) -> tuple[Sequence[object], bool]: ...


def _no_sessions(
    client: str | None, after: tuple[int, int], limit: int
) -> tuple[Sequence[object], bool]:
    return (), False


async def _no_figures() -> BrokerFigures:
    return BrokerFigures()


@dataclass(slots=True)
class HttpContext:
    """What a request needs before the storage is open. Belongs to one event loop."""

    config: HttpConfig
    status: Callable[[], BrokerStatus]
    registry: CollectorRegistry
    version: str
    info: Callable[[], Mapping[str, object]]
    phase: str = "recovering"
    """The phase of `status`. Every request reads it, so it is an attribute."""
    access: Access = field(default_factory=Access)
    audit: AuditLog | None = None
    console: ConsoleConfig = field(default_factory=ConsoleConfig)
    amqp: AmqpFactory | None = None
    """Serves AMQP over WebSockets; None if that is off."""
    figures: Callable[[], Awaitable[BrokerFigures]] = _no_figures
    """Returns figures of the storage and of AMQP. Called while the storage is open."""
    amqp_use: Callable[[], AmqpUse] = AmqpUse
    amqp_sessions: AmqpSessions = _no_sessions
    started_s: float = field(init=False, default_factory=monotonic)
    pages: CrossOrigin | None = field(init=False, default=None)
    """The origins whose web pages are admitted; None if none are listed."""
    metrics: Metrics = field(init=False)
    bodies: BodyReader = field(init=False)
    connections: Connections = field(init=False)
    rate_limiter: RateLimiter | None = field(init=False, default=None)
    """The request rates per client; None if no rate is limited."""
    openapi: Callable[[], bytes] = field(init=False, default=bytes)
    """Returns the OpenAPI document, as JSON. The first call takes about 15 ms."""
    certificate_expires_s: Callable[[], float | None] = field(init=False, default=lambda: None)
    """Returns when the broker's certificate expires, in seconds since 1970.

    Returns None without TLS, or if the certificate has no readable expiry time.
    """

    def uptime_s(self) -> float:
        """Return for how many seconds the broker has run."""
        return monotonic() - self.started_s

    def __post_init__(self) -> None:
        self.metrics = Metrics(self.registry)
        self.connections = Connections(self.config)
        origins = names_in(self.config.cors_origins)
        self.pages = CrossOrigin(origins) if origins else None
        self.bodies = BodyReader(self.config, self.connections.arriving)
        if self.config.max_requests_per_s_per_client or self.config.max_bytes_per_s_per_client:
            self.rate_limiter = RateLimiter(self.config)


@dataclass(slots=True)
class ApiContext:
    """The broker as the endpoints see it, once its storage is open. Belongs to one event loop."""

    http: HttpContext
    store: MessageStore
    hold: PullRequestHoldService
    groups: GroupService
    topics_config: TopicsConfig
    groups_config: GroupsConfig
    config: HttpConfig = field(init=False)
    publish_limiter: PublishLimiter = field(init=False)
    large_replies: asyncio.Semaphore = field(init=False)
    """A large reply must acquire this while it is encoded."""
    wide_polls: OneALoopTurn = field(init=False, default_factory=OneALoopTurn)
    """Admits one poll over many queues in each loop iteration."""
    wide_requests: ClientPlaces = field(
        init=False, default_factory=lambda: ClientPlaces(WIDE_AT_WORK)
    )
    """Limits requests that describe topics or groups with many queues, or that plan a read."""
    searches: ClientPlaces = field(
        init=False, default_factory=lambda: ClientPlaces(SEARCHES_AT_WORK)
    )
    mandatory_checks: ClientPlaces = field(
        init=False, default_factory=lambda: ClientPlaces(MANDATORY_AT_WORK)
    )
    """Limits publishes whose messages are being compared with the filters of groups."""
    large_texts: asyncio.Semaphore = field(init=False)
    """A publish with a large text body must acquire this while it is decoded into messages."""
    filter_reading: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    """Held while a thread parses a long filter."""
    stream_count: int = field(init=False, default=0)
    """The number of running event streams."""
    _round_robin: dict[int, int] = field(init=False, default_factory=dict)
    _changes: set[asyncio.Task[Any]] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.config = self.http.config
        self.publish_limiter = PublishLimiter(self.config)
        self.large_replies = asyncio.Semaphore(self.config.max_replies_at_work)
        self.large_texts = asyncio.Semaphore(self.config.max_texts_at_work)

    def next_round_robin(self, topic: Topic) -> int:
        """Return the next value of a topic's counter (0, 1, 2 ...), for a round robin of queues."""
        turn = self._round_robin.get(topic.topic_id, -1) + 1
        self._round_robin[topic.topic_id] = turn
        return turn

    def group_names(self) -> list[str]:
        """Return the names of all groups that users see, sorted: those with leases, and those that
        only store offsets."""
        names = {*self.store.table.groups(), *self.groups.groups()}
        return sorted([name for name in names if not is_own(name)])

    def forget_topic(self, topic: Topic) -> None:
        """Drop the counter and the metrics of a deleted topic."""
        self._round_robin.pop(topic.topic_id, None)
        self.http.metrics.forget_topic(topic.name)

    async def run_shielded(self, change: Coroutine[Any, Any, T]) -> T:
        """Run a change to its end even if its client disconnects, and return its result.

        If the caller is cancelled, only the waiting ends. The change continues, and
        `wait_for_changes` waits for it.
        """
        task = asyncio.ensure_future(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_retrieve_exception)
            raise

    async def wait_for_changes(self) -> None:
        """Wait until all changes that `run_shielded` has begun have ended."""
        while self._changes:
            await asyncio.wait(self._changes)


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Retrieve the task's exception, so that asyncio does not log it as "never retrieved"."""
    if not task.cancelled():
        task.exception()
