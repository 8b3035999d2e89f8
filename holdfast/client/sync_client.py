"""The client for callers without an event loop: AsyncClient's names, waiting for each result.

Its requests and readers block in the calling thread, over sockets of their own: no other thread
has a part in them. Producers and consumers, which do something while nobody calls them, run on a
loop in a thread that is started with the first of them.
"""

import functools
import weakref
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from holdfast.client.async_client import DEFAULT_URL, AsyncClient
from holdfast.client.async_producer import AsyncProducer
from holdfast.client.blocking import BlockingTransport, finished
from holdfast.client.consumer import AsyncConsumer, Consumer
from holdfast.client.loop_thread import LoopThread
from holdfast.client.offset_consumer import AsyncOffsetConsumer, OffsetConsumer
from holdfast.client.reader import AsyncReader, BlockingReader, Reader
from holdfast.client.retry import RetryPolicy
from holdfast.client.sync_producer import Producer
from holdfast.client.target import Target
from holdfast.client.tls import File, TlsFiles

P = ParamSpec("P")
R = TypeVar("R")


def _waiting(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate["Client", P], R]:
    """Return the method of Client that runs one of AsyncClient to its end, on a loop."""

    @functools.wraps(method)
    def waiting(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._loop_thread.run(method(self._client, *args, **kwargs))

    return waiting


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate["Client", P], R]:
    """Return the method of Client that runs one of AsyncClient to its end, in this thread."""

    @functools.wraps(method)
    def blocking(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return finished(method(self._requests, *args, **kwargs))

    return blocking


def _reading(
    method: Callable[Concatenate[AsyncClient, P], AsyncReader[R]],
) -> Callable[Concatenate["Client", P], Reader[R]]:
    """Return the method of Client that reads what one of AsyncClient reads."""

    @functools.wraps(method)
    def reading(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Reader[R]:
        transport = self._transport.part()
        model = method(AsyncClient.over(transport), *args, **kwargs)
        return BlockingReader(model.source, model.items, transport)

    return reading


def _consuming(
    method: Callable[Concatenate[AsyncClient, P], AsyncConsumer],
) -> Callable[Concatenate["Client", P], Consumer]:
    """Return the method of Client that consumes what one of AsyncClient consumes."""

    @functools.wraps(method)
    def consuming(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Consumer:
        return Consumer(method(self._client, *args, **kwargs), self._loop_thread)

    return consuming


def _consuming_by_offsets(
    method: Callable[Concatenate[AsyncClient, P], AsyncOffsetConsumer],
) -> Callable[Concatenate["Client", P], OffsetConsumer]:
    """Return the method of Client that consumes by offsets what one of AsyncClient does."""

    @functools.wraps(method)
    def consuming(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> OffsetConsumer:
        return OffsetConsumer(method(self._client, *args, **kwargs), self._loop_thread)

    return consuming


def _producing(
    method: Callable[Concatenate[AsyncClient, P], AsyncProducer],
) -> Callable[Concatenate["Client", P], Producer]:
    """Return the method of Client that makes a producer with the options of AsyncClient's."""

    @functools.wraps(method)
    def producing(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Producer:
        model = method(self._client, *args, **kwargs)
        producer = Producer(model.target, model.options, self._loop_thread)
        self._producers.add(producer)
        return producer

    return producing


class Client:
    """A client of the broker at `url`, for any threads. Use it in `with`, or close it.

    `token` is sent as bearer token; `ca_file`, `cert_file` and `key_file` are for a broker that
    serves TLS (see AsyncClient). What fails in a way that passes (no connection, a broker
    that is restarting or busy) is tried again for `timeout_ms`, with growing pauses. Methods
    raise ApiError when the broker refuses, ConnectionFailed when it does not answer. A client
    does not survive a fork: make one in each process.
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
            Target.of(url, token, TlsFiles(ca_file, cert_file, key_file)),
            RetryPolicy(give_up_after_s=timeout_ms / 1000),
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

    pull = _reading(AsyncClient.pull)
    pull_batches = _reading(AsyncClient.pull_batches)
    consume = _consuming(AsyncClient.consume)
    consume_by_offsets = _consuming_by_offsets(AsyncClient.consume_by_offsets)
    producer = _producing(AsyncClient.producer)

    def close(self) -> None:
        """Close the producers that are open, which sends what they hold, then all connections.

        Readers that wait end with ClientClosed. May be called twice.
        """
        with ExitStack() as stack:
            stack.callback(finished, self._transport.close())
            stack.callback(self._loop_thread.stop, self._client.close)
            for producer in list(self._producers):
                stack.callback(producer.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
