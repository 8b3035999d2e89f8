"""Holds pulls that have nothing to read yet: the asyncio shell around the hold table.

Belongs to one event loop; every method is called there. No wake-up is lost: a message is
readable before its arrival is told, and `hold` registers before it reads the queues' ends.
The periodic scan is the net below that, and its finds are counted: `scan_rescues` stays 0.
What the table decides is only carried out here; what a woken pull then reads is the caller's.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from holdfast.consumequeue.topics import QueueKey
from holdfast.holdservice.config import HoldServiceConfig
from holdfast.holdservice.errors import HoldLimitExceeded
from holdfast.holdservice.hold_table import SCAN_STEP, HeldPull, HoldTable

if TYPE_CHECKING:
    from holdfast.consumequeue.message_store import MessageFilter

__all__ = ["HoldLimitExceeded", "HoldStats", "Outcome", "PullRequestHoldService", "Woken"]

log = logging.getLogger(__name__)

#: Longest that waking keeps the loop from other work before it goes on in the next turn.
SLICE_S = 0.002
#: Of a costly filter no more is looked at in a step than takes about this long.
STEP_US = 1500
#: Bytes of keys, tags and property values that a usual message has.
USUAL_TEXT_BYTES = 200
#: Pulls that are answered for their deadline in one turn of the loop.
EXPIRY_SLICE = 64
#: When many pulls end together, the first are answered this much before their deadline for each
#: of them, and MAX_LEAD_MS at most: about what answering takes, so that the last are not late.
CROWD_LEAD_US = 40
MAX_LEAD_MS = 40
#: Queues that the scan compares before it lets the loop do other work.
SCAN_CHUNK = 1000
#: A message is readable a moment before its arrival is told. What the scan sees is missed only
#: when its arrival was not told for this long.
SCAN_GRACE_S = 1.0
#: A scan that takes more of the loop's time is logged, as RocketMQ's is.
SLOW_SCAN_S = 5.0


class Outcome(StrEnum):
    """Why a held pull is answered."""

    ARRIVED = "arrived"
    EXPIRED = "expired"
    DRAINING = "draining"
    DELETED = "deleted"


class Woken(NamedTuple):
    """The end of a wait. No message before the `scanned` offset of its queue matches."""

    outcome: Outcome
    scanned: dict[QueueKey, int]


@dataclass(frozen=True, slots=True)
class HoldStats:
    """What is held now, and counts since the start. `held` are pulls and all else that waits
    within the same limits; the other counts are of pulls, but for `refused_total` and
    `scan_rescues`. `last_scan_s` is the loop's time that the last scan took."""

    held: int
    held_max: int
    held_queues: int
    woken_total: int
    expired_total: int
    cancelled_total: int
    refused_total: int
    filtered_total: int
    scans_total: int
    scan_rescues: int
    last_scan_s: float


class PullRequestHoldService:
    """Suspends pulls and answers each exactly once: by a message, its deadline, or the end.

    `max_offset` tells a queue's end, None when there is no such queue; it must see a message
    before `message_arriving` is called for it. `scan` looks for a filter's first match, as
    MessageStore.scan_hot does.
    """

    def __init__(
        self,
        config: HoldServiceConfig,
        *,
        max_offset: Callable[[QueueKey], int | None],
        scan: "Callable[[QueueKey, int, int, MessageFilter], int | None]",
    ) -> None:
        self._config = config
        self._max_offset = max_offset
        self._scan = scan
        self._table: HoldTable[asyncio.Future[Woken]] = HoldTable(config, _scan_step)
        self._is_draining = False
        self._scanning: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_deadline = 0.0
        self._next_slice: asyncio.Handle | None = None
        self._answered = dict.fromkeys(Outcome, 0)
        self._held_max = 0
        self._cancelled_total = 0
        self._refused_total = 0
        self._scans_total = 0
        self._scan_rescues = 0
        self._last_scan_s = 0.0
        self.also_scan: Callable[[], int] = lambda: 0
        """Looks at what else waits, and returns how many it had to rescue. The composition's."""
        self.observe_scan: Callable[[float], None] = lambda seconds: None
        """Told of the loop's time that each scan took. The composition's."""

    async def start(self) -> None:
        """Begin the periodic scan. May be called twice, and again after `stop`."""
        self._is_draining = False
        if self._scanning is None:
            self._scanning = asyncio.create_task(self._scan_forever(), name="hold-scan")

    async def stop(self) -> None:
        """Answer everything held with DRAINING, and all later holds too. May be called twice."""
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
    ) -> Woken:
        """Wait until any of the queues has a message at or after its offset, for `wait_s`.

        With a filter, until there is one that matches. ARRIVED means: read again, and hold
        again for the time that remains should nothing be found. Cancelling frees the place at
        once. Raises HoldLimitExceeded.
        """
        if self._is_draining:
            return Woken(Outcome.DRAINING, dict(waits))
        wait_s = self.at_most(wait_s)
        future: asyncio.Future[Woken] = asyncio.get_running_loop().create_future()
        try:
            pull = self._table.suspend(
                waits, deadline=monotonic() + wait_s, client=client, ticket=future, filter=filter
            )
        except HoldLimitExceeded:
            self._refused_total += 1
            raise
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
            return await future
        except BaseException:
            if self._table.cancel(pull):
                self._cancelled_total += 1
            raise

    def at_most(self, wait_s: float) -> float:
        """Return how long a request may be held that asks for so long."""
        config = self._config
        return wait_s if config.long_polling else min(wait_s, config.short_polling_ms / 1000)

    @contextmanager
    def taken(self, client: str) -> Iterator[None]:
        """Take a place for a request that waits elsewhere, within the limits of pulls. Raises
        HoldLimitExceeded."""
        try:
            self._table.enter(client)
        except HoldLimitExceeded:
            self._refused_total += 1
            raise
        self._note_held()
        try:
            yield
        finally:
            self._table.leave(client)

    def message_arriving(self, advanced: Mapping[QueueKey, int]) -> None:
        """Wake whoever waits for messages that are readable now, up to the ends given.

        In short polling mode nobody is told; the scan finds them.
        """
        if self._config.long_polling:
            self._tell(advanced)

    def topic_deleted(self, topic_id: int) -> None:
        """Answer every pull that waits on a queue of this topic with DELETED."""
        self._answer(self._table.release_topic(topic_id), Outcome.DELETED)

    def stats(self) -> HoldStats:
        """Return the figures for metrics."""
        return HoldStats(
            held=len(self._table) + self._table.other_count,
            held_max=self._held_max,
            held_queues=self._table.queue_count,
            woken_total=self._answered[Outcome.ARRIVED],
            expired_total=self._answered[Outcome.EXPIRED],
            cancelled_total=self._cancelled_total,
            refused_total=self._refused_total,
            filtered_total=self._table.filtered_total,
            scans_total=self._scans_total,
            scan_rescues=self._scan_rescues,
            last_scan_s=self._last_scan_s,
        )

    def _note_held(self) -> None:
        self._held_max = max(self._held_max, len(self._table) + self._table.other_count)

    # -- waking ----------------------------------------------------------------------------

    def _tell(self, advanced: Mapping[QueueKey, int]) -> None:
        for key, max_offset in advanced.items():
            self._table.message_arriving(key, max_offset)
        self._wake_arrived()

    def _wake_arrived(self) -> None:
        """Look at what arrivals have reached, for a slice of time; go on in the next turn."""
        if not self._table.has_arrivals:
            return
        until = monotonic() + SLICE_S
        woken: list[HeldPull[asyncio.Future[Woken]]] = []
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
            # Woken, each pull reads for itself and answers its own client with the failure.
            log.exception("a filter could not be tried on queue %s from %d", key, start)
            return None

    def _answer(self, pulls: Iterable[HeldPull[asyncio.Future[Woken]]], outcome: Outcome) -> None:
        for pull in pulls:
            if not pull.ticket.done():  # else cancelled, and about to find out
                pull.ticket.set_result(Woken(outcome, pull.scanned))
                self._answered[outcome] += 1

    # -- deadlines -------------------------------------------------------------------------

    def _set_timer(self) -> None:
        """Keep one timer, at the next deadline or before; for a crowd a little before."""
        deadline = self._table.next_deadline()
        if deadline is None:
            return
        if self._timer is not None and self._timer_deadline <= deadline - MAX_LEAD_MS / 1000:
            return  # Early enough for any crowd, which need not be counted then.
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
        """Answer those whose deadline has come, a slice a turn: what is written in a turn of
        the loop leaves at its end."""
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
                await self._scan_once()
            except Exception:
                # Whoever is held stays held, with its deadline; the next scan tries again.
                log.exception("the scan of the held queues failed")

    async def _scan_once(self) -> None:
        started = monotonic()
        rescued = self.also_scan()
        busy_s = monotonic() - started
        if rescued:
            self._scan_rescues += rescued
            log.warning("%d requests waited for messages that were there", rescued)
        behind = await self._scan_queues(busy_s)
        if behind and self._config.long_polling:
            await asyncio.sleep(SCAN_GRACE_S)
            behind = {
                key: max_offset
                for key, max_offset in behind.items()
                if self._table.is_behind(key, max_offset)
            }
            if behind:
                self._scan_rescues += len(behind)
                log.warning("messages on %d held queues were not told of: %s", len(behind), behind)
        if behind:
            self._tell(behind)

    async def _scan_queues(self, busy_s: float) -> dict[QueueKey, int]:
        """Return the ends of the held queues that have messages nobody was told of; `busy_s` is
        what this scan has taken so far."""
        behind = {}
        keys = self._table.queue_keys()
        for first in range(0, len(keys), SCAN_CHUNK):
            started = monotonic()
            for key in keys[first : first + SCAN_CHUNK]:
                max_offset = self._max_offset(key)
                if max_offset is not None and self._table.is_behind(key, max_offset):
                    behind[key] = max_offset
            busy_s += monotonic() - started
            await asyncio.sleep(0)
        self._last_scan_s = busy_s
        self._scans_total += 1
        self.observe_scan(busy_s)
        if busy_s > SLOW_SCAN_S:
            log.warning("a scan of %d held queues took %.1f s of the event loop", len(keys), busy_s)
        return behind


def _scan_step(message_filter: "MessageFilter") -> int:
    """Return how many messages one step looks at, of the usual kind: with larger ones the scan
    itself says that it would take too long."""
    return max(1, min(SCAN_STEP, int(STEP_US / message_filter.cost_us(1, USUAL_TEXT_BYTES))))
