"""Requests of one group that wait for messages: parked in the core, answered here.

Each is answered exactly once: by messages, its deadline, the group's end, or its own cancelling.
What it was given as it was cancelled goes back. On the event loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast.consumequeue.errors import StoreError
from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.asking import Ask, Pick, Reply
from holdfast.groups.errors import GroupError
from holdfast.groups.group import Group
from holdfast.groups.group_clock import GroupClock
from holdfast.groups.head_source import StoreHeads
from holdfast.groups.waiters import Waiter

_logger = logging.getLogger(__name__)

#: How long to wait when the store could not be read for those who wait.
RETRY_S = 1.0
#: Requests that are answered for their deadline in one turn of the loop.
EXPIRY_SLICE = 64

Answer = Reply | GroupError | StoreError | None


class Ticket(asyncio.Future[Answer]):
    """What a waiting request awaits. In the turn in which it is cancelled the request gives up its
    place: nothing is leased to it from then on, also before it notices."""

    __slots__ = ("_core", "waiter")

    def __init__(self, core: Group) -> None:
        super().__init__()
        self._core = core
        self.waiter: Waiter | None = None
        """Set as long as the request waits."""

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel it. False: it is answered, or cancelled, already."""
        is_cancelled = super().cancel(msg)
        if is_cancelled and self.waiter is not None:
            self._core.cancel(self.waiter)
        return is_cancelled


class Waiting:
    """The waiting requests. `unpick` takes back what did not get away; `changed` is called when
    the core was changed out of turn."""

    def __init__(
        self,
        core: Group,
        source: StoreHeads,
        clock: GroupClock,
        *,
        unpick: Callable[[Sequence[Pick]], None],
        changed: Callable[[], None],
    ) -> None:
        self._core = core
        self._source = source
        self._clock = clock
        self._unpick = unpick
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._expired: deque[Ticket] = deque()
        self._bringing: dict[tuple[QueueKey, int], asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._core.waiters)

    async def wait(self, ask: Ask, wait_s: float, *, has_looked: bool) -> Reply | None:
        """Wait for an answer, None when none comes in time. Raises GroupError, StoreError.

        `has_looked`: it found nothing in this very turn. Between that look and the parking
        nothing is awaited, so no wake-up is lost.
        """
        ticket = Ticket(self._core)
        now_ms = self._clock.now_ms()
        deadline_ms = now_ms + round(wait_s * 1000)
        ticket.waiter = self._core.park(ask, ticket, now_ms, deadline_ms, has_looked=has_looked)
        self._changed()
        try:
            answer = await ticket
        except asyncio.CancelledError:
            if not (ticket.cancel() or ticket.cancelled()):
                answer = ticket.result()  # it came in the same turn
                if isinstance(answer, Reply):
                    self._unpick(answer.picks)
            raise
        finally:
            ticket.waiter = None  # they hold each other
        if isinstance(answer, Exception):
            raise answer
        return answer

    def serve(self) -> int:
        """Answer those for whom there is something now; return how many."""
        answered = 0
        for waiter, answer in self._core.serve(self._clock.now_ms()):
            if isinstance(answer, Reply) and not answer.is_answer:
                assert answer.needs is not None
                self._bring(*answer.needs)
                continue
            answered += 1
            is_told = _resolve(waiter, answer)
            assert is_told  # who is cancelled waits no more
        return answered

    def expire(self, waiters: Iterable[Waiter]) -> None:
        """Answer these with nothing, a slice a turn of the loop."""
        was_quiet = not self._expired
        for waiter in waiters:
            assert isinstance(waiter.ticket, Ticket)
            self._expired.append(waiter.ticket)
        if was_quiet:
            self._answer_expired()

    def end(self, waiters: Iterable[Waiter], why: StoreError | None = None) -> None:
        """Answer these with nothing, or with `why`."""
        for waiter in waiters:
            _resolve(waiter, why)

    def drain(self, why: StoreError | None = None) -> None:
        """Answer everybody who waits with nothing, or with `why`."""
        waiters = list(self._core.waiters)
        for waiter in waiters:
            self._core.cancel(waiter)
        self.end(waiters, why)
        while self._expired:
            _settle(self._expired.popleft(), None)

    async def stop(self) -> None:
        """End what is under way for those who waited."""
        tasks = list(self._bringing.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- inside ------------------------------------------------------------------------------

    def _bring(self, queue: QueueKey, offset: int) -> None:
        """Read what those who wait need, and look again then."""
        if (queue, offset) not in self._bringing:
            task = asyncio.create_task(self._brought(queue, offset), name="group-bring")
            self._bringing[queue, offset] = task

    async def _brought(self, queue: QueueKey, offset: int) -> None:
        try:
            await self._source.fetch(queue, offset)
        except Exception:
            # Whoever waits waits on; the read is tried again for as long as somebody does.
            _logger.exception("queue %s could not be read at %d", queue, offset)
            await asyncio.sleep(RETRY_S)
        finally:
            del self._bringing[queue, offset]
        self._core.stir(queue[0])
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
    """Answer who waits. False: it was cancelled."""
    if ticket.done():
        return False
    ticket.set_result(answer)
    return True
