"""The client for callers without an event loop: AsyncClient's methods, as blocking calls.

`publish`, `pull_once` and the readers of `pull` and `pull_batches` block in the calling thread, on
their own sockets. All other requests, the producers and the consumers run on an event loop in a
background thread, which starts when it is first needed.
"""

import functools
import weakref
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from types import FunctionType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from holdfast.client.async_client import DEFAULT_URL, AsyncClient
from holdfast.client.consume.consumer import AsyncConsumer, Consumer
from holdfast.client.produce.async_producer import AsyncProducer
from holdfast.client.produce.blocking_producer import Producer
from holdfast.client.read.offset_consumer import AsyncOffsetConsumer, OffsetConsumer
from holdfast.client.read.readers import AsyncReader, BlockingReader, Reader
from holdfast.client.transport.blocking_transport import BlockingTransport, run_blocking
from holdfast.client.transport.loop_thread import LoopThread
from holdfast.client.transport.retry import RetryPolicy
from holdfast.client.transport.target import Target
from holdfast.client.transport.tls import File, TlsFiles

P = ParamSpec("P")
R = TypeVar("R")


def _named_ours(method: Callable[P, R]) -> Callable[P, R]:
    """Return a copy of an AsyncClient method whose qualified name is Client.NAME, because error
    messages for wrong arguments show that name."""
    assert isinstance(method, FunctionType)
    ours = FunctionType(
        method.__code__,
        method.__globals__,
        method.__name__,
        method.__defaults__,
        method.__closure__,
    )
    functools.update_wrapper(ours, method)
    del ours.__wrapped__  # type: ignore[attr-defined]
    ours.__kwdefaults__ = method.__kwdefaults__
    ours.__qualname__ = f"Client.{method.__name__}"
    return ours


def _waiting(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate["Client", P], R]:
    """Return the Client method that runs an AsyncClient method on the background loop."""

    method = _named_ours(method)

    @functools.wraps(method)
    def waiting(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._loop_thread.run(method(self._client, *args, **kwargs))

    return waiting


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate["Client", P], R]:
    """Return the Client method that runs an AsyncClient method in the calling thread."""

    method = _named_ours(method)

    @functools.wraps(method)
    def blocking(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return run_blocking(method(self._requests, *args, **kwargs))

    return blocking


def _reading(
    method: Callable[Concatenate[AsyncClient, P], AsyncReader[R]],
) -> Callable[Concatenate["Client", P], Reader[R]]:
    """Return the Client method that returns a blocking reader of the same messages."""

    method = _named_ours(method)

    @functools.wraps(method)
    def reading(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Reader[R]:
        transport = self._transport.child()
        model = method(AsyncClient.over(transport), *args, **kwargs)
        return BlockingReader(model.source, model.items, transport)

    return reading


def _consuming(
    method: Callable[Concatenate[AsyncClient, P], AsyncConsumer],
) -> Callable[Concatenate["Client", P], Consumer]:
    """Return the Client method that returns a blocking consumer with the same options."""

    method = _named_ours(method)

    @functools.wraps(method)
    def consuming(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Consumer:
        return Consumer(method(self._client, *args, **kwargs), self._loop_thread)

    return consuming


def _consuming_by_offsets(
    method: Callable[Concatenate[AsyncClient, P], AsyncOffsetConsumer],
) -> Callable[Concatenate["Client", P], OffsetConsumer]:
    """Return the Client method that returns a blocking offset consumer with the same options."""

    method = _named_ours(method)

    @functools.wraps(method)
    def consuming(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> OffsetConsumer:
        return OffsetConsumer(method(self._client, *args, **kwargs), self._loop_thread)

    return consuming


def _producing(
    method: Callable[Concatenate[AsyncClient, P], AsyncProducer],
) -> Callable[Concatenate["Client", P], Producer]:
    """Return the Client method that returns a blocking producer with the same options."""

    method = _named_ours(method)

    @functools.wraps(method)
    def producing(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Producer:
        model = method(self._client, *args, **kwargs)
        producer = Producer(model.target, model.options, self._loop_thread)
        self._producers.add(producer)
        return producer

    return producing


class Client:
    """A client of the broker at `url`, for any number of threads. Use it in `with`, or close it.

    `token` is sent as a bearer token; `ca_file`, `cert_file` and `key_file` are for a broker that
    serves TLS (see AsyncClient). Transient failures (no connection, a broker that is restarting
    or busy) are retried for `timeout_ms`, with growing pauses. Methods raise ApiError when the
    broker refuses a request, ConnectionFailed when it does not answer. A client does not survive
    a fork: create one in each process.
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
    ) -> None:
        self.url = url
        self._client = AsyncClient(
            url,
            token=token,
            timeout_ms=timeout_ms,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
        )
        self._loop_thread = LoopThread()
        self._transport = BlockingTransport(
            Target.parse(url, token, TlsFiles(ca_file, cert_file, key_file)),
            RetryPolicy(give_up_after_s=timeout_ms / 1000),
            retry_log=self._client._transport.retry_log,
        )
        self._requests = AsyncClient.over(self._transport)
        self._producers: weakref.WeakSet[Producer] = weakref.WeakSet()

    create_topic = _waiting(AsyncClient.create_topic)
    change_topic = _waiting(AsyncClient.change_topic)
    topics = _waiting(AsyncClient.topics)
    describe_topic = _waiting(AsyncClient.describe_topic)
    delete_topic = _waiting(AsyncClient.delete_topic)
    publish = _blocking(AsyncClient.publish)
    pull_once = _blocking(AsyncClient.pull_once)
    offset_at = _waiting(AsyncClient.offset_at)
    message = _waiting(AsyncClient.message)
    search = _waiting(AsyncClient.search)
    splits = _waiting(AsyncClient.splits)
    groups = _waiting(AsyncClient.groups)
    describe_group = _waiting(AsyncClient.describe_group)
    create_group = _waiting(AsyncClient.create_group)
    delete_group = _waiting(AsyncClient.delete_group)
    seek_group = _waiting(AsyncClient.seek_group)
    redrive = _waiting(AsyncClient.redrive)
    leave_group = _waiting(AsyncClient.leave_group)
    receive = _waiting(AsyncClient.receive)
    ack = _waiting(AsyncClient.ack)
    nack = _waiting(AsyncClient.nack)
    release = _waiting(AsyncClient.release)
    extend = _waiting(AsyncClient.extend)
    reject = _waiting(AsyncClient.reject)
    stored_offsets = _waiting(AsyncClient.stored_offsets)
    store_offsets = _waiting(AsyncClient.store_offsets)
    reset_offsets = _waiting(AsyncClient.reset_offsets)
    info = _waiting(AsyncClient.info)
    ready = _waiting(AsyncClient.ready)
    status = _waiting(AsyncClient.status)
    metrics = _waiting(AsyncClient.metrics)

    pull = _reading(AsyncClient.pull)
    pull_batches = _reading(AsyncClient.pull_batches)
    consume = _consuming(AsyncClient.consume)
    consume_by_offsets = _consuming_by_offsets(AsyncClient.consume_by_offsets)
    producer = _producing(AsyncClient.producer)

    def close(self) -> None:
        """Close the open producers (which send their buffers), then the consumers (which leave
        their groups), then all connections.

        Waiting readers end with ClientClosed. May be called twice.
        """
        with ExitStack() as stack:
            stack.callback(run_blocking, self._transport.close())
            stack.callback(self._loop_thread.stop, self._client.close)
            for producer in list(self._producers):
                stack.callback(producer.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
