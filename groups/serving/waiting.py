"""Requests of one group that wait for messages. The core holds them; this module answers them.

Each request ends exactly once: it is answered with messages, or without messages at its deadline,
or with an error when the group ends, or it is cancelled. Messages that were leased to a request
while it was being cancelled are released. On the event loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast.consumequeue.errors import StoreError
from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.core.group import Group
from holdfast.groups.core.receiving import serve
from holdfast.groups.core.requests import ReceiveRequest, Reply, SelectedMessage
from holdfast.groups.core.waiters import Waiter
from holdfast.groups.errors import GroupError
from holdfast.groups.serving.clock import GroupClock
from holdfast.groups.serving.head_source import StoreHeads

_logger = logging.getLogger(__name__)

#: After a failed read for waiting requests, wait this long before the next try.
RETRY_S = 1.0
#: At most this many requests are answered at their deadline in one event loop iteration.
EXPIRY_SLICE = 64

Answer = Reply | GroupError | StoreError | None


class Ticket(asyncio.Future[Answer]):
    """The future that a waiting request awaits. If the future is cancelled, it removes the request
    from the core at once, so that no message is leased to the request any more."""

    __slots__ = ("_core", "waiter")

    def __init__(self, core: Group) -> None:
        super().__init__()
        self._core = core
        self.waiter: Waiter | None = None
        """The request in the core, while it waits; otherwise None."""

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the request. Return False if it was answered or cancelled before."""
        is_cancelled = super().cancel(msg)
        if is_cancelled and self.waiter is not None:
            self._core.cancel(self.waiter)
        return is_cancelled


class Waiting:
    """The waiting requests. `return_leases` releases messages that were leased but not delivered.
    `changed` is called after this class has changed the core."""

    def __init__(
        self,
        core: Group,
        source: StoreHeads,
        clock: GroupClock,
        *,
        return_leases: Callable[[Sequence[SelectedMessage]], None],
        changed: Callable[[], None],
    ) -> None:
        self._core = core
        self._source = source
        self._clock = clock
        self._return_leases = return_leases
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._expired: deque[Ticket] = deque()
        self._reads: dict[tuple[QueueKey, int], asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._core.waiters)

    async def wait(
        self, request: ReceiveRequest, wait_s: float, *, has_looked: bool
    ) -> Reply | None:
        """Wait for an answer; return None if none comes in time. Raises GroupError, StoreError.

        Set `has_looked` if the request found no message in this same event loop iteration. Then no
        wake-up is lost, because the request is held before anything is awaited.
        """
        ticket = Ticket(self._core)
        now_ms = self._clock.now_ms()
        deadline_ms = now_ms + round(wait_s * 1000)
        ticket.waiter = self._core.park(request, ticket, now_ms, deadline_ms, has_looked=has_looked)
        self._changed()
        try:
            answer = await ticket
        except asyncio.CancelledError:
            if not (ticket.cancel() or ticket.cancelled()):
                answer = ticket.result()  # it was answered in the same loop iteration
                if isinstance(answer, Reply):
                    self._return_leases(answer.messages)
            raise
        finally:
            ticket.waiter = None  # break the reference cycle
        if isinstance(answer, Exception):
            raise answer
        return answer

    def serve(self) -> int:
        """Answer the requests that can get messages now; return how many."""
        answered = 0
        for waiter, answer in serve(self._core, self._clock.now_ms()):
            if isinstance(answer, Reply) and not answer.is_answer:
                assert answer.needs is not None
                self._read_for_waiters(*answer.needs)
                continue
            answered += 1
            is_answered = _resolve(waiter, answer)
            assert is_answered  # cancelled requests have left the core
        return answered

    def expire(self, waiters: Iterable[Waiter]) -> None:
        """Answer these requests without messages, EXPIRY_SLICE in each event loop iteration."""
        was_quiet = not self._expired
        for waiter in waiters:
            assert isinstance(waiter.ticket, Ticket)
            self._expired.append(waiter.ticket)
        if was_quiet:
            self._answer_expired()

    def end(self, waiters: Iterable[Waiter], why: GroupError | StoreError | None = None) -> None:
        """Answer these requests with the error `why`; if it is None, without messages."""
        for waiter in waiters:
            _resolve(waiter, why)

    def drain(self, why: GroupError | StoreError) -> None:
        """Answer every waiting request with the error `why`."""
        waiters = list(self._core.waiters)
        for waiter in waiters:
            self._core.cancel(waiter)
        self.end(waiters, why)
        while self._expired:
            _settle(self._expired.popleft(), None)

    async def stop(self) -> None:
        """Cancel the reads in progress and wait for their end."""
        tasks = list(self._reads.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- inside ------------------------------------------------------------------------------

    def _read_for_waiters(self, queue: QueueKey, offset: int) -> None:
        """Start a read that waiting requests need. After the read they are served."""
        if (queue, offset) not in self._reads:
            task = asyncio.create_task(self._run_read(queue, offset), name="group-bring")
            self._reads[queue, offset] = task

    async def _run_read(self, queue: QueueKey, offset: int) -> None:
        try:
            await self._source.fetch(queue, offset)
        except Exception:
            # The requests continue to wait. As long as any of them waits, the read is retried.
            _logger.exception("queue %s could not be read at %d", queue, offset)
            await asyncio.sleep(RETRY_S)
        finally:
            del self._reads[queue, offset]
        self._core.mark_dirty(queue[0])
        self._changed()

    def _answer_expired(self) -> None:
        for _ in range(min(EXPIRY_SLICE, len(self._expired))):
            _settle(self._expired.popleft(), None)
        if self._expired:
            self._loop.call_soon(self._answer_expired)


def _resolve(waiter: Waiter, answer: Answer) -> bool:
    assert isinstance(waiter.ticket, Ticket)
    return _settle(waiter.ticket, answer)


def _settle(ticket: Ticket, answer: Answer) -> bool:
    """Answer a waiting request. Return False if it was cancelled."""
    if ticket.done():
        return False
    ticket.set_result(answer)
    return True
