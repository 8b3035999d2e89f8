"""The broker, which connects all parts. Only this file imports all packages.

Start: lock the directory, listen (all requests except health checks get 503), recover, serve. Stop
is the reverse: answer held pulls, end requests, close the log.
"""

import asyncio
import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Self

import lmdb
from prometheus_client import CollectorRegistry

from holdfast import __version__
from holdfast.amqp.connections import AmqpConnections
from holdfast.amqp.listener import AmqpServer
from holdfast.amqp.metrics import AmqpCollector
from holdfast.amqp.nodes.envelope_fields import read_fields
from holdfast.amqp.nodes.node import BrokerParts
from holdfast.amqp.nodes.temporary import TemporaryNodes
from holdfast.amqp.session_list import list_sessions
from holdfast.commitlog.ageing_clock import wall_clock_us
from holdfast.config import Config, changed_keys
from holdfast.consumequeue.damage.damage_book import Fault
from holdfast.consumequeue.errors import StateUnavailable
from holdfast.consumequeue.publishing import ArrivalListener
from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.service import GroupService
from holdfast.holdservice.envelope_columns import set_reader
from holdfast.holdservice.pull_request_hold_service import PullRequestHoldService
from holdfast.http_api.access.service import AccessService
from holdfast.http_api.app import (
    AmqpUse,
    ApiContext,
    App,
    BrokerFigures,
    BrokerStatus,
    HttpContext,
    make_app,
)
from holdfast.http_api.inner_requests import answer_inner
from holdfast.http_api.server import Server, start_server
from holdfast.http_api.wire.tls import TlsUnusable
from holdfast.storage.figures import bytes_per_day, upper_quantile
from holdfast.storage.storage import Storage, StorageEvents
from holdfast.storage.storage_metrics import StorageCollector

_logger = logging.getLogger(__name__)


class StorageUnusable(Exception):
    """A disk error on the index, the state or the groups while they were opened."""


class Broker:
    """One broker with one data directory, also an async context manager. Await `start` and `stop`
    on the same event loop. Both may be called twice."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._http: HttpContext | None = None
        self._storage: Storage | None = None
        self._hold: PullRequestHoldService | None = None
        self._groups: GroupService | None = None
        self._server: Server | None = None
        self._access: AccessService | None = None
        self._amqp: AmqpServer | None = None
        self.any_amqp_port = False
        """Whether to listen for AMQP on any free port, also over TLS if there is a certificate.
        Tests set this before `start`."""
        self._arrival_listeners: list[ArrivalListener] = []
        self.failed: asyncio.Future[Exception] | None = None
        """A future that `start` creates. It completes with the error when a part has failed and
        only a restart of the broker helps."""

    @property
    def url(self) -> str:
        """The URL that the broker serves; only while it is started."""
        assert self._server is not None
        host = f"[{self._server.host}]" if ":" in self._server.host else self._server.host
        return f"{self._server.scheme}://{host}:{self._server.port}"

    @property
    def amqp_port(self) -> int | None:
        """The port for AMQP over TCP; None if the broker does not listen there."""
        return None if self._amqp is None else self._amqp.port

    @property
    def amqp_tls_port(self) -> int | None:
        """The port for AMQP over TLS; None if the broker does not listen there."""
        return None if self._amqp is None else self._amqp.tls_port

    @property
    def status(self) -> BrokerStatus:
        http, storage = self._http, self._storage
        phase = "stopped" if http is None else http.phase
        if storage is None:
            return BrokerStatus(phase)
        progress = storage.progress
        token_fault = self._access.fault if self._access is not None else None
        return BrokerStatus(
            phase,
            (
                *storage.degraded,
                *([Fault("tokens-unreadable", token_fault)] if token_fault else ()),
            ),
            storage.read_only,
            storage.raised_alarms,
            {
                "step": progress.step,
                "done_bytes": progress.done_bytes,
                "total_bytes": progress.total_bytes,
            },
        )

    async def start(self) -> None:
        """Recover and serve; return once the broker answers requests.

        Raise DataDirInUse, NotADataDir, UnknownFormatVersion, RemoteWithoutAccess,
        RemoteWithoutTls, TlsUnusable, StorageUnusable, or OSError (a port in use, a directory that
        is not writable). After an error nothing is left running.
        """
        if self._http is not None:
            return
        self.failed = asyncio.get_running_loop().create_future()
        registry = CollectorRegistry()
        collector = StorageCollector()
        registry.register(collector)
        storage = self._storage = Storage(
            self._config,
            StorageEvents(
                on_failure=self._on_failure,
                arrival_listeners=self._arrival_listeners,
                on_sync=collector.syncs.observe,
                on_trim=self._trimmed,
            ),
        )
        access = self._access = AccessService(self._config.access, self._config.data_dir)
        http = self._http = HttpContext(
            config=self._config.http_api,
            status=lambda: self.status,
            registry=registry,
            version=__version__,
            info=self._info,
            access=access.access,
            audit=access.audit,
            console=self._config.console,
            figures=partial(self._figures, collector),
            amqp_use=self._amqp_use,
            amqp_sessions=self._amqp_sessions,
        )
        try:
            await self._check_address(access)
            storage.lock()
            await access.start()
            self._audit("broker.start", version=__version__, config=changed_keys(self._config))
            app = make_app(http)
            self._server = await start_server(app, self._config.http_api)
            amqp = self._amqp = await self._bind_amqp(access, http, self._server)
            context = await self._open(storage, http)
            app.serve(context)
            set_reader(read_fields)
            await amqp.serve(self._amqp_parts(context, app, amqp.connections))
            if self._config.amqp.websocket:
                http.amqp = amqp.accept_websocket
            collector.storage = storage
        except BaseException:
            await self.stop()
            raise
        http.phase = "ready"

    async def _check_address(self, access: AccessService) -> None:
        http_api = self._config.http_api
        await access.check_address(
            http_api.host,
            is_encrypted=bool(http_api.tls_certificate),
            asks_for_certificates=bool(http_api.tls_client_ca)
            and http_api.tls_client_certificates == "required",
        )

    async def _bind_amqp(
        self, access: AccessService, http: HttpContext, server: Server
    ) -> AmqpServer:
        """Bind the ports for AMQP. Connections are accepted later, by `serve`."""
        config = self._config.amqp
        amqp = AmqpServer(
            AmqpConnections(
                config,
                access.access,
                audit=access.audit,
                arriving=http.connections.arriving,
                unsent=http.connections.unsent,
                version=__version__,
            )
        )
        http.registry.register(AmqpCollector(amqp.connections.figures))
        if config.port or self.any_amqp_port:
            await access.check_login_address(config.host, is_encrypted=False)
            await amqp.bind(config.host, config.port)
        if config.tls_port or (self.any_amqp_port and server.tls is not None):
            if server.tls is None:
                raise TlsUnusable("nothing", "amqp.tls_port is given without tls_certificate")
            http_api = self._config.http_api
            await access.check_login_address(
                config.host,
                is_encrypted=True,
                asks_for_certificates=bool(http_api.tls_client_ca)
                and http_api.tls_client_certificates == "required",
            )
            await amqp.bind_tls(config.host, config.tls_port, server.tls)
        return amqp

    def _amqp_parts(
        self, context: ApiContext, app: App, connections: AmqpConnections
    ) -> BrokerParts:
        return BrokerParts(
            config=self._config.amqp,
            store=context.store,
            groups=context.groups,
            hold=context.hold,
            access=context.http.access,
            topics_config=context.topics_config,
            groups_config=context.groups_config,
            publish_limiter=context.publish_limiter,
            topic_counters=context.http.metrics.topic,
            wall_us=wall_clock_us,
            answer=partial(answer_inner, app),
            temporary=TemporaryNodes(context.store, context.groups, self._config.amqp),
            modified=connections.modified,
            credit_granted=connections.counters.count_grant,
        )

    async def _open(self, storage: Storage, http: HttpContext) -> ApiContext:
        """Recover the storage, and start the parts that need it. Return them for the endpoints."""
        try:
            store = await storage.open()
        except (lmdb.Error, StateUnavailable) as error:
            raise StorageUnusable(str(error)) from error
        hold = self._hold = PullRequestHoldService(
            self._config.holdservice,
            max_offset=store.reading.max_offset,
            scan=store.reading.scan_hot,
            observe_scan=http.metrics.scan_seconds.observe,
        )
        self._arrival_listeners.append(hold.message_arriving)
        store.topics.deleted_listeners.append(hold.topic_deleted)
        groups = self._groups = GroupService(
            store,
            storage.groups,
            self._config.groups,
            hold=hold,
            ageing_us=storage.ageing.now_us,
            wall_us=wall_clock_us,
            passed_s=partial(time.clock_gettime, time.CLOCK_BOOTTIME),
            may_subscribe=http.access.may_subscribe,
        )
        groups.auto_delete.on_deleted = lambda name, after_ms: self._audit(
            "group.delete", group=name, auto_delete_after_ms=after_ms
        )
        self._arrival_listeners.append(groups.queue_changes.note)
        store.topics.deleted_listeners.append(groups.registry.topic_deleted)
        store.topics.check_new_queues = groups.registry.check_new_queues
        store.topics.created = groups.changes.topic_created
        await groups.start()
        await hold.start(groups.scan)
        return ApiContext(
            http=http,
            store=store,
            hold=hold,
            groups=groups,
            topics_config=self._config.topics,
            groups_config=self._config.groups,
        )

    async def reload(self) -> None:
        """Reload the TLS files and the access tokens now. Do nothing unless the server runs. The
        regular checks for changed files continue."""
        if self._server is None or self._access is None:
            return
        await self._server.reload()
        await self._access.reload()
        _logger.info("reloaded the TLS files and the access tokens")

    async def stop(self) -> None:
        """Answer every held pull, finish the requests in progress, close the log."""
        http = self._http
        if http is None:
            return
        if http.phase == "ready":  # otherwise no pull is held, and not all parts exist
            http.phase = "draining"
        if self._hold is not None:
            await self._hold.stop()
        if self._groups is not None:
            self._groups.drain()
        if self._amqp is not None:
            await self._amqp.stop(self._config.http_api.shutdown_timeout_ms / 1000)
            self._amqp = None
        if self._server is not None:
            await self._server.stop()
        if self._groups is not None:
            await self._groups.stop()
            self._groups = None
        self._arrival_listeners.clear()
        if self._storage is not None:
            await self._storage.close()
        if self._access is not None:
            self._audit("broker.stop")
            await self._access.stop()
        self._http = self._storage = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def gone_count(self) -> int:
        """Return how many groups, and queues of groups, were removed since the start. Any thread
        may call this."""
        groups = self._groups
        return 0 if groups is None else groups.gone_count

    # -- callbacks of the parts ------------------------------------------------------------

    def _on_failure(self, error: Exception) -> None:
        """Handle the error of a part, in the thread of that part."""
        assert self.failed is not None
        try:
            self.failed.get_loop().call_soon_threadsafe(self._fail, error)
        except RuntimeError:
            _logger.warning("a part failed after the event loop had ended: %s", error)

    def _trimmed(self, begins: Mapping[QueueKey, int]) -> None:
        if self._groups is not None:
            self._groups.queue_changes.note(begins)

    def _fail(self, error: Exception) -> None:
        assert self.failed is not None
        if self._storage is not None and self._storage.read_only is None:
            self._storage.read_only = str(error)
        if not self.failed.done():
            self.failed.set_result(error)

    def _audit(self, act: str, **details: object) -> None:
        if self._access is not None and self._access.audit is not None:
            where = str(self._config.data_dir.resolve())
            self._access.audit.record(act, where, details=details)

    async def _figures(self, collector: StorageCollector) -> BrokerFigures:
        """Return the figures of the open storage and of AMQP."""
        storage, amqp = self._storage, self._amqp
        assert storage is not None, "only an open storage is asked for figures"
        log = storage.log
        usage, daily = await asyncio.gather(
            asyncio.to_thread(shutil.disk_usage, log.directory),
            asyncio.to_thread(bytes_per_day, log.segments, log.written_offset, wall_clock_us()),
        )
        return BrokerFigures(
            free_bytes=usage.free,
            total_bytes=usage.total,
            min_free_bytes=self._config.commitlog.min_free_bytes,
            log_bytes=log.size_bytes,
            bytes_per_day=daily,
            sync_p99_s=upper_quantile(collector.syncs, 0.99),
            amqp_connections=0 if amqp is None else len(amqp.connections.open),
        )

    def _amqp_use(self) -> AmqpUse:
        if self._amqp is None:
            return AmqpUse()
        every = self._amqp.connections
        return AmqpUse(every.limits.by_client, every.sessions.by_client, every.links.by_client)

    def _amqp_sessions(
        self, client: str | None, after: tuple[int, int], limit: int
    ) -> tuple[Sequence[object], bool]:
        if self._amqp is None:
            return (), False
        return list_sessions(self._amqp.connections.open, client, after, limit)

    def _info(self) -> Mapping[str, object]:
        return {
            "data_dir": str(self._config.data_dir.resolve()),
            "auto_create_topics": self._config.topics.auto_create_topics,
        }
