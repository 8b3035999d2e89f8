"""Requests of one group that wait for messages. The core holds them; this module answers them.

Each request ends exactly once: it is answered with messages, or without messages at its deadline,
or with an error when the group ends, or it is cancelled. On the event loop.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

from holdfast.consumequeue.errors import StoreError
from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.core.group import Group
from holdfast.groups.core.receiving import serve
from holdfast.groups.core.requests import ReceiveRequest, Reply, SelectedMessage, Waiter
from holdfast.groups.errors import GroupError
from holdfast.groups.serving.clock import GroupClock

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
            self._core.waiters.remove(self.waiter)
        return is_cancelled

    def abandon(self) -> list[SelectedMessage]:
        """Cancel the request. Return the messages that were leased to it in this same event loop
        iteration."""
        if self.cancel() or self.cancelled():
            return []
        answer = self.result()
        return answer.messages if isinstance(answer, Reply) else []


class Waiting:
    """The waiting requests."""

    def __init__(self, core: Group, clock: GroupClock) -> None:
        self._core = core
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._expired: deque[Ticket] = deque()

    def __len__(self) -> int:
        return len(self._core.waiters)

    def park(self, request: ReceiveRequest, wait_s: float, *, has_looked: bool) -> Ticket:
        """Hold a request. The caller must then call `serve`, and await the `answer`.

        Set `has_looked` if the request found no message in this same event loop iteration. Then no
        wake-up is lost, because the request is held before anything is awaited.
        """
        ticket = Ticket(self._core)
        now_ms = self._clock.now_ms()
        deadline_ms = now_ms + round(wait_s * 1000)
        ticket.waiter = self._core.park(request, ticket, now_ms, deadline_ms, has_looked=has_looked)
        return ticket

    async def answer(self, ticket: Ticket) -> Reply | None:
        """Wait for the answer; return None if none comes in time. Raises GroupError, StoreError. If
        the call is cancelled, the caller must release the messages that `abandon` returns."""
        try:
            answer = await ticket
        finally:
            ticket.waiter = None  # break the reference cycle
        if isinstance(answer, Exception):
            raise answer
        return answer

    def serve(self) -> tuple[int, tuple[QueueKey, int] | None]:
        """Answer the requests that can get messages now; return how many. Also return the queue and
        offset that must be read before more requests can be answered; None if there is none."""
        answered = 0
        for waiter, answer in serve(self._core, self._clock.now_ms()):
            if isinstance(answer, Reply) and not answer.is_answer:
                assert answer.needs is not None
                return answered, answer.needs
            answered += 1
            is_answered = _resolve(waiter, answer)
            assert is_answered  # cancelled requests have left the core
        return answered, None

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
            self._core.waiters.remove(waiter)
        self.end(waiters, why)
        while self._expired:
            _settle(self._expired.popleft(), None)

    # -- inside ------------------------------------------------------------------------------

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
