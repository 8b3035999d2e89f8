"""Makes a group's changes durable: one transaction under way at a time. On the event loop.

What changes meanwhile goes into the next, so that the more is going on, the more shares a sync.
What could not be written is written with the next, before it: memory is ahead of the disk then,
and nobody is told of a change before it is durable.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.consumequeue.state_changes import settle
from holdfast.groups.counters import Counters
from holdfast.groups.group import Group
from holdfast.groups.group_parts import WriteBatch
from holdfast.groups.rows import DeleteRange, Write

_logger = logging.getLogger(__name__)

#: How long to wait after a failure before it is tried again, if nobody asks for it before.
RETRY_S = 1.0

Writes = Sequence[Write | DeleteRange]
Done = Callable[[Exception | None], None]


class CursorWriter(Protocol):
    """What stores rows. `done` may be called in any thread."""

    def commit(self, writes: Writes, done: Done, *, now_ms: int) -> None:
        """Store all of them, in this order, or none."""


class Commits:
    """The commits of one group."""

    def __init__(
        self,
        group: Group,
        writer: CursorWriter,
        now_ms: Callable[[], int],
        counters: Counters,
    ) -> None:
        self._group = group
        self._counters = counters
        self._writer = writer
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        #: Those who wait for the commit under way, and for the one after it.
        self._present: asyncio.Future[None] | None = None
        self._next: asyncio.Future[None] | None = None
        self._beginning: asyncio.Handle | None = None
        #: Rows that are not the group's to tell, and what could not be written.
        self._extra: list[Write | DeleteRange] = []
        self._unwritten: WriteBatch | None = None

    def begin(self) -> None:
        """Have what changed written soon: with all else that this turn of the loop changes."""
        if self._beginning is None and self._present is None and self._is_dirty():
            self._beginning = self._loop.call_soon(self._begin)

    def write(self, writes: Writes) -> None:
        """Add rows that are not the group's own to tell."""
        self._extra += writes
        self.begin()

    def durable(self) -> "asyncio.Future[None]":
        """Return a future that is done once all that changed up to now is on the disk. It fails
        with StateUnavailable. Shield it: others wait for the same."""
        if self._is_dirty():
            if isinstance(self._beginning, asyncio.TimerHandle):  # somebody asks: try again now
                self.stop()
            self.begin()
            if self._next is None:
                self._next = self._new()
            return self._next
        if self._present is not None:
            return self._present
        future = self._new()
        future.set_result(None)
        return future

    async def wait(self) -> None:
        """Wait until all that changed up to now is on the disk. Raises StateUnavailable.
        Cancelling does not undo anything."""
        await asyncio.shield(self.durable())

    def stop(self) -> None:
        """Begin nothing more by itself."""
        if self._beginning is not None:
            self._beginning.cancel()
            self._beginning = None

    # -- inside ------------------------------------------------------------------------------

    def _is_dirty(self) -> bool:
        return self._group.has_changes or bool(self._extra) or self._unwritten is not None

    def _new(self) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = self._loop.create_future()
        future.add_done_callback(_look_at)
        return future

    def _begin(self) -> None:
        self._beginning = None
        if self._present is not None:
            return
        batch = self._group.take_writes()
        batch.writes[:0] = self._extra  # what is deleted is, before anything new takes its place
        self._extra = []
        if self._unwritten is not None:
            batch = merged(self._unwritten, batch)
            self._unwritten = None
        self._present, self._next = self._next or self._new(), None

        def done(error: Exception | None) -> None:
            self._loop.call_soon_threadsafe(self._done, batch, error)

        self._writer.commit(batch.writes, done, now_ms=self._now_ms())

    def _done(self, batch: WriteBatch, error: Exception | None) -> None:
        present, self._present = self._present, None
        assert present is not None
        if error is None:
            self._counters.commits += 1
            self._group.committed(batch)
            present.set_result(None)
            self.begin()
            return
        self._counters.commit_failures += 1
        _logger.warning(
            "a change of group %d could not be written: %s", self._group.group_id, error
        )
        self._unwritten = batch
        present.set_exception(error)
        if self._next is not None:
            self.begin()
        else:
            self._beginning = self._loop.call_later(RETRY_S, self._begin)


async def committed(writer: CursorWriter, writes: Writes, *, now_ms: int) -> None:
    """Have rows stored of a group that nobody serves yet. Raises StateUnavailable. Not to be
    cancelled."""
    loop = asyncio.get_running_loop()
    stored: asyncio.Future[None] = loop.create_future()

    def done(error: Exception | None) -> None:
        loop.call_soon_threadsafe(settle, stored, error)

    writer.commit(writes, done, now_ms=now_ms)
    await stored


def merged(first: WriteBatch, second: WriteBatch) -> WriteBatch:
    """Return what writes both, of each row no more than its last value where nothing is deleted
    in between: however often writing fails, it does not grow with that."""
    batch = WriteBatch()
    batch.reserves = first.reserves | second.reserves
    batch.fencing_epoch = second.fencing_epoch
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


def _look_at(future: "asyncio.Future[None]") -> None:
    """Take a failure that nobody may wait for."""
    if not future.cancelled():
        future.exception()
