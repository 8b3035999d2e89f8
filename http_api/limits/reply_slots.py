"""Limits how many expensive requests run at the same time. The others wait for their turn.

A large text reply occupies memory from reading the messages until sending. If 10,000 clients each
ask for a megabyte of text, their replies must not occupy 10,000 megabytes together. So such a
request waits for a slot before it reads messages (`LargeReplySlot`). Small and binary replies need
no slot.

`ClientPlaces` is for other requests that need much memory or a thread. `OneALoopTurn` is for
requests that block the event loop for milliseconds.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self


class LargeReplySlot:
    """The permission of one request to make a large reply. It ends with the `with` block.

    `slots` limits how many requests have this permission at the same time. If `slots` is None, the
    request needs no permission.
    """

    __slots__ = ("_slots", "is_held")

    def __init__(self, slots: asyncio.Semaphore | None) -> None:
        self._slots = slots
        self.is_held = False
        """Whether this request has a slot."""

    async def acquire(self) -> None:
        """Wait for a slot, first come, first served. Cancelling ends the wait without a slot."""
        if self._slots is not None and not self.is_held:
            await self._slots.acquire()
            self.is_held = True

    async def acquire_from(self, slots: asyncio.Semaphore) -> None:
        """Wait for one of `slots`. Call this if a reply proves to be larger than expected."""
        self._slots = slots
        await self.acquire()

    def release(self) -> None:
        """Give the slot to the next request. Without a slot, do nothing. `acquire` may follow."""
        if self.is_held and self._slots is not None:
            self.is_held = False
            self._slots.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class ClientPlaces:
    """Places for requests that use much memory, or a reader thread, while they run.

    Each client has at most one place. Further requests wait, and the clients take turns (round
    robin): a client with one request waits for at most one request of each other client, even if
    the other client has sent a thousand.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._at_work: set[str] = set()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def place(self, client: str) -> AsyncIterator[None]:
        """Wait for a place and keep it during the `with` block. Cancelling frees the place.

        The block must not wait for another place of the same client: that wait would never end.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(future)
        self._admit()
        try:
            await future
            yield
        finally:
            if future.done() and not future.cancelled():
                self._free += 1
                self._at_work.remove(client)
                if client in self._waiting:  # its next request waits after the other clients
                    self._waiting[client] = self._waiting.pop(client)
            self._admit()

    def _admit(self) -> None:
        """Give free places to the first waiting requests of clients that have no place."""
        for client in list(self._waiting):
            if not self._free:
                return
            if client in self._at_work:
                continue
            waiting = self._waiting.pop(client)
            while waiting:
                future = waiting.popleft()
                if not future.done():  # otherwise it was cancelled
                    future.set_result(None)
                    self._free -= 1
                    self._at_work.add(client)
                    break
            if waiting:
                self._waiting[client] = waiting


class OneALoopTurn:
    """Starts one expensive request per event loop iteration, so that other tasks run in between.

    The clients take turns (round robin): a client with one request waits for at most one request of
    each other client, even if the other client has sent a thousand.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._is_scheduled = False

    async def begin(self, client: str) -> None:
        """Wait until this request may start. If it is cancelled, the next request may start."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(client, deque()).append(future)
        self._schedule(loop)
        await future

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._begin_one, loop)

    def _begin_one(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_scheduled = False
        while self._waiting:
            client = next(iter(self._waiting))
            waiting = self._waiting.pop(client)
            future = waiting.popleft()
            if waiting:
                self._waiting[client] = waiting  # after the other clients
            if not future.done():  # otherwise it was cancelled
                future.set_result(None)
                break
        self._schedule(loop)
