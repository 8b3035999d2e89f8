"""The client for callers without an event loop: AsyncClient's methods, as blocking calls.

All requests and readers block in the calling thread, on their own sockets. Only producers and the
consumers of `consume` run on an event loop in a background thread. This thread starts when the
first of them starts. Each offset consumer has its own thread, which stores its offsets.
"""

import functools
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from types import FunctionType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from holdfast.client.async_client import DEFAULT_URL, AsyncClient
from holdfast.client.instrumentation import Instrumentation
from holdfast.client.produce.identities import ProducerIds
from holdfast.client.transport.blocking_transport import BlockingTransport, run_blocking
from holdfast.client.transport.loop_thread import LoopThread
from holdfast.client.transport.retry import RetryPolicy
from holdfast.client.transport.target import File, Target, TlsFiles
from holdfast.commitlog.lazy_import import import_at_first_use

if TYPE_CHECKING:
    import pyarrow

    from holdfast.client.consume import consumer as consumers
    from holdfast.client.produce import producers
    from holdfast.client.read import readers
    from holdfast.client.session import blocking as blocking_sessions
    from holdfast.client.session.session import AsyncSession
    from holdfast.client.tables import readers as table_readers
    from holdfast.client.transport import async_transport
else:
    # Most programs need only some of these.
    import_at_first_use(
        globals(),
        consumers="holdfast.client.consume.consumer",
        producers="holdfast.client.produce.producers",
        readers="holdfast.client.read.readers",
        blocking_sessions="holdfast.client.session.blocking",
        table_readers="holdfast.client.tables.readers",
        async_transport="holdfast.client.transport.async_transport",
    )

P = ParamSpec("P")
A = TypeVar("A")
R = TypeVar("R")


def _derive(
    method: Callable[Concatenate[AsyncClient, P], A],
    adapt: Callable[["Client", Callable[[AsyncClient], A]], R],
    described_by: Callable[..., Any] | None = None,
) -> Callable[Concatenate["Client", P], R]:
    """Return the Client method for an AsyncClient method. The Client method returns
    `adapt(self, call)`; `call(client)` calls the AsyncClient method on `client`. It has the name
    and the docstring of `described_by`; the default is the AsyncClient method."""
    # A copy of the function, because error messages for wrong arguments show its qualified name,
    # which must be Client.NAME.
    described = described_by or method
    assert isinstance(method, FunctionType)
    assert isinstance(described, FunctionType)
    ours = FunctionType(
        method.__code__,
        method.__globals__,
        described.__name__,
        method.__defaults__,
        method.__closure__,
    )
    functools.update_wrapper(ours, described)
    del ours.__wrapped__  # type: ignore[attr-defined]
    ours.__kwdefaults__ = method.__kwdefaults__
    ours.__qualname__ = f"Client.{described.__name__}"

    @functools.wraps(ours)
    def derived(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return adapt(self, lambda client: ours(client, *args, **kwargs))

    return derived


def _run(client: "Client", call: Callable[[AsyncClient], Coroutine[Any, Any, R]]) -> R:
    return run_blocking(call(client._requests))


def _read(
    client: "Client", call: "Callable[[AsyncClient], readers.AsyncReader[R]]"
) -> "readers.Reader[R]":
    transport = client._transport.child()
    model = call(AsyncClient.over(transport))
    return readers.Reader(model.source, model.items, transport)


def _read_arrow(
    client: "Client", call: "Callable[[AsyncClient], table_readers.AsyncArrowReader]"
) -> "table_readers.ArrowReader":
    transport = client._transport.child()
    model = call(AsyncClient.over(transport))
    return table_readers.ArrowReader(model.source, model.format, transport)


def _read_table(
    client: "Client", call: "Callable[[AsyncClient], table_readers.AsyncArrowReader]"
) -> "pyarrow.Table":
    with _read_arrow(client, call) as reader:
        return reader.to_table()


def _consume_by_offsets(
    client: "Client", call: "Callable[[AsyncClient], readers.AsyncOffsetConsumer]"
) -> "readers.OffsetConsumer":
    consumer = readers.OffsetConsumer(client._transport, call(client._requests).options)
    client._offset_consumers.add(consumer)
    return consumer


def _consume(
    client: "Client", call: "Callable[[AsyncClient], consumers.AsyncConsumer]"
) -> "consumers.Consumer":
    return consumers.Consumer(call(client._loop_client), client._loop_thread)


def _produce(
    client: "Client", call: "Callable[[AsyncClient], producers.AsyncProducer]"
) -> "producers.Producer":
    model = call(client._loop_client)
    producer = producers.Producer(model.target, model.options, client._loop_thread)
    client._producers.add(producer)
    return producer


def _open_session(
    client: "Client", call: "Callable[[AsyncClient], AsyncSession]"
) -> "blocking_sessions.Session":
    return blocking_sessions.Session(call(client._loop_client), client._loop_thread)


class Client:
    """A client of the broker at `url`, for any number of threads. Use it in `with`, or close it.

    Parameters, retries and errors are as in AsyncClient. A client does not survive a fork:
    create one in each process.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout_ms: int = 30_000,
        ca_file: File | None = None,
        cert_file: File | None = None,
        key_file: File | None = None,
        instrumentation: Instrumentation | None = None,
    ) -> None:
        self.url = url
        target = Target.parse(url, token, TlsFiles(ca_file, cert_file, key_file))
        retry = RetryPolicy(give_up_after_s=timeout_ms / 1000)
        self._transport = BlockingTransport(target, retry)
        self._producer_ids = ProducerIds()
        self._observer = (
            None if instrumentation is None else instrumentation.observe(target.host, target.port)
        )
        self._requests = AsyncClient.over(self._transport, self._producer_ids, self._observer)
        self._loop_thread = LoopThread()
        #: Reentrant, because a signal handler may acquire it again.
        self._lock = threading.RLock()
        self._made_loop_client: AsyncClient | None = None
        self._producers: weakref.WeakSet[producers.Producer] = weakref.WeakSet()
        self._offset_consumers: weakref.WeakSet[readers.OffsetConsumer] = weakref.WeakSet()

    @property
    def _loop_client(self) -> AsyncClient:
        """The client of producers, consumers and sessions, whose requests run on the loop thread.
        It is made when it is first used."""
        with self._lock:
            if self._made_loop_client is None:
                blocking = self._transport
                transport = async_transport.AsyncTransport(
                    blocking.target, blocking.retry, blocking.retry_log
                )
                self._made_loop_client = AsyncClient.over(
                    transport, self._producer_ids, self._observer
                )
            return self._made_loop_client

    create_topic = _derive(AsyncClient.create_topic, _run)
    change_topic = _derive(AsyncClient.change_topic, _run)
    topics = _derive(AsyncClient.topics, _run)
    describe_topic = _derive(AsyncClient.describe_topic, _run)
    delete_topic = _derive(AsyncClient.delete_topic, _run)
    publish = _derive(AsyncClient.publish, _run)
    pull_once = _derive(AsyncClient.pull_once, _run)
    offset_at = _derive(AsyncClient.offset_at, _run)
    message = _derive(AsyncClient.message, _run)
    search = _derive(AsyncClient.search, _run)
    splits = _derive(AsyncClient.splits, _run)
    groups = _derive(AsyncClient.groups, _run)
    describe_group = _derive(AsyncClient.describe_group, _run)
    create_group = _derive(AsyncClient.create_group, _run)
    delete_group = _derive(AsyncClient.delete_group, _run)
    seek_group = _derive(AsyncClient.seek_group, _run)
    redrive = _derive(AsyncClient.redrive, _run)
    leave_group = _derive(AsyncClient.leave_group, _run)
    receive = _derive(AsyncClient.receive, _run)
    ack = _derive(AsyncClient.ack, _run)
    nack = _derive(AsyncClient.nack, _run)
    release = _derive(AsyncClient.release, _run)
    extend = _derive(AsyncClient.extend, _run)
    reject = _derive(AsyncClient.reject, _run)
    stored_offsets = _derive(AsyncClient.stored_offsets, _run)
    store_offsets = _derive(AsyncClient.store_offsets, _run)
    reset_offsets = _derive(AsyncClient.reset_offsets, _run)
    info = _derive(AsyncClient.info, _run)
    ready = _derive(AsyncClient.ready, _run)
    status = _derive(AsyncClient.status, _run)
    overview = _derive(AsyncClient.overview, _run)
    metrics = _derive(AsyncClient.metrics, _run)

    pull = _derive(AsyncClient.pull, _read)
    pull_batches = _derive(AsyncClient.pull_batches, _read)
    iter_arrow = _derive(AsyncClient.iter_arrow, _read_arrow)
    read_arrow = _derive(AsyncClient.iter_arrow, _read_table, AsyncClient.read_arrow)
    consume = _derive(AsyncClient.consume, _consume)
    consume_by_offsets = _derive(AsyncClient.consume_by_offsets, _consume_by_offsets)
    producer = _derive(AsyncClient.producer, _produce)
    session = _derive(AsyncClient.session, _open_session)

    def close(self) -> None:
        """Close producers, consumers and connections, as AsyncClient.close does."""
        with ExitStack() as stack:
            for consumer in list(self._offset_consumers):  # runs after the transport was closed
                stack.callback(consumer._join_thread)
            stack.callback(run_blocking, self._transport.close())
            stack.callback(self._loop_thread.stop, self._close_loop_client)
            for producer in list(self._producers):
                stack.callback(producer.close)

    async def _close_loop_client(self) -> None:
        await self._loop_client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
