"""A connection with channels: it tries the addresses of the broker, and connects again when the
connection is lost."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Self

from holdfast.amqp.engine.free_numbers import FreeNumbers
from holdfast.client.channels.addresses import Address, parse_addresses
from holdfast.client.channels.callbacks import CallbackPool
from holdfast.client.channels.channel import Channel
from holdfast.client.channels.channel_session import ACK_DELAY_MS
from holdfast.client.channels.inbox import Inbox
from holdfast.client.errors import (
    ClientClosed,
    ConnectionFailed,
    HoldfastError,
    TooManyChannels,
)
from holdfast.client.session.connection import SessionConnection
from holdfast.client.transport.loop_thread import LoopThread
from holdfast.client.transport.retry import FOREVER
from holdfast.client.transport.target import File, TlsFiles

_log = logging.getLogger("holdfast.client")

MAX_CHANNELS = 65_535


def connect(
    urls: str | Sequence[str],
    *,
    executor: Executor | None = None,
    token: str | None = None,
    ca_file: File | None = None,
    cert_file: File | None = None,
    key_file: File | None = None,
    ack_delay_ms: float = ACK_DELAY_MS,
    timeout_ms: int = 30_000,
) -> "Connection":
    """Connect to the first of the addresses that answers; use the connection in `with`.

    Addresses begin with amqp://, amqps://, http:// or https:// (also ws:// and wss://: a WebSocket
    on the port of HTTP). Callbacks run on `executor`, which serves nothing else and is not shut
    down; without one, on a ThreadPoolExecutor with its default number of threads. Collected
    acknowledgements are sent after `ack_delay_ms` at the latest. Calls wait for a lost connection
    for `timeout_ms`, and raise ConnectionFailed then. Raises the error of the last address if none
    answers, and ValueError for an invalid address or number.
    """
    if ack_delay_ms < 0 or timeout_ms < 1:
        raise ValueError("ack_delay_ms is at least 0, and timeout_ms at least 1")
    addresses = parse_addresses(urls, token, TlsFiles(ca_file, cert_file, key_file))
    return Connection(addresses, executor, ack_delay_ms, timeout_ms / 1000)


class Connection:
    """One connection to a broker, for any number of threads; `connect` returns it.

    A lost connection is restored, at the next address first, with pauses that grow up to 5 s; this
    goes on until `close`. It does not survive a fork.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        executor: Executor | None,
        ack_delay_ms: float,
        timeout_s: float,
    ) -> None:
        self.thread = LoopThread()
        self.inbox = Inbox(self.thread)
        self.ack_delay_ms = ack_delay_ms
        self._addresses = addresses
        self._timeout_s = timeout_s
        self._next_address = 0
        self._current: SessionConnection | None = None
        self._last_error: HoldfastError = ConnectionFailed("", "not connected", False)
        self._is_connected = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._channels: dict[int, Channel] = {}
        self._numbers = FreeNumbers()
        self._numbers.take()  # channel 0 is administrative
        try:
            self.thread.run(self._start())
        except BaseException:
            self.thread.stop(_nothing)
            raise
        self._own_executor = ThreadPoolExecutor(thread_name_prefix="holdfast-callback")
        self.pool = CallbackPool(executor or self._own_executor)

    def channel(self) -> Channel:
        """Return a new channel. This costs nothing until its first use.

        Raises TooManyChannels if MAX_CHANNELS are open, and ClientClosed.
        """
        with self._lock:
            if self._is_closed:
                raise ClientClosed
            if self._numbers.lowest > MAX_CHANNELS:
                raise TooManyChannels
            number = self._numbers.take()
            channel = self._channels[number] = Channel(self, number)
        return channel

    def close(self) -> None:
        """Close all channels and the connection. Callbacks that run are not waited for. May be
        repeated, also in callbacks."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self.pool.close()
        self.thread.stop(self._shut)
        self._own_executor.shutdown(wait=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def forget(self, channel: Channel) -> None:
        """Free the number of a channel that closes. May be repeated."""
        with self._lock:
            if self._channels.pop(channel.id, None) is not None:
                self._numbers.give_back(channel.id)

    # -- on the loop thread

    async def connected(self, *, patient: bool = False) -> SessionConnection:
        """Return the open connection; wait while there is none, without end if `patient`.

        Raises the last error of connecting after the timeout, and ClientClosed.
        """
        try:
            async with asyncio.timeout(None if patient else self._timeout_s):
                while self._current is None or self._current.error is not None:
                    self._is_connected.clear()
                    await self._is_connected.wait()
        except TimeoutError:
            raise self._last_error from None
        return self._current

    async def _start(self) -> None:
        for _ in self._addresses:
            if await self._try_next():
                self._keeping = asyncio.create_task(self._keep())
                return
        raise self._last_error

    async def _try_next(self) -> bool:
        """Try one address. Return whether it answered."""
        address = self._addresses[self._next_address % len(self._addresses)]
        self._next_address += 1
        connection = SessionConnection(address.target, address.url)
        try:
            await connection.open()
        except HoldfastError as error:
            self._last_error = error
            return False
        self._current = connection
        self._is_connected.set()
        return True

    async def _keep(self) -> None:
        while True:
            assert self._current is not None
            await self._current.has_ended.wait()
            _log.warning("the connection is lost: %s", self._current.error)
            await self._current.close()
            tries = 0
            while not await self._try_next():
                tries += 1
                if tries % len(self._addresses) == 0:
                    await asyncio.sleep(FOREVER.backoff_s(tries // len(self._addresses)))
            _log.warning("connected again, after %d failures", tries)
            for channel in self._all_channels():
                channel.restore()

    async def _shut(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        await asyncio.gather(*(each.shut() for each in self._all_channels()))
        if self._current is not None:
            await self._current.close()

    def _all_channels(self) -> list[Channel]:
        with self._lock:
            return list(self._channels.values())


async def _nothing() -> None:
    pass
