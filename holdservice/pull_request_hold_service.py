"""Hold pulls that have no messages to read yet: the asyncio shell around the hold table.

All methods must be called on one event loop. No wake-up is lost: a message is readable before
`message_arriving` is called for it, and `hold` registers a pull before it reads the queues' ends.
A periodic scan is the safety net: it wakes pulls whose wake-up was lost, and counts them in
`scan_rescues`, which should stay 0. The hold table decides which pulls to wake; this module wakes
them; the caller of `hold` reads the messages.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import attrgetter
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from holdfast.consumequeue.topics import QueueKey
from holdfast.holdservice.config import HoldServiceConfig
from holdfast.holdservice.errors import HoldLimitExceeded
from holdfast.holdservice.hold_table import SCAN_STEP, HeldPull, HoldTable

if TYPE_CHECKING:
    from holdfast.consumequeue.reading.fetched import MessageFilter

__all__ = ["HoldLimitExceeded", "HoldStats", "Outcome", "PullRequestHoldService", "HoldResult"]

log = logging.getLogger(__name__)

#: Waking pulls may block the loop for at most about this long. The remaining pulls are woken in the
#: next loop iteration.
SLICE_S = 0.002
#: A costly filter gets fewer messages per step, so that a step takes at most about this long.
STEP_US = 1500
#: Bytes of keys, tags and property values that a usual message has.
USUAL_TEXT_BYTES = 200
#: The most expired pulls that are answered in one loop iteration.
EXPIRY_SLICE = 64
#: One answer takes about this long. If n pulls expire together, the first answer is sent
#: n * CROWD_LEAD_US before the deadline, so that the last answers are not late.
CROWD_LEAD_US = 40
#: The first answer is sent at most this long before the deadline.
MAX_LEAD_MS = 40
#: The most queues that the scan checks before other work of the loop can run.
SCAN_CHUNK = 1000
#: A message is readable a moment before `message_arriving` is called for it. So the scan counts
#: the call as lost only if the call has not come after this time.
SCAN_GRACE_S = 1.0
#: A scan that blocks the loop for longer than this in total is logged, as in RocketMQ.
SLOW_SCAN_S = 5.0


class Outcome(StrEnum):
    """Why a held pull ends."""

    ARRIVED = "arrived"
    EXPIRED = "expired"
    DRAINING = "draining"
    DELETED = "deleted"


class HoldResult(NamedTuple):
    """The result of a wait. `scanned` maps each queue of the pull to an offset at or after the
    requested offset; no message between these two offsets matches the filter."""

    outcome: Outcome
    scanned: dict[QueueKey, int]


class Wait(NamedTuple):
    """A wait that has begun. `pull` is None if the wait ended at once."""

    future: asyncio.Future[HoldResult]
    pull: "HeldPull[asyncio.Future[HoldResult]] | None"


@dataclass(slots=True)
class HoldStats:
    """The number of pulls that are held now, and counts since the start. `held`, `held_max`,
    `refused_total` and `scan_rescues` include the requests of other kinds that wait within the same
    limits (`PullRequestHoldService.occupy_slot`). The last scan blocked the loop for
    `last_scan_s`."""

    held: int = 0
    held_max: int = 0
    held_queues: int = 0
    woken_total: int = 0
    expired_total: int = 0
    cancelled_total: int = 0
    refused_total: int = 0
    filtered_total: int = 0
    scans_total: int = 0
    scan_rescues: int = 0
    last_scan_s: float = 0.0


class PullRequestHoldService:
    """Holds pulls and ends each wait exactly once, for one of the reasons in `Outcome`.

    `max_offset` returns a queue's end, None if the queue does not exist. The end must include a
    message before `message_arriving` is called for this message. `scan` searches the first match
    of a filter, like MessageStore.scan_hot. `observe_scan` is called after each periodic scan, with
    the seconds for which it blocked the loop.
    """

    def __init__(
        self,
        config: HoldServiceConfig,
        *,
        max_offset: Callable[[QueueKey], int | None],
        scan: "Callable[[QueueKey, int, int, MessageFilter], int | None]",
        observe_scan: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._config = config
        self._max_offset = max_offset
        self._scan = scan
        self._observe_scan = observe_scan
        self._scan_others: Callable[[], int] = lambda: 0
        self._table: HoldTable[asyncio.Future[HoldResult]] = HoldTable(config, scan_step)
        self._is_draining = False
        self._scanning: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_deadline = 0.0
        self._next_slice: asyncio.Handle | None = None
        self._answered = dict.fromkeys(Outcome, 0)
        self._stats = HoldStats()

    async def start(self, scan_others: Callable[[], int] = lambda: 0) -> None:
        """Start the periodic scan. May be called twice, and again after `stop`.

        Each scan calls `scan_others` to check the waiting requests of other kinds; it returns how
        many of these it had to wake.
        """
        self._scan_others = scan_others
        self._is_draining = False
        if self._scanning is None:
            self._scanning = asyncio.create_task(self._scan_forever(), name="hold-scan")

    async def stop(self) -> None:
        """End all held pulls and all later `hold` calls with DRAINING. May be called twice."""
        self._is_draining = True
        self._answer(self._table.release_all(), Outcome.DRAINING)
        for handle in (self._timer, self._next_slice):
            if handle is not None:
                handle.cancel()
        self._timer = self._next_slice = None
        scanning, self._scanning = self._scanning, None
        if scanning is not None:
            scanning.cancel()
            await asyncio.wait([scanning])

    async def hold(
        self,
        waits: Mapping[QueueKey, int],
        *,
        wait_s: float,
        client: str,
        filter: "MessageFilter | None" = None,
    ) -> HoldResult:
        """Wait at most `wait_s` until any of the queues has a message at or after the queue's
        offset in `waits`. With a filter, wait for a message that matches.

        After ARRIVED the caller must read again; if it finds nothing, it may call `hold` again for
        the remaining time. Cancelling immediately frees the pull's place. Raise HoldLimitExceeded.
        """
        wait = self.begin(waits, wait_s=wait_s, client=client, filter=filter)
        try:
            return await wait.future
        except BaseException:
            self.end_cancelled(wait)
            raise

    def begin(
        self,
        waits: Mapping[QueueKey, int],
        *,
        wait_s: float,
        client: str,
        filter: "MessageFilter | None" = None,
    ) -> "Wait":
        """Begin to wait as `hold` does, without a coroutine. After the future of the result was
        cancelled, call `end_cancelled`. Raise HoldLimitExceeded."""
        future: asyncio.Future[HoldResult] = asyncio.get_running_loop().create_future()
        if self._is_draining:
            future.set_result(HoldResult(Outcome.DRAINING, dict(waits)))
            return Wait(future, None)
        wait_s = self.limit_wait(wait_s)
        try:
            pull = self._table.suspend(
                waits, deadline=monotonic() + wait_s, client=client, ticket=future, filter=filter
            )
        except HoldLimitExceeded:
            self._stats.refused_total += 1
            raise
        wait = Wait(future, pull)
        try:
            self._note_held()
            for key in waits:
                max_offset = self._max_offset(key)
                if max_offset is None:
                    self._table.cancel(pull)
                    self._answer([pull], Outcome.DELETED)
                    break
                self._table.message_arriving(key, max_offset)
            self._wake_arrived()
            self._set_timer()
        except BaseException:
            self.end_cancelled(wait)
            raise
        return wait

    def end_cancelled(self, wait: "Wait") -> None:
        """Free the place of a wait whose future was cancelled. May be called twice."""
        if wait.pull is not None and self._table.cancel(wait.pull):
            self._stats.cancelled_total += 1

    def limit_wait(self, wait_s: float) -> float:
        """Return `wait_s`, limited to short_polling_ms in short polling mode."""
        config = self._config
        return wait_s if config.long_polling else min(wait_s, config.short_polling_ms / 1000)

    def occupy_slot(self, client: str) -> None:
        """Count one more waiting request of another kind in the limits of held pulls, until
        `free_slot`. Raise HoldLimitExceeded if a limit is reached."""
        try:
            self._table.enter(client)
        except HoldLimitExceeded:
            self._stats.refused_total += 1
            raise
        self._note_held()

    def free_slot(self, client: str) -> None:
        """Undo one call of `occupy_slot`."""
        self._table.leave(client)

    def message_arriving(self, advanced: Mapping[QueueKey, int]) -> None:
        """Wake the pulls that wait for new messages. `advanced` maps each queue to its new end; all
        messages before this end must be readable already.

        In short polling mode, do nothing: the scan wakes the pulls.
        """
        if self._config.long_polling:
            self._record_arrivals(advanced)

    def topic_deleted(self, topic_id: int) -> None:
        """End every pull that waits on a queue of this topic with DELETED."""
        self._answer(self._table.release_topic(topic_id), Outcome.DELETED)

    def stats(self) -> HoldStats:
        """Return the counts for metrics."""
        return replace(
            self._stats,
            held=len(self._table) + self._table.other_count,
            held_queues=self._table.queue_count,
            woken_total=self._answered[Outcome.ARRIVED],
            expired_total=self._answered[Outcome.EXPIRED],
            filtered_total=self._table.filtered_total,
        )

    def _note_held(self) -> None:
        held = len(self._table) + self._table.other_count
        self._stats.held_max = max(self._stats.held_max, held)

    # -- waking ----------------------------------------------------------------------------

    def _record_arrivals(self, advanced: Mapping[QueueKey, int]) -> None:
        for key, max_offset in advanced.items():
            self._table.message_arriving(key, max_offset)
        self._wake_arrived()

    def _wake_arrived(self) -> None:
        """Process arrivals and wake pulls for SLICE_S; the rest follows in the next loop
        iteration."""
        if not self._table.has_arrivals:
            return
        until = monotonic() + SLICE_S
        woken: list[HeldPull[asyncio.Future[HoldResult]]] = []
        while self._table.has_arrivals:
            woken += self._table.wake_some(self._scan_or_wake)
            if monotonic() >= until:
                break
        woken.sort(key=attrgetter("number"))
        self._answer(woken, Outcome.ARRIVED)
        if self._table.has_arrivals and self._next_slice is None:
            self._next_slice = asyncio.get_running_loop().call_soon(self._wake_next_slice)

    def _wake_next_slice(self) -> None:
        self._next_slice = None
        self._wake_arrived()

    def _scan_or_wake(
        self, key: QueueKey, start: int, end: int, filter: "MessageFilter"
    ) -> int | None:
        try:
            return self._scan(key, start, end, filter)
        except Exception:
            # Wake the pulls: each reads for itself and reports the failure to its own client.
            log.exception("a filter failed on queue %s from offset %d", key, start)
            return None

    def _answer(
        self, pulls: Iterable[HeldPull[asyncio.Future[HoldResult]]], outcome: Outcome
    ) -> None:
        for pull in pulls:
            if not pull.ticket.done():  # it is done if the waiting task was cancelled
                pull.ticket.set_result(HoldResult(outcome, pull.scanned))
                self._answered[outcome] += 1

    # -- deadlines -------------------------------------------------------------------------

    def _set_timer(self) -> None:
        """Set the single timer to the next deadline, or a little earlier if many pulls expire
        together (CROWD_LEAD_US)."""
        deadline = self._table.next_deadline()
        if deadline is None:
            return
        if self._timer is not None and self._timer_deadline <= deadline - MAX_LEAD_MS / 1000:
            return  # The timer is early enough for any number of pulls, so do not count the pulls.
        lead_ms = min(int(self._table.next_crowd() * CROWD_LEAD_US / 1000), MAX_LEAD_MS)
        wanted = deadline - lead_ms / 1000
        if self._timer is not None:
            if self._timer_deadline <= wanted:
                return
            self._timer.cancel()
        self._timer_deadline = wanted
        self._timer = asyncio.get_running_loop().call_later(
            max(0.0, wanted - monotonic()), self._expire, lead_ms / 1000
        )

    def _expire(self, lead_s: float) -> None:
        """End the pulls whose deadline has come, at most EXPIRY_SLICE per loop iteration, because
        replies are sent at the end of an iteration."""
        self._timer = None
        pulls = self._table.expire(monotonic() + lead_s, EXPIRY_SLICE)
        self._answer(pulls, Outcome.EXPIRED)
        if len(pulls) < EXPIRY_SLICE:
            self._set_timer()
            return
        self._timer_deadline = monotonic()
        self._timer = asyncio.get_running_loop().call_later(0, self._expire, lead_s)

    # -- the safety net --------------------------------------------------------------------

    async def _scan_forever(self) -> None:
        config = self._config
        interval_ms = config.scan_interval_ms if config.long_polling else config.short_polling_ms
        while True:
            await asyncio.sleep(interval_ms / 1000)
            try:
                await self.scan_once()
            except Exception:
                # Held pulls keep their deadlines, and the next scan tries again.
                log.exception("the scan of the held queues failed")

    async def scan_once(self) -> None:
        """Scan now, as the periodic scan does: wake the pulls that missed their wake-up."""
        started = monotonic()
        rescued = self._scan_others()
        busy_s = monotonic() - started
        if rescued:
            self._stats.scan_rescues += rescued
            log.warning("%d requests of groups waited without a wake-up", rescued)
        missed = await self._scan_queues(busy_s)
        if missed and self._config.long_polling:
            await asyncio.sleep(SCAN_GRACE_S)
            missed = {
                key: max_offset
                for key, max_offset in missed.items()
                if self._table.is_behind(key, max_offset)
            }
            if missed:
                self._stats.scan_rescues += len(missed)
                log.warning("%d queues had messages without a wake-up: %s", len(missed), missed)
        if missed:
            self._record_arrivals(missed)

    async def _scan_queues(self, busy_s: float) -> dict[QueueKey, int]:
        """Find the queues with held pulls that have messages for which `message_arriving` was not
        called. Return the ends of these queues. `busy_s` is the time for which this scan has
        already blocked the loop."""
        missed = {}
        keys = self._table.queue_keys()
        for first in range(0, len(keys), SCAN_CHUNK):
            started = monotonic()
            for key in keys[first : first + SCAN_CHUNK]:
                max_offset = self._max_offset(key)
                if max_offset is not None and self._table.is_behind(key, max_offset):
                    missed[key] = max_offset
            busy_s += monotonic() - started
            await asyncio.sleep(0)
        self._stats.last_scan_s = busy_s
        self._stats.scans_total += 1
        self._observe_scan(busy_s)
        if busy_s > SLOW_SCAN_S:
            log.warning("a scan of %d held queues took %.1f s of the event loop", len(keys), busy_s)
        return missed


def scan_step(message_filter: "MessageFilter") -> int:
    """Return how many messages of usual size one step scans for a filter. If the messages are
    larger, the scan returns None because it would take too long."""
    return max(1, min(SCAN_STEP, int(STEP_US / message_filter.cost_us(1, USUAL_TEXT_BYTES))))
