"""Makes a group's changes durable, one transaction at a time. On the event loop.

Changes made during a transaction go into the next one, so under load one sync serves many changes.
The rows of a failed transaction are written again in the next one, before its own rows. So the
state in memory may be newer than the state on disk. A change is confirmed only when it is durable.

If a caller waits for a change, its transaction begins at once. A change for which no caller waits
(a client that settles without asking for an answer) waits QUIET_S for others, because a transaction
for each costs more than the delivery of the message.
"""

import asyncio
import logging
from collections.abc import Callable

from holdfast.consumequeue.state.changes import complete_future
from holdfast.groups.core.group import Group
from holdfast.groups.core.outbox import WriteBatch
from holdfast.groups.cursor.rows import DeleteRange, Write
from holdfast.groups.service_types import GroupCounters
from holdfast.groups.storage.cursor_store import CursorStore, Writes

_logger = logging.getLogger(__name__)

#: A failed commit is retried after this time, or earlier if a caller waits for a commit.
RETRY_S = 1.0
#: Changes for which no caller waits are committed after this time. A crash of the broker may undo
#: what came in this time, as it may undo what a transaction in progress holds.
QUIET_S = 0.005


class Commits:
    """The commits of one group."""

    def __init__(
        self, group: Group, writer: CursorStore, now_ms: Callable[[], int], counters: GroupCounters
    ) -> None:
        self._group = group
        self._counters = counters
        self._writer = writer
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        #: Completed at the end of the transaction in progress; None if there is none.
        self._current: asyncio.Future[None] | None = None
        #: Completed at the end of the next transaction; None if no caller waits for it.
        self._next: asyncio.Future[None] | None = None
        #: The scheduled call that begins a transaction.
        self._scheduled: asyncio.Handle | None = None
        #: Rows to write that do not come from the group core.
        self._extra: list[Write | DeleteRange] = []
        #: The batch whose write failed, and which must be written again.
        self._failed_batch: WriteBatch | None = None

    def begin(self) -> None:
        """Schedule a commit of all changes: at the end of this event loop iteration if a caller
        waits for it, otherwise after QUIET_S."""
        if self._scheduled is not None or self._current is not None or not self._is_dirty():
            return
        if self._next is None:
            self._scheduled = self._loop.call_later(QUIET_S, self._begin)
        else:
            self._scheduled = self._loop.call_soon(self._begin)

    def write(self, writes: Writes) -> None:
        """Add rows that do not come from the group core."""
        self._extra += writes
        self.begin()

    def when_durable(self) -> "asyncio.Future[None]":
        """Return a future that is completed when all changes made before this call are durable. It
        fails with StateUnavailable. Callers share the future, so they must await it with
        `asyncio.shield`."""
        if self._is_dirty():
            if self._next is None:
                self._next = self._new()
            if isinstance(self._scheduled, asyncio.TimerHandle):  # do not wait any longer
                self.stop()
            self.begin()
            return self._next
        if self._current is not None:
            return self._current
        future = self._new()
        future.set_result(None)
        return future

    async def wait(self) -> None:
        """Wait until all changes made before this call are durable. Raises StateUnavailable. If the
        wait is cancelled, the changes are still committed."""
        await asyncio.shield(self.when_durable())

    def stop(self) -> None:
        """Cancel the scheduled commit, or the scheduled retry."""
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None

    def _is_dirty(self) -> bool:
        return self._group.outbox.has_writes or bool(self._extra) or self._failed_batch is not None

    def _new(self) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = self._loop.create_future()
        future.add_done_callback(_retrieve_exception)
        return future

    def _begin(self) -> None:
        self._scheduled = None
        if self._current is not None:
            return
        batch = self._group.outbox.take_writes()
        batch.writes[:0] = self._extra  # deletions come before new rows with the same keys
        self._extra = []
        if self._failed_batch is not None:
            batch = merge_batches(self._failed_batch, batch)
            self._failed_batch = None
        self._current, self._next = self._next or self._new(), None

        def done(error: Exception | None) -> None:
            self._loop.call_soon_threadsafe(self._done, batch, error)

        self._writer.commit(batch.writes, done, now_ms=self._now_ms())

    def _done(self, batch: WriteBatch, error: Exception | None) -> None:
        current, self._current = self._current, None
        assert current is not None
        if error is None:
            self._counters.commits_total += 1
            self._group.outbox.mark_committed(batch)
            current.set_result(None)
            self.begin()
            return
        self._counters.commit_failures_total += 1
        _logger.warning(
            "a change of group %d could not be written: %s", self._group.group_id, error
        )
        self._failed_batch = batch
        current.set_exception(error)
        if self._next is not None:
            self.begin()
        else:
            self._scheduled = self._loop.call_later(RETRY_S, self._begin)


async def commit_rows(writer: CursorStore, writes: Writes, *, now_ms: int) -> None:
    """Store rows of a group that is not served yet, and return when they are durable. Raises
    StateUnavailable. The call must not be cancelled."""
    loop = asyncio.get_running_loop()
    stored: asyncio.Future[None] = loop.create_future()

    def done(error: Exception | None) -> None:
        loop.call_soon_threadsafe(complete_future, stored, error)

    writer.commit(writes, done, now_ms=now_ms)
    await stored


def merge_batches(first: WriteBatch, second: WriteBatch) -> WriteBatch:
    """Return one batch with the writes of both. If a row is written several times without a
    DeleteRange in between, only its last value is kept. So the batch does not grow when the same
    rows fail repeatedly."""
    batch = WriteBatch()
    batch.reserves = first.reserves | second.reserves
    batch.fencing_epoch = second.fencing_epoch
    batch.ended_grants = first.ended_grants + second.ended_grants
    last: dict[tuple[str, bytes], int] = {}
    for each in (*first.writes, *second.writes):
        if isinstance(each, DeleteRange):
            last.clear()
            batch.writes.append(each)
        elif (at := last.get((each.table, each.key))) is not None:
            batch.writes[at] = each
        else:
            last[each.table, each.key] = len(batch.writes)
            batch.writes.append(each)
    return batch


def _retrieve_exception(future: "asyncio.Future[None]") -> None:
    """Retrieve the exception, so that asyncio does not log it as never retrieved."""
    if not future.cancelled():
        future.exception()
