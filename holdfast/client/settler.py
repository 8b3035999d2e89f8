"""What is said of deliveries, gathered and sent: acknowledgements together, the rest at once.

A request is under way at a time; what comes meanwhile leaves with the next, so one durable commit
of the broker serves all of it. Saying a thing twice is harmless, so what got no answer is sent
again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.client.delivery import Settling, Status, Verb

_log = logging.getLogger("holdfast.client")

#: Receipts in one request.
MAX_RECEIPTS = 256


class Terms(NamedTuple):
    """What is said alike of several deliveries, so that one request can say it. `topic` is empty
    where what they cost does not depend on it."""

    verb: Verb
    delay_ms: int | None = None
    lease_ms: int | None = None
    topic: str = ""


@dataclass(frozen=True, slots=True)
class Said:
    """What was said of one delivery. `used_ms` is how long it was worked on."""

    receipt: str
    settling: Settling
    used_ms: float


Send = Callable[[Terms, Sequence[Said]], Awaitable[Sequence[Status]]]


class Settler:
    """Sends through `send`, which tries again by itself. Belongs to one event loop.

    Acknowledgements wait until there are `batch` of them or `interval_s` has passed.
    `confirmed(count)` is called when so many have their answer; `failed(error)` when there will be
    none, which is also told to all that wait.
    """

    def __init__(
        self,
        send: Send,
        *,
        batch: int,
        interval_s: float,
        confirmed: Callable[[int], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._send = send
        self._batch = batch
        self._interval_s = interval_s
        self._confirmed = confirmed
        self._failed = failed
        self._pending: dict[Terms, list[Said]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._pump: asyncio.Task[None] | None = None

    @property
    def pending(self) -> int:
        """How many wait to be sent."""
        return sum(map(len, self._pending.values()))

    def add(self, terms: Terms, said: Said) -> None:
        """Take what was said of a delivery."""
        self._pending.setdefault(terms, []).append(said)
        if terms.verb != "ack" or self.pending >= self._batch:
            self.flush_soon()
        elif self._timer is None and self._pump is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self.flush_soon)

    def flush_soon(self) -> None:
        """Send what waits without further waiting."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pending and self._pump is None:
            self._pump = asyncio.create_task(self._send_all())

    async def flush(self) -> None:
        """Send what waits, and wait for all answers. Failures are told as ever."""
        self.flush_soon()
        while self._pump is not None:
            await asyncio.wait([self._pump])

    async def _send_all(self) -> None:
        try:
            while self._pending:
                terms = next(iter(self._pending))
                waiting = self._pending.pop(terms)
                said, rest = waiting[:MAX_RECEIPTS], waiting[MAX_RECEIPTS:]
                if rest:
                    self._pending[terms] = rest
                try:
                    statuses = await self._send(terms, said)
                except Exception as error:
                    self._give_up(said, error)
                    return
                for each, status in zip(said, statuses, strict=True):
                    each.settling.settled(status)
                self._tell_of_stale(terms.verb, statuses.count("stale"))
                self._confirmed(len(said))
        finally:
            self._pump = None

    def _tell_of_stale(self, verb: Verb, count: int) -> None:
        if count and verb != "extend":
            _log.warning(
                "%s came too late for %d of the messages: their leases had ended, and others may "
                "have them; give the group a longer lease_ms, or ask for fewer at a time",
                verb,
                count,
            )

    def _give_up(self, said: Sequence[Said], error: Exception) -> None:
        waiting = [*said, *(each for others in self._pending.values() for each in others)]
        self._pending.clear()
        for each in waiting:
            each.settling.failed(error)
        self._failed(error)
