"""Collects and sends acknowledgements and other settle requests of a consumer.

Acknowledgements are batched; all other verbs are sent immediately. Only one request is in flight at
a time. Messages that are settled meanwhile share the next request, so that the broker needs one
durable commit for many messages. Settling is idempotent, so a request without a reply is retried.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.client.consume.delivery import Settling
from holdfast.client.values import Status, Verb

_log = logging.getLogger("holdfast.client")

#: One request has at most this many receipts.
MAX_RECEIPTS = 256


class AckKind(NamedTuple):
    """The verb and the options of a request, which apply to all its deliveries. `topic` is empty
    unless the group shares processing time among its topics."""

    verb: Verb
    delay_ms: int | None = None
    lease_ms: int | None = None
    topic: str = ""


@dataclass(frozen=True, slots=True)
class PendingAck:
    """A delivery that was settled or extended. `used_ms` is its processing time."""

    receipt: str
    settling: Settling
    used_ms: float


@dataclass(eq=False, kw_only=True)
class AckBatcher:
    """Sends acknowledgements and other settle requests. Belongs to one event loop.

    `send` sends one request and retries it. Acknowledgements wait until there are `batch` of them
    or `interval_s` has passed. `on_confirmed(count)` is called when the broker has replied for
    `count` deliveries. If `send` fails, `on_failed(error)` is called, and the results of all
    pending deliveries raise the error.
    """

    send: Callable[[AckKind, Sequence[PendingAck]], Awaitable[Sequence[Status]]]
    batch: int
    interval_s: float
    on_confirmed: Callable[[int], None]
    on_failed: Callable[[Exception], None]
    _pending: dict[AckKind, list[PendingAck]] = field(default_factory=dict)
    _timer: asyncio.TimerHandle | None = None
    _pump: asyncio.Task[None] | None = None

    def add(self, kind: AckKind, ack: PendingAck) -> None:
        """Add a settled delivery, and send it immediately or with its batch."""
        self._pending.setdefault(kind, []).append(ack)
        pending = sum(map(len, self._pending.values()))
        if kind.verb != "ack" or pending >= self.batch:
            self.flush_soon()
        elif self._timer is None and self._pump is None:
            self._timer = asyncio.get_running_loop().call_later(self.interval_s, self.flush_soon)

    def flush_soon(self) -> None:
        """Begin to send the pending deliveries now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pending and self._pump is None:
            self._pump = asyncio.create_task(self._send_all())

    async def flush(self) -> None:
        """Send the pending deliveries and wait for all replies. A failure is not raised here, but
        passed to `on_failed`."""
        self.flush_soon()
        while self._pump is not None:
            await asyncio.wait([self._pump])

    async def _send_all(self) -> None:
        try:
            while self._pending:
                kind = next(iter(self._pending))
                waiting = self._pending.pop(kind)
                acks, rest = waiting[:MAX_RECEIPTS], waiting[MAX_RECEIPTS:]
                if rest:
                    self._pending[kind] = rest
                try:
                    statuses = await self.send(kind, acks)
                except Exception as error:
                    self._fail_pending(acks, error)
                    return
                for each, status in zip(acks, statuses, strict=True):
                    each.settling.settled(status)
                self._warn_of_stale(kind.verb, statuses.count("stale"))
                self.on_confirmed(len(acks))
        finally:
            self._pump = None

    def _warn_of_stale(self, verb: Verb, count: int) -> None:
        if count and verb != "extend":
            _log.warning(
                "%s came too late for %d of the messages: their leases had ended, and other "
                "members may have them; give the group a longer lease_ms, or request fewer "
                "messages at a time",
                verb,
                count,
            )

    def _fail_pending(self, acks: Sequence[PendingAck], error: Exception) -> None:
        waiting = [*acks, *(each for others in self._pending.values() for each in others)]
        self._pending.clear()
        for each in waiting:
            each.settling.failed(error)
        self.on_failed(error)
