"""Collects and sends acknowledgements and other settle requests of a consumer.

Acknowledgements are batched; all other verbs are sent immediately. Only one request is in flight at
a time. Messages that are settled meanwhile share the next request, so that the broker needs one
durable commit for many messages. Settling is idempotent, so a request without a reply is retried.

A receive may carry the pending acknowledgements, which saves a request (`take_acks`). The broker
settles them at once, but may hold the reply. So an acknowledgement is sent again in its own request
if a caller waits for its result, or if the reply does not arrive within `confirm_within_s`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from holdfast.client.consume.delivery import Settling
from holdfast.client.values import Status, Verb

_log = logging.getLogger("holdfast.client")

#: One request has at most this many receipts.
MAX_RECEIPTS = 256
#: How long due acknowledgements wait for a receive that will be sent soon.
DEFER_S = 0.005
#: One receive carries acknowledgements of at most this many kinds; every broker that accepts
#: `settle` accepts this number.
MAX_KINDS = 100


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


AcksByKind = dict[AckKind, list[PendingAck]]


@dataclass(eq=False, kw_only=True)
class AckBatcher:
    """Sends acknowledgements and other settle requests. Belongs to one event loop.

    `send` sends one request and retries it. Acknowledgements wait until there are `batch` of them
    or `interval_s` has passed; then they are due. `on_due(is_late)` is called when acknowledgements
    are due that a receive may carry. It returns whether a receive will be sent soon; with
    `is_late`, whether one is sent now. If not, or if no receive is sent within DEFER_S, the
    acknowledgements are sent in a request of their own. `on_confirmed(count)` is called when the
    broker has replied for `count` deliveries. If `send` fails, `on_failed(error)` is called, and
    the results of all pending deliveries raise the error.
    """

    send: Callable[[AckKind, Sequence[PendingAck]], Awaitable[Sequence[Status]]]
    batch: int
    interval_s: float
    on_confirmed: Callable[[int], None]
    on_failed: Callable[[Exception], None]
    on_due: Callable[[bool], bool] = lambda is_late: False
    confirm_within_s: float = 10.0
    #: Whether acknowledgements are due and wait for the receive that `on_due` has promised.
    is_due: bool = False
    _pending: AcksByKind = field(default_factory=dict)
    #: What the receive in flight carries.
    _carried: AcksByKind = field(default_factory=dict)
    #: Whether a caller waits for the replies, so that no receive may carry what is pending.
    _is_awaited: bool = False
    _timer: asyncio.TimerHandle | None = None
    _confirm_timer: asyncio.TimerHandle | None = None
    _pump: asyncio.Task[None] | None = None

    def add(self, kind: AckKind, ack: PendingAck) -> None:
        """Add a settled delivery, and send it immediately or with its batch."""
        self._pending.setdefault(kind, []).append(ack)
        pending = sum(map(len, self._pending.values()))
        if kind.verb != "ack":
            self.send_soon()
        elif pending >= self.batch:
            self.flush_soon()
        else:
            self._start_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self) -> None:
        if self._timer is None and self._pump is None and not self.is_due:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.interval_s, self.flush_soon, True)

    def flush_soon(self, is_late: bool = False) -> None:
        """Begin to send the pending deliveries now, or let the next receive carry them."""
        if self._pending and self._pump is None and not self.is_due:
            if self._is_awaited or not self.on_due(is_late):
                self.send_soon()
                return
            self.is_due = True
            self._stop_timer()
            self._timer = asyncio.get_running_loop().call_later(DEFER_S, self.send_soon)

    def send_soon(self) -> None:
        """Begin to send the pending deliveries now, in requests of their own."""
        self._stop_timer()
        self.is_due = False
        if self._pending and self._pump is None:
            self._pump = asyncio.create_task(self._send_all())

    def confirm_soon(self) -> None:
        """Begin to send all deliveries without a reply now, also those that a receive carries: a
        caller waits for their results."""
        self._return_carried()
        self._is_awaited = bool(self._pending) or self._pump is not None
        self.send_soon()

    async def flush(self) -> None:
        """Send the pending deliveries and wait for all replies. A failure is not raised here, but
        passed to `on_failed`."""
        self.confirm_soon()
        while self._pump is not None:
            await asyncio.wait([self._pump])

    # -- acknowledgements in a receive -------------------------------------------------------

    @property
    def carriable(self) -> int:
        """How many acknowledgements `take_acks` returns now."""
        if self._is_awaited or not self._pending:
            return 0
        return min(MAX_RECEIPTS, sum(map(len, _only_acks(self._pending).values())))

    def take_acks(self) -> AcksByKind:
        """Remove the pending acknowledgements, at most MAX_RECEIPTS, for a receive that carries
        them. Call `confirm_carried` with the outcomes, or `put_back` if there are none."""
        self._stop_timer()
        self.is_due = False
        carried: AcksByKind = {}
        left = self.carriable
        for kind, acks in _only_acks(self._pending).items():
            if not left:
                break
            carried[kind], rest = acks[:left], acks[left:]
            left -= len(carried[kind])
            del self._pending[kind]
            if rest:
                self._pending[kind] = rest
        if self._pending:
            self._start_timer()
        if carried:
            self._carried = carried
            loop = asyncio.get_running_loop()
            self._confirm_timer = loop.call_later(self.confirm_within_s, self.confirm_soon)
        return carried

    def confirm_carried(self, carried: AcksByKind, outcomes: Sequence[Sequence[Status]]) -> None:
        """Record the outcomes of what a receive has carried."""
        self._forget_carried()
        for (kind, acks), statuses in zip(carried.items(), outcomes, strict=True):
            self._confirm(kind, acks, statuses)

    def put_back(self) -> None:
        """Send what the receive in flight carries with the next receive or request, because the
        receive was refused or cancelled. No effect after `confirm_carried`."""
        if self._carried:
            self._return_carried()
            self.send_soon()

    def _return_carried(self) -> None:
        for kind, acks in self._forget_carried().items():
            self._pending[kind] = acks + self._pending.get(kind, [])

    def _forget_carried(self) -> AcksByKind:
        if self._confirm_timer is not None:
            self._confirm_timer.cancel()
            self._confirm_timer = None
        carried, self._carried = self._carried, {}
        return carried

    # -- requests ----------------------------------------------------------------------------

    async def _send_all(self) -> None:
        try:
            while self._pending:
                kind = next(iter(self._pending))
                waiting = [each for each in self._pending.pop(kind) if not each.settling.done()]
                acks, rest = waiting[:MAX_RECEIPTS], waiting[MAX_RECEIPTS:]
                if rest:
                    self._pending[kind] = rest
                if not acks:
                    continue
                try:
                    statuses = await self.send(kind, acks)
                except Exception as error:
                    self._fail_pending(acks, error)
                    return
                self._confirm(kind, acks, statuses)
        finally:
            self._pump = None
            self._is_awaited = False

    def _confirm(
        self, kind: AckKind, acks: Sequence[PendingAck], statuses: Sequence[Status]
    ) -> None:
        """Record the statuses of the deliveries that had no reply yet."""
        count = stale = 0
        for each, status in zip(acks, statuses, strict=True):
            if not each.settling.done():
                each.settling.settled(status)
                count += 1
                stale += status == "stale"
        self._warn_of_stale(kind.verb, stale)
        if count:
            self.on_confirmed(count)

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
            if not each.settling.done():
                each.settling.failed(error)
        self.on_failed(error)


def _only_acks(pending: AcksByKind) -> AcksByKind:
    """Return the first MAX_KINDS kinds of acknowledgements."""
    found = ((kind, acks) for kind, acks in pending.items() if kind.verb == "ack")
    return dict(islice(found, MAX_KINDS))
